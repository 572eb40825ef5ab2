//! What can go wrong, in words that name the thing and the remedy.

use std::fmt;
use std::time::Duration;
use tensorlend_layout::name::BadName;
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::wire::{LimitKind, Refusal};
use tensorlend_layout::{DType, Uuid, header};

/// What this crate's calls return.
pub type Result<T> = std::result::Result<T, Error>;

/// Every error of this crate. Each says what happened, to what, and what can be done; programs ask the `is_` methods or
/// match the variant.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use std::time::Duration;
///
/// let missing = client.get("nothing").unwrap_err();
/// assert!(missing.is_not_found());
/// println!("{missing}");
///
/// let late = client.wait_for("nothing", Some(Duration::from_millis(1))).unwrap_err();
/// assert!(late.is_timeout() && !late.is_limit());
///
/// let away = tensorlend::Client::builder().socket("/nowhere").connect().unwrap_err();
/// assert!(away.is_disconnected());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon answers.
    #[error("no tensorlend daemon answers at {tried}: start tensorlendd, or set TENSORLEND_SOCKET ({cause})")]
    NoDaemon {
        /// The sockets that were tried.
        tried: String,
        /// The last error.
        cause: std::io::Error,
    },
    /// The kernel is too old.
    #[error(transparent)]
    Kernel(#[from] tensorlend_os::kernel::KernelTooOld),
    /// The daemon hung up, or does not answer any more. What was published stays readable where it is mapped.
    #[error("the daemon has hung up ({doing}): connect again")]
    Disconnected {
        /// What was asked.
        doing: &'static str,
        /// Whether the request had been sent, so that it may have been carried out.
        asked: bool,
    },
    /// The daemon runs and has not answered in time: it is stopped, or it hangs. The session goes on when it answers again.
    #[error(
        "the daemon{} does not answer ({doing}): it has said nothing for {} s: it is stopped, or it hangs: {}",
        process(*pid), waited.as_secs_f64(), remedy(*pid)
    )]
    NotAnswering {
        /// What was asked.
        doing: &'static str,
        /// The daemon's process id; `None`: it is not known here.
        pid: Option<u32>,
        /// How long it was waited for: see [`crate::ClientBuilder::request_timeout`].
        waited: Duration,
        /// Whether the request had been sent, so that it may still be carried out.
        asked: bool,
    },
    /// This process has no room for the descriptors that the daemon lent.
    #[error("{doing}: this process has too many open files: raise `ulimit -n`")]
    Descriptors {
        /// What was asked.
        doing: &'static str,
    },
    /// The daemon refuses.
    #[error("{doing}: {refusal}")]
    Refused {
        /// What was asked, and for which name.
        doing: String,
        /// The daemon's words.
        refusal: Refusal,
    },
    /// This client's own limit is reached: see [`crate::ClientBuilder::memory_limit`].
    #[error(
        "{asked} bytes more would pass this client's memory limit: {used} of {limit} bytes are in use: drop drafts, delete names, or raise memory_limit"
    )]
    MemoryLimit {
        /// Bytes that the allocation takes.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The daemon answered with something else than was asked for.
    #[error("the daemon answered {doing} with something else: are client and daemon of one version?")]
    Protocol {
        /// What was asked.
        doing: &'static str,
    },
    /// A sheet is not what it should be.
    #[error(transparent)]
    Sheet(#[from] header::WrongSheet),
    /// A system call failed.
    #[error("{doing}: {cause}")]
    System {
        /// What for.
        doing: &'static str,
        /// The kernel's word.
        cause: std::io::Error,
    },
    /// This session was opened before a fork: it belongs to the parent.
    #[error("this client was opened by the parent process and cannot be used after fork: connect in the child")]
    Forked,
    /// A name that cannot be.
    #[error("name {name:?}: {cause}")]
    Name {
        /// Its first characters.
        name: String,
        /// Why.
        cause: BadName,
    },
    /// There is no such name.
    #[error("there is no tensor named {0:?}: see `tensorlend ls`, or wait for it with wait_for")]
    NotFound(String),
    /// There is no such stream or list.
    #[error("there is no {kind} named {name:?}: see `tensorlend ls`, or wait until there is one")]
    NoSuch {
        /// "stream" or "list".
        kind: &'static str,
        /// Which.
        name: String,
    },
    /// The name holds the other kind of thing.
    #[error("{name:?} holds a {}, not a {}: use {remedy}", found.beside(*wanted), wanted.beside(*found))]
    Kind {
        /// Which.
        name: String,
        /// What it holds.
        found: ValueKind,
        /// What was asked for.
        wanted: ValueKind,
        /// The right call.
        remedy: &'static str,
    },
    /// A shape, strides or byte length that cannot be.
    #[error("{what}: {cause}")]
    Tensor {
        /// Which tensor, as given.
        what: String,
        /// Why.
        cause: BadTensor,
    },
    /// The tensor has another element type than was asked for.
    #[error("the tensor has dtype {found}, not {wanted}: read it as {found}, or publish it as {wanted}")]
    DType {
        /// What it has.
        found: DType,
        /// What was asked for.
        wanted: DType,
    },
    /// The buffer has another length than the tensor.
    #[error("{name:?} has {found} bytes, the buffer {given}: make the buffer as long as the tensor (see info)")]
    Length {
        /// Which tensor.
        name: String,
        /// Its bytes.
        found: u64,
        /// The buffer's bytes.
        given: u64,
    },
    /// Elements do not lie in one row-major piece.
    #[error("the tensor is strided: read it by its strides, or copy it")]
    Strided,
    /// Metadata above 64 KiB.
    #[error("metadata of {0} bytes is too long: at most 65536; put more into a tensor of its own")]
    Metadata(usize),
    /// All lease entries of this client are taken.
    #[error("this client holds {0} leases, as many as it can: drop some, or open a second client")]
    Leases(usize),
    /// What another client wrote makes no sense; only its own tensors are affected.
    #[error("{name:?} was published by a broken client and cannot be read: {cause}")]
    Damaged {
        /// Which.
        name: String,
        /// What is wrong with it.
        cause: BadTensor,
    },
    /// The wait is over and what was waited for has not come.
    #[error("{what} did not come within {waited:?}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The stream is full and its policy is to fail.
    #[error(
        "stream {0:?} is full: its slowest subscriber is a whole ring behind: send later, or open it with more capacity or the policy \"drop-oldest\""
    )]
    StreamFull(String),
    /// To a subscriber: the producer has closed the stream, or is gone, and every message was taken. To the producer: the
    /// stream was deleted, or opened anew.
    #[error("stream {0:?} has ended: open it again to send; a subscription goes on once somebody has opened it")]
    StreamEnded(String),
    /// A server says that it cannot answer.
    #[error("{service:?} could not answer: {why}")]
    Answer {
        /// Which service.
        service: String,
        /// The server's reason: words of another process.
        why: String,
    },
    /// The server ended, or was given up, before it had answered.
    #[error("the server of {0:?} ended before it answered: call again, if the request may be carried out twice")]
    ServerGone(String),
    /// A name of another machine cannot be had.
    #[error("{name:?}: {cause}")]
    Remote {
        /// Which, with its node.
        name: String,
        /// Why not, and what to do.
        cause: RemoteTrouble,
    },
    /// This client's cursors are all in use.
    #[error("this client has {0} streams that it follows and servers, as many as it can: open a second client")]
    Cursors(usize),
    /// The daemon ended this session; what it published goes on existing. Its leases protect nothing any more.
    #[error("the daemon has ended this session: connect again")]
    SessionEnded,
    /// Memory of a device cannot be had, or cannot be used by this process.
    #[error("{doing}: {cause}")]
    Device {
        /// What was asked, and for what.
        doing: String,
        /// Why it cannot be, and what to do.
        cause: DeviceTrouble,
    },
    /// An argument that cannot be.
    #[error("{0}")]
    Argument(String),
}

/// The kind of a value, where another one was asked for.
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
    /// Its name in a sentence that names this other kind, too.
    fn beside(self, other: Self) -> &'static str {
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
        f.write_str(self.beside(*self))
    }
}

/// Why memory of a device cannot be had, or cannot be used by this process.
///
/// ```
/// use tensorlend::DeviceTrouble;
///
/// println!("{}", DeviceTrouble::NoFeature);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceTrouble {
    /// This program's client library was built without CUDA.
    #[error("this program was built without CUDA: build crate tensorlend with the feature `cuda`")]
    NoFeature,
    /// No driver, or none that works.
    #[error("{0}")]
    NoDriver(String),
    /// The device is there, and not for this process.
    #[error(
        "this process does not see device {0}: look at CUDA_VISIBLE_DEVICES, and in a container at the devices it was given"
    )]
    NotVisible(Uuid),
    /// This process has no device of this number.
    #[error("this process has no CUDA device number {0}: look at nvidia-smi -L and CUDA_VISIBLE_DEVICES")]
    NoSuchDevice(u8),
    /// The daemon lends no memory of it.
    #[error(
        "the daemon lends no memory of device {uuid} (it lends: {lent}): see [cuda] in its configuration, and `tensorlend stat`"
    )]
    NotLent {
        /// Which device.
        uuid: Uuid,
        /// Those of which it lends memory.
        lent: String,
    },
    /// The device, its driver, or the machine lacks something.
    #[error("{0}")]
    Unsupported(String),
    /// A stream of another context.
    #[error(
        "the stream belongs to another context than the device's primary one: use streams of the primary context (the one that cudaSetDevice makes current), or synchronize by yourself"
    )]
    OtherContext,
    /// The device has no memory left.
    #[error("device {0} has no memory left: drop tensors and leases, or raise cuda.bytes_max")]
    Memory(String),
    /// A producer was gone before the work on a tensor that it had published early was known to be done.
    #[error("its producer was gone before the work on it was known to be done: it must be published again")]
    Unfinished,
    /// The driver's own words.
    #[error("{0}")]
    Driver(String),
}

/// Why a name of another machine cannot be had. See [`crate::remote`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteTrouble {
    /// That node has nothing of this name, or does not export it.
    #[error("node {node:?} has no such name, or does not export it: see `tensorlend ls --all-nodes`")]
    Nothing {
        /// Which node.
        node: String,
    },
    /// That node cannot be reached, and nothing of it lies here.
    #[error("node {node:?} cannot be reached: see `tensorlend nodes`; wait_for waits until it can be")]
    Unreachable {
        /// Which node.
        node: String,
    },
    /// No node of this name was ever seen by this machine's gateway.
    #[error(
        "no node {node:?} is known here: see `tensorlend nodes`, and whether tensorlend-gateway runs on both machines"
    )]
    Unknown {
        /// Which node.
        node: String,
    },
    /// That node, or this machine's gateway, does not do this.
    #[error("node {node:?}, or the gateway here, refuses: {why}")]
    Refused {
        /// Which node.
        node: String,
        /// Words of another process.
        why: String,
    },
    /// This machine's gateway does not answer, or nonsense.
    #[error("this machine's gateway does not answer ({why}): is tensorlend-gateway running?")]
    Gateway {
        /// What is known of it.
        why: String,
    },
}

impl Error {
    /// Whether the thing asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::NotFound(_)
                | Self::NoSuch { .. }
                | Self::Refused { refusal: Refusal::NotFound(_), .. }
                | Self::Remote { cause: RemoteTrouble::Nothing { .. }, .. }
        )
    }

    /// Whether a name of another machine cannot be had, for a reason of that machine, of the way there, or of the gateway.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Remote { .. })
    }

    /// Whether a wait ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether a limit of the daemon's configuration or of this client, or the machine's memory, is reached.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::MemoryLimit { .. }
                | Self::Refused { refusal: Refusal::Limit { .. } | Refusal::Memory { .. }, .. }
                | Self::Device { cause: DeviceTrouble::Memory(_), .. }
        )
    }

    /// The limit that was reached, if the error is for one: of the daemon's configuration, of this client, of its process or of
    /// the machine.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// use tensorlend::{DType, LimitKind};
    ///
    /// let client = tensorlend::Client::builder().socket(broker.socket()).memory_limit(1 << 20).connect()?;
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

    /// Whether it is for a reason of a device or its driver.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }

    /// Whether the daemon cannot be reached (any more), or does not answer.
    pub fn is_disconnected(&self) -> bool {
        matches!(
            self,
            Self::NoDaemon { .. } | Self::Disconnected { .. } | Self::NotAnswering { .. } | Self::SessionEnded
        )
    }

    /// The same error, where it is known that what was meant was not even asked for.
    pub(crate) fn certain(self) -> Self {
        match self {
            Self::Disconnected { doing, .. } => Self::Disconnected { doing, asked: false },
            Self::NotAnswering { doing, pid, waited, .. } => Self::NotAnswering { doing, pid, waited, asked: false },
            other => other,
        }
    }

    /// Whether it is certain that nothing was done: what was about to be published may be freed.
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

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

fn remedy(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("look at its state (`ps -o stat= -p {pid}`: T is stopped) and its log, or restart it"),
        None => "look at its process and its log, or restart it".to_owned(),
    }
}

/// Checks that a name is valid: 1 to 255 bytes of UTF-8 without control characters. Every call that takes a name checks it;
/// this one tells before a value is computed that could not be published.
///
/// ```
/// assert!(tensorlend::check_name("camera/front").is_ok());
/// assert!(tensorlend::check_name("").is_err());
/// assert!(tensorlend::check_name("line\n").is_err());
/// ```
///
/// # Errors
/// [`Error::Name`].
#[inline]
pub fn check_name(name: &str) -> Result<()> {
    tensorlend_layout::name::check(name).map_err(|cause| Error::Name { name: name.chars().take(40).collect(), cause })
}
