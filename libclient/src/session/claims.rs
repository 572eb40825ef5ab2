//! The session's claims on items of queues.

use std::collections::BTreeSet;
use std::sync::Mutex;
use tensorlend_layout::wire::{ASSERTED_MAX, QueueItem};
use tensorlend_os::mutex::lock;

/// The items of queues that a session has claimed, which it asserts when the daemon is replaced.
#[derive(Default)]
pub struct Claims(Mutex<BTreeSet<QueueItem>>);

impl Claims {
    pub fn add(&self, item: QueueItem) {
        lock(&self.0).insert(item);
    }

    pub fn remove(&self, item: QueueItem) {
        lock(&self.0).remove(&item);
    }

    /// Returns the claims to assert.
    pub fn asserted(&self) -> Vec<QueueItem> {
        lock(&self.0).iter().take(ASSERTED_MAX).copied().collect()
    }
}
