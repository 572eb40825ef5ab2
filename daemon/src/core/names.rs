//! The directory's names, as their one writer keeps them: an entry for each, and a table of places that lead to entries.
//!
//! `named + passed <= 7/8` of the current table's places, where `named` places lead to entries; `live <= named` and
//! `live <= max`. Every store of a home word moves its version. An entry never moves; neither does a place within a table.
//! A table is replaced by one in the other half of the places, which is built beside it.

use super::building::Building;
use super::entries::Entries;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::directory::{Directory, ENTRY_NAME_WORDS, FIRST_TABLE_LOG2, FoundName, LongName};
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::word::{Home, HomeKind, PlaceWord, TableWord, Word, search_begins};

/// Why a key found no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many names as allowed.
    Names,
    /// As many keys of more than 96 bytes as there are blocks for.
    LongNames,
    /// Too many keys with hashes like this one's.
    Collision,
    /// There is no memory for it, and why.
    Memory(String),
}

/// A piece of the directory for which memory is on order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// A chunk of entries.
    Entries(u32),
    /// A table of so many places in the half that the current one is not in.
    Table(u8),
    /// Blocks of long names, up to this one.
    Blocks(u32),
}

/// A part of the directory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub at: u64,
    /// How long it is.
    pub bytes: u64,
}

/// What the daemon knows of its names.
#[derive(Debug)]
pub struct Names {
    max: u64,
    live: u64,
    /// Places that lead to entries.
    named: u64,
    /// Places that a search must go past.
    passed: u64,
    log2: u8,
    log2_max: u8,
    /// In which half of the places the current table is.
    half: usize,
    /// How many bytes of each half have memory.
    half_bytes: [u64; 2],
    entries: Entries,
    /// Live entries that lead to a cell of a catalogue: the daemon's own note, so that nobody has to search for them.
    owned: BTreeMap<u16, BTreeSet<u32>>,
    /// The table that is being built in the other half of the places.
    building: Option<Building>,
    blocks_free: Vec<u32>,
    /// Blocks from this one on were never used; up to `blocks_there` they have memory.
    blocks_fresh: u32,
    blocks_there: u32,
    /// By where they begin.
    orders: BTreeMap<u64, Piece>,
    /// Why the last order came to nothing.
    failed: Option<String>,
    /// Whether memory can be given back.
    discards: bool,
    /// What is to be given back.
    discarded: Vec<Extent>,
    /// Names that the request at hand is about to bind: their room is nobody else's.
    reserved: u64,
}

/// The longest search, in places: eight to a cache line.
const SEARCH_MAX: u64 = 1024;
/// Entries kept ready: as many as one client can announce before it ends, and some.
const ENTRIES_RESERVE: u64 = RING as u64 + 128;
const BLOCKS_RESERVE: u32 = 64;
const BLOCKS_STEP: u32 = 512;
const INLINE_BYTES: usize = ENTRY_NAME_WORDS * 8;
const PLACE_BYTES: u64 = size_of::<Word>() as u64;

fn home_of(d: &Directory, entry: u32) -> Home {
    Home(d.names[entry as usize].home.peek())
}

fn key_bytes(d: &Directory, entry: u32) -> usize {
    (d.names[entry as usize].key.peek() & 0xFFFF) as usize
}

/// The entry of a key, in whatever state.
pub fn find(d: &Directory, key: &[u8]) -> Option<FoundName> {
    d.find(d.hash(key), key).expect("the daemon alone replaces tables, and not meanwhile")
}

/// The entry of a key if it is live.
pub fn live_home(d: &Directory, key: &[u8]) -> Option<FoundName> {
    find(d, key).filter(|found| found.home.is_live())
}

/// The places of a search for `hash`, in order: all places of the current table.
fn search(d: &Directory, hash: u64) -> impl Iterator<Item = usize> + use<> {
    let table = d.table();
    let begins = search_begins(hash, table.log2());
    (0..table.places()).map(move |step| (table.first() + (begins.wrapping_add(step) & (table.places() - 1))) as usize)
}

fn place_of(d: &Directory, at: usize) -> PlaceWord {
    PlaceWord(d.places[at].peek())
}

impl Names {
    /// For a fresh directory of at most `max` names. `discards`: memory can be given back.
    pub fn new(d: &Directory, max: u32, discards: bool) -> Self {
        Self {
            max: max.into(),
            live: 0,
            named: 0,
            passed: 0,
            log2: FIRST_TABLE_LOG2,
            log2_max: (d.places.len() / 2).ilog2() as u8,
            half: 0,
            half_bytes: [PLACE_BYTES << FIRST_TABLE_LOG2, 0],
            entries: Entries::new(d.names.len() as u32),
            owned: BTreeMap::new(),
            building: None,
            blocks_free: Vec::new(),
            blocks_fresh: 1,
            blocks_there: 1,
            orders: BTreeMap::new(),
            failed: None,
            discards,
            discarded: Vec::new(),
            reserved: 0,
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

    /// How many new names find a place and memory now.
    pub fn absorbable(&self) -> u64 {
        let places = ((1u64 << self.log2) * 7 / 8).saturating_sub(self.named + self.passed);
        self.room().min(self.entries.free()).min(places)
    }

    /// Keeps room for so many names from those that clients announce, until they are bound or the turn ends.
    pub fn reserve(&mut self, d: &Directory, names: u64) {
        self.reserved = names;
        self.show_room(d);
    }

    /// Tells the clients how many names they may announce.
    fn show_room(&self, d: &Directory) {
        d.head().names_room.set(self.absorbable().saturating_sub(self.reserved));
    }

    /// Entries whose homes lead to cells of `catalogue`.
    pub fn owned(&self, catalogue: u16) -> Vec<u32> {
        self.owned.get(&catalogue).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    /// At most so many of the entries whose homes lead to cells of `catalogue`, from entry `from` on.
    pub fn owned_from(&self, catalogue: u16, from: u32, most: usize) -> Vec<u32> {
        self.owned.get(&catalogue).into_iter().flat_map(|set| set.range(from..)).take(most).copied().collect()
    }

    /// At most so many entries whose homes lead to cells, and whose cells, from this cell's catalogue and this entry on.
    pub fn all_from(&self, (catalogue, entry): (u16, u32), most: usize) -> Vec<(u16, u32)> {
        let of = |(&owner, set): (&u16, &'_ BTreeSet<u32>)| {
            let from = if owner == catalogue { entry } else { 0 };
            set.range(from..).take(most).map(|&entry| (owner, entry)).collect::<Vec<_>>()
        };
        self.owned.range(catalogue..).flat_map(of).take(most).collect()
    }

    /// How many homes lead to cells of `catalogue`.
    pub fn owned_count(&self, catalogue: u16) -> usize {
        self.owned.get(&catalogue).map_or(0, BTreeSet::len)
    }

    /// How many new names find memory now, as far as there may be so many; those beyond have to wait for
    /// [`Names::order`]. No limit where memory could not be made: then there is nothing to wait for.
    pub fn ready(&self) -> u64 {
        let places = ((1u64 << self.log2) * 7 / 8).saturating_sub(self.named + self.passed);
        let ready = self.entries.free().min(places);
        if ready >= self.room() || self.failed.is_some() { u64::MAX } else { ready }
    }

    /// The memory that is to be made so that `more` names find some, and the next ones after them.
    pub fn order(&mut self, d: &Directory, more: u64) -> Vec<Extent> {
        let mut ordered = Vec::new();
        if self.failed.is_some() {
            return ordered;
        }
        // Not more than could ever be bound.
        let reserve = ENTRIES_RESERVE.max(more).min(self.room());
        while let Some(chunk) = self.entries.order(reserve) {
            let (offset, bytes) = self.entries.extent(chunk);
            let extent = Extent { at: d.head().names_at.peek() + offset, bytes };
            self.orders.insert(extent.at, Piece::Entries(chunk));
            ordered.push(extent);
        }
        self.build(d);
        if self.building.is_none()
            && let Some(log2) = self.table_wanted(more)
            && !self.orders.values().any(|piece| matches!(piece, Piece::Table(_)))
        {
            let other = 1 - self.half;
            let (there, bytes) = (self.half_bytes[other], PLACE_BYTES << log2);
            if there >= bytes {
                self.begin_building(d, log2);
            } else {
                let half = d.places.len() as u64 / 2 * PLACE_BYTES * other as u64;
                let extent = Extent { at: d.head().places_at.peek() + half + there, bytes: bytes - there };
                self.orders.insert(extent.at, Piece::Table(log2));
                ordered.push(extent);
            }
        }
        let blocks = d.long_names.len() as u32;
        if self.blocks_free.len() as u32 + self.blocks_there - self.blocks_fresh < BLOCKS_RESERVE
            && self.blocks_there < blocks
            && !self.orders.values().any(|piece| matches!(piece, Piece::Blocks(_)))
        {
            let end = (self.blocks_there / BLOCKS_STEP * BLOCKS_STEP + BLOCKS_STEP).min(blocks);
            let block = size_of::<LongName>() as u64;
            let at = |number: u32| (u64::from(number) * block).next_multiple_of(4096);
            let from = if self.blocks_there == 1 { 0 } else { at(self.blocks_there) };
            let extent = Extent { at: d.head().long_names_at.peek() + from, bytes: at(end) - from };
            self.orders.insert(extent.at, Piece::Blocks(end));
            ordered.push(extent);
        }
        ordered
    }

    /// Memory that was on order is there, or could not be made.
    pub fn arrived(&mut self, d: &Directory, at: u64, made: Result<(), String>) {
        let piece = self.orders.remove(&at).expect("memory arrives once, and only if ordered");
        let there = made.is_ok();
        match piece {
            Piece::Entries(chunk) => self.entries.arrived(d, chunk, there),
            Piece::Table(log2) if there => {
                self.half_bytes[1 - self.half] = PLACE_BYTES << log2;
                // It may be wanted no more.
                if let Some(wanted) = self.table_wanted(0)
                    && wanted <= log2
                {
                    self.begin_building(d, wanted);
                }
            }
            Piece::Blocks(end) if there => self.blocks_there = end,
            Piece::Table(_) | Piece::Blocks(_) => {}
        }
        if let Err(reason) = made {
            self.failed = Some(reason);
        }
        self.show_room(d);
    }

    /// Whether a table is being built: [`Names::order`] goes on with it.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// What is to be given back since this was asked last.
    pub fn take_discarded(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.discarded)
    }

    /// An entry that has the key: its own, or a new one, dead still.
    pub fn place(&mut self, d: &Directory, key: &[u8]) -> Result<u32, Full> {
        self.place_as(d, key, true)
    }

    /// As [`Names::place`], for a name that was published already: it is not lost for being hard to find.
    pub fn place_announced(&mut self, d: &Directory, key: &[u8]) -> Result<u32, Full> {
        self.place_as(d, key, false)
    }

    fn place_as(&mut self, d: &Directory, key: &[u8], searched_briefly: bool) -> Result<u32, Full> {
        if let Some(found) = find(d, key) {
            return Ok(found.entry);
        }
        if self.live >= self.max {
            return Err(Full::Names);
        }
        let hash = d.hash(key);
        let mut searched = search(d, hash).take(SEARCH_MAX as usize + 1);
        let long = searched_briefly && searched.all(|at| !place_of(d, at).is_free());
        if long {
            return Err(Full::Collision);
        }
        if (self.named + self.passed + 1) * 8 > (1 << self.log2) * 7 {
            return Err(self.no_memory());
        }
        let block = if key.len() > INLINE_BYTES { self.take_block(d)? } else { 0 };
        let Some(entry) = self.entries.take() else {
            self.give_block(block);
            return Err(self.no_memory());
        };
        let at = search(d, hash).find(|&at| place_of(d, at).entry() == 0).expect("an eighth of the places is free");
        d.names[entry as usize].set_key(hash, key, block, &d.long_names);
        tensorlend_layout::crash_point!("daemon: key written");
        if place_of(d, at) == PlaceWord::PASSED {
            self.passed -= 1;
        }
        self.named += 1;
        if searched_briefly {
            self.reserved = self.reserved.saturating_sub(1);
        }
        let place = PlaceWord::new(hash, entry);
        d.places[at].set(place.0);
        if let Some(building) = &self.building {
            building.follow(d, at, place);
        }
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
        self.show_room(d);
        after
    }

    /// Ends a name: its home becomes a tomb, its entry another name's, and the places that no search has to pass become
    /// free.
    pub fn bury(&mut self, d: &Directory, entry: u32) {
        self.set(d, entry, HomeKind::Tomb, 0, 0);
        tensorlend_layout::crash_point!("daemon: tomb stored");
        let name = &d.names[entry as usize];
        let hash = name.hash.peek();
        let at = search(d, hash).find(|&at| place_of(d, at).entry() == entry).expect("a name has its place");
        if let Some(building) = &mut self.building {
            building.forget(d, at, place_of(d, at));
        }
        d.places[at].set(PlaceWord::PASSED.0);
        (self.named, self.passed) = (self.named - 1, self.passed + 1);
        let table = d.table();
        let mask = table.places() - 1;
        let step =
            |at: usize, by: u64| (table.first() + ((at as u64 - table.first()).wrapping_add(by) & mask)) as usize;
        // Backwards from the end of a run: a place becomes free only when the one behind it is.
        let mut at = at;
        while place_of(d, at) == PlaceWord::PASSED && place_of(d, step(at, 1)).is_free() {
            d.places[at].set(PlaceWord::FREE.0);
            self.passed -= 1;
            at = step(at, u64::MAX);
        }
        if key_bytes(d, entry) > INLINE_BYTES {
            let block = (name.key.peek() >> 16) as u32;
            name.clear_key();
            self.give_block(block);
        }
        tensorlend_layout::crash_point!("daemon: place freed");
        self.entries.give(entry);
        if self.discards
            && let Some(chunk) = self.entries.surplus(d, entry, 2 * ENTRIES_RESERVE)
        {
            let (offset, bytes) = self.entries.extent(chunk);
            self.discarded.push(Extent { at: d.head().names_at.peek() + offset, bytes });
        }
        // Memory may have come back: it is worth another try.
        self.failed = None;
        self.show_room(d);
    }

    fn count(&mut self, d: &Directory, entry: u32, home: Home, add: bool) {
        let by = |counter: &mut u64| if add { *counter += 1 } else { *counter -= 1 };
        match home.kind() {
            HomeKind::Tomb => {}
            HomeKind::Reserved => by(&mut self.live),
            HomeKind::Live => {
                by(&mut self.live);
                if !KeyKind::of(&d.names[entry as usize]).leads_to_cell() {
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
        if let Some(block) = self.blocks_free.pop() {
            return Ok(block);
        }
        if self.blocks_fresh < self.blocks_there {
            self.blocks_fresh += 1;
            return Ok(self.blocks_fresh - 1);
        }
        if (self.blocks_there as usize) < d.long_names.len() {
            return Err(self.no_memory());
        }
        Err(Full::LongNames)
    }

    /// Says why, and lets it be tried again.
    fn no_memory(&mut self) -> Full {
        Full::Memory(self.failed.take().unwrap_or_else(|| "memory for names is still being made".into()))
    }

    fn give_block(&mut self, block: u32) {
        if block != 0 {
            self.blocks_free.push(block);
        }
    }

    /// log2 of the places of the table that should be there instead of this one, so that `more` names find places too:
    /// larger, smaller, or as large and without places that are only passed.
    fn table_wanted(&self, more: u64) -> Option<u8> {
        let places = 1u64 << self.log2;
        let used = self.named + self.passed;
        if self.log2 < self.log2_max && (used * 8 > places * 5 || (used + more) * 8 > places * 7) {
            return Some(if (self.named + more) * 2 >= places { self.log2 + 1 } else { self.log2 });
        }
        if used * 4 > places * 3 {
            return Some(self.log2);
        }
        (self.log2 > FIRST_TABLE_LOG2 && used * 16 < places).then_some(self.log2 - 1)
    }

    fn begin_building(&mut self, d: &Directory, log2: u8) {
        let first = d.places.len() as u64 / 2 * (1 - self.half) as u64;
        let table = TableWord::new(log2, first).with_rebuilds(d.table().rebuilds().wrapping_add(1));
        self.building = Some(Building { old: d.table(), table, wiped: 0, copied: 0, passed: 0 });
        self.build(d);
    }

    /// Goes on with the table that is being built; publishes it when it is complete.
    fn build(&mut self, d: &Directory) {
        let Some(building) = &mut self.building else { return };
        if !building.go_on(d) {
            return;
        }
        let Building { old, table, passed, .. } = *building;
        tensorlend_layout::crash_point!("daemon: table built");
        d.head().table.set(table.0);
        tensorlend_layout::crash_point!("daemon: table published");
        if self.discards {
            // Whoever still searches there finds places that lead nowhere, and then another table word.
            let at = d.head().places_at.peek() + old.first() * PLACE_BYTES;
            self.discarded.push(Extent { at, bytes: self.half_bytes[self.half] });
            self.half_bytes[self.half] = 0;
        }
        (self.half, self.log2, self.passed) = (1 - self.half, table.log2(), passed);
        self.building = None;
        self.show_room(d);
    }
}

mod restore;
#[cfg(test)]
mod tests;
