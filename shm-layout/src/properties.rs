//! Properties of what this process reads from others: words, records, keys and messages. For any contents, a parser refuses
//! them or returns something safe. `cargo test` checks the properties with random contents. Kani proves them for all
//! contents of the stated lengths: `cargo kani -p tensorlend-layout`.

use crate::name::{self, KeyKind, list_key, stream_key};
use crate::tensor::{ALIGN, NDIM_INLINE, SlotInfo, SlotKind, check_extent};
use crate::wire::{Reply, Request, decode, encode};
use crate::word::{Cell, Member, OwnerKind, OwnerWord, RangeWord, SLOT_NONE, SubscriberWord, TableWord};
use crate::{DType, Uuid};

/// Each packed word has parts that a table of this layout can contain, and the parts make the word again.
fn any_word_has_parts(word: u64) {
    let cell = Cell(word);
    assert_eq!(Cell::new(cell.generation(), cell.slot()).0, word);
    assert!(cell.slot() <= SLOT_NONE);
    let member = Member(word);
    assert_eq!(Member::new(member.state(), member.epoch(), member.sheet()).state(), member.state());
    let subscriber = SubscriberWord(word);
    let (client, cursor) = (subscriber.client(), subscriber.cursor());
    let again = SubscriberWord::new(client, cursor, subscriber.epoch(), subscriber.has_wake());
    assert_eq!((again.client(), again.cursor(), again.epoch()), (client, cursor, subscriber.epoch()));
    let range = RangeWord(word);
    if range.is_lent() {
        assert!(range.slots() == 0 || range.slots().is_power_of_two());
        let _ = (range.owner(), range.base());
    }
    let owner = OwnerWord(word);
    match owner.kind() {
        OwnerKind::Live => _ = (owner.owner(), owner.cell(), owner.stream(), owner.list()),
        _ => assert!(!owner.is_live()),
    }
    let table = TableWord(word);
    let _ = (table.log2(), table.rebuilds(), table.first());
}

/// A record that passes its check describes bytes within its segment.
fn any_record_is_refused_or_safe(words: &[u64; 16], segment: u64) {
    let Ok(info) = SlotInfo::unpack(words) else { return };
    if info.check(info.generation, segment).is_ok() {
        let end = info.data_offset.checked_add(info.data_bytes).expect("a checked range ends");
        assert!(end <= segment && info.data_offset % ALIGN == 0);
        if !info.extended && info.kind == SlotKind::Tensor {
            let shape = &info.dims[..usize::from(info.ndim).min(NDIM_INLINE)];
            let _ = check_extent(info.dtype, shape, None, info.byte_offset, info.data_bytes);
        }
    }
}

/// A summary that passes the check describes a plain tensor within its segment.
fn any_summary_is_refused_or_safe(words: &[u64; 6], segment: u64) {
    if let Some(Ok(info)) = SlotInfo::of_summary(words, 7)
        && info.check(7, segment).is_ok()
    {
        assert!(info.kind == SlotKind::Tensor && !info.extended && info.next == SLOT_NONE);
        assert!(info.data_offset.checked_add(info.data_bytes).is_some_and(|end| end <= segment));
    }
}

/// The first and the last element of a checked extent are inside its bytes.
fn any_extent_is_refused_or_inside(shape: [u64; 2], strides: [i64; 2], offset: u64, bytes: u64) {
    if check_extent(DType::U8, &shape, Some(&strides), offset, bytes).is_err() || shape.contains(&0) {
        return;
    }
    for corner in [[0, 0], [shape[0] - 1, 0], [0, shape[1] - 1], [shape[0] - 1, shape[1] - 1]] {
        let steps = corner.iter().zip(strides).map(|(&index, stride)| i128::from(index) * i128::from(stride));
        let at = i128::from(offset) + steps.sum::<i128>();
        assert!(0 <= at && at < i128::from(bytes));
    }
}

/// A key is refused, or is the key of the name that it contains.
fn any_key_is_refused_or_of_its_name(key: &[u8]) {
    match name::parse(key) {
        Some((KeyKind::Name, name)) => assert_eq!(name.as_bytes(), key),
        Some((KeyKind::List, name)) => assert_eq!(list_key(name), key),
        Some((KeyKind::Stream, name)) => assert_eq!(stream_key(name), key),
        Some((KeyKind::Item, name)) => assert!(name.is_empty() && key.len() == name::item_key(0, 0).len()),
        None => {}
    }
}

/// A packet is refused, or its message is the same after another encoding.
fn any_packet_is_read_or_refused(packet: &[u8]) {
    if let Some(request) = decode::<Request>(packet) {
        assert_eq!(decode(&encode(&request)), Some(request));
    }
    if let Some(reply) = decode::<Reply>(packet) {
        assert_eq!(decode(&encode(&reply)), Some(reply));
    }
}

/// The words of a UUID make it again.
fn any_uuid_has_words(bytes: [u8; 16]) {
    assert_eq!(Uuid::from_words(Uuid(bytes).words()), Uuid(bytes));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_word_has_parts(word in any::<u64>()) {
            super::any_word_has_parts(word);
        }

        #[test]
        fn any_record_is_refused_or_safe(words in prop::array::uniform16(any::<u64>()), segment in 0u64..1 << 40) {
            super::any_record_is_refused_or_safe(&words, segment);
        }

        #[test]
        fn any_summary_is_refused_or_safe(words in prop::array::uniform6(any::<u64>()), segment in 0u64..1 << 40) {
            super::any_summary_is_refused_or_safe(&words, segment);
        }

        #[test]
        fn any_extent_is_refused_or_inside(
            shape in prop::array::uniform2(prop_oneof![0u64..40, any::<u64>()]),
            strides in prop::array::uniform2(prop_oneof![-40i64..40, any::<i64>()]),
            offset in prop_oneof![0u64..400, any::<u64>()],
            bytes in prop_oneof![0u64..2000, any::<u64>()],
        ) {
            super::any_extent_is_refused_or_inside(shape, strides, offset, bytes);
        }

        #[test]
        fn any_key_is_refused_or_of_its_name(kind in 0u8..5, rest in prop::collection::vec(any::<u8>(), 0..40)) {
            super::any_key_is_refused_or_of_its_name(&rest);
            super::any_key_is_refused_or_of_its_name(&[&[kind], rest.as_slice()].concat());
        }

        #[test]
        fn any_packet_is_read_or_refused(packet in prop::collection::vec(any::<u8>(), 0..300)) {
            super::any_packet_is_read_or_refused(&packet);
        }

        #[test]
        fn any_uuid_has_words(bytes in any::<[u8; 16]>()) {
            super::any_uuid_has_words(bytes);
        }
    }
}

/// The proofs. Kani fails a proof if the bound of its loops is too low.
#[cfg(kani)]
mod proofs {
    #[kani::proof]
    fn words() {
        super::any_word_has_parts(kani::any());
        super::any_uuid_has_words(kani::any());
    }

    #[kani::proof]
    #[kani::unwind(17)]
    fn records() {
        super::any_record_is_refused_or_safe(&kani::any(), kani::any());
        super::any_summary_is_refused_or_safe(&kani::any(), kani::any());
    }

    #[kani::proof]
    #[kani::unwind(3)]
    fn extents() {
        let small = |value: u64| u64::from(value as u8);
        let strides: [i8; 2] = kani::any();
        let shape: [u8; 2] = kani::any();
        super::any_extent_is_refused_or_inside(
            shape.map(u64::from),
            strides.map(i64::from),
            small(kani::any()),
            kani::any(),
        );
    }

    #[kani::proof]
    #[kani::unwind(19)]
    fn keys() {
        let key: [u8; 18] = kani::any();
        let length: usize = kani::any_where(|length| *length <= key.len());
        super::any_key_is_refused_or_of_its_name(&key[..length]);
    }

    #[kani::proof]
    #[kani::unwind(13)]
    fn packets() {
        let packet: [u8; 12] = kani::any();
        let length: usize = kani::any_where(|length| *length <= packet.len());
        super::any_packet_is_read_or_refused(&packet[..length]);
    }
}
