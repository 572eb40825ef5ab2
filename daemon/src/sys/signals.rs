//! What ends the loop: a signal, or a word from the thread that owns an embedded broker.

use super::DaemonError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// SIGTERM and SIGINT, as something to wait for.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them for this thread and those that it starts from now on.
    pub fn catch() -> Result<Self, DaemonError> {
        let failed = |error: nix::Error| DaemonError::System { what: "catching signals", error: error.into() };
        // A segment above the limit of file sizes (ulimit -f) shall be refused, and not end the daemon: with the signal
        // blocked, the call says so.
        let mut file_size = SigSet::empty();
        file_size.add(Signal::SIGXFSZ);
        file_size.thread_block().map_err(failed)?;
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block().map_err(failed)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self).map_err(failed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A word from another thread.
#[derive(Debug)]
pub struct Stop(OwnedFd);

impl Stop {
    /// Not said yet.
    pub fn new() -> Result<Self, DaemonError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Self).map_err(|error| DaemonError::System { what: "eventfd", error: error.into() })
    }

    /// Says it.
    pub fn say(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
