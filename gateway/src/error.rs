//! Errors of a gateway's start.

use crate::transport::Trouble;

/// The reason why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CannotStart {
    /// The daemon of this machine returned an error.
    #[error("the local broker: {0}")]
    Broker(#[from] tensorlend::Error),
    /// Another gateway serves the namespace.
    #[error("a gateway serves namespace {0:?} already: one gateway for each namespace of a machine")]
    Double(String),
    /// The transport returned an error.
    #[error("the way to other nodes: {0}")]
    Transport(#[from] Trouble),
    /// The kernel returned an error.
    #[error(transparent)]
    System(#[from] std::io::Error),
}
