//! What two gateways say to each other.
//!
//! A *head* is four bytes (`TLG` and the version), the kind of the message, and the message in
//! [postcard](https://postcard.jamesmunns.com/wire-format). Bytes of tensors are never in it: they are the body beside it. Whatever comes in is decoded whole, checked against every limit, and else dropped and counted: the other side may be
//! another version, damaged, or an enemy.
//!
//! | question (key) | kind | answers | kind |
//! |---|---|---|---|
//! | [`AboutName`] (`name`) | 1 | [`NameAnswer`] | 2 |
//! | [`AboutList`] (`list`) | 3 | [`ListAnswer`] | 4 |
//! | [`AboutStream`] (`stream`) | 5 | [`StreamAnswer`] | 6 |
//! | [`AboutNames`] (`names`) | 7 | [`NamesAnswer`] | 8 |
//!
//! | sent (key) | kind | what |
//! |---|---|---|
//! | [`Changed`] (`changed`) | 9 | promises redeemed |
//! | [`Message`] (`message`) | 10 | a piece of a stream's message |

mod codec;
mod descriptor;
mod head;
mod identity;
mod list;
mod listing;
mod stream;

pub use codec::{BadChunk, Codec, Codecs, Packing, checksum, pack, unpack};
pub use descriptor::{BadDescriptor, Descriptor, Shape, TensorShape};
pub use head::{
    BadFrame, CHUNK_BYTES_MAX, HEAD_BYTES_MAX, HEARTBEAT, Head, INLINE_BYTES, NAMES_MAX, WORDS_BYTES_MAX, check_limit,
    check_name, check_words, decode, encode, words,
};
pub use identity::{BadNode, Epoch, NodeName, Stamp};
pub use list::{AboutList, ITEMS_MAX, ListAnswer, item};
pub use listing::{AboutNames, Listed, ListedKind, NamesAnswer, PAGE_MAX};
pub use stream::{AboutStream, LINK_MESSAGES_MAX, LINK_TIMEOUT, Message, Part, StreamAnswer, StreamQuestion};

use serde::{Deserialize, Serialize};

/// Of everything that is said here.
pub const VERSION: u8 = 1;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asker {
    /// Its node.
    pub node: NodeName,
    /// In which life of its gateway.
    pub epoch: Epoch,
}

/// A question about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutName {
    /// Who asks.
    pub asker: Asker,
    /// What it asks.
    pub what: NameQuestion,
}

/// What can be asked about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameQuestion {
    /// What does it hold? The asker is promised a word when it holds something else.
    Get {
        /// What the asker has of it.
        have: Option<Stamp>,
        /// Bytes that the answer may bring along.
        inline_max: u32,
    },
    /// Bytes of the value that this stamp names.
    Read {
        /// Which value.
        stamp: Stamp,
        /// Where they begin, in the value's row-major bytes, all members one after another.
        offset: u64,
        /// How many.
        bytes: u32,
        /// How they may be packed.
        codecs: Codecs,
        /// Whether a checksum is wanted.
        checksum: bool,
    },
    /// No more will be read of the value that this stamp names.
    Done {
        /// Which value.
        stamp: Stamp,
    },
    /// Take this value: the body has its first bytes, or all of them, or none; the others are read from the asker by the same questions, under the
    /// name and stamp that are told here.
    Put {
        /// What it is.
        descriptor: Descriptor,
        /// Under which stamp the asker keeps it.
        stamp: Stamp,
        /// The number of the asker's offer, so that one that is asked twice is taken once.
        offer: u64,
        /// What the body is.
        chunk: Chunk,
    },
}

/// What is answered about one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameAnswer {
    /// It holds this; the body has its first bytes, or all of them, or none.
    Value {
        /// What it is.
        descriptor: Descriptor,
        /// Which value.
        stamp: Stamp,
        /// What the body is.
        chunk: Chunk,
    },
    /// It holds what the asker has.
    Unchanged,
    /// The body has the bytes that were asked for.
    Bytes(Chunk),
    /// There is no such name.
    Nothing,
    /// The value that was asked for is not kept; this is what the name holds.
    Superseded(Option<Stamp>),
    /// Understood and done.
    Done,
    /// Not for this asker, or not so; why, in words.
    Refused(String),
}

/// What a body is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Where it begins, in the value's bytes.
    pub offset: u64,
    /// How many bytes of the value it is.
    pub bytes: u32,
    /// How they are packed.
    pub codec: Codec,
    /// XXH3 (64 bits, seed 0) of those bytes before they were packed, if it was wanted.
    pub checksum: Option<u64>,
}

/// Names that hold something else than was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// In which life of the sender's gateway.
    pub epoch: Epoch,
    /// Numbers these words, from one sender to one listener, without gaps: who finds a gap asks for everything again.
    pub number: u64,
    /// Which names, and what they hold now; `None`: nothing.
    pub names: Vec<(String, Option<Stamp>)>,
}
