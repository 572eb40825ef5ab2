use super::*;
use tensorlend_layout::directory::Geometry;
use tensorlend_layout::raw::View;

struct World {
    d: Directory,
    names: Names,
    view: View,
    /// Bytes that were ordered, and given back.
    ordered: u64,
    discarded: u64,
}

impl World {
    fn new(names: u32, discards: bool) -> Self {
        let geometry = Geometry { members: 4, names, lists: 1, streams: 1, segments: 1 };
        let view = View::anonymous(geometry.bytes() as usize);
        geometry.initialise(view.at(0).unwrap(), 5, 1);
        let d = Directory::new(&view).unwrap();
        let names = Names::new(&d, names, discards);
        let mut w = Self { d, names, view, ordered: 0, discarded: 0 };
        w.serve();
        w
    }

    /// Makes what is on order and takes back what is not wanted.
    fn serve(&mut self) {
        loop {
            let orders = self.names.order(&self.d, 0);
            for extent in self.names.take_discarded() {
                let words: &[Word] = self.view.array(extent.at as usize, extent.bytes as usize / 8).unwrap();
                for word in words {
                    word.put(0);
                }
                self.discarded += extent.bytes;
            }
            if orders.is_empty() && !self.names.is_building() {
                return;
            }
            for extent in orders {
                assert!(extent.at.is_multiple_of(4096) && extent.at + extent.bytes <= self.view.bytes() as u64);
                self.ordered += extent.bytes;
                self.names.arrived(&self.d, extent.at, Ok(()));
            }
        }
    }

    fn bind(&mut self, key: &[u8], cell: u32) -> Result<(u32, Home), Full> {
        let entry = self.names.place(&self.d, key)?;
        let home = self.names.set(&self.d, entry, HomeKind::Live, 3, cell);
        self.serve();
        Ok((entry, home))
    }

    fn bury(&mut self, key: &[u8]) {
        let found = live_home(&self.d, key).unwrap();
        self.names.bury(&self.d, found.entry);
        self.serve();
    }

    fn places(&self, wanted: impl Fn(PlaceWord) -> bool) -> u64 {
        search(&self.d, 0).filter(|&at| wanted(place_of(&self.d, at))).count() as u64
    }

    fn check(&self) {
        let kinds = |kind| self.d.entries().filter(|(_, e)| Home(e.home.peek()).kind() == kind).count() as u64;
        let names = &self.names;
        assert_eq!(names.live, kinds(HomeKind::Live) + kinds(HomeKind::Reserved));
        assert_eq!(names.named, self.places(|place| place.entry() != 0));
        assert_eq!(names.passed, self.places(|place| place == PlaceWord::PASSED));
        assert_eq!(names.owned.values().map(BTreeSet::len).sum::<usize>() as u64, kinds(HomeKind::Live));
        assert!((names.named + names.passed) * 8 <= self.d.table().places() * 7);
    }
}

#[test]
fn thousands_of_names_grow_the_table_and_never_move() {
    for discards in [true, false] {
        let mut w = World::new(20_000, discards);
        let bound: Vec<(u32, Home)> = (0..20_000).map(|i| w.bind(format!("name {i}").as_bytes(), i).unwrap()).collect();
        assert_eq!(w.bind(b"one more", 1), Err(Full::Names));
        w.check();
        assert_eq!(w.d.table().places(), 32768);
        for (i, &(entry, home)) in bound.iter().enumerate() {
            let found = live_home(&w.d, format!("name {i}").as_bytes()).unwrap();
            assert_eq!((found.entry, found.home, home.cell()), (entry, home, i as u32));
        }
        for i in 0..20_000u32 {
            w.bury(format!("name {i}").as_bytes());
        }
        w.check();
        assert_eq!((w.names.live(), w.d.table().places()), (0, 1 << FIRST_TABLE_LOG2), "the table shrinks");
        assert_eq!(w.discarded > 0, discards);
        for i in 0..20_000u32 {
            let (entry, home) = w.bind(format!("other {i}").as_bytes(), i).unwrap();
            let (_, before) = bound[entry as usize - 1];
            assert!(home.version() > before.version(), "no home word comes back, not even in memory made anew");
        }
        w.check();
    }
}

#[test]
fn names_come_and_go_while_a_table_is_built() {
    for discards in [true, false] {
        let mut w = World::new(200_000, discards);
        let key = |i: u32| format!("name {i}").into_bytes();
        let mut there = BTreeSet::new();
        let (mut built, mut fresh, mut seed) = (0, 0, 1u64);
        while w.d.table().places() < 1 << 18 {
            // One turn of building, not all of it, and then a name or two.
            for extent in w.names.order(&w.d, 0) {
                w.names.arrived(&w.d, extent.at, Ok(()));
            }
            for extent in w.names.take_discarded() {
                let words: &[Word] = w.view.array(extent.at as usize, extent.bytes as usize / 8).unwrap();
                for word in words {
                    word.put(0);
                }
            }
            let turns = if w.names.is_building() { 20 } else { 500 };
            built += u32::from(w.names.is_building());
            for _ in 0..turns {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if seed >> 62 != 0 || there.is_empty() {
                    let entry = w.names.place(&w.d, &key(fresh)).unwrap();
                    w.names.set(&w.d, entry, HomeKind::Live, 3, fresh);
                    there.insert(fresh);
                    fresh += 1;
                } else {
                    // One that came long ago, or just now.
                    let gone = if seed >> 61 & 1 == 0 { there.pop_first() } else { there.pop_last() }.unwrap();
                    let found = live_home(&w.d, &key(gone)).unwrap();
                    w.names.bury(&w.d, found.entry);
                }
            }
        }
        w.serve();
        w.check();
        assert!(built > 30, "{built}");
        for i in 0..fresh {
            let found = live_home(&w.d, &key(i)).map(|f| f.home.cell());
            assert_eq!(found, there.contains(&i).then_some(i));
        }
    }
}

#[test]
fn keys_that_all_collide_are_refused_before_look_ups_are_long() {
    let mut w = World::new(8192, true);
    let mut refused = None;
    let mut alike = 0;
    // All begin at the end of the largest table there can be: those of smaller ones do, too.
    for i in 0u32.. {
        let key = i.to_string().into_bytes();
        if w.d.hash(&key) >> (64 - FIRST_TABLE_LOG2) != (1 << FIRST_TABLE_LOG2) - 1 {
            continue;
        }
        if let Err(full) = w.bind(&key, 1) {
            refused = Some(full);
            break;
        }
        alike += 1;
    }
    assert_eq!((refused, alike), (Some(Full::Collision), SEARCH_MAX + 1));
    w.bind(b"another", 2).unwrap();
    w.check();
}

#[test]
fn a_place_is_passed_as_long_as_one_behind_it_is_reached_through_it() {
    let mut w = World::new(512, true);
    let begins = |w: &World, key: &[u8]| w.d.hash(key) >> (64 - FIRST_TABLE_LOG2);
    let alike = |w: &World, first: char| {
        (0..1_000_000).map(|i| format!("{first}{i}").into_bytes()).find(|k| begins(w, k) == begins(w, b"a")).unwrap()
    };
    let (b, c) = (alike(&w, 'b'), alike(&w, 'c'));
    let (at_a, first) = w.bind(b"a", 1).unwrap();
    let (at_b, _) = w.bind(&b, 2).unwrap();
    w.bury(b"a");
    assert_eq!((w.names.passed, live_home(&w.d, &b).unwrap().entry), (1, at_b));
    let (again, second) = w.bind(b"a", 1).unwrap();
    assert_eq!((again, w.names.passed), (at_a, 0), "the place and the entry are used again");
    assert_ne!(first, second, "the version tells the two lives apart");
    w.bury(b"a");
    assert_eq!(w.bind(&c, 3).unwrap().0, at_a);
    assert!(find(&w.d, b"a").is_none());
    w.bury(&c);
    w.bury(&b);
    assert_eq!(w.names.passed, 0, "places at the end of a run become free");
    w.check();
}

#[test]
fn long_names_take_blocks_and_give_them_back() {
    let mut w = World::new(512, true);
    let key = |i: u32| format!("{i:0>200}").into_bytes();
    for round in 0..3 {
        for i in 0..255 {
            w.bind(&key(i + round), i).unwrap();
        }
        assert_eq!(w.bind(&key(1000), 1), Err(Full::LongNames));
        for i in 0..255 {
            let found = live_home(&w.d, &key(i + round)).unwrap();
            assert_eq!(w.d.key(&w.d.names[found.entry as usize]), Some(key(i + round)));
            w.bury(&key(i + round));
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
        w.bind(&key(i), i).unwrap();
    }
    assert_eq!(w.bind(&key(5000), 1), Err(Full::LongNames));
    assert!(w.ordered > before);
    (0..2047).for_each(|i| assert_eq!(live_home(&w.d, &key(i)).unwrap().home.cell(), i));
    w.check();
}

#[test]
fn churn_does_not_fill_the_last_table() {
    for discards in [true, false] {
        let mut w = World::new(1024, discards);
        for i in 0..50_000u32 {
            w.bind(format!("churn {i}").as_bytes(), i).unwrap();
            if i >= 900 {
                w.bury(format!("churn {}", i - 900).as_bytes());
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
        let entry = match w.names.place(&w.d, format!("name {bound}").as_bytes()) {
            Ok(entry) => entry,
            Err(full) => break full,
        };
        w.names.set(&w.d, entry, HomeKind::Live, 3, bound);
        bound += 1;
        for extent in w.names.order(&w.d, 0) {
            w.names.arrived(&w.d, extent.at, Err("no space".into()));
        }
    };
    assert_eq!(refused, Full::Memory("no space".into()));
    assert!(bound >= 512);
    w.check();
    w.serve();
    w.bind(format!("name {bound}").as_bytes(), bound).unwrap();
    w.check();
}

#[test]
fn memory_follows_the_names_up_and_down() {
    let mut w = World::new(200_000, true);
    let least = w.ordered;
    for i in 0..100_000u32 {
        w.bind(&format!("{i:0>32}").into_bytes(), i).unwrap();
    }
    let held = w.ordered - w.discarded - least;
    assert!(held <= 160 * 100_000, "{held}");
    for i in 0..100_000u32 {
        w.bury(&format!("{i:0>32}").into_bytes());
    }
    let left = w.ordered - w.discarded - least;
    assert!(left <= 3 << 20, "{left}");
    w.check();
}

/// Blocks that are nobody's, or another's: a daemon that took them for its own would hand them out, or count to them.
#[test]
fn keys_that_cannot_be_read_are_not_restored() {
    let long = |number: u32| format!("{}{number}", "n".repeat(120)).into_bytes();
    let forgeries: [fn(&World, u32, u32); 4] = [
        |w, of, _| w.d.names[of as usize].key.set(0x82 | u64::from(u32::MAX) << 16),
        |w, of, _| w.d.names[of as usize].key.set(0x82 | (w.d.long_names.len() as u64) << 16),
        |w, of, other| w.d.names[of as usize].key.set(w.d.names[other as usize].key.peek()),
        |w, of, _| w.d.names[of as usize].key.set(0xFFFF),
    ];
    for forge in forgeries {
        let mut w = World::new(512, false);
        let (other, _) = w.bind(&long(1), 1).unwrap();
        let (forged, _) = w.bind(&long(2), 2).unwrap();
        forge(&w, forged, other);
        w.names = Names::restore(&w.d, 512, false, 0);
        w.check();
        assert_eq!(w.names.live, 1);
        assert!(w.names.blocks_fresh <= 3 && w.names.blocks_free.len() <= 2);
        for number in 3..=200 {
            w.bind(&long(number), number).unwrap();
        }
        w.check();
    }
}
