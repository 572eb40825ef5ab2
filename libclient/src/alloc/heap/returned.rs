//! Segments that the client returns to the daemon, and the list of segments for the next daemon.

use super::{HOST, Heap, Memory, OwnSegment};
use tensorlend_layout::number::SlotNo;

/// A removed segment on its way to the daemon.
pub struct Returned(OwnSegment);

impl Heap {
    /// Removes a segment before the client returns it to the daemon. Returns `None` if the segment is in use again.
    pub fn remove(&mut self, base: SlotNo) -> Option<Returned> {
        let at = self.segments.binary_search_by_key(&base, |own| own.base).ok()?;
        if !self.segments[at].space.is_unused() {
            return None;
        }
        let own = self.segments.remove(at);
        *self.segment_bytes_of(own.place) -= own.memory.bytes();
        self.placement.anywhere = false;
        let newest = own.slots.iter().map(|s| s.generation).max().unwrap_or(0);
        self.generation_floor = self.generation_floor.max(newest);
        self.check_sometimes();
        Some(Returned(own))
    }

    /// Adds a segment again, because the daemon refused its return.
    pub fn put_back(&mut self, Returned(mut own): Returned) {
        // If the segment is still mapped, it serves drafts again: a concurrent release for spill did not find it here.
        if matches!(own.memory, Memory::Host(_)) {
            own.place = HOST;
        }
        self.insert(own);
    }

    /// Returns the first slots of all segments, and the first slots of the segments released for spill. The first value is
    /// `None` if there are more segments than a reconnecting client may list.
    pub fn bases(&self) -> (Option<Vec<SlotNo>>, Vec<SlotNo>) {
        if self.are_too_many() {
            return (None, Vec::new());
        }
        (Some(self.segments.iter().map(|own| own.base).collect()), self.released_bases().collect())
    }

    /// Returns whether there are more segments than a reconnecting client may list.
    pub(super) fn are_too_many(&self) -> bool {
        self.segments.len() > 4096
    }
}
