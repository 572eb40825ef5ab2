//! Errors.

use std::path::PathBuf;

/// An invalid file, or an error of the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// A file has invalid contents.
    #[error("{path}: {what}")]
    Format {
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The data set does not suit the request.
    #[error("{0}")]
    Use(String),
    #[error(transparent)]
    Client(#[from] tensorlend::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
