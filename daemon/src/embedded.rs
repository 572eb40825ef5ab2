//! A private daemon in a thread of this process.

use crate::config::{Config, ConfigError, StoreAt};
use crate::core::settings::Mode;
use crate::sys::{DaemonError, Devices, FdStore, Listener, Shell, Stop, Supply, limits, spill};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tempfile::TempDir;
use tensorlend_os::fork;
use tensorlend_os::socket_file::{self, Found, Lock, Purpose};

/// Prefix of the name of an embedded daemon's directory (six random letters follow), and the name
/// of the socket in that directory.
const PREFIX: &str = "tensorlend-embedded-";
const SOCKET: &str = "tensorlend.sock";
const NAME_BYTES: usize = PREFIX.len() + 6;
/// Maximum number of directories that a starting daemon checks for stale sockets.
const SWEEP_MAX: usize = 256;

/// The reason why an embedded daemon could not start.
#[derive(thiserror::Error)]
#[error("cannot start an embedded daemon: {0}")]
pub struct EmbeddedError(#[from] DaemonError);

/// Prints the same text as `Display`, because `unwrap` and a `main` that returns this error print
/// errors with `Debug`.
impl std::fmt::Debug for EmbeddedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Prints the same text as `Display`, because `unwrap` and a `main` that returns this error print
/// errors with `Debug`.
impl std::fmt::Debug for DaemonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl EmbeddedError {
    /// Returns the error's stable code, which the manual's page on errors explains.
    pub fn code(&self) -> &'static str {
        "TL-0908"
    }
}

impl From<ConfigError> for EmbeddedError {
    fn from(error: ConfigError) -> Self {
        Self(error.into())
    }
}

/// A running private daemon. A drop of this value stops the thread, disconnects the daemon's
/// clients, and removes the socket.
#[derive(Debug)]
pub struct Embedded {
    socket: PathBuf,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
    folder: Option<TempDir>,
    forks: u64,
}

/// Starts a daemon in a thread of this process, with the default configuration, in user mode, on its own socket.
///
/// ```
/// let broker = tensorlend_daemon::embedded()?;
/// assert!(broker.socket().exists());
/// # Ok::<(), tensorlend_daemon::EmbeddedError>(())
/// ```
pub fn embedded() -> Result<Embedded, EmbeddedError> {
    embedded_with(&Config::default())
}

/// Starts a daemon like [`embedded`], with a configuration. The configuration's options
/// `socket_mode` and `mode` are ignored.
///
/// With the option `socket`, the daemon listens there, and stores its descriptors in an fd store: in the process that the
/// option `fd_store` names, or in one that this function starts (`tensorlendd --fd-store`, the program next to this one or in
/// PATH). The next daemon with the same `socket` continues with all tensors. Without one, the store ends after a minute.
/// Without `socket`, the daemon has a socket and memory of its own, which end with it.
///
/// # Errors
/// If the configuration is invalid, or a resource of the system is missing. Also if the process of `fd_store` does not
/// respond within ten seconds, or if `fd_store` is set without `socket`.
pub fn embedded_with(config: &Config) -> Result<Embedded, EmbeddedError> {
    limits::check_system()?;
    fork::watch();
    let mut settings = limits::settings(config, Mode::User)?;
    spill::check(&settings)?;
    let devices = Devices::open(&config.cuda);
    devices.tell(&mut settings);
    let endpoint = Endpoint::choose(config)?;
    let listener = Listener::bind(&endpoint.socket, 0o600)?;
    // The daemon listens already, so that no other daemon has this socket.
    let left = FdStore::connect(endpoint.store, Some(&endpoint.socket), Vec::new())?;
    let supply = Supply { backing: limits::backing(config)?, devices };
    // An embedded daemon must write nothing to the log of the program in which it runs.
    let silent = tracing::subscriber::NoSubscriber::default;
    let shell = tracing::subscriber::with_default(silent(), || Shell::new(listener, settings, supply, left))?;
    let stop = Arc::new(Stop::new()?);
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("tensorlendd".into()).spawn(move || {
        let _silent = tracing::subscriber::set_default(silent());
        let _ = shell.run(&*stopped);
    });
    let thread = thread.map_err(|error| DaemonError::System { what: "starting a thread", error })?;
    let Endpoint { folder, socket, .. } = endpoint;
    Ok(Embedded { socket, stop, thread: Some(thread), folder, forks: fork::generation() })
}

/// The socket of an embedded daemon, and its store.
struct Endpoint<'a> {
    folder: Option<TempDir>,
    socket: PathBuf,
    store: StoreAt<'a>,
}

impl<'a> Endpoint<'a> {
    fn choose(config: &'a Config) -> Result<Self, DaemonError> {
        let Some(socket) = config.socket.clone() else {
            if let StoreAt::Socket(_) = config.fd_store_at() {
                let text = "fd_store is set without socket: clients find the next daemon by the path of its socket";
                return Err(ConfigError::Value(text.into()).into());
            }
            let folder = folder()?;
            let socket = folder.path().join(SOCKET);
            return Ok(Self { folder: Some(folder), socket, store: StoreAt::None });
        };
        Ok(Self { folder: None, socket, store: config.fd_store_at() })
    }
}

/// Creates a directory that only this user can enter. The directory is in /tmp if TMPDIR is too
/// long for the path of a socket.
fn folder() -> Result<TempDir, DaemonError> {
    let mut base = std::env::temp_dir();
    if base.as_os_str().len() > 60 {
        base = "/tmp".into();
    }
    sweep(&base);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let made = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(base);
    made.map_err(|error| DaemonError::System { what: "making a temporary directory", error })
}

/// Removes the directories of this user's programs that were killed. Such a program cannot remove
/// its directory itself, and no other process does.
///
/// A daemon takes the directory's lock, creates its socket, listens, and then releases the lock. So
/// if this function holds the lock and finds a socket on which no process listens, the socket's
/// daemon is dead. A directory without a socket stays, because a daemon may have just created it.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let is_ours =
        |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.len() == NAME_BYTES && name.starts_with(PREFIX));
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    for name in names.filter(|name| is_ours(name)).take(SWEEP_MAX) {
        let socket = base.join(&name).join(SOCKET);
        // After an error the directory stays. It belongs to another user, whose daemons remove it.
        if matches!(socket_file::inspect(&socket), Ok(Found::Stale)) && remove(&socket).is_ok_and(|removed| removed) {
            // This succeeds only if the directory is empty.
            let _ = std::fs::remove_dir(base.join(&name));
        }
    }
}

/// Takes the directory's lock, and removes the socket if it is stale. Returns true if it has
/// removed the socket.
fn remove(socket: &Path) -> rustix::io::Result<bool> {
    let _lock = Lock::take(socket, Purpose::Bind)?;
    socket_file::remove_stale(socket)
}

impl Embedded {
    /// Returns the path of the control socket, for clients.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // A forked child must neither stop the daemon, whose thread runs only in the parent, nor
        // remove its socket.
        if self.forks != fork::generation() {
            self.folder.take().map(TempDir::keep);
            self.thread.take();
            return;
        }
        self.stop.say();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            debug_assert!(ended.is_ok() || std::thread::panicking(), "the broker's thread panicked");
        }
    }
}
