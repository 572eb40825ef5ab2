//! Freed slots that keep their extents for the next tensor of the same size.

use tensorlend_layout::number::SlotNo;
use tensorlend_layout::tensor::{ALIGN, PAGE};

/// Maximum bytes of the kept slots.
const BYTES_MAX: u64 = 256 << 20;
/// The number of bins for lengths up to a page: one bin for each length.
const SMALL: usize = (PAGE / ALIGN) as usize;
/// The number of bins for longer slots.
const LARGE: usize = 64;

/// The kept slots of one length.
#[derive(Default)]
struct Bin {
    length: u64,
    slots: Vec<SlotNo>,
    /// Another length that was requested from this bin. `again` states whether that length was requested twice.
    other: u64,
    again: bool,
}

/// The kept slots. Lengths above a page share bins. A bin keeps slots of one length: the last length that was requested
/// twice. So lengths that recur find their slots, and the extents of other lengths are coalesced at once.
pub struct Recent {
    places: Box<[Bin; SMALL + LARGE]>,
    bytes: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { places: Box::new(std::array::from_fn(|_| Bin::default())), bytes: 0 }
    }
}

#[inline]
fn place(length: u64) -> usize {
    if length <= PAGE {
        return (length / ALIGN) as usize - 1;
    }
    // Fibonacci hashing: the factor is 2^64 divided by the golden ratio.
    let hash = (length / PAGE).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    SMALL + (hash >> (64 - LARGE.ilog2())) as usize
}

impl Recent {
    /// Takes a slot whose extent has exactly this length. The length must be a multiple of the cache line and not 0.
    #[inline]
    pub fn take(&mut self, length: u64) -> Option<SlotNo> {
        let place = &mut self.places[place(length)];
        if place.length != length {
            place.again = place.other == length;
            place.other = length;
            return None;
        }
        let slot = place.slots.pop()?;
        self.bytes -= length;
        Some(slot)
    }

    /// Keeps a slot. Returns false if this is impossible: its bin holds slots of another length, or too many bytes
    /// are kept.
    #[inline]
    pub fn keep(&mut self, slot: SlotNo, length: u64) -> bool {
        let place = &mut self.places[place(length)];
        if place.length != length || self.bytes + length > BYTES_MAX {
            return false;
        }
        place.slots.push(slot);
        self.bytes += length;
        true
    }

    /// Makes room for a slot and keeps it, if its length recurs. Returns the slots that the caller must free: other slots,
    /// or this slot if it was not kept.
    #[cold]
    pub fn make_room(&mut self, slot: SlotNo, length: u64) -> Vec<SlotNo> {
        let place = &mut self.places[place(length)];
        let mut freed = Vec::new();
        let comes_again = length <= PAGE || (place.other == length && place.again);
        if place.length != length && comes_again {
            self.bytes -= place.length * place.slots.len() as u64;
            freed = std::mem::take(&mut place.slots);
            place.length = length;
        }
        if !self.keep(slot, length) {
            freed.push(slot);
        }
        freed
    }

    /// Returns the number of bytes of the kept slots.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes and returns all kept slots.
    pub fn flush(&mut self) -> Vec<SlotNo> {
        self.bytes = 0;
        self.places.iter_mut().flat_map(|place| std::mem::take(&mut place.slots)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps a slot of a length that recurs; returns the slots that make way for it.
    fn keep(recent: &mut Recent, slot: SlotNo, length: u64) -> Vec<SlotNo> {
        assert!(recent.take(length).is_none() && recent.take(length).is_none());
        if recent.keep(slot, length) { Vec::new() } else { recent.make_room(slot, length) }
    }

    #[test]
    fn a_slot_comes_back_for_its_own_length_only() {
        let mut recent = Recent::default();
        for (slot, length) in [(1, 64), (2, 4096), (3, 8192)] {
            assert!(keep(&mut recent, SlotNo::new(slot), length).is_empty());
        }
        assert_eq!(recent.take(128), None);
        assert_eq!(recent.take(12288), None);
        assert_eq!((recent.take(64), recent.take(64)), (Some(SlotNo::new(1)), None));
        assert_eq!((recent.take(8192), recent.take(4096)), (Some(SlotNo::new(3)), Some(SlotNo::new(2))));
        assert_eq!(recent.bytes, 0);
    }

    #[test]
    fn lengths_above_a_page_are_kept_from_the_second_time_on() {
        let mut recent = Recent::default();
        assert_eq!(recent.take(8192), None);
        assert!(!recent.keep(SlotNo::new(1), 8192));
        assert_eq!(recent.make_room(SlotNo::new(1), 8192), [1].map(SlotNo::new));
        assert_eq!(recent.take(8192), None);
        assert_eq!(recent.make_room(SlotNo::new(1), 8192), []);
        assert!(recent.keep(SlotNo::new(2), 8192));
        assert_eq!(
            (recent.take(8192), recent.take(8192), recent.take(8192)),
            (Some(SlotNo::new(2)), Some(SlotNo::new(1)), None)
        );
        assert_eq!(recent.make_room(SlotNo::new(3), 128), [], "each of the shorter ones has its place");
    }

    #[test]
    fn of_two_lengths_with_one_place_the_newer_is_kept() {
        let mut recent = Recent::default();
        let length = 2 * PAGE;
        let other = (3..10_000).map(|pages| pages * PAGE).find(|&l| place(l) == place(length)).unwrap();
        assert!(keep(&mut recent, SlotNo::new(1), length).is_empty() && recent.keep(SlotNo::new(2), length));
        assert_eq!(recent.take(other), None);
        assert_eq!(recent.make_room(SlotNo::new(3), other), [3].map(SlotNo::new), "it came only once");
        assert_eq!(keep(&mut recent, SlotNo::new(3), other), [1, 2].map(SlotNo::new));
        assert_eq!((recent.take(length), recent.take(other)), (None, Some(SlotNo::new(3))));
        assert_eq!(recent.bytes, 0);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut recent = Recent::default();
        assert!(keep(&mut recent, SlotNo::new(1), BYTES_MAX).is_empty());
        assert_eq!(keep(&mut recent, SlotNo::new(2), 64), [2].map(SlotNo::new));
        assert_eq!(keep(&mut recent, SlotNo::new(3), 2 * BYTES_MAX), [3].map(SlotNo::new));
        assert_eq!(recent.flush(), [1].map(SlotNo::new));
        assert!(keep(&mut recent, SlotNo::new(2), 64).is_empty());
    }
}
