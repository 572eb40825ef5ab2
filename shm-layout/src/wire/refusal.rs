//! The reasons for refusals.

use super::LimitKind;
use serde::{Deserialize, Serialize};

/// The reason for a refusal: the text is for a person, the variants are for programs.
///
/// ```
/// use tensorlend_layout::wire::{LimitKind, Refusal};
///
/// let (what, setting) = ("pool".into(), "pool.bytes_max".into());
/// let refusal = Refusal::Limit { kind: LimitKind::PoolBytes, what, setting, limit: "1 GiB".into() };
/// assert_eq!(
///     refusal.to_string(),
///     "pool is at its limit of 1 GiB: raise pool.bytes_max in the daemon's configuration, or free some"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// No common protocol version.
    #[error(
        "the daemon speaks control protocol {daemon}, this client {client_min} to {client_max}: install matching versions"
    )]
    Protocol {
        /// Daemon's version.
        daemon: u16,
        /// Oldest version that the client speaks.
        client_min: u16,
        /// Newest version that the client speaks.
        client_max: u16,
    },
    /// Another shared-memory layout.
    #[error(
        "the daemon has shared-memory layout {daemon_version} ({daemon_hash:016x}), this client {client_version} ({client_hash:016x}): install matching versions"
    )]
    Layout {
        /// Daemon's version.
        daemon_version: u32,
        /// Daemon's hash.
        daemon_hash: u64,
        /// Client's version.
        client_version: u32,
        /// Client's hash.
        client_hash: u64,
    },
    /// The namespace does not exist, or this user may not join it: the client does not learn which.
    #[error("no namespace {0:?} for this user: see [namespace.*] in the daemon's configuration")]
    Namespace(String),
    /// A reader requested an operation of writers.
    #[error("this user may only read in namespace {0:?}: ask for its writer list")]
    ReadOnly(String),
    /// A limit is reached.
    #[error("{what} is at its limit of {limit}: raise {setting} in the daemon's configuration, or free some")]
    Limit {
        /// The limit, for programs.
        kind: LimitKind,
        /// The limited resource, for people.
        what: String,
        /// The configuration's key, for people.
        setting: String,
        /// The limit's value, with unit.
        limit: String,
    },
    /// The kernel has no memory.
    #[error("the machine has no memory for {bytes} bytes more ({reason})")]
    Memory {
        /// Requested bytes.
        bytes: u64,
        /// The kernel's error.
        reason: String,
    },
    /// The object does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// The owner is alive, so its client must perform the operation.
    #[error("the owner of {0:?} is alive")]
    NotQuiet(String),
    /// Another client produces this stream.
    #[error("stream {0:?} has a live producer already: close it there, or use another name")]
    StreamTaken(String),
    /// A malformed or impossible request.
    #[error("request refused: {0}")]
    Bad(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// The daemon disconnected the client for breaking a rule.
    #[error("disconnected by the daemon: {0}")]
    Violation(String),
}
