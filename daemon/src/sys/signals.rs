//! What the loop is told to do: by a signal, or by a word from the thread that owns an embedded broker.

use super::DaemonError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the loop is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To end.
    Stop,
    /// To read its configuration again.
    Reload,
}

/// Where orders come from: readable when there are some.
pub trait Orders: AsFd {
    /// The next of them.
    fn next(&self) -> Option<Order>;
}

/// SIGTERM and SIGINT, and SIGHUP, as something to wait for.
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
        set.add(Signal::SIGHUP);
        set.thread_block().map_err(failed)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self).map_err(failed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Orders for Signals {
    fn next(&self) -> Option<Order> {
        let signal = self.0.read_signal().ok().flatten()?;
        Some(if signal.ssi_signo == Signal::SIGHUP as u32 { Order::Reload } else { Order::Stop })
    }
}

/// A word from another thread: to end.
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

impl Orders for Stop {
    fn next(&self) -> Option<Order> {
        Some(Order::Stop)
    }
}
