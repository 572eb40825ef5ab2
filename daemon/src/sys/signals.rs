//! Orders to the loop. An order comes from a signal, or from the thread that owns an embedded
//! daemon.

use super::DaemonError;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Stop,
    /// The daemon reads the configuration again.
    Reload,
}

/// A source of orders. Its descriptor is readable while an order is pending.
pub trait Orders: AsFd {
    /// Returns the next order. Returns `None` if no order is pending.
    fn next(&self) -> Option<Order>;
}

/// A signalfd for SIGTERM, SIGINT and SIGHUP.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals for this thread and for the threads that it starts later, and opens the signalfd.
    pub fn catch() -> Result<Self, DaemonError> {
        let failed = |error: nix::Error| DaemonError::System { what: "catching signals", error: error.into() };
        // SIGXFSZ is blocked. Otherwise a segment larger than the limit of file sizes (ulimit -f)
        // would end the daemon. With the signal blocked, only the call fails.
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

/// A stop order that another thread can give.
#[derive(Debug)]
pub struct Stop(OwnedFd);

impl Stop {
    /// Creates a stop order that is not yet given.
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
