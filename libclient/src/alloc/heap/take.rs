//! Slots for new drafts, from the present segments.

use super::{HOST, Heap, Memory, Taken, extent_bytes, spaces};
use crate::segment::bytes::{Bytes, OwnRecord};
use tensorlend_layout::leases;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};

impl Heap {
    /// Takes a slot of `bytes` bytes from the present segments. After `None`, reclaim memory or request a segment.
    // Inlined, as is `hand_out`, because a caller that gets the slot through memory waits for the processor's store buffer.
    #[inline(always)]
    pub fn take(&mut self, bytes: u64) -> Option<Taken> {
        let (length, align) = extent_bytes(bytes)?;
        if let Some(slot) = self.recent.take(length) {
            return Some(self.hand_out(slot, bytes, length));
        }
        self.take_fresh(bytes, length, align)
    }

    #[cold]
    fn take_fresh(&mut self, bytes: u64, length: u64, align: u64) -> Option<Taken> {
        let at = self.placement.choose(spaces(&self.segments, HOST), length, align)?;
        let own = &mut self.segments[at];
        let (number, offset) = own.space.take(length, align)?;
        let slot = &mut own.slots[number as usize];
        (slot.offset, slot.capacity) = (offset, length);
        let slot = own.base + number;
        Some(self.hand_out(slot, bytes, length))
    }

    #[inline(always)]
    fn hand_out(&mut self, slot: SlotNo, bytes: u64, length: u64) -> Taken {
        self.used_bytes += length;
        // This thread fills the slot. Another thread may have scanned for leases and freed the slot under the heap's lock.
        leases::reuse_fence();
        let at = self.at(slot);
        let own = &mut self.segments[at];
        let place = (slot - own.base) as usize;
        let state = &mut own.slots[place];
        state.generation = next_generation(state.generation);
        (state.next, state.holders) = (SLOT_NONE, 1);
        let Memory::Host(map) = &own.memory else { unreachable!("handed out where it is not") };
        let bytes = Bytes::new(map, state.offset, bytes).expect("an extent lies in its segment");
        let record = OwnRecord::new(&own.records[place]);
        Taken { value: Cell::new(state.generation, slot), offset: state.offset, bytes, record }
    }
}
