//! Resolves unknown users and groups on a thread of its own, so that a slow name service does not delay the loop.

use super::limits;
use crate::config::Config;
use crate::core::settings::{Mode, Settings};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use tensorlend_os::thread;

/// The result of a lookup.
pub struct Found {
    /// The configuration that was resolved.
    pub config: Config,
    /// The settings for the core.
    pub settings: Settings,
    /// Users and groups that are still unknown.
    pub unknown: Vec<String>,
}

/// Runs one lookup at a time, each on a separate thread. The daemon never waits for that thread, not even at its end.
pub struct Finder {
    bell: OwnedFd,
    results: (Sender<Option<Found>>, Receiver<Option<Found>>),
    looks: bool,
}

impl Finder {
    /// Creates a finder without a running lookup.
    pub fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, results: channel(), looks: false })
    }

    /// Returns an eventfd that becomes readable when a lookup ends.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Starts a lookup, unless one is running.
    pub fn look(&mut self, config: Config, mode: Mode) {
        if self.looks {
            return;
        }
        let Ok(bell) = self.bell.try_clone() else { return };
        let results = self.results.0.clone();
        let look = move || {
            let found = limits::settings_and_unknown(&config, mode).ok();
            let found = found.map(|(settings, unknown)| Found { config, settings, unknown });
            // The channel is closed if the daemon has ended.
            let _ = results.send(found);
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
        };
        match thread::spawn("tensorlend-find", look) {
            Ok(_) => self.looks = true,
            Err(error) => tracing::warn!("starting a thread: {error}"),
        }
    }

    /// Returns the result of the finished lookup.
    pub fn take(&mut self) -> Option<Found> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        let found = self.results.1.try_recv().ok()?;
        self.looks = false;
        found
    }
}
