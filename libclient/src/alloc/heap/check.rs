//! The heap's invariants.

use super::{HOST, Heap, Own, Place, RELEASED};

/// In debug builds, a heap checks itself once in this many segments that it gets or loses.
const CHECK_EVERY: u64 = 16;

impl Heap {
    /// Checks the heap from time to time, in debug builds.
    pub(super) fn check_sometimes(&self) {
        if cfg!(debug_assertions) && self.lent.is_multiple_of(CHECK_EVERY) {
            self.check();
        }
    }

    /// Checks that the segments have disjoint numbers, and that the sums agree: the extents of a segment's slots with its
    /// free space, and those of all segments with the bytes that the heap counts.
    ///
    /// # Panics
    /// Panics if they disagree.
    pub fn check(&self) {
        let mut end = 0;
        for own in &self.segments {
            assert!(own.base >= end, "the segments' numbers are disjoint and sorted");
            end = own.base + own.slots.len() as u32;
            assert_eq!(
                own.used_bytes(),
                own.space.taken_bytes(),
                "each extent belongs to a slot of segment {}",
                own.base
            );
        }
        let host = self.used_bytes + self.recent.bytes();
        assert_eq!(self.sums(HOST), (host, self.segment_bytes), "bytes of host memory");
        let released = self.released;
        assert_eq!(self.sums(RELEASED), (released.used_bytes, released.segment_bytes), "bytes of released segments");
        #[cfg(feature = "cuda")]
        for (number, arena) in self.arenas.iter().enumerate() {
            assert_eq!(self.sums(number as Place + 1), arena.sums(), "bytes of arena {number}");
        }
    }

    /// Bytes of extents, kept slots included, and of segments.
    fn sums(&self, place: Place) -> (u64, u64) {
        let here = || self.segments.iter().filter(|own| own.place == place);
        (here().map(Own::used_bytes).sum(), here().map(|own| own.memory.bytes()).sum())
    }
}
