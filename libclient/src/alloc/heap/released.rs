//! Segments that this client has released for spill, so that the daemon can move them to a file.
//!
//! A producer writes a slot only after the heap has handed the slot out and before the producer stores the generation in its
//! record ("seals" it). The producer never writes the slot again in the same generation. So the client can unmap a segment
//! whose slots in use are all sealed. Only readers use the bytes, and this client reads them through a mapping of its
//! own, like any other reader. The slots are retired and freed as before, which accesses no byte. When the last slot is
//! freed, the client returns the segment. The heap hands out no more slots in a released segment and never maps it for
//! writing again.

use super::{HOST, Heap, Memory, OwnSegment, RELEASED};
use crate::segment::pinned::PageLock;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::size;
use tensorlend_os::map::Segment;

/// The segments that a caller wants to release.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// All segments that can be released, because the daemon has refused memory.
    All,
    /// This number of bytes. Segments in which a slot was freed since the second-last segment was lent are excluded:
    /// their producer overwrites its values and will write there again.
    Cold(u64),
    /// The segment that begins at this slot, because the daemon wants it out of memory.
    Segment(SlotNo),
}

/// Bytes of slots in use, and bytes of segments.
#[derive(Clone, Copy, Default)]
pub struct Figures {
    pub used_bytes: u64,
    pub segment_bytes: u64,
}

impl OwnSegment {
    /// Returns the number of bytes of slots that are in use.
    pub(super) fn used_bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.capacity).sum()
    }

    /// Returns whether the producer has sealed the slot since the heap handed it out.
    pub(super) fn has_sealed(&self, slot: SlotNo) -> bool {
        let place = (slot - self.base) as usize;
        self.records[place].generation() == self.slots[place].generation
    }

    /// Returns whether all slots in use of the segment are sealed, so that no producer writes its bytes.
    fn is_sealed(&self) -> bool {
        let mut used = self.slots.iter().enumerate().filter(|(_, slot)| slot.capacity > 0);
        used.all(|(place, slot)| slot.holders > 0 && self.records[place].generation() == slot.generation)
    }
}

impl Heap {
    /// Releases the oldest suitable segment: all its slots in use are sealed, and more than half its bytes are in
    /// use. Returns its base and bytes. The segment is still mapped.
    pub fn release_for_spill(&mut self, wanted: Wanted) -> Option<(SlotNo, u64)> {
        let is_cold = |own: &OwnSegment| own.freed + 1 < self.lent;
        let is_wanted = |own: &OwnSegment| match wanted {
            Wanted::All => true,
            Wanted::Cold(bytes) => bytes > 0 && is_cold(own),
            Wanted::Segment(base) => own.base == base,
        };
        let host = self.segments.iter().enumerate().filter(|(_, own)| own.place == HOST);
        let mut oldest: Vec<(u64, usize)> =
            host.filter(|(_, own)| is_wanted(own)).map(|(at, own)| (own.space.age(), at)).collect();
        if oldest.is_empty() {
            return None;
        }
        // Free the slots that are kept for reuse, because they would count as in use.
        for slot in self.recent.flush() {
            self.free(slot);
        }
        let is_pinned = |own: &OwnSegment| {
            let end = own.base + size::count(own.slots.len());
            self.pins.range(own.base..end).next().is_some()
        };
        oldest.sort_unstable();
        let (at, used_bytes) = oldest.into_iter().find_map(|(_, at)| {
            let own = &self.segments[at];
            let used_bytes = own.used_bytes();
            let fits =
                used_bytes > own.memory.bytes() / 2 && !own.locked.is_locked() && !is_pinned(own) && own.is_sealed();
            fits.then_some((at, used_bytes))
        })?;
        self.move_to(at, RELEASED, used_bytes);
        let own = &self.segments[at];
        Some((own.base, own.memory.bytes()))
    }

    /// Reverts a release that the daemon refused.
    pub fn take_back(&mut self, base: SlotNo) {
        let Ok(at) = self.segments.binary_search_by_key(&base, |own| own.base) else { return };
        // The client may have returned the segment in the meantime. Then the base may belong to a new segment, which
        // is in use.
        if self.segments[at].place == RELEASED {
            let used_bytes = self.segments[at].used_bytes();
            self.move_to(at, HOST, used_bytes);
        }
    }

    fn move_to(&mut self, at: usize, place: super::ArenaId, used_bytes: u64) {
        let own = &mut self.segments[at];
        let (bytes, from) = (own.memory.bytes(), std::mem::replace(&mut own.place, place));
        for (place, add) in [(from, false), (place, true)] {
            let step = |figure: &mut u64, by: u64| *figure = if add { *figure + by } else { *figure - by };
            step(self.segment_bytes_of(place), bytes);
            step(if place == RELEASED { &mut self.released.used_bytes } else { &mut self.used_bytes }, used_bytes);
        }
    }

    /// Returns the released segments without a slot in use.
    pub fn unused_released(&self) -> Vec<SlotNo> {
        if self.released.segment_bytes == 0 { Vec::new() } else { self.unused(RELEASED) }
    }

    /// Returns the first slots of all released segments, if [`Heap::bases`] had too many to list.
    pub fn unreported(&self) -> Vec<SlotNo> {
        if self.are_too_many() { self.released_bases().collect() } else { Vec::new() }
    }

    /// Returns the first slots of the released segments.
    pub(super) fn released_bases(&self) -> impl Iterator<Item = SlotNo> + '_ {
        self.segments.iter().filter(|own| own.place == RELEASED).map(|own| own.base)
    }

    /// Removes the page lock and the mapping of a released segment. The caller must drop them in this order. Returns `None`
    /// if a thread has freed its last slot and returned the segment in the meantime.
    pub fn unmap(&mut self, base: SlotNo) -> Option<(PageLock, Segment)> {
        let at = self.segments.binary_search_by_key(&base, |own| own.base).ok()?;
        let own = &mut self.segments[at];
        if own.place != RELEASED {
            return None;
        }
        // A segment that was unmapped before stays unmapped. Device segments are never released.
        let released = Memory::Released(own.memory.bytes());
        let Memory::Host(map) = std::mem::replace(&mut own.memory, released) else { return None };
        Some((std::mem::take(&mut own.locked), map))
    }
}
