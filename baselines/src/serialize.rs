//! The serialize contender: serde and bincode over an ipc-channel, decoded by the consumer.

use std::io::ErrorKind;

use ipc_channel::IpcError;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender, bytes_channel};

use crate::contender::{Prepared, Producer};
use crate::lookout::Lookout;
use crate::tensor::Tensor;
use crate::{BaselineError, Lap, now_ns, payload};

/// What the consumer answers: when it held the tensor, and the stamp or, if asked, the checksum that it found.
struct Answer {
    held_ns: u64,
    found: u64,
}

/// The consumer's ends go to the producer, so that the consumer is the one to connect.
type Hello = (IpcBytesSender, IpcBytesReceiver);

pub fn prepare(bytes: usize) -> Result<Prepared, BaselineError> {
    let (server, name) = IpcOneShotServer::<Hello>::new().map_err(|error| channel("making its socket", error))?;
    let meet = move |_: Lookout| {
        let (_, (sender, receiver)) = server.accept().map_err(|error| channel("waiting for the consumer", error))?;
        let data = payload::make(bytes);
        let tensor = Tensor { dtype: "u8".to_owned(), shape: vec![bytes as u64], data };
        Ok(Box::new(Link { tensor, sender, receiver, sequence: 0 }) as Box<dyn Producer>)
    };
    let dial = name.clone();
    // Whoever connects and says nothing ends the server's wait.
    let nudge = move || drop(IpcSender::<Hello>::connect(dial.clone()));
    Ok(Prepared { args: vec![name], meet: Box::new(meet), nudge: Box::new(nudge) })
}

struct Link {
    tensor: Tensor,
    sender: IpcBytesSender,
    receiver: IpcBytesReceiver,
    sequence: u64,
}

impl Link {
    fn send(&self) -> Result<(), BaselineError> {
        let message = bincode::serde::encode_to_vec(&self.tensor, bincode::config::standard())
            .map_err(|error| codec("encoding", error))?;
        self.sender.send(&message).map_err(|error| channel("sending", error))
    }

    fn answer(&self) -> Result<Answer, BaselineError> {
        let message = self.receiver.recv().map_err(|error| channel("waiting for the answer", error))?;
        Answer::parse(&message)
    }
}

impl Producer for Link {
    /// Only the first exchange is checked by its checksum; the consumer counts too.
    fn verify(&mut self) -> Result<bool, BaselineError> {
        assert_eq!(self.sequence, 0, "the checksum comes first");
        payload::stamp(&mut self.tensor.data, self.sequence);
        self.sequence += 1;
        self.send()?;
        Ok(self.answer()?.found == payload::checksum(&self.tensor.data))
    }

    /// A consumer blocked in `recv` needs neither this nor rest.
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

pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    let [name] = args else { return Err(BaselineError::Arguments(args.to_vec())) };
    let fresh = || bytes_channel().map_err(|error| channel("making a channel", error));
    let ((to_me, receiver), (sender, from_me)) = (fresh()?, fresh()?);
    IpcSender::<Hello>::connect(name.clone())
        .map_err(|error| channel("connecting to the producer", error))?
        .send((to_me, from_me))
        .map_err(|error| channel("greeting the producer", error))?;

    let mut find: fn(&[u8]) -> u64 = payload::checksum;
    loop {
        let message = match receiver.recv() {
            Ok(message) => message,
            // The producer has closed its end: all done.
            Err(IpcError::Disconnected) => return Ok(()),
            Err(error) => return Err(channel("receiving", error)),
        };
        let (tensor, _): (Tensor, usize) = bincode::serde::decode_from_slice(&message, bincode::config::standard())
            .map_err(|error| codec("decoding", error))?;
        let held_ns = now_ns();

        let answer = Answer { held_ns, found: find(&tensor.data) };
        sender.send(&answer.to_bytes()).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => BaselineError::ProducerGone,
            _ => channel("answering", error),
        })?;
        find = payload::stamp_of;
    }
}

impl Answer {
    fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.held_ns.to_le_bytes());
        bytes[8..].copy_from_slice(&self.found.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, BaselineError> {
        let words = bytes.as_chunks::<8>();
        let ([held, found], []) = words else {
            return Err(codec("reading the answer", format!("it has {} bytes instead of 16", bytes.len())));
        };
        Ok(Self { held_ns: u64::from_le_bytes(*held), found: u64::from_le_bytes(*found) })
    }
}

fn channel(doing: &'static str, error: impl ToString) -> BaselineError {
    BaselineError::Channel { doing, why: error.to_string() }
}

fn codec(doing: &'static str, error: impl ToString) -> BaselineError {
    BaselineError::Codec { doing, why: error.to_string() }
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
