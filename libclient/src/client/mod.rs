//! The client, and how it connects. What it can do stands with the nouns concerned, and in `api/`.

mod callers;

use crate::control::{Control, default_sockets};
use crate::error::{Error, Result, check_name};
use crate::instruments::Options;
use crate::session::Session;
use callers::Callers;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How to connect: to which daemon, into which namespace, under which label.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(broker.socket()).label("camera driver").connect()?;
/// client.put("exposure_ms", &[12.5f32])?;
/// assert_eq!(client.info("exposure_ms")?.label, "camera driver");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    sockets: Vec<PathBuf>,
    namespace: Option<String>,
    label: Option<String>,
    harden: bool,
    remote_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
    pub(crate) instruments: Options,
}

/// How long the daemon may say nothing, unless told otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request to the gateway may take, unless told otherwise.
const REMOTE_TIMEOUT: Duration = Duration::from_mins(1);

impl ClientBuilder {
    /// The daemon's socket; called more than once, the sockets are tried in that order. Default: `TENSORLEND_SOCKET`,
    /// else the user's daemon at `$XDG_RUNTIME_DIR/tensorlend.sock`, else the system's at
    /// `/run/tensorlend/tensorlend.sock`.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket("/nowhere").socket(broker.socket()).connect()?;
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.sockets.push(path.as_ref().to_owned());
        self
    }

    /// The namespace to join, as the daemon's configuration names it. Default: the private one of this user.
    ///
    /// ```
    /// # let user = rustix::process::getuid().as_raw();
    /// let config = format!("[namespace.robot]\nwriters = [\"{user}\"]");
    /// let broker = tensorlend_daemon::embedded_with(&tensorlend_daemon::Config::parse(&config)?)?;
    /// let client = tensorlend::Client::builder().socket(broker.socket()).namespace("robot").connect()?;
    /// assert_eq!(client.namespace(), "robot");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// What to call this client in listings: its first 63 bytes are kept. Default: the program's name.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(shortened(label));
        self
    }

    /// Whether to keep other processes of this user out of this one: from the connection on, none of them can trace it,
    /// read or write its memory, or take its descriptors (`PR_SET_DUMPABLE` is set to 0). This holds for the whole process
    /// until it executes another program, and has a price: no core dumps, no debugger that is not root's, and no library
    /// that shares memory by `pidfd_getfd` (CUDA's memory between `PyTorch` processes). Default: off.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket(broker.socket()).harden(true).connect()?;
    /// assert_eq!(rustix::process::dumpable_behavior()?, rustix::process::DumpableBehavior::NotDumpable);
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harden(mut self, harden: bool) -> Self {
        self.harden = harden;
        self
    }

    /// How long this machine's gateway may take for what is asked without a time: a [`Client::get`] of another machine's name, a
    /// subscription to its stream. See [`crate::remote`]. Default: 60 seconds.
    pub fn remote_timeout(mut self, timeout: Duration) -> Self {
        self.remote_timeout = Some(timeout);
        self
    }

    /// How long the daemon may say nothing before a request is given up with [`Error::NotAnswering`]: this holds for every
    /// method that asks the daemon, and for connecting. A daemon that is busy with the request is waited for: halfway, the
    /// client opens a second connection, and only a daemon that does not answer that one either is given up. Waits for a value or
    /// a message have times of their own. Default: 30 seconds; at least 1 millisecond.
    ///
    /// The session outlives it: when the daemon answers again, so does the client.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let second = std::time::Duration::from_secs(1);
    /// let client = tensorlend::Client::builder().socket(broker.socket()).request_timeout(second).connect()?;
    /// client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if no socket answers; [`Error::NotAnswering`] if a daemon listens and says nothing; [`Error::Name`] for a namespace that cannot be; [`Error::Refused`] for another version, a namespace that is not for
    /// this user, a limit; [`Error::Kernel`] if this machine's kernel lacks what tensorlend needs; [`Error::System`] if
    /// the allocation log cannot be opened.
    pub fn connect(self) -> Result<Client> {
        tensorlend_os::kernel::check()?;
        // Before anything is lent that somebody could reach for.
        if self.harden {
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
                .map_err(|error| Error::System { doing: "harden this process", cause: error.into() })?;
        }
        let sockets = if self.sockets.is_empty() { default_sockets() } else { self.sockets };
        let label = self.label.unwrap_or_else(|| {
            let program = std::env::args_os().next().unwrap_or_default();
            shortened(&Path::new(&program).file_name().unwrap_or_default().to_string_lossy())
        });
        if let Some(namespace) = &self.namespace {
            check_name(namespace)?;
        }
        let timeout = self.request_timeout.unwrap_or(REQUEST_TIMEOUT).max(Duration::from_millis(1));
        let session =
            Session::open(Control::connect(&sockets, timeout)?, self.namespace, label, self.instruments.build()?)?;
        let callers = Arc::new(Callers::new(self.remote_timeout.unwrap_or(REMOTE_TIMEOUT)));
        Ok(Client { session, callers })
    }
}

/// A session with the daemon, in one namespace. Clones share it; all methods may be called from any thread. What this
/// client published outlives it.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// println!("namespace {} of tensorlendd {}", client.namespace(), client.daemon_version());
///
/// let same = client.clone();
/// std::thread::spawn(move || same.put("numbers", &[1.0f32, 2.0])).join().unwrap()?;
/// assert_eq!(client.get("numbers")?.shape(), [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What any call can meet, and its own section does not repeat: [`Error::Name`] for a name that is not 1 to 255 bytes
/// of UTF-8 without control characters; where the daemon must be asked, [`Error::Disconnected`] if it is gone, and
/// [`Error::NotAnswering`] if it says nothing for the time of [`ClientBuilder::request_timeout`];
/// [`Error::SessionEnded`] once the daemon has ended this session; [`Error::Forked`] in the child of a fork, since the
/// session stays with the parent.
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
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// println!("the daemon answers in {:?}", client.ping()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    /// Connects in another way.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    /// The same session, without the ways to the gateway that this one has.
    pub(crate) fn without_callers(&self) -> Self {
        Self { session: self.session.clone(), callers: Arc::new(Callers::new(self.callers.timeout)) }
    }

    /// Whether it is a clone of the other: both have one session, and drafts and leases of one are the other's too.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let connect = || tensorlend::Client::builder().socket(broker.socket()).connect();
    /// let client = connect()?;
    /// assert!(client.is_same(&client.clone()));
    /// assert!(!client.is_same(&connect()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.session.welcome.namespace
    }

    /// The daemon's version.
    pub fn daemon_version(&self) -> &str {
        &self.session.welcome.daemon
    }
}

/// Bytes of a label that are kept.
const LABEL_BYTES_MAX: usize = 63;

/// A label as it is kept.
fn shortened(label: &str) -> String {
    label[..label.floor_char_boundary(LABEL_BYTES_MAX)].to_owned()
}
