//! Freed slots whose extents are kept together, for the next tensor of the same size.

use tensorlend_layout::tensor::{ALIGN, PAGE};

/// Bytes that are kept.
const BYTES_MAX: u64 = 256 << 20;
/// Lengths up to a page: each has its own place.
const SMALL: usize = (PAGE / ALIGN) as usize;
/// Places for longer ones.
const LARGE: usize = 64;

/// Slots of one length.
#[derive(Default)]
struct Place {
    length: u64,
    slots: Vec<u32>,
}

/// What is kept. Longer lengths share places, and the newest one has its: lengths that come again find their slots, and
/// lengths that do not come again soon make way, so that their extents join with their neighbours.
pub struct Recent {
    places: Box<[Place; SMALL + LARGE]>,
    bytes: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { places: Box::new(std::array::from_fn(|_| Place::default())), bytes: 0 }
    }
}

#[inline]
fn place(length: u64) -> usize {
    if length <= PAGE {
        return (length / ALIGN) as usize - 1;
    }
    // Fibonacci hashing: the factor is 2^64 over the golden ratio.
    let hash = (length / PAGE).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    SMALL + (hash >> (64 - LARGE.ilog2())) as usize
}

impl Recent {
    /// Takes a slot whose extent has exactly this length: whole cache lines, not 0.
    #[inline]
    pub fn take(&mut self, length: u64) -> Option<u32> {
        let place = &mut self.places[place(length)];
        if place.length != length {
            return None;
        }
        let slot = place.slots.pop()?;
        self.bytes -= length;
        Some(slot)
    }

    /// Keeps a slot, if that costs no other one its place.
    #[inline]
    pub fn keep(&mut self, slot: u32, length: u64) -> bool {
        let place = &mut self.places[place(length)];
        if (place.length != length && !place.slots.is_empty()) || self.bytes + length > BYTES_MAX {
            return false;
        }
        place.length = length;
        place.slots.push(slot);
        self.bytes += length;
        true
    }

    /// What must be given up so that a slot is kept that [`Recent::keep`] did not keep: others, or that slot itself.
    #[cold]
    pub fn make_room(&mut self, slot: u32, length: u64) -> Vec<u32> {
        let place = &mut self.places[place(length)];
        let mut freed = Vec::new();
        if place.length != length {
            self.bytes -= place.length * place.slots.len() as u64;
            freed = std::mem::take(&mut place.slots);
        }
        if !self.keep(slot, length) {
            freed.push(slot);
        }
        freed
    }

    /// Gives up all of it.
    pub fn flush(&mut self) -> Vec<u32> {
        self.bytes = 0;
        self.places.iter_mut().flat_map(|place| std::mem::take(&mut place.slots)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back_for_its_own_length_only() {
        let mut recent = Recent::default();
        for (slot, length) in [(1, 64), (2, 4096), (3, 8192)] {
            assert!(recent.keep(slot, length));
        }
        assert_eq!(recent.take(128), None);
        assert_eq!(recent.take(12288), None);
        assert_eq!((recent.take(64), recent.take(64)), (Some(1), None));
        assert_eq!((recent.take(8192), recent.take(4096)), (Some(3), Some(2)));
        assert_eq!(recent.bytes, 0);
    }

    #[test]
    fn of_two_lengths_with_one_place_the_newer_is_kept() {
        let mut recent = Recent::default();
        let length = 2 * PAGE;
        let other = (3..1_000_000).map(|pages| pages * PAGE).find(|&l| place(l) == place(length)).unwrap();
        assert!(recent.keep(1, length) && recent.keep(2, length));
        assert!(!recent.keep(3, other));
        assert_eq!(recent.make_room(3, other), [1, 2]);
        assert_eq!((recent.take(length), recent.take(other)), (None, Some(3)));
        assert_eq!(recent.bytes, 0);
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let mut recent = Recent::default();
        assert!(recent.keep(1, BYTES_MAX));
        assert!(!recent.keep(2, 64));
        assert_eq!(recent.make_room(2, 64), [2]);
        assert!(!recent.keep(3, 2 * BYTES_MAX));
        assert_eq!(recent.flush(), [1]);
        assert!(recent.keep(2, 64));
    }
}
