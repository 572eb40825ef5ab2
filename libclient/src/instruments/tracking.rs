//! Which allocations are outstanding, since when, and from where.

use super::TRACKING;
use super::report::{Allocation, AllocationState, Outstanding};
use crate::session::Session;
use crate::sync::lock;
use std::backtrace::Backtrace;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tensorlend_layout::word::SLOT_NONE;

struct Entry {
    generation: u64,
    bytes: u64,
    since: Instant,
    backtrace: Option<Arc<Backtrace>>,
}

/// Slots that were taken since tracking began and are not free.
#[derive(Default)]
pub struct Tracked {
    entries: HashMap<u32, Entry>,
}

/// Notes an allocation. The backtrace is captured while the list is free for others.
pub fn allocated(tracked: &Mutex<Tracked>, slot: u32, generation: u64, bytes: u64, backtrace: bool) {
    let backtrace = backtrace.then(|| Arc::new(Backtrace::force_capture()));
    let entry = Entry { generation, bytes, since: Instant::now(), backtrace };
    lock(tracked).entries.insert(slot, entry);
}

impl Tracked {
    pub fn freed(&mut self, slot: u32, generation: u64) {
        // What was taken before tracking began is not listed.
        if self.entries.get(&slot).is_some_and(|entry| entry.generation == generation) {
            self.entries.remove(&slot);
        }
    }

    fn list(&self) -> Vec<Allocation> {
        let list = self.entries.iter().map(|(&slot, entry)| Allocation {
            slot,
            generation: entry.generation,
            bytes: entry.bytes,
            age: entry.since.elapsed(),
            state: AllocationState::Draft,
            backtrace: entry.backtrace.clone(),
        });
        list.collect()
    }
}

impl Session {
    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        if self.is_forked() || !self.instruments.has(TRACKING) {
            return None;
        }
        // In this order, as in `reclaim`, and together: so nothing moves from one to the other meanwhile.
        let round = lock(&self.reclaiming);
        let mut heap = lock(&self.heap);
        let mut allocations = lock(&self.instruments.tracking).list();
        let mut replaced = HashSet::new();
        for value in heap.waiting().collect::<Vec<_>>() {
            let mut slot = value.slot();
            while slot != SLOT_NONE && replaced.insert(slot) {
                slot = heap.look(slot).1;
            }
        }
        for it in &mut allocations {
            if replaced.contains(&it.slot) {
                it.state = AllocationState::Retired;
            } else if heap.look(it.slot).0 {
                it.state = AllocationState::Held;
            }
        }
        drop((heap, round));
        Some(Outstanding::new(allocations))
    }
}
