//! The kinds of contenders, and their producer's side.

use std::fmt;

use super::codec::Codec;
use super::lookout::Lookout;
use super::pipe::Carrier;
use crate::{BaselineError, Lap};

/// The way in which a contender passes a tensor to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// serde and bincode over an ipc-channel.
    Serialize,
    /// serde and postcard over an ipc-channel.
    PostcardChannel,
    /// The raw bytes over an ipc-channel.
    RawChannel,
    /// serde and bincode over a Unix stream socket.
    BincodeSocket,
    /// serde and postcard over a Unix stream socket.
    PostcardSocket,
    /// The raw bytes over a Unix stream socket.
    RawSocket,
    /// ipc-channel's shared memory, which the producer makes and fills for each tensor.
    Fresh,
    /// A copy into a segment of the shared_memory crate, and a copy out of the segment.
    Copy,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Serialize,
        Self::PostcardChannel,
        Self::RawChannel,
        Self::BincodeSocket,
        Self::PostcardSocket,
        Self::RawSocket,
        Self::Fresh,
        Self::Copy,
    ];

    /// Returns the name of this kind, without spaces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serialize => "bincode/ipc-channel",
            Self::PostcardChannel => "postcard/ipc-channel",
            Self::RawChannel => "raw/ipc-channel",
            Self::BincodeSocket => "bincode/unix-socket",
            Self::PostcardSocket => "postcard/unix-socket",
            Self::RawSocket => "raw/unix-socket",
            Self::Fresh => "IpcSharedMemory",
            Self::Copy => "shared_memory",
        }
    }

    /// Returns the codec and the carrier of a kind that sends messages. Returns `None` for the
    /// other kinds.
    pub(crate) fn message(self) -> Option<(Codec, Carrier)> {
        match self {
            Self::Serialize => Some((Codec::Bincode, Carrier::IpcChannel)),
            Self::PostcardChannel => Some((Codec::Postcard, Carrier::IpcChannel)),
            Self::RawChannel => Some((Codec::Raw, Carrier::IpcChannel)),
            Self::BincodeSocket => Some((Codec::Bincode, Carrier::UnixSocket)),
            Self::PostcardSocket => Some((Codec::Postcard, Carrier::UnixSocket)),
            Self::RawSocket => Some((Codec::Raw, Carrier::UnixSocket)),
            Self::Fresh | Self::Copy => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The producer's side of an exchange. A single thread makes and uses the object.
pub trait Producer {
    /// Runs one untimed exchange. Returns true if the consumer computed the same checksum as the producer.
    fn verify(&mut self) -> Result<bool, BaselineError>;

    /// Wakes the consumer before a batch of rounds. The consumer is awake when the call returns. A consumer that is
    /// blocked in a read needs neither `wake` nor `rest`.
    fn wake(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }

    /// Runs one timed exchange.
    fn round(&mut self) -> Result<Lap, BaselineError>;

    /// Lets the consumer rest after a batch of rounds. The consumer then leaves its core to others
    /// until [`wake`](Self::wake).
    fn rest(&mut self) -> Result<(), BaselineError> {
        Ok(())
    }
}

/// A function that waits for the consumer, and returns the producer's side. The caller starts the
/// consumer.
pub type Meet = Box<dyn FnOnce(Lookout) -> Result<Box<dyn Producer>, BaselineError>>;

/// An exchange whose consumer has not started yet.
pub struct Prepared {
    /// The arguments with which the caller must start the consumer.
    pub args: Vec<String>,
    /// The function to call after the start of the consumer.
    pub meet: Meet,
    /// A function that ends the wait of `meet` if the consumer does not connect. It may be called
    /// at any time.
    pub unblock: Box<dyn Fn() + Send>,
}
