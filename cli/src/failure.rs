//! Errors of commands, and their exit statuses.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use tensorlend::{Error, Refusal};

use crate::files::FileError;

/// The statuses, as --help shows them.
pub const EXIT_CODES: &str = "\
Exit status:
  0  done
  1  another error
  2  the command line makes no sense: an option, a name, a glob, a shape
  3  no daemon answers, or it refuses the connection
  4  there is no such tensor, stream or list
  5  what was waited for did not come in time
  6  a file cannot be read or written, is damaged, or cannot hold this
  7  a limit is reached: memory, a quota, a full stream
";

const OTHER: u8 = 1;
const USAGE: u8 = 2;
const CONNECTION: u8 = 3;
const NOT_FOUND: u8 = 4;
const TIMEOUT: u8 = 5;
const FILE: u8 = 6;
const LIMIT: u8 = 7;

/// The error of a command.
#[derive(Debug)]
pub enum Failure {
    /// An error of the daemon or the client library.
    Client(Error),
    /// An error of a file.
    File(FileError),
    /// A file is valid, but its contents cannot be published.
    Content { path: PathBuf, cause: Box<Error> },
    /// Invalid arguments.
    Usage(String),
    /// The named object does not exist.
    NotFound(String),
    /// A resource of this machine is exhausted.
    Limit(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// An error with the operation that it interrupted.
    Context { what: String, cause: Box<Failure> },
    /// An error of the demo.
    Other(Box<dyn StdError>),
}

impl Failure {
    /// Adds the operation that failed.
    pub fn context(self, what: impl Into<String>) -> Self {
        Self::Context { what: what.into(), cause: Box::new(self) }
    }

    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Client(e) => of_client(e),
            Self::File(e) => of_file(e),
            Self::Content { cause, .. } => match of_client(cause) {
                USAGE => FILE,
                other => other,
            },
            Self::Usage(_) => USAGE,
            Self::NotFound(_) => NOT_FOUND,
            Self::Limit(_) => LIMIT,
            Self::Output(_) => OTHER,
            Self::Context { cause, .. } => cause.status(),
            Self::Other(e) => match (e.downcast_ref(), e.downcast_ref()) {
                (Some(client), _) => of_client(client),
                (_, Some(file)) => of_file(file),
                _ => OTHER,
            },
        }
    }

    /// Returns true if memory, a quota or leases do not suffice for everything at once.
    pub fn is_room(&self) -> bool {
        match self {
            Self::Client(error) => error.is_limit() || matches!(error, Error::Leases(_)),
            Self::Context { cause, .. } => cause.is_room(),
            _ => false,
        }
    }

    /// Returns true if the reader of standard output has closed it, which is not an error.
    fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Output(e) => e.kind() == io::ErrorKind::BrokenPipe,
            Self::Context { cause, .. } => cause.is_broken_pipe(),
            _ => false,
        }
    }
}

fn of_client(error: &Error) -> u8 {
    match error {
        e if e.is_disconnected() => CONNECTION,
        e if e.is_not_found() => NOT_FOUND,
        e if e.is_timeout() => TIMEOUT,
        e if e.is_limit() => LIMIT,
        Error::Refused {
            refusal:
                Refusal::Protocol { .. }
                | Refusal::Layout { .. }
                | Refusal::Namespace(_)
                | Refusal::Stopping
                | Refusal::Violation(_),
            ..
        } => CONNECTION,
        Error::Leases(_) | Error::Cursors(_) | Error::StreamFull(_) => LIMIT,
        // The shape came from a file: the parser has checked shapes on the command line.
        Error::Tensor { .. } => FILE,
        Error::Name { .. } | Error::Argument(_) | Error::Metadata(_) => USAGE,
        _ => OTHER,
    }
}

fn of_file(error: &FileError) -> u8 {
    match error {
        FileError::Usage { .. } => USAGE,
        FileError::Memory { .. } => LIMIT,
        _ => FILE,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(e) => e.fmt(f),
            Self::File(e) => e.fmt(f),
            Self::Content { path, cause } => write!(f, "{}: {cause}", path.display()),
            Self::Usage(what) | Self::NotFound(what) | Self::Limit(what) => f.write_str(what),
            Self::Output(e) => write!(f, "cannot print: {e}"),
            Self::Context { what, cause } => write!(f, "{what}: {cause}"),
            Self::Other(e) => e.fmt(f),
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Client(e) => e.source(),
            Self::Content { cause, .. } => cause.source(),
            Self::File(e) => e.source(),
            Self::Usage(_) | Self::NotFound(_) | Self::Limit(_) => None,
            Self::Output(e) => e.source(),
            Self::Context { cause, .. } => cause.source(),
            Self::Other(e) => e.source(),
        }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Client(e)
    }
}

impl From<FileError> for Failure {
    fn from(e: FileError) -> Self {
        Self::File(e)
    }
}

impl From<Box<dyn StdError>> for Failure {
    fn from(e: Box<dyn StdError>) -> Self {
        match e.downcast::<Failure>() {
            Ok(failure) => *failure,
            Err(other) => Self::Other(other),
        }
    }
}

/// Returns one line: the error, and each source that it does not quote already. Paths and labels are untrusted, and
/// must not control the terminal.
fn line(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut next = failure.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    crate::output::printable(&text)
}

/// Reports a failure that does not determine the exit status.
pub fn tell(failure: &Failure) {
    crate::output::note(&format!("error: {}", line(failure)));
}

/// Reports the failure and returns the exit status.
pub fn exit(done: Result<(), Failure>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(failure) if failure.is_broken_pipe() => 0,
        Err(failure) => {
            tell(&failure);
            failure.status()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_once_and_in_one_line() {
        let error = FileError::Io {
            path: "a\nb.npy".into(),
            doing: "read",
            source: io::Error::other("the disk burns"),
            remedy: "run",
        };
        let failure = Failure::from(error).context("cannot put \"x\"");
        assert_eq!(line(&failure), "cannot put \"x\": cannot read a\\nb.npy: the disk burns; run");
        assert_eq!(failure.status(), FILE);
    }

    #[test]
    fn a_boxed_failure_keeps_its_status() {
        let boxed: Box<dyn StdError> = Box::new(Error::NotFound("x".into()));
        assert_eq!(Failure::from(boxed).status(), NOT_FOUND);
        let boxed: Box<dyn StdError> = Box::new(Failure::Usage("x".into()));
        assert_eq!(Failure::from(boxed).status(), USAGE);
        assert_eq!(Failure::from(Box::<dyn StdError>::from("x")).status(), OTHER);
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::Output(io::ErrorKind::BrokenPipe.into()).context("cannot list");
        assert!(failure.is_broken_pipe());
        assert!(!Failure::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
