//! The carriers of messages between producer and consumer. A carrier is an ipc-channel or a stream
//! socket.
//!
//! The producer opens the carrier, and the consumer connects to it.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

use ipc_channel::IpcError;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, IpcOneShotServer, IpcSender, bytes_channel};

use crate::BaselineError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    IpcChannel,
    UnixSocket,
}

/// The producer's ends of the two channels. The consumer makes the channels and sends these ends, because the consumer
/// connects.
type Hello = (IpcBytesSender, IpcBytesReceiver);

pub enum Pipe {
    Channel(IpcBytesSender, IpcBytesReceiver),
    /// A socket, on which each message follows its length, and a reused buffer.
    Socket(UnixStream, Vec<u8>),
}

/// A name under which a producer waits for its consumer.
pub enum Meeting {
    Channel(IpcOneShotServer<Hello>, String),
    Socket(UnixListener, String),
}

impl Meeting {
    pub fn open(carrier: Carrier) -> Result<Self, BaselineError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        match carrier {
            Carrier::IpcChannel => {
                let (server, name) = IpcOneShotServer::new().map_err(|e| failed("making its socket", e))?;
                Ok(Self::Channel(server, name))
            }
            Carrier::UnixSocket => {
                // Use an abstract name, which leaves no file behind.
                let count = COUNT.fetch_add(1, Ordering::Relaxed);
                let name = format!("tensorlend-baseline-{}-{count}", std::process::id());
                let listener = address(&name).and_then(|address| UnixListener::bind_addr(&address));
                Ok(Self::Socket(listener.map_err(|e| failed("making its socket", e))?, name))
            }
        }
    }

    /// Returns the name that the consumer passes to [`dial`].
    pub fn name(&self) -> &str {
        match self {
            Self::Channel(_, name) | Self::Socket(_, name) => name,
        }
    }

    /// Waits for the consumer, without a timeout.
    pub fn accept(self) -> Result<Pipe, BaselineError> {
        match self {
            Self::Channel(server, _) => {
                let (_, (sender, receiver)) = server.accept().map_err(|e| failed("waiting for the consumer", e))?;
                Ok(Pipe::Channel(sender, receiver))
            }
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().map_err(|e| failed("waiting for the consumer", e))?;
                Ok(Pipe::Socket(stream, Vec::new()))
            }
        }
    }
}

/// Ends the wait of `accept`, by a connection that sends no message.
pub fn unblock(carrier: Carrier, name: &str) {
    match carrier {
        Carrier::IpcChannel => drop(IpcSender::<Hello>::connect(name.to_owned())),
        Carrier::UnixSocket => drop(address(name).and_then(|address| UnixStream::connect_addr(&address))),
    }
}

/// Connects the consumer to its producer.
pub fn dial(carrier: Carrier, name: &str) -> Result<Pipe, BaselineError> {
    match carrier {
        Carrier::IpcChannel => {
            let fresh = || bytes_channel().map_err(|e| failed("making a channel", e));
            let ((to_me, receiver), (sender, from_me)) = (fresh()?, fresh()?);
            IpcSender::<Hello>::connect(name.to_owned())
                .map_err(|e| failed("connecting to the producer", e))?
                .send((to_me, from_me))
                .map_err(|e| failed("greeting the producer", e))?;
            Ok(Pipe::Channel(sender, receiver))
        }
        Carrier::UnixSocket => {
            let stream = address(name).and_then(|address| UnixStream::connect_addr(&address));
            Ok(Pipe::Socket(stream.map_err(|e| failed("connecting to the producer", e))?, Vec::new()))
        }
    }
}

impl Pipe {
    pub fn send(&mut self, message: &[u8]) -> Result<(), BaselineError> {
        let sent = match self {
            Self::Channel(sender, _) => sender.send(message).map_err(|e| (e.kind(), e.to_string())),
            Self::Socket(stream, _) => write(stream, message).map_err(|e| (e.kind(), e.to_string())),
        };
        sent.map_err(|(kind, why)| match kind {
            ErrorKind::BrokenPipe => BaselineError::ProducerGone,
            _ => failed("sending", why),
        })
    }

    /// Calls `use_it` with the next message. Returns `None` if the other side has closed its end.
    pub fn receive<R>(
        &mut self,
        use_it: impl FnOnce(&[u8]) -> Result<R, BaselineError>,
    ) -> Result<Option<R>, BaselineError> {
        match self {
            Self::Channel(_, receiver) => match receiver.recv() {
                Ok(message) => use_it(&message).map(Some),
                Err(IpcError::Disconnected) => Ok(None),
                Err(error) => Err(failed("receiving", error)),
            },
            Self::Socket(stream, buffer) => match read(stream, buffer) {
                Ok(true) => use_it(buffer).map(Some),
                Ok(false) => Ok(None),
                Err(error) => Err(failed("receiving", error)),
            },
        }
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Writes length and message with one system call, if the socket accepts all bytes at once.
fn write(stream: &mut UnixStream, message: &[u8]) -> io::Result<()> {
    let length = (message.len() as u64).to_le_bytes();
    let written = stream.write_vectored(&[IoSlice::new(&length), IoSlice::new(message)])?;
    stream.write_all(length.get(written..).unwrap_or_default())?;
    stream.write_all(&message[written.saturating_sub(length.len())..])
}

fn read(stream: &mut UnixStream, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 8];
    if stream.read(&mut length[..1])? == 0 {
        return Ok(false);
    }
    stream.read_exact(&mut length[1..])?;
    buffer.resize(u64::from_le_bytes(length) as usize, 0);
    stream.read_exact(buffer)?;
    Ok(true)
}

fn failed(doing: &'static str, error: impl ToString) -> BaselineError {
    BaselineError::Channel { doing, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::{Carrier, Meeting, dial};

    #[test]
    fn messages_of_any_length_arrive_and_the_end_is_seen() {
        for carrier in [Carrier::IpcChannel, Carrier::UnixSocket] {
            let meeting = Meeting::open(carrier).unwrap();
            let name = meeting.name().to_owned();
            let consumer = std::thread::spawn(move || {
                let mut pipe = dial(carrier, &name).unwrap();
                let mut lengths = Vec::new();
                while let Some(message) = pipe.receive(|message| Ok(message.to_vec())).unwrap() {
                    assert!(message.iter().all(|&byte| byte == message.len() as u8));
                    lengths.push(message.len());
                    pipe.send(&message[..message.len().min(3)]).unwrap();
                }
                lengths
            });
            let mut pipe = meeting.accept().unwrap();
            let lengths = [0, 1, 7, 100_000, 5, 3_000_000];
            for length in lengths {
                pipe.send(&vec![length as u8; length]).unwrap();
                assert_eq!(pipe.receive(|answer| Ok(answer.len())).unwrap(), Some(length.min(3)));
            }
            drop(pipe);
            assert_eq!(consumer.join().unwrap(), lengths);
        }
    }
}
