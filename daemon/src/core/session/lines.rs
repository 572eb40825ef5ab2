//! Lines of connections whose claims wait for queues.

use crate::core::account::NamespaceId;
use crate::core::event::ConnId;
use std::collections::{BTreeMap, VecDeque};

/// The connections whose claims wait for a queue, in the order of their requests.
#[derive(Debug, Default)]
pub struct Blocked {
    lines: BTreeMap<(NamespaceId, String), VecDeque<ConnId>>,
}

impl Blocked {
    /// Adds a connection whose claim waits for a queue.
    pub fn push(&mut self, namespace: NamespaceId, list: &str, conn: ConnId) {
        self.lines.entry((namespace, list.to_owned())).or_default().push_back(conn);
    }

    pub fn remove(&mut self, namespace: NamespaceId, list: &str, conn: ConnId) {
        let key = (namespace, list.to_owned());
        let Some(line) = self.lines.get_mut(&key) else { return };
        if line.front() == Some(&conn) {
            line.pop_front();
        } else {
            line.retain(|&it| it != conn);
        }
        if line.is_empty() {
            self.lines.remove(&key);
        }
    }

    /// Returns the first connection in a queue's line.
    pub fn first(&self, namespace: NamespaceId, list: &str) -> Option<ConnId> {
        self.lines.get(&(namespace, list.to_owned()))?.front().copied()
    }

    /// Returns each queue with the connections that wait for its items.
    pub fn lines(&self) -> impl Iterator<Item = (NamespaceId, &str, &VecDeque<ConnId>)> {
        self.lines.iter().map(|((id, list), line)| (*id, list.as_str(), line))
    }
}
