//! The JSON documents that a program and its gateway exchange.

use crate::stream::StreamPosition;
use serde::{Deserialize, Serialize};

/// The version of all these documents.
const VERSION: u32 = 1;
/// Maximum bytes of the text of a reason.
pub(super) const WORDS_BYTES_MAX: usize = 1024;

/// The name of the member with the tensor, in a [`RemoteRequest::Put`] of a tensor.
pub const VALUE: &str = "value";
/// The prefix of the names of the members, in a [`RemoteRequest::Put`] of a dataset.
pub const VALUE_PREFIX: &str = "value/";
/// The name of the member (u8) of a [`RemoteRequest::Put`] with the value's own metadata, if the value has any.
pub const VALUE_METADATA: &str = ".metadata";

/// A gateway's description of one node: its own node or another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDocument {
    /// Version of this document: 1.
    pub v: u32,
    /// The node's name.
    pub node: String,
    /// The epoch of the node's gateway: 16 hexadecimal digits, which differ at each start.
    pub epoch: String,
    /// True if the node is reachable. Values fetched from an unreachable node are stale.
    pub alive: bool,
    /// True if the node is this machine.
    pub here: bool,
}

/// A program's request to its gateway, in the metadata of a request. [`crate::Client`]'s methods send these documents.
/// Only a gateway needs this type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum RemoteRequest {
    /// Fetch the newest value of this name.
    Get {
        /// The name, with its node.
        name: String,
    },
    /// Wait for a value other than the local version (two words) that the program has seen, and fetch it.
    Wait {
        /// The name, with its node.
        name: String,
        /// The version that the program has seen.
        seen: (u64, u64),
        /// The timeout in milliseconds.
        timeout_ms: u64,
    },
    /// Publish the attached value on the node.
    Put {
        /// The name, with its node.
        name: String,
        /// True if the value is a dataset, whose members have the prefix [`VALUE_PREFIX`] before their names.
        /// Otherwise the value is one tensor, in the member [`VALUE`].
        dataset: bool,
    },
    /// Receive this stream on this machine.
    Subscribe {
        /// The name, with its node.
        name: String,
    },
    /// Fetch the present items of this list.
    List {
        /// The name, with its node.
        name: String,
    },
    /// List the names of other nodes.
    Names {
        /// A glob over names with their nodes.
        glob: String,
    },
    /// Report the location of a name, and the age of the local copy.
    Where {
        /// The name, with its node.
        name: String,
    },
}

impl RemoteAnswer {
    /// Returns the reply that a value is on this machine, or that a request is done.
    pub fn here(stale: bool) -> Self {
        Self::Here { stale, position: None }
    }
}

/// A gateway's reply, in the metadata of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum RemoteAnswer {
    /// The value is on this machine now, or the request is done.
    Here {
        /// True if the gateway could not ask the node, so that the local copy may be old.
        stale: bool,
        /// The position that the gateway has reached in the stream of the node. Only for a request to subscribe, and only
        /// if the gateway knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<StreamPosition>,
    },
    /// The node has no such name, or does not export it.
    Nothing,
    /// The node is unreachable, and there is no local copy.
    Unreachable,
    /// The timeout passed.
    Timeout,
    /// The gateway or the node refused.
    Refused {
        /// The reason.
        why: String,
    },
    /// The listing, which the tensor's elements contain as JSON.
    Names,
    /// The location of a name.
    Where(Placement),
}

/// The location of a name of another machine, and the age of the local copy. See [`super::Remote::placement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node that owns the name.
    pub node: String,
    /// True if that node is reachable.
    pub alive: bool,
    /// True if there is a local copy.
    pub cached: bool,
    /// True if the copy may be older than the node's value, because the gateway cannot ask the node.
    pub stale: bool,
    /// The version of the copy: the epoch of its node's gateway (16 hexadecimal digits) and a count of values since
    /// then. Empty without a copy.
    pub stamp: String,
}

/// A name of another machine in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteInfo {
    /// The name, with its node.
    pub name: String,
    /// `tensor`, `dataset`, `list` or `stream`.
    pub kind: String,
    /// Element type. Empty unless the name holds a tensor.
    pub dtype: String,
    /// Sizes in elements. Empty unless the name holds a tensor.
    pub shape: Vec<usize>,
    /// Bytes of the tensor's elements, number of a list's items, or number of a stream's subscribers.
    pub size: u64,
    /// True if there is a local copy.
    pub cached: bool,
    /// True if the node is unreachable, so that this is its last known state.
    pub stale: bool,
}

/// A listing of other nodes. See [`super::Remote::names`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNames {
    /// Names, lists and streams.
    pub names: Vec<RemoteInfo>,
    /// Nodes that did not respond in time, or are unreachable. The listing has their local copies and last known
    /// names.
    pub silent: Vec<String>,
    /// True if the listing is incomplete.
    pub more: bool,
}

/// Encodes a document with its version.
pub(crate) fn encode(document: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Versioned<'d, D: Serialize> {
        v: u32,
        #[serde(flatten)]
        document: &'d D,
    }
    serde_json::to_vec(&Versioned { v: VERSION, document }).expect("strings, numbers and lists have a JSON form")
}

/// Decodes a document with its version.
pub(crate) fn decode<D: for<'d> Deserialize<'d>>(bytes: &[u8]) -> Result<D, String> {
    #[derive(Deserialize)]
    struct Versioned<D> {
        v: u32,
        #[serde(flatten)]
        document: D,
    }
    let read: Versioned<D> = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if read.v == VERSION { Ok(read.document) } else { Err(format!("version {}, and {VERSION} is known here", read.v)) }
}

impl NodeDocument {
    /// Encodes the document as the elements of a name's tensor.
    pub fn encode(&self) -> Vec<u8> {
        // Serialization cannot fail: strings and booleans have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a name's elements.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if read.v == VERSION { Ok(read) } else { Err(format!("version {}, and {VERSION} is known here", read.v)) }
    }
}

impl RemoteNames {
    /// Encodes the listing as JSON: the elements of the reply's `u8` tensor.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a reply's elements.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

impl RemoteRequest {
    /// Encodes the request as metadata.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a request's metadata.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

impl RemoteAnswer {
    /// Encodes the reply as metadata.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Decodes a reply's metadata.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_has_a_version() {
        let asked = RemoteRequest::Wait { name: "node7/x".into(), seen: (1, 2), timeout_ms: 5 };
        let text = String::from_utf8(asked.encode()).unwrap();
        assert_eq!(text, r#"{"v":1,"op":"wait","name":"node7/x","seen":[1,2],"timeout_ms":5}"#);
        assert_eq!(RemoteRequest::decode(text.as_bytes()), Ok(asked));
        assert!(RemoteRequest::decode(text.replace("\"v\":1", "\"v\":2").as_bytes()).is_err());
        for answer in [RemoteAnswer::Nothing, RemoteAnswer::here(true), RemoteAnswer::Refused { why: "no".into() }] {
            assert_eq!(RemoteAnswer::decode(&answer.encode()), Ok(answer));
        }
        assert!(RemoteAnswer::decode(b"{}").is_err());
        let position = Some(StreamPosition { stream: u64::MAX, number: 3 });
        let here = RemoteAnswer::Here { stale: false, position };
        assert_eq!(RemoteAnswer::decode(&here.encode()), Ok(here));
        // Replies of gateways without positions.
        assert_eq!(RemoteAnswer::decode(br#"{"v":1,"answer":"here","stale":true}"#), Ok(RemoteAnswer::here(true)));
    }
}
