//! The places of this client's slots that are not in host memory: one for each device, or device and stream.
//!
//! Slot numbers, generations, holders and retirement are the heap's, wherever the bytes are. Nothing here touches them: a slot
//! on a device is a range of addresses, in a segment that is mapped as long as one of its slots is handed out.

use super::{HOST, Heap, Memory, Own, PageLock, Place, Slot, Unused, spaces};
use crate::alloc::placement::Space;
use crate::alloc::recent::Recent;
use crate::segment::bytes::OwnRecord;
use crate::segment::map::{DeviceMap, TakenOn};
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::raw::Records;
use tensorlend_layout::wire::{Allocator, DeviceOffer};
use tensorlend_layout::word::{Cell, SLOT_NONE, next_generation};

/// Where a slot begins: twice as coarse as CUDA's own allocators, and no two slots share a line of a device's cache.
pub const DEVICE_ALIGN: u64 = 512;
/// log2 of the slots of a segment: of the first ones, and once there were too few.
const SLOTS_LOG2: (u8, u8) = (12, 16);
/// Places with streams of their own, at most.
const ROOMS_MAX: usize = 4096;
/// Of single blocks, unused ones are kept while they have no more bytes than this.
const BLOCKS_IDLE_BYTES: u64 = 64 << 20;

/// Which place it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomKey {
    /// On which device.
    pub uuid: Uuid,
    /// For which stream, where streams have segments of their own; 0: for none.
    pub stream: u64,
}

/// What is kept of one place.
pub struct Room {
    key: RoomKey,
    allocator: Allocator,
    /// Length of an ordinary segment; of single blocks, what their lengths are multiples of.
    ordinary: u64,
    /// log2 of the slots to ask for with the next segment.
    slots_log2: u8,
    recent: Recent,
    used_bytes: u64,
    pub(super) segment_bytes: u64,
}

impl Room {
    fn new(key: RoomKey, offer: &DeviceOffer) -> Self {
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

    /// What a slot of `bytes` bytes takes.
    fn extent_bytes(&self, bytes: u64) -> Option<u64> {
        let unit = if self.allocator == Allocator::Async { self.ordinary } else { DEVICE_ALIGN };
        bytes.max(1).checked_next_multiple_of(unit)
    }

    /// Whether unused segments are too many to keep.
    pub(super) fn is_idle(&self) -> bool {
        let least = if self.allocator == Allocator::Async { BLOCKS_IDLE_BYTES } else { self.ordinary };
        self.segment_bytes - self.used_bytes > least.max(self.used_bytes / 2)
    }
}

impl Heap {
    /// The place of this key: its number.
    pub fn room(&mut self, key: RoomKey, offer: &DeviceOffer) -> Place {
        let find = |rooms: &[Room], key| rooms.iter().position(|room| room.key == key);
        // Of streams that come and go the latest ones share.
        let common = RoomKey { stream: 0, ..key };
        let key = if self.rooms.len() < ROOMS_MAX || find(&self.rooms, key).is_some() { key } else { common };
        let at = find(&self.rooms, key).unwrap_or_else(|| {
            self.rooms.push(Room::new(key, offer));
            self.rooms.len() - 1
        });
        at as Place + 1
    }

    fn room_at(&mut self, place: Place) -> &mut Room {
        debug_assert!(place != HOST, "host memory is no room");
        &mut self.rooms[usize::from(place) - 1]
    }

    /// What a slot of `bytes` bytes takes in a place.
    pub fn extent_in(&mut self, place: Place, bytes: u64) -> Option<u64> {
        self.room_at(place).extent_bytes(bytes)
    }

    /// As [`Heap::take`], in another place.
    pub fn take_in(&mut self, place: Place, bytes: u64) -> Option<TakenOn> {
        let room = self.room_at(place);
        let (length, blocks) = (room.extent_bytes(bytes)?, room.allocator == Allocator::Async);
        if let Some(slot) = room.recent.take(length) {
            return Some(self.hand_out_in(slot, bytes, length));
        }
        // Best fit; what nothing uses comes last, so that it stays something to give back. A block is for a slot alone:
        // not for one of less than three quarters of it.
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

    fn hand_out_in(&mut self, slot: u32, bytes: u64, length: u64) -> TakenOn {
        let at = self.at(slot);
        let place = self.segments[at].place;
        self.room_at(place).used_bytes += length;
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

    /// What segment to ask for, so that a slot of `bytes` bytes fits: its bytes and log2 of its slots. `None` if there is no
    /// such length.
    pub fn wanted_in(&mut self, place: Place, bytes: u64) -> Option<(u64, u8)> {
        let lacking = spaces(&self.segments, place).any(|(_, space)| space.lacks_numbers());
        let room = self.room_at(place);
        let length = room.extent_bytes(bytes)?;
        if room.allocator == Allocator::Async {
            return Some((length, 0));
        }
        if lacking {
            room.slots_log2 = SLOTS_LOG2.1;
        }
        Some((length.max(room.ordinary), room.slots_log2))
    }

    /// Puts a lent segment to use in a place.
    pub fn add_in(&mut self, place: Place, slots_log2: u8, map: Arc<DeviceMap>, records: Records<SlotRecord>) {
        let slot = Slot { generation: self.generation_floor, offset: 0, capacity: 0, next: SLOT_NONE, holders: 0 };
        let (base, space) = (map.lending().base, Space::new(map.bytes(), slots_log2));
        let slots = vec![slot; 1 << slots_log2];
        let anywhere = self.placement.anywhere;
        self.insert(Own {
            records,
            locked: PageLock::default(),
            memory: Memory::Device(map),
            space,
            slots,
            base,
            place,
            age: self.lent,
            freed: 0,
        });
        self.lent += 1;
        // It gives host memory no room.
        self.placement.anywhere = anywhere;
    }

    /// As [`Heap::keep`].
    pub(super) fn keep_in_room(&mut self, slot: u32, length: u64) -> Unused {
        let at = self.at(slot);
        let place = self.segments[at].place;
        let room = self.room_at(place);
        room.used_bytes -= length;
        if room.recent.keep(slot, length) {
            return Unused::Nothing;
        }
        let mut unused = Unused::Nothing;
        for other in self.room_at(place).recent.make_room(slot, length) {
            if let found @ Unused::Segment(_) = self.free(other) {
                unused = found;
            }
        }
        unused
    }

    /// Gives up what was kept for reuse on a device; returns its segments that are unused then.
    pub fn flush_on(&mut self, uuid: Uuid) -> Vec<u32> {
        let places = (1..).zip(&self.rooms).filter(|(_, room)| room.key.uuid == uuid);
        let places: Vec<Place> = places.map(|(place, _)| place).collect();
        let mut unused = Vec::new();
        for place in places {
            for slot in self.room_at(place).recent.flush() {
                self.free(slot);
            }
            unused.extend(self.unused(place));
        }
        unused
    }

    /// Bytes of slots in use, and of segments, of a device.
    pub fn figures_on(&self, uuid: Uuid) -> (u64, u64) {
        let rooms = self.rooms.iter().filter(|room| room.key.uuid == uuid);
        rooms.fold((0, 0), |(used, all), room| (used + room.used_bytes, all + room.segment_bytes))
    }

    /// The host segment that holds a slot, and what keeps its pages in place.
    pub fn host_segment(&mut self, slot: u32) -> Option<(&tensorlend_os::map::Segment, &PageLock)> {
        let at = self.at(slot);
        let own = &self.segments[at];
        match &own.memory {
            Memory::Host(map) => Some((map, &own.locked)),
            Memory::Device(_) | Memory::Shelved(_) => None,
        }
    }
}
