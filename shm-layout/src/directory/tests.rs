use super::*;
use crate::number::{CellNo, EntryNo};

fn directory() -> Directory {
    let geometry = Geometry { members: 65, names: 512, lists: 1, streams: 1, segments: 1 };
    let view = View::anonymous(geometry.bytes() as usize);
    geometry.initialise(view.at(0).unwrap(), 7, 1);
    Directory::new(&view).unwrap()
}

fn place(d: &Directory, key: &[u8], after: u64) -> usize {
    let table = d.table();
    let mut places =
        Search::new(d.hash(key), d.table_seed(table), table.log2()).flat_map(|first| first..first + BUCKET);
    (table.first() + places.nth(after as usize).unwrap()) as usize
}

/// Binds `key` in `entry`, `after` places after the first place of its search.
fn bind(d: &Directory, entry: u32, key: &[u8], block: u32, after: u64) {
    let hash = d.hash(key);
    let name = &d.names[entry as usize];
    name.set_key(hash, key, block, &d.long_names);
    d.places[place(d, key, after)].set(PlaceWord::new(hash, EntryNo::new(entry)).0);
    name.owner_word.set(OwnerWord(name.owner_word.peek()).then_live(ClientNo::new(3), CellNo::new(9)).0);
}

fn end_name(d: &Directory, entry: u32) {
    let owner_word = &d.names[entry as usize].owner_word;
    owner_word.set(OwnerWord(owner_word.peek()).then_tomb().0);
}

#[test]
fn keys_of_every_length_are_found_and_come_back() {
    let d = directory();
    for (entry, length) in (1..).zip([1, 7, 8, 9, 95, 96, 97, 104, 255, 256]) {
        let key: Vec<u8> = (0..length).map(|i| b'a' + (i % 26) as u8).collect();
        bind(&d, entry, &key, length as u32 % 256, 0);
        let found = d.find(d.hash(&key), &key).unwrap().unwrap();
        assert_eq!((found.entry.get(), found.owner_word.cell().get()), (entry, 9));
        let name = &d.names[entry as usize];
        assert_eq!(d.key(name), Some(key.clone()));
        let mut other = key.clone();
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(name.probe(d.hash(&key), &other, &d.long_names), None);
    }
}

#[test]
fn a_search_goes_past_what_is_gone_and_ends_at_a_free_place() {
    let d = directory();
    let x = d.hash(b"x");
    d.places[place(&d, b"x", 0)].set(PlaceWord::PASSED.0);
    assert_eq!(d.find(x, b"x"), Ok(None));
    // A place of another name with the same hash, and a place that leads nowhere.
    bind(&d, 1, b"other", 0, 0);
    d.places[place(&d, b"x", 1)].set(PlaceWord::new(x, EntryNo::new(1)).0);
    d.places[place(&d, b"x", 2)].set(PlaceWord::new(x, EntryNo::new(u32::MAX)).0);
    bind(&d, 2, b"x", 0, 3);
    assert_eq!(d.find(x, b"x").unwrap().unwrap().entry, EntryNo::new(2));
    end_name(&d, 2);
    assert_eq!(d.find(x, b"x").unwrap().map(|f| f.owner_word.is_live()), Some(false));
    bind(&d, 2, b"x", 0, 3);
    d.places[place(&d, b"x", 2)].set(PlaceWord::FREE.0);
    assert_eq!(d.find(x, b"x"), Ok(None));
    // A look-up rejects a table word that leads out of the sheet.
    d.head().table.set(TableWord::new(11, d.places.len() as u64 - 1).0);
    assert_eq!(d.find(x, b"x"), Err(Replaced));
}

#[test]
fn a_hint_leads_to_the_entry_that_a_look_up_finds() {
    let d = directory();
    let hash = d.hash(b"x");
    let first = d.first_place(hash);
    assert_eq!((first, d.entry_at(first, hash)), (place(&d, b"x", 0), None));
    bind(&d, 2, b"x", 0, BUCKET - 1);
    assert_eq!(d.entry_at(first, hash), Some(EntryNo::new(2)));
    // A place of another name with the same hash comes first: the hint is wrong, and the look-up is right.
    bind(&d, 1, b"other", 0, 0);
    d.places[place(&d, b"x", 0)].set(PlaceWord::new(hash, EntryNo::new(1)).0);
    assert_eq!(d.entry_at(first, hash), Some(EntryNo::new(1)));
    for at in 1..BUCKET - 1 {
        d.places[place(&d, b"x", at)].set(PlaceWord::PASSED.0);
    }
    assert_eq!(d.find(hash, b"x").unwrap().unwrap().entry, EntryNo::new(2));
    assert_eq!(d.entry_at(d.places.len(), hash), None, "a hint never leads out of the sheet");
}

#[test]
fn walkers_see_the_entries_that_may_be_in_use() {
    let d = directory();
    assert_eq!(d.entries().count(), 0);
    bind(&d, 1, b"a", 0, 0);
    d.head().names_end.set(3);
    assert_eq!(d.entries().map(|(n, e)| (n.get(), e.key.peek())).collect::<Vec<_>>(), [(1, 1), (2, 0)]);
    d.head().names_end.set(u64::MAX);
    assert_eq!(d.entries().count(), 512);
}

#[test]
fn the_first_pages_hold_what_everybody_needs() {
    for names in [512, 10_000_000, 1 << 24] {
        let geometry = Geometry { members: 4097, names, lists: 1024, streams: 256, segments: 4096 };
        assert!(geometry.bytes_first() < 5 << 18);
        assert!(geometry.offsets().iter().all(|(at, _)| at % 4096 == 0));
        let places = 1u64 << geometry.table_log2_max();
        assert!(u64::from(names) * 8 <= places * 5);
    }
}

#[test]
fn a_directory_that_lies_about_its_tables_has_no_geometry() {
    let geometry = Geometry { members: 65, names: 512, lists: 1, streams: 1, segments: 1 };
    let bytes = geometry.bytes();
    let d = directory();
    assert_eq!(d.geometry(bytes), Some(geometry));
    assert_eq!(d.geometry(bytes + 4096), None);
    let half = d.places.len() as u64 / 2;
    let table = |log2, first| {
        d.head().table.set(TableWord::new(log2, first).0);
        d.geometry(bytes).is_some()
    };
    assert!(table(FIRST_TABLE_LOG2, half));
    for (log2, first) in [(FIRST_TABLE_LOG2, 1), (FIRST_TABLE_LOG2 + 1, 0), (63, 0), (255, half), (0, 0)] {
        assert!(!table(log2, first), "{log2} at {first}");
    }
    assert!(table(FIRST_TABLE_LOG2, 0));
    let moved = d.head().names_at.peek();
    d.head().names_at.put(moved - 4096);
    assert_eq!(d.geometry(bytes), None);
}

#[test]
fn an_audience_are_the_present_members_with_a_bit() {
    let geometry = Geometry { members: 2000, names: 512, lists: 1, streams: 1, segments: 1 };
    let view = View::anonymous(geometry.bytes() as usize);
    geometry.initialise(view.at(0).unwrap(), 7, 1);
    let d = Directory::new(&view).unwrap();
    let show = |owner: usize, reader| {
        let (word, bit) = audience_bit(ClientNo::new(reader));
        d.members[owner].audience[word].set_bits(bit);
    };
    for number in [3u16, 5, 70, 515, 1027, 1999] {
        Bitmap(&d.head().present).set(ClientNo::new(number));
    }
    show(5, 3);
    show(5, 5);
    show(70, 1999);
    let audience = |owner| d.audience(ClientNo::new(owner)).map(ClientNo::get).collect::<Vec<_>>();
    assert_eq!(audience(5), [3, 515, 1027], "those that share a bit, and not itself");
    assert_eq!(audience(70), [1999]);
    assert_eq!(audience(3), []);
}

#[test]
fn bits_end_where_the_members_do() {
    let d = directory();
    d.head().present[0].set(1 << 1 | 1 << 63);
    d.head().present[1].set(0b11);
    assert_eq!(d.present().map(ClientNo::get).collect::<Vec<_>>(), [1, 63, 64]);
}

#[test]
fn a_search_visits_every_bucket_once() {
    let hash = 0xFEDC_BA98_7654_3210;
    let place = PlaceWord::new(hash, EntryNo::new(7));
    assert_eq!((place.entry().get(), place.is_free(), place.may_be(hash)), (7, false, true));
    assert!(place.may_be(hash ^ 0xFFF_FFFF) && !place.may_be(hash ^ (1 << 28)));
    for log2 in 3..=13 {
        let mut buckets: Vec<u64> = Search::new(hash, 5, log2).collect();
        assert_eq!(place.search(5, log2).collect::<Vec<_>>(), buckets);
        buckets.sort_unstable();
        assert_eq!(buckets, (0..1 << log2).step_by(8).collect::<Vec<u64>>());
    }
    // Another seed gives another order.
    let first = |seed| Search::new(hash, seed, 25).take(4).collect::<Vec<_>>();
    assert_ne!(first(5), first(6));
    assert!(!PlaceWord::PASSED.may_be(1 << 28) && !PlaceWord::FREE.may_be(0));
    assert!(!PlaceWord::PASSED.is_free() && PlaceWord::PASSED.entry() == EntryNo::new(0));
}
