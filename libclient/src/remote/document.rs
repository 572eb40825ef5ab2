//! What is said between a program and its gateway, as JSON.

use serde::{Deserialize, Serialize};

/// The version of all these documents.
const VERSION: u32 = 1;
/// Bytes of a reason that are kept.
pub(super) const WORDS_BYTES_MAX: usize = 1024;

/// The member of a [`RemoteRequest::Put`] that is the tensor.
pub const VALUE: &str = "value";
/// What the members of a [`RemoteRequest::Put`] that is a dataset begin with.
pub const VALUE_PREFIX: &str = "value/";
/// The member (u8) of a [`RemoteRequest::Put`] that has the value's own metadata, if it has any.
pub const VALUE_METADATA: &str = ".metadata";

/// What a gateway says of one node, its own among them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDocument {
    /// Version of this document: 1.
    pub v: u32,
    /// Its name.
    pub node: String,
    /// Which life of its gateway: 16 hexadecimal digits.
    pub epoch: String,
    /// Whether it can be reached. What was fetched of one that cannot is stale.
    pub alive: bool,
    /// Whether it is this machine.
    pub here: bool,
}

/// What a program asks of its gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum RemoteRequest {
    /// See that the newest value of this name lies here.
    Get {
        /// The name, with its node.
        name: String,
    },
    /// The same, once it is another one than the local version (two words) that the program has seen.
    Wait {
        /// The name, with its node.
        name: String,
        /// What was seen.
        seen: (u64, u64),
        /// For how long, in milliseconds.
        timeout_ms: u64,
    },
    /// Publish the value that comes with this there.
    Put {
        /// The name, with its node.
        name: String,
        /// Whether the value is a dataset: members [`VALUE_PREFIX`] and their names; else one tensor, [`VALUE`].
        dataset: bool,
    },
    /// See that this stream is received here.
    Subscribe {
        /// The name, with its node.
        name: String,
    },
    /// See that the items of this list lie here, as many as there are now.
    List {
        /// The name, with its node.
        name: String,
    },
    /// What there is on other nodes.
    Names {
        /// A glob over names with their nodes.
        glob: String,
    },
    /// Where a name is, and how new what lies here is.
    Where {
        /// The name, with its node.
        name: String,
    },
}

/// What a gateway answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum RemoteAnswer {
    /// It lies here now, or was done.
    Here {
        /// Whether its node could not be asked: what lies here may be old.
        stale: bool,
    },
    /// That node has no such name, or does not export it.
    Nothing,
    /// That node cannot be reached, and nothing of it lies here.
    Unreachable,
    /// Not in time.
    Timeout,
    /// Not so; why, in words.
    Refused {
        /// Why.
        why: String,
    },
    /// What there is; the list itself is the tensor's elements, as JSON.
    Names,
    /// Where a name is.
    Where(Placement),
}

/// Where a name of another machine is, and how new what lies here is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Whose it is.
    pub node: String,
    /// Whether that node can be reached.
    pub alive: bool,
    /// Whether a copy lies here.
    pub cached: bool,
    /// Whether that copy may be older than what its node has, since the node cannot be asked.
    pub stale: bool,
    /// Which value the copy is: the life of its node's gateway (16 hexadecimal digits) and the count of values since; empty without a copy.
    pub stamp: String,
}

/// One name of another machine, as listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteInfo {
    /// The name, with its node.
    pub name: String,
    /// `tensor`, `dataset`, `list` or `stream`.
    pub kind: String,
    /// Its element type; empty unless it is a tensor.
    pub dtype: String,
    /// Its sizes, in elements; empty unless it is a tensor.
    pub shape: Vec<u64>,
    /// Bytes of its elements; items of a list, subscribers of a stream.
    pub size: u64,
    /// Whether a copy lies here.
    pub cached: bool,
    /// Whether its node cannot be reached, so that this is what was last known.
    pub stale: bool,
}

/// What there is on other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNames {
    /// Names, lists and streams.
    pub names: Vec<RemoteInfo>,
    /// Nodes that did not answer in time, or cannot be reached: of them, what lies here or was last known is listed.
    pub silent: Vec<String>,
    /// Whether there is more than is listed.
    pub more: bool,
}

/// A document with its version, as bytes.
pub(crate) fn encode(document: &impl Serialize) -> Vec<u8> {
    #[derive(Serialize)]
    struct Versioned<'d, D: Serialize> {
        v: u32,
        #[serde(flatten)]
        document: &'d D,
    }
    serde_json::to_vec(&Versioned { v: VERSION, document }).expect("strings, numbers and lists have a JSON form")
}

/// Reads one.
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
    /// As a name's elements.
    pub fn encode(&self) -> Vec<u8> {
        // Strings and booleans have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a name's elements.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if read.v == VERSION { Ok(read) } else { Err(format!("version {}, and {VERSION} is known here", read.v)) }
    }
}

impl RemoteNames {
    /// As an answer's elements.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads an answer's elements.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

impl RemoteRequest {
    /// As a request's metadata.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a request's metadata.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        decode(bytes)
    }
}

impl RemoteAnswer {
    /// As an answer's metadata.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads an answer's metadata.
    ///
    /// # Errors
    /// What is wrong, in words.
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
