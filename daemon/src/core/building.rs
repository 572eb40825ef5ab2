//! A table of names that is being built beside the current one, a little at a time: nobody shall wait for the whole of it.
//!
//! It has the names of the places that are copied; those may change meanwhile, and it follows. What lies ahead of the copy
//! is copied as it is then. Nobody reads it before it is complete and published.

use tensorlend_layout::directory::Directory;
use tensorlend_layout::word::{PlaceWord, TableWord};

/// Places that are wiped or copied in one go.
const STEP: u64 = 1 << 14;

/// How far it has come.
#[derive(Clone, Copy, Debug)]
pub struct Building {
    /// The current table.
    pub old: TableWord,
    /// The one being built.
    pub table: TableWord,
    /// Its places that are free: another table was there before.
    pub wiped: u64,
    /// Places of the old table whose names it has.
    pub copied: u64,
    /// Its places that a search must go past.
    pub passed: u64,
}

impl Building {
    /// Goes on for a while; whether it is complete.
    pub fn go_on(&mut self, d: &Directory) -> bool {
        let end = (self.wiped + STEP).min(self.table.places());
        for at in self.wiped..end {
            d.places[(self.table.first() + at) as usize].put(PlaceWord::FREE.0);
        }
        let left = STEP - (end - self.wiped);
        self.wiped = end;
        if end < self.table.places() {
            return false;
        }
        let end = (self.copied + left).min(self.old.places());
        for at in self.copied..end {
            let place = PlaceWord(d.places[(self.old.first() + at) as usize].peek());
            if place.entry() != 0 {
                self.insert(d, place);
            }
        }
        self.copied = end;
        end == self.old.places()
    }

    fn search(&self, place: PlaceWord) -> impl Iterator<Item = usize> + use<> {
        let (table, begins) = (self.table, place.begins(self.table.log2()));
        (0..table.places()).map(move |step| (table.first() + ((begins + step) & (table.places() - 1))) as usize)
    }

    fn insert(&self, d: &Directory, place: PlaceWord) {
        let at = self.search(place).find(|&at| d.places[at].peek() == PlaceWord::FREE.0);
        d.places[at.expect("it is as large as its names need")].put(place.0);
    }

    fn has(&self, at: usize) -> bool {
        (at as u64 - self.old.first()) < self.copied
    }

    /// A place of the old table has got a name.
    pub fn follow(&self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            self.insert(d, place);
        }
    }

    /// A place of the old table loses its name.
    pub fn forget(&mut self, d: &Directory, at: usize, place: PlaceWord) {
        if self.has(at) {
            let at = self.search(place).find(|&at| d.places[at].peek() == place.0);
            d.places[at.expect("what was copied is there")].put(PlaceWord::PASSED.0);
            self.passed += 1;
        }
    }
}
