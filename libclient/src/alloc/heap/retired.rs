//! Retired slots, and the thresholds for the next scan of the leases on them.

use tensorlend_layout::word::Cell;

/// Minimum number of retired slots per scan, unless the byte cap is hit. With fewer slots, a scan costs too much per
/// slot.
const RETIRED_FEW: usize = 2;
/// Minimum number of retired slots that causes a scan.
const RETIRED_SLOTS_MIN: usize = 32;
/// Maximum scan time per retired slot, in nanoseconds. A longer scan raises the number of slots that causes the next
/// scan.
const SCAN_NS_PER_SLOT: u64 = 16;
/// Retired bytes that cause a scan, per nanosecond of the scan's duration.
const RETIRED_BYTES_PER_SCAN_NS: u64 = 2 << 10;
/// Minimum of the retired bytes that cause a scan. A producer that repeatedly overwrites this number of bytes keeps
/// them in the processor's cache.
const RETIRED_BYTES_MIN: u64 = 256 << 10;
/// Maximum of the retired bytes that cause a scan. It is the first number, or the segments' bytes divided by the second
/// number if that quotient is larger.
const RETIRED_BYTES_MAX: (u64, u64) = (8 << 20, 8);

/// Slots that no cell or ring entry holds any more, and on which readers may still hold leases.
pub struct Retired {
    slots: Vec<Cell>,
    bytes: u64,
    /// The number of slots at which the next scan runs. It is larger than the number that the last scan found leased.
    due_slots: usize,
    due_bytes: u64,
    /// The minimum number of slots with which `due_bytes` cause a scan. At `most_bytes`, a scan also runs with fewer
    /// slots.
    due_few: usize,
    most_bytes: u64,
    /// The retired bytes that cause the next scan, without those that the last scan found leased. `due_bytes` is the
    /// sum of both.
    enough_bytes: u64,
}

impl Default for Retired {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            bytes: 0,
            due_slots: RETIRED_SLOTS_MIN,
            due_bytes: RETIRED_BYTES_MIN,
            due_few: RETIRED_FEW,
            most_bytes: RETIRED_BYTES_MAX.0,
            enough_bytes: RETIRED_BYTES_MIN,
        }
    }
}

impl Retired {
    #[inline]
    pub fn push(&mut self, value: Cell, bytes: u64) {
        self.bytes += bytes;
        self.slots.push(value);
    }

    /// Returns whether enough values are retired for a scan.
    #[inline]
    pub fn is_due(&self) -> bool {
        let (slots, bytes) = (self.slots.len(), self.bytes);
        slots >= self.due_slots || bytes >= self.due_bytes && (slots >= self.due_few || bytes >= self.most_bytes)
    }

    /// Swaps the list of values with `slots`, which must be empty.
    pub fn take(&mut self, slots: &mut Vec<Cell>) {
        debug_assert!(slots.is_empty());
        std::mem::swap(&mut self.slots, slots);
        self.bytes = 0;
    }

    /// Sets the thresholds for the next scan. The last scan took about `scan_ns` nanoseconds, and found `count` values
    /// with `bytes` bytes still leased. `segment_bytes` is the total of the client's segments.
    pub fn schedule(&mut self, count: usize, bytes: u64, segment_bytes: u64, scan_ns: u64) {
        let bytes_max = RETIRED_BYTES_MAX.0.max(segment_bytes / RETIRED_BYTES_MAX.1);
        let enough_bytes = (scan_ns * RETIRED_BYTES_PER_SCAN_NS).clamp(RETIRED_BYTES_MIN, bytes_max);
        let enough_slots = (scan_ns / SCAN_NS_PER_SLOT) as usize;
        self.due_slots = count + enough_slots.max(RETIRED_SLOTS_MIN);
        self.due_bytes = bytes + enough_bytes;
        self.due_few = count + RETIRED_FEW;
        self.most_bytes = bytes + bytes_max;
        self.enough_bytes = enough_bytes;
    }

    /// Returns whether values wait, and `length` more bytes would not exceed the bytes that cause a scan.
    pub fn may_grow(&self, length: u64) -> bool {
        self.bytes > 0 && self.bytes + length <= self.enough_bytes
    }

    pub fn iter(&self) -> impl Iterator<Item = Cell> + '_ {
        self.slots.iter().copied()
    }
}
