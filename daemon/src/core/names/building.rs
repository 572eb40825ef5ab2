//! Construction of a new table of names while the current table stays in use. The construction runs
//! in slices, so that no request waits for all of it.
//!
//! If a name changes at a place that the daemon has already copied, the daemon changes the name in
//! both tables. The daemon copies the other places later, in their state at that time. Clients read
//! the table only after the daemon has published the complete table.

use super::table::Table;
use tensorlend_layout::directory::{Directory, PlaceWord};
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;
use tensorlend_layout::word::TableWord;

/// Number of places that one slice wipes or copies.
const STEP: u64 = 1 << 14;

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Building {
    /// The current table.
    old: TableWord,
    table: Table,
    /// Number of places of the new table that are wiped. Until the daemon wipes a place, the place
    /// may contain an entry of an older table.
    wiped: u64,
    /// Number of places of the current table that are copied.
    copied: u64,
}

impl Building {
    /// Begins a table that will replace the current one.
    pub fn new(d: &Directory, table: TableWord, seed: u64) -> Self {
        d.begin_table(table, seed);
        Self { old: d.table(), table: Table::new(table, seed), wiped: 0, copied: 0 }
    }

    /// Continues the construction for one slice. Returns true when the table is complete.
    pub fn advance(&mut self, d: &Directory) -> bool {
        let table = self.table.word();
        let end = (self.wiped + STEP).min(table.places());
        for at in self.wiped..end {
            d.places[size::index(table.first() + at)].put(PlaceWord::FREE.0);
        }
        let left = STEP - (end - self.wiped);
        self.wiped = end;
        if end < table.places() {
            return false;
        }
        let end = (self.copied + left).min(self.old.places());
        for at in self.copied..end {
            let place = PlaceWord(d.places[size::index(self.old.first() + at)].peek());
            if place.entry() != EntryNo::NONE {
                self.table.insert(d, place);
            }
        }
        self.copied = end;
        end == self.old.places()
    }

    /// Returns the complete table.
    pub fn into_table(self) -> Table {
        self.table
    }

    fn has(&self, at: usize) -> bool {
        (at as u64 - self.old.first()) < self.copied
    }

    /// Copies a name that was added at a place of the current table, if the daemon has already
    /// copied that place.
    pub fn follow(&mut self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            self.table.insert(d, place);
        }
    }

    /// Removes a name that was removed from a place of the current table, if the daemon has already
    /// copied that place.
    pub fn forget(&mut self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            self.table.remove(d, place);
        }
    }
}
