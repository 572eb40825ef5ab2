//! The directory's names, as their one writer keeps them: an entry for each, and a table of places that lead to entries.
//!
//! At most 7/8 of the current table's places are in use; the live names are at most `max`, and each has its place. Every store of
//! a home word moves its version. An entry never moves; neither does a place within a table.
//! A table is replaced by one in the other half of the places, which is built beside it.

use super::entries::{Entries, EntrySet};
use building::Building;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use table::Table;
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::directory::{Directory, ENTRY_NAME_WORDS, FIRST_TABLE_LOG2, FoundName, LongName};
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::search::SEARCH_MAX;
use tensorlend_layout::word::{Home, HomeKind, PlaceWord, TableWord, Word};

/// Why a key found no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many names as allowed.
    Names,
    /// As many keys of more than 96 bytes as there are blocks for.
    LongNames,
    /// Too many of the asker's keys have hashes like this one's.
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
    /// The current table.
    table: Table,
    log2_max: u8,
    /// What the seeds of tables are drawn from: known to nobody else.
    secret: u64,
    /// Names that came and went since the current table was begun.
    changes: u64,
    /// Whether a name came whose search is longer than a fresh seed would make it.
    is_crowded: bool,
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

/// Places that a search for an announced name passes at most, unless its user's own names fill more of them. Clients announce no
/// name whose search passes more than [`SEARCH_MAX`]; what others announce meanwhile is within this.
const ANNOUNCED_SEARCH_MAX: u64 = 4 * SEARCH_MAX;
/// A search that passes more places is long for a table of any load: half as many as would be refused.
const CROWDED: u64 = SEARCH_MAX / 2;
/// Entries kept ready: as many as one client can announce before it ends, and some.
const ENTRIES_RESERVE: u64 = RING as u64 + 128;
const BLOCKS_RESERVE: u32 = 64;
const BLOCKS_STEP: u32 = 512;
const INLINE_BYTES: usize = ENTRY_NAME_WORDS * 8;
/// Memory that is given back in one turn: the kernel takes it from all who have it mapped.
const DISCARD_BYTES: u64 = 2 << 20;
const PLACE_BYTES: u64 = size_of::<Word>() as u64;

/// The seed of a table: the daemon alone can tell it beforehand.
fn seed(secret: u64, table: TableWord) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    hasher.write_u64(table.0);
    hasher.finish()
}

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

impl Names {
    /// For a fresh directory of at most `max` names. `discards`: memory can be given back. `secret` is a random number that nobody
    /// else has.
    pub fn new(d: &Directory, max: u32, discards: bool, secret: u64) -> Self {
        d.begin_table(d.table(), seed(secret, d.table()));
        Self::with_table(d, max, discards, secret)
    }

    fn with_table(d: &Directory, max: u32, discards: bool, secret: u64) -> Self {
        Self {
            max: max.into(),
            live: 0,
            table: Table::new(d.table(), d.table_seed(d.table())),
            log2_max: (d.places.len() / 2).ilog2() as u8,
            secret,
            changes: 0,
            is_crowded: false,
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
        self.room().min(self.entries.free()).min(self.table.room())
    }

    /// In which half of the places the current table is.
    fn half(&self) -> usize {
        self.table.word().half()
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
        let ready = self.entries.free().min(self.table.room());
        if ready >= self.room() || self.failed.is_some() { u64::MAX } else { ready }
    }

    /// The memory that is to be made so that `more` names find some, and the next ones after them.
    pub fn order(&mut self, d: &Directory, more: u64) -> Vec<Extent> {
        let mut ordered = Vec::new();
        // What is made may lie where something is still to be given back.
        if self.failed.is_some() || self.is_discarding() {
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
        if self.building.is_none()
            && let Some(log2) = self.table_wanted(more)
            && !self.orders.values().any(|piece| matches!(piece, Piece::Table(_)))
        {
            let other = 1 - self.half();
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
                let other = 1 - self.half();
                self.half_bytes[other] = PLACE_BYTES << log2;
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

    /// Whether a table is being built: [`Names::go_on`] goes on with it.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// Whether memory is still to be given back.
    pub fn is_discarding(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// The memory to give back next, [`DISCARD_BYTES`] at most.
    pub fn take_discarded(&mut self) -> Vec<Extent> {
        let (mut now, mut left) = (Vec::new(), DISCARD_BYTES);
        while left > 0
            && let Some(Extent { at, bytes }) = self.discarded.pop()
        {
            let part = bytes.min(left);
            if part < bytes {
                self.discarded.push(Extent { at: at + part, bytes: bytes - part });
            }
            now.push(Extent { at, bytes: part });
            left -= part;
        }
        now
    }

    /// An entry that has the key: its own, or a new one, dead still. `is_own` tells whether the asker's user has the name with
    /// this home: a user whose own names make the search for the new one long is refused, and nobody else is.
    pub fn place(&mut self, d: &Directory, key: &[u8], is_own: impl Fn(Home) -> bool) -> Result<u32, Full> {
        let named = self.table.named();
        let entry = self.place_within(d, key, SEARCH_MAX, is_own)?;
        // A name that was there already takes no room.
        self.reserved = self.reserved.saturating_sub(self.table.named() - named);
        Ok(entry)
    }

    /// As [`Names::place`], for a name that was published already: clients ask the daemon for a name that would be refused,
    /// instead of announcing it.
    pub fn place_announced(&mut self, d: &Directory, key: &[u8], is_own: impl Fn(Home) -> bool) -> Result<u32, Full> {
        self.place_within(d, key, ANNOUNCED_SEARCH_MAX, is_own)
    }

    fn place_within(
        &mut self,
        d: &Directory,
        key: &[u8],
        search_max: u64,
        is_own: impl Fn(Home) -> bool,
    ) -> Result<u32, Full> {
        if let Some(found) = find(d, key) {
            return Ok(found.entry);
        }
        if self.live >= self.max {
            return Err(Full::Names);
        }
        let hash = d.hash(key);
        // No more of them are counted than decide something.
        let passed = d.passed_by(hash).take(search_max as usize + 1).count() as u64;
        if passed > search_max {
            let leads =
                |place: &PlaceWord| place.entry() != 0 && KeyKind::of(&d.names[place.entry() as usize]).leads_to_cell();
            let homes = d.passed_by(hash).filter(leads).map(|place| home_of(d, place.entry()));
            if homes.filter(|&home| home.is_live() && is_own(home)).count() as u64 > search_max {
                return Err(Full::Collision);
            }
        }
        if self.table.room() == 0 {
            return Err(self.no_memory());
        }
        let block = if key.len() > INLINE_BYTES { self.take_block(d)? } else { 0 };
        let Some(entry) = self.entries.take() else {
            self.give_block(block);
            return Err(self.no_memory());
        };
        d.names[entry as usize].set_key(hash, key, block, &d.long_names);
        tensorlend_layout::crash_point!("daemon: key written");
        let place = PlaceWord::new(hash, entry);
        self.is_crowded |= passed > CROWDED;
        self.changes += 1;
        let at = self.table.insert(d, place);
        if let Some(building) = &mut self.building {
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
        let place = PlaceWord::new(name.hash.peek(), entry);
        self.changes += 1;
        let at = self.table.remove(d, place);
        if let Some(building) = &mut self.building {
            building.forget(d, at, place);
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
    /// larger, smaller, or as large, without places that are only passed and with another seed.
    fn table_wanted(&self, more: u64) -> Option<u8> {
        let (log2, used) = (self.table.word().log2(), self.table.used());
        let places = 1u64 << log2;
        if log2 < self.log2_max && (used * 8 > places * 5 || (used + more) * 8 > places * 7) {
            return Some(if (self.table.named() + more) * 2 >= places { log2 + 1 } else { log2 });
        }
        if used * 4 > places * 3 {
            return Some(log2);
        }
        if log2 > FIRST_TABLE_LOG2 && used * 16 < places {
            return Some(log2 - 1);
        }
        // The work of building is 32 places for each name that came or went.
        (self.is_crowded && self.changes * 32 > places).then_some(log2)
    }

    fn begin_building(&mut self, d: &Directory, log2: u8) {
        let first = d.places.len() as u64 / 2 * (1 - self.half()) as u64;
        let table = TableWord::new(log2, first).with_rebuilds(d.table().rebuilds().wrapping_add(1));
        self.building = Some(Building::new(d, table, seed(self.secret, table)));
        (self.changes, self.is_crowded) = (0, false);
        self.go_on(d);
    }

    /// Goes on with the table that is being built, a slice of it; publishes it when it is complete. Once a turn.
    pub fn go_on(&mut self, d: &Directory) {
        let Some(building) = &mut self.building else { return };
        if !building.go_on(d) {
            return;
        }
        let Some(table) = self.building.take().map(Building::into_table) else { return };
        tensorlend_layout::crash_point!("daemon: table built");
        d.head().table.set(table.word().0);
        tensorlend_layout::crash_point!("daemon: table published");
        if self.discards {
            // Whoever still searches there finds places that lead nowhere, and then another table word.
            let (old, half) = (self.table.word(), self.half());
            let at = d.head().places_at.peek() + old.first() * PLACE_BYTES;
            self.discarded.push(Extent { at, bytes: self.half_bytes[half] });
            self.half_bytes[half] = 0;
        }
        self.table = table;
        self.show_room(d);
    }
}

mod building;
#[cfg(test)]
pub mod colliding;
mod restore;
pub mod table;
#[cfg(test)]
mod tests;
