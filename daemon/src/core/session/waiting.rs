//! Connections whose requests wait for a retry.

use crate::core::event::ConnId;
use std::collections::VecDeque;

/// Maximum number of delayed requests that one step retries. Each retry costs a bounded time, and many requests may wait for
/// the same event.
const RETRIES_MAX: usize = 64;

/// Connections whose requests wait. A step retries administrators' requests first.
#[derive(Debug, Default)]
pub struct Waiting {
    administrators: Queue,
    others: Queue,
    /// Number of requests that this step may still retry.
    left: usize,
}

/// Connections whose requests wait, in the order of their retries.
#[derive(Debug, Default)]
struct Queue {
    conns: VecDeque<ConnId>,
    /// Number of connections at the front of the queue that have not been retried since the last
    /// event.
    untried: usize,
}

impl Queue {
    fn remove(&mut self, conn: ConnId) {
        if let Some(at) = self.conns.iter().position(|&it| it == conn) {
            self.conns.remove(at);
            self.untried -= usize::from(at < self.untried);
        }
    }

    fn mark(&mut self) {
        self.untried = self.conns.len();
    }

    fn take_untried(&mut self) -> Option<ConnId> {
        self.untried = self.untried.checked_sub(1)?;
        self.conns.pop_front()
    }
}

impl Waiting {
    /// Begins a step, with a new allowance of retries.
    pub fn begin_step(&mut self) {
        self.left = RETRIES_MAX;
    }

    /// Adds a connection whose request has just been tried.
    pub fn push(&mut self, conn: ConnId, is_administrator: bool) {
        let queue = if is_administrator { &mut self.administrators } else { &mut self.others };
        queue.conns.push_back(conn);
    }

    /// Removes a connection from the queues. Does nothing if no request of the connection waits.
    pub fn remove(&mut self, conn: ConnId) {
        // The request may wait in either queue, because a reload may have changed whether its user
        // is an administrator.
        self.administrators.remove(conn);
        self.others.remove(conn);
    }

    /// Marks all requests for a retry.
    pub fn mark(&mut self) {
        self.administrators.mark();
        self.others.mark();
    }

    /// Removes and returns the next connection to retry. Returns `None` if this step retries no
    /// further request.
    pub fn next(&mut self) -> Option<ConnId> {
        self.left.checked_sub(1)?;
        // Half of the retries remain for other users, because administrators may have many clients.
        let first = if self.left > RETRIES_MAX / 2 { self.administrators.take_untried() } else { None };
        let next = first.or_else(|| self.others.take_untried()).or_else(|| self.administrators.take_untried());
        self.left -= usize::from(next.is_some());
        next
    }

    /// Returns true if requests are marked for a retry.
    pub fn has_untried(&self) -> bool {
        self.administrators.untried > 0 || self.others.untried > 0
    }
}
