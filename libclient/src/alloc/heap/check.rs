//! Checks of the heap's invariants.

use super::{ArenaId, HOST, Heap, OwnSegment, RELEASED};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::size;

/// Number of segments that the heap gets or loses between two checks of itself, in debug builds.
const SEGMENTS: u64 = 16;
/// Number of values that the heap frees between two checks of itself, in debug builds.
#[cfg(debug_assertions)]
const FREES: u64 = 256;

impl Heap {
    /// Checks the heap once per `SEGMENTS` segments, in debug builds.
    pub(super) fn check_sometimes(&self) {
        if cfg!(debug_assertions) && self.lent.is_multiple_of(SEGMENTS) {
            self.check();
        }
    }

    /// Checks the heap once per `FREES` freed values, in debug builds.
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

    /// Checks that the segments have disjoint slot numbers, and that two sums of bytes are right. The extents of a segment's
    /// slots must fit the segment's free space. The extents of all segments must equal the bytes that the heap counts.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn check(&self) {
        let mut end = SlotNo::default();
        for own in &self.segments {
            assert!(own.base >= end, "the segments' numbers are disjoint and sorted");
            end = own.base + size::count(own.slots.len());
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
        for (number, arena) in (1..).zip(&self.arenas) {
            assert_eq!(self.sums(number), arena.sums(), "bytes of arena {number}");
        }
    }

    /// Returns two numbers of bytes: of the extents, including those of kept slots, and of the segments.
    fn sums(&self, place: ArenaId) -> (u64, u64) {
        let here = || self.segments.iter().filter(|own| own.place == place);
        (here().map(OwnSegment::used_bytes).sum(), here().map(|own| own.memory.bytes()).sum())
    }
}
