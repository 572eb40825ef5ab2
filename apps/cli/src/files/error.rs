//! Errors of tensor files.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why a file was not read or written. Each message contains the file, the fault and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system returned an error.
    #[error("cannot {doing} {path}: {source}; {remedy}")]
    Io { path: PathBuf, doing: &'static str, source: io::Error, remedy: &'static str },

    /// The user gave no format, dtype or shape where one is needed, or gave it twice.
    #[error("{path}: {what}; {remedy}")]
    Usage { path: PathBuf, what: String, remedy: &'static str },

    /// The file is truncated or contradicts itself.
    #[error("{path} is damaged: {what}; {remedy}")]
    Damaged { path: PathBuf, what: String, remedy: &'static str },

    /// A valid file with contents that tensorlend does not support, or a tensor that the format cannot hold.
    #[error("{path}: {what}; {remedy}")]
    Unsupported { path: PathBuf, what: String, remedy: &'static str },

    /// The tensors do not fit into memory.
    #[error(
        "{path} needs {needed_bytes} bytes of memory and {available_bytes} are available; \
         free some memory, or split the file"
    )]
    Memory { path: PathBuf, needed_bytes: u64, available_bytes: u64 },

    /// The buffer's length differs from the tensor's.
    #[error(
        "{path}: a buffer of {given_bytes} bytes was given for a tensor of {tensor_bytes}; \
         give one of exactly `Entry::bytes`"
    )]
    Buffer { path: PathBuf, given_bytes: u64, tensor_bytes: u64 },
}

/// A parser's error, without the file's path.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    Damaged(String),
    Unsupported { what: String, remedy: &'static str },
}

impl Fault {
    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    pub(super) fn unsupported(what: impl Into<String>, remedy: &'static str) -> Self {
        Self::Unsupported { what: what.into(), remedy }
    }

    /// Returns the same fault for one array of an archive. The array's name comes from the file, so
    /// it is quoted and escaped. It must not control the user's terminal.
    pub(super) fn of_array(self, name: &str) -> Self {
        match self {
            Self::Io(e) => Self::Io(e),
            Self::Damaged(what) => Self::Damaged(format!("array {name:?}: {what}")),
            Self::Unsupported { what, remedy } => Self::Unsupported { what: format!("array {name:?}: {what}"), remedy },
        }
    }

    /// Adds the path. `doing` is "read" or "write".
    pub(super) fn at(self, path: &Path, doing: &'static str) -> FileError {
        let path = path.to_owned();
        match self {
            Self::Io(source) => FileError::Io { remedy: io_remedy(&source), path, doing, source },
            Self::Damaged(what) => FileError::Damaged { path, what, remedy: "copy or save it again" },
            Self::Unsupported { what, remedy } => FileError::Unsupported { path, what, remedy },
        }
    }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

fn io_remedy(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check the permissions of the file and its folder",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or choose another disk",
        io::ErrorKind::ReadOnlyFilesystem => "choose a folder that can be written",
        io::ErrorKind::UnexpectedEof => "it became shorter during the read: wait until its writer is done",
        io::ErrorKind::NotSeekable => "a pipe cannot hold this format: write a file",
        _ => "check the disk and try again",
    }
}
