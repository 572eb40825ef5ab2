//! Streams: links, their credit, and the pieces of their messages.

use super::{Asker, BadFrame, Chunk, Descriptor, Head, check_limit, check_words};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum messages in flight on one link.
pub const LINK_MESSAGES_MAX: u32 = 1 << 16;
/// Timeout without a request from the receiver after which the sender closes a link.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(15);

/// A request about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutStream {
    /// The requesting gateway.
    pub asker: Asker,
    /// The request.
    pub what: StreamQuestion,
}

/// The requests about one stream. The requester draws the number of a link; messages with that number are for this requester.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamQuestion {
    /// Subscribes to the stream's messages from now on.
    Open {
        /// The number of the link.
        link: u64,
        /// Maximum messages in flight: sent and not yet granted back.
        window_messages: u32,
        /// Maximum bytes in flight: sent and not yet granted back. It also limits a piece.
        window_bytes: u64,
        /// Policy for messages without room. True: drop the oldest message. False: the policy of the stream itself.
        drop_oldest: bool,
        /// The number in the stream of the first message wanted; `None`: the newest.
        from: Option<u64>,
    },
    /// Grants back the room of all messages before `through`. This request is also the keep-alive: without it, the sender
    /// closes the link.
    Grant {
        /// The number of the link.
        link: u64,
        /// The number on the link of the first message that still takes room.
        through: u64,
        /// Bytes of message `through` whose room is free, too: those of its received pieces.
        taken: u64,
        /// Maximum bytes in flight from now on, as in `Open`.
        window_bytes: u64,
    },
    /// Ends the link.
    Close {
        /// The number of the link.
        link: u64,
    },
}

/// A response about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamAnswer {
    /// The link is open; messages follow.
    Opened {
        /// Maximum number of messages that the stream holds.
        capacity: u32,
    },
    /// The link is alive.
    Granted {
        /// Number of messages that were sent through the link.
        sent: u64,
    },
    /// There is no such stream.
    Nothing,
    /// The link does not exist (any more): the receiver must open another.
    NoLink,
    /// The link is closed.
    Closed,
    /// A refusal, with its reason as text.
    Refused(String),
}

/// A piece of one message. The body is its chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Number of the message on this link, from 0, without gaps.
    pub number: u64,
    /// The piece.
    pub part: Part,
}

/// The pieces of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The first piece.
    First {
        /// The stream's own number of the message: a gap in these numbers means dropped messages.
        sequence: u64,
        /// Its descriptor.
        descriptor: Descriptor,
        /// The chunk of its first bytes.
        chunk: Chunk,
    },
    /// A further piece, in order.
    More(Chunk),
    /// No piece: the stream has ended, and may be opened again.
    End,
}

impl Message {
    /// Returns whether this is a message's first piece or the end of the stream.
    pub fn begins(&self) -> bool {
        !matches!(self.part, Part::More(_))
    }
}

impl Head for AboutStream {
    const KIND: u8 = 5;

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
            Self::Opened { capacity } => {
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
            Part::End => Ok(()),
        }
    }
}
