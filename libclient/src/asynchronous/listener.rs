//! A wake descriptor in tokio's reactor.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tensorlend_os::thread::ClosedApart;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A wake descriptor, registered with tokio's reactor.
#[derive(Debug)]
pub struct Listener {
    reactor: AsyncFd<Arc<ClosedApart>>,
}

/// The state of a wake descriptor.
pub enum Woken {
    /// A peer has written to the descriptor.
    Written,
    /// The other end is closed: no process writes any more, and the descriptor stays readable.
    HungUp,
}

impl Listener {
    /// Registers the descriptor with the reactor of the current runtime, edge-triggered. Bytes that were readable
    /// before act as one edge.
    pub fn new(wake: &Arc<ClosedApart>) -> Result<Self> {
        // SAFETY: `register_with_interest` has two requirements while the `AsyncFd` lives.
        // 1. The descriptor must stay open and refer to the same file. The `AsyncFd` owns a share of the descriptor,
        //    which closes with its last share. No code exchanges its file, because this crate has no `dup2`.
        // 2. Every call of `as_raw_fd` must return the same number. An `Arc` always refers to the same descriptor,
        //    which never changes, and no code outside of this file can replace the `Arc`.
        let reactor = unsafe { AsyncFd::register_with_interest(wake.clone(), Interest::READABLE) };
        let reactor = reactor.map_err(|e| Error::system("listen to a wake descriptor")(e.into()))?;
        Ok(Self { reactor })
    }

    /// Returns whether this listener is for that descriptor.
    pub fn is_for(&self, wake: &Arc<ClosedApart>) -> bool {
        Arc::ptr_eq(self.reactor.get_ref(), wake)
    }

    /// Returns `Ready` when the descriptor has an event. The caller must handle the event and drain the descriptor
    /// before the next poll.
    pub fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<Result<Woken>> {
        let mut ready =
            ready!(self.reactor.poll_read_ready(cx)).map_err(Error::system("listen to a wake descriptor"))?;
        let woken = if ready.ready().is_read_closed() { Woken::HungUp } else { Woken::Written };
        // Clear the readiness before the caller drains the descriptor. Then a byte that arrives later makes the descriptor
        // ready again.
        ready.clear_ready();
        Poll::Ready(Ok(woken))
    }
}
