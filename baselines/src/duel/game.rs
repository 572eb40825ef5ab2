//! What two processes can play.

use crate::BaselineError;

/// What two processes exchange, and by what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Game {
    /// tensorlend's stream, both ends polling; the payload is not touched. A sample is one way.
    StreamPoll,
    /// The same; each message is written whole before it is sent, and read whole when it has come.
    StreamWrittenRead,
    /// tensorlend's stream to a receiver that sleeps in `recv`. A sample is one way.
    StreamWake,
    /// tensorlend's stream to a receiver that sleeps in epoll. A sample is one way.
    StreamEpoll,
    /// A tensor lent: created, sent, received with `recv`, acknowledged. A sample is a round trip.
    Lend,
    /// A tensor copied in: the same with a copy of the producer's own array. A sample is a round trip.
    Put,
    /// As [`StreamPoll`](Self::StreamPoll), by iceoryx2's publish-subscribe.
    IceoryxPoll,
    /// As [`StreamWrittenRead`](Self::StreamWrittenRead), by iceoryx2's publish-subscribe.
    IceoryxWrittenRead,
}

impl Game {
    /// All of them.
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

    /// In one word.
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

    /// Whether tensorlend plays it: then a broker is needed.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::IceoryxPoll | Self::IceoryxWrittenRead)
    }

    /// Whether this program can play it.
    pub(super) fn built(self) -> Result<(), BaselineError> {
        if self.is_ours() || cfg!(feature = "iceoryx2") {
            return Ok(());
        }
        Err(BaselineError::NotBuilt { feature: "iceoryx2" })
    }
}
