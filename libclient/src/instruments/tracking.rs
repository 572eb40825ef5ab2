//! Tracking of outstanding allocations, with their ages and backtraces.

use super::report::{Allocation, AllocationState};
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tensorlend_layout::number::SlotNo;
use tensorlend_os::mutex::lock;

struct Entry {
    generation: u64,
    bytes: u64,
    since: Instant,
    backtrace: Option<Arc<Backtrace>>,
}

/// Slots that left the heap after tracking began, and that are not free again.
#[derive(Default)]
pub struct Tracked {
    entries: HashMap<SlotNo, Entry>,
}

/// Records an allocation. Captures the backtrace before taking the lock.
pub fn allocated(tracked: &Mutex<Tracked>, slot: SlotNo, generation: u64, bytes: u64, backtrace: bool) {
    let backtrace = backtrace.then(|| Arc::new(Backtrace::force_capture()));
    let entry = Entry { generation, bytes, since: Instant::now(), backtrace };
    lock(tracked).entries.insert(slot, entry);
}

impl Tracked {
    pub fn freed(&mut self, slot: SlotNo, generation: u64) {
        // The list does not contain slots that were taken before tracking began.
        if self.entries.get(&slot).is_some_and(|entry| entry.generation == generation) {
            self.entries.remove(&slot);
        }
    }

    pub fn list(&self) -> Vec<Allocation> {
        let list = self.entries.iter().map(|(&slot, entry)| Allocation {
            slot: slot.get(),
            generation: entry.generation,
            bytes: entry.bytes,
            age: entry.since.elapsed(),
            state: AllocationState::Draft,
            backtrace: entry.backtrace.clone(),
        });
        list.collect()
    }
}
