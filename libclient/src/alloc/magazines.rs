//! Per-thread magazines: slots of dropped drafts that a thread keeps for its next drafts, without a lock or a
//! read-modify-write.
//!
//! Each thread with a shard of its own ([`Shards`]) has a magazine, which it uses only under an [`OwnGuard`]. A
//! thread that takes all slots back sets `closed` and waits for the open guards to close: a guard that opens later sees
//! `closed` and does not touch its magazine. The heap counts a kept slot as the draft's: its generation and its one
//! holder stay as they are. The next draft may reuse both, because no reader ever saw them: a dropped draft was not
//! published.
//!
//! [`OwnGuard`]: crate::link::epoch::OwnGuard
#![allow(unsafe_code)]

use crate::alloc::heap::{Taken, extent_bytes};
use crate::link::shards::Shards;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::SHARDS;
use tensorlend_os::mutex::lock;

/// Maximum number of slots in one magazine.
const SLOTS: usize = 8;
/// Maximum length of a slot in a magazine, in bytes. Longer slots go back to the heap: a lock costs nothing compared
/// with filling them, and an idle thread must not withhold them.
const LENGTH_MAX: usize = 1 << 20;
/// The length of an empty entry.
const NONE: usize = usize::MAX;

struct Magazine {
    /// Lengths of the slots in bytes, as their drafts requested them.
    lengths: [usize; SLOTS],
    slots: [Option<Box<Taken>>; SLOTS],
    /// The index of the slot that makes way for the next.
    oldest: usize,
}

impl Default for Magazine {
    fn default() -> Self {
        Self { lengths: [NONE; SLOTS], slots: [const { None }; SLOTS], oldest: 0 }
    }
}

/// A thread's magazine. Aligned to two cache lines, because the processor's prefetcher fetches pairs of lines.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    /// Bytes of the kept slots; stored by the owning thread (or by `flush` while closed), read by all.
    bytes: AtomicU64,
    inside: UnsafeCell<Magazine>,
}

/// All threads' magazines.
pub struct Magazines {
    lines: Box<[Line]>,
    /// Whether a thread is taking all slots back.
    closed: AtomicBool,
    /// Locked by the thread that takes all slots back.
    closing: Mutex<()>,
    shards: Arc<Shards>,
}

// SAFETY: the contents of `inside` are `Send`; one thread at a time reaches them, as `open` and `flush` show.
unsafe impl Sync for Magazines {}

impl Magazines {
    pub fn new(shards: Arc<Shards>) -> Self {
        let lines = (0..SHARDS).map(|_| Line::default()).collect();
        Self { lines, closed: AtomicBool::new(false), closing: Mutex::new(()), shards }
    }

    /// Calls `attempt` with this thread's magazine. `None`: the thread has none, or another thread is emptying it.
    #[inline(always)]
    fn open<R>(&self, attempt: impl FnOnce(&AtomicU64, &mut Magazine) -> R) -> Option<R> {
        let guard = self.shards.own_guard()?;
        let line = self.lines.get(guard.shard())?;
        // Acquire: pairs with the Release in `flush`, so that this thread sees the emptied magazine.
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: only the thread T that owns the shard uses this line, and the uses of a former owner came before (a
        // lock orders changes of ownership). T has no second reference: guards do not nest, and this reference ends
        // before the guard. A thread F that sets `closed` touches no magazine before it has waited for every guard that
        // saw `closed` unset, and T's guard is still open.
        Some(attempt(&line.bytes, unsafe { &mut *line.inside.get() }))
    }

    /// Takes a slot whose draft requested exactly this length.
    #[inline]
    pub fn take(&self, length: u64) -> Option<Box<Taken>> {
        let taken = self.open(|bytes, magazine| {
            let at = magazine.lengths.iter().position(|&l| l as u64 == length)?;
            magazine.lengths[at] = NONE;
            // Relaxed: only this thread stores it.
            bytes.store(bytes.load(Ordering::Relaxed) - extent(length), Ordering::Relaxed);
            magazine.slots[at].take()
        });
        taken.flatten()
    }

    /// Keeps the slot of a draft that was not published. Returns a slot that the caller must free: this slot, or an older one
    /// that made way for it.
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

    /// Takes the slots of all magazines; returns their numbers. Must not be called under a guard.
    pub fn flush(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let _one = lock(&self.closing);
        self.closed.store(true, Ordering::SeqCst);
        self.shards.wait_for_guards();
        for line in &self.lines {
            // SAFETY: `closed` is set, and every guard that opened before has closed; later guards do not touch their
            // magazines. The lock admits one thread at a time.
            let magazine = unsafe { &mut *line.inside.get() };
            magazine.lengths = [NONE; SLOTS];
            all.extend(magazine.slots.iter_mut().filter_map(Option::take).map(|taken| taken.slot()));
            line.bytes.store(0, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of the guards that see it unset.
        self.closed.store(false, Ordering::Release);
        all
    }
}

#[inline]
fn extent(length: u64) -> u64 {
    extent_bytes(length).map_or(0, |(extent, _)| extent)
}
