//! Looks for users and groups that could not be found, beside the loop: a name service may take as long as it likes.

use super::limits;
use crate::config::Config;
use crate::core::settings::{Mode, Settings};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use tensorlend_os::thread;

/// What was found: of which configuration, what the core is told, and who could still not be found.
pub struct Found {
    pub config: Config,
    pub settings: Settings,
    pub unknown: Vec<String>,
}

/// One look at a time, each by a thread of its own. It is not waited for, not even at the end.
pub struct Finder {
    bell: OwnedFd,
    results: (Sender<Option<Found>>, Receiver<Option<Found>>),
    looks: bool,
}

impl Finder {
    /// Nobody looks yet.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, results: channel(), looks: false })
    }

    /// Readable when a look is over.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Begins a look, unless one is under way.
    pub fn look(&mut self, config: Config, mode: Mode) {
        if self.looks {
            return;
        }
        let Ok(bell) = self.bell.try_clone() else { return };
        let results = self.results.0.clone();
        let look = move || {
            let found = limits::settings_and_unknown(&config, mode).ok();
            let found = found.map(|(settings, unknown)| Found { config, settings, unknown });
            // Nobody listens if the daemon has ended.
            let _ = results.send(found);
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        };
        match thread::spawn("tensorlend-find", look) {
            Ok(_) => self.looks = true,
            Err(error) => tracing::warn!("starting a thread: {error}"),
        }
    }

    /// What the look that is over has found.
    pub fn take(&mut self) -> Option<Found> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let found = self.results.1.try_recv().ok()?;
        self.looks = false;
        found
    }
}
