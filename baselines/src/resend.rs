//! The contender that sends a handle of shared memory. The handle is ipc-channel's
//! `IpcSharedMemory`, which is filled once and sent again each time.
//!
//! One choice favors this contender. The bytes are copied into the memory before the clock starts,
//! and never change. The timed part is the transfer of the descriptor, and the consumer's mapping.
//! Because the bytes do not change, the stamp is a separate part of the message.

use ipc_channel::IpcError;
use ipc_channel::ipc::{IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory, channel};

use crate::contender::{Prepared, Producer};
use crate::lookout::Lookout;
use crate::serialize::Answer;
use crate::{BaselineError, Lap, now_ns, payload};

/// The stamp and the memory.
type Message = (u64, IpcSharedMemory);
/// A response: the time at which the consumer held the memory, and its stamp or checksum.
type Reply = [u8; 16];
/// The producer's ends of the two channels. The consumer makes the channels and sends these ends, because the consumer
/// connects.
type Hello = (IpcSender<Message>, IpcReceiver<Reply>);

pub fn prepare(bytes: usize) -> Result<Prepared, BaselineError> {
    let (server, name) = IpcOneShotServer::<Hello>::new().map_err(|e| failed("making its socket", e))?;
    let meet = move |_: Lookout| {
        let (_, (sender, receiver)) = server.accept().map_err(|e| failed("waiting for the consumer", e))?;
        let own = payload::make(bytes);
        let memory = IpcSharedMemory::from_bytes(&own);
        let checksum = payload::checksum(&own);
        Ok(Box::new(Link { memory, checksum, sender, receiver, sequence: 0 }) as Box<dyn Producer>)
    };
    let dial = name.clone();
    let nudge = move || drop(IpcSender::<Hello>::connect(dial.clone()));
    Ok(Prepared { args: vec![name], meet: Box::new(meet), nudge: Box::new(nudge) })
}

struct Link {
    memory: IpcSharedMemory,
    checksum: u64,
    sender: IpcSender<Message>,
    receiver: IpcReceiver<Reply>,
    sequence: u64,
}

impl Link {
    fn send(&self) -> Result<(), BaselineError> {
        self.sender.send((self.sequence, self.memory.clone())).map_err(|e| failed("sending", e))
    }

    fn answer(&self) -> Result<Answer, BaselineError> {
        Answer::parse(&self.receiver.recv().map_err(|e| failed("waiting for the answer", e))?)
    }
}

impl Producer for Link {
    fn verify(&mut self) -> Result<bool, BaselineError> {
        self.send()?;
        self.sequence += 1;
        Ok(self.answer()?.found == self.checksum)
    }

    fn wake(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }

    fn round(&mut self) -> Result<Lap, BaselineError> {
        let t0_ns = now_ns();
        self.send()?;
        let t1_ns = now_ns();
        let answer = self.answer()?;
        let t3_ns = now_ns();

        let stamp_ok = answer.found == self.sequence;
        self.sequence += 1;
        Ok(Lap { t0_ns, t1_ns, t2_ns: answer.held_ns, t3_ns, stamp_ok })
    }

    fn rest(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }
}

pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    let [name] = args else { return Err(BaselineError::Arguments(args.to_vec())) };
    let (to_me, receiver) = channel::<Message>().map_err(|e| failed("making a channel", e))?;
    let (sender, from_me) = channel::<Reply>().map_err(|e| failed("making a channel", e))?;
    IpcSender::<Hello>::connect(name.clone())
        .map_err(|e| failed("connecting to the producer", e))?
        .send((to_me, from_me))
        .map_err(|e| failed("greeting the producer", e))?;
    let mut first = true;
    loop {
        let (stamp, memory) = match receiver.recv() {
            Ok(message) => message,
            // The producer has closed its end, because there are no more exchanges.
            Err(IpcError::Disconnected) => return Ok(()),
            Err(error) => return Err(failed("receiving", error)),
        };
        let held_ns = now_ns();
        let found = if first { payload::checksum(&memory) } else { stamp };
        first = false;
        sender.send(Answer { held_ns, found }.to_bytes()).map_err(|_| BaselineError::ProducerGone)?;
    }
}

fn failed(doing: &'static str, error: impl ToString) -> BaselineError {
    BaselineError::Channel { doing, why: error.to_string() }
}
