//! This client's own segments: which slots are free, and where new bytes go.
//!
//! A freed slot keeps its extent for a while ([`Recent`]), so that the next tensor of its size finds warm memory without
//! a search. Invariant of each segment: `extents handed out == slots in use + slots in recent`.

use crate::bytes::{Bytes, OwnRecord};
use crate::extents::Extents;
use crate::instruments::Instruments;
use crate::recent::Recent;
use std::sync::Arc;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::raw::Records;
use tensorlend_layout::tensor::{ALIGN, PAGE};
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};
use tensorlend_os::map::Segment;

/// Length of the first segment.
const FIRST_BYTES: u64 = 1 << 20;
/// Unused segments are kept up to this many bytes, or as many as are in use.
const IDLE_BYTES_MIN: u64 = 256 << 20;
/// From this length on, the extent that fits best is looked for in every segment, and not in the first that has one.
const BEST_FIT_MIN: u64 = 64 << 10;
/// Slots that wait to be reclaimed: at least so many before the lease tables are read, ...
const RETIRED_MIN: usize = 64;
/// ... or so many bytes.
const RETIRED_BYTES: u64 = 1 << 20;

/// A slot in the hands of a draft.
pub struct Taken {
    /// Its number.
    pub slot: u32,
    /// Which use of it this is.
    pub generation: u64,
    /// Its place in the segment.
    pub offset: u64,
    /// Its bytes, as many as were asked for.
    pub bytes: Bytes,
    /// Its record.
    pub record: OwnRecord,
}

impl Taken {
    /// The word that stands for this slot in a cell.
    #[inline]
    pub fn cell(&self) -> Cell {
        Cell::new(self.generation, self.slot)
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

struct Own {
    records: Records<SlotRecord>,
    map: Segment,
    extents: Extents,
    slots: Vec<Slot>,
    numbers: Vec<u32>,
    fresh: u32,
    base: u32,
}

impl Own {
    fn has_numbers(&self) -> bool {
        !self.numbers.is_empty() || (self.fresh as usize) < self.slots.len()
    }
}

/// What [`Heap::release`] found.
pub enum Unused {
    /// Nothing to give back.
    Nothing,
    /// The segment with this base is idle, and there are more idle bytes than are worth keeping.
    Segment(u32),
}

/// Slots that nobody holds any more and somebody may still read.
#[derive(Default)]
struct Retired {
    slots: Vec<Cell>,
    bytes: u64,
    /// So many slots make a scan worth while.
    enough: usize,
    /// Bytes that the last scan found leased: no use to look again before more has come.
    bytes_kept: u64,
}

/// All segments of this client.
#[derive(Default)]
pub struct Heap {
    /// By base.
    segments: Vec<Own>,
    /// Where the last slot was found: mostly the next one is there too.
    last: usize,
    recent: Recent,
    retired: Retired,
    /// Bytes of slots in use.
    used_bytes: u64,
    /// Bytes of segments.
    segment_bytes: u64,
    /// No new segment starts below this generation, so that a slot number never repeats a (slot, generation).
    generation_floor: u64,
    /// log2 of the slots to ask for with the next segment.
    slots_log2: u8,
    /// Told of every slot that comes back.
    instruments: Arc<Instruments>,
}

/// What a slot of `bytes` bytes takes: whole cache lines, or whole pages from one page on.
#[inline]
pub fn extent_bytes(bytes: u64) -> Option<(u64, u64)> {
    let align = if bytes >= PAGE { PAGE } else { ALIGN };
    Some((bytes.max(1).checked_next_multiple_of(align)?, align))
}

impl Heap {
    pub fn new(instruments: Arc<Instruments>) -> Self {
        Self { instruments, ..Self::default() }
    }

    /// What segment to ask for, so that a slot of `length` bytes fits: its bytes and log2 of its slots. `ordinary` is the
    /// pool's length of a segment.
    pub fn wanted(&self, length: u64, ordinary: u64) -> (u64, u8) {
        if length > ordinary {
            // Its own: the tensor, and a few small ones that live with it.
            return (length, 4);
        }
        // As much as there is already: a client that publishes one small tensor keeps no 64 MiB for it.
        let bytes = self.segment_bytes.clamp(FIRST_BYTES.min(ordinary), ordinary).max(length);
        (bytes, self.slots_log2.max(12))
    }

    /// Puts a lent segment to use.
    pub fn add(&mut self, base: u32, slots_log2: u8, map: Segment, records: Records<SlotRecord>) {
        let bytes = map.bytes() as u64;
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        self.insert(Own {
            records,
            map,
            extents: Extents::new(bytes),
            slots: vec![slot; 1 << slots_log2],
            numbers: Vec::new(),
            fresh: 0,
            base,
        });
    }

    fn insert(&mut self, own: Own) {
        self.segment_bytes += own.map.bytes() as u64;
        let at = self.segments.partition_point(|s| s.base < own.base);
        self.segments.insert(at, own);
    }

    /// Which segment holds a slot of this client.
    #[inline]
    fn at(&mut self, slot: u32) -> usize {
        let holds = |own: &Own| slot.wrapping_sub(own.base) < own.slots.len() as u32;
        if !self.segments.get(self.last).is_some_and(holds) {
            let after = self.segments.partition_point(|s| s.base <= slot);
            assert!(after > 0 && holds(&self.segments[after - 1]), "slot {slot} is not of this client");
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
        let with_numbers = |own: &&mut Own| own.has_numbers();
        let found = if length < BEST_FIT_MIN {
            self.segments.iter_mut().filter(with_numbers).find_map(|own| {
                let offset = own.extents.take(length, align)?;
                Some((own, offset))
            })
        } else {
            let best = self.segments.iter_mut().filter(with_numbers);
            let best = best.filter_map(|own| Some((own.extents.best(length, align)?, own)));
            best.min_by_key(|(spare, own)| (*spare, own.base)).and_then(|(_, own)| {
                let offset = own.extents.take(length, align)?;
                Some((own, offset))
            })
        };
        let Some((own, offset)) = found else {
            if self.segments.iter().any(|own| !own.has_numbers() && !own.extents.is_full()) {
                // Small tensors: the next segment gets four times the slots.
                self.slots_log2 = (self.slots_log2.max(12) + 2).min(18);
            }
            return None;
        };
        let at = own.numbers.pop().unwrap_or_else(|| {
            own.fresh += 1;
            own.fresh - 1
        });
        let slot = &mut own.slots[at as usize];
        (slot.offset, slot.capacity) = (offset, length);
        let slot = own.base + at;
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
        let bytes = Bytes::new(&own.map, state.offset, bytes).expect("an extent lies in its segment");
        let record = OwnRecord::new(&own.records[place]);
        Taken { slot, generation: state.generation, offset: state.offset, bytes, record }
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
        self.retired.slots.len() >= self.retired.enough.max(RETIRED_MIN)
            || self.retired.bytes >= self.retired.bytes_kept + RETIRED_BYTES
    }

    /// Hands out what waits, in exchange for an empty vector.
    pub fn retired(&mut self, slots: &mut Vec<Cell>) {
        debug_assert!(slots.is_empty());
        std::mem::swap(&mut self.retired.slots, slots);
        self.retired.bytes = 0;
    }

    /// Puts back what is still leased. `enough`: how many slots make the next scan worth while.
    pub fn still_retired(&mut self, slots: impl Iterator<Item = Cell>, enough: usize) {
        let mut bytes = 0;
        for value in slots {
            bytes += self.chain_bytes(value.slot());
            self.retired.slots.push(value);
        }
        self.retired.bytes += bytes;
        (self.retired.bytes_kept, self.retired.enough) = (bytes, enough);
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
            let state = self.slot(slot);
            next = std::mem::replace(&mut state.next, SLOT_NONE);
            let (length, generation) = (state.capacity, state.generation);
            self.instruments.freed(slot, generation, length);
            self.used_bytes -= length;
            if self.recent.keep(slot, length) {
                continue;
            }
            for other in self.recent.make_room(slot, length) {
                if let found @ Unused::Segment(_) = self.free(other) {
                    unused = found;
                }
            }
        }
        unused
    }

    /// Gives the extent of a slot that nobody uses back to its segment.
    fn free(&mut self, slot: u32) -> Unused {
        let idle_max = IDLE_BYTES_MIN.max(self.used_bytes);
        let at = self.at(slot);
        let own = &mut self.segments[at];
        let place = slot - own.base;
        let state = &mut own.slots[place as usize];
        own.extents.give(state.offset, state.capacity);
        state.capacity = 0;
        own.numbers.push(place);
        if own.extents.is_unused() && self.segment_bytes - self.used_bytes > idle_max {
            return Unused::Segment(own.base);
        }
        Unused::Nothing
    }

    /// Gives up what was kept for reuse; returns the segments that are unused then.
    pub fn flush(&mut self) -> Vec<u32> {
        for slot in self.recent.flush() {
            self.free(slot);
        }
        self.segments.iter().filter(|own| own.extents.is_unused()).map(|own| own.base).collect()
    }

    /// Takes a segment out of use before it is given back to the daemon; `None` if it is in use (again).
    pub fn remove(&mut self, base: u32) -> Option<Returned> {
        let at = self.segments.binary_search_by_key(&base, |own| own.base).ok()?;
        if !self.segments[at].extents.is_unused() {
            return None;
        }
        let own = self.segments.remove(at);
        self.segment_bytes -= own.map.bytes() as u64;
        let newest = own.slots.iter().map(|s| s.generation).max().unwrap_or(0);
        self.generation_floor = self.generation_floor.max(newest);
        Some(Returned(own))
    }

    /// Puts a segment back that the daemon did not take.
    pub fn put_back(&mut self, returned: Returned) {
        self.insert(returned.0);
    }

    /// Bytes of slots in use, and of segments.
    pub fn figures(&self) -> (u64, u64) {
        (self.used_bytes, self.segment_bytes)
    }
}

/// A segment on its way back to the daemon.
pub struct Returned(Own);
