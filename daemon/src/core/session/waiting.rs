//! Connections whose requests wait for a retry.

use crate::core::event::ConnId;
use std::collections::VecDeque;

/// Connections whose requests wait, in the order of their retries.
#[derive(Debug, Default)]
pub struct Waiting {
    conns: VecDeque<ConnId>,
    /// The first `untried` connections have not been retried since the last event.
    untried: usize,
}

impl Waiting {
    /// Adds a connection whose request has just been tried.
    pub fn push(&mut self, conn: ConnId) {
        self.conns.push_back(conn);
    }

    /// Removes a connection, if it is there.
    pub fn remove(&mut self, conn: ConnId) {
        if let Some(at) = self.conns.iter().position(|&it| it == conn) {
            self.conns.remove(at);
            self.untried -= usize::from(at < self.untried);
        }
    }

    /// Marks all requests for a retry.
    pub fn mark(&mut self) {
        self.untried = self.conns.len();
    }

    /// Removes and returns the next connection to retry.
    pub fn take_untried(&mut self) -> Option<ConnId> {
        self.untried = self.untried.checked_sub(1)?;
        self.conns.pop_front()
    }

    /// Returns true if requests are marked for a retry.
    pub fn has_untried(&self) -> bool {
        self.untried > 0
    }
}
