//! Descriptors of the memory that the daemon lent to this session as its owner.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use tensorlend_layout::wire::Item;
use tensorlend_os::mutex::lock;

/// The session's descriptors, to hand back to a daemon that has lost them (see `session/reconnect.rs`). A writable
/// descriptor counts as a writer, so a segment's descriptor leaves this map before the client returns the segment.
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
