//! A map of a segment as a row of characters.

use tensorlend::observe::{SegmentSeen, SlotState};

/// The characters of a map and their meanings.
pub const LEGEND: [(char, &str); 4] = [('░', "live"), ('█', "leased"), ('▓', "retired"), ('·', "free")];

/// Returns the character of a state.
pub fn character(state: Option<SlotState>) -> char {
    LEGEND[match state {
        Some(SlotState::Live) => 0,
        Some(SlotState::Leased) => 1,
        Some(SlotState::Retired) => 2,
        None => 3,
    }]
    .0
}

/// Returns the state of each of `parts` equal parts of a segment. If slots of several states share
/// a part, `retired` has precedence, then `leased`, then `live`. So a small leased tensor is
/// visible among large tensors without leases.
pub fn parts(segment: &SegmentSeen, parts: usize) -> Vec<Option<SlotState>> {
    let mut map = vec![None; parts];
    if parts == 0 || segment.bytes == 0 {
        return map;
    }
    let part_of = |byte: u64| (u128::from(byte) * parts as u128 / u128::from(segment.bytes)) as usize;
    for slot in segment.slots.iter().filter(|slot| slot.bytes > 0 && slot.offset < segment.bytes) {
        let last = slot.offset.saturating_add(slot.bytes).min(segment.bytes) - 1;
        for part in &mut map[part_of(slot.offset)..=part_of(last)] {
            if rank(*part) < rank(Some(slot.state)) {
                *part = Some(slot.state);
            }
        }
    }
    map
}

fn rank(state: Option<SlotState>) -> u8 {
    match state {
        None => 0,
        Some(SlotState::Live) => 1,
        Some(SlotState::Leased) => 2,
        Some(SlotState::Retired) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::observe::{SlotNo, SlotSeen};

    fn text(bytes: u64, slots: &[(u64, u64, SlotState)], width: usize) -> String {
        let slots = slots.iter().map(|&(offset, bytes, state)| SlotSeen {
            slot: SlotNo::new(0),
            offset,
            bytes,
            state,
            value: None,
        });
        let segment = SegmentSeen { bytes, slots: slots.collect(), ..SegmentSeen::default() };
        parts(&segment, width).into_iter().map(character).collect()
    }

    #[test]
    fn slots_stand_where_they_lie() {
        use SlotState::{Leased, Live, Retired};
        assert_eq!(text(80, &[(0, 20, Live), (30, 10, Leased), (70, 10, Retired)], 8), "░░·█···▓");
        // A single leased byte of a large segment is visible, and so is a leased slot next to one that is not leased.
        assert_eq!(text(1 << 40, &[(0, 1, Leased), (64, 1 << 38, Live)], 8), "█░░·····");
        assert_eq!(text(64, &[(0, 64, Live)], 3), "░░░");
    }

    #[test]
    fn what_a_liar_writes_does_not_leave_the_map() {
        assert_eq!(text(64, &[(u64::MAX, u64::MAX, SlotState::Live), (60, u64::MAX, SlotState::Live)], 4), "···░");
        assert_eq!(text(0, &[(0, 1, SlotState::Live)], 2), "··");
    }
}
