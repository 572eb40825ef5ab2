//! Errors of commands, and their exit statuses.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;

use tensorlend::{Error, Refusal, ValueKind};
use tensorlend_layout::size::bytes_text;
use tensorlend_os::stderr;

use crate::files::FileError;

/// The statuses, as --help shows them.
pub const EXIT_CODES: &str = "\
Exit status:
  0  done
  1  another error
  2  invalid command line: an option, a name, a glob, a shape
  3  no daemon responds, or it refuses the connection
  4  there is no such tensor, stream or list
  5  timed out
  6  a file cannot be read or written, is damaged, or cannot hold this
  7  a limit is reached: memory, a quota, a full stream
  8  this user may read the namespace, but not write to it
  9  this program, the daemon and the kernel do not fit together: versions
An error ends with its code, such as [TL-0301], which the manual's page on errors explains.
";

const OTHER: u8 = 1;
const USAGE: u8 = 2;
const CONNECTION: u8 = 3;
const NOT_FOUND: u8 = 4;
const TIMEOUT: u8 = 5;
const FILE: u8 = 6;
const LIMIT: u8 = 7;
const READ_ONLY: u8 = 8;
const VERSIONS: u8 = 9;

// Codes of errors that the command line itself detects. The first three are codes of the client
// library with the same meaning.
const NO_DAEMON_CODE: &str = "TL-0101";
const NOT_FOUND_CODE: &str = "TL-0301";
const LIMIT_CODE: &str = "TL-0202";
const FILE_CODE: &str = "TL-1001";
const USAGE_CODE: &str = "TL-1002";
const OUTPUT_CODE: &str = "TL-1003";
const OTHER_CODE: &str = "TL-1004";

/// The error of a command.
#[derive(Debug)]
pub enum Failure {
    /// An error of the daemon or the client library.
    Client(Error),
    File(FileError),
    /// A file is valid, but its contents cannot be published.
    Content {
        path: PathBuf,
        cause: Box<Error>,
    },
    Usage(String),
    /// The named object does not exist.
    NotFound(String),
    /// A resource of this machine is exhausted.
    Limit(String),
    NoDaemon(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// An error, with the operation that it interrupted.
    Context {
        what: String,
        cause: Box<Failure>,
    },
    /// An error of the demo or the benchmark.
    Other(Box<dyn StdError>),
}

impl Failure {
    /// Adds the operation that failed.
    pub fn context(self, what: impl Into<String>) -> Self {
        Self::Context { what: what.into(), cause: Box::new(self) }
    }

    /// Returns the exit status of a command that ended with this error.
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
            Self::NoDaemon(_) => CONNECTION,
            Self::Output(_) => OTHER,
            Self::Context { cause, .. } => cause.status(),
            Self::Other(e) => match (e.downcast_ref(), e.downcast_ref()) {
                (Some(client), _) => of_client(client),
                (_, Some(file)) => of_file(file),
                _ => OTHER,
            },
        }
    }

    /// Returns the error's stable code.
    fn code(&self) -> &'static str {
        match self {
            Self::Client(e) => e.code(),
            Self::Content { cause, .. } => cause.code(),
            Self::File(e) => of_file_code(e),
            Self::Usage(_) => USAGE_CODE,
            Self::NotFound(_) => NOT_FOUND_CODE,
            Self::Limit(_) => LIMIT_CODE,
            Self::NoDaemon(_) => NO_DAEMON_CODE,
            Self::Output(_) => OUTPUT_CODE,
            Self::Context { cause, .. } => cause.code(),
            Self::Other(e) => match (e.downcast_ref::<Error>(), e.downcast_ref()) {
                (Some(client), _) => client.code(),
                (_, Some(file)) => of_file_code(file),
                _ => OTHER_CODE,
            },
        }
    }

    /// Returns true if memory, a quota or leases do not suffice for everything at once. Smaller
    /// groups may then succeed.
    pub fn is_room(&self) -> bool {
        match self {
            Self::Client(error) => error.is_limit() || matches!(error, Error::Leases(_)),
            Self::Context { cause, .. } => cause.is_room(),
            _ => false,
        }
    }

    /// Returns true if the reader of standard output has closed the pipe, which is not an error.
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
        Error::Refused { refusal: Refusal::Namespace(_) | Refusal::NotObserver, .. } => CONNECTION,
        Error::Refused { refusal: Refusal::ReadOnly(_), .. } => READ_ONLY,
        Error::Refused { refusal: Refusal::Protocol { .. } | Refusal::Layout { .. }, .. }
        | Error::Protocol { .. }
        | Error::Sheet(_)
        | Error::Kernel(_) => VERSIONS,
        Error::Leases(_) | Error::Cursors(_) | Error::StreamFull(_) => LIMIT,
        // The invalid shape comes from a file, because the parser of the command line rejects
        // invalid shapes.
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

fn of_file_code(error: &FileError) -> &'static str {
    match error {
        FileError::Usage { .. } => USAGE_CODE,
        FileError::Memory { .. } => LIMIT_CODE,
        _ => FILE_CODE,
    }
}

/// Writes an error of the client library. The remedy names commands and options in place of the library's functions.
fn write_client(error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::NotFound(name) => {
            write!(f, "there is no tensor named {name:?}: see `tensorlend ls`, or wait for it with `tensorlend watch`")
        }
        Error::NoSuch { kind, name } => write!(f, "there is no {kind} named {name:?}: see `tensorlend ls`"),
        Error::NotAnswering { .. } => write!(f, "{error} (--daemon-timeout changes the time)"),
        Error::Leases(most) => {
            write!(
                f,
                "this command would hold more than {most} leases, the most that a client may hold: select fewer names"
            )
        }
        Error::StreamFull(name) => write!(
            f,
            "stream {name:?} is full: its slowest subscriber is a whole ring behind: send later, or give a larger --capacity \
             or --policy drop-oldest"
        ),
        Error::Kind { name, found: ValueKind::DeviceTensor, .. } => write!(
            f,
            "{name:?} is a tensor on a device, and this command reads host memory: read it with a program (docs/gpu.md)"
        ),
        Error::Kind { name, found, wanted, .. } => {
            write!(f, "{name:?} holds a {found}, not a {wanted}: see `tensorlend info`")
        }
        Error::MemoryLimit { asked, used, limit } => write!(
            f,
            "{} more would pass this command's memory limit: {} of {} are in use: publish fewer or smaller values at once",
            bytes_text(*asked),
            bytes_text(*used),
            bytes_text(*limit)
        ),
        Error::Cursors(most) => {
            write!(f, "this command would open more than {most} streams, the most that a client may: select fewer")
        }
        Error::ServerGone(service) => write!(
            f,
            "the server of {service:?} ended before it responded, and may have carried out the request: run the command \
             again, if the request may be carried out twice"
        ),
        Error::SessionEnded => write!(
            f,
            "the daemon ended this command's session: run the command again (the daemon's log has the reason)"
        ),
        Error::Disconnected { doing, asked } => write!(
            f,
            "cannot {doing}: the daemon closed the connection, and {}: start tensorlendd if it does not run, and run the \
             command again",
            if *asked { "it may have carried out the request" } else { "it did not carry out the request" }
        ),
        Error::Refused { doing, refusal } => {
            write!(f, "{doing}: ")?;
            write_refusal(refusal, f)
        }
        other => write!(f, "{other}"),
    }
}

fn write_refusal(refusal: &Refusal, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match refusal {
        Refusal::NotFound(what) => write!(f, "there is no {what}: run the command again"),
        Refusal::Stopping => {
            f.write_str("the daemon is stopping and accepts no more requests: run the command again once it runs again")
        }
        Refusal::Violation(why) => {
            write!(f, "the daemon disconnected this command: {why}: run it again; the daemon's log has the details")
        }
        other => write!(f, "{other}"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(e) => write_client(e, f),
            Self::File(e) => e.fmt(f),
            Self::Content { path, cause } => {
                write!(f, "{}: ", path.display())?;
                write_client(cause, f)
            }
            Self::Usage(what) | Self::NotFound(what) | Self::Limit(what) | Self::NoDaemon(what) => f.write_str(what),
            Self::Output(e) => write!(f, "cannot print: {e}"),
            Self::Context { what, cause } => write!(f, "{what}: {cause}"),
            Self::Other(e) => match e.downcast_ref() {
                Some(client) => write_client(client, f),
                None => e.fmt(f),
            },
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Client(e) => e.source(),
            Self::Content { cause, .. } => cause.source(),
            Self::File(e) => e.source(),
            Self::Usage(_) | Self::NotFound(_) | Self::Limit(_) | Self::NoDaemon(_) => None,
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

/// Returns one line with the error, and with each of its sources that its text does not already
/// contain. Paths and labels are untrusted, so their control characters are escaped.
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
    crate::text::printable(&text)
}

/// Reports a failure that does not determine the exit status.
pub fn tell(failure: &Failure) {
    crate::output::note(&format!("error: {} [{}]", line(failure), failure.code()));
}

/// Reports the failure, as JSON if `is_json` is true. Returns the exit status.
pub fn exit(done: Result<(), Failure>, is_json: bool) -> u8 {
    match done {
        Ok(()) => 0,
        Err(failure) if failure.is_broken_pipe() => 0,
        Err(failure) if is_json => {
            tell_json(&line(&failure), failure.code(), failure.status());
            failure.status()
        }
        Err(failure) => {
            tell(&failure);
            failure.status()
        }
    }
}

/// Reports an invalid command line as JSON. Returns the exit status.
pub fn exit_usage(text: &str) -> u8 {
    tell_json(text, USAGE_CODE, USAGE);
    USAGE
}

/// Writes an error as one line of JSON to standard error.
fn tell_json(text: &str, code: &str, status: u8) {
    let error = serde_json::json!({ "error": text, "code": code, "status": status });
    stderr::say(&error.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::time::Duration;
    use tensorlend::{DType, DeviceTrouble, LimitKind, RemoteTrouble};
    use tensorlend_layout::Uuid;
    use tensorlend_layout::name::BadName;
    use tensorlend_layout::tensor::BadTensor;

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
    fn a_right_and_a_version_have_statuses_of_their_own() {
        let refused = |refusal| Failure::from(Error::Refused { doing: "publish".into(), refusal }).context("x");
        let read_only = refused(Refusal::ReadOnly("lab".into()));
        assert_eq!((read_only.status(), read_only.code()), (READ_ONLY, "TL-0602"));
        let older = refused(Refusal::Protocol { daemon: 1, client_min: 2, client_max: 3 });
        assert_eq!((older.status(), older.code()), (VERSIONS, "TL-0905"));
        assert_eq!(refused(Refusal::Stopping).status(), CONNECTION);
    }

    fn text(text: &str) -> String {
        text.into()
    }

    fn refusals() -> impl Iterator<Item = Refusal> {
        [
            Refusal::Protocol { daemon: 1, client_min: 2, client_max: 3 },
            Refusal::Layout { daemon_version: 1, daemon_hash: 2, client_version: 3, client_hash: 4 },
            Refusal::Namespace(text("lab")),
            Refusal::ReadOnly(text("lab")),
            Refusal::Limit {
                kind: LimitKind::PoolBytes,
                what: text("a"),
                setting: text("pool.bytes_max"),
                limit: text("1"),
            },
            Refusal::Memory { bytes: 1, reason: text("ENOMEM") },
            Refusal::NotFound(text("segment")),
            Refusal::NotQuiet(text("x")),
            Refusal::NotObserver,
            Refusal::StreamTaken(text("x")),
            Refusal::Bad(text("too many items")),
            Refusal::Stopping,
            Refusal::Violation(text("a rule")),
        ]
        .into_iter()
    }

    fn remote_troubles() -> impl Iterator<Item = RemoteTrouble> {
        [
            RemoteTrouble::Nothing { node: text("a") },
            RemoteTrouble::Unreachable { node: text("a") },
            RemoteTrouble::Unknown { node: text("a") },
            RemoteTrouble::Refused { node: text("a"), why: text("no") },
            RemoteTrouble::Gateway { why: text("no") },
            RemoteTrouble::NotContinued,
        ]
        .into_iter()
    }

    fn device_troubles() -> impl Iterator<Item = DeviceTrouble> {
        [
            DeviceTrouble::NoFeature,
            DeviceTrouble::NoDriver(text("no")),
            DeviceTrouble::NotVisible(Uuid([0; 16])),
            DeviceTrouble::NoSuchDevice(7),
            DeviceTrouble::NotLent { uuid: Uuid([0; 16]), lent: text("none") },
            DeviceTrouble::Unsupported(text("no")),
            DeviceTrouble::OtherContext,
            DeviceTrouble::Memory(text("cuda:0")),
            DeviceTrouble::Unfinished,
            DeviceTrouble::Driver(text("no")),
        ]
        .into_iter()
    }

    /// Returns one error of each kind, except two kinds without values that no other crate can construct.
    fn errors() -> Vec<Error> {
        let (host, dataset) = (ValueKind::Tensor, ValueKind::Dataset);
        let mut errors = vec![
            Error::NoDaemon { tried: text("/x"), cause: io::ErrorKind::NotFound.into() },
            Error::Disconnected { doing: "publish", asked: true },
            Error::NotAnswering { doing: "publish", pid: Some(7), waited: Duration::from_secs(30), asked: true },
            Error::Descriptors { doing: "connect" },
            Error::MemoryLimit { asked: 1, used: 2, limit: 2 },
            Error::Protocol { doing: "publish" },
            Error::System { doing: "map", cause: io::ErrorKind::PermissionDenied.into() },
            Error::Forked,
            Error::Name { name: text(""), cause: BadName::Empty },
            Error::NotFound(text("x")),
            Error::NoSuch { kind: "list", name: text("x") },
            Error::Kind { name: text("x"), found: dataset, wanted: host, remedy: "get_dataset or get_value" },
            Error::Tensor { what: text("f32 [1]"), cause: BadTensor::Overflow },
            Error::DType { found: DType::F32, wanted: DType::U8 },
            Error::Length { name: text("x"), found: 1, given: 2 },
            Error::Strided,
            Error::Metadata(70_000),
            Error::Leases(4096),
            Error::Damaged { name: text("x"), cause: BadTensor::Bounds },
            Error::Timeout { what: text("x"), waited: Duration::from_secs(1) },
            Error::StreamFull(text("x")),
            Error::StreamEnded(text("x")),
            Error::Answer { service: text("x"), why: text("no") },
            Error::ServerGone(text("x")),
            Error::Cursors(64),
            Error::SessionEnded,
            Error::Argument(text("no")),
        ];
        errors.extend(refusals().map(|refusal| Error::Refused { doing: text("x"), refusal }));
        errors.extend(remote_troubles().map(|cause| Error::Remote { name: text("x"), cause }));
        errors.extend(device_troubles().map(|cause| Error::Device { doing: text("x"), cause }));
        errors
    }

    #[test]
    fn hints_name_no_calls_of_the_library() {
        // Read the codes of Rust's errors from the manual's page.
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
        let page = std::fs::read_to_string(page).expect("the manual is there");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let of_rust = |(code, rest): &(&str, &str)| {
            code.starts_with("TL-0") && rest.starts_with('`') && !rest.starts_with("`EmbeddedError`")
        };
        let mut codes: BTreeSet<&str> = rows.filter(of_rust).map(|(code, _)| code).collect();
        assert!(codes.len() > 40, "{codes:?}");
        for error in errors() {
            codes.remove(error.code());
            let text = Failure::from(error).to_string();
            // A setting of the daemon is "section.setting".
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_.:".contains(c)));
            let calls: Vec<&str> = words.filter(|it| it.contains('_') && !it.contains('.')).collect();
            assert!(calls.iter().all(|it| it.chars().all(|c| !c.is_ascii_lowercase())), "{text}: {calls:?}");
            for phrase in ["connect again", "second client", "call again", "repeat the call", "drop drafts", "wait_for"]
            {
                assert!(!text.contains(phrase), "{text}: {phrase:?}");
            }
        }
        assert_eq!(codes, ["TL-0901", "TL-0903"].into(), "add an error of each code");
        let text = Failure::from(Error::NotFound("x".into())).to_string();
        assert!(text.ends_with("see `tensorlend ls`, or wait for it with `tensorlend watch`"), "{text}");
        let boxed: Box<dyn StdError> = Box::new(Error::SessionEnded);
        assert!(Failure::from(boxed).to_string().contains("run the command again"));
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::Output(io::ErrorKind::BrokenPipe.into()).context("cannot list");
        assert!(failure.is_broken_pipe());
        assert!(!Failure::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
