//! Retired slots, and the time of the next scan for leases on them.

use super::Heap;
use tensorlend_layout::word::Cell;

/// Minimum retired slots per scan, unless the byte cap is hit: fewer would each pay too much of a scan.
const RETIRED_FEW: usize = 2;
/// Minimum number of retired slots that cause a scan by their count, ...
const RETIRED_SLOTS_MIN: usize = 32;
/// ... raised with the scan's duration, so that each slot pays at most this much, ...
const SCAN_NS_PER_SLOT: u64 = 16;
/// ... or the retired bytes that cause a scan: this many for each nanosecond that it takes, ...
const RETIRED_BYTES_PER_SCAN_NS: u64 = 2 << 10;
/// ... at least as many as stay in a processor's cache when a producer overwrites them repeatedly, ...
const RETIRED_BYTES_MIN: u64 = 256 << 10;
/// ... and at most this many, or this part of the segments' bytes.
const RETIRED_BYTES_MAX: (u64, u64) = (8 << 20, 8);

/// Slots that no cell or ring entry holds any more, and that leases may still cover.
#[derive(Default)]
pub(super) struct Retired {
    slots: Vec<Cell>,
    bytes: u64,
    /// The next scan runs at this many slots: those that the last scan found leased, and enough more.
    due_slots: usize,
    due_bytes: u64,
    /// The least number of slots for a scan that bytes cause; at `most_bytes`, a scan runs in any case.
    due_few: usize,
    most_bytes: u64,
    /// The bytes beyond those still leased that cause the next scan; included in `due_bytes`.
    enough_bytes: u64,
}

impl Retired {
    pub(super) fn new() -> Self {
        Self {
            due_slots: RETIRED_SLOTS_MIN,
            due_bytes: RETIRED_BYTES_MIN,
            due_few: RETIRED_FEW,
            most_bytes: RETIRED_BYTES_MAX.0,
            enough_bytes: RETIRED_BYTES_MIN,
            ..Self::default()
        }
    }
}

impl Heap {
    /// Adds a value without a holder.
    #[inline]
    pub(super) fn push_retired(&mut self, value: Cell) {
        self.retired.bytes += self.chain_bytes(value.slot());
        self.retired.slots.push(value);
    }

    /// Notes that a cell or ring entry no longer holds this value. After its last holder, the value is retired until no
    /// lease covers it. Returns true if enough values are retired for a scan ([`Heap::retired`]).
    #[inline]
    pub fn retire(&mut self, value: Cell) -> bool {
        if !self.let_go(value) {
            return false;
        }
        self.push_retired(value);
        let Retired { bytes, due_slots, due_bytes, due_few, most_bytes, .. } = self.retired;
        let slots = self.retired.slots.len();
        slots >= due_slots || bytes >= due_bytes && (slots >= due_few || bytes >= most_bytes)
    }

    /// Hands out the retired values, in exchange for an empty vector.
    pub fn retired(&mut self, slots: &mut Vec<Cell>) {
        debug_assert!(slots.is_empty());
        std::mem::swap(&mut self.retired.slots, slots);
        self.retired.bytes = 0;
    }

    /// Puts back the values that are still leased. `scan_ns`: the approximate duration of the scan that found the
    /// leases.
    pub fn still_retired(&mut self, slots: impl Iterator<Item = Cell>, scan_ns: u64) {
        let (mut count, mut bytes) = (0, 0);
        for value in slots {
            count += 1;
            bytes += self.chain_bytes(value.slot());
            self.retired.slots.push(value);
        }
        self.retired.bytes += bytes;
        #[cfg(feature = "cuda")]
        let elsewhere = self.arenas.iter().map(|arena| arena.segment_bytes).sum::<u64>();
        #[cfg(not(feature = "cuda"))]
        let elsewhere = 0;
        let bytes_max = RETIRED_BYTES_MAX.0.max((self.segment_bytes + elsewhere) / RETIRED_BYTES_MAX.1);
        let enough_bytes = (scan_ns * RETIRED_BYTES_PER_SCAN_NS).clamp(RETIRED_BYTES_MIN, bytes_max);
        let enough_slots = (scan_ns / SCAN_NS_PER_SLOT) as usize;
        self.retired.due_slots = count + enough_slots.max(RETIRED_SLOTS_MIN);
        self.retired.due_bytes = bytes + enough_bytes;
        self.retired.due_few = count + RETIRED_FEW;
        self.retired.most_bytes = bytes + bytes_max;
        self.retired.enough_bytes = enough_bytes;
    }

    /// Whether to request a segment although retired values wait. Otherwise a client with little memory would scan for
    /// every few slots and never get more. It may get no more bytes than may be retired.
    pub fn may_grow(&self, length: u64) -> bool {
        !self.placement.anywhere && self.retired.bytes > 0 && self.retired.bytes + length <= self.retired.enough_bytes
    }

    /// The retired values.
    pub fn waiting(&self) -> impl Iterator<Item = Cell> + '_ {
        self.retired.slots.iter().copied()
    }
}
