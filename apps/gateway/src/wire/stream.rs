//! Messages about streams, which are the requests of a link and the pieces of stream messages.

use super::{Asker, BadFrame, Chunk, Descriptor, Head, check_limit, check_words};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tensorlend::remote::StreamPosition;

/// Maximum number of messages in flight on one link that a receiver may request.
pub const LINK_MESSAGES_MAX: u32 = 1 << 16;
/// Time without a request from the receiver after which the sender closes a link.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutStream {
    /// The gateway that sends the request.
    pub asker: Asker,
    /// The request and its parameters.
    pub what: StreamQuestion,
}

/// The requests about one stream. The requester draws a random number for each link. The messages of the link have this
/// number in their key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamQuestion {
    /// Subscribes to the stream's messages from now on.
    Open {
        link: u64,
        /// Maximum number of messages in flight. A message is in flight if it was sent and its room
        /// was not granted again.
        window_messages: u32,
        /// Maximum bytes in flight, which were sent and whose room was not granted again. This is
        /// also the maximum size of a piece.
        window_bytes: u64,
        /// Policy for a message that has no room in the window. True: the sender drops the oldest
        /// queued message. False: the sender takes no message from its local stream, whose own
        /// policy then applies.
        drop_oldest: bool,
        /// The first wanted message; `None` means the newest. If the stream is another one now, the receiver wants all its
        /// messages.
        from: Option<StreamPosition>,
    },
    /// Reports that the receiver has taken all messages before `through`, so that their room is
    /// free. The request also keeps the link alive, which ends after [`LINK_TIMEOUT`] without a
    /// request.
    Grant {
        link: u64,
        /// Number on the link of the first message that still occupies room.
        through: u64,
        /// Bytes of message `through` that the receiver has taken, so that their room is free, too.
        taken: u64,
        /// Maximum bytes in flight from now on, as in `Open`.
        window_bytes: u64,
    },
    /// Ends the link.
    Close { link: u64 },
}

/// A response about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamAnswer {
    /// The link is open, and messages follow.
    Opened {
        /// Maximum number of messages that the stream holds.
        capacity: u32,
        /// The first message that the sender sends, if the stream still has it.
        position: StreamPosition,
    },
    /// The sender has accepted the grant.
    Granted {
        /// Number of messages that were sent through the link.
        sent: u64,
    },
    /// The node has no stream of this name.
    Nothing,
    /// The sender has no such link, or has closed it. The receiver must open the link again.
    NoLink,
    Closed,
    /// A refusal, with its reason as text.
    Refused(String),
}

/// A piece of a stream's message. The frame's body contains the bytes of the piece's chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Number of the message on this link, counted from 0 without gaps.
    pub number: u64,
    /// The kind and the contents of the piece.
    pub part: Part,
}

/// The kinds of pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    First {
        /// The position of the message in the stream. A gap in the numbers of one stream means that messages were lost.
        at: StreamPosition,
        descriptor: Descriptor,
        /// The chunk with the value's first bytes.
        chunk: Chunk,
    },
    /// The next piece of the same message.
    More(Chunk),
    /// The producer has ended the stream at this position. It may open the stream again.
    End(StreamPosition),
}

impl Message {
    /// Returns true for the first piece of a message, and for the end of the stream.
    pub fn begins(&self) -> bool {
        !matches!(self.part, Part::More(_))
    }
}

impl Head for AboutStream {
    // Kind 5 had positions without the stream. A gateway refuses the request of the other kind.
    const KIND: u8 = 11;

    fn check(&self) -> Result<(), BadFrame> {
        match self.what {
            StreamQuestion::Open { window_messages, window_bytes, .. } => {
                check_limit("messages of a window", u64::from(window_messages), u64::from(LINK_MESSAGES_MAX))?;
                if window_messages == 0 || window_bytes == 0 {
                    return Err(BadFrame::Contradiction("a window without room"));
                }
                Ok(())
            }
            StreamQuestion::Grant { window_bytes: 0, .. } => Err(BadFrame::Contradiction("a window without room")),
            StreamQuestion::Grant { .. } | StreamQuestion::Close { .. } => Ok(()),
        }
    }
}

impl Head for StreamAnswer {
    const KIND: u8 = 6;

    fn check(&self) -> Result<(), BadFrame> {
        match self {
            Self::Opened { capacity, .. } => {
                check_limit("messages of a stream", u64::from(*capacity), u64::from(LINK_MESSAGES_MAX))?;
                if *capacity == 0 { Err(BadFrame::Contradiction("a stream without room")) } else { Ok(()) }
            }
            Self::Refused(words) => check_words(words),
            Self::Granted { .. } | Self::Nothing | Self::NoLink | Self::Closed => Ok(()),
        }
    }
}

impl Head for Message {
    const KIND: u8 = 10;

    fn check(&self) -> Result<(), BadFrame> {
        match &self.part {
            Part::First { descriptor, chunk, .. } => {
                descriptor.check()?;
                if chunk.offset != 0 {
                    return Err(BadFrame::Contradiction("a first piece that is not first"));
                }
                chunk.check(Some(descriptor.bytes()))
            }
            Part::More(chunk) => chunk.check(None),
            Part::End(_) => Ok(()),
        }
    }
}
