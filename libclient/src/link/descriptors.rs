//! Descriptors of what this client was lent for its own.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use tensorlend_layout::wire::Item;
use tensorlend_os::mutex::lock;

/// The session's descriptors, for a daemon that has lost them: see `session/reconnect.rs`. Those that can be written with count as
/// writers: what is given back goes from here first.
#[derive(Default)]
pub struct Descriptors(Mutex<BTreeMap<Item, OwnedFd>>);

impl Descriptors {
    /// Keeps one.
    pub fn insert(&self, item: Item, fd: OwnedFd) {
        self.lock().insert(item, fd);
    }

    /// Drops one.
    pub fn remove(&self, item: &Item) {
        self.lock().remove(item);
    }

    /// All of them, for several steps.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<Item, OwnedFd>> {
        lock(&self.0)
    }
}
