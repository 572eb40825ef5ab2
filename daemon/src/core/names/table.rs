//! A table of names. Its only writer is the daemon. The table consists of places that lead to
//! entries, in buckets of one cache line.
//!
//! A search for a name visits buckets in the order of [`Search`], and the places of a bucket in
//! ascending order. The search ends at a free place. So the daemon frees a place only if no search
//! for a name continues behind it. Within a bucket, the daemon frees places from the last one
//! backwards. If a search for a name continues behind a bucket, the daemon frees none of the
//! bucket's places.

use std::collections::HashMap;
use tensorlend_layout::directory::{BUCKET, Directory, PlaceWord, Search};
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;
use tensorlend_layout::word::TableWord;

/// The daemon's data about a table.
#[derive(Clone, Debug)]
pub struct Table {
    word: TableWord,
    seed: u64,
    /// Places that lead to entries.
    named: u64,
    /// Places that lead to no entry and that searches must pass.
    passed: u64,
    /// The number of names whose searches continue behind a bucket. The key is the bucket's first
    /// place. Buckets without such names are absent.
    beyond: HashMap<u64, u32>,
}

impl Table {
    /// Returns a table without names. All its places are free, or become free before their use.
    pub fn new(word: TableWord, seed: u64) -> Self {
        Self { word, seed, named: 0, passed: 0, beyond: HashMap::new() }
    }

    /// Returns the table's location.
    pub fn word(&self) -> TableWord {
        self.word
    }

    /// Returns the number of places that lead to entries.
    pub fn named(&self) -> u64 {
        self.named
    }

    /// Returns the number of places that a search finds occupied.
    pub fn used(&self) -> u64 {
        self.named + self.passed
    }

    /// Returns the number of names for which the table has room. An eighth of the places stays
    /// free, so that searches end.
    pub fn room(&self) -> u64 {
        (self.word.places() * 7 / 8).saturating_sub(self.used())
    }

    fn search(&self, place: PlaceWord) -> Search {
        place.search(self.seed, self.word.log2())
    }

    /// Returns the numbers of a bucket's places, counted over all places of the directory.
    fn bucket(&self, first: u64) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let at = size::index(self.word.first() + first);
        at..at + size::index(BUCKET)
    }

    /// Adds a name. Returns the number of the name's place.
    ///
    /// # Panics
    /// Panics if no place is free.
    pub fn insert(&mut self, d: &Directory, place: PlaceWord) -> usize {
        for first in self.search(place) {
            if let Some(at) = self.bucket(first).find(|&at| place_of(d, at).entry() == EntryNo::NONE) {
                if place_of(d, at) == PlaceWord::PASSED {
                    self.passed -= 1;
                }
                self.named += 1;
                d.places[at].set(place.0);
                return at;
            }
            *self.beyond.entry(first).or_default() += 1;
        }
        panic!("an eighth of the places is free");
    }

    /// Removes a name, and frees the places that no search has to pass. Returns the number of the name's place.
    ///
    /// # Panics
    /// Panics if the name has no place.
    pub fn remove(&mut self, d: &Directory, place: PlaceWord) -> usize {
        let mut before = Vec::new();
        for first in self.search(place) {
            let Some(at) = self.bucket(first).find(|&at| place_of(d, at) == place) else {
                before.push(first);
                continue;
            };
            d.places[at].set(PlaceWord::PASSED.0);
            (self.named, self.passed) = (self.named - 1, self.passed + 1);
            self.free(d, first);
            for first in before {
                let names = self.beyond.get_mut(&first).expect("a name stands behind it");
                *names -= 1;
                if *names == 0 {
                    self.beyond.remove(&first);
                    self.free(d, first);
                }
            }
            return at;
        }
        panic!("a name has its place");
    }

    /// Frees the places at the end of a bucket that no search has to pass.
    fn free(&mut self, d: &Directory, first: u64) {
        if self.beyond.contains_key(&first) {
            return;
        }
        for at in self.bucket(first).rev() {
            match place_of(d, at) {
                PlaceWord::FREE => {}
                PlaceWord::PASSED => {
                    d.places[at].set(PlaceWord::FREE.0);
                    self.passed -= 1;
                }
                _ => return,
            }
        }
    }

    /// Restores the table that another daemon wrote last. `is_name` returns true for a place that
    /// leads to an entry in use. Afterwards all other places lead to no entry.
    pub fn restore(d: &Directory, mut is_name: impl FnMut(PlaceWord) -> bool) -> Self {
        let mut it = Self::new(d.table(), d.table_seed(d.table()));
        let buckets = || (0..d.table().places()).step_by(size::index(BUCKET));
        for first in buckets() {
            for at in it.bucket(first) {
                let place = place_of(d, at);
                if place.entry() != EntryNo::NONE && is_name(place) {
                    it.named += 1;
                    for before in it.search(place).take_while(|&before| before != first) {
                        *it.beyond.entry(before).or_default() += 1;
                    }
                } else if !place.is_free() {
                    d.places[at].set(PlaceWord::PASSED.0);
                    it.passed += 1;
                }
            }
        }
        for first in buckets() {
            it.free(d, first);
        }
        it
    }

    /// Checks the counts of the table against its places.
    #[cfg(test)]
    pub fn check(&self, d: &Directory) {
        let mut beyond = HashMap::new();
        let (mut named, mut passed) = (0, 0);
        for first in (0..self.word.places()).step_by(size::index(BUCKET)) {
            let mut free = false;
            for at in self.bucket(first) {
                let place = place_of(d, at);
                free |= place.is_free();
                assert_eq!(free, place.is_free(), "a free place in the midst of bucket {first}");
                named += u64::from(place.entry() != EntryNo::NONE);
                passed += u64::from(place == PlaceWord::PASSED);
                if place.entry() != EntryNo::NONE {
                    for before in self.search(place).take_while(|&before| before != first) {
                        *beyond.entry(before).or_default() += 1;
                    }
                }
            }
            assert!(!(free && self.beyond.contains_key(&first)), "a search for a name ends at bucket {first}");
        }
        assert_eq!((named, passed, beyond), (self.named, self.passed, self.beyond.clone()));
    }
}

fn place_of(d: &Directory, at: usize) -> PlaceWord {
    PlaceWord(d.places[at].peek())
}
