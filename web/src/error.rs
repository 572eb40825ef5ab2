//! Why a server does not start.

use std::io;
use std::net::SocketAddr;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It would be open to others.
    #[error(
        "{0} can be reached from other machines: name a file with a token (--token-file), or listen on 127.0.0.1 or on a Unix socket"
    )]
    Open(SocketAddr),
    /// It cannot listen there.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// Where.
        at: String,
        /// Why.
        cause: io::Error,
    },
    /// The token cannot be used.
    #[error("the token in {path}: {why}")]
    Token {
        /// Its file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The broker.
    #[error(transparent)]
    Client(#[from] tensorlend::Error),
    /// The system.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}
