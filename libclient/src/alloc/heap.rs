//! This client's own segments: which slots are free, and where new bytes go.
//!
//! A freed slot keeps its extent for a while ([`Recent`]), so that the next tensor of its size finds warm memory without
//! a search. Invariant of each segment: `extents handed out == slots in use + slots in recent`. What a thread keeps for
//! its next draft ([`crate::alloc::magazines`]) counts as in use here.

pub use crate::alloc::placement::extent_bytes;
use crate::alloc::placement::{Placement, Space};
use crate::alloc::recent::Recent;
use crate::instruments::Instruments;
use crate::segment::bytes::{Bytes, OwnRecord};
#[cfg(feature = "cuda")]
use crate::segment::map::DeviceMap;
#[cfg(feature = "cuda")]
use crate::segment::pinned::PageLock;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::raw::Records;
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};
use tensorlend_os::map::Segment;

#[cfg(feature = "cuda")]
pub mod rooms;
mod shelf;
pub use shelf::Wanted;

/// A slot in the hands of a draft.
pub struct Taken {
    /// Its number, and which use of it this is: the word that stands for it in a cell.
    pub value: Cell,
    /// Its place in the segment.
    pub offset: u64,
    /// Its bytes, as many as were asked for.
    pub bytes: Bytes,
    /// Its record.
    pub record: OwnRecord,
}

impl Taken {
    /// Its number.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.value.slot()
    }

    /// Which use of it this is.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.value.generation()
    }
}

#[derive(Clone, Copy)]
struct Slot {
    generation: u64,
    offset: u64,
    /// Length of the extent; 0: the slot has none.
    capacity: u64,
    /// The next slot that lives and dies with this one.
    next: u32,
    /// Cells and ring entries that hold it. A draft counts as one, which the first of these takes over.
    holders: u32,
}

/// Where a segment's bytes are.
enum Memory {
    Host(Segment),
    #[cfg(feature = "cuda")]
    Device(Arc<DeviceMap>),
    /// Nothing of it is mapped: so many bytes.
    Shelved(u64),
}

impl Memory {
    fn bytes(&self) -> u64 {
        match self {
            Self::Host(map) => map.bytes() as u64,
            #[cfg(feature = "cuda")]
            Self::Device(map) => map.bytes(),
            Self::Shelved(bytes) => *bytes,
        }
    }
}

struct Own {
    records: Records<SlotRecord>,
    /// Before the memory, which must be mapped as long as it is locked.
    #[cfg(feature = "cuda")]
    locked: PageLock,
    memory: Memory,
    space: Space,
    slots: Vec<Slot>,
    base: u32,
    place: Place,
    /// How many were lent before it.
    age: u64,
    /// How many had been lent when something was last freed in it.
    freed: u64,
}

/// What slots share with none of another: [`HOST`], or one more than the number of a room.
type Place = u16;
/// This machine's memory.
const HOST: Place = 0;
/// Where the daemon likes to have it, a file perhaps: see [`shelf`].
const SHELF: Place = Place::MAX;

/// What [`Heap::release`] found.
pub enum Unused {
    /// Nothing to give back.
    Nothing,
    /// The segment with this base is idle, and there are more idle bytes than are worth keeping.
    Segment(u32),
}

impl Unused {
    /// The segment to give back.
    #[inline]
    pub fn segment(self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Segment(base) => Some(base),
        }
    }
}

/// Slots that nobody holds any more and somebody may still read.
#[derive(Default)]
struct Retired {
    slots: Vec<Cell>,
    bytes: u64,
    /// As many as this make the next scan worth while: those that the last one found leased, and enough more.
    due_slots: usize,
    due_bytes: u64,
    /// With so many bytes at least so many; more bytes are due in any case.
    due_few: usize,
    most_bytes: u64,
    /// The part of `due_bytes` that is enough more.
    enough_bytes: u64,
}

/// However long: fewer than so many would pay too much of it, unless they are the most that may wait.
const RETIRED_FEW: usize = 2;
/// Slots that make a scan worth while: at least so many, ...
const RETIRED_SLOTS_MIN: usize = 32;
/// ... so that a slot pays this much of it, ...
const SCAN_NS_PER_SLOT: u64 = 16;
/// ... or their bytes. The longer a scan takes, the more may wait for it, ...
const RETIRED_BYTES_PER_SCAN_NS: u64 = 2 << 10;
/// ... from as much as stays in a processor's cache when one writes it again and again, ...
const RETIRED_BYTES_MIN: u64 = 256 << 10;
/// ... to so much or this part of the segments.
const RETIRED_BYTES_MAX: (u64, u64) = (8 << 20, 8);

/// All segments of this client, wherever their memory is: slot numbers are one space. What differs from place to place is who
/// fits where, and what is kept for reuse; that of host memory is in fields of its own, which cost no look.
pub struct Heap {
    /// By base.
    segments: Vec<Own>,
    placement: Placement,
    /// Where the last slot in host memory was found: mostly the next one is there too.
    last: usize,
    recent: Recent,
    /// The other places.
    #[cfg(feature = "cuda")]
    rooms: Vec<rooms::Room>,
    retired: Retired,
    /// How many pins are on a slot.
    pins: BTreeMap<u32, u32>,
    /// Bytes of slots in use, in host memory.
    used_bytes: u64,
    /// Bytes of segments of host memory.
    segment_bytes: u64,
    /// The same, of what is shelved.
    shelved: shelf::Figures,
    /// Segments that were lent, ever.
    lent: u64,
    /// No new segment starts below this generation, so that a slot number never repeats a (slot, generation).
    generation_floor: u64,
    /// Told of every slot that comes back.
    instruments: Arc<Instruments>,
}

impl Heap {
    /// `ordinary` is the pool's length of a segment.
    pub fn new(instruments: Arc<Instruments>, ordinary: u64) -> Self {
        Self {
            segments: Vec::new(),
            placement: Placement::new(ordinary),
            last: 0,
            recent: Recent::default(),
            #[cfg(feature = "cuda")]
            rooms: Vec::new(),
            retired: Retired {
                due_slots: RETIRED_SLOTS_MIN,
                due_bytes: RETIRED_BYTES_MIN,
                due_few: RETIRED_FEW,
                most_bytes: RETIRED_BYTES_MAX.0,
                enough_bytes: RETIRED_BYTES_MIN,
                ..Retired::default()
            },
            pins: BTreeMap::new(),
            used_bytes: 0,
            segment_bytes: 0,
            shelved: shelf::Figures::default(),
            lent: 0,
            generation_floor: 0,
            instruments,
        }
    }

    /// What segment to ask for, so that a slot of `length` bytes fits: its bytes and log2 of its slots.
    pub fn wanted(&self, length: u64) -> (u64, u8) {
        self.placement.wanted(spaces(&self.segments, HOST), length)
    }

    /// Which segments to give back before one is asked for that is to hold `length` bytes.
    pub fn make_way(&self, length: u64) -> Vec<u32> {
        let gone = self.placement.make_way(spaces(&self.segments, HOST), length);
        gone.into_iter().map(|at| self.segments[at].base).collect()
    }

    /// Whether slots of this length are better kept apart from longer ones.
    pub fn is_small(&self, length: u64) -> bool {
        self.placement.is_small(length)
    }

    /// The daemon has nothing more to lend: any room will do for any slot, until a segment comes or goes.
    pub fn set_anywhere(&mut self) {
        self.placement.anywhere = true;
    }

    /// Puts a lent segment to use.
    pub fn add(&mut self, base: u32, slots_log2: u8, map: Segment, records: Records<SlotRecord>) {
        let bytes = map.bytes() as u64;
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        let space = Space::new(bytes, slots_log2);
        self.insert(Own {
            records,
            #[cfg(feature = "cuda")]
            locked: PageLock::default(),
            memory: Memory::Host(map),
            space,
            slots: vec![slot; 1 << slots_log2],
            base,
            place: HOST,
            age: self.lent,
            freed: 0,
        });
        self.lent += 1;
    }

    fn insert(&mut self, own: Own) {
        *self.segment_bytes_of(own.place) += own.memory.bytes();
        self.placement.anywhere = false;
        let at = self.segments.partition_point(|s| s.base < own.base);
        self.segments.insert(at, own);
    }

    fn segment_bytes_of(&mut self, place: Place) -> &mut u64 {
        match place {
            HOST => &mut self.segment_bytes,
            SHELF => &mut self.shelved.segment_bytes,
            #[cfg(feature = "cuda")]
            other => &mut self.rooms[usize::from(other) - 1].segment_bytes,
            #[cfg(not(feature = "cuda"))]
            _ => unreachable!("there is no other place"),
        }
    }

    /// Which segment holds a slot of this client.
    #[inline]
    fn at(&mut self, slot: u32) -> usize {
        let holds = |own: &Own| slot.wrapping_sub(own.base) < own.slots.len() as u32;
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
    fn slot(&mut self, slot: u32) -> &mut Slot {
        let at = self.at(slot);
        let own = &mut self.segments[at];
        &mut own.slots[(slot - own.base) as usize]
    }

    /// Takes a slot of `bytes` bytes from what is here. `None`: reclaim, or ask for a segment.
    #[inline]
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

    #[inline]
    fn hand_out(&mut self, slot: u32, bytes: u64, length: u64) -> Taken {
        self.used_bytes += length;
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

    /// Chains `next` behind `slot`: both live and die together.
    pub fn chain(&mut self, slot: u32, next: u32) {
        self.slot(slot).next = next;
    }

    /// One more holder for a value; false if its last holder has let go of it meanwhile.
    pub fn hold_again(&mut self, value: Cell) -> bool {
        let slot = self.slot(value.slot());
        let held = slot.generation == value.generation() && slot.holders > 0;
        slot.holders += u32::from(held);
        held
    }

    /// One holder less; true if it was the last. Then nothing leads to the slot any more.
    #[inline]
    pub fn let_go(&mut self, value: Cell) -> bool {
        let slot = self.slot(value.slot());
        debug_assert_eq!(slot.generation, value.generation(), "let go of another life");
        slot.holders -= 1;
        slot.holders == 0
    }

    /// A cell or ring entry no longer holds this value. When nobody does, it waits until no lease is on it. True: enough
    /// wait for [`Heap::retired`].
    #[inline]
    pub fn retire(&mut self, value: Cell) -> bool {
        if !self.let_go(value) {
            return false;
        }
        self.retired.bytes += self.chain_bytes(value.slot());
        self.retired.slots.push(value);
        let Retired { bytes, due_slots, due_bytes, due_few, most_bytes, .. } = self.retired;
        let slots = self.retired.slots.len();
        slots >= due_slots || bytes >= due_bytes && (slots >= due_few || bytes >= most_bytes)
    }

    /// Frees a slot that was never published, and what is chained to it; or, if one of them is pinned, has them wait.
    #[inline]
    pub fn drop_slot(&mut self, slot: u32) -> Unused {
        if !self.is_pinned(slot) {
            return self.release(slot);
        }
        let state = self.slot(slot);
        state.holders = 0;
        let value = Cell::new(state.generation, slot);
        self.retired.bytes += self.chain_bytes(slot);
        self.retired.slots.push(value);
        Unused::Nothing
    }

    /// From here on somebody may look at this slot, whatever becomes of what it is chained to.
    pub fn pin(&mut self, slot: u32) {
        *self.pins.entry(slot).or_default() += 1;
    }

    /// One pin less.
    pub fn unpin(&mut self, slot: u32) {
        if let Entry::Occupied(mut pins) = self.pins.entry(slot) {
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        }
    }

    /// Whether a slot or one that is chained to it is pinned: leases are on whole values, but pins may be on a dataset's
    /// members, which were drafts of their own.
    #[inline]
    pub fn is_pinned(&mut self, slot: u32) -> bool {
        !self.pins.is_empty() && self.is_chain_pinned(slot)
    }

    #[cold]
    fn is_chain_pinned(&mut self, mut slot: u32) -> bool {
        while slot != SLOT_NONE {
            if self.pins.contains_key(&slot) {
                return true;
            }
            slot = self.slot(slot).next;
        }
        false
    }

    /// Hands out what waits, in exchange for an empty vector.
    pub fn retired(&mut self, slots: &mut Vec<Cell>) {
        debug_assert!(slots.is_empty());
        std::mem::swap(&mut self.retired.slots, slots);
        self.retired.bytes = 0;
    }

    /// Puts back what is still leased. `scan_ns`: about what the scan cost that found it so.
    pub fn still_retired(&mut self, slots: impl Iterator<Item = Cell>, scan_ns: u64) {
        let (mut count, mut bytes) = (0, 0);
        for value in slots {
            count += 1;
            bytes += self.chain_bytes(value.slot());
            self.retired.slots.push(value);
        }
        self.retired.bytes += bytes;
        #[cfg(feature = "cuda")]
        let elsewhere = self.rooms.iter().map(|room| room.segment_bytes).sum::<u64>();
        #[cfg(not(feature = "cuda"))]
        let elsewhere = 0;
        let bytes_max = RETIRED_BYTES_MAX.0.max((self.segment_bytes + elsewhere) / RETIRED_BYTES_MAX.1);
        let enough_bytes = (scan_ns * RETIRED_BYTES_PER_SCAN_NS).clamp(RETIRED_BYTES_MIN, bytes_max);
        let enough_slots = (scan_ns / SCAN_NS_PER_SLOT) as usize;
        self.retired.due_slots = count + enough_slots.max(RETIRED_SLOTS_MIN);
        self.retired.due_bytes = bytes + enough_bytes;
        self.retired.due_few = count + RETIRED_FEW;
        self.retired.most_bytes = bytes + bytes_max;
        self.retired.enough_bytes = enough_bytes;
    }

    /// Whether to ask for a segment although something waits: else a client with little memory would scan for every few
    /// slots, and never get more. It gets no more than may wait.
    pub fn may_grow(&self, length: u64) -> bool {
        !self.placement.anywhere && self.retired.bytes > 0 && self.retired.bytes + length <= self.retired.enough_bytes
    }

    /// What waits.
    pub fn waiting(&self) -> impl Iterator<Item = Cell> + '_ {
        self.retired.slots.iter().copied()
    }

    /// Whether a slot was sealed since it was handed out, and what is chained to it.
    pub fn look(&mut self, slot: u32) -> (bool, u32) {
        let at = self.at(slot);
        let own = &self.segments[at];
        let place = (slot - own.base) as usize;
        let state = &own.slots[place];
        (own.records[place].generation() == state.generation, state.next)
    }

    /// Bytes of a slot and of what is chained to it.
    #[inline]
    fn chain_bytes(&mut self, mut slot: u32) -> u64 {
        let mut bytes = 0;
        while slot != SLOT_NONE {
            let state = self.slot(slot);
            bytes += state.capacity;
            slot = state.next;
        }
        bytes
    }

    /// Frees a slot and what is chained to it: nobody holds or reads it.
    #[inline]
    pub fn release(&mut self, slot: u32) -> Unused {
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
        unused
    }

    /// Frees a slot of a draft that was dropped before: the instruments, if any was on, have been told then.
    #[inline]
    pub fn release_dropped(&mut self, slot: u32) -> Unused {
        let state = self.slot(slot);
        debug_assert!(state.next == SLOT_NONE && state.holders == 1, "not an unpublished draft's");
        let length = state.capacity;
        self.keep(slot, length)
    }

    /// As [`Heap::keep`], of a slot that is not in host memory.
    #[cold]
    fn keep_elsewhere(&mut self, slot: u32, generation: u64, length: u64) -> Unused {
        let at = self.at(slot);
        if self.segments[at].place == SHELF {
            self.instruments.freed(slot, generation, length);
            self.shelved.used_bytes -= length;
            return self.free(slot);
        }
        #[cfg(feature = "cuda")]
        return self.keep_in_room(slot, length);
        #[cfg(not(feature = "cuda"))]
        unreachable!("slot {slot} of {length} bytes is nowhere else");
    }

    /// Keeps what was freed for the next of its length, or gives its extent back.
    #[inline]
    fn keep(&mut self, slot: u32, length: u64) -> Unused {
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

    /// Gives the extent of a slot that nobody uses back to its segment.
    fn free(&mut self, slot: u32) -> Unused {
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

    /// Whether unused segments of a place are too many to keep.
    fn is_idle(&self, place: Place) -> bool {
        match place {
            HOST => Placement::is_idle(self.segment_bytes, self.used_bytes),
            // Of no use to anybody.
            SHELF => true,
            #[cfg(feature = "cuda")]
            other => self.rooms[usize::from(other) - 1].is_idle(),
            #[cfg(not(feature = "cuda"))]
            _ => unreachable!("there is no other place"),
        }
    }

    /// Gives up what was kept for reuse in host memory; returns its segments that are unused then.
    pub fn flush(&mut self) -> Vec<u32> {
        for slot in self.recent.flush() {
            self.free(slot);
        }
        self.unused(HOST)
    }

    /// The segments of a place in which nothing is.
    fn unused(&self, place: Place) -> Vec<u32> {
        self.segments.iter().filter(|own| own.place == place && own.space.is_unused()).map(|own| own.base).collect()
    }

    /// Takes a segment out of use before it is given back to the daemon; `None` if it is in use (again).
    pub fn remove(&mut self, base: u32) -> Option<Returned> {
        let at = self.segments.binary_search_by_key(&base, |own| own.base).ok()?;
        if !self.segments[at].space.is_unused() {
            return None;
        }
        let own = self.segments.remove(at);
        *self.segment_bytes_of(own.place) -= own.memory.bytes();
        self.placement.anywhere = false;
        let newest = own.slots.iter().map(|s| s.generation).max().unwrap_or(0);
        self.generation_floor = self.generation_floor.max(newest);
        Some(Returned(own))
    }

    /// Puts a segment back that the daemon did not take.
    pub fn put_back(&mut self, Returned(mut own): Returned) {
        // It was being shelved and is mapped still, since that did not find it here: it serves drafts again.
        if matches!(own.memory, Memory::Host(_)) {
            own.place = HOST;
        }
        self.insert(own);
    }

    /// First slots of all segments, if they are few enough to say, and of those that are shelved.
    pub fn bases(&self) -> (Option<Vec<u32>>, Vec<u32>) {
        if self.are_too_many() {
            return (None, Vec::new());
        }
        (Some(self.segments.iter().map(|own| own.base).collect()), self.on_shelf().collect())
    }

    /// Whether there are more segments than a client that comes back says.
    fn are_too_many(&self) -> bool {
        self.segments.len() > 4096
    }

    /// Bytes of slots in use, and of segments, of host memory and of what is shelved.
    pub fn figures(&self) -> (u64, u64) {
        (self.used_bytes + self.shelved.used_bytes, self.segment_bytes + self.shelved.segment_bytes)
    }
}

/// The room of the segments that are in one place.
fn spaces(segments: &[Own], place: Place) -> impl Iterator<Item = (usize, &Space)> + Clone {
    segments.iter().enumerate().filter(move |(_, own)| own.place == place).map(|(at, own)| (at, &own.space))
}

/// A segment on its way back to the daemon.
pub struct Returned(Own);
