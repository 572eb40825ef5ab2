//! Instruments of this client's allocations: statistics, a log, a list of outstanding allocations, a limit, and a
//! callback when memory runs short.
//!
//! An allocation begins when a slot leaves the heap. It ends when the slot is back in the heap, after its last reader.
//! The instruments have four hooks. [`AllocationInstruments::are_off`] selects the plain or the watched path to a slot. The
//! allocator calls [`AllocationInstruments::allocated`] after the heap has handed a slot out, and [`AllocationInstruments::freed`] before
//! the heap gets a slot back. It calls [`AllocationInstruments::failed`] if there is no slot. So every instrument sees the end
//! of one allocation of a slot before the beginning of the next. Sizes are those of extents: whole cache lines, whole
//! pages from one page up, as in [`crate::MemoryUse::slot_bytes`].

mod limit;
mod log;
mod options;
mod pressure;
mod report;
mod statistics;
mod tracking;

pub use options::Options;
pub use pressure::{Callback, Names, Pressure, Relief, Silence};
pub use report::{Allocation, AllocationState, Outstanding};
pub use statistics::Statistics;
use tensorlend_layout::number::SlotNo;

use crate::error::Result;
use limit::Limit;
use log::{Action, Log};
use statistics::Frames;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use tensorlend_os::mutex::lock;
use tracking::Tracked;

/// Bits of [`AllocationInstruments::on`].
const STATISTICS: u32 = 1;
const LOG: u32 = 2;
const TRACKING: u32 = 4;
const LIMIT: u32 = 8;
const PRESSURE: u32 = 16;
/// Tracking with backtraces. This bit is set only together with [`TRACKING`].
const BACKTRACES: u32 = 32;
/// The instruments that record an allocation. [`LIMIT`] is not one of them: it counts the bytes before the allocation.
const RECORDING: u32 = STATISTICS | LOG | TRACKING;

#[derive(Default)]
pub struct AllocationInstruments {
    /// The bits of the active instruments.
    on: AtomicU32,
    statistics: Mutex<Frames>,
    log: RwLock<Option<Log>>,
    tracking: Mutex<Tracked>,
    limit: Limit,
    pressure: Option<Callback>,
}

impl AllocationInstruments {
    /// Returns whether no instrument is on. Without instruments, an allocation costs only this check.
    #[inline]
    pub fn are_off(&self) -> bool {
        // Relaxed: while an instrument is being switched on, it need not see the allocations of other threads.
        self.on.load(Ordering::Relaxed) == 0
    }

    /// Records that a slot has left the heap. No other thread knows the slot yet.
    #[inline]
    pub fn allocated(&self, slot: SlotNo, generation: u64, bytes: u64) {
        let on = self.on.load(Ordering::Relaxed);
        if on & RECORDING != 0 {
            self.record_allocated(on, slot, generation, bytes);
        }
    }

    /// Records that a slot is about to return to the heap.
    #[inline]
    pub fn freed(&self, slot: SlotNo, generation: u64, bytes: u64) {
        let on = self.on.load(Ordering::Relaxed);
        if on & (RECORDING | LIMIT) != 0 {
            self.record_freed(on, slot, generation, bytes);
        }
    }

    /// Records that no slot was available.
    pub fn failed(&self, bytes: u64) {
        if self.has(LOG) {
            self.write_log(Action::Failure, SlotNo::new(0), 0, bytes);
        }
    }

    #[cold]
    fn record_allocated(&self, on: u32, slot: SlotNo, generation: u64, bytes: u64) {
        if on & STATISTICS != 0 {
            lock(&self.statistics).allocated(bytes);
        }
        if on & TRACKING != 0 {
            tracking::allocated(&self.tracking, slot, generation, bytes, on & BACKTRACES != 0);
        }
        if on & LOG != 0 {
            self.write_log(Action::Allocate, slot, generation, bytes);
        }
    }

    #[cold]
    fn record_freed(&self, on: u32, slot: SlotNo, generation: u64, bytes: u64) {
        if on & LIMIT != 0 {
            self.limit.give(bytes);
        }
        if on & STATISTICS != 0 {
            lock(&self.statistics).freed(bytes);
        }
        if on & TRACKING != 0 {
            lock(&self.tracking).freed(slot, generation);
        }
        if on & LOG != 0 {
            self.write_log(Action::Free, slot, generation, bytes);
        }
    }

    fn write_log(&self, action: Action, slot: SlotNo, generation: u64, bytes: u64) {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &*log {
            log.push(action, slot, generation, bytes);
        }
    }

    pub fn limit(&self) -> Option<&Limit> {
        self.has(LIMIT).then_some(&self.limit)
    }

    /// Returns the outstanding allocations, if the client tracks them.
    pub fn tracked(&self) -> Option<&Mutex<Tracked>> {
        self.has(TRACKING).then_some(&self.tracking)
    }

    fn has(&self, bit: u32) -> bool {
        self.on.load(Ordering::Relaxed) & bit != 0
    }

    fn set(&self, bit: u32, on: bool) {
        if on {
            self.on.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.on.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Starts a log at `path`. First writes the events of a previous log.
    pub fn start_log(&self, path: &Path) -> Result<()> {
        let before = self.stop_log();
        let log = Log::create(path)?;
        // Another thread may have started a log in the meantime. That log ends when `_other` is dropped, after the lock
        // is released.
        let _other = self.log.write().unwrap_or_else(PoisonError::into_inner).replace(log);
        self.set(LOG, true);
        before
    }

    pub fn flush_log(&self) -> Result<()> {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        log.as_ref().map_or(Ok(()), Log::flush)
    }

    pub fn stop_log(&self) -> Result<()> {
        let mut place = self.log.write().unwrap_or_else(PoisonError::into_inner);
        self.set(LOG, false);
        let log = place.take();
        drop(place);
        log.map_or(Ok(()), |log| log.flush())
    }
}

impl AllocationInstruments {
    /// Starts or stops counting.
    pub fn enable_statistics(&self, on: bool) {
        let mut frames = lock(&self.statistics);
        if on {
            frames.enable();
        } else {
            frames.disable();
        }
        self.set(STATISTICS, !frames.open.is_empty());
    }

    /// Returns the counts since counting began.
    pub fn statistics(&self) -> Option<Statistics> {
        let frames = lock(&self.statistics);
        frames.sum(frames.whole?)
    }

    pub fn open_scope(&self) -> u64 {
        let mut frames = lock(&self.statistics);
        let id = frames.push();
        self.set(STATISTICS, true);
        id
    }

    pub fn scope(&self, id: u64) -> Option<Statistics> {
        lock(&self.statistics).sum(id)
    }

    pub fn close_scope(&self, id: u64) {
        let mut frames = lock(&self.statistics);
        frames.pop(id);
        self.set(STATISTICS, !frames.open.is_empty());
    }
}

impl std::fmt::Debug for AllocationInstruments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "instruments {:#b}", self.on.load(Ordering::Relaxed))
    }
}
