//! A map of a segment, which is a row of characters. Each character stands for the same number of
//! bytes.

use tensorlend::observe::{SegmentSeen, SlotState};

/// Maximum number of characters in a map.
pub const PLACES: usize = 256;

/// Returns a letter for each part of the segment: `L` leased, `R` retired, `V` live (has a value),
/// `.` free or unknown. If slots of several states share a part, `R` has precedence, then `L`, then
/// `V`.
pub fn map(segment: &SegmentSeen) -> String {
    if segment.bytes == 0 || !segment.is_mapped {
        return String::new();
    }
    // A part has at least 64 bytes, because slots begin on cache lines of 64 bytes.
    let places = (segment.bytes.div_ceil(64)).min(PLACES as u64);
    let mut row = vec![0; places as usize];
    let place = |byte: u64| (u128::from(byte) * u128::from(places) / u128::from(segment.bytes)) as usize;
    for slot in segment.slots.iter().filter(|slot| slot.bytes > 0 && slot.offset < segment.bytes) {
        let end = slot.offset.saturating_add(slot.bytes).min(segment.bytes);
        for shown in &mut row[place(slot.offset)..=place(end - 1)] {
            *shown = (*shown).max(rank(slot.state));
        }
    }
    row.into_iter().map(|rank| char::from(LETTERS[rank])).collect()
}

const LETTERS: [u8; 4] = *b".VLR";

fn rank(state: SlotState) -> usize {
    match state {
        SlotState::Live => 1,
        SlotState::Leased => 2,
        SlotState::Retired => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::observe::{SlotNo, SlotSeen};

    #[test]
    fn what_keeps_memory_shows() {
        let slot = |offset, bytes, state| SlotSeen { slot: SlotNo::new(0), offset, bytes, state, value: None };
        let slots = vec![
            slot(0, 64, SlotState::Live),
            slot(64, 128, SlotState::Leased),
            slot(256, 64, SlotState::Retired),
            slot(320, u64::MAX, SlotState::Live),
            slot(1 << 40, 1, SlotState::Live),
        ];
        let segment = SegmentSeen { bytes: 512, slots, is_mapped: true, ..SegmentSeen::default() };
        assert_eq!(map(&segment), "VLL.RVVV");
        let long = SegmentSeen { bytes: 1 << 40, ..segment.clone() };
        assert_eq!(map(&long), format!("R{}", "V".repeat(255)));
        assert_eq!(map(&SegmentSeen { is_mapped: false, ..segment }), "");
    }
}
