//! Per-device arenas: this client's slots outside host memory, one arena per device, or per device and stream.
//!
//! The heap manages slot numbers, generations, holders and retirement for all memory. The code here does not access
//! the bytes. A slot on a device is a range of addresses in a segment, which is mapped while one of its slots is
//! handed out.

use super::{ArenaId, HOST, Heap, Memory, OwnSegment, PageLock, Slot, Unused, spaces};
use crate::alloc::placement::Space;
use crate::alloc::recent::Recent;
use crate::segment::bytes::OwnRecord;
use crate::segment::map::{DeviceMap, TakenOn};
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::leases;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::raw::Records;
use tensorlend_layout::wire::{Allocator, DeviceOffer};
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};

/// Alignment of slots in bytes: twice that of CUDA's own allocators. No two slots share a line of a device's cache.
pub const DEVICE_ALIGN: u64 = 512;
/// log2 of the number of slots to request with a segment: at first, and after a segment had no free slot numbers
/// left.
const SLOTS_LOG2: (u8, u8) = (12, 16);
/// Maximum number of arenas. Beyond it, further streams share one arena per device.
const ARENAS_MAX: usize = 4096;
/// Maximum bytes of unused single blocks that the client keeps.
const BLOCKS_IDLE_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaKey {
    pub uuid: Uuid,
    /// The stream, if each stream has segments of its own. Otherwise 0.
    pub stream: u64,
}

pub struct Arena {
    key: ArenaKey,
    allocator: Allocator,
    /// Length of an ordinary segment in bytes. For single blocks, the unit of their lengths.
    ordinary: u64,
    /// log2 of the number of slots to request with the next segment.
    slots_log2: u8,
    recent: Recent,
    used_bytes: u64,
    pub(super) segment_bytes: u64,
}

impl Arena {
    fn new(key: ArenaKey, offer: &DeviceOffer) -> Self {
        Self {
            key,
            allocator: offer.allocator,
            ordinary: offer.segment_bytes.max(DEVICE_ALIGN),
            slots_log2: SLOTS_LOG2.0,
            recent: Recent::default(),
            used_bytes: 0,
            segment_bytes: 0,
        }
    }

    /// Returns two numbers of bytes: of the extents, including those of kept slots, and of the segments.
    pub(super) fn sums(&self) -> (u64, u64) {
        (self.used_bytes + self.recent.bytes(), self.segment_bytes)
    }

    /// Returns the number of bytes that a slot of `bytes` bytes occupies.
    fn extent_bytes(&self, bytes: u64) -> Option<u64> {
        let unit = if self.allocator == Allocator::Async { self.ordinary } else { DEVICE_ALIGN };
        bytes.max(1).checked_next_multiple_of(unit)
    }

    /// Returns whether the arena has more unused segments than the client keeps.
    pub(super) fn is_idle(&self) -> bool {
        let least = if self.allocator == Allocator::Async { BLOCKS_IDLE_BYTES } else { 2 * self.ordinary };
        self.segment_bytes - self.used_bytes > least.max(self.used_bytes / 2)
    }
}

impl Heap {
    /// Returns the number of the arena with this key. Creates the arena if it does not exist.
    pub fn arena(&mut self, key: ArenaKey, offer: &DeviceOffer) -> ArenaId {
        let find = |arenas: &[Arena], key| arenas.iter().position(|arena| arena.key == key);
        // If there are too many arenas, further streams share one arena.
        let common = ArenaKey { stream: 0, ..key };
        let key = if self.arenas.len() < ARENAS_MAX || find(&self.arenas, key).is_some() { key } else { common };
        let at = find(&self.arenas, key).unwrap_or_else(|| {
            self.arenas.push(Arena::new(key, offer));
            self.arenas.len() - 1
        });
        ArenaId::try_from(at + 1).expect("ARENAS_MAX arenas have numbers")
    }

    fn arena_at(&mut self, place: ArenaId) -> &mut Arena {
        debug_assert!(place != HOST, "host memory is no arena");
        &mut self.arenas[usize::from(place) - 1]
    }

    /// Returns the number of bytes that a slot of `bytes` bytes occupies in an arena.
    pub fn extent_in(&mut self, place: ArenaId, bytes: u64) -> Option<u64> {
        self.arena_at(place).extent_bytes(bytes)
    }

    /// Takes a slot like [`Heap::take`], in an arena.
    pub fn take_in(&mut self, place: ArenaId, bytes: u64) -> Option<TakenOn> {
        let arena = self.arena_at(place);
        let (length, blocks) = (arena.extent_bytes(bytes)?, arena.allocator == Allocator::Async);
        if let Some(slot) = arena.recent.take(length) {
            return Some(self.hand_out_in(slot, bytes, length));
        }
        // Use the best fit. An unused segment is the last choice, so that the client can return it. A block serves only
        // one slot, whose length is at least three quarters of the block's length.
        let fits = |(at, space): (usize, &Space)| {
            let spare = space.best(length, DEVICE_ALIGN)?;
            (!blocks || spare <= length / 3).then(|| (space.is_unused(), spare, at))
        };
        let (.., at) = spaces(&self.segments, place).filter_map(fits).min()?;
        let own = &mut self.segments[at];
        let (number, offset) = own.space.take(length, DEVICE_ALIGN)?;
        let slot = &mut own.slots[number as usize];
        (slot.offset, slot.capacity) = (offset, length);
        let slot = own.base + number;
        Some(self.hand_out_in(slot, bytes, length))
    }

    fn hand_out_in(&mut self, slot: SlotNo, bytes: u64, length: u64) -> TakenOn {
        // As for host memory.
        leases::reuse_fence();
        let at = self.at(slot);
        let place = self.segments[at].place;
        self.arena_at(place).used_bytes += length;
        let own = &mut self.segments[at];
        let number = (slot - own.base) as usize;
        let state = &mut own.slots[number];
        state.generation = next_generation(state.generation);
        (state.next, state.holders) = (SLOT_NONE, 1);
        let Memory::Device(map) = &own.memory else { unreachable!("handed out where it is not") };
        let record = OwnRecord::new(&own.records[number]);
        let (value, extent) = (Cell::new(state.generation, slot), (place, length));
        TakenOn { value, offset: state.offset, bytes, record, map: map.clone(), extent }
    }

    /// Returns the segment to request for a slot of `bytes` bytes, as its bytes and the log2 of its number of slots.
    /// Returns `None` if the length overflows.
    pub fn wanted_in(&mut self, place: ArenaId, bytes: u64) -> Option<(u64, u8)> {
        let lacking = spaces(&self.segments, place).any(|(_, space)| space.lacks_numbers());
        let arena = self.arena_at(place);
        let length = arena.extent_bytes(bytes)?;
        if arena.allocator == Allocator::Async {
            return Some((length, 0));
        }
        if lacking {
            arena.slots_log2 = SLOTS_LOG2.1;
        }
        Some((length.max(arena.ordinary), arena.slots_log2))
    }

    /// Adds a lent segment to an arena.
    pub fn add_in(&mut self, place: ArenaId, map: Arc<DeviceMap>, records: Records<SlotRecord>) {
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        let (base, space) = (map.lending().base, Space::new(map.bytes(), records.len(), false, self.lent));
        let slots = vec![slot; records.len()];
        let anywhere = self.placement.anywhere;
        self.insert(OwnSegment {
            records,
            locked: PageLock::default(),
            memory: Memory::Device(map),
            space,
            slots,
            base,
            place,
            freed: 0,
        });
        self.lent += 1;
        // Restore `anywhere`: a segment of device memory gives no more space to slots in host memory.
        self.placement.anywhere = anywhere;
    }

    /// Keeps a freed slot like [`Heap::keep`], in the slot's arena.
    pub(super) fn keep_in_arena(&mut self, slot: SlotNo, length: u64) -> Unused {
        let at = self.at(slot);
        let place = self.segments[at].place;
        let arena = self.arena_at(place);
        arena.used_bytes -= length;
        if arena.recent.keep(slot, length) {
            return Unused::Nothing;
        }
        let mut unused = Unused::Nothing;
        for other in self.arena_at(place).recent.make_room(slot, length) {
            if let found @ Unused::Segment(_) = self.free(other) {
                unused = found;
            }
        }
        unused
    }

    /// Frees the slots kept for reuse on a device. Returns the device's segments that are unused afterwards.
    pub fn flush_on(&mut self, uuid: Uuid) -> Vec<SlotNo> {
        let places = (1..).zip(&self.arenas).filter(|(_, arena)| arena.key.uuid == uuid);
        let places: Vec<ArenaId> = places.map(|(place, _)| place).collect();
        let mut unused = Vec::new();
        for place in places {
            for slot in self.arena_at(place).recent.flush() {
                self.free(slot);
            }
            unused.extend(self.unused(place));
        }
        unused
    }

    /// Returns two numbers of bytes on a device: of the slots in use, and of the segments.
    pub fn figures_on(&self, uuid: Uuid) -> (u64, u64) {
        let arenas = self.arenas.iter().filter(|arena| arena.key.uuid == uuid);
        arenas.fold((0, 0), |(used, all), arena| (used + arena.used_bytes, all + arena.segment_bytes))
    }

    /// Returns the host segment that holds a slot, and its page lock.
    pub fn host_segment(&mut self, slot: SlotNo) -> Option<(&tensorlend_os::map::Segment, &PageLock)> {
        let at = self.at(slot);
        let own = &self.segments[at];
        match &own.memory {
            Memory::Host(map) => Some((map, &own.locked)),
            Memory::Device(_) | Memory::Released(_) => None,
        }
    }
}
