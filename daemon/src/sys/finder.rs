//! Resolves users and groups on a thread of its own, so that a slow name service does not delay the loop.

use super::limits;
use crate::config::{Config, ConfigError};
use crate::core::settings::{Mode, Settings};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tensorlend_os::thread;

/// A configuration whose users and groups are to be resolved.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The configuration for this daemon.
    pub config: Config,
    /// The daemon's mode.
    pub mode: Mode,
    /// For a reload, the configuration as the file has it: it must also be valid for the next daemon's start.
    pub file: Option<Config>,
}

/// The settings for the core, and a message for each unknown user or group; or the reason why the configuration is invalid.
pub type Resolved = Result<(Settings, Vec<String>), ConfigError>;

impl Lookup {
    /// Asks the name service, and checks the configuration.
    pub fn resolve(&self) -> Resolved {
        if let Some(file) = &self.file {
            limits::settings(file, limits::mode(file.mode))?;
            limits::backing(file)?;
        }
        limits::settings_and_unknown(&self.config, self.mode)
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub struct Found {
    /// The lookup that has ended.
    pub lookup: Lookup,
    /// The result.
    pub resolved: Resolved,
}

/// Runs one lookup at a time, each on a separate thread. The daemon never waits for that thread, not even at its end.
pub struct Finder {
    bell: OwnedFd,
    results: (Sender<Found>, Receiver<Found>),
    looks: bool,
    resolve: Arc<dyn Fn(&Lookup) -> Resolved + Send + Sync>,
}

impl Finder {
    /// Creates a finder without a running lookup.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, results: channel(), looks: false, resolve: Arc::new(Lookup::resolve) })
    }

    /// Replaces the name service.
    #[cfg(test)]
    pub fn resolve_by(&mut self, resolve: impl Fn(&dyn Fn() -> Resolved) -> Resolved + Send + Sync + 'static) {
        self.resolve = Arc::new(move |lookup| resolve(&|| lookup.resolve()));
    }

    /// Returns an eventfd that becomes readable when a lookup ends.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Returns true while a lookup runs.
    pub fn looks(&self) -> bool {
        self.looks
    }

    /// Starts a lookup. None may be running.
    pub fn look(&mut self, lookup: Lookup) -> io::Result<()> {
        let bell = self.bell.try_clone()?;
        let (results, resolve) = (self.results.0.clone(), Arc::clone(&self.resolve));
        let look = move || {
            let resolved = resolve(&lookup);
            // The channel is closed if the daemon has ended.
            let _ = results.send(Found { lookup, resolved });
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        };
        thread::spawn("tensorlend-find", look)?;
        self.looks = true;
        Ok(())
    }

    /// Returns the result of the finished lookup.
    pub fn take(&mut self) -> Option<Found> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let found = self.results.1.try_recv().ok()?;
        self.looks = false;
        Some(found)
    }
}
