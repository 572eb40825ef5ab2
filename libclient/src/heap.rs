//! This client's own segments: which slots are free, and where new bytes go.
//!
//! A freed slot keeps its extent for a while (`recent`), so that the next tensor of its size finds warm memory without
//! a search. Invariant of each segment: `extents handed out == slots in use + slots in recent`.

use crate::bytes::Bytes;
use crate::extents::Extents;
use crate::instruments::Instruments;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::raw::Records;
use tensorlend_layout::tensor::{ALIGN, PAGE};
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};
use tensorlend_os::map::Segment;

/// Freed slots whose extents are kept together for reuse, in bytes.
const RECENT_BYTES_MAX: u64 = 256 << 20;
/// Length of the first segment.
const FIRST_BYTES: u64 = 1 << 20;
/// Unused segments are kept up to this many bytes, or as many as are in use.
const IDLE_BYTES_MIN: u64 = 256 << 20;

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
}

impl Taken {
    /// The word that stands for this slot in a cell.
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
    /// Cells and ring entries that hold it.
    holders: u32,
}

struct Own {
    records: Records<SlotRecord>,
    map: Arc<Segment>,
    extents: Extents,
    slots: Vec<Slot>,
    numbers: Vec<u32>,
    fresh: u32,
    base: u32,
}

/// What [`Heap::release`] found.
pub enum Unused {
    /// Nothing to give back.
    Nothing,
    /// The segment with this base is idle, and there are more idle bytes than are worth keeping.
    Segment(u32),
}

/// All segments of this client.
#[derive(Default)]
pub struct Heap {
    segments: BTreeMap<u32, Own>,
    recent: HashMap<u64, Vec<u32>>,
    recent_bytes: u64,
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
        self.segment_bytes += bytes;
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        self.segments.insert(
            base,
            Own {
                records,
                map: Arc::new(map),
                extents: Extents::new(bytes),
                slots: vec![slot; 1 << slots_log2],
                numbers: Vec::new(),
                fresh: 0,
                base,
            },
        );
    }

    /// Takes a slot of `bytes` bytes from what is here. `None`: reclaim, or ask for a segment.
    pub fn take(&mut self, bytes: u64) -> Option<Taken> {
        let (length, align) = extent_bytes(bytes)?;
        if let Some(slot) = self.recent.get_mut(&length).and_then(Vec::pop) {
            self.recent_bytes -= length;
            return Some(self.hand_out(slot, bytes, length));
        }
        let mut numbers_short = false;
        let mut found = None;
        for (&base, own) in &mut self.segments {
            if own.numbers.is_empty() && own.fresh as usize == own.slots.len() {
                numbers_short |= !own.extents.is_full();
                continue;
            }
            if let Some(offset) = own.extents.take(length, align) {
                let at = own.numbers.pop().unwrap_or_else(|| {
                    own.fresh += 1;
                    own.fresh - 1
                });
                let slot = &mut own.slots[at as usize];
                (slot.offset, slot.capacity) = (offset, length);
                found = Some(base + at);
                break;
            }
        }
        if found.is_none() && numbers_short {
            // Small tensors: the next segment gets four times the slots.
            self.slots_log2 = (self.slots_log2.max(12) + 2).min(18);
        }
        found.map(|slot| self.hand_out(slot, bytes, length))
    }

    fn hand_out(&mut self, slot: u32, bytes: u64, length: u64) -> Taken {
        self.used_bytes += length;
        let own = own(&mut self.segments, slot);
        let state = &mut own.slots[(slot - own.base) as usize];
        state.generation = next_generation(state.generation);
        (state.next, state.holders) = (SLOT_NONE, 0);
        let bytes = Bytes::new(own.map.clone(), state.offset, bytes).expect("an extent lies in its segment");
        Taken { slot, generation: state.generation, offset: state.offset, bytes }
    }

    /// The record of a slot.
    pub fn record(&mut self, slot: u32) -> &SlotRecord {
        let own = own(&mut self.segments, slot);
        &own.records[(slot - own.base) as usize]
    }

    /// Chains `next` behind `slot`: both live and die together.
    pub fn chain(&mut self, slot: u32, next: u32) {
        let own = own(&mut self.segments, slot);
        own.slots[(slot - own.base) as usize].next = next;
    }

    /// One more cell or ring entry holds the slot.
    pub fn hold(&mut self, slot: u32) {
        let own = own(&mut self.segments, slot);
        own.slots[(slot - own.base) as usize].holders += 1;
    }

    /// One more holder for a value that is published already; false if its last holder has let go of it meanwhile.
    pub fn hold_again(&mut self, value: Cell) -> bool {
        let own = own(&mut self.segments, value.slot());
        let slot = &mut own.slots[(value.slot() - own.base) as usize];
        let published = slot.generation == value.generation() && slot.holders > 0;
        slot.holders += u32::from(published);
        published
    }

    /// One holder less; true if it was the last, and the slot is to be retired.
    pub fn let_go(&mut self, value: Cell) -> bool {
        let own = own(&mut self.segments, value.slot());
        let slot = &mut own.slots[(value.slot() - own.base) as usize];
        debug_assert_eq!(slot.generation, value.generation(), "let go of another life");
        slot.holders -= 1;
        slot.holders == 0
    }

    /// Holders of a slot in use, and what is chained to it.
    pub fn look(&self, slot: u32) -> Option<(u32, u32)> {
        let (base, own) = self.segments.range(..=slot).next_back()?;
        let state = own.slots.get((slot - base) as usize)?;
        Some((state.holders, state.next))
    }

    /// Bytes of a slot and of what is chained to it.
    pub fn chain_bytes(&self, mut slot: u32) -> u64 {
        let mut bytes = 0;
        while slot != SLOT_NONE {
            let (_, own) = self.segments.range(..=slot).next_back().expect("own slot");
            let state = &own.slots[(slot - own.base) as usize];
            bytes += state.capacity;
            slot = state.next;
        }
        bytes
    }

    /// Frees a slot and what is chained to it: nobody holds or reads it.
    pub fn release(&mut self, slot: u32) -> Unused {
        let mut next = slot;
        let mut unused = Unused::Nothing;
        while next != SLOT_NONE {
            let slot = next;
            let own = own(&mut self.segments, slot);
            let at = (slot - own.base) as usize;
            next = std::mem::replace(&mut own.slots[at].next, SLOT_NONE);
            let length = own.slots[at].capacity;
            self.instruments.freed(slot, own.slots[at].generation, length);
            self.used_bytes -= length;
            if self.recent_bytes + length <= RECENT_BYTES_MAX {
                self.recent.entry(length).or_default().push(slot);
                self.recent_bytes += length;
            } else if let found @ Unused::Segment(_) = self.free(slot) {
                unused = found;
            }
        }
        unused
    }

    /// Gives the extent of a slot that nobody uses back to its segment.
    fn free(&mut self, slot: u32) -> Unused {
        let idle_max = IDLE_BYTES_MIN.max(self.used_bytes);
        let own = own(&mut self.segments, slot);
        let at = slot - own.base;
        let state = &mut own.slots[at as usize];
        own.extents.give(state.offset, state.capacity);
        state.capacity = 0;
        own.numbers.push(at);
        if own.extents.is_unused() && self.segment_bytes - self.used_bytes > idle_max {
            return Unused::Segment(own.base);
        }
        Unused::Nothing
    }

    /// Gives up what was kept for reuse; returns the segments that are unused then.
    pub fn flush(&mut self) -> Vec<u32> {
        let recent = std::mem::take(&mut self.recent);
        self.recent_bytes = 0;
        for slot in recent.into_values().flatten() {
            self.free(slot);
        }
        self.segments.iter().filter(|(_, own)| own.extents.is_unused()).map(|(&base, _)| base).collect()
    }

    /// Takes a segment out of use before it is given back to the daemon; `None` if it is in use (again).
    pub fn remove(&mut self, base: u32) -> Option<Returned> {
        if !self.segments.get(&base)?.extents.is_unused() {
            return None;
        }
        let own = self.segments.remove(&base)?;
        self.segment_bytes -= own.map.bytes() as u64;
        let newest = own.slots.iter().map(|s| s.generation).max().unwrap_or(0);
        self.generation_floor = self.generation_floor.max(newest);
        Some(Returned(own))
    }

    /// Puts a segment back that the daemon did not take.
    pub fn put_back(&mut self, returned: Returned) {
        self.segment_bytes += returned.0.map.bytes() as u64;
        self.segments.insert(returned.0.base, returned.0);
    }

    /// Bytes of slots in use, and of segments.
    pub fn figures(&self) -> (u64, u64) {
        (self.used_bytes, self.segment_bytes)
    }
}

/// A segment on its way back to the daemon.
pub struct Returned(Own);

fn own(segments: &mut BTreeMap<u32, Own>, slot: u32) -> &mut Own {
    segments.range_mut(..=slot).next_back().map(|(_, own)| own).expect("a slot of this client")
}
