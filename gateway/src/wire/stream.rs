//! Streams: links, their grants, and the pieces of their messages.

use super::{Asker, BadFrame, Chunk, Descriptor, Head, check_limit, check_words};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Messages that one link may have on their way.
pub const LINK_MESSAGES_MAX: u32 = 1 << 16;
/// The sender closes a link of which it has heard nothing for this time.
pub const LINK_TIMEOUT: Duration = Duration::from_secs(15);

/// A question about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutStream {
    /// Who asks.
    pub asker: Asker,
    /// What it asks.
    pub what: StreamQuestion,
}

/// What can be asked about one stream. A link is a number that the asker drew: what comes under it is for this asker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamQuestion {
    /// Send the stream's messages from now on.
    Open {
        /// Under which link.
        link: u64,
        /// Messages that may be on their way: sent, and not granted again.
        window_messages: u32,
        /// Bytes of them that were sent and not granted again. A piece has no more, either.
        window_bytes: u64,
        /// What becomes of messages for which there is no room: the oldest are left out, or the stream's own policy holds.
        drop_oldest: bool,
        /// The stream's number of the first message that is wanted; `None`: the newest.
        from: Option<u64>,
    },
    /// All that was sent before the message of this number, in the link's own count, makes room for more. Said now and then in any
    /// case: a link of which nothing is heard is closed.
    Grant {
        /// Which link.
        link: u64,
        /// The link's number of the first message that still takes room.
        through: u64,
        /// Bytes of that message that make room, too: those of its pieces that are taken.
        taken: u64,
        /// Bytes that may be on their way from now on, as in `Open`.
        window_bytes: u64,
    },
    /// No more of it.
    Close {
        /// Which link.
        link: u64,
    },
}

/// What is answered about one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamAnswer {
    /// Messages come from now on.
    Opened {
        /// Messages that the stream holds.
        capacity: u32,
    },
    /// The link goes on.
    Granted {
        /// Messages that were sent under it.
        sent: u64,
    },
    /// There is no such stream.
    Nothing,
    /// There is no such link (any more): open another one.
    NoLink,
    /// Understood and done.
    Closed,
    /// Not for this asker, or not so; why, in words.
    Refused(String),
}

/// A piece of one message. The body is its chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Counts the messages of this link, from 0, without gaps.
    pub number: u64,
    /// What this is of it.
    pub part: Part,
}

/// Which piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The first.
    First {
        /// The stream's own number of the message: where numbers are left out, messages were.
        sequence: u64,
        /// What it is.
        descriptor: Descriptor,
        /// Its first bytes.
        chunk: Chunk,
    },
    /// A further one, in order.
    More(Chunk),
    /// No message: the stream has ended, and may be opened again.
    End,
}

impl Message {
    /// Whether this is a message's first piece, or says what stands for one.
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
