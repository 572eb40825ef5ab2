//! The directory's tables of names, as their one writer keeps them.
//!
//! `live + tombs + free == entries` of the current table, and `live <= max`. Every store of a home word moves its
//! version, and an entry never moves within a table.

use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::{Directory, ENTRY_NAME_WORDS, FIRST_TABLE_LOG2, FoundName};
use tensorlend_layout::word::{Home, HomeKind, TableWord};

/// Why a key found no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many names as allowed.
    Names,
    /// As many keys of more than 96 bytes as there are blocks for.
    LongNames,
    /// Too many keys with hashes like this one's.
    Collision,
}

/// What the daemon knows of its tables of names.
#[derive(Debug)]
pub struct Names {
    log2: u8,
    log2_max: u8,
    max: u64,
    live: u64,
    tombs: u64,
    /// Live entries that lead to a cell of a catalogue: the daemon's own note, so that nobody has to search for them.
    owned: BTreeMap<u16, BTreeSet<u32>>,
    blocks_free: Vec<u32>,
}

/// The longest probe for a new key, but in a table that is nearly full.
const PROBE_MAX: u64 = 128;
const INLINE_BYTES: usize = ENTRY_NAME_WORDS * 8;

fn home_of(d: &Directory, entry: u32) -> Home {
    Home(d.names[entry as usize].home.peek())
}

fn key_bytes(d: &Directory, entry: u32) -> usize {
    (d.names[entry as usize].key.peek() & 0xFFFF) as usize
}

/// Whether an entry's key is a name's or an item's, whose home leads to a cell; those of lists and streams do not.
fn leads_to_a_cell(d: &Directory, entry: u32) -> bool {
    !matches!(d.names[entry as usize].name[0].peek() & 0xFF, 2 | 3)
}

/// The entry of a key, in whatever state.
pub fn find(d: &Directory, key: &[u8]) -> Option<FoundName> {
    d.find(d.hash(key), key).expect("the daemon alone replaces tables, and not meanwhile")
}

/// The entry of a key if it is live.
pub fn live_home(d: &Directory, key: &[u8]) -> Option<FoundName> {
    find(d, key).filter(|found| found.home.is_live())
}

fn first_dead(d: &Directory, hash: u64) -> u32 {
    let table = d.table();
    (0..table.entries())
        .map(|step| (table.first() + (hash.wrapping_add(step) & (table.entries() - 1))) as u32)
        .find(|&entry| matches!(home_of(d, entry).kind(), HomeKind::Free | HomeKind::Tomb))
        .expect("live <= max <= half of the last table")
}

/// Entries that a probe for this hash passes before a free one, as far as it matters.
fn probe_length(d: &Directory, hash: u64) -> u64 {
    let table = d.table();
    let at = |step| (table.first() + (hash.wrapping_add(step) & (table.entries() - 1))) as u32;
    (0..=PROBE_MAX).find(|&step| home_of(d, at(step)).kind() == HomeKind::Free).unwrap_or(PROBE_MAX + 1)
}

impl Names {
    /// For a fresh directory of at most `max` names, a power of two.
    pub fn new(d: &Directory, max: u32) -> Self {
        let last = (u64::from(max) * 2).next_power_of_two().max(1 << FIRST_TABLE_LOG2);
        Self {
            log2: FIRST_TABLE_LOG2,
            log2_max: last.ilog2() as u8,
            max: max.into(),
            live: 0,
            tombs: 0,
            owned: BTreeMap::new(),
            blocks_free: (1..d.long_names.len() as u32).rev().collect(),
        }
    }

    /// Names that have a home.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// How many more names there may be.
    pub fn room(&self) -> u64 {
        self.max - self.live
    }

    /// Entries whose homes lead to cells of `catalogue`.
    pub fn owned(&self, catalogue: u16) -> Vec<u32> {
        self.owned.get(&catalogue).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    /// Entries of a list's living items.
    pub fn items(&self, d: &Directory, list: u64) -> Vec<u32> {
        // As `item_key` packs them: byte 1, then the list's id.
        let head = [1 | list << 8, list >> 56];
        let is_item = |&entry: &u32| {
            let name = &d.names[entry as usize].name;
            key_bytes(d, entry) == 17 && [name[0].peek(), name[1].peek() & 0xFF] == head
        };
        self.owned.values().flatten().copied().filter(is_item).collect()
    }

    /// How many homes lead to cells of `catalogue`.
    pub fn owned_count(&self, catalogue: u16) -> usize {
        self.owned.get(&catalogue).map_or(0, BTreeSet::len)
    }

    /// An entry that has the key: its own, or a new one, dead still.
    pub fn place(&mut self, d: &Directory, key: &[u8]) -> Result<u32, Full> {
        if let Some(found) = find(d, key) {
            if !matches!(found.home.kind(), HomeKind::Live | HomeKind::Reserved) && self.live >= self.max {
                return Err(Full::Names);
            }
            return Ok(found.entry);
        }
        if self.live >= self.max {
            return Err(Full::Names);
        }
        self.make_room(d);
        let hash = d.hash(key);
        if probe_length(d, hash) > PROBE_MAX && !self.spread(d, hash) {
            return Err(Full::Collision);
        }
        let block = if key.len() > INLINE_BYTES { self.take_block(d)? } else { 0 };
        let entry = first_dead(d, hash);
        // Even a tomb moves once more before its key changes: who read the former home word and then part of the new
        // key finds another home word when it looks again.
        self.set(d, entry, HomeKind::Tomb, 0, 0);
        self.free_block_of(d, entry);
        d.names[entry as usize].set_key(hash, key, block, &d.long_names);
        Ok(entry)
    }

    /// Stores an entry's next home word.
    pub fn set(&mut self, d: &Directory, entry: u32, kind: HomeKind, catalogue: u16, cell: u32) -> Home {
        let before = home_of(d, entry);
        let after = Home::after(before, kind, catalogue, cell);
        self.count(d, entry, before, false);
        d.names[entry as usize].home.set(after.0);
        self.count(d, entry, after, true);
        d.head().names_live.set(self.live);
        after
    }

    /// Ends a name: its home becomes a tomb, and tombs that no probe has to pass become free.
    pub fn bury(&mut self, d: &Directory, entry: u32) {
        self.set(d, entry, HomeKind::Tomb, 0, 0);
        let table = d.table();
        let mask = (table.entries() - 1) as u32;
        let mut at = entry - table.first() as u32;
        let absolute = |at: u32| table.first() as u32 + at;
        // Backwards from the end of a run: an entry becomes free only when the one behind it is.
        while home_of(d, absolute(at)).kind() == HomeKind::Tomb
            && home_of(d, absolute((at + 1) & mask)).kind() == HomeKind::Free
        {
            self.free_block_of(d, absolute(at));
            self.set(d, absolute(at), HomeKind::Free, 0, 0);
            at = at.wrapping_sub(1) & mask;
        }
    }

    fn count(&mut self, d: &Directory, entry: u32, home: Home, add: bool) {
        let by = |counter: &mut u64| if add { *counter += 1 } else { *counter -= 1 };
        match home.kind() {
            HomeKind::Free | HomeKind::Moved => {}
            HomeKind::Tomb => by(&mut self.tombs),
            HomeKind::Reserved => by(&mut self.live),
            HomeKind::Live => {
                by(&mut self.live);
                if !leads_to_a_cell(d, entry) {
                } else if add {
                    self.owned.entry(home.catalogue()).or_default().insert(entry);
                } else if let Some(set) = self.owned.get_mut(&home.catalogue()) {
                    set.remove(&entry);
                    if set.is_empty() {
                        self.owned.remove(&home.catalogue());
                    }
                }
            }
        }
    }

    fn take_block(&mut self, d: &Directory) -> Result<u32, Full> {
        if self.blocks_free.is_empty() {
            let table = d.table();
            for entry in table.first()..table.first() + table.entries() {
                if home_of(d, entry as u32).kind() == HomeKind::Tomb {
                    self.free_block_of(d, entry as u32);
                }
            }
        }
        self.blocks_free.pop().ok_or(Full::LongNames)
    }

    /// Takes the block of a tomb's long key, and the key with it.
    fn free_block_of(&mut self, d: &Directory, entry: u32) {
        if key_bytes(d, entry) > INLINE_BYTES {
            let name = &d.names[entry as usize];
            let block = (name.key.peek() >> 16) as u32;
            name.clear_key();
            self.blocks_free.push(block);
        }
    }

    /// Sees to it that one more entry leaves a quarter of the table free (an eighth of the last one).
    fn make_room(&mut self, d: &Directory) {
        loop {
            let entries = 1u64 << self.log2;
            let used = self.live + self.tombs + 1;
            if self.log2 < self.log2_max {
                if used * 4 <= entries * 3 {
                    return;
                }
                self.rebuild(d, self.log2 + 1);
            } else {
                // The last table has no greater one beside it. It is rebuilt by way of the one before, which holds as
                // many names as there may be; the next turn grows it again if it is too full.
                if used * 8 <= entries * 7 || self.log2 == FIRST_TABLE_LOG2 {
                    return;
                }
                self.rebuild(d, self.log2 - 1);
                if self.live * 4 > (1u64 << self.log2) * 3 {
                    self.rebuild(d, self.log2 + 1);
                    return;
                }
            }
        }
    }

    /// Shortens the probes by a table with more room or fewer tombs; whether this hash's is short then. Chosen hashes that
    /// are all alike stay together in any table: nobody shall make everybody's look-ups walk over thousands of them.
    fn spread(&mut self, d: &Directory, hash: u64) -> bool {
        while self.log2 < self.log2_max {
            self.rebuild(d, self.log2 + 1);
            if probe_length(d, hash) <= PROBE_MAX {
                return true;
            }
        }
        let entries = 1u64 << self.log2;
        if self.tombs * 8 > entries && self.log2 > FIRST_TABLE_LOG2 {
            self.rebuild(d, self.log2 - 1);
            self.rebuild(d, self.log2 + 1);
        }
        probe_length(d, hash) <= PROBE_MAX || (self.live + self.tombs) * 8 > entries * 7
    }

    /// Builds the table anew, without its tombs, among another table's entries: complete, then published, then every
    /// old home poisoned. Nothing changes in the new table before that.
    fn rebuild(&mut self, d: &Directory, log2: u8) {
        let old = d.table();
        let old_entries = old.first() as u32..(old.first() + old.entries()) as u32;
        let new = TableWord::new(log2, (1u64 << log2) - (1 << FIRST_TABLE_LOG2));
        let new = new.with_rebuilds(old.rebuilds().wrapping_add(1));
        let mask = new.entries() - 1;
        for entry in new.first()..new.first() + new.entries() {
            let home = &d.names[entry as usize].home;
            if Home(home.peek()).kind() != HomeKind::Free {
                home.set(Home::after(Home(home.peek()), HomeKind::Free, 0, 0).0);
            }
        }
        self.owned.clear();
        (self.live, self.tombs) = (0, 0);
        for entry in old_entries.clone() {
            let home = home_of(d, entry);
            match home.kind() {
                HomeKind::Live | HomeKind::Reserved => {
                    let name = &d.names[entry as usize];
                    let key = d.key(name).expect("the daemon wrote this key");
                    let hash = name.hash.peek();
                    let to = (0..=mask)
                        .map(|step| (new.first() + (hash.wrapping_add(step) & mask)) as u32)
                        .find(|&to| home_of(d, to).kind() == HomeKind::Free)
                        .expect("the new table is large enough");
                    // The block of a long key goes along: both entries have it until the old one is poisoned.
                    let block = (name.key.peek() >> 16) as u32;
                    d.names[to as usize].set_key(hash, &key, block, &d.long_names);
                    let after = Home::after(home_of(d, to), home.kind(), home.catalogue(), home.cell());
                    d.names[to as usize].home.set(after.0);
                    self.count(d, to, after, true);
                }
                HomeKind::Tomb => self.free_block_of(d, entry),
                HomeKind::Free | HomeKind::Moved => {}
            }
        }
        d.head().table.set(new.0);
        for entry in old_entries {
            let home = &d.names[entry as usize].home;
            home.set(Home::after(Home(home.peek()), HomeKind::Moved, 0, 0).0);
        }
        self.log2 = log2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::directory::Geometry;
    use tensorlend_layout::raw::View;

    fn directory(names: u32) -> (Directory, Names) {
        let geometry = Geometry { members: 4, names, lists: 1, streams: 1, segments: 1 };
        let view = View::anonymous(geometry.bytes() as usize);
        geometry.initialise(view.at(0).unwrap(), 5, 1);
        let d = Directory::new(&view).unwrap();
        let names = Names::new(&d, names);
        (d, names)
    }

    fn bind(d: &Directory, names: &mut Names, key: &[u8], cell: u32) -> Result<(u32, Home), Full> {
        let entry = names.place(d, key)?;
        Ok((entry, names.set(d, entry, HomeKind::Live, 3, cell)))
    }

    fn check(d: &Directory, names: &Names) {
        let table = d.table();
        let kinds = |kind| {
            (table.first()..table.first() + table.entries()).filter(|&e| home_of(d, e as u32).kind() == kind).count()
                as u64
        };
        assert_eq!(names.tombs, kinds(HomeKind::Tomb));
        assert_eq!(names.live, kinds(HomeKind::Live) + kinds(HomeKind::Reserved));
        assert_eq!(names.owned.values().map(BTreeSet::len).sum::<usize>() as u64, kinds(HomeKind::Live));
    }

    #[test]
    fn thousands_of_names_grow_the_table_and_stay_found() {
        let (d, mut names) = directory(8192);
        let (first, first_home) = bind(&d, &mut names, b"name 0", 0).unwrap();
        for i in 1..8192u32 {
            bind(&d, &mut names, format!("name {i}").as_bytes(), i).unwrap();
        }
        assert_eq!(bind(&d, &mut names, b"one more", 1), Err(Full::Names));
        check(&d, &names);
        assert_eq!(d.table().entries(), 16384);
        for i in 0..8192u32 {
            let found = live_home(&d, format!("name {i}").as_bytes()).unwrap();
            assert_eq!(found.home.cell(), i);
        }
        let old = home_of(&d, first);
        assert_eq!((old.kind(), old.version()), (HomeKind::Moved, first_home.version() + 1));
        for i in 0..8192u32 {
            let found = live_home(&d, format!("name {i}").as_bytes()).unwrap();
            names.bury(&d, found.entry);
        }
        check(&d, &names);
        assert_eq!(names.live(), 0);
    }

    #[test]
    fn keys_that_all_collide_are_refused_before_look_ups_are_long() {
        let (d, mut names) = directory(512);
        let alike = (0u32..).map(|i| format!("k{i}").into_bytes()).filter(|key| d.hash(key) & 1023 == 5);
        let mut keys = alike.take(140);
        let refused = keys.find_map(|key| bind(&d, &mut names, &key, 1).err());
        assert_eq!((refused, names.live()), (Some(Full::Collision), PROBE_MAX + 1));
        bind(&d, &mut names, b"another", 2).unwrap();
        check(&d, &names);
    }

    #[test]
    fn a_tomb_revives_in_place_and_is_reused_by_others() {
        let (d, mut names) = directory(512);
        // Keys that meet: found by search.
        let slot = |key: &[u8]| d.hash(key) & 1023;
        let a = b"a".to_vec();
        let b = (0..1_000_000).map(|i| format!("b{i}").into_bytes()).find(|k| slot(k) == slot(&a)).unwrap();
        let c = (0..1_000_000).map(|i| format!("c{i}").into_bytes()).find(|k| slot(k) == slot(&a)).unwrap();
        let (at_a, first) = bind(&d, &mut names, &a, 1).unwrap();
        let (at_b, _) = bind(&d, &mut names, &b, 2).unwrap();
        assert_eq!(at_b, at_a + 1);
        names.bury(&d, at_a);
        assert_eq!(home_of(&d, at_a).kind(), HomeKind::Tomb, "a probe for b has to pass");
        let (again, second) = bind(&d, &mut names, &a, 1).unwrap();
        assert_eq!(again, at_a);
        assert_ne!(first, second, "the version tells the two lives apart");
        names.bury(&d, at_a);
        assert_eq!(bind(&d, &mut names, &c, 3).unwrap().0, at_a);
        assert!(find(&d, &a).is_none());
        names.bury(&d, at_a);
        names.bury(&d, at_b);
        assert_eq!(names.tombs, 0, "trailing tombs become free");
        check(&d, &names);
    }

    #[test]
    fn long_names_take_blocks_and_give_them_back() {
        let (d, mut names) = directory(512);
        let key = |i: u32| format!("{i:0>200}").into_bytes();
        for round in 0..3 {
            for i in 0..255 {
                bind(&d, &mut names, &key(i + round), i).unwrap();
            }
            assert_eq!(bind(&d, &mut names, &key(1000), 1), Err(Full::LongNames));
            for i in 0..255 {
                let found = live_home(&d, &key(i + round)).unwrap();
                assert_eq!(d.key(&d.names[found.entry as usize]), Some(key(i + round)));
                names.bury(&d, found.entry);
            }
            check(&d, &names);
        }
    }

    #[test]
    fn churn_does_not_fill_the_last_table_with_tombs() {
        let (d, mut names) = directory(1024);
        for i in 0..50_000u32 {
            bind(&d, &mut names, format!("churn {i}").as_bytes(), i).unwrap();
            if i >= 900 {
                let found = live_home(&d, format!("churn {}", i - 900).as_bytes()).unwrap();
                names.bury(&d, found.entry);
            }
        }
        check(&d, &names);
        assert!(names.tombs + names.live <= d.table().entries() * 7 / 8 + 1);
    }
}
