//! Segments and their slots in use.

use super::SLOTS_MAX;
use super::meters::States;
use super::observation::{Location, SegmentSeen, SlotSeen, SlotState};
use super::sheets::{Lending, Sheets};
use crate::session::Session;
use std::collections::HashMap;
use std::time::Duration;
use tensorlend_layout::dataset::CHAIN_MAX;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::wire::Allocator;
use tensorlend_layout::word::{Cell, LeaseWord, RangeWord, SLOT_NONE};

/// All lent segments, and the known state of their slots.
#[derive(Default)]
pub struct Slots {
    /// The segments, sorted by owner and first slot.
    pub segments: Vec<SegmentSeen>,
    /// The segment's row in the directory and its loan, for each segment.
    pub lendings: Vec<(usize, Lending)>,
    /// The value of a slot. `None` if no name, list or stream refers to the slot any more.
    known: HashMap<(ClientNo, SlotNo), Option<usize>>,
    pub truncated: bool,
    pub damaged: u64,
}

/// A value's first record, and the bytes of all its slots.
pub struct Chain {
    pub info: SlotInfo,
    pub bytes: u64,
}

impl Slots {
    /// Returns the lent segments, as the directory lists them.
    pub fn lent(session: &Session, now_ns: u64) -> Self {
        let mut lines: Vec<(RangeWord, usize, Lending, u64, Location)> = Vec::new();
        for (at, entry) in session.directory.segments.iter().enumerate() {
            let range = RangeWord(entry.range.read());
            let (since_ns, bytes, location) = (entry.since_ns.peek(), entry.bytes.peek(), entry.place.peek());
            // If the row changed during the read, it belongs to another loan.
            if range.is_lent() && entry.range.read() == range.0 {
                lines.push((range, at, (range.0, since_ns), bytes, location_of(location)));
            }
        }
        lines.sort_unstable_by_key(|(range, ..)| (range.owner(), range.base()));
        let mut it = Self::default();
        for (range, at, lending, bytes, location) in lines {
            it.lendings.push((at, lending));
            it.segments.push(SegmentSeen {
                owner: range.owner(),
                base: range.base(),
                slots_max: range.slots(),
                bytes,
                age: Duration::from_nanos(now_ns.saturating_sub(lending.1)),
                location,
                is_mapped: false,
                slots: Vec::new(),
            });
        }
        it
    }

    /// Returns the segment that holds a slot.
    pub fn segment(&self, owner: ClientNo, slot: SlotNo) -> Option<usize> {
        let after = self.segments.partition_point(|s| (s.owner, s.base) <= (owner, slot));
        let at = after.checked_sub(1)?;
        let found = &self.segments[at];
        (found.owner == owner && slot - found.base < found.slots_max).then_some(at)
    }

    /// Returns a slot's record, if it is mapped and the slot's bytes are inside the segment.
    fn record(&mut self, sheets: &Sheets, owner: ClientNo, slot: SlotNo) -> Option<(usize, SlotInfo)> {
        let at = self.segment(owner, slot)?;
        let segment = &self.segments[at];
        let words = sheets.records(self.lendings[at].1)?.get((slot - segment.base) as usize)?.copy();
        let info = SlotInfo::unpack(&words).ok();
        let info = info.filter(|info| info.check(info.generation, segment.bytes).is_ok());
        self.damaged += u64::from(info.is_none());
        Some((at, info?))
    }

    /// Returns the value to which a slot belongs.
    pub fn value_of(&self, owner: ClientNo, slot: SlotNo) -> Option<usize> {
        self.known.get(&(owner, slot)).copied().flatten()
    }

    /// Records a value's slots. Returns `None` if its record is unreadable, or of another generation.
    pub fn follow(&mut self, sheets: &Sheets, owner: ClientNo, root: Cell, value: Option<usize>) -> Option<Chain> {
        let is_it = |info: &SlotInfo| Cell::new(info.generation, root.slot()) == root;
        self.follow_if(sheets, owner, root.slot(), value, is_it)
    }

    /// Records slots like [`Slots::follow`], for a slot that only a lease keeps.
    pub fn follow_lease(&mut self, sheets: &Sheets, lease: LeaseWord) -> Option<Chain> {
        let is_it = |info: &SlotInfo| Cell::new(info.generation, lease.slot()).lease(lease.owner()) == lease;
        self.follow_if(sheets, lease.owner(), lease.slot(), None, is_it)
    }

    fn follow_if(
        &mut self,
        sheets: &Sheets,
        owner: ClientNo,
        first: SlotNo,
        value: Option<usize>,
        is_it: impl Fn(&SlotInfo) -> bool,
    ) -> Option<Chain> {
        let (mut at, info) = self.record(sheets, owner, first)?;
        if !is_it(&info) {
            return None;
        }
        let mut chain = Chain { info, bytes: 0 };
        let (mut slot, mut info, mut length) = (first, info, 0);
        loop {
            if self.known.len() >= SLOTS_MAX {
                self.truncated = true;
                break;
            }
            // The chain contains a slot twice, meets another chain, or does not end. So its owner wrote invalid data, or
            // has reused the slots.
            if length == CHAIN_MAX || self.known.contains_key(&(owner, slot)) {
                self.damaged += 1;
                break;
            }
            self.known.insert((owner, slot), value);
            length += 1;
            let state = if value.is_some() { SlotState::Live } else { SlotState::Retired };
            let seen = SlotSeen { slot, offset: info.data_offset, bytes: info.data_bytes, state, value };
            self.segments[at].slots.push(seen);
            chain.bytes = chain.bytes.saturating_add(info.data_bytes);
            slot = info.next;
            if slot == SLOT_NONE {
                break;
            }
            match self.record(sheets, owner, slot) {
                Some((next_at, next)) => (at, info) = (next_at, next),
                None => break,
            }
        }
        Some(chain)
    }

    /// Sorts the slots, and marks those of leased values.
    pub fn finish(&mut self, is_leased: impl Fn(usize) -> bool) {
        for segment in &mut self.segments {
            segment.slots.sort_unstable_by_key(|slot| slot.offset);
            for slot in &mut segment.slots {
                if slot.value.is_some_and(&is_leased) {
                    slot.state = SlotState::Leased;
                }
            }
        }
    }
}

fn location_of(word: u64) -> Location {
    match word & 0xFF {
        0 => Location::Host,
        code => Location::Device { index: (word >> 8) as usize, allocator: Allocator::from_code(code) },
    }
}

impl SegmentSeen {
    /// Returns the bytes of the segment's values and leases.
    pub fn states(&self) -> States {
        let (live, retired) = (self.bytes_of(SlotState::Live), self.bytes_of(SlotState::Retired));
        let leased = self.bytes_of(SlotState::Leased) + retired;
        let free = self.is_mapped.then(|| self.bytes.saturating_sub(live + leased));
        States { live, leased, retired, free }
    }

    /// Returns the state of each of `parts` equal parts of the segment: the greatest state of the part's slots, and `None`
    /// for free memory.
    pub fn map(&self, parts: usize) -> Vec<Option<SlotState>> {
        let mut map = vec![None; parts];
        let part_of = |byte: u64| (u128::from(byte) * parts as u128 / u128::from(self.bytes)) as usize;
        for slot in self.slots.iter().filter(|slot| parts > 0 && slot.bytes > 0 && slot.offset < self.bytes) {
            let last = slot.offset.saturating_add(slot.bytes).min(self.bytes) - 1;
            for part in &mut map[part_of(slot.offset)..=part_of(last)] {
                *part = (*part).max(Some(slot.state));
            }
        }
        map
    }

    /// Returns the number of bytes of the segment's slots in one state. Counts bytes that several slots claim once.
    pub fn bytes_of(&self, state: SlotState) -> u64 {
        let (mut end, mut bytes) = (0, 0);
        for slot in &self.slots {
            let slot_end = slot.offset.saturating_add(slot.bytes).min(self.bytes);
            if slot.state == state {
                bytes += slot_end.saturating_sub(slot.offset.max(end));
            }
            end = end.max(slot_end);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_two_slots_claim_count_once() {
        let slot = |offset, bytes, state| SlotSeen { slot: SlotNo::new(0), offset, bytes, state, value: None };
        let slots =
            vec![slot(0, 64, SlotState::Live), slot(32, 64, SlotState::Leased), slot(900, 500, SlotState::Live)];
        let segment = SegmentSeen { bytes: 1024, slots, ..SegmentSeen::default() };
        assert_eq!((segment.bytes_of(SlotState::Live), segment.bytes_of(SlotState::Leased)), (64 + 124, 32));
        assert_eq!(segment.bytes_of(SlotState::Retired), 0);
    }

    #[test]
    fn a_map_shows_slots_where_they_are() {
        use SlotState::{Leased, Live, Retired};
        let text = |bytes, slots: &[(u64, u64, SlotState)], parts| -> String {
            let slot = |&(offset, bytes, state)| SlotSeen { slot: SlotNo::new(0), offset, bytes, state, value: None };
            let slots = slots.iter().map(slot).collect();
            let map = SegmentSeen { bytes, slots, ..SegmentSeen::default() }.map(parts);
            map.into_iter().map(|state| state.map_or('.', |it| ['V', 'L', 'R'][it as usize])).collect()
        };
        assert_eq!(text(80, &[(0, 20, Live), (30, 10, Leased), (70, 10, Retired)], 8), "VV.L...R");
        // A single leased byte of a large segment is visible, and so is a leased slot next to one that is not leased.
        assert_eq!(text(1 << 40, &[(0, 1, Leased), (64, 1 << 38, Live)], 8), "LVV.....");
        assert_eq!(text(64, &[(0, 64, Live)], 3), "VVV");
        // Invalid offsets and lengths do not leave the map.
        assert_eq!(text(64, &[(u64::MAX, u64::MAX, Live), (60, u64::MAX, Live)], 4), "...V");
        assert_eq!(text(0, &[(0, 1, Live)], 2), "..");
        assert_eq!(text(64, &[(0, 64, Live)], 0), "");
    }

    #[test]
    fn places_as_the_directory_writes_them() {
        assert_eq!(location_of(0), Location::Host);
        let arena = Location::Device { index: 2, allocator: Some(Allocator::Arena) };
        assert_eq!(location_of(2 << 8 | Allocator::Arena.code()), arena);
        assert_eq!(location_of(1 << 8 | 0xEE), Location::Device { index: 1, allocator: None });
    }
}
