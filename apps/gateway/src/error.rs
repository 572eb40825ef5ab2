//! Errors of a gateway's start.

use crate::transport::Trouble;

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CannotStart {
    /// The connection to this machine's daemon failed.
    #[error("cannot reach this machine's daemon: {0}")]
    Broker(#[from] tensorlend::Error),
    /// Another gateway already serves this namespace on this machine.
    #[error(
        "a gateway serves namespace {0:?} already, and each namespace of a machine has one: stop the other gateway, or use another namespace"
    )]
    Double(String),
    /// The transport to other nodes could not start.
    #[error("cannot connect to other nodes: {0}: check the options listen, connect, mode and zenoh")]
    Transport(#[from] Trouble),
    #[error(transparent)]
    System(#[from] std::io::Error),
}
