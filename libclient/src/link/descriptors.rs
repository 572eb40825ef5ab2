//! Descriptors of the memory that the daemon lent to this session as its owner.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use tensorlend_layout::wire::Item;
use tensorlend_os::mutex::lock;

/// The session's descriptors, for a new daemon that does not have them (see `session/reconnect.rs`). The kernel
/// counts a writable descriptor as a writer. So the client removes a segment's descriptor from this map before it
/// returns the segment.
#[derive(Default)]
pub struct Descriptors(Mutex<BTreeMap<Item, OwnedFd>>);

impl Descriptors {
    /// Keeps one descriptor.
    pub fn insert(&self, item: Item, fd: OwnedFd) {
        self.lock().insert(item, fd);
    }

    /// Drops one descriptor.
    pub fn remove(&self, item: &Item) {
        self.lock().remove(item);
    }

    /// Locks the map, for several steps.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Item, OwnedFd>> {
        lock(&self.0)
    }
}
