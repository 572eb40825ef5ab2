//! Readers of shared words: for any contents that another client wrote they return a result, and never read outside the
//! given words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorlend::announce::Waiting;
use tensorlend::catalogue::{Catalogue, RING, SlotRecord};
use tensorlend::dataset::{Index, MEMBERS_MAX};
use tensorlend::directory::{Directory, Geometry};
use tensorlend::header::{Magic, SheetHeader};
use tensorlend::leases::{LeaseTable, SHARD_ENTRIES, SHARDS};
use tensorlend::name;
use tensorlend::raw::View;
use tensorlend::stream::{Found, HeaderSummary, Ring, RingEntry, StreamRing};
use tensorlend::tensor::{SlotInfo, SmallHead, check_extent};
use tensorlend::word::{Absorbed, Cell, MemberState, Word};
use tensorlend::{DType, Device};

/// Returns as many words as the bytes contain.
fn words(data: &[u8]) -> impl Iterator<Item = u64> + '_ {
    data.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// Reads each 10 bytes of `data` as a 16-bit word index, counted from byte `from` of the view, and a 64-bit value, and
/// writes the value there.
fn scribble(view: &View, from: usize, data: &[u8]) {
    for change in data.chunks_exact(10) {
        let at = from + 8 * usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(word) = view.at::<Word>(at) {
            word.set(words(&change[2..]).next().unwrap_or_default());
        }
    }
}

fn record(data: &[u8]) {
    let mut all = [0u64; 16];
    all.iter_mut().zip(words(data)).for_each(|(to, from)| *to = from);
    let view = View::anonymous(128);
    let slot: &SlotRecord = view.at(0).expect("it is as long");
    slot.words.iter().zip(all).for_each(|(word, value)| word.set(value));
    assert_eq!(slot.copy(), all);
    let segment_bytes = words(data.get(128..).unwrap_or_default()).next().unwrap_or(1 << 20);
    let summary = slot.summary(all[0] >> 24);
    if let Ok(info) = SlotInfo::unpack(&all) {
        if info.check(all[0] >> 24, segment_bytes).is_ok() {
            let end = info.data_offset.checked_add(info.data_bytes).expect("it was checked");
            assert!(end <= segment_bytes, "{info:?} lies outside its segment of {segment_bytes}");
        }
        assert_eq!(SlotInfo::unpack(&info.pack()), Ok(info));
        let _ = (info.extension_bytes(), info.summary());
    }
    let raw: HeaderSummary = core::array::from_fn(|i| all[i]);
    for words in summary.into_iter().chain([raw]) {
        let _ = SlotInfo::check_summary(&words, segment_bytes);
        let _ = SlotInfo::of_summary(&words, all[6] >> 24);
        if let Some(summary) = SmallHead::of_entry(&words).and_then(SmallHead::checked_summary) {
            assert!(SlotInfo::check_summary(&summary, u64::MAX) && summary[2] <= 32);
        }
    }
}

fn extent(data: &[u8]) {
    let Some((&[dtype, ndim, flags], rest)) = data.split_first_chunk() else { return };
    let dtype = DType::ALL[usize::from(dtype) % DType::ALL.len()];
    let mut numbers = words(rest);
    let ndim = usize::from(ndim % 18);
    let (byte_offset, bytes) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let shape: Vec<u64> = numbers.by_ref().chain(std::iter::repeat(1)).take(ndim).collect();
    let strides: Vec<i64> = numbers.map(u64::cast_signed).chain(std::iter::repeat(1)).take(ndim).collect();
    let strides = (flags & 1 == 1).then_some(&strides[..]);
    let Ok(elements) = check_extent(dtype, &shape, strides, byte_offset, bytes) else { return };
    // The tensor's elements are inside; for small tensors this checks all of them.
    let item = dtype.item_bytes() as i128;
    if elements == 0 || elements > 4096 {
        return;
    }
    let steps: Vec<i128> = match strides {
        Some(strides) => strides.iter().map(|&s| i128::from(s)).collect(),
        None => {
            let mut steps = vec![1i128; ndim];
            for axis in (1..ndim).rev() {
                steps[axis - 1] = steps[axis] * i128::from(shape[axis]);
            }
            steps
        }
    };
    for element in 0..elements {
        let mut left = element;
        let mut at = i128::from(byte_offset);
        for axis in (0..ndim).rev() {
            at += i128::from(left % shape[axis]) * steps[axis] * item;
            left /= shape[axis];
        }
        assert!(at >= 0 && at + item <= i128::from(bytes), "element {element} of {shape:?} {strides:?} lies at {at}");
    }
}

fn index(data: &[u8]) {
    let Some(index) = Index::new(data) else { return };
    assert!(index.len() <= MEMBERS_MAX && index.is_empty() == (index.len() == 0));
    let sound = index.check();
    let _ = (index.find("x"), index.find(""));
    for at in 0..index.len() {
        let member = index.member(at);
        if sound {
            assert!(name::check(member.name).is_ok());
            assert_eq!(index.find(member.name), Some(at), "a sound index finds each of its members");
        }
    }
}

fn directory(data: &[u8]) {
    let geometry = Geometry { members: 9, names: 64, lists: 2, streams: 2, segments: 4 };
    let view = View::anonymous(geometry.bytes() as usize);
    geometry.initialise(view.at(0).expect("long enough"), 7, 1);
    let Some((&at, rest)) = data.split_first() else { return };
    let d = Directory::new(&view).expect("its tables lie inside");
    let head = d.head();
    // The tables' locations are the daemon's and trusted; their contents are not.
    let table = [head.names_at.peek(), head.places_at.peek(), head.long_names_at.peek(), head.lists_at.peek(), 8192];
    scribble(&view, table[usize::from(at) % table.len()] as usize, rest);
    for key in [&b"n0"[..], b"", &[b'x'; 255], rest] {
        let _ = d.find(d.hash(key), key);
    }
    for (_, entry) in d.entries() {
        if let Some(key) = d.key(entry) {
            let _ = (name::parse(&key), d.find(d.hash(&key), &key));
        }
    }
    let _ = (d.present().count(), d.waiters().count(), d.table());
}

fn ring(data: &[u8]) {
    const CAPACITY: usize = 8;
    let view = View::anonymous(4096 + CAPACITY * 64);
    let (head, body) = data.split_at(data.len() / 2);
    scribble(&view, 0, head);
    scribble(&view, 4096, body);
    let entries: &[RingEntry] = view.array(size_of::<StreamRing>(), CAPACITY).expect("long enough");
    let ring = Ring { head: view.at(0).expect("long enough"), entries };
    let _ = SheetHeader::check(&view, Magic::Stream);
    for number in words(data).chain(0..3).take(20) {
        if let Found::Message(cell, summary) = ring.find(number) {
            assert!(ring.still_has(number, cell));
            let _ = SlotInfo::check_summary(&summary, 1 << 20);
            let _ = SlotInfo::of_summary(&summary, cell.generation());
        }
    }
}

fn tables(data: &[u8]) {
    let leases = View::anonymous(size_of::<LeaseTable>());
    let (first, second) = data.split_at(data.len() / 2);
    scribble(&leases, 64, first);
    scribble(&leases, 36864, first);
    let table: &LeaseTable = leases.at(0).expect("long enough");
    let mut found = 0;
    table.scan(|_| found += 1);
    assert!(found <= SHARDS * SHARD_ENTRIES);
    let view = View::anonymous(size_of::<Catalogue>());
    scribble(&view, 64, second);
    scribble(&view, 4096, second);
    let catalogue: &Catalogue = view.at(0).expect("long enough");
    let absorbed = Word::new(Absorbed::new(MemberState::Open, words(second).next().unwrap_or(0) >> 2).0);
    if let Ok(Some(waiting)) = Waiting::read(catalogue, &absorbed) {
        assert!(waiting.count() <= RING as u64);
        assert_eq!(waiting.all_cells().count() as u64, waiting.count());
        assert!(waiting.cells(u64::MAX).all(|cell| cell.get() <= 0xFF_FFFF));
    }
}

fn numbers(data: &[u8]) {
    for word in words(data) {
        let cell = Cell(word);
        assert!(!cell.is_value() || cell.slot().get() < tensorlend::word::SLOTS_MAX);
        if let Some(dtype) = DType::unpack(word as u32) {
            assert_eq!(DType::unpack(dtype.pack()), Some(dtype));
        }
        if let Some(device) = Device::from_codes(word as u8, (word >> 8) as u8) {
            let _ = device.to_string();
        }
    }
    if let Ok(text) = core::str::from_utf8(data) {
        if name::check(text).is_ok() {
            assert!(name::parse(text.as_bytes()).is_some());
        }
        let _ = text.parse::<DType>();
    }
    let _ = name::parse(data);
}

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else { return };
    match which % 7 {
        0 => record(data),
        1 => extent(data),
        2 => index(data),
        3 => directory(data),
        4 => ring(data),
        5 => tables(data),
        _ => numbers(data),
    }
});
