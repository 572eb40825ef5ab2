//! Allocation while an instrument is on.

use super::{Allocator, Outside};
use crate::alloc::heap::extent_bytes;
use crate::alloc::taken::Taken;
use crate::error::{Error, Result};
use crate::instruments::{AllocationState, Outstanding, Relief};
use std::collections::HashSet;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_os::mutex::lock;

impl Allocator {
    /// Takes a slot like [`Allocator::take_unwatched`], within the memory limit, and records it. Before it fails, it
    /// calls the program's memory-pressure callback.
    #[cold]
    pub fn take_watched(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        self.check()?;
        let Some((length, _)) = extent_bytes(bytes) else { return self.take_unwatched(outside, bytes) };
        self.watch(outside, length, || self.take_unwatched(outside, bytes), |taken| taken.value)
    }

    /// Takes a slot of `length` bytes in host or device memory. `take` takes the slot, and `cell` returns its number and
    /// generation.
    pub fn watch<T>(
        &self,
        outside: &impl Outside,
        length: u64,
        take: impl Fn() -> Result<T>,
        cell: impl Fn(&T) -> Cell,
    ) -> Result<T> {
        let mut attempt = 0u32;
        let failed = loop {
            let error = match self.take_within_limit(outside, length, &take) {
                Ok(taken) => {
                    let value = cell(&taken);
                    self.instruments.allocated(value.slot(), value.generation(), length);
                    return Ok(taken);
                }
                Err(error) => error,
            };
            attempt = attempt.saturating_add(1);
            if !error.is_limit() || self.instruments.relief(outside, length, attempt, &error) == Relief::GiveUp {
                break error;
            }
        };
        self.instruments.failed(length);
        Err(failed)
    }

    fn take_within_limit<T>(&self, outside: &impl Outside, length: u64, take: impl Fn() -> Result<T>) -> Result<T> {
        let Some(limit) = self.instruments.limit() else { return take() };
        if limit.reserve(length).is_err() {
            // Retired values count against the limit until a scan frees them.
            outside.notices()?;
            outside.retire_closed();
            self.reclaim(true);
            limit.reserve(length).map_err(|used| Error::MemoryLimit {
                asked: length,
                used,
                limit: limit.bytes_max(),
            })?;
        }
        take().inspect_err(|_| limit.give(length))
    }

    /// Returns the outstanding allocations, if the client tracks them.
    pub fn outstanding(&self) -> Option<Outstanding> {
        if self.is_forked() {
            return None;
        }
        let tracked = self.instruments.tracked()?;
        // Take both locks, in the same order as `reclaim`, so that no slot moves from one list to the other in the
        // meantime.
        let round = lock(&self.reclaiming);
        let mut heap = lock(&self.heap);
        let mut allocations = lock(tracked).list();
        let mut replaced = HashSet::new();
        for value in heap.waiting().collect::<Vec<_>>() {
            let mut slot = value.slot();
            while slot != SLOT_NONE && replaced.insert(slot) {
                slot = heap.next_of(slot);
            }
        }
        for it in &mut allocations {
            if replaced.contains(&SlotNo::new(it.slot)) {
                it.state = AllocationState::Retired;
            } else if heap.is_sealed(SlotNo::new(it.slot)) {
                it.state = AllocationState::Held;
            }
        }
        drop((heap, round));
        Some(Outstanding::new(allocations))
    }
}
