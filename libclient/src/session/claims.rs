//! The session's claims on items of queues.

use std::collections::BTreeMap;
use std::sync::Mutex;
use tensorlend_layout::wire::{ASSERTED_MAX, QueueClaim, QueueItem};
use tensorlend_os::mutex::lock;

/// The claims of a session on items of queues. The session asserts them when the daemon is replaced. The map has the latest
/// claim on each item, by the claim's number. An earlier claim on the same item has ended, although its handle may still
/// exist.
#[derive(Default)]
pub struct Claims(Mutex<BTreeMap<QueueItem, u64>>);

impl Claims {
    pub fn add(&self, QueueClaim { item, grant }: QueueClaim) {
        lock(&self.0).insert(item, grant);
    }

    pub fn remove(&self, QueueClaim { item, grant }: QueueClaim) {
        let mut grants = lock(&self.0);
        if grants.get(&item) == Some(&grant) {
            grants.remove(&item);
        }
    }

    /// Returns the claims to assert: those in `unconfirmed`, then those of this map.
    pub fn asserted(&self, mut unconfirmed: Vec<QueueClaim>) -> Vec<QueueClaim> {
        unconfirmed.extend(lock(&self.0).iter().map(|(&item, &grant)| QueueClaim { item, grant }));
        unconfirmed.truncate(ASSERTED_MAX);
        unconfirmed
    }
}
