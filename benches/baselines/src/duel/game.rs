//! The exchanges that two processes can measure.

use crate::BaselineError;

/// An exchange between two processes, and its carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Game {
    /// tensorlend's stream. Both ends poll, and do not touch the payload. A sample is one way.
    StreamPoll,
    /// Works as [`StreamPoll`](Self::StreamPoll), by a sender of one dtype and shape. The receiver
    /// polls inside `borrow`.
    StreamLoan,
    /// Works as [`StreamLoan`](Self::StreamLoan), but the sender writes every byte of each message, and the receiver polls
    /// with `try_borrow` and reads every byte.
    StreamLoanWrittenRead,
    /// Works as [`StreamPoll`](Self::StreamPoll), but the sender writes every byte of each message,
    /// and the receiver reads every byte.
    StreamWrittenRead,
    /// Two names, one for each end. The ends poll inside `wait_newer`, and do not touch the payload. A sample is one way.
    NamePoll,
    /// tensorlend's stream to a receiver that sleeps in `recv`. A sample is one way.
    StreamWake,
    /// tensorlend's stream to a receiver that sleeps in epoll. A sample is one way.
    StreamEpoll,
    /// A lent tensor, which is created, written, sent, received with `recv`, read and acknowledged. The parties write and
    /// read every byte. A sample is a round trip.
    Lend,
    /// Works as [`Lend`](Self::Lend), but the producer writes its own array, and copies it into the tensor. A
    /// sample is a round trip.
    Put,
    /// Works as [`StreamLoan`](Self::StreamLoan), but each exchange is a sample.
    StreamLoanEach,
    /// Works as [`IceoryxPoll`](Self::IceoryxPoll), but each exchange is a sample.
    IceoryxPollEach,
    /// Works as [`StreamPoll`](Self::StreamPoll), by iceoryx2's publish-subscribe.
    IceoryxPoll,
    /// Works as [`StreamWrittenRead`](Self::StreamWrittenRead), by iceoryx2's publish-subscribe.
    IceoryxWrittenRead,
}

impl Game {
    pub const ALL: [Self; 13] = [
        Self::StreamPoll,
        Self::StreamLoan,
        Self::StreamLoanWrittenRead,
        Self::StreamWrittenRead,
        Self::NamePoll,
        Self::StreamWake,
        Self::StreamEpoll,
        Self::Lend,
        Self::Put,
        Self::StreamLoanEach,
        Self::IceoryxPollEach,
        Self::IceoryxPoll,
        Self::IceoryxWrittenRead,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::StreamPoll => "stream-poll",
            Self::StreamLoan => "stream-loan",
            Self::StreamLoanWrittenRead => "stream-loan-written-read",
            Self::StreamWrittenRead => "stream-written-read",
            Self::NamePoll => "name-poll",
            Self::StreamWake => "stream-wake",
            Self::StreamEpoll => "stream-epoll",
            Self::Lend => "lend",
            Self::Put => "put",
            Self::StreamLoanEach => "stream-loan-each",
            Self::IceoryxPollEach => "iceoryx-poll-each",
            Self::IceoryxPoll => "iceoryx-poll",
            Self::IceoryxWrittenRead => "iceoryx-written-read",
        }
    }

    /// Returns true if the game uses tensorlend, and so needs a daemon.
    pub fn is_ours(self) -> bool {
        !matches!(self, Self::IceoryxPoll | Self::IceoryxPollEach | Self::IceoryxWrittenRead)
    }

    /// Returns an error if this program was built without the library of the game.
    pub(super) fn built(self) -> Result<(), BaselineError> {
        if self.is_ours() || cfg!(feature = "iceoryx2") {
            return Ok(());
        }
        Err(BaselineError::NotBuilt { feature: "iceoryx2" })
    }
}
