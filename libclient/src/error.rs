//! Errors. Each error's text names the object concerned and the remedy.

mod code;
mod remedy;

use std::fmt;
use std::time::Duration;
use tensorlend_layout::name::BadName;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::tensor::{BadTensor, METADATA_MAX};
use tensorlend_layout::wire::{LimitKind, Refusal};
use tensorlend_layout::{DType, Uuid, header};

/// The result of this crate's methods.
pub type Result<T> = std::result::Result<T, Error>;

/// The error type of this crate. Its text states the event, the object and the remedy. Programs use the `is_…` methods
/// or match the variant.
///
/// The enum is `non_exhaustive`: a later version may add variants.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::Duration;
///
/// let missing = client.get("nothing").unwrap_err();
/// assert!(missing.is_not_found());
/// println!("{missing}");
///
/// let late = client.wait_for("nothing", Duration::from_millis(1)).unwrap_err();
/// assert!(late.is_timeout() && !late.is_limit());
///
/// let away = tensorlend::Client::builder().socket("/nowhere").connect().unwrap_err();
/// assert!(away.is_disconnected());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon listens on any socket. Start `tensorlendd`, or set `TENSORLEND_SOCKET` or [`crate::ClientBuilder::socket`].
    #[error(
        "no tensorlend daemon responds at {tried} ({cause}): run `tensorlendd --daemonize` or set TENSORLEND_SOCKET"
    )]
    NoDaemon {
        /// The sockets that were tried.
        tried: String,
        /// The error of the last attempt, and the reason why the client started no daemon.
        cause: std::io::Error,
    },
    /// The kernel is too old.
    #[error(transparent)]
    Kernel(#[from] tensorlend_os::kernel::KernelTooOld),
    /// The daemon closed the connection, or ended. Published values stay readable where they are mapped.
    ///
    /// A request that was not sent waits 5 seconds for a new daemon, or [`crate::ClientBuilder::request_timeout`] if that is
    /// shorter, before it returns this error. A request that was sent and may not be repeated returns this error at once. The
    /// client stays usable: its next call resumes the session at the new daemon. If that call fails, connect a new client.
    #[error(
        "cannot {doing}: the daemon closed the connection, and {}: start tensorlendd if it does not run, and repeat the call; if that fails, too, connect again",
        outcome(*asked)
    )]
    Disconnected {
        /// The operation.
        doing: &'static str,
        /// True if the client had sent the request, so that the daemon may have carried it out.
        asked: bool,
    },
    /// The daemon runs and did not respond in time: the daemon is stopped, or it hangs. The session continues when
    /// the daemon responds again.
    ///
    /// See [`crate::ClientBuilder::request_timeout`] for the time.
    #[error(
        "the daemon{} does not respond ({doing}): it has sent nothing for {}, so it is stopped or hangs{}: {}",
        process(*pid), time(*waited), if *asked { ", and may still carry out the request" } else { "" }, remedy::silent(*pid)
    )]
    NotAnswering {
        /// The operation.
        doing: &'static str,
        /// The daemon's process id. `None` if it is unknown.
        pid: Option<u32>,
        /// The time waited: see [`crate::ClientBuilder::request_timeout`].
        waited: Duration,
        /// True if the client had sent the request, so that the daemon may still carry it out.
        asked: bool,
    },
    /// This process has too many open files to receive the descriptors that the daemon lent. The process needs one
    /// descriptor for each segment or sheet while it receives that segment or sheet.
    #[error("cannot {doing}: this process has too many open files: close some, or raise `ulimit -n`")]
    Descriptors {
        /// The operation.
        doing: &'static str,
    },
    /// The daemon refused the request: a limit, a missing right, or another version. [`Error::limit_kind`] tells which
    /// limit.
    #[error("{doing}: {refusal}{}", remedy::build(refusal))]
    Refused {
        /// The operation, and the name concerned.
        doing: String,
        /// The daemon's reason.
        refusal: Refusal,
    },
    /// This client has reached its own limit: see [`crate::ClientBuilder::memory_limit`]. Drop drafts and leases, or
    /// delete names.
    #[error(
        "{} more would pass this client's memory limit: {} of {} are in use: drop drafts, delete names, or raise memory_limit",
        bytes_text(*asked), bytes_text(*used), bytes_text(*limit)
    )]
    MemoryLimit {
        /// Bytes that the allocation needs.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The daemon's reply does not match the request: client and daemon may be of different versions.
    #[error(
        "cannot {doing}: this version of the client does not understand the daemon's reply: install client and daemon of the same version (`tensorlend --version`, `tensorlendd --version`)"
    )]
    Protocol {
        /// The operation.
        doing: &'static str,
    },
    /// A shared-memory header has an unexpected content: the client and the daemon are of different versions, or the
    /// file is damaged.
    #[error(transparent)]
    Sheet(#[from] header::WrongSheet),
    /// A system call failed. The kernel's error is the cause.
    #[error("{doing}: {cause}: {}", remedy::system(cause))]
    System {
        /// The operation.
        doing: &'static str,
        /// The kernel's error.
        cause: std::io::Error,
    },
    /// A parent process opened the session before a fork, so the session belongs to the parent. Connect again in the
    /// child.
    #[error("this client was opened by the parent process and cannot be used after fork: connect in the child")]
    Forked,
    /// An invalid name: names have 1 to 255 bytes of UTF-8 without control characters.
    #[error("name {name:?}: {cause}")]
    Name {
        /// The first characters of the name.
        name: String,
        /// The rule that the name violates.
        cause: BadName,
    },
    /// The name holds no value. Use [`crate::Client::wait_for`] to wait for a value.
    #[error("there is no tensor named {0:?}: see `tensorlend ls`, or wait for it with wait_for")]
    NotFound(String),
    /// The namespace has no stream, list or model of this name. Use [`crate::SubscriptionBuilder::wait`] to wait for a
    /// stream.
    #[error("there is no {kind} named {name:?}: see `tensorlend ls`, or wait until there is one")]
    NoSuch {
        /// `"stream"`, `"list"` or `"model"`.
        kind: &'static str,
        /// The name of the stream, list or model.
        name: String,
    },
    /// The name holds a value of another kind. The kinds are: a tensor, a dataset, and a tensor on a device.
    /// [`crate::Client::get_value`] accepts values of every kind.
    #[error("{name:?} holds a {}, not a {}: use {remedy}", found.name_with(*wanted), wanted.name_with(*found))]
    Kind {
        /// The name.
        name: String,
        /// The kind of its value.
        found: ValueKind,
        /// The kind that the caller requested.
        wanted: ValueKind,
        /// The method to call instead.
        remedy: &'static str,
    },
    /// An invalid shape, stride or byte length.
    #[error("{what}: {cause}: correct its shape, strides or length")]
    Tensor {
        /// The tensor's dtype and shape, as given.
        what: String,
        /// The rule that the shape, stride or length violates.
        cause: BadTensor,
    },
    /// The tensor's element type is not the requested one. [`crate::Tensor::dtype`] returns the tensor's type.
    #[error("the tensor has dtype {found}, not {wanted}: read it as {found}, or publish it as {wanted}")]
    DType {
        /// The tensor's element type.
        found: DType,
        /// The wanted element type.
        wanted: DType,
    },
    /// The buffer and the tensor differ in length. [`crate::Tensor::nbytes`] returns the length to use.
    #[error(
        "{name:?} has {}, and the buffer has {}: make the buffer as long as the tensor (see `tensorlend info`)",
        remedy::length(*found, *given), remedy::length(*given, *found)
    )]
    Length {
        /// The tensor's name.
        name: String,
        /// The tensor's bytes.
        found: u64,
        /// The buffer's bytes.
        given: u64,
    },
    /// The tensor's elements are not contiguous in row-major order, so no slice can contain them.
    /// [`crate::Tensor::copy_to`] copies the elements in C order.
    #[error("the tensor is strided, so its elements are not one slice: read it by its strides, or copy it")]
    Strided,
    /// Metadata of more than 64 KiB. The value is its length in bytes.
    #[error(
        "metadata of {} is too long: at most {}: publish the rest as a tensor of its own",
        remedy::length(*.0 as u64, METADATA_MAX as u64), remedy::length(METADATA_MAX as u64, *.0 as u64)
    )]
    Metadata(usize),
    /// This client holds the maximum number of leases. The value is that number. Drop leases, or connect a second
    /// client.
    #[error("this client holds {0} leases, the most that a client may hold: drop some, or connect a second client")]
    Leases(usize),
    /// The value's record is invalid, because the client that published the value wrote a wrong record. Values of
    /// other clients are unaffected.
    #[error(
        "{name:?} cannot be read: the record that its publisher wrote is invalid: {cause}: publish it again, and report the program that published it; no other value is affected"
    )]
    Damaged {
        /// The name.
        name: String,
        /// The rule that the record violates.
        cause: BadTensor,
    },
    /// The timeout passed before the awaited event. The operation had no effect and can be repeated, unless the
    /// method's documentation says otherwise.
    #[error("timed out after {} waiting for {what}", time(*waited))]
    Timeout {
        /// The awaited event.
        what: String,
        /// The time waited.
        waited: Duration,
    },
    /// The stream is full, and its policy is to fail. At least one subscriber is a whole ring behind. The value is
    /// the stream's name.
    #[error(
        "stream {0:?} is full: its slowest subscriber is a whole ring behind: send later, or open it with more capacity or the policy \"drop-oldest\""
    )]
    StreamFull(String),
    /// The stream has ended. For a subscriber: the producer closed the stream or ended, and the subscriber has
    /// received every message. For the producer: another client deleted the stream or opened it again.
    #[error(
        "stream {0:?} has ended: its producer closed it or exited, or a client deleted it: open it again to send; a subscription continues once a process opens it again"
    )]
    StreamEnded(String),
    /// A server reported that it cannot process the request: see [`crate::Call::fail`].
    #[error("the server of {service:?} reported an error: {why}: correct the request, or see the server's log")]
    Answer {
        /// The service's name.
        service: String,
        /// The server's reason, as the other process wrote it.
        why: String,
    },
    /// The server ended, or the caller abandoned the server, before the response. The value is the service's name. The server
    /// may have carried out the request: see [`crate::Caller::call_again`].
    #[error(
        "the server of {0:?} ended before it responded, and may have carried out the request: call again, if it may be carried out twice"
    )]
    ServerGone(String),
    /// A name of another machine is unavailable. See [`crate::remote`].
    #[error("{name:?}: {cause}")]
    Remote {
        /// The name, with its node.
        name: String,
        /// The reason, and the remedy.
        cause: RemoteTrouble,
    },
    /// This client has the maximum number of subscriptions, callers and servers. The value is that number. Drop some,
    /// or connect a second client.
    #[error(
        "this client has {0} subscriptions, callers and servers open, the most that a client may have: close some, or connect a second client"
    )]
    Cursors(usize),
    /// The daemon has ended this session. Published values continue to exist, but this session's leases no longer
    /// protect any value.
    ///
    /// The daemon ends a session that breaks a rule of the protocol. While memory is short, the daemon also ends a
    /// session whose leases keep replaced values for longer than `uid.lease_ms_max`. Connect a new client to continue.
    #[error(
        "the daemon ended this client's session: it was stopped, or restarted without its memory, the client broke a rule, or its leases kept replaced values too long while memory was short: connect again (the daemon's log has the reason)"
    )]
    SessionEnded,
    /// Device memory is unavailable, or this process cannot use it. [`DeviceTrouble`] has the reason and the remedy.
    #[error("{doing}: {cause}")]
    Device {
        /// The operation, and the name concerned.
        doing: String,
        /// The reason, and the remedy.
        cause: DeviceTrouble,
    },
    /// An invalid argument. The text explains it.
    #[error("{0}")]
    Argument(String),
}

/// Prints the same text as `Display`. A `main` that returns this error prints with `Debug`, and so does `unwrap`.
/// Their users need the cause and the remedy, not the name of a variant.
///
/// ```
/// let away = tensorlend::Client::builder().socket("/nowhere").connect().unwrap_err();
/// assert_eq!(format!("{away:?}"), away.to_string());
/// ```
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of a value, in [`Error::Kind`].
///
/// ```
/// use tensorlend::ValueKind;
///
/// assert_eq!(ValueKind::DeviceTensor.to_string(), "tensor on a device");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueKind {
    /// A tensor in host memory.
    Tensor,
    /// A dataset.
    Dataset,
    /// A tensor on a device.
    DeviceTensor,
    /// A tensor or a dataset in host memory.
    HostValue,
}

impl ValueKind {
    /// Returns the kind's name for a sentence that also names `other`.
    fn name_with(self, other: Self) -> &'static str {
        match self {
            Self::Tensor if other == Self::DeviceTensor => "tensor in host memory",
            Self::Tensor => "tensor",
            Self::Dataset => "dataset",
            Self::DeviceTensor => "tensor on a device",
            Self::HostValue => "value in host memory",
        }
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name_with(*self))
    }
}

/// The reason why device memory is unavailable, or why this process cannot use it.
///
/// ```
/// use tensorlend::DeviceTrouble;
///
/// println!("{}", DeviceTrouble::NoFeature);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceTrouble {
    /// This program's client library was built without the feature `cuda`.
    #[error("this program was built without CUDA: build crate tensorlend with the feature `cuda`")]
    NoFeature,
    /// No working driver was found. The text comes from the loader or the driver.
    #[error("{0}")]
    NoDriver(String),
    /// The device exists, but this process may not use it.
    #[error(
        "this process does not see device {0}: check CUDA_VISIBLE_DEVICES, and in a container the devices that it was given"
    )]
    NotVisible(Uuid),
    /// This process has no device with this number.
    #[error("this process has no CUDA device number {0}: see nvidia-smi -L and CUDA_VISIBLE_DEVICES")]
    NoSuchDevice(u8),
    /// The daemon lends no memory of this device.
    #[error(
        "the daemon lends no memory of device {uuid} (it lends: {lent}): see [cuda] in its configuration, and `tensorlend stat`"
    )]
    NotLent {
        /// The device.
        uuid: Uuid,
        /// The devices whose memory the daemon lends.
        lent: String,
    },
    /// The device, its driver, or the machine lacks a feature.
    #[error("{0}")]
    Unsupported(String),
    /// The stream belongs to another context.
    #[error(
        "the stream belongs to another context than the device's primary one: use streams of the primary context (the one that cudaSetDevice makes current), or synchronize by yourself"
    )]
    OtherContext,
    /// The device has no free memory.
    #[error("device {0} has no memory left: drop tensors and leases, or raise cuda.bytes_max")]
    Memory(String),
    /// A producer published a tensor before its work on the tensor was finished, and then ended. So the work may be
    /// incomplete.
    #[error(
        "its producer ended before its work on the tensor was known to be done, so the content may be incomplete: publish it again"
    )]
    Unfinished,
    /// An error of the driver, in the driver's words.
    #[error("{0}")]
    Driver(String),
}

/// The reason why a name of another machine is unavailable. See [`crate::remote`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteTrouble {
    /// The node has no such name, or does not export it.
    #[error("node {node:?} has no such name, or does not export it: see `tensorlend ls --all-nodes`")]
    Nothing {
        /// The node.
        node: String,
    },
    /// The node is unreachable, and no copy of the value is on this machine.
    #[error(
        "node {node:?} cannot be reached: it is down, or the network to it is: see `tensorlend nodes`, or wait for the name"
    )]
    Unreachable {
        /// The node.
        node: String,
    },
    /// This machine's gateway has never seen a node with this name.
    #[error(
        "this machine's gateway has never seen a node {node:?}: see `tensorlend nodes`, and check that tensorlend-gateway runs on both machines"
    )]
    Unknown {
        /// The node.
        node: String,
    },
    /// The node, or this machine's gateway, refused the request.
    #[error("node {node:?}, or this machine's gateway, refused the request: {why}")]
    Refused {
        /// The node.
        node: String,
        /// The reason, as the other process wrote it.
        why: String,
    },
    /// This machine's gateway does not respond, or its reply is invalid.
    #[error("this machine's gateway does not respond ({why}): check that tensorlend-gateway runs (`tensorlend nodes`)")]
    Gateway {
        /// The cause, as far as the client knows it.
        why: String,
    },
    /// This machine's gateway has ended while it received the stream, and no gateway has continued the stream.
    #[error(
        "no gateway has continued this stream for 10 s: the gateway that received it has ended. Check that tensorlend-gateway runs on this machine (`tensorlend nodes`), then receive again: the subscription continues with the next gateway"
    )]
    NotContinued,
}

impl Error {
    /// Returns whether the requested name, stream or list does not exist, on this machine or on another. The call may
    /// succeed later.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NotFound(_)
                | Self::NoSuch { .. }
                | Self::Refused { refusal: Refusal::NotFound(_), .. }
                | Self::Remote { cause: RemoteTrouble::Nothing { .. }, .. }
        )
    }

    /// Returns whether a name of another machine is unavailable because of that machine, the network, or the gateway. Local
    /// names are unaffected.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote { .. })
    }

    /// Returns whether a timeout passed. Returns true for [`Error::Timeout`] only. [`Error::is_disconnected`] returns
    /// true for a daemon that does not respond.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Returns whether the call reached a limit: of the daemon's configuration, of this client, or of the machine's
    /// memory. Free something and try again.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::MemoryLimit { .. }
                | Self::Refused { refusal: Refusal::Limit { .. } | Refusal::Memory { .. }, .. }
                | Self::Device { cause: DeviceTrouble::Memory(_), .. }
        )
    }

    /// Returns the limit that was reached, if this error reports a limit: of the daemon's configuration, of this client, of
    /// its process or of the machine.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// use tensorlend::{DType, LimitKind};
    ///
    /// let client = tensorlend::Client::builder().socket(daemon.socket()).memory_limit(1 << 20).connect()?;
    /// let error = client.create(DType::U8, &[1 << 21]).unwrap_err();
    /// assert_eq!(error.limit_kind(), Some(LimitKind::ClientBytes));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit_kind(&self) -> Option<LimitKind> {
        match self {
            Self::Refused { refusal: Refusal::Limit { kind, .. }, .. } => Some(*kind),
            Self::Refused { refusal: Refusal::Memory { .. }, .. } => Some(LimitKind::MachineMemory),
            Self::MemoryLimit { .. } => Some(LimitKind::ClientBytes),
            Self::Device { cause: DeviceTrouble::Memory(_), .. } => Some(LimitKind::DeviceMemory),
            Self::Descriptors { .. } => Some(LimitKind::OpenFiles),
            Self::Leases(_) => Some(LimitKind::Leases),
            Self::Cursors(_) => Some(LimitKind::Cursors),
            _ => None,
        }
    }

    /// Returns whether a device or its driver caused the error.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }

    /// Returns whether the daemon is unreachable, does not respond, is stopping, or has disconnected this client.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::NoDaemon { .. }
                | Self::Disconnected { .. }
                | Self::NotAnswering { .. }
                | Self::SessionEnded
                | Self::Refused { refusal: Refusal::Stopping | Refusal::Violation(_), .. }
        )
    }

    /// Returns the same error, but states that the client did not send the request.
    pub(crate) fn certain(self) -> Self {
        match self {
            Self::Disconnected { doing, .. } => Self::Disconnected { doing, asked: false },
            Self::NotAnswering { doing, pid, waited, .. } => Self::NotAnswering { doing, pid, waited, asked: false },
            other => other,
        }
    }

    /// Returns the same error, but states that the daemon may have carried out the request if `may_be_done` is true.
    pub(crate) fn after(self, may_be_done: bool) -> Self {
        let mut it = self;
        if let Self::Disconnected { asked, .. } | Self::NotAnswering { asked, .. } = &mut it {
            *asked |= may_be_done;
        }
        it
    }

    /// Returns whether the daemon certainly did not carry out the request. Then the caller may free a slot that it was
    /// about to publish.
    pub(crate) fn is_certain(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::Forked
                | Self::Disconnected { asked: false, .. }
                | Self::NotAnswering { asked: false, .. }
        )
    }

    pub(crate) fn system(doing: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |cause| Self::System { doing, cause }
    }
}

/// Returns the part of a message that states whether the daemon may have carried out the request.
fn outcome(asked: bool) -> &'static str {
    if asked { "it may have carried out the request" } else { "it did not carry out the request" }
}

/// Formats a time in the largest unit in which the number is at least 1: `30 s`, `1.5 s`, `50 ms`.
fn time(time: Duration) -> String {
    match time {
        time if time.is_zero() => "0 s".to_owned(),
        time if time >= Duration::from_secs(1) => format!("{} s", (time.as_secs_f64() * 1000.0).round() / 1000.0),
        time if time >= Duration::from_millis(1) => format!("{} ms", (time.as_secs_f64() * 1e6).round() / 1000.0),
        time => format!("{} us", time.as_nanos() as f64 / 1000.0),
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// Checks that a name is valid: 1 to 255 bytes of UTF-8 without control characters. Every method that takes a name makes
/// this check itself. A program calls this function to check a name before it computes a value for the name.
///
/// ```
/// assert!(tensorlend::check_name("camera/front").is_ok());
/// assert!(tensorlend::check_name("").is_err());
/// assert!(tensorlend::check_name("line\n").is_err());
/// ```
///
/// # Errors
/// [`Error::Name`] if the name is invalid.
#[inline]
pub fn check_name(name: &str) -> Result<()> {
    tensorlend_layout::name::check(name).map_err(|cause| Error::Name { name: name.chars().take(40).collect(), cause })
}
