//! The contender that sends a handle of shared memory. The handle is ipc-channel's
//! `IpcSharedMemory`, which has no safe way to change its bytes. So the producer copies each tensor
//! into new memory, and the consumer maps this memory.

use ipc_channel::IpcError;
use ipc_channel::ipc::{IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory, channel};

use super::contender::{Prepared, Producer};
use super::lookout::Lookout;
use super::serialize::{Answer, Channel, Exchange};
use crate::{BaselineError, payload};

type Message = IpcSharedMemory;
/// The bytes of an [`Answer`].
type Reply = [u8; 16];
/// The producer's ends of the two channels. The consumer makes the channels and sends these ends, because the consumer
/// connects.
type Hello = (IpcSender<Message>, IpcReceiver<Reply>);

pub fn prepare(bytes: usize) -> Result<Prepared, BaselineError> {
    let (server, name) = IpcOneShotServer::<Hello>::new().map_err(|e| failed("making its socket", e))?;
    let meet = move |_: Lookout| {
        let (_, (sender, receiver)) = server.accept().map_err(|e| failed("waiting for the consumer", e))?;
        Ok(Box::new(Exchange::new(Link { own: payload::make(bytes), sender, receiver })) as Box<dyn Producer>)
    };
    let dial = name.clone();
    let unblock = move || drop(IpcSender::<Hello>::connect(dial.clone()));
    Ok(Prepared { args: vec![name], meet: Box::new(meet), unblock: Box::new(unblock) })
}

struct Link {
    own: Vec<u8>,
    sender: IpcSender<Message>,
    receiver: IpcReceiver<Reply>,
}

impl Channel for Link {
    fn data(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    fn send(&mut self) -> Result<(), BaselineError> {
        self.sender.send(IpcSharedMemory::from_bytes(&self.own)).map_err(|e| failed("sending", e))
    }

    fn answer(&mut self) -> Result<Answer, BaselineError> {
        Answer::parse(&self.receiver.recv().map_err(|e| failed("waiting for the answer", e))?)
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
    for number in 0.. {
        let memory = match receiver.recv() {
            Ok(memory) => memory,
            // The producer has closed its end, because there are no more exchanges.
            Err(IpcError::Disconnected) => return Ok(()),
            Err(error) => return Err(failed("receiving", error)),
        };
        sender.send(Answer::of(&memory, number)?.to_bytes()).map_err(|_| BaselineError::ProducerGone)?;
    }
    Ok(())
}

fn failed(doing: &'static str, error: impl ToString) -> BaselineError {
    BaselineError::Channel { doing, why: error.to_string() }
}
