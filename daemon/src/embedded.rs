//! A private daemon in a thread of this process.

use crate::config::{Config, ConfigError};
use crate::core::settings::Mode;
use crate::sys::{DaemonError, Devices, FdStore, Listener, Shell, Stop, limits, spill};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use tempfile::TempDir;
use tensorlend_os::fork;
use tensorlend_os::socket_file::{self, Found, Lock};

/// Prefix of the name of an embedded daemon's folder, followed by random letters; and the name of the socket.
const PREFIX: &str = "tensorlend-embedded-";
const SOCKET: &str = "tensorlend.sock";
const NAME_BYTES: usize = PREFIX.len() + 6;
/// Maximum number of folders that a starting daemon checks.
const SWEEP_MAX: usize = 256;

/// The reason why an embedded daemon could not start.
#[derive(thiserror::Error)]
#[error("cannot start an embedded daemon: {0}")]
pub struct EmbeddedError(#[from] DaemonError);

/// Prints the same text as `Display`: a `main` that returns this error, and `unwrap`, print with `Debug`.
impl std::fmt::Debug for EmbeddedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// Prints the same text as `Display`: a `main` that returns this error, and `unwrap`, print with `Debug`.
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

/// A running private daemon. Dropping it stops the thread and removes its socket; its clients are disconnected.
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

/// As [`embedded`], with a configuration, whose `socket`, `socket_mode` and `mode` are ignored.
pub fn embedded_with(config: &Config) -> Result<Embedded, EmbeddedError> {
    limits::check_system()?;
    fork::watch();
    let mut settings = limits::settings(config, Mode::User)?;
    spill::check(&settings)?;
    let devices = Devices::open(&config.cuda);
    devices.tell(&mut settings);
    let folder = folder()?;
    let socket = folder.path().join(SOCKET);
    let listener = Listener::bind(&socket, 0o600)?;
    let shell = Shell::new(listener, settings, (limits::backing(config)?, devices), (FdStore::default(), Vec::new()))?;
    let stop = Arc::new(Stop::new()?);
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("tensorlendd".into()).spawn(move || {
        // The log belongs to the program: the daemon writes nothing into it.
        let _silent = tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default());
        let _ = shell.run(&*stopped);
    });
    let thread = thread.map_err(|error| DaemonError::System { what: "starting a thread", error })?;
    Ok(Embedded { socket, stop, thread: Some(thread), folder: Some(folder), forks: fork::generation() })
}

/// Creates a folder that only this user can enter. Socket paths must be short: uses /tmp if TMPDIR is too long.
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

/// Removes the folders that this user's killed programs left. No other process removes them, and a killed program
/// cannot: most programs have no handler for SIGTERM.
///
/// A daemon creates its socket under the folder's lock, and listens before it releases the lock. So a socket without a
/// listener, seen under the lock, belongs to a dead daemon. A folder without a socket stays: a daemon may have just
/// created it.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    let is_ours =
        |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.len() == NAME_BYTES && name.starts_with(PREFIX));
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    for name in names.filter(|name| is_ours(name)).take(SWEEP_MAX) {
        let socket = base.join(&name).join(SOCKET);
        // On an error the folder belongs to another user, whose daemons remove it.
        if matches!(socket_file::inspect(&socket), Ok(Found::Stale)) && remove(&socket).is_ok_and(|removed| removed) {
            // Succeeds only if the folder is empty.
            let _ = std::fs::remove_dir(base.join(&name));
        }
    }
}

/// Takes the folder's lock, and removes the socket if it is stale. Returns false if it is not.
fn remove(socket: &Path) -> rustix::io::Result<bool> {
    let _lock = Lock::take(socket)?;
    socket_file::remove_stale(socket)
}

impl Embedded {
    /// Returns the control socket, for clients to connect to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // In a forked child the daemon belongs to the parent: it continues, and its socket stays.
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
