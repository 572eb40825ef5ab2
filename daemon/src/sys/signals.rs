//! Orders to the loop: by a signal, or from the thread that owns an embedded daemon.

use super::DaemonError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An order to the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// End.
    Stop,
    /// Read the configuration again.
    Reload,
}

/// A source of orders, readable when there are some.
pub trait Orders: AsFd {
    /// Returns the next order.
    fn next(&self) -> Option<Order>;
}

/// A signalfd for SIGTERM, SIGINT and SIGHUP.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals for this thread and those that it starts later.
    pub fn catch() -> Result<Self, DaemonError> {
        let failed = |error: nix::Error| DaemonError::System { what: "catching signals", error: error.into() };
        // A segment above the limit of file sizes (ulimit -f) must fail, and not end the daemon: with the signal
        // blocked, the call returns an error.
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

/// A stop order from another thread.
#[derive(Debug)]
pub struct Stop(OwnedFd);

impl Stop {
    /// Creates an order that has not been given yet.
    pub fn new() -> Result<Self, DaemonError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Self).map_err(|error| DaemonError::System { what: "eventfd", error: error.into() })
    }

    /// Gives the order.
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
