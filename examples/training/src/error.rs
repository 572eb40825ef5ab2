//! What can go wrong.

use std::path::PathBuf;

/// A file that is not what it should be, or what the client says.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file was read, and is something else.
    #[error("{path}: {what}")]
    Format {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The data set cannot be used so.
    #[error("{0}")]
    Use(String),
    /// The client.
    #[error(transparent)]
    Client(#[from] tensorlend::Error),
}

/// The result of what can go wrong.
pub type Result<T> = std::result::Result<T, Error>;
