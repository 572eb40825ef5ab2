//! Names of other machines: the documents that a program and its machine's gateway exchange, through the daemon to
//! which both are connected.
//!
//! Every other machine uses the name `node7/sim/pressure` for the value that node `node7` has under the name
//! `sim/pressure`. A fetched copy has that name in the local namespace. The copy is an ordinary value, owned by the
//! gateway, and a reader only needs a lease to read it. The client asks the gateway only if there is no such name and
//! the first part of the name is a known node.
//!
//! | name | kind | owner | meaning |
//! |---|---|---|---|
//! | `.gateway/node/NODE` | name, ephemeral, u8 | gateway | [`NodeDocument`]: the node's description and whether it is reachable |
//! | `.gateway/known/NODE` | name, u8 | daemon, once the gateway has ended | [`NodeDocument`] of the gateway's own node, for each node that the gateway has seen. A gateway that is killed leaves it, and a gateway that is stopped deletes it |
//! | `.gateway` | service ([`crate::Client::serve`]) | gateway | receives a [`RemoteRequest`], replies with a [`RemoteAnswer`] |
//! | `NODE/NAME` | name, list or stream | gateway | fetched copy |
//!
//! A request is an empty u8 tensor with the document as its metadata. A request with a value ([`RemoteRequest::Put`])
//! is a dataset with this metadata. Replies have the same form. All documents are JSON with a version `v`.
//!
//! | call | for a name of another machine |
//! |---|---|
//! | `get`, `get_value`, `get_dataset`, `get_into` | fetches it, unless a copy is on this machine |
//! | `wait_for`, `wait_newer`, `wait_value` | waits on the other machine |
//! | `subscribe`, `subscription` | receives the stream, from now on |
//! | `put`, `fetch_list`, `placement` and `names` of [`Remote`] | asks the gateway |
//! | `exists`, `version`, `info`, `list`, `streams`, `lists`, `length`, [`Remote::nodes`] | reports local copies only, and asks nobody |
//!
//! A name that begins with this machine's own node is a name of this machine, so that the same program runs on all
//! machines.
//!
//! Any member with the right to write in the namespace may serve `.gateway`, write nodes' documents and publish under
//! `NODE/NAME`. The members of a namespace trust each other to this extent, as with all names. The client checks the
//! documents, and every wait for the gateway has an end.

mod api;
mod document;
mod far;

pub use crate::stream::StreamPosition;
pub use api::Remote;
pub use document::{
    NodeDocument, Placement, RemoteAnswer, RemoteInfo, RemoteNames, RemoteRequest, VALUE, VALUE_METADATA, VALUE_PREFIX,
};
#[cfg(feature = "tokio")]
pub(crate) use far::Far;
pub(crate) use far::may_be_far;

/// The service of a namespace's gateway.
pub const SERVICE: &str = ".gateway";

/// Returns the name of a node's document.
pub fn node_name(node: &str) -> String {
    format!("{SERVICE}/node/{node}")
}

/// Returns the name of the document that records that a gateway of this machine has seen a node.
pub fn known_name(node: &str) -> String {
    format!("{SERVICE}/known/{node}")
}

/// Splits a name of another machine into its node and its name there. Does not check whether the node exists.
pub fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('/').filter(|(node, rest)| !node.is_empty() && !rest.is_empty())
}
