//! The protocol between two gateways.
//!
//! A *head* is four bytes (`TLG` and the version), the kind of the message, and the message in
//! [postcard](https://postcard.jamesmunns.com/wire-format). A head never contains bytes of tensors,
//! which are in the frame's body. The receiver decodes a message completely and checks it against
//! every limit. It drops and counts an invalid message, because the peer may have another version,
//! be broken, or be hostile.
//!
//! | request (key) | kind | response | kind |
//! |---|---|---|---|
//! | [`AboutName`] (`name`) | 1 | [`NameAnswer`] | 2 |
//! | [`AboutList`] (`list`) | 3 | [`ListAnswer`] | 4 |
//! | [`AboutStream`] (`stream`) | 11 | [`StreamAnswer`] | 6 |
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

/// The version of this protocol, in every head and key.
pub const VERSION: u8 = 1;

/// The gateway that sends the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    pub node: NodeName,
    pub epoch: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutName {
    /// The gateway that sends the request.
    pub asker: Asker,
    /// The request and its parameters.
    pub what: NameQuestion,
}

/// The requests about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameQuestion {
    /// Requests the value, and subscribes the requester to one invalidation message, at the next change of the name.
    Get {
        /// The stamp of the requester's copy, if it has one.
        have: Option<Stamp>,
        /// Maximum bytes of the value that the response may contain.
        inline_max: u32,
    },
    /// Requests bytes of the value with this stamp.
    Read {
        stamp: Stamp,
        /// Offset of the first byte, in the concatenation of all members' row-major bytes.
        offset: u64,
        bytes: u32,
        /// The codecs that the response may use.
        codecs: Codecs,
        /// Whether the response must contain a checksum.
        checksum: bool,
    },
    /// Reports that the requester has finished reading the value with this stamp.
    Done { stamp: Stamp },
    /// Offers a value. The body contains none, some or all of the value's bytes, from the first
    /// byte on. The receiver reads the rest from the requester by [`Read`](Self::Read) requests
    /// with this name and stamp.
    Put {
        descriptor: Descriptor,
        /// The stamp under which the requester holds the value.
        stamp: Stamp,
        /// Number of the offer. Each repetition has the same number, so that the receiver takes the
        /// value once.
        offer: u64,
        /// The range of the value that the body contains.
        chunk: Chunk,
    },
}

/// A response about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameAnswer {
    /// The value of the name. The body contains none, some or all of the value's bytes, from the
    /// first byte on.
    Value {
        descriptor: Descriptor,
        stamp: Stamp,
        /// The range of the value that the body contains.
        chunk: Chunk,
    },
    /// The value is the one that the requester has a copy of.
    Unchanged,
    /// The body contains the requested bytes.
    Bytes(Chunk),
    /// The node has no value under this name.
    Nothing,
    /// The node no longer holds the requested value. Contains the stamp of the name's current
    /// value, if there is one.
    Superseded(Option<Stamp>),
    /// The node has performed the request, which has no result.
    Done,
    /// A refusal, with its reason as text.
    Refused(String),
}

/// The descriptor of a frame's body: a range of a value's bytes, and their encoding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Offset in the value of the chunk's first byte.
    pub offset: u64,
    /// Number of bytes in the value, before compression.
    pub bytes: u32,
    pub codec: Codec,
    /// XXH3 (64 bits, seed 0) of the bytes before compression, if the requester wants a checksum.
    pub checksum: Option<u64>,
}

/// An invalidation message, which names values that differ from the values that the receiver
/// fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The epoch of the sending gateway.
    pub epoch: Epoch,
    /// Number of the message. One sender numbers its messages to one listener about one namespace
    /// without gaps. A listener that finds a gap revalidates all its copies of that namespace.
    pub number: u64,
    /// The names and the stamps of their current values; `None` for a name without a value.
    pub names: Vec<(String, Option<Stamp>)>,
}
