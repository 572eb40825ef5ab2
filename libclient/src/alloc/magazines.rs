//! Per-thread magazines: slots of dropped drafts that a thread keeps for its next drafts, without a lock or a
//! read-modify-write.
//!
//! Each thread with a shard of its own ([`Shards`]) has a magazine, which it uses only under an [`OwnGuard`]. A thread
//! F that empties all magazines sets `closed` and waits for the open guards to close. A thread whose guard opens later
//! sees `closed` and does not access its magazine. The heap still counts a kept slot as the draft's: its generation and
//! its one holder do not change. The next draft may reuse both, because the dropped draft was never published, so no
//! reader saw them.
//!
//! [`OwnGuard`]: crate::link::epoch::OwnGuard
#![allow(unsafe_code)]

use crate::alloc::heap::extent_bytes;
use crate::alloc::taken::Taken;
use crate::link::shards::Shards;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::SHARDS;
use tensorlend_layout::number::SlotNo;
use tensorlend_os::mutex::lock;

/// Maximum number of slots in one magazine.
const SLOTS: usize = 8;
/// Maximum length of a slot in a magazine, in bytes. Longer slots go back to the heap: its lock is cheap compared
/// with filling them, and an idle thread must not keep that much memory.
const LENGTH_MAX: usize = 1 << 20;
/// The length of an empty entry.
const NONE: usize = usize::MAX;

struct Magazine {
    /// Lengths of the slots in bytes, as their drafts requested.
    lengths: [usize; SLOTS],
    slots: [Option<Box<Taken>>; SLOTS],
    /// The index of the slot that the next slot replaces.
    oldest: usize,
}

impl Default for Magazine {
    fn default() -> Self {
        Self { lengths: [NONE; SLOTS], slots: [const { None }; SLOTS], oldest: 0 }
    }
}

/// A thread's magazine. It is aligned to two cache lines, because the processor's prefetcher fetches pairs of lines.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    /// Bytes of the kept slots. The owning thread stores this value, and so does `flush` while `closed` is set. All
    /// threads read it.
    bytes: AtomicU64,
    inside: UnsafeCell<Magazine>,
}

pub struct Magazines {
    lines: Box<[Line]>,
    /// True while a thread empties all magazines.
    closed: AtomicBool,
    /// A lock for the thread that empties all magazines.
    closing: Mutex<()>,
    shards: Arc<Shards>,
}

// SAFETY: the contents of `inside` are `Send`. One thread at a time accesses them: see the SAFETY comments in `open`
// and `flush`.
unsafe impl Sync for Magazines {}

impl Magazines {
    pub fn new(shards: Arc<Shards>) -> Self {
        let lines = (0..SHARDS).map(|_| Line::default()).collect();
        Self { lines, closed: AtomicBool::new(false), closing: Mutex::new(()), shards }
    }

    /// Calls `attempt` with this thread's magazine. Returns `None` if the thread has no magazine, or another thread
    /// is emptying it.
    #[inline(always)]
    fn open<R>(&self, attempt: impl FnOnce(&AtomicU64, &mut Magazine) -> R) -> Option<R> {
        let guard = self.shards.own_guard()?;
        let line = self.lines.get(guard.shard())?;
        // Acquire: pairs with the Release in `flush`, so that this thread sees its magazine empty.
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: only the thread T that owns the shard uses this magazine. The uses of a former owner came before,
        // because a lock orders changes of ownership. T has no second reference: guards do not nest, and this reference
        // ends before the guard. A thread F that sets `closed` accesses no magazine before it has waited for every
        // guard that saw `closed` unset, and T's guard is still open.
        Some(attempt(&line.bytes, unsafe { &mut *line.inside.get() }))
    }

    /// Takes a slot whose draft requested exactly this length.
    #[inline]
    pub fn take(&self, length: u64) -> Option<Box<Taken>> {
        let taken = self.open(|bytes, magazine| {
            let at = magazine.lengths.iter().position(|&l| l as u64 == length)?;
            magazine.lengths[at] = NONE;
            // Relaxed: this thread is the only one that stores this value here.
            bytes.store(bytes.load(Ordering::Relaxed) - extent(length), Ordering::Relaxed);
            magazine.slots[at].take()
        });
        taken.flatten()
    }

    /// Keeps the slot of a draft that was not published. Returns a slot that the caller must free: this slot, or an older
    /// one that this slot replaced.
    #[inline]
    pub fn keep(&self, taken: Box<Taken>) -> Option<Box<Taken>> {
        let length = taken.bytes.len();
        let mut slot = Some(taken);
        if length > LENGTH_MAX {
            return slot;
        }
        self.open(|bytes, magazine| {
            let mut sum = bytes.load(Ordering::Relaxed) + extent(length as u64);
            let at = magazine.lengths.iter().position(|&l| l == NONE).unwrap_or_else(|| {
                let oldest = magazine.oldest;
                magazine.oldest = (oldest + 1) % SLOTS;
                sum -= extent(magazine.lengths[oldest] as u64);
                oldest
            });
            magazine.lengths[at] = length;
            bytes.store(sum, Ordering::Relaxed);
            std::mem::swap(&mut magazine.slots[at], &mut slot);
        });
        slot
    }

    /// Returns the approximate bytes of the kept slots.
    pub fn bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Empties all magazines and returns the numbers of their slots. The caller must not hold a guard.
    pub fn flush(&self) -> Vec<SlotNo> {
        let mut all = Vec::new();
        let _one = lock(&self.closing);
        self.closed.store(true, Ordering::SeqCst);
        self.shards.wait_for_guards();
        for line in &self.lines {
            // SAFETY: `closed` is set, and every guard that opened before has closed. Threads with later guards do
            // not access their magazines. The lock admits one thread F at a time.
            let magazine = unsafe { &mut *line.inside.get() };
            magazine.lengths = [NONE; SLOTS];
            all.extend(magazine.slots.iter_mut().filter_map(Option::take).map(|taken| taken.slot()));
            line.bytes.store(0, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire load in `open`, by a thread that sees `closed` unset.
        self.closed.store(false, Ordering::Release);
        all
    }
}

#[inline]
fn extent(length: u64) -> u64 {
    extent_bytes(length).map_or(0, |(extent, _)| extent)
}
