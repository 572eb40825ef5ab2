//! The protocol between two gateways.
//!
//! A *head* is four bytes (`TLG` and the version), the kind of the message, and the message in
//! [postcard](https://postcard.jamesmunns.com/wire-format). It never contains bytes of tensors: those are the body of the frame.
//! The receiver decodes a message whole and checks it against every limit; it drops and counts an invalid one, since the peer may
//! be another version, damaged, or hostile.
//!
//! | request (key) | kind | response | kind |
//! |---|---|---|---|
//! | [`AboutName`] (`name`) | 1 | [`NameAnswer`] | 2 |
//! | [`AboutList`] (`list`) | 3 | [`ListAnswer`] | 4 |
//! | [`AboutStream`] (`stream`) | 5 | [`StreamAnswer`] | 6 |
//! | [`AboutNames`] (`names`) | 7 | [`NamesAnswer`] | 8 |
//!
//! | message (key) | kind | contents |
//! |---|---|---|
//! | [`Changed`] (`changed`) | 9 | invalidation of subscribed names |
//! | [`Message`] (`message`) | 10 | a piece of a stream's message |

mod body;
mod codec;
mod descriptor;
mod head;
mod identity;
mod list;
mod listing;
mod stream;

pub use body::Body;
pub use codec::{BadChunk, Codec, Codecs, Packing, checksum, pack, unpack};
pub use descriptor::{BadDescriptor, Descriptor, HEAD_BYTES_MAX, Shape, TensorShape};
pub use head::{
    BadFrame, CHUNK_BYTES_LEAST, CHUNK_BYTES_MAX, HEARTBEAT, Head, INLINE_BYTES, NAMES_MAX, WORDS_BYTES_MAX,
    check_limit, check_name, check_words, decode, encode, words,
};
pub use identity::{BadNode, Epoch, NodeName, Stamp};
pub use list::{AboutList, ITEMS_MAX, ListAnswer, item};
pub use listing::{AboutNames, Listed, ListedKind, NamesAnswer, PAGE_MAX};
pub use stream::{AboutStream, LINK_MESSAGES_MAX, LINK_TIMEOUT, Message, Part, StreamAnswer, StreamQuestion};

use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u8 = 1;

/// The requesting gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Its node.
    pub node: NodeName,
    /// The epoch of its gateway.
    pub epoch: Epoch,
}

/// A request about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutName {
    /// The requesting gateway.
    pub asker: Asker,
    /// The request.
    pub what: NameQuestion,
}

/// The requests about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameQuestion {
    /// Requests the value. The response subscribes the requester to an invalidation message for when the name changes.
    Get {
        /// The stamp of the requester's copy, if it has one.
        have: Option<Stamp>,
        /// Maximum bytes of the value in the response.
        inline_max: u32,
    },
    /// Requests bytes of the value with this stamp.
    Read {
        /// The value.
        stamp: Stamp,
        /// The first byte, in the value's row-major bytes, all members one after another.
        offset: u64,
        /// The number of bytes.
        bytes: u32,
        /// The codecs allowed.
        codecs: Codecs,
        /// Whether the response needs a checksum.
        checksum: bool,
    },
    /// Ends the reads of the value with this stamp.
    Done {
        /// The value.
        stamp: Stamp,
    },
    /// Offers a value. The body has its first bytes, all of them, or none; the receiver reads the rest from the requester by
    /// [`Read`](Self::Read) requests, under this name and stamp.
    Put {
        /// Its descriptor.
        descriptor: Descriptor,
        /// The stamp under which the requester holds the value.
        stamp: Stamp,
        /// The number of the requester's offer: the receiver takes a repeated offer once.
        offer: u64,
        /// The contents of the body.
        chunk: Chunk,
    },
}

/// A response about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameAnswer {
    /// The value; the body has its first bytes, all of them, or none.
    Value {
        /// Its descriptor.
        descriptor: Descriptor,
        /// Its stamp.
        stamp: Stamp,
        /// The contents of the body.
        chunk: Chunk,
    },
    /// The value is the one that the requester has.
    Unchanged,
    /// The body has the requested bytes.
    Bytes(Chunk),
    /// There is no such name.
    Nothing,
    /// The requested value is gone; this is the stamp of the current one, if any.
    Superseded(Option<Stamp>),
    /// The request was carried out.
    Done,
    /// A refusal, with its reason as text.
    Refused(String),
}

/// A description of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Offset of its first byte in the value.
    pub offset: u64,
    /// Number of the chunk's bytes in the value.
    pub bytes: u32,
    /// Its codec.
    pub codec: Codec,
    /// XXH3 (64 bits, seed 0) of those bytes before compression, if requested.
    pub checksum: Option<u64>,
}

/// An invalidation message: names whose values differ from the values that the receiver fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The epoch of the sending gateway.
    pub epoch: Epoch,
    /// Number of this message from one sender to one listener, without gaps: a listener that finds a gap revalidates everything.
    pub number: u64,
    /// The names and the stamps of their current values; `None` without a value.
    pub names: Vec<(String, Option<Stamp>)>,
}
