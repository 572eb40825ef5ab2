//! The JSON documents that a program and its gateway exchange.

use serde::{Deserialize, Serialize};

/// The version of all these documents.
const VERSION: u32 = 1;
/// Maximum bytes of a reason.
pub(super) const WORDS_BYTES_MAX: usize = 1024;

/// The member of a [`RemoteRequest::Put`] that is the tensor.
pub const VALUE: &str = "value";
/// The prefix of the members of a [`RemoteRequest::Put`] that is a dataset.
pub const VALUE_PREFIX: &str = "value/";
/// The member (u8) of a [`RemoteRequest::Put`] that has the value's own metadata, if it has any.
pub const VALUE_METADATA: &str = ".metadata";

/// A gateway's description of one node, itself or another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDocument {
    /// Version of this document: 1.
    pub v: u32,
    /// The node's name.
    pub node: String,
    /// The epoch of the node's gateway: 16 hexadecimal digits, new at each start.
    pub epoch: String,
    /// Whether the node is reachable. Values fetched from an unreachable node are stale.
    pub alive: bool,
    /// Whether the node is this machine.
    pub here: bool,
}

/// A program's request to its gateway, in a request's metadata. [`crate::Client`]'s methods send these; only a gateway
/// needs the type.
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
        /// Whether the value is a dataset, with members named [`VALUE_PREFIX`] and their names; otherwise one tensor,
        /// [`VALUE`].
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

/// A gateway's reply, in a reply's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum RemoteAnswer {
    /// The value is on this machine now, or the request is done.
    Here {
        /// Whether the node could not be asked, so that the local copy may be old.
        stale: bool,
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
    /// The listing; the tensor's elements have it as JSON.
    Names,
    /// The location of a name.
    Where(Placement),
}

/// The location of a name of another machine, and the age of the local copy. See [`crate::Client::placement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node that owns the name.
    pub node: String,
    /// Whether that node is reachable.
    pub alive: bool,
    /// Whether there is a local copy.
    pub cached: bool,
    /// Whether the copy may be older than the node's value, because the node cannot be asked.
    pub stale: bool,
    /// The version of the copy: the epoch of its node's gateway (16 hexadecimal digits) and a count of values since;
    /// empty without a copy.
    pub stamp: String,
}

/// A name of another machine in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteInfo {
    /// The name, with its node.
    pub name: String,
    /// `tensor`, `dataset`, `list` or `stream`.
    pub kind: String,
    /// Element type; empty unless the name holds a tensor.
    pub dtype: String,
    /// Sizes in elements; empty unless the name holds a tensor.
    pub shape: Vec<usize>,
    /// Bytes of its elements; the items of a list, or the subscribers of a stream.
    pub size: u64,
    /// Whether there is a local copy.
    pub cached: bool,
    /// Whether the node is unreachable, so that this is the last known state.
    pub stale: bool,
}

/// A listing of other nodes. See [`crate::Client::remote_names`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNames {
    /// Names, lists and streams.
    pub names: Vec<RemoteInfo>,
    /// Nodes that did not answer in time, or are unreachable: their local copies and last known names are listed.
    pub silent: Vec<String>,
    /// Whether the listing was cut.
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
        // Strings and booleans have a JSON form.
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
        for answer in
            [RemoteAnswer::Nothing, RemoteAnswer::Here { stale: true }, RemoteAnswer::Refused { why: "no".into() }]
        {
            assert_eq!(RemoteAnswer::decode(&answer.encode()), Ok(answer));
        }
        assert!(RemoteAnswer::decode(b"{}").is_err());
    }
}
