//! Lookups in the directory.

use super::Link;
use std::hint::black_box;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::word::Word;

/// Words of the name in the first cache line of an entry.
const FIRST_LINE_WORDS: usize = 4;

impl Link {
    /// Finds a key in the directory. Searches again if the daemon has replaced the table of names in the meantime.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(self.directory.hash(key), key)
    }

    /// Returns a name's entry, if the name has an owner.
    #[inline]
    pub fn find_live(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        self.find_hashed(hash, key).filter(|found| found.owner_word.is_live())
    }

    /// Finds a key like [`Link::find`], for a caller that has computed the key's hash.
    #[inline]
    pub fn find_hashed(&self, hash: u64, key: &[u8]) -> Option<FoundName> {
        loop {
            if let Ok(found) = self.directory.find(hash, key) {
                return found;
            }
            std::hint::spin_loop();
        }
    }

    /// Loads the first lines of this many adjacent entries, for look-ups that expect their names there.
    pub fn fetch_entries(&self, first: EntryNo, count: usize) {
        for entry in self.directory.names.iter().skip(first.index()).take(count) {
            black_box(entry.owner_word.peek());
        }
    }

    /// Looks keys up like [`Link::find_live`]. Does each step for all keys before the next step, so that the processor
    /// fetches the lines of many look-ups at once.
    pub fn find_many(&self, keys: &[&[u8]]) -> Vec<Option<FoundName>> {
        let directory = &self.directory;
        let hashes: Vec<u64> = keys.iter().map(|key| directory.hash(key)).collect();
        let places: Vec<usize> = hashes.iter().map(|&hash| directory.first_place(hash)).collect();
        // The loops that only load are short, so that the processor executes many of their loads at once.
        for &place in &places {
            black_box(directory.places.get(place).map(Word::peek));
        }
        let entries = hashes
            .iter()
            .zip(&places)
            .map(|(&hash, &place)| directory.entry_at(place, hash).unwrap_or(EntryNo::new(0)));
        let entries: Vec<EntryNo> = entries.collect();
        for (&entry, key) in entries.iter().zip(keys) {
            if let Some(entry) = directory.names.get(entry.index()) {
                let last = entry.name[FIRST_LINE_WORDS - usize::from(key.len() <= FIRST_LINE_WORDS * 8)].peek();
                black_box((entry.owner_word.peek(), last));
            }
        }
        let find = |((key, &hash), &entry): ((&&[u8], &u64), &EntryNo)| {
            // The entry contains its key. So a wrong hint leads to no other name's value.
            let hinted = directory.names.get(entry.index()).and_then(|it| it.probe(hash, key, &directory.long_names));
            match hinted.filter(|owner_word| owner_word.is_live()) {
                Some(owner_word) => Some(FoundName { entry, owner_word }),
                None => self.find_live(hash, key),
            }
        };
        keys.iter().zip(&hashes).zip(&entries).map(find).collect()
    }
}
