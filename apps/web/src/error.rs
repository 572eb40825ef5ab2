//! Errors of starting a server.

use std::io;
use std::net::SocketAddr;

/// The reason why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port that other machines reach was requested without a token.
    #[error(
        "{0} can be reached from other machines: name a file with a token (--token-file), or listen on 127.0.0.1 or on a Unix socket"
    )]
    Open(SocketAddr),
    /// A local port was requested for an observer, without a token.
    #[error(
        "every user of this machine can reach {0}, and only observers may see what --observe shows: name a file with a \
         token (--token-file FILE), or listen on a Unix socket only (--listen unix:PATH)"
    )]
    Observed(SocketAddr),
    /// A listener could not be opened.
    #[error("cannot listen on {at}: {cause}")]
    Listen {
        /// The address that was requested.
        at: String,
        cause: io::Error,
    },
    /// The token file cannot be used.
    #[error("the token in {path}: {why}")]
    Token {
        path: String,
        /// The reason why the file cannot be used.
        why: String,
    },
    /// The daemon refused a session, or cannot be reached.
    #[error(transparent)]
    Client(#[from] tensorlend::Error),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}
