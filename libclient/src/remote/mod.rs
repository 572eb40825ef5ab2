//! Names of other machines: what a program and its machine's gateway say to each other, through the broker that both know.
//!
//! A value that node `node7` has under the name `sim/pressure` is called `node7/sim/pressure` on every other machine. What was
//! fetched of it lies under that name in the local namespace, as a value like all others, that the gateway owns; reading it takes a
//! lease and nothing else. Only where there is no such name, and there is a node whose name it begins with, the gateway is asked.
//!
//! | name | kind | owner | what it says |
//! |---|---|---|---|
//! | `.gateway/node/NODE` | name, ephemeral, u8 | gateway | [`NodeDocument`]: who that node is, whether it is there |
//! | `.gateway` | service ([`crate::Client::serve`]) | gateway | takes a [`RemoteRequest`], gives a [`RemoteAnswer`] |
//! | `NODE/NAME` | name, list or stream | gateway | what was fetched |
//!
//! A request is an empty u8 tensor with the document as its metadata; one that brings a value ([`RemoteRequest::Put`]) is a dataset
//! with this metadata. Answers are the same. All documents are JSON with a version `v`.
//!
//! | call | of a name of another machine |
//! |---|---|
//! | `get`, `get_value`, `get_dataset`, `get_into` | fetched, where it is not here |
//! | `wait_for`, `wait_newer`, `wait_value` | waited for there |
//! | `subscribe`, `subscription` | received, from now on |
//! | `put_remote`, `fetch_list`, `placement`, `remote_names` | asked of the gateway |
//! | `exists`, `version`, `info`, `list`, `streams`, `lists`, `len`, `nodes` | only what lies here: nobody is asked |
//!
//! A name that begins with this machine's own node is a name of this machine, so that the same program runs on all of them.
//!
//! Any member that may write in the namespace may serve `.gateway`, write nodes' documents and publish under `NODE/NAME`: members trust each
//! other that far, as with all names. What it says is checked, and every wait for it ends.

mod api;
mod document;
mod far;

pub use document::{
    NodeDocument, Placement, RemoteAnswer, RemoteInfo, RemoteNames, RemoteRequest, VALUE, VALUE_METADATA, VALUE_PREFIX,
};
#[cfg(feature = "tokio")]
pub(crate) use far::{Far, may_be_far};

/// The service of a namespace's gateway.
pub const SERVICE: &str = ".gateway";

/// The name of a node's document.
pub fn node_name(node: &str) -> String {
    format!("{SERVICE}/node/{node}")
}

/// Takes a name of another machine apart: its node, and its name there. Whether there is such a node is another question.
pub fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('/').filter(|(node, rest)| !node.is_empty() && !rest.is_empty())
}
