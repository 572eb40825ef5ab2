//! The games of two processes.

use crate::BaselineError;

/// An exchange between two processes, and its carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Game {
    /// tensorlend's stream, both ends polling; the payload is not touched. A sample is one way.
    StreamPoll,
    /// The same; the sender writes each message whole before it sends it, and the receiver reads it whole.
    StreamWrittenRead,
    /// tensorlend's stream to a receiver that sleeps in `recv`. A sample is one way.
    StreamWake,
    /// tensorlend's stream to a receiver that sleeps in epoll. A sample is one way.
    StreamEpoll,
    /// A lent tensor: created, sent, received with `recv`, acknowledged. A sample is a round trip.
    Lend,
    /// A copied tensor: the same with a copy of the producer's own array. A sample is a round trip.
    Put,
    /// As [`StreamPoll`](Self::StreamPoll), by iceoryx2's publish-subscribe.
    IceoryxPoll,
    /// As [`StreamWrittenRead`](Self::StreamWrittenRead), by iceoryx2's publish-subscribe.
    IceoryxWrittenRead,
}

impl Game {
    /// All games.
    pub const ALL: [Self; 8] = [
        Self::StreamPoll,
        Self::StreamWrittenRead,
        Self::StreamWake,
        Self::StreamEpoll,
        Self::Lend,
        Self::Put,
        Self::IceoryxPoll,
        Self::IceoryxWrittenRead,
    ];

    /// Returns its name in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::StreamPoll => "stream-poll",
            Self::StreamWrittenRead => "stream-written-read",
            Self::StreamWake => "stream-wake",
            Self::StreamEpoll => "stream-epoll",
            Self::Lend => "lend",
            Self::Put => "put",
            Self::IceoryxPoll => "iceoryx-poll",
            Self::IceoryxWrittenRead => "iceoryx-written-read",
        }
    }

    /// Returns whether it is tensorlend's, and so needs a daemon.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::IceoryxPoll | Self::IceoryxWrittenRead)
    }

    /// Returns an error if this program was built without it.
    pub(super) fn built(self) -> Result<(), BaselineError> {
        if self.is_ours() || cfg!(feature = "iceoryx2") {
            return Ok(());
        }
        Err(BaselineError::NotBuilt { feature: "iceoryx2" })
    }
}
