//! The reasons for refusals.

use super::LimitKind;
use serde::{Deserialize, Serialize};

/// The reason for a refusal. The text is for people, the variants are for programs.
///
/// ```
/// use tensorlend_layout::wire::{LimitKind, Refusal};
///
/// let (what, setting) = ("the number of names".into(), "names_max".into());
/// let refusal = Refusal::Limit { kind: LimitKind::Names, what, setting, limit: "1024".into() };
/// assert_eq!(
///     refusal.to_string(),
///     "the number of names would pass its limit of 1024: raise names_max in the daemon's configuration, or free some"
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
        "the daemon's shared memory has format {daemon_version} ({daemon_hash:016x}), this client reads {client_version} ({client_hash:016x}): install matching versions"
    )]
    Layout { daemon_version: u32, daemon_hash: u64, client_version: u32, client_hash: u64 },
    /// The namespace does not exist, or this user may not join it. The client does not learn which.
    #[error(
        "no namespace {0:?} for this user: it does not exist, or does not list the user: see [namespace.*] in the daemon's configuration"
    )]
    Namespace(String),
    /// A reader requested an operation that only writers may perform.
    #[error(
        "this user may read namespace {0:?}, but not write to it: ask its administrator to add the user to `writers` of [namespace.{0}] in the daemon's configuration"
    )]
    ReadOnly(String),
    /// The operation has reached a limit.
    #[error("{what} would pass its limit of {limit}: {} {setting} in the daemon's configuration{}", change(*kind), or_else(*kind))]
    Limit {
        /// The limit, for programs.
        kind: LimitKind,
        /// The limited resource, for people.
        what: String,
        /// The configuration's key, for people.
        setting: String,
        /// The limit's value, with unit. For bytes, also the use and the request.
        limit: String,
    },
    /// The kernel has no memory left.
    #[error("the machine has no memory left{} ({reason}): delete values, end other programs, or lower pool.bytes_max", needed(*bytes))]
    Memory {
        /// Requested bytes; 0 if unknown.
        bytes: u64,
        /// The kernel's error.
        reason: String,
    },
    /// The object does not exist.
    #[error("there is no {0}: repeat the call; if it fails again, connect again")]
    NotFound(String),
    /// The owner is alive, so its client must perform the operation.
    #[error(
        "{0:?} belongs to a client that is still connected, and only that client can do this: do it there, or close that client first"
    )]
    NotQuiet(String),
    /// This or another client produces the stream.
    #[error("a client produces stream {0:?} already: close the stream there, or use another name")]
    StreamTaken(String),
    /// A malformed or impossible request.
    #[error(
        "the daemon refused the request: {0}: correct what this names; if it is right, install client and daemon of the same version"
    )]
    Bad(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping and accepts no more requests: connect again once it runs again")]
    Stopping,
    /// The daemon disconnected the client for breaking a rule.
    #[error("the daemon disconnected this client: {0}: connect again; the daemon's log has the details")]
    Violation(String),
    /// The user is not an observer.
    #[error(
        "this user may not observe all namespaces: ask the administrator to add the user to `observers` in the daemon's configuration, or join a namespace"
    )]
    NotObserver,
}

/// The class of a refusal. The class shows who can remove the cause.
///
/// ```
/// use tensorlend_layout::wire::{Reason, Refusal};
///
/// assert_eq!(Refusal::NotFound("client 3".into()).reason(), Reason::Race);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// A limit of the configuration or of the machine: an administrator can raise it, or a user can free something.
    Limit,
    /// A request that the daemon never grants, because it is damaged or impossible, or because the client lacks the
    /// rights.
    Invalid,
    /// Another client, or the daemon, was faster, so the object is gone or taken. The caller may
    /// repeat the operation. Only taken objects count as refusals: see [`Refusal::is_ordinary`].
    Race,
}

impl Reason {
    /// Returns the word that metrics and the log use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Invalid => "invalid",
            Self::Race => "race",
        }
    }
}

impl Refusal {
    /// Returns the class of this refusal.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Limit { .. } | Self::Memory { .. } => Reason::Limit,
            Self::NotFound(_) | Self::NotQuiet(_) | Self::StreamTaken(_) | Self::Stopping => Reason::Race,
            Self::Protocol { .. }
            | Self::Layout { .. }
            | Self::Namespace(_)
            | Self::ReadOnly(_)
            | Self::Bad(_)
            | Self::Violation(_)
            | Self::NotObserver => Reason::Invalid,
        }
    }

    /// Returns true for a response that the client library expects and handles. So the daemon neither counts it as a
    /// refusal nor warns of it:
    /// - The object is gone. The client looks for it again, begins a new session, or reports a missing name.
    /// - The owner of a name must perform the operation. The client then asks the owner, or performs it itself.
    /// - The daemon is stopping. The client repeats the request at the next daemon.
    /// - The client offered a newer layout than the daemon's. It then offers the daemon's.
    /// - The client offered the protocol version 0, to find out whether the daemon responds.
    ///
    /// ```
    /// use tensorlend_layout::wire::Refusal;
    ///
    /// assert!(Refusal::NotFound("client 3".into()).is_ordinary());
    /// assert!(!Refusal::StreamTaken("camera".into()).is_ordinary());
    /// ```
    pub fn is_ordinary(&self) -> bool {
        match self {
            Self::NotFound(_) | Self::NotQuiet(_) | Self::Stopping => true,
            Self::Layout { daemon_version, client_version, .. } => client_version > daemon_version,
            Self::Protocol { client_max, .. } => *client_max == 0,
            _ => false,
        }
    }

    /// Returns the stable code of this reason, such as `TL-0601`. The code is the same in every
    /// language, and the manual's page on errors explains it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stopping => "TL-0105",
            Self::Violation(_) => "TL-0106",
            Self::Limit { .. } => "TL-0201",
            Self::Memory { .. } => "TL-0202",
            Self::NotFound(_) => "TL-0303",
            Self::Bad(_) => "TL-0407",
            Self::StreamTaken(_) => "TL-0503",
            Self::Namespace(_) => "TL-0601",
            Self::ReadOnly(_) => "TL-0602",
            Self::NotQuiet(_) => "TL-0603",
            Self::NotObserver => "TL-0604",
            Self::Protocol { .. } => "TL-0905",
            Self::Layout { .. } => "TL-0906",
        }
    }
}

/// Returns the verb for a limit's setting.
fn change(kind: LimitKind) -> &'static str {
    if kind == LimitKind::Spill { "set" } else { "raise" }
}

/// Returns the remedies that need no change of the configuration.
fn or_else(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Spill => "",
        _ if kind.is_of_tensors() => ", delete values, or request less",
        _ => ", or free some",
    }
}

fn needed(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(" for {}", crate::size::bytes_text(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_in_binary_units_and_only_if_known() {
        let text = |bytes| Refusal::Memory { bytes, reason: "ENOMEM".into() }.to_string();
        assert!(
            text(3 << 29).starts_with("the machine has no memory left for 1.5 GiB (ENOMEM): "),
            "{}",
            text(3 << 29)
        );
        assert!(text(0).starts_with("the machine has no memory left (ENOMEM): "), "{}", text(0));
    }
}
