//! The contenders that send a tensor as a message. The producer encodes the tensor, a carrier
//! transports the message, and the consumer decodes it.

use crate::codec::Codec;
use crate::contender::{Prepared, Producer};
use crate::lookout::Lookout;
use crate::pipe::{self, Carrier, Meeting, Pipe};
use crate::tensor::Tensor;
use crate::{BaselineError, Lap, now_ns, payload};

/// The consumer's response. It contains the time at which the consumer held the tensor, and the
/// tensor's stamp or, on request, its checksum.
pub struct Answer {
    pub held_ns: u64,
    pub found: u64,
}

pub fn prepare(codec: Codec, carrier: Carrier, bytes: usize) -> Result<Prepared, BaselineError> {
    let meeting = Meeting::open(carrier)?;
    let name = meeting.name().to_owned();
    let args = vec![name.clone()];
    let meet = move |_: Lookout| {
        let pipe = meeting.accept()?;
        let data = payload::make(bytes);
        let tensor = Tensor { dtype: "u8".to_owned(), shape: vec![bytes as u64], data };
        Ok(Box::new(Link { codec, tensor, pipe, sequence: 0 }) as Box<dyn Producer>)
    };
    Ok(Prepared { args, meet: Box::new(meet), nudge: Box::new(move || pipe::nudge(carrier, &name)) })
}

struct Link {
    codec: Codec,
    tensor: Tensor,
    pipe: Pipe,
    sequence: u64,
}

impl Link {
    fn send(&mut self) -> Result<(), BaselineError> {
        let pipe = &mut self.pipe;
        self.codec.encode(&self.tensor, |message| pipe.send(message))
    }

    fn answer(&mut self) -> Result<Answer, BaselineError> {
        let gone = || BaselineError::Channel { doing: "waiting for the answer", why: "the consumer left".to_owned() };
        self.pipe.receive(Answer::parse)?.ok_or_else(gone)
    }
}

impl Producer for Link {
    /// Runs the first exchange, which is the only one with a checksum. The consumer knows from its
    /// own count that a checksum is due.
    fn verify(&mut self) -> Result<bool, BaselineError> {
        assert_eq!(self.sequence, 0, "the checksum comes first");
        payload::stamp(&mut self.tensor.data, self.sequence);
        self.sequence += 1;
        self.send()?;
        Ok(self.answer()?.found == payload::checksum(&self.tensor.data))
    }

    /// Does nothing. A consumer that is blocked in `receive` needs neither `wake` nor `rest`.
    fn wake(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }

    fn round(&mut self) -> Result<Lap, BaselineError> {
        payload::stamp(&mut self.tensor.data, self.sequence);
        self.sequence += 1;

        let t0_ns = now_ns();
        self.send()?;
        let t1_ns = now_ns();
        let answer = self.answer()?;
        let t3_ns = now_ns();

        let stamp_ok = answer.found == payload::stamp_of(&self.tensor.data);
        Ok(Lap { t0_ns, t1_ns, t2_ns: answer.held_ns, t3_ns, stamp_ok })
    }

    fn rest(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }
}

pub fn serve(codec: Codec, carrier: Carrier, args: &[String]) -> Result<(), BaselineError> {
    let [name] = args else { return Err(BaselineError::Arguments(args.to_vec())) };
    let mut pipe = pipe::dial(carrier, name)?;
    let mut find: fn(&[u8]) -> u64 = payload::checksum;
    loop {
        let answer = pipe.receive(|message| {
            let tensor = codec.decode(message)?;
            let held_ns = now_ns();
            Ok(Answer { held_ns, found: find(tensor.data()) })
        })?;
        // The producer has closed its end, because there are no more exchanges.
        let Some(answer) = answer else { return Ok(()) };
        pipe.send(&answer.to_bytes())?;
        find = payload::stamp_of;
    }
}

impl Answer {
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.held_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&self.found.to_le_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, BaselineError> {
        let words = bytes.as_chunks::<8>();
        let ([held, found], []) = words else {
            let why = format!("the answer has {} bytes instead of 16", bytes.len());
            return Err(BaselineError::Channel { doing: "waiting for the answer", why });
        };
        Ok(Self { held_ns: u64::from_le_bytes(*held), found: u64::from_le_bytes(*found) })
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn answers_survive_the_wire() {
        let sent = Answer { held_ns: 5, found: u64::MAX };
        let read = Answer::parse(&sent.to_bytes()).unwrap();
        assert_eq!((read.held_ns, read.found), (5, u64::MAX));
        assert!(Answer::parse(&[0; 15]).is_err());
    }
}
