//! Slots of dropped drafts, kept by the thread that dropped them for its next drafts: neither a lock nor a
//! read-modify-write.
//!
//! Each thread with a shard of its own ([`Shards`]) has a magazine, which it touches inside a [`Section`] alone. Who wants
//! all of them back says so in `closed` and waits for the open sections to end: each section that begins later sees it and
//! leaves its magazine alone. To the heap such a slot is still the draft's: its generation and its one holder stay as they
//! are. The next draft may have both, for no reader ever saw them: a draft that is dropped was not published.
#![allow(unsafe_code)]

use crate::alloc::heap::{Taken, extent_bytes};
use crate::link::shards::{Section, Shards};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::SHARDS;
use tensorlend_os::mutex::lock;

/// Slots of one magazine.
const SLOTS: usize = 8;
/// A longer slot goes to the heap: beside filling it, a lock is nothing, and a thread that drafts no more keeps it from
/// nobody.
const LENGTH_MAX: usize = 1 << 20;
/// No slot has this length.
const NONE: usize = usize::MAX;

struct Magazine {
    /// Lengths of the slots, as their drafts asked for them.
    lengths: [usize; SLOTS],
    slots: [Option<Box<Taken>>; SLOTS],
    /// Which slot makes way for the next.
    oldest: usize,
}

impl Default for Magazine {
    fn default() -> Self {
        Self { lengths: [NONE; SLOTS], slots: [const { None }; SLOTS], oldest: 0 }
    }
}

/// A thread's magazine. Two lines apart, for the processor's prefetcher fetches pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line {
    /// Bytes of its slots; stored by its thread, or while closed, and read by anybody.
    bytes: AtomicU64,
    inside: UnsafeCell<Magazine>,
}

/// All threads' magazines.
pub struct Magazines {
    lines: Box<[Line]>,
    /// Whether somebody is taking everything back.
    closed: AtomicBool,
    /// Held by who does.
    closing: Mutex<()>,
    shards: Arc<Shards>,
}

// SAFETY: what `inside` holds can be sent; it is reached by one thread at a time, as `open` and `flush` argue.
unsafe impl Sync for Magazines {}

impl Magazines {
    pub fn new(shards: Arc<Shards>) -> Self {
        let lines = (0..SHARDS).map(|_| Line::default()).collect();
        Self { lines, closed: AtomicBool::new(false), closing: Mutex::new(()), shards }
    }

    /// This thread's magazine, for as long as the section lasts. `None`: it is being emptied.
    #[inline]
    fn open<'s>(&'s self, section: &'s mut Section<'_>) -> Option<(&'s AtomicU64, &'s mut Magazine)> {
        assert!(section.is_of(&self.shards), "a section of another session");
        let line = &self.lines[section.own_shard()?];
        // Acquire, from the Release of its end: what was done to the magazine while it was closed.
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: of all threads, only the owner of the shard comes here with this line, and a former owner's use came
        // before (shards change hands under a lock). It has no second reference: sections do not nest, and this one is
        // borrowed as long as the reference lives. Whoever closes waits, before it touches anything, for the end of
        // every section that found `closed` not set, and this one has not ended.
        Some((&line.bytes, unsafe { &mut *line.inside.get() }))
    }

    /// Takes a slot of a draft that asked for exactly so many bytes.
    #[inline]
    pub fn take(&self, length: u64) -> Option<Box<Taken>> {
        let mut section = self.shards.own_section()?;
        let (bytes, magazine) = self.open(&mut section)?;
        let at = magazine.lengths.iter().position(|&l| l as u64 == length)?;
        magazine.lengths[at] = NONE;
        // Relaxed: this thread alone stores it.
        bytes.store(bytes.load(Ordering::Relaxed) - extent(length), Ordering::Relaxed);
        magazine.slots[at].take()
    }

    /// Keeps the slot of a draft that was not published. What comes back is to be freed: that slot, or another.
    #[inline]
    pub fn keep(&self, taken: Box<Taken>) -> Option<Box<Taken>> {
        let length = taken.bytes.len();
        if length > LENGTH_MAX {
            return Some(taken);
        }
        let Some(mut section) = self.shards.own_section() else { return Some(taken) };
        let Some((bytes, magazine)) = self.open(&mut section) else { return Some(taken) };
        let mut sum = bytes.load(Ordering::Relaxed) + extent(length as u64);
        let at = magazine.lengths.iter().position(|&l| l == NONE).unwrap_or_else(|| {
            let oldest = magazine.oldest;
            magazine.oldest = (oldest + 1) % SLOTS;
            sum -= extent(magazine.lengths[oldest] as u64);
            oldest
        });
        magazine.lengths[at] = length;
        bytes.store(sum, Ordering::Relaxed);
        magazine.slots[at].replace(taken)
    }

    /// Bytes that are kept, about.
    pub fn bytes(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Takes everything back: numbers of slots. Never inside a section.
    pub fn flush(&self) -> Vec<u32> {
        let mut all = Vec::new();
        let _one = lock(&self.closing);
        self.closed.store(true, Ordering::SeqCst);
        self.shards.wait_for_sections();
        for line in &self.lines {
            // SAFETY: `closed` is set, and every section that began before that was seen has ended; the others keep
            // away. One thread at a time is here.
            let magazine = unsafe { &mut *line.inside.get() };
            magazine.lengths = [NONE; SLOTS];
            all.extend(magazine.slots.iter_mut().filter_map(Option::take).map(|taken| taken.slot()));
            line.bytes.store(0, Ordering::Relaxed);
        }
        // Release, to the Acquire of the sections that find it so.
        self.closed.store(false, Ordering::Release);
        all
    }
}

#[inline]
fn extent(length: u64) -> u64 {
    extent_bytes(length).map_or(0, |(extent, _)| extent)
}
