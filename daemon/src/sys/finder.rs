//! Look-ups of the configured users and groups. Each look-up runs on its own thread, so that a slow
//! name service does not delay the loop.

use super::limits;
use crate::config::{Config, ConfigError};
use crate::core::settings::{Mode, Settings};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tensorlend_os::thread;

/// A configuration whose users and groups must be looked up.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The configuration that this daemon applies. Options that need a restart have their old
    /// values.
    pub config: Config,
    pub mode: Mode,
    /// For a reload, the configuration in the file. It must also be valid, because the next daemon
    /// starts with it.
    pub file: Option<Config>,
}

/// The settings for the core, and a message for each unknown user or group. Or the reason why the
/// configuration is invalid.
pub type Resolved = Result<(Settings, Vec<String>), ConfigError>;

impl Lookup {
    /// Looks the users and groups up, and checks the configuration.
    pub fn resolve(&self) -> Resolved {
        if let Some(file) = &self.file {
            let in_file = |error: ConfigError| error.in_file(&file.source);
            limits::settings(file, limits::mode(file.mode)).map_err(in_file)?;
            limits::backing(file).map_err(in_file)?;
        }
        limits::settings_and_unknown(&self.config, self.mode)
    }
}

/// A look-up that has ended, and its result.
#[derive(Debug)]
pub struct Found {
    pub lookup: Lookup,
    /// The settings that the look-up has found, or the error.
    pub resolved: Resolved,
}

/// Runs look-ups, one at a time, each on its own thread. The daemon never waits for this thread,
/// even when the daemon ends.
pub struct Finder {
    bell: OwnedFd,
    results: (Sender<Found>, Receiver<Found>),
    /// Whether a look-up runs.
    running: bool,
    resolve: Arc<dyn Fn(&Lookup) -> Resolved + Send + Sync>,
}

impl Finder {
    /// Creates a finder without a running look-up.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, results: channel(), running: false, resolve: Arc::new(Lookup::resolve) })
    }

    /// Replaces the function that performs a look-up.
    #[cfg(test)]
    pub fn resolve_by(&mut self, resolve: impl Fn(&dyn Fn() -> Resolved) -> Resolved + Send + Sync + 'static) {
        self.resolve = Arc::new(move |lookup| resolve(&|| lookup.resolve()));
    }

    /// Returns an eventfd that becomes readable when a look-up ends.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns true while a look-up runs.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Starts a look-up. The caller ensures that no look-up is running.
    pub fn start(&mut self, lookup: Lookup) -> io::Result<()> {
        let bell = self.bell.try_clone()?;
        let (results, resolve) = (self.results.0.clone(), Arc::clone(&self.resolve));
        let run = move || {
            let resolved = resolve(&lookup);
            // An error means that the daemon has ended, so no thread needs the result.
            let _ = results.send(Found { lookup, resolved });
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        };
        thread::spawn("tensorlend-find", run)?;
        self.running = true;
        Ok(())
    }

    /// Returns the finished look-up and its result. Returns `None` if no look-up has finished.
    pub fn take(&mut self) -> Option<Found> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let found = self.results.1.try_recv().ok()?;
        self.running = false;
        Some(found)
    }
}
