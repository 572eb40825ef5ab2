//! The client, and its connection. The client's methods are in the modules of their topics, and in `api/`.

mod callers;

use crate::control::{Control, Sockets};
use crate::error::{Error, Result, check_name};
use crate::instruments::Options;
use crate::session::Session;
use callers::Callers;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options of a connection: the daemon's socket, the namespace, the label, timeouts, and instruments.
///
/// All options have defaults. [`ClientBuilder::connect`] connects. It blocks until the daemon has responded or the
/// request timeout has passed.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(daemon.socket()).label("camera driver").connect()?;
/// client.put("exposure_ms", &[12.5f32])?;
/// assert_eq!(client.info("exposure_ms")?.label, "camera driver");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    sockets: Vec<PathBuf>,
    no_autostart: bool,
    namespace: Option<String>,
    label: Option<String>,
    harden: bool,
    remote_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
    pub(crate) instruments: Options,
}

/// Default of [`ClientBuilder::request_timeout`].
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of [`ClientBuilder::remote_timeout`].
const REMOTE_TIMEOUT: Duration = Duration::from_mins(1);

impl ClientBuilder {
    /// Adds a daemon's socket. If you call this method several times, `connect` tries the sockets in that order. By
    /// default, `connect` tries `TENSORLEND_SOCKET` if set, and otherwise the user's daemon, then the system's daemon at
    /// `/run/tensorlend/tensorlend.sock`. The user's socket is `tensorlend.sock` in the first of these folders that only the
    /// user can write to: `$XDG_RUNTIME_DIR`, `/run/user/UID`, `/tmp/tensorlend-UID`.
    ///
    /// ```
    /// let daemon = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket("/nowhere").socket(daemon.socket()).connect()?;
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.sockets.push(path.as_ref().to_owned());
        self
    }

    /// Sets whether `connect` starts the user's daemon if no daemon listens at the default sockets. Default: true, unless the
    /// environment variable `TENSORLEND_AUTOSTART` is 0. `connect` never starts one if the program or `TENSORLEND_SOCKET`
    /// names a socket, or if the system's daemon is installed.
    ///
    /// The daemon is the `tensorlendd` near this library, or the first in `PATH`. It continues when the program ends. It ends
    /// after 10 minutes without clients and names (`idle_exit_s` in its configuration, `~/.config/tensorlend/tensorlendd.toml`).
    ///
    /// ```
    /// let none = tensorlend::Client::builder().socket("/nowhere").autostart(false).connect();
    /// assert!(none.is_err_and(|error| error.is_disconnected()));
    /// ```
    pub fn autostart(mut self, autostart: bool) -> Self {
        self.no_autostart = !autostart;
        self
    }

    /// Sets the namespace to join, as the daemon's configuration names it. Default: the private namespace of this user.
    ///
    /// Clients see the names, streams and lists of their own namespace only.
    ///
    /// ```
    /// # let user = rustix::process::getuid().as_raw();
    /// let config = format!("[namespace.robot]\nwriters = [\"{user}\"]");
    /// let daemon = tensorlend_daemon::embedded_with(&tensorlend_daemon::Config::parse(&config)?)?;
    /// let client = tensorlend::Client::builder().socket(daemon.socket()).namespace("robot").connect()?;
    /// assert_eq!(client.namespace(), "robot");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// Sets this client's label in listings ([`crate::Info::label`], `tensorlend ls`). Longer labels are cut to 63
    /// bytes. Default: the program's name.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(shortened(label));
        self
    }

    /// Protects this process from other processes of the same user. From the connection on, none of them can trace
    /// this process, read or write its memory, or take its descriptors (`PR_SET_DUMPABLE` is set to 0). Default: off.
    ///
    /// The setting applies to the whole process until it executes another program. It has costs: the process writes
    /// no core dumps, and only root can debug it. Libraries that share memory by `pidfd_getfd` fail (CUDA memory
    /// between `PyTorch` processes).
    ///
    /// ```
    /// let daemon = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket(daemon.socket()).harden(true).connect()?;
    /// assert_eq!(rustix::process::dumpable_behavior()?, rustix::process::DumpableBehavior::NotDumpable);
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harden(mut self, harden: bool) -> Self {
        self.harden = harden;
        self
    }

    /// Sets the timeout of requests to this machine's gateway by methods without a timeout: a [`Client::get`] of
    /// another machine's name, or a subscription to its stream. See [`crate::remote`]. Default: 60 seconds.
    pub fn remote_timeout(mut self, timeout: Duration) -> Self {
        self.remote_timeout = Some(timeout);
        self
    }

    /// Sets the time after which a request to a silent daemon fails with [`Error::NotAnswering`]. It applies to connecting
    /// and to every method that asks the daemon. Default: 30 seconds. Minimum: 1 millisecond.
    ///
    /// The client waits longer for a daemon that is only busy. At half the time, the client opens a second connection. The
    /// request fails only if the daemon does not respond on that connection either. Waits for a value or a message have
    /// their own timeouts.
    ///
    /// If the daemon has ended, a request waits for the next daemon for 5 seconds, or for this time if it is shorter. Then
    /// the request fails with [`Error::Disconnected`].
    ///
    /// The session survives both errors: when the daemon responds again, the client works again.
    ///
    /// ```
    /// let daemon = tensorlend_daemon::embedded()?;
    /// let second = std::time::Duration::from_secs(1);
    /// let client = tensorlend::Client::builder().socket(daemon.socket()).request_timeout(second).connect()?;
    /// client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Connects to the daemon and opens a session.
    ///
    /// Blocks for some round trips to the daemon, each at most [`ClientBuilder::request_timeout`] unless the daemon is
    /// busy.
    ///
    /// # Errors
    /// * [`Error::NoDaemon`] if no daemon listens on any of the sockets.
    /// * [`Error::NotAnswering`] if a daemon listens and does not respond.
    /// * [`Error::Name`] for an invalid namespace name.
    /// * [`Error::Refused`] for a daemon of another version, a namespace that this user may not join, or a limit.
    /// * [`Error::Kernel`] if this machine's kernel lacks a feature that tensorlend needs.
    /// * [`Error::System`] if the allocation log cannot be opened.
    pub fn connect(self) -> Result<Client> {
        tensorlend_os::kernel::check()?;
        // Protect the process before the daemon lends memory to it: another process could otherwise access this
        // memory.
        if self.harden {
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
                .map_err(|error| Error::System { doing: "harden this process", cause: error.into() })?;
        }
        let label = self.label.clone().unwrap_or_else(|| {
            let program = std::env::args_os().next().unwrap_or_default();
            shortened(&Path::new(&program).file_name().unwrap_or_default().to_string_lossy())
        });
        if let Some(namespace) = &self.namespace {
            check_name(namespace)?;
        }
        let instruments = self.instruments.clone().build()?;
        let open = |control| Session::open(control, self.namespace.clone(), label.clone(), instruments.clone());
        let session = match open(self.control()?) {
            // The daemon has ended since, because it was idle. The next attempt starts one.
            Err(Error::Disconnected { .. }) if self.sockets.is_empty() && !self.no_autostart => open(self.control()?)?,
            opened => opened?,
        };
        let callers = Arc::new(Callers::new(self.remote_timeout.unwrap_or(REMOTE_TIMEOUT)));
        Ok(Client { session, callers })
    }

    /// Connects to a daemon's socket, without a session.
    pub(crate) fn control(&self) -> Result<Control> {
        let sockets = if self.sockets.is_empty() { Sockets::default() } else { Sockets::named(self.sockets.clone()) };
        let sockets = if self.no_autostart { sockets.without_start() } else { sockets };
        let timeout = self.request_timeout.unwrap_or(REQUEST_TIMEOUT).max(Duration::from_millis(1));
        Control::connect(&sockets, timeout)
    }
}

/// A session with the daemon, in one namespace.
///
/// Clones share the session, and any thread may call any method at any time. Values that this client published
/// outlive it, unless their [`crate::Lifetime`] ends with the session.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// println!("namespace {} of tensorlendd {}", client.namespace(), client.daemon_version());
///
/// let same = client.clone();
/// std::thread::spawn(move || same.put("numbers", &[1.0f32, 2.0])).join().unwrap()?;
/// assert_eq!(client.get("numbers")?.shape(), [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Blocking
/// Overwriting a name of this client and getting a value whose memory is mapped are plain memory accesses, without
/// system calls or locks between processes. Methods that ask the daemon block for a round trip. These methods need
/// new memory, map another client's memory, take over or delete another client's name, or open streams, lists and
/// subscriptions.
/// Methods named `wait_…` and `recv…` block until their event or timeout.
///
/// # Errors
/// Any method can return these errors, so its own documentation does not list them again:
///
/// * [`Error::Name`] for a name that is not 1 to 255 bytes of UTF-8 without control characters.
/// * [`Error::Disconnected`] if the method needs the daemon and the daemon has ended.
/// * [`Error::NotAnswering`] if the daemon does not respond within [`ClientBuilder::request_timeout`].
/// * [`Error::SessionEnded`] after the daemon has ended this session.
/// * [`Error::Forked`] in the child of a fork: the session stays with the parent.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
    callers: Arc<Callers>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("namespace", &self.session.welcome.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the daemon at the default socket, in this user's private namespace.
    ///
    /// Blocks like [`ClientBuilder::connect`].
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// println!("the daemon responds in {:?}", client.ping()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`ClientBuilder::connect`].
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    /// Starts a connection with other options: socket, namespace, label, timeouts, instruments.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Returns a client of the same session that has its own callers of the gateway.
    pub(crate) fn without_callers(&self) -> Self {
        Self { session: self.session.clone(), callers: Arc::new(Callers::new(self.callers.timeout)) }
    }

    /// Returns whether `other` is a clone of this client. Then both use one session, so the drafts and leases of one may be
    /// used with the other.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let connect = || tensorlend::Client::builder().socket(daemon.socket()).connect();
    /// let client = connect()?;
    /// assert!(client.is_same(&client.clone()));
    /// assert!(!client.is_same(&connect()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    /// Returns the name of the namespace that this client has joined.
    pub fn namespace(&self) -> &str {
        &self.session.welcome.namespace
    }

    /// Returns the version of the shared memory layout that this client and its daemon use. It changes when a daemon of
    /// another version replaces the daemon.
    #[doc(hidden)]
    pub fn layout_version(&self) -> u32 {
        self.session.layout()
    }

    /// Returns the version of the daemon that opened this session, in the form of [`crate::build`].
    pub fn daemon_version(&self) -> &str {
        &self.session.welcome.daemon
    }
}

/// Maximum bytes of a label.
const LABEL_BYTES_MAX: usize = 63;

/// Returns a label, cut between characters to its maximum length.
fn shortened(label: &str) -> String {
    label[..label.floor_char_boundary(LABEL_BYTES_MAX)].to_owned()
}
