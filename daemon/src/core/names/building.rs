//! A table of names that is being built beside the current one, a little at a time: nobody shall wait for the whole of it.
//!
//! It has the names of the places that are copied; those may change meanwhile, and it follows. What lies ahead of the copy
//! is copied as it is then. Nobody reads it before it is complete and published.

use super::table::Table;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::word::{PlaceWord, TableWord};

/// Places that are wiped or copied in one go.
const STEP: u64 = 1 << 14;

/// How far it has come.
#[derive(Clone, Debug)]
pub struct Building {
    /// The current table.
    old: TableWord,
    /// The one being built.
    table: Table,
    /// Its places that are free: another table was there before.
    wiped: u64,
    /// Places of the old table whose names it has.
    copied: u64,
}

impl Building {
    /// Begins a table to replace the current one.
    pub fn new(d: &Directory, table: TableWord, seed: u64) -> Self {
        d.begin_table(table, seed);
        Self { old: d.table(), table: Table::new(table, seed), wiped: 0, copied: 0 }
    }

    /// Goes on for a while; whether it is complete.
    pub fn go_on(&mut self, d: &Directory) -> bool {
        let table = self.table.word();
        let end = (self.wiped + STEP).min(table.places());
        for at in self.wiped..end {
            d.places[(table.first() + at) as usize].put(PlaceWord::FREE.0);
        }
        let left = STEP - (end - self.wiped);
        self.wiped = end;
        if end < table.places() {
            return false;
        }
        let end = (self.copied + left).min(self.old.places());
        for at in self.copied..end {
            let place = PlaceWord(d.places[(self.old.first() + at) as usize].peek());
            if place.entry() != 0 {
                self.table.insert(d, place);
            }
        }
        self.copied = end;
        end == self.old.places()
    }

    /// The table, when it is complete.
    pub fn into_table(self) -> Table {
        self.table
    }

    fn has(&self, at: usize) -> bool {
        (at as u64 - self.old.first()) < self.copied
    }

    /// A place of the old table has got a name.
    pub fn follow(&mut self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            self.table.insert(d, place);
        }
    }

    /// A place of the old table loses its name.
    pub fn forget(&mut self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            self.table.remove(d, place);
        }
    }
}
