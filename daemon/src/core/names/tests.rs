use super::colliding::chosen_keys;
use super::*;
use std::collections::BTreeSet;
use tensorlend_layout::directory::{FoundName, Geometry, Search};
use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::random::splitmix64;
use tensorlend_layout::raw::View;

/// Returns the entry of a live key.
fn find_live(d: &Directory, key: &[u8]) -> Option<FoundName> {
    d.find(d.hash(key), key).unwrap().filter(|found| found.owner_word.is_live())
}

struct World {
    d: Directory,
    names: Names,
    view: View,
    /// Bytes that were ordered, and bytes that were returned.
    ordered: u64,
    discarded: u64,
}

impl World {
    fn new(names: u32, discards: bool) -> Self {
        let geometry = Geometry { members: 4, names, lists: 1, streams: 1, segments: 1 };
        let view = View::anonymous(geometry.bytes() as usize);
        geometry.initialise(view.at(0).unwrap(), 5, 1);
        let d = Directory::new(&view).unwrap();
        let names = Names::new(&d, names, discards, 11);
        let mut w = Self { d, names, view, ordered: 0, discarded: 0 };
        w.serve();
        w
    }

    /// Makes the memory on order and takes back the discarded memory.
    fn serve(&mut self) {
        loop {
            self.names.advance(&self.d);
            for extent in self.names.take_discarded() {
                assert!(extent.bytes <= DISCARD_BYTES);
                let words: &[Word] = self.view.array(extent.at as usize, extent.bytes as usize / 8).unwrap();
                for word in words {
                    word.put(0);
                }
                self.discarded += extent.bytes;
            }
            let orders = self.names.order(&self.d, 0);
            if orders.is_empty() && !self.names.is_building() && !self.names.is_discarding() {
                return;
            }
            for extent in orders {
                assert!(extent.at.is_multiple_of(4096) && extent.at + extent.bytes <= self.view.bytes() as u64);
                self.ordered += extent.bytes;
                self.names.arrived(&self.d, extent.at, Ok(()));
            }
        }
    }

    /// Makes an entry lead to a cell of client 3.
    fn live(&mut self, entry: EntryNo, cell: CellNo) -> OwnerWord {
        let after = super::owner_word_of(&self.d, entry).then_live(ClientNo::new(3), cell);
        self.names.set(&self.d, entry, after);
        after
    }

    fn bind(&mut self, key: &[u8], cell: CellNo) -> Result<(EntryNo, OwnerWord), Full> {
        self.bind_as(key, cell, |_| true)
    }

    fn bind_as(
        &mut self,
        key: &[u8],
        cell: CellNo,
        is_own: impl Fn(OwnerWord) -> bool,
    ) -> Result<(EntryNo, OwnerWord), Full> {
        let entry = self.names.place(&self.d, key, is_own)?;
        let owner_word = self.live(entry, cell);
        self.serve();
        Ok((entry, owner_word))
    }

    fn set_tombstone(&mut self, key: &[u8]) {
        let found = find_live(&self.d, key).unwrap();
        self.names.set_tombstone(&self.d, found.entry);
        self.serve();
    }

    /// Returns the number of places that the search for a key passes.
    fn passed(&self, key: &[u8]) -> u64 {
        self.d.passed_by(self.d.hash(key)).count() as u64
    }

    /// Returns the number of places that lead to no entry and that searches pass.
    fn passed_over(&self) -> u64 {
        self.names.table.used() - self.names.table.named()
    }

    fn check(&self) {
        let kinds =
            |kind| self.d.entries().filter(|(_, e)| OwnerWord(e.owner_word.peek()).kind() == kind).count() as u64;
        let names = &self.names;
        assert_eq!(names.live, kinds(OwnerKind::Live) + kinds(OwnerKind::Reserved));
        names.table.check(&self.d);
        assert_eq!(names.table.word(), self.d.table());
        assert_eq!(names.owned.all() as u64, kinds(OwnerKind::Live));
        assert!(names.table.used() * 8 <= self.d.table().places() * 7);
    }
}

#[test]
fn thousands_of_names_grow_the_table_and_never_move() {
    for discards in [true, false] {
        let mut w = World::new(20_000, discards);
        let bound: Vec<(EntryNo, OwnerWord)> =
            (0..20_000).map(|i| w.bind(format!("name {i}").as_bytes(), CellNo::new(i)).unwrap()).collect();
        assert_eq!(w.bind(b"one more", CellNo::new(1)), Err(Full::Names));
        w.check();
        assert_eq!(w.d.table().places(), 32768);
        for (i, &(entry, owner_word)) in bound.iter().enumerate() {
            let found = find_live(&w.d, format!("name {i}").as_bytes()).unwrap();
            assert_eq!((found.entry, found.owner_word, owner_word.cell().index()), (entry, owner_word, i));
        }
        for i in 0..20_000u32 {
            w.set_tombstone(format!("name {i}").as_bytes());
        }
        w.check();
        assert_eq!((w.names.live(), w.d.table().places()), (0, 1 << FIRST_TABLE_LOG2), "the table shrinks");
        assert_eq!(w.discarded > 0, discards);
        for i in 0..20_000u32 {
            let (entry, owner_word) = w.bind(format!("other {i}").as_bytes(), CellNo::new(i)).unwrap();
            let (_, before) = bound[entry.index() - 1];
            assert!(
                owner_word.version() > before.version(),
                "no owner word is used twice, even if its memory was made again"
            );
        }
        w.check();
    }
}

/// Any number of requests may order room in one turn.
#[test]
fn a_table_grows_by_one_slice_in_a_turn() {
    let mut w = World::new(200_000, true);
    for i in 0.. {
        let entry = w.names.place(&w.d, format!("name {i}").as_bytes(), |_| true).unwrap();
        w.live(entry, CellNo::new(i));
        w.names.take_discarded();
        for extent in w.names.order(&w.d, 0) {
            w.names.arrived(&w.d, extent.at, Ok(()));
        }
        if !w.names.is_building() {
            continue;
        }
        let before = w.d.table();
        for _ in 0..100 {
            for extent in w.names.order(&w.d, 4096) {
                w.names.arrived(&w.d, extent.at, Ok(()));
            }
        }
        let mut turns = 0;
        while w.names.is_building() {
            w.names.advance(&w.d);
            turns += 1;
        }
        // The first slice was made at once.
        let slices = (w.d.table().places() + before.places()).div_ceil(1 << 14);
        assert!(turns + 1 >= slices, "{turns} turns from {} places", before.places());
        assert!(w.names.is_discarding() && w.names.take_discarded().iter().all(|it| it.bytes <= DISCARD_BYTES));
        if before.places() == 1 << 16 {
            break;
        }
        w.serve();
    }
    w.serve();
    w.check();
}

#[test]
fn names_come_and_go_while_a_table_is_built() {
    for discards in [true, false] {
        let mut w = World::new(200_000, discards);
        let key = |i: u32| format!("name {i}").into_bytes();
        let mut there = BTreeSet::new();
        let (mut built, mut fresh, mut seed) = (0, 0, 1u64);
        while w.d.table().places() < 1 << 18 {
            // Each round is one turn of building, then adds one or two names.
            w.names.advance(&w.d);
            for extent in w.names.take_discarded() {
                let words: &[Word] = w.view.array(extent.at as usize, extent.bytes as usize / 8).unwrap();
                for word in words {
                    word.put(0);
                }
            }
            for extent in w.names.order(&w.d, 0) {
                w.names.arrived(&w.d, extent.at, Ok(()));
            }
            let turns = if w.names.is_building() { 20 } else { 500 };
            built += u32::from(w.names.is_building());
            for _ in 0..turns {
                let random = splitmix64(&mut seed);
                if random >> 62 != 0 || there.is_empty() {
                    let entry = w.names.place(&w.d, &key(fresh), |_| true).unwrap();
                    w.live(entry, CellNo::new(fresh));
                    there.insert(fresh);
                    fresh += 1;
                } else {
                    // Remove the oldest name, or the newest.
                    let gone = if random >> 61 & 1 == 0 { there.pop_first() } else { there.pop_last() }.unwrap();
                    let found = find_live(&w.d, &key(gone)).unwrap();
                    w.names.set_tombstone(&w.d, found.entry);
                }
            }
        }
        w.serve();
        w.check();
        assert!(built > 30, "{built}");
        for i in 0..fresh {
            let found = find_live(&w.d, &key(i)).map(|f| f.owner_word.cell().get());
            assert_eq!(found, there.contains(&i).then_some(i));
        }
    }
}

#[test]
fn keys_whose_searches_are_alike_are_refused_to_their_own_user_alone() {
    let mut w = World::new(8192, true);
    let honest = b"model/weights";
    let alike = chosen_keys(&w.d, w.d.hash(honest), 28);
    let theirs = |owner_word: OwnerWord| owner_word.cell() == CellNo::new(1);
    let mut bound = 0;
    let refused = alike
        .map(|key| w.bind_as(&key, CellNo::new(1), theirs))
        .inspect(|it| bound += u64::from(it.is_ok()))
        .find_map(Result::err);
    assert_eq!((refused, bound), (Some(Full::Collision), SEARCH_MAX + 1));
    assert_eq!(w.passed(honest), SEARCH_MAX + 1);
    w.bind_as(honest, CellNo::new(2), |owner_word| owner_word.cell() == CellNo::new(2)).unwrap();
    assert_eq!(find_live(&w.d, honest).unwrap().owner_word.cell(), CellNo::new(2));
    w.check();
    // The daemon adds an announced name even where it refuses a requested one.
    let more: Vec<_> = chosen_keys(&w.d, w.d.hash(honest), 28).skip(bound as usize).take(10).collect();
    for key in more {
        assert_eq!(w.bind_as(&key, CellNo::new(1), theirs), Err(Full::Collision));
        let entry = w.names.add_announced(&w.d, w.d.hash(&key), &key, theirs).unwrap();
        w.live(entry, CellNo::new(1));
        w.set_tombstone(&key);
    }
    w.check();
}

#[test]
fn keys_that_stand_in_a_names_way_are_spread_by_the_next_table() {
    let mut w = World::new(65_536, true);
    let wanted = b"model/weights";
    // Every member knows the hash's key and the current table's seed. So an attacker can fill the buckets that a search for the
    // name visits, one after the other.
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let (mut table, mut in_table, mut longest) = (TableWord(0), 0, 0);
    let mut way = BTreeMap::new();
    for i in 0u64.. {
        if keys.len() == 8_000 {
            break;
        }
        if w.d.table() != table {
            (table, in_table) = (w.d.table(), 0);
            let search = Search::new(w.d.hash(wanted), w.d.table_seed(table), table.log2());
            way = search.zip(0..).collect();
        }
        let key = format!("in the way {i}").into_bytes();
        let first = Search::new(w.d.hash(&key), w.d.table_seed(table), table.log2()).next().unwrap();
        if way[&first] * 8 < in_table + 64 {
            // The names belong to many users: a single one would be refused.
            w.bind_as(&key, CellNo::new(1), |_| false).unwrap();
            keys.push(key);
            in_table += 1;
            longest = longest.max(w.passed(wanted));
        }
    }
    w.check();
    assert!(longest > SEARCH_MAX, "{longest}");
    // The daemon does not refuse the name, since none of the passed names belongs to its user. In the next table the search for
    // it passes few places.
    w.bind_as(wanted, CellNo::new(2), |owner_word| owner_word.cell() == CellNo::new(2)).unwrap();
    let names: Vec<Vec<u8>> = (0..2_000).map(|i| format!("an honest name, number {i}").into_bytes()).collect();
    for name in &names {
        w.bind_as(name, CellNo::new(2), |owner_word| owner_word.cell() == CellNo::new(2)).unwrap();
    }
    let after = w.passed(wanted);
    assert!(after < CROWDED, "{after}");
    let passed: Vec<u64> = names.iter().map(|name| w.passed(name)).collect();
    let (most, all) = (passed.iter().max().unwrap(), passed.iter().sum::<u64>());
    assert!(*most < SEARCH_MAX && all < 16 * 2_000, "at most {most}, {all} in all");
    for key in &keys {
        w.set_tombstone(key);
    }
    w.check();
    assert!(names.iter().all(|name| find_live(&w.d, name).is_some()));
}

#[test]
fn chosen_keys_have_the_hashes_that_were_wanted() {
    let w = World::new(512, true);
    let target = w.d.hash(b"model/weights");
    for key in chosen_keys(&w.d, target, 28).take(20) {
        assert_eq!(w.d.hash(&key) >> 28, target >> 28);
    }
}

#[test]
fn a_place_is_passed_as_long_as_one_behind_it_is_reached_through_it() {
    let mut w = World::new(512, true);
    let begins =
        |w: &World, key: &[u8]| Search::new(w.d.hash(key), w.d.table_seed(w.d.table()), FIRST_TABLE_LOG2).next();
    let alike = |w: &World, first: char| {
        (0..1_000_000).map(|i| format!("{first}{i}").into_bytes()).find(|k| begins(w, k) == begins(w, b"a")).unwrap()
    };
    let (b, c) = (alike(&w, 'b'), alike(&w, 'c'));
    let (at_a, first) = w.bind(b"a", CellNo::new(1)).unwrap();
    let (at_b, _) = w.bind(&b, CellNo::new(2)).unwrap();
    w.set_tombstone(b"a");
    assert_eq!((w.passed_over(), find_live(&w.d, &b).unwrap().entry), (1, at_b));
    let (again, second) = w.bind(b"a", CellNo::new(1)).unwrap();
    assert_eq!((again, w.passed_over()), (at_a, 0), "the place and the entry are used again");
    assert_ne!(first, second, "the version tells the two lives apart");
    w.set_tombstone(b"a");
    assert_eq!(w.bind(&c, CellNo::new(3)).unwrap().0, at_a);
    assert!(w.d.find(w.d.hash(b"a"), b"a").unwrap().is_none());
    w.set_tombstone(&c);
    w.set_tombstone(&b);
    assert_eq!(w.passed_over(), 0, "places at the end of a run become free");
    w.check();
}

#[test]
fn long_names_take_blocks_and_give_them_back() {
    let mut w = World::new(512, true);
    let key = |i: u32| format!("{i:0>200}").into_bytes();
    for round in 0..3 {
        for i in 0..255 {
            w.bind(&key(i + round), CellNo::new(i)).unwrap();
        }
        assert_eq!(w.bind(&key(1000), CellNo::new(1)), Err(Full::LongNames));
        for i in 0..255 {
            let found = find_live(&w.d, &key(i + round)).unwrap();
            assert_eq!(w.d.key(&w.d.names[found.entry.index()]), Some(key(i + round)));
            w.set_tombstone(&key(i + round));
        }
        w.check();
    }
}

#[test]
fn blocks_of_long_names_come_as_they_are_needed() {
    let mut w = World::new(16384, true);
    let before = w.ordered;
    let key = |i: u32| format!("{i:0>120}").into_bytes();
    for i in 0..2047 {
        w.bind(&key(i), CellNo::new(i)).unwrap();
    }
    assert_eq!(w.bind(&key(5000), CellNo::new(1)), Err(Full::LongNames));
    assert!(w.ordered > before);
    (0..2047).for_each(|i| assert_eq!(find_live(&w.d, &key(i)).unwrap().owner_word.cell(), CellNo::new(i)));
    w.check();
}

#[test]
fn churn_does_not_fill_the_last_table() {
    for discards in [true, false] {
        let mut w = World::new(1024, discards);
        for i in 0..50_000u32 {
            w.bind(format!("churn {i}").as_bytes(), CellNo::new(i)).unwrap();
            if i >= 900 {
                w.set_tombstone(format!("churn {}", i - 900).as_bytes());
            }
        }
        w.check();
    }
}

#[test]
fn without_memory_names_are_refused_until_there_is_some() {
    let mut w = World::new(65536, true);
    let mut bound = 0;
    let refused = loop {
        let entry = match w.names.place(&w.d, format!("name {bound}").as_bytes(), |_| true) {
            Ok(entry) => entry,
            Err(full) => break full,
        };
        w.live(entry, CellNo::new(bound));
        bound += 1;
        for extent in w.names.order(&w.d, 0) {
            w.names.arrived(&w.d, extent.at, Err("no space".into()));
        }
    };
    assert_eq!(refused, Full::Memory("no space".into()));
    assert!(bound >= 512);
    w.check();
    w.serve();
    w.bind(format!("name {bound}").as_bytes(), CellNo::new(bound)).unwrap();
    w.check();
}

#[test]
fn memory_follows_the_names_up_and_down() {
    let mut w = World::new(200_000, true);
    let least = w.ordered;
    for i in 0..100_000u32 {
        w.bind(&format!("{i:0>32}").into_bytes(), CellNo::new(i)).unwrap();
    }
    let held = w.ordered - w.discarded - least;
    assert!(held <= 160 * 100_000, "{held}");
    for i in 0..100_000u32 {
        w.set_tombstone(&format!("{i:0>32}").into_bytes());
    }
    let left = w.ordered - w.discarded - least;
    assert!(left <= 3 << 20, "{left}");
    w.check();
}

/// Blocks that belong to nobody, or to another key. A daemon that accepted them would reuse them, or count up to them.
#[test]
fn keys_that_cannot_be_read_are_not_restored() {
    let long = |number: u32| format!("{}{number}", "n".repeat(120)).into_bytes();
    let forgeries: [fn(&World, EntryNo, EntryNo); 4] = [
        |w, of, _| w.d.names[of.index()].key.set(0x82 | u64::from(u32::MAX) << 16),
        |w, of, _| w.d.names[of.index()].key.set(0x82 | (w.d.long_names.len() as u64) << 16),
        |w, of, other| w.d.names[of.index()].key.set(w.d.names[other.index()].key.peek()),
        |w, of, _| w.d.names[of.index()].key.set(0xFFFF),
    ];
    for forge in forgeries {
        let mut w = World::new(512, false);
        let (other, _) = w.bind(&long(1), CellNo::new(1)).unwrap();
        let (forged, _) = w.bind(&long(2), CellNo::new(2)).unwrap();
        forge(&w, forged, other);
        w.names = Names::restore(&w.d, 512, false, 0, 12);
        w.check();
        assert_eq!(w.names.live, 1);
        let (used, free) = w.names.blocks.counts();
        assert!(used <= 3 && free <= 2);
        for number in 3..=200 {
            w.bind(&long(number), CellNo::new(number)).unwrap();
        }
        w.check();
    }
}
