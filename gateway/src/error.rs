//! Errors of a gateway's start.

use crate::transport::Trouble;

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CannotStart {
    /// The connection to this machine's daemon failed.
    #[error("the daemon of this machine: {0}")]
    Broker(#[from] tensorlend::Error),
    /// Another gateway already serves this namespace on this machine.
    #[error("a gateway serves namespace {0:?} already: one gateway for each namespace of a machine")]
    Double(String),
    /// The transport to other nodes could not start.
    #[error("the way to other nodes: {0}")]
    Transport(#[from] Trouble),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] std::io::Error),
}
