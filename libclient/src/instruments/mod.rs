//! What watches this client's allocations: statistics, a log, a list of what is outstanding, a limit, and a callback
//! when memory runs short.
//!
//! An allocation begins when a slot leaves the heap and ends when it is back there, after its last reader. All
//! instruments hang on four calls: [`Instruments::are_off`] decides between the plain way to a slot and the watched one;
//! [`Instruments::allocated`] follows the heap, [`Instruments::freed`] comes before it, and [`Instruments::failed`]
//! instead of it. So no instrument sees the second life of a slot before the end of the first. Sizes are those of
//! extents: whole cache lines, whole pages from one page on, as in [`crate::MemoryUse::slot_bytes`].

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

use crate::error::Result;
use limit::Limit;
use log::{Action, Log};
use statistics::Frames;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use tensorlend_os::mutex::lock;
use tracking::Tracked;

/// Bits of [`Instruments::on`].
const STATISTICS: u32 = 1;
const LOG: u32 = 2;
const TRACKING: u32 = 4;
const LIMIT: u32 = 8;
const PRESSURE: u32 = 16;
/// With [`TRACKING`].
const BACKTRACES: u32 = 32;
/// Those that want to know of an allocation. The limit has counted it before.
const RECORDING: u32 = STATISTICS | LOG | TRACKING;

/// The instruments of one client.
#[derive(Default)]
pub struct Instruments {
    /// Which of them are on.
    on: AtomicU32,
    statistics: Mutex<Frames>,
    log: RwLock<Option<Log>>,
    tracking: Mutex<Tracked>,
    limit: Limit,
    pressure: Option<Callback>,
}

impl Instruments {
    /// Whether nothing watches: all that the instruments cost then.
    #[inline]
    pub fn are_off(&self) -> bool {
        // Relaxed: an instrument that is switched on sees what is allocated from some moment on.
        self.on.load(Ordering::Relaxed) == 0
    }

    /// A slot has left the heap, and nobody else knows of it yet.
    #[inline]
    pub fn allocated(&self, slot: u32, generation: u64, bytes: u64) {
        let on = self.on.load(Ordering::Relaxed);
        if on & RECORDING != 0 {
            self.record_allocated(on, slot, generation, bytes);
        }
    }

    /// A slot is about to go back to the heap.
    #[inline]
    pub fn freed(&self, slot: u32, generation: u64, bytes: u64) {
        let on = self.on.load(Ordering::Relaxed);
        if on & (RECORDING | LIMIT) != 0 {
            self.record_freed(on, slot, generation, bytes);
        }
    }

    /// There was no slot to be had.
    pub fn failed(&self, bytes: u64) {
        if self.has(LOG) {
            self.write_log(Action::Failure, 0, 0, bytes);
        }
    }

    #[cold]
    fn record_allocated(&self, on: u32, slot: u32, generation: u64, bytes: u64) {
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
    fn record_freed(&self, on: u32, slot: u32, generation: u64, bytes: u64) {
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

    fn write_log(&self, action: Action, slot: u32, generation: u64, bytes: u64) {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &*log {
            log.push(action, slot, generation, bytes);
        }
    }

    /// The limit, where there is one.
    pub fn limit(&self) -> Option<&Limit> {
        self.has(LIMIT).then_some(&self.limit)
    }

    /// What is outstanding, where that is tracked.
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

    /// Writes a log to `path` from now on; what another log has gathered is written first.
    pub fn start_log(&self, path: &Path) -> Result<()> {
        let before = self.stop_log();
        let log = Log::create(path)?;
        // One that another thread has started meanwhile ends here, after the lock.
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

impl Instruments {
    /// Begins to count, or ends it.
    pub fn enable_statistics(&self, on: bool) {
        let mut frames = lock(&self.statistics);
        if on {
            frames.enable();
        } else {
            frames.disable();
        }
        self.set(STATISTICS, !frames.open.is_empty());
    }

    /// What was counted since counting began.
    pub fn statistics(&self) -> Option<Statistics> {
        let frames = lock(&self.statistics);
        frames.sum(frames.whole?)
    }

    /// Begins a scope: its number.
    pub fn open_scope(&self) -> u64 {
        let mut frames = lock(&self.statistics);
        let id = frames.push();
        self.set(STATISTICS, true);
        id
    }

    /// What was counted in a scope.
    pub fn scope(&self, id: u64) -> Option<Statistics> {
        lock(&self.statistics).sum(id)
    }

    /// Ends a scope.
    pub fn close_scope(&self, id: u64) {
        let mut frames = lock(&self.statistics);
        frames.pop(id);
        self.set(STATISTICS, !frames.open.is_empty());
    }
}

impl std::fmt::Debug for Instruments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "instruments {:#b}", self.on.load(Ordering::Relaxed))
    }
}
