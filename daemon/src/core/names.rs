//! The names of a directory. The daemon is their only writer. Each name has an entry. A table of
//! places refers to the entries.
//!
//! At most 7/8 of the current table's places are in use. At most `max` names are live, and each
//! live name has a place. Every store of an owner word changes the word's version. Entries never
//! move, and neither do places within a table. The daemon replaces a table by building a new one in
//! the other half of the places.

use super::entries::{Entries, EntrySet};
use super::event::Unmade;
use blocks::Blocks;
use building::Building;
use owned::Owned;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use table::Table;
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::directory::{Directory, ENTRY_NAME_WORDS, FIRST_TABLE_LOG2, LongName, PlaceWord, SEARCH_MAX};
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;
use tensorlend_layout::word::{OwnerKind, OwnerWord, TableWord, Word, low8, low32};

/// The reason why a key got no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    /// The number of names is at its limit.
    Names,
    /// All blocks for keys of more than 96 bytes are in use.
    LongNames,
    /// Too many keys of the requester have hashes that collide with this key's hash.
    Collision,
    /// No memory is available, with the reason.
    Memory(Unmade),
}

/// A part of the directory whose memory is on order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// A chunk of entries.
    Entries(u32),
    /// A table of 2^n places, in the half that does not contain the current table.
    Table(u8),
    /// Blocks of long names, below this number.
    Blocks(u32),
}

/// A range of bytes of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset of the range.
    pub at: u64,
    pub bytes: u64,
}

/// The daemon's data about the names.
#[derive(Debug)]
pub struct Names {
    max: u64,
    live: u64,
    table: Table,
    log2_max: u8,
    /// A secret from which the seeds of tables are derived.
    secret: u64,
    /// Number of names added or removed since the construction of the current table began.
    changes: u64,
    /// Whether the search for an added name is long ([`CROWDED`]). A table with another seed would
    /// shorten the search.
    is_crowded: bool,
    /// Number of bytes of each half that have memory.
    half_bytes: [u64; 2],
    entries: Entries,
    owned: Owned,
    /// The table under construction in the other half of the places.
    building: Option<Building>,
    blocks: Blocks,
    /// Memory on order, by offset.
    orders: BTreeMap<u64, Piece>,
    /// The reason why the last order failed.
    failed: Option<Unmade>,
    /// Whether the daemon may free memory of the directory.
    discards: bool,
    /// Ranges of memory that the daemon has yet to free.
    discarded: Vec<Extent>,
    /// Number of names that the current request is about to bind. Their room is reserved.
    reserved: u64,
}

/// Maximum number of the announcer's own user's names that a search for an announced name may pass.
/// Clients announce no name whose search passes more than [`SEARCH_MAX`] places. The difference
/// leaves room for names that other clients announce at the same time.
const ANNOUNCED_SEARCH_MAX: u64 = 4 * SEARCH_MAX;
/// Number of places from which a search is long, for a table of any load. It is half the number at
/// which the daemon refuses a name.
const CROWDED: u64 = SEARCH_MAX / 2;
/// Number of entries that are ready in advance. One client can announce at most `RING` names before
/// the daemon absorbs them.
const ENTRIES_RESERVE: u64 = RING as u64 + 128;
const INLINE_BYTES: usize = ENTRY_NAME_WORDS * 8;
/// Maximum number of bytes that the daemon frees in one turn. The kernel unmaps these bytes from
/// every process.
const DISCARD_BYTES: u64 = 2 << 20;
const PLACE_BYTES: u64 = size_of::<Word>() as u64;

/// Returns the seed of a table. Only the daemon can predict the seed.
fn seed(secret: u64, table: TableWord) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(secret);
    hasher.write_u64(table.0);
    hasher.finish()
}

fn owner_word_of(d: &Directory, entry: EntryNo) -> OwnerWord {
    OwnerWord(d.names[entry.index()].owner_word.peek())
}

impl Names {
    /// Returns the names of a fresh directory of at most `max` names. `discards` is true if the
    /// daemon may free memory of the directory. `secret` is a random number that only the daemon
    /// knows.
    pub fn new(d: &Directory, max: u32, discards: bool, secret: u64) -> Self {
        d.begin_table(d.table(), seed(secret, d.table()));
        Self::with_table(d, max, discards, secret)
    }

    fn with_table(d: &Directory, max: u32, discards: bool, secret: u64) -> Self {
        Self {
            max: max.into(),
            live: 0,
            table: Table::new(d.table(), d.table_seed(d.table())),
            log2_max: low8((d.places.len() / 2).ilog2().into()),
            secret,
            changes: 0,
            is_crowded: false,
            half_bytes: [PLACE_BYTES << FIRST_TABLE_LOG2, 0],
            entries: Entries::new(size::count(d.names.len())),
            owned: Owned::default(),
            building: None,
            blocks: Blocks::new(size::count(d.long_names.len())),
            orders: BTreeMap::new(),
            failed: None,
            discards,
            discarded: Vec::new(),
            reserved: 0,
        }
    }

    pub fn live(&self) -> u64 {
        self.live
    }

    /// Returns the number of names that may still be added.
    pub fn room(&self) -> u64 {
        self.max - self.live
    }

    /// Returns the number of new names that have a place and memory now.
    pub fn absorbable(&self) -> u64 {
        self.room().min(self.entries.free()).min(self.table.room())
    }

    /// Returns the half of the places that contains the current table.
    fn half(&self) -> usize {
        self.table.word().half()
    }

    /// Reserves room for `names` names until they are bound or the turn ends. Clients cannot announce names into this room.
    pub fn reserve(&mut self, d: &Directory, names: u64) {
        self.reserved = names;
        self.show_room(d);
    }

    /// Publishes the number of names that clients may announce.
    fn show_room(&self, d: &Directory) {
        d.head().names_room.set(self.absorbable().saturating_sub(self.reserved));
    }

    /// Returns the live entries that lead to cells.
    pub fn owned(&self) -> &Owned {
        &self.owned
    }

    /// Returns the number of new names that have memory now, if the longest key has this many bytes. Further names must wait
    /// for [`Names::order`]. Returns `u64::MAX` after a failed allocation, because waiting would not
    /// help.
    pub fn ready(&self, key_bytes: usize) -> u64 {
        let has_block = key_bytes <= INLINE_BYTES || self.blocks.is_ready();
        let ready = if has_block { self.entries.free().min(self.table.room()) } else { 0 };
        if ready >= self.room() || self.failed.is_some() { u64::MAX } else { ready }
    }

    /// Returns true if a client may name this entry: see [`Entries::has_memory`].
    pub fn has_memory(&self, entry: EntryNo) -> bool {
        self.entries.has_memory(entry)
    }

    /// Orders memory for `more` names and for a reserve. Returns the parts to allocate.
    pub fn order(&mut self, d: &Directory, more: u64) -> Vec<Extent> {
        let mut ordered = Vec::new();
        // New memory may overlap memory that the daemon has yet to free.
        if self.failed.is_some() || self.is_discarding() {
            return ordered;
        }
        // The reserve is at most the number of names that clients can still bind.
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
        if let Some((first, end)) = self.blocks.wanted()
            && !self.orders.values().any(|piece| matches!(piece, Piece::Blocks(_)))
        {
            let block = size_of::<LongName>() as u64;
            let at = |number: u32| (u64::from(number) * block).next_multiple_of(4096);
            let from = if first == 1 { 0 } else { at(first) };
            let extent = Extent { at: d.head().long_names_at.peek() + from, bytes: at(end) - from };
            self.orders.insert(extent.at, Piece::Blocks(end));
            ordered.push(extent);
        }
        ordered
    }

    /// Handles the arrival of ordered memory, or the failure to allocate it.
    pub fn arrived(&mut self, d: &Directory, at: u64, made: Result<(), Unmade>) {
        let piece = self.orders.remove(&at).expect("memory arrives once, and only if ordered");
        let there = made.is_ok();
        match piece {
            Piece::Entries(chunk) => self.entries.arrived(d, chunk, there),
            Piece::Table(log2) if there => {
                let other = 1 - self.half();
                self.half_bytes[other] = PLACE_BYTES << log2;
                // The table may have become unnecessary since the order.
                if let Some(wanted) = self.table_wanted(0)
                    && wanted <= log2
                {
                    self.begin_building(d, wanted);
                }
            }
            Piece::Blocks(end) if there => self.blocks.arrived(end),
            Piece::Table(_) | Piece::Blocks(_) => {}
        }
        if let Err(reason) = made {
            self.failed = Some(reason);
        }
        self.show_room(d);
    }

    /// Returns true if a table is under construction. [`Names::advance`] continues the construction.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// Returns true if the daemon has yet to free memory.
    pub fn is_discarding(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Takes the next memory to free, at most [`DISCARD_BYTES`].
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

    /// Returns the key's entry. If the key has none, adds an entry that is not live yet. `is_own`
    /// returns true if an owner word belongs to a name of the requesting user. Returns
    /// [`Full::Collision`] only if a search for the key passes more than [`SEARCH_MAX`] live names of
    /// this user.
    pub fn place(&mut self, d: &Directory, key: &[u8], is_own: impl Fn(OwnerWord) -> bool) -> Result<EntryNo, Full> {
        let hash = d.hash(key);
        if let Some(found) = d.find(hash, key).expect("only the daemon replaces tables") {
            return Ok(found.entry);
        }
        let entry = self.add(d, hash, key, SEARCH_MAX, is_own)?;
        // An existing name uses none of the reservation.
        self.reserved = self.reserved.saturating_sub(1);
        Ok(entry)
    }

    /// Adds an entry like [`Names::place`], for a name that is already published and has none. A client
    /// that finds the search for a name too long requests the name instead of announcing it.
    pub fn add_announced(
        &mut self,
        d: &Directory,
        hash: u64,
        key: &[u8],
        is_own: impl Fn(OwnerWord) -> bool,
    ) -> Result<EntryNo, Full> {
        self.add(d, hash, key, ANNOUNCED_SEARCH_MAX, is_own)
    }

    fn add(
        &mut self,
        d: &Directory,
        hash: u64,
        key: &[u8],
        search_max: u64,
        is_own: impl Fn(OwnerWord) -> bool,
    ) -> Result<EntryNo, Full> {
        if self.live >= self.max {
            return Err(Full::Names);
        }
        // Counting further places would not change the decision.
        let passed = d.passed_by(hash).take(size::index(search_max) + 1).count() as u64;
        if passed > search_max {
            let leads = |place: &PlaceWord| {
                place.entry() != EntryNo::NONE && KeyKind::of(&d.names[place.entry().index()]).leads_to_cell()
            };
            let owner_words = d.passed_by(hash).filter(leads).map(|place| owner_word_of(d, place.entry()));
            if owner_words.filter(|&owner_word| owner_word.is_live() && is_own(owner_word)).count() as u64 > search_max
            {
                return Err(Full::Collision);
            }
        }
        if self.table.room() == 0 {
            return Err(self.no_memory());
        }
        let block = if key.len() > INLINE_BYTES { self.take_block()? } else { 0 };
        let Some(entry) = self.entries.take() else {
            self.blocks.give(block);
            return Err(self.no_memory());
        };
        d.names[entry.index()].set_key(hash, key, block, &d.long_names);
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

    /// Stores an entry's next owner word.
    pub fn set(&mut self, d: &Directory, entry: EntryNo, after: OwnerWord) {
        let before = owner_word_of(d, entry);
        self.count(d, entry, before, false);
        d.names[entry.index()].owner_word.set(after.0);
        self.count(d, entry, after, true);
        d.head().names_live.set(self.live);
        self.show_room(d);
    }

    /// Ends a name. The name's owner word becomes a tombstone, and its entry becomes free for
    /// another name. Places that no search has to pass become free too.
    pub fn set_tombstone(&mut self, d: &Directory, entry: EntryNo) {
        self.set(d, entry, owner_word_of(d, entry).then_tomb());
        tensorlend_layout::crash_point!("daemon: tomb stored");
        let name = &d.names[entry.index()];
        let place = PlaceWord::new(name.hash.peek(), entry);
        self.changes += 1;
        let at = self.table.remove(d, place);
        if let Some(building) = &mut self.building {
            building.forget(d, at, place);
        }
        if d.names[entry.index()].key_bytes() > INLINE_BYTES {
            let block = low32(name.key.peek() >> 16);
            name.clear_key();
            self.blocks.give(block);
        }
        tensorlend_layout::crash_point!("daemon: place freed");
        self.entries.give(entry);
        if self.discards
            && let Some(chunk) = self.entries.surplus(d, entry, 2 * ENTRIES_RESERVE)
        {
            let (offset, bytes) = self.entries.extent(chunk);
            self.discarded.push(Extent { at: d.head().names_at.peek() + offset, bytes });
        }
        // Memory may have become free, so the next request may order memory again.
        self.failed = None;
        self.show_room(d);
    }

    fn count(&mut self, d: &Directory, entry: EntryNo, owner_word: OwnerWord, add: bool) {
        let by = |counter: &mut u64| if add { *counter += 1 } else { *counter -= 1 };
        match owner_word.kind() {
            OwnerKind::Tomb => {}
            OwnerKind::Reserved => by(&mut self.live),
            OwnerKind::Live => {
                by(&mut self.live);
                if !KeyKind::of(&d.names[entry.index()]).leads_to_cell() {
                } else if add {
                    self.owned.insert(owner_word.owner(), entry);
                } else {
                    self.owned.remove(owner_word.owner(), entry);
                }
            }
        }
    }

    fn take_block(&mut self) -> Result<u32, Full> {
        match self.blocks.take() {
            Some(block) => Ok(block),
            None if self.blocks.are_all_there() => Err(Full::LongNames),
            None => Err(self.no_memory()),
        }
    }

    /// Returns the refusal with the reason for the failure, and permits a new order.
    fn no_memory(&mut self) -> Full {
        Full::Memory(self.failed.take().unwrap_or_else(|| "memory for names is still being made".into()))
    }

    /// Returns log2 of the number of places of the table that should replace the current one, so
    /// that `more` further names find places. Returns `None` if no replacement is necessary. The
    /// new table is larger, smaller, or equally large with another seed. A new table has no places
    /// that searches only pass.
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
        // A rebuild needs at least one change of a name for every 32 places. So each change pays
        // for the work on 32 places.
        (self.is_crowded && self.changes * 32 > places).then_some(log2)
    }

    fn begin_building(&mut self, d: &Directory, log2: u8) {
        let first = d.places.len() as u64 / 2 * (1 - self.half()) as u64;
        let table = TableWord::new(log2, first).with_rebuilds(d.table().rebuilds().wrapping_add(1));
        self.building = Some(Building::new(d, table, seed(self.secret, table)));
        (self.changes, self.is_crowded) = (0, false);
        self.advance(d);
    }

    /// Continues the table under construction for one slice, and publishes a complete table. The
    /// daemon calls this function once per turn.
    pub fn advance(&mut self, d: &Directory) {
        let Some(building) = &mut self.building else { return };
        if !building.advance(d) {
            return;
        }
        let Some(table) = self.building.take().map(Building::into_table) else { return };
        tensorlend_layout::crash_point!("daemon: table built");
        d.head().table.set(table.word().0);
        tensorlend_layout::crash_point!("daemon: table published");
        if self.discards {
            // A client that still searches the old table finds places that lead to no entry, and
            // then a changed table word.
            let (old, half) = (self.table.word(), self.half());
            let at = d.head().places_at.peek() + old.first() * PLACE_BYTES;
            self.discarded.push(Extent { at, bytes: self.half_bytes[half] });
            self.half_bytes[half] = 0;
        }
        self.table = table;
        self.show_room(d);
    }
}

mod blocks;
mod building;
#[cfg(test)]
pub mod colliding;
mod owned;
mod restore;
pub mod table;
#[cfg(test)]
mod tests;
