use super::*;

#[test]
#[cfg_attr(miri, ignore = "four million steps, and no unsafe code in them")]
fn owner_word_moves_its_version_and_keeps_its_fields() {
    let a = OwnerWord(0).then_live(ClientNo::new(0xFFFF), CellNo::new(0xFF_FFFE));
    assert_eq!((a.version(), a.owner().get(), a.cell().get()), (1, 0xFFFF, 0xFF_FFFE));
    assert!(a.is_live());
    let t = a.then_tomb();
    assert_eq!((t.kind(), t.version()), (OwnerKind::Tomb, 2));
    let mut h = OwnerWord(0);
    for _ in 0..(1 << 22) {
        h = h.then_tomb();
    }
    assert_eq!(h.version(), 0, "the version wraps at 22 bits and nowhere else");
    assert_eq!(OwnerWord(0).kind(), OwnerKind::Tomb);
}

#[test]
fn a_lease_excludes_by_slot_and_low_generation() {
    let cell = Cell::new(0x12_3456_789A, SlotNo::new(77));
    let lease = cell.lease(ClientNo::new(9));
    assert_eq!((lease.owner().get(), lease.slot().get(), lease.generation_low()), (9, 77, 0x56_789A));
    assert!(!Cell::DELETED.is_value() && !Cell::EMPTY.is_value() && cell.is_value());
}

#[test]
fn generations_skip_zero_and_the_range_mark() {
    assert_eq!(next_generation(0xFF_FFFE), 0x100_0000);
    assert_eq!(next_generation(0xFF_FFFF_FFFF), 1);
    assert_eq!(next_generation(0xFF_FFFF_FFFE), 1);
}

#[test]
fn tables_at_one_place_differ_by_their_rebuilds() {
    let table = TableWord::new(23, 0xFF_FFFF_FFFF).with_rebuilds(u16::MAX);
    assert_eq!((table.places(), table.first(), table.rebuilds()), (1 << 23, 0xFF_FFFF_FFFF, u16::MAX));
    assert_eq!(table.with_rebuilds(0), TableWord::new(23, 0xFF_FFFF_FFFF));
}

#[test]
fn members_and_ranges_pack() {
    let m = Member::new(MemberState::Closed, 0x3FFF_FFFF, u32::MAX);
    assert_eq!((m.state(), m.epoch(), m.sheet()), (MemberState::Closed, 0x3FFF_FFFF, u32::MAX));
    let r = RangeWord::new(14, ClientNo::new(65535), SlotNo::new(0xFF_C000));
    assert_eq!((r.slots(), r.owner().get(), r.base().get()), (16384, 65535, 0xFF_C000));
    assert!(r.is_lent() && !RangeWord(0).is_lent());
    let p = ProcessWord::new(u32::MAX, 1000);
    assert_eq!((p.pid(), p.uid(), p.without_pid()), (u32::MAX, 1000, ProcessWord::new(0, 1000)));
    for c in 0..=u16::MAX {
        assert_eq!(parked_bit(ClientNo::new(c)) & PARKED_ANY, 0);
    }
}
