//! The contenders that send a tensor as a message. The producer encodes the tensor, a carrier
//! transports the message, and the consumer decodes it.

use super::codec::Codec;
use super::contender::{Prepared, Producer};
use super::lookout::Lookout;
use super::pipe::{self, Carrier, Meeting, Pipe};
use super::tensor::Tensor;
use crate::{BaselineError, Lap, now_ns, payload};

/// The consumer's response. It contains the time at which the consumer had read the tensor, and the
/// checksum of the first tensor, or the number of a later tensor.
pub struct Answer {
    pub read_ns: u64,
    pub found: u64,
}

/// A channel that sends a tensor, and whose consumer responds with an [`Answer`].
pub trait Channel {
    /// Returns the bytes of the tensor.
    fn data(&mut self) -> &mut Vec<u8>;
    fn send(&mut self) -> Result<(), BaselineError>;
    fn answer(&mut self) -> Result<Answer, BaselineError>;
}

/// The producer's side of an exchange over a channel.
pub struct Exchange<C> {
    channel: C,
    sequence: u64,
}

impl<C: Channel> Exchange<C> {
    pub fn new(channel: C) -> Self {
        Self { channel, sequence: 0 }
    }
}

impl<C: Channel> Producer for Exchange<C> {
    /// Runs the first exchange, which is the only one with a checksum. The consumer knows from its
    /// own count that a checksum is due.
    fn verify(&mut self) -> Result<bool, BaselineError> {
        assert_eq!(self.sequence, 0, "the checksum comes first");
        self.channel.send()?;
        Ok(self.channel.answer()?.found == payload::checksum(self.channel.data()))
    }

    fn round(&mut self) -> Result<Lap, BaselineError> {
        self.sequence += 1;

        let t0_ns = now_ns();
        payload::write_all(self.channel.data(), self.sequence);
        self.channel.send()?;
        let t1_ns = now_ns();
        let answer = self.channel.answer()?;
        let t3_ns = now_ns();

        Ok(Lap { t0_ns, t1_ns, t2_ns: answer.read_ns, t3_ns, bytes_ok: answer.found == self.sequence })
    }
}

pub fn prepare(codec: Codec, carrier: Carrier, bytes: usize) -> Result<Prepared, BaselineError> {
    let meeting = Meeting::open(carrier)?;
    let name = meeting.name().to_owned();
    let args = vec![name.clone()];
    let meet = move |_: Lookout| {
        let pipe = meeting.accept()?;
        let data = payload::make(bytes);
        let tensor = Tensor { dtype: "u8".to_owned(), shape: vec![bytes as u64], data };
        Ok(Box::new(Exchange::new(Link { codec, tensor, pipe })) as Box<dyn Producer>)
    };
    Ok(Prepared { args, meet: Box::new(meet), unblock: Box::new(move || pipe::unblock(carrier, &name)) })
}

struct Link {
    codec: Codec,
    tensor: Tensor,
    pipe: Pipe,
}

impl Channel for Link {
    fn data(&mut self) -> &mut Vec<u8> {
        &mut self.tensor.data
    }

    fn send(&mut self) -> Result<(), BaselineError> {
        let pipe = &mut self.pipe;
        self.codec.encode(&self.tensor, |message| pipe.send(message))
    }

    fn answer(&mut self) -> Result<Answer, BaselineError> {
        let gone = || BaselineError::Channel { doing: "waiting for the answer", why: "the consumer left".to_owned() };
        self.pipe.receive(Answer::parse)?.ok_or_else(gone)
    }
}

pub fn serve(codec: Codec, carrier: Carrier, args: &[String]) -> Result<(), BaselineError> {
    let [name] = args else { return Err(BaselineError::Arguments(args.to_vec())) };
    let mut pipe = pipe::dial(carrier, name)?;
    for number in 0.. {
        let answer = pipe.receive(|message| Answer::of(codec.decode(message)?.data(), number))?;
        // The producer has closed its end, because there are no more exchanges.
        let Some(answer) = answer else { return Ok(()) };
        pipe.send(&answer.to_bytes())?;
    }
    Ok(())
}

impl Answer {
    /// Reads the tensor of exchange `number`, of which the first is 0.
    pub fn of(tensor: &[u8], number: u64) -> Result<Self, BaselineError> {
        let found = if number == 0 {
            payload::checksum(tensor)
        } else {
            payload::read_all(tensor, number)?;
            number
        };
        Ok(Self { read_ns: now_ns(), found })
    }

    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.read_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&self.found.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, BaselineError> {
        let words = bytes.as_chunks::<8>();
        let ([read, found], []) = words else {
            let why = format!("the answer has {} bytes instead of 16", bytes.len());
            return Err(BaselineError::Channel { doing: "waiting for the answer", why });
        };
        Ok(Self { read_ns: u64::from_le_bytes(*read), found: u64::from_le_bytes(*found) })
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn answers_survive_the_wire() {
        let sent = Answer { read_ns: 5, found: u64::MAX };
        let read = Answer::parse(&sent.to_bytes()).unwrap();
        assert_eq!((read.read_ns, read.found), (5, u64::MAX));
        assert!(Answer::parse(&[0; 15]).is_err());
    }
}
