//! This client's own memory: slots from a heap of segments that the daemon lends.

mod extents;
mod fallbacks;
pub mod heap;
pub mod homes;
pub mod magazines;
mod memory;
#[cfg(feature = "cuda")]
mod on_device;
mod placement;
mod recent;
mod reclaim;
pub mod release;
pub mod taken;
mod watched;

use crate::error::Result;
use crate::instruments::{self, AllocationInstruments};
use crate::link::Link;
use crate::peers::PeerTable;
use crate::reused::boxed;
use heap::Heap;
use homes::{Arrival, Home};
use magazines::Magazines;
use reclaim::Reclaiming;
use release::Release;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use taken::Taken;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::Cell;
use tensorlend_os::mutex::lock;

/// The parts of the session that the allocator needs when memory is short. The supertrait deletes names for the program's
/// memory-pressure callback.
pub trait Outside: instruments::Names + Sized {
    /// Retires the values of names that the daemon has taken from this client.
    fn notices(&self) -> Result<()>;
    /// Retires the messages of closed streams that no subscriber can reach any more.
    fn retire_closed(&self);
}

/// The owner of this client's segments and of all their slots.
pub struct Allocator {
    link: Arc<Link>,
    peers: Arc<PeerTable>,
    instruments: Arc<AllocationInstruments>,
    heap: Mutex<Heap>,
    magazines: Magazines,
    /// A lock for the one thread that requests a segment of host memory.
    growing: Mutex<()>,
    /// True if this daemon has refused a release for spill, because it is not configured to spill.
    release_refused: AtomicBool,
    /// A lock for the one thread that releases segments for spill.
    release: Mutex<Release>,
    /// A lock for the one thread that reclaims slots for all threads of the client, until that thread has finished.
    reclaiming: Mutex<Reclaiming>,
    /// The number of pins in the heap, which threads can read without the heap's lock.
    pins: AtomicUsize,
}

impl Deref for Allocator {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Allocator {
    pub fn new(link: Arc<Link>, peers: Arc<PeerTable>, instruments: Arc<AllocationInstruments>) -> Self {
        Self {
            heap: Mutex::new(Heap::new(instruments.clone(), link.welcome.segment_bytes)),
            magazines: Magazines::new(link.shards.clone()),
            growing: Mutex::default(),
            release_refused: AtomicBool::new(false),
            release: Mutex::default(),
            reclaiming: Mutex::default(),
            pins: AtomicUsize::new(0),
            link,
            peers,
            instruments,
        }
    }

    /// Takes a slot of `bytes` bytes: from freed memory, from memory that can be reclaimed, or from a new segment.
    #[inline]
    pub fn take(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        // The slow paths are a separate function, so that the compiler can inline this fast path into the caller.
        match self.take_kept(bytes) {
            Some(taken) => Ok(taken),
            None if self.instruments.are_off() => self.take_unwatched(outside, bytes),
            None => self.take_watched(outside, bytes),
        }
    }

    /// Takes a slot of this length that a dropped draft left in this thread's magazine, if no instrument is on.
    #[inline]
    fn take_kept(&self, bytes: u64) -> Option<Box<Taken>> {
        if self.instruments.are_off() && !self.is_forked() { self.magazines.take(bytes) } else { None }
    }

    /// Retires a value like [`Allocator::retire`]. Then takes a slot of `bytes` bytes, if this client has a free one and no
    /// instrument is on. `spent` is the box of a slot that was handed over, for the new slot.
    #[inline]
    pub fn exchange(&self, retired: Option<Cell>, mut spent: Box<Taken>, bytes: u64) -> Option<Box<Taken>> {
        let mut heap = lock(&self.heap);
        if retired.is_some_and(|value| heap.retire(value)) {
            drop(heap);
            self.reclaim(false);
            heap = lock(&self.heap);
        }
        if !self.instruments.are_off() {
            return None;
        }
        *spent = heap.take(bytes)?;
        Some(spent)
    }

    /// Takes a slot like [`Allocator::take`], without informing the instruments.
    pub fn take_unwatched(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        self.check()?;
        tensorlend_layout::crash_point!("draft: memory looked for");
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(boxed(taken));
        }
        self.take_slowly(outside, bytes).inspect_err(|error| self.gave_up(error))
    }

    /// Removes a cell or ring entry as a holder of this value. A value without holders is freed when no lease covers
    /// it any more.
    #[inline]
    pub fn retire(&self, value: Cell) {
        let due = lock(&self.heap).retire(value);
        if due {
            self.reclaim(false);
        }
    }

    /// Chains `next` behind `slot`, so that both are freed together.
    #[inline]
    pub fn chain(&self, slot: SlotNo, next: SlotNo) {
        lock(&self.heap).chain(slot, next);
    }

    /// Adds a holder to a value. Returns false if the value's last holder has released it in the meantime.
    #[inline]
    pub fn hold_again(&self, value: Cell) -> bool {
        lock(&self.heap).hold_again(value)
    }

    /// Adds a holder to a value that moves from one name to another. Returns how the value may come to the name with the hash
    /// `to`; `None`: the value's last holder has released it in the meantime.
    pub fn hold_moved(&self, value: Cell, from: Home, to: u64) -> Option<Arrival> {
        lock(&self.heap).hold_moved(value, from, to)
    }

    /// Removes a holder of a value that no reader has seen. If this was the last holder, the slot is free at once.
    #[inline]
    pub fn take_back(&self, value: Cell) {
        if lock(&self.heap).let_go(value) {
            self.drop_slot(value.slot());
        }
    }

    /// Drops a slot that was never published.
    #[inline]
    pub fn drop_slot(&self, slot: SlotNo) {
        let unused = lock(&self.heap).drop_slot(slot);
        if let Some(base) = unused.segment() {
            self.return_idle(vec![base]);
        }
    }

    /// Drops a draft's slot, which was never published. The next draft on this thread may reuse the slot unchanged.
    #[inline]
    pub fn drop_taken(&self, taken: Box<Taken>) {
        if !self.instruments.are_off() || self.has_pins() {
            return self.drop_slot(taken.slot());
        }
        if let Some(taken) = self.magazines.keep(taken) {
            self.drop_unkept(taken.slot());
        }
    }

    /// Drops a slot that the instruments did not count.
    pub fn drop_unkept(&self, slot: SlotNo) {
        let unused = lock(&self.heap).release_dropped(slot);
        if let Some(base) = unused.segment() {
            self.return_idle(vec![base]);
        }
    }

    /// Pins a slot. From now on readers may map the slot, whatever happens to it.
    pub fn pin(&self, slot: SlotNo) {
        lock(&self.heap).pin(slot);
        // Relaxed: the thread that drops the draft received the draft from the thread that pinned it.
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a pin.
    pub fn unpin(&self, slot: SlotNo) {
        lock(&self.heap).unpin(slot);
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether any slot is pinned.
    #[inline]
    pub fn has_pins(&self) -> bool {
        self.pins.load(Ordering::Relaxed) != 0
    }

    /// Returns the bases of all segments, and of those released for spill. A new daemon needs them after the daemon
    /// was replaced.
    pub fn bases(&self) -> (Option<Vec<SlotNo>>, Vec<SlotNo>) {
        lock(&self.heap).bases()
    }

    /// Forgets the refusals of the former daemon.
    pub fn daemon_replaced(&self) {
        self.release_refused.store(false, Ordering::Relaxed);
    }
}

/// Takes a slot if another thread got a segment with room while this thread waited for `growing`. Otherwise calls `request`,
/// which requests a segment and holds `growing` until the segment serves drafts. So threads that find no room at the same time
/// request one segment, not one each.
fn take_or_request<T>(
    growing: MutexGuard<'_, ()>,
    take: impl FnOnce() -> Option<T>,
    request: impl FnOnce(MutexGuard<'_, ()>) -> Result<()>,
) -> Result<Option<T>> {
    match take() {
        Some(taken) => Ok(Some(taken)),
        None => request(growing).map(|()| None),
    }
}
