//! Hints for the look-ups of many names. They show the lines that a look-up will read, so that a reader can load the
//! lines of many look-ups at once. A hint may be wrong or outdated; the look-up itself decides.

use super::Directory;
use crate::number::EntryNo;
use crate::search::{BUCKET, Search};
use crate::size;
use crate::word::PlaceWord;

impl Directory {
    /// Returns the index in [`Directory::places`] at which the search for this hash begins.
    #[inline]
    pub fn first_place(&self, hash: u64) -> usize {
        let table = self.table();
        let bucket = Search::new(hash, self.table_seed(table), table.log2()).next().unwrap_or_default();
        size::index(table.first() + bucket)
    }

    /// Returns the entry that may have this hash, by the bucket of places that begins at `first`.
    #[inline]
    pub fn entry_at(&self, first: usize, hash: u64) -> Option<EntryNo> {
        let bucket = self.places.get(first..first + size::index(BUCKET))?;
        bucket.iter().map(|place| PlaceWord(place.peek())).find(|place| place.may_be(hash)).map(PlaceWord::entry)
    }
}
