//! The heap's invariants.

use super::{ArenaId, HOST, Heap, Own, RELEASED};

/// In debug builds, a heap checks itself once in this many segments that it gets or loses.
const SEGMENTS: u64 = 16;
/// In debug builds, a heap also checks itself once in this many values that it frees.
#[cfg(debug_assertions)]
const FREES: u64 = 256;

impl Heap {
    /// Checks the heap from time to time, in debug builds.
    pub(super) fn check_sometimes(&self) {
        if cfg!(debug_assertions) && self.lent.is_multiple_of(SEGMENTS) {
            self.check();
        }
    }

    /// Checks the heap from time to time after it freed a value, in debug builds.
    #[inline]
    pub(super) fn check_after_free(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.frees += 1;
            if self.frees.is_multiple_of(FREES) {
                self.check();
            }
        }
    }

    /// Checks that the segments have disjoint slot numbers, and that the sums of bytes agree: the extents of a segment's slots
    /// with the segment's free space, and the extents of all segments with the bytes that the heap counts.
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
            assert_eq!(self.sums(number as ArenaId + 1), arena.sums(), "bytes of arena {number}");
        }
    }

    /// Returns two numbers of bytes: of the extents, kept slots included, and of the segments.
    fn sums(&self, place: ArenaId) -> (u64, u64) {
        let here = || self.segments.iter().filter(|own| own.place == place);
        (here().map(Own::used_bytes).sum(), here().map(|own| own.memory.bytes()).sum())
    }
}
