//! This client's own segments: the free slots, and the choice of the segment for a new slot.
//!
//! A freed slot keeps its extent for a while ([`Recent`]). So the next tensor of its size gets memory that is still
//! in the cache, without a search. Invariant of each segment: the extents handed out belong to the slots in use and
//! the slots in `recent`. A slot in a thread's magazine ([`crate::alloc::magazines`]) counts as in use here.

use crate::alloc::homes::{Arrival, Home, Homes};
use crate::alloc::placement::{Placement, Space};
use crate::alloc::recent::Recent;
use crate::alloc::taken::Taken;
use crate::instruments::AllocationInstruments;
use crate::segment::bytes::{Bytes, OwnRecord};
#[cfg(feature = "cuda")]
use crate::segment::map::DeviceMap;
use crate::segment::pinned::PageLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::leases;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::raw::Records;
use tensorlend_layout::tensor::{ALIGN, PAGE};
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};
use tensorlend_os::map::Segment;

#[cfg(feature = "cuda")]
pub mod arenas;
mod check;
mod released;
mod retired;
mod returned;
pub use released::Wanted;
use retired::Retired;

/// Returns the length and alignment of an extent for `bytes` bytes. Both are multiples of a cache line. From one page
/// up, of a page.
#[inline]
pub fn extent_bytes(bytes: u64) -> Option<(u64, u64)> {
    let align = if bytes >= PAGE { PAGE } else { ALIGN };
    Some((bytes.max(1).checked_next_multiple_of(align)?, align))
}

#[derive(Clone, Copy)]
struct Slot {
    generation: u64,
    offset: u64,
    /// Length of the extent in bytes. 0: the slot has no extent.
    capacity: u64,
    /// The next slot of the chain. All slots of a chain are freed together.
    next: SlotNo,
    /// The number of cells and ring entries that hold the slot. A draft counts as one holder, and the first cell or
    /// ring entry replaces the draft in this count.
    holders: u32,
}

/// The memory behind a segment.
enum Memory {
    Host(Segment),
    #[cfg(feature = "cuda")]
    Device(Arc<DeviceMap>),
    /// A segment released for spill, with its length in bytes. None of its bytes are mapped.
    Released(u64),
}

impl Memory {
    fn bytes(&self) -> u64 {
        match self {
            Self::Host(map) => map.bytes() as u64,
            #[cfg(feature = "cuda")]
            Self::Device(map) => map.bytes(),
            Self::Released(bytes) => *bytes,
        }
    }
}

struct OwnSegment {
    records: Records<SlotRecord>,
    /// The page lock, declared before the memory so that Rust drops it first: locked pages must be mapped.
    locked: PageLock,
    memory: Memory,
    space: Space,
    slots: Vec<Slot>,
    base: SlotNo,
    place: ArenaId,
    /// The value of [`Heap::lent`] when a slot of this segment was last freed.
    freed: u64,
}

/// The number of a memory location: [`HOST`], [`RELEASED`], or an arena's number + 1. Each segment has one location.
type ArenaId = u16;
/// Host memory, except the segments released for spill.
const HOST: ArenaId = 0;
/// Segments released for spill, see [`released`].
const RELEASED: ArenaId = ArenaId::MAX;

/// The result of [`Heap::release`].
pub enum Unused {
    /// No segment to return.
    Nothing,
    /// The segment with this base is idle, and the client has more idle bytes than it keeps.
    Segment(SlotNo),
}

impl Unused {
    /// Returns the base of the segment to return.
    #[inline]
    pub fn segment(self) -> Option<SlotNo> {
        match self {
            Self::Nothing => None,
            Self::Segment(base) => Some(base),
        }
    }
}

/// All segments of this client, in host and device memory. All slot numbers form one space. Each arena has its own
/// placement and reuse. The values for host memory are direct fields, which saves a lookup.
pub struct Heap {
    /// The segments, sorted by base.
    segments: Vec<OwnSegment>,
    placement: Placement,
    /// The segment in which the last slot in host memory was found. The next slot is usually in the same segment.
    last: usize,
    recent: Recent,
    #[cfg(feature = "cuda")]
    arenas: Vec<arenas::Arena>,
    retired: Retired,
    /// The number of pins on each pinned slot.
    pins: BTreeMap<SlotNo, u32>,
    /// The slots of renamed values, with the names that the values had.
    homes: BTreeMap<SlotNo, Homes>,
    /// Bytes of slots in use, in host memory.
    used_bytes: u64,
    /// Bytes of the segments in host memory.
    segment_bytes: u64,
    /// The used bytes and the segment bytes of the segments released for spill.
    released: released::Figures,
    /// The number of segments that the daemon has ever lent to this client.
    lent: u64,
    /// The number of values freed, which determines when the heap checks itself.
    #[cfg(debug_assertions)]
    frees: u64,
    /// Minimum generation of the slots of a new segment. It ensures that no pair (slot, generation) ever repeats.
    generation_floor: u64,
    /// The heap reports every freed slot to these instruments.
    instruments: Arc<AllocationInstruments>,
}

impl Heap {
    /// Creates an empty heap. `ordinary` is the length of the pool's ordinary segments in bytes.
    pub fn new(instruments: Arc<AllocationInstruments>, ordinary: u64) -> Self {
        Self {
            segments: Vec::new(),
            placement: Placement::new(ordinary),
            last: 0,
            recent: Recent::default(),
            #[cfg(feature = "cuda")]
            arenas: Vec::new(),
            retired: Retired::default(),
            pins: BTreeMap::new(),
            homes: BTreeMap::new(),
            used_bytes: 0,
            segment_bytes: 0,
            released: released::Figures::default(),
            lent: 0,
            #[cfg(debug_assertions)]
            frees: 0,
            generation_floor: 0,
            instruments,
        }
    }

    /// Returns the segment to request for a slot of `length` bytes, as its bytes and the log2 of its number of slots.
    pub fn wanted(&self, length: u64) -> (u64, u8) {
        self.placement.wanted(spaces(&self.segments, HOST), length)
    }

    /// Returns the segments that the client should return before it requests a segment for `length` bytes.
    pub fn make_way(&self, length: u64) -> Vec<SlotNo> {
        let gone = self.placement.make_way(spaces(&self.segments, HOST), length);
        gone.into_iter().map(|at| self.segments[at].base).collect()
    }

    /// Returns whether slots of this length have segments of their own, separate from those of longer slots.
    pub fn is_small(&self, length: u64) -> bool {
        self.placement.is_small(length)
    }

    /// Records that the daemon has no more memory: slots go into any segment until a segment is added or removed.
    pub fn set_anywhere(&mut self) {
        self.placement.anywhere = true;
    }

    /// Adds a segment that the daemon has lent for a slot of `length` bytes.
    pub fn add(&mut self, base: SlotNo, length: u64, locked: PageLock, map: Segment, records: Records<SlotRecord>) {
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        let space = Space::new(map.bytes() as u64, records.len(), self.is_small(length), self.lent);
        let slots = vec![slot; records.len()];
        self.insert(OwnSegment {
            records,
            locked,
            memory: Memory::Host(map),
            space,
            slots,
            base,
            place: HOST,
            freed: 0,
        });
        self.lent += 1;
    }

    fn insert(&mut self, own: OwnSegment) {
        *self.segment_bytes_of(own.place) += own.memory.bytes();
        self.placement.anywhere = false;
        let at = self.segments.partition_point(|s| s.base < own.base);
        self.segments.insert(at, own);
        self.check_sometimes();
    }

    fn segment_bytes_of(&mut self, place: ArenaId) -> &mut u64 {
        match place {
            HOST => &mut self.segment_bytes,
            RELEASED => &mut self.released.segment_bytes,
            #[cfg(feature = "cuda")]
            other => &mut self.arenas[usize::from(other) - 1].segment_bytes,
            #[cfg(not(feature = "cuda"))]
            _ => unreachable!("there is no other place"),
        }
    }

    /// Returns the index of the segment that holds a slot of this client.
    #[inline]
    fn at(&mut self, slot: SlotNo) -> usize {
        let holds = |own: &OwnSegment| slot.is_of(own.base, own.slots.len());
        if !self.segments.get(self.last).is_some_and(holds) {
            let after = self.segments.partition_point(|s| s.base <= slot);
            assert!(after > 0 && holds(&self.segments[after - 1]), "slot {slot} is not of this client");
            if self.segments[after - 1].place != HOST {
                return after - 1;
            }
            self.last = after - 1;
        }
        self.last
    }

    #[inline]
    fn slot(&mut self, slot: SlotNo) -> &mut Slot {
        let at = self.at(slot);
        let own = &mut self.segments[at];
        &mut own.slots[(slot - own.base) as usize]
    }

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

    /// Chains `next` behind `slot`, so that both are freed together.
    pub fn chain(&mut self, slot: SlotNo, next: SlotNo) {
        self.slot(slot).next = next;
    }

    /// Adds a holder to a value. Returns false if the value's last holder has released it in the meantime.
    pub fn hold_again(&mut self, value: Cell) -> bool {
        let slot = self.slot(value.slot());
        let held = slot.generation == value.generation() && slot.holders > 0;
        slot.holders += u32::from(held);
        held
    }

    /// Adds a holder to a value that moves from one name to another, as [`Heap::hold_again`] does. Returns how the value may
    /// come to the name with the hash `to`; `None`: the value's last holder has released it.
    pub fn hold_moved(&mut self, value: Cell, from: Home, to: u64) -> Option<Arrival> {
        self.hold_again(value).then(|| self.homes.entry(value.slot()).or_default().leave(from, to))
    }

    /// Removes a holder. Returns true if it was the last, so that no cell or ring entry refers to the slot any more.
    #[inline]
    pub fn let_go(&mut self, value: Cell) -> bool {
        let slot = self.slot(value.slot());
        debug_assert_eq!(slot.generation, value.generation(), "let go of another life");
        slot.holders -= 1;
        slot.holders == 0
    }

    /// Removes a cell or ring entry as a holder of this value. When the last holder is removed, the value is retired
    /// until no lease covers it. Returns true if enough values are retired for a scan.
    #[inline]
    pub fn retire(&mut self, value: Cell) -> bool {
        if !self.let_go(value) {
            return false;
        }
        let bytes = self.chain_bytes(value.slot());
        self.retired.push(value, bytes);
        self.retired.is_due()
    }

    /// Frees a slot that was never published, with its chain. If one of them is pinned, retires the chain instead.
    #[inline]
    pub fn drop_slot(&mut self, slot: SlotNo) -> Unused {
        if !self.is_pinned(slot) {
            return self.release(slot);
        }
        let state = self.slot(slot);
        state.holders = 0;
        let value = Cell::new(state.generation, slot);
        let bytes = self.chain_bytes(slot);
        self.retired.push(value, bytes);
        Unused::Nothing
    }

    /// Pins a slot. From now on readers may map the slot, whatever happens to the slots chained to it.
    pub fn pin(&mut self, slot: SlotNo) {
        *self.pins.entry(slot).or_default() += 1;
    }

    /// Removes a pin.
    pub fn unpin(&mut self, slot: SlotNo) {
        if let Entry::Occupied(mut pins) = self.pins.entry(slot) {
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        }
    }

    /// Returns whether a slot or one chained to it is pinned: a dataset's members were drafts that may be pinned.
    #[inline]
    pub fn is_pinned(&mut self, slot: SlotNo) -> bool {
        !self.pins.is_empty() && self.is_chain_pinned(slot)
    }

    #[cold]
    fn is_chain_pinned(&mut self, mut slot: SlotNo) -> bool {
        while slot != SLOT_NONE {
            if self.pins.contains_key(&slot) {
                return true;
            }
            slot = self.slot(slot).next;
        }
        false
    }

    /// Swaps the list of retired values with `slots`, which must be empty.
    pub fn retired(&mut self, slots: &mut Vec<Cell>) {
        self.retired.take(slots);
    }

    /// Puts back the values that are still leased. `scan_ns`: approximate duration of the scan that found the leases.
    pub fn still_retired(&mut self, slots: impl Iterator<Item = Cell>, scan_ns: u64) {
        let (mut count, mut bytes) = (0, 0);
        for value in slots {
            let length = self.chain_bytes(value.slot());
            (count, bytes) = (count + 1, bytes + length);
            self.retired.push(value, length);
        }
        #[cfg(feature = "cuda")]
        let elsewhere = self.arenas.iter().map(|arena| arena.segment_bytes).sum::<u64>();
        #[cfg(not(feature = "cuda"))]
        let elsewhere = 0;
        self.retired.schedule(count, bytes, self.segment_bytes + elsewhere, scan_ns);
    }

    /// Returns whether the client may request a segment although retired values wait for a scan. If a client with little
    /// memory always scanned first, it would scan for every few slots and never get more memory.
    pub fn may_grow(&self, length: u64) -> bool {
        !self.placement.anywhere && self.retired.may_grow(length)
    }

    pub fn waiting(&self) -> impl Iterator<Item = Cell> + '_ {
        self.retired.iter()
    }

    /// Returns whether the producer has sealed the slot since the heap handed it out.
    pub fn is_sealed(&mut self, slot: SlotNo) -> bool {
        let at = self.at(slot);
        self.segments[at].has_sealed(slot)
    }

    /// Returns the slot that follows in the chain.
    pub fn next_of(&mut self, slot: SlotNo) -> SlotNo {
        self.slot(slot).next
    }

    #[inline]
    fn chain_bytes(&mut self, mut slot: SlotNo) -> u64 {
        let mut bytes = 0;
        while slot != SLOT_NONE {
            let state = self.slot(slot);
            bytes += state.capacity;
            slot = state.next;
        }
        bytes
    }

    /// Frees a slot and its chain. The caller ensures that no process holds or reads these slots.
    #[inline]
    pub fn release(&mut self, slot: SlotNo) -> Unused {
        let mut next = slot;
        let mut unused = Unused::Nothing;
        while next != SLOT_NONE {
            let slot = next;
            let at = self.at(slot);
            let own = &mut self.segments[at];
            let state = &mut own.slots[(slot - own.base) as usize];
            next = std::mem::replace(&mut state.next, SLOT_NONE);
            let (length, generation) = (state.capacity, state.generation);
            own.freed = self.lent;
            if !self.homes.is_empty() {
                self.homes.remove(&slot);
            }
            let found = if own.place == HOST {
                self.instruments.freed(slot, generation, length);
                self.keep(slot, length)
            } else {
                self.keep_elsewhere(slot, generation, length)
            };
            if let found @ Unused::Segment(_) = found {
                unused = found;
            }
        }
        self.check_after_free();
        unused
    }

    /// Frees the slot of a draft that was dropped earlier. The instruments have already counted that drop.
    #[inline]
    pub fn release_dropped(&mut self, slot: SlotNo) -> Unused {
        let state = self.slot(slot);
        debug_assert!(state.next == SLOT_NONE && state.holders == 1, "not an unpublished draft's");
        let length = state.capacity;
        self.keep(slot, length)
    }

    /// Does the work of [`Heap::keep`] for a slot outside host memory.
    #[cold]
    fn keep_elsewhere(&mut self, slot: SlotNo, generation: u64, length: u64) -> Unused {
        self.instruments.freed(slot, generation, length);
        let at = self.at(slot);
        if self.segments[at].place == RELEASED {
            self.released.used_bytes -= length;
            return self.free(slot);
        }
        #[cfg(feature = "cuda")]
        return self.keep_in_arena(slot, length);
        #[cfg(not(feature = "cuda"))]
        unreachable!("slot {slot} of {length} bytes is nowhere else");
    }

    /// Keeps a freed slot for the next request of its length, or frees its extent.
    #[inline]
    fn keep(&mut self, slot: SlotNo, length: u64) -> Unused {
        self.used_bytes -= length;
        if self.recent.keep(slot, length) {
            return Unused::Nothing;
        }
        let mut unused = Unused::Nothing;
        for other in self.recent.make_room(slot, length) {
            if let found @ Unused::Segment(_) = self.free(other) {
                unused = found;
            }
        }
        unused
    }

    /// Returns an unused slot's extent to its segment.
    fn free(&mut self, slot: SlotNo) -> Unused {
        let at = self.at(slot);
        let own = &mut self.segments[at];
        let number = slot - own.base;
        let state = &mut own.slots[number as usize];
        own.space.give(number, state.offset, state.capacity);
        state.capacity = 0;
        if own.space.is_unused() {
            let (base, place) = (own.base, own.place);
            if self.is_idle(place) {
                return Unused::Segment(base);
            }
        }
        Unused::Nothing
    }

    /// Returns whether a location has more unused segments than the client keeps.
    fn is_idle(&self, place: ArenaId) -> bool {
        match place {
            HOST => Placement::is_idle(self.segment_bytes, self.used_bytes),
            // A released segment cannot serve a draft.
            RELEASED => true,
            #[cfg(feature = "cuda")]
            other => self.arenas[usize::from(other) - 1].is_idle(),
            #[cfg(not(feature = "cuda"))]
            _ => unreachable!("there is no other place"),
        }
    }

    /// Frees the slots kept for reuse in host memory. Returns the segments that are unused afterwards.
    pub fn flush(&mut self) -> Vec<SlotNo> {
        for slot in self.recent.flush() {
            self.free(slot);
        }
        self.unused(HOST)
    }

    /// Returns the unused segments of a location.
    fn unused(&self, place: ArenaId) -> Vec<SlotNo> {
        self.segments.iter().filter(|own| own.place == place && own.space.is_unused()).map(|own| own.base).collect()
    }

    /// Returns two numbers of bytes in host memory: of the slots in use, and of the segments. Both include the segments
    /// released for spill.
    pub fn figures(&self) -> (u64, u64) {
        (self.used_bytes + self.released.used_bytes, self.segment_bytes + self.released.segment_bytes)
    }
}

/// Returns the free space of the segments of one location, with each segment's index.
fn spaces(segments: &[OwnSegment], place: ArenaId) -> impl Iterator<Item = (usize, &Space)> + Clone {
    segments.iter().enumerate().filter(move |(_, own)| own.place == place).map(|(at, own)| (at, &own.space))
}
