//! The head of a frame: its encoding, and the checks of every message.

use super::{
    AboutName, Asker, BadDescriptor, Changed, Chunk, Codec, Descriptor, HEAD_BYTES_MAX, NameAnswer, NameQuestion,
    Stamp, VERSION,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;
use tensorlend_layout::name;

/// Maximum bytes of a value in one response (64 MiB).
pub const CHUNK_BYTES_MAX: u32 = 64 << 20;
/// Minimum bytes of a chunk. With smaller chunks, requests would dominate the traffic.
pub const CHUNK_BYTES_LEAST: u64 = 4 << 10;
/// Maximum bytes of a value that come in the same message as its descriptor, in a response or an offer.
pub const INLINE_BYTES: u32 = 64 << 10;
/// Interval at which a node sends invalidation messages, even empty ones, to each node that has subscriptions.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Maximum bytes of the text in a refusal.
pub const WORDS_BYTES_MAX: usize = 1000;
pub const NAMES_MAX: usize = 1 << 16;

/// The first four bytes of every head. The next byte is the kind of the message.
const MAGIC: [u8; 4] = [b'T', b'L', b'G', VERSION];

/// A message that one gateway sends to another.
pub trait Head: Serialize + DeserializeOwned {
    const KIND: u8;

    /// Checks the sizes, names and limits of the message.
    ///
    /// # Errors
    /// The first violated rule.
    fn check(&self) -> Result<(), BadFrame>;
}

/// The reason why bytes are not a valid message of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// The message is of another protocol, or of another version.
    #[error("not a message of version {VERSION}")]
    Magic,
    /// The message is of another kind than expected.
    #[error("a message of kind {found}, where one of kind {wanted} belongs")]
    Kind { found: u8, wanted: u8 },
    /// The message is truncated, has surplus bytes, or cannot be decoded.
    #[error("a message that cannot be read")]
    Unreadable,
    /// The head is longer than [`HEAD_BYTES_MAX`].
    #[error("a message of {0} bytes; the longest has {HEAD_BYTES_MAX}")]
    Long(usize),
    #[error("a name that cannot be: {0:?}")]
    Name(String),
    /// A count in the message is above its limit.
    #[error("{what}: {found}, at most {max}")]
    Limit {
        /// The quantity that exceeds its limit.
        what: &'static str,
        found: u64,
        max: u64,
    },
    #[error(transparent)]
    Descriptor(#[from] BadDescriptor),
    /// Two parts of the message contradict each other.
    #[error("a message that contradicts itself: {0}")]
    Contradiction(&'static str),
    #[error(transparent)]
    Body(#[from] super::BadChunk),
}

pub fn encode<H: Head>(head: &H) -> Bytes {
    debug_assert_eq!(head.check(), Ok(()), "what is sent would be refused");
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(&MAGIC);
    bytes.push(H::KIND);
    let bytes = postcard::to_extend(head, bytes).expect("numbers, strings and lists of known length have a form");
    bytes.into()
}

/// Decodes a head and checks the message.
///
/// # Errors
/// [`BadFrame`] for anything that this version would not have sent.
pub fn decode<H: Head>(bytes: &[u8]) -> Result<H, BadFrame> {
    if bytes.len() > HEAD_BYTES_MAX {
        return Err(BadFrame::Long(bytes.len()));
    }
    let (&kind, rest) = bytes.strip_prefix(&MAGIC).and_then(<[u8]>::split_first).ok_or(BadFrame::Magic)?;
    if kind != H::KIND {
        return Err(BadFrame::Kind { found: kind, wanted: H::KIND });
    }
    match postcard::take_from_bytes::<H>(rest) {
        Ok((head, [])) => head.check().map(|()| head),
        _ => Err(BadFrame::Unreadable),
    }
}

/// Checks a name of a tensor, a list, a stream or a namespace.
///
/// # Errors
/// [`BadFrame::Name`].
pub fn check_name(text: &str) -> Result<(), BadFrame> {
    name::check(text).map_err(|_| BadFrame::Name(text.chars().take(40).collect()))
}

/// Checks a count against its limit.
///
/// # Errors
/// [`BadFrame::Limit`].
pub fn check_limit(what: &'static str, found: u64, max: u64) -> Result<(), BadFrame> {
    if found <= max { Ok(()) } else { Err(BadFrame::Limit { what, found, max }) }
}

/// Checks the text of a refusal.
///
/// # Errors
/// [`BadFrame::Limit`] if the text is too long.
pub fn check_words(words: &str) -> Result<(), BadFrame> {
    check_limit("bytes of a refusal", words.len() as u64, WORDS_BYTES_MAX as u64)
}

/// Truncates the text of a refusal to [`WORDS_BYTES_MAX`] bytes.
pub fn words(text: &str) -> String {
    let end = (0..=text.len().min(WORDS_BYTES_MAX)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[..end].to_owned()
}

impl Stamp {
    pub(super) fn check(self) -> Result<(), BadFrame> {
        if self.counter == 0 { Err(BadFrame::Contradiction("values are counted from 1")) } else { Ok(()) }
    }
}

impl Chunk {
    /// Checks the chunk's limits. If the value's length is known, also checks that the chunk is
    /// within the value.
    pub fn check(&self, value_bytes: Option<u64>) -> Result<(), BadFrame> {
        check_limit("bytes of a chunk", u64::from(self.bytes), u64::from(CHUNK_BYTES_MAX))?;
        let end = self.offset.saturating_add(u64::from(self.bytes));
        check_limit("the end of a chunk", end, value_bytes.unwrap_or(i64::MAX as u64))?;
        match self.codec {
            Codec::ShuffledZstd { element } if !(2..=16).contains(&element) => {
                Err(BadFrame::Contradiction("elements of that size are not shuffled"))
            }
            _ => Ok(()),
        }
    }
}

impl Head for AboutName {
    const KIND: u8 = 1;

    fn check(&self) -> Result<(), BadFrame> {
        let Self { asker: Asker { node: _, epoch: _ }, what } = self;
        match what {
            NameQuestion::Get { have, inline_max } => {
                have.map_or(Ok(()), Stamp::check)?;
                check_limit("bytes of a chunk", u64::from(*inline_max), u64::from(CHUNK_BYTES_MAX))
            }
            NameQuestion::Read { stamp, offset, bytes, codecs: _, checksum: _ } => {
                stamp.check()?;
                Chunk { offset: *offset, bytes: *bytes, ..Chunk::default() }.check(None)
            }
            NameQuestion::Done { stamp } => stamp.check(),
            NameQuestion::Put { descriptor, stamp, offer: _, chunk } => {
                stamp.check()?;
                descriptor.check()?;
                chunk.check(Some(descriptor.bytes()))
            }
        }
    }
}

impl Head for NameAnswer {
    const KIND: u8 = 2;

    fn check(&self) -> Result<(), BadFrame> {
        match self {
            Self::Value { descriptor, stamp, chunk } => {
                descriptor.check()?;
                stamp.check()?;
                chunk.check(Some(descriptor.bytes()))
            }
            Self::Bytes(chunk) => chunk.check(None),
            Self::Superseded(stamp) => stamp.map_or(Ok(()), Stamp::check),
            Self::Refused(words) => check_words(words),
            Self::Unchanged | Self::Nothing | Self::Done => Ok(()),
        }
    }
}

impl Head for Changed {
    const KIND: u8 = 9;

    fn check(&self) -> Result<(), BadFrame> {
        check_limit("names", self.names.len() as u64, NAMES_MAX as u64)?;
        self.names.iter().try_for_each(|(name, stamp)| {
            check_name(name)?;
            stamp.map_or(Ok(()), Stamp::check)
        })
    }
}

impl Descriptor {
    /// Checks that a value with this descriptor can exist.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self) -> Result<(), BadDescriptor> {
        self.shape.check()
    }
}
