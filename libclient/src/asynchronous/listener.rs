//! A wake descriptor in tokio's reactor.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A wake descriptor, registered with tokio's reactor.
#[derive(Debug)]
pub struct Listener {
    reactor: AsyncFd<Arc<OwnedFd>>,
}

/// The state of a wake descriptor.
pub enum Woken {
    /// A peer has written to it.
    Written,
    /// The other end is closed: no process writes any more, and the descriptor stays readable.
    HungUp,
}

impl Listener {
    /// Registers the descriptor with the reactor of the current runtime, edge-triggered. Bytes that were readable
    /// before count as one edge.
    pub fn new(wake: &Arc<OwnedFd>) -> Result<Self> {
        // SAFETY: `register_with_interest` requires, as long as the `AsyncFd` lives,
        // 1. a descriptor that is open and of the same file: it owns a share of the `OwnedFd`, which closes with its
        //    last share and not before, and whose file no code exchanges (there is no `dup2` in this crate);
        // 2. the same number from every call of `as_raw_fd`: an `Arc` always refers to the same `OwnedFd`, which never
        //    changes, and no code outside of this file can replace the `Arc`.
        let reactor = unsafe { AsyncFd::register_with_interest(wake.clone(), Interest::READABLE) };
        let reactor = reactor.map_err(|e| Error::system("listen to a wake descriptor")(e.into()))?;
        Ok(Self { reactor })
    }

    /// Returns whether this listens to that descriptor.
    pub fn is_for(&self, wake: &Arc<OwnedFd>) -> bool {
        Arc::ptr_eq(self.reactor.get_ref(), wake)
    }

    /// Ready when the descriptor has an event. The caller handles the event and drains the descriptor before it polls
    /// again.
    pub fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<Result<Woken>> {
        let mut ready =
            ready!(self.reactor.poll_read_ready(cx)).map_err(Error::system("listen to a wake descriptor"))?;
        let woken = if ready.ready().is_read_closed() { Woken::HungUp } else { Woken::Written };
        // Clear the readiness before the caller drains the descriptor: a byte that arrives later then makes the descriptor
        // ready again.
        ready.clear_ready();
        Poll::Ready(Ok(woken))
    }
}
