//! A look-up in the table of names.

use super::entry::{LongName, NameEntry};
use crate::number::EntryNo;
use crate::search::{BUCKET, Search};
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{OwnerWord, PlaceWord, TableWord, Word};

/// The entry that a look-up found for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundName {
    /// Index of the entry in the directory's entry array.
    pub entry: EntryNo,
    /// The entry's owner word during the comparison of the key. A client reads the owner word again
    /// before it relies on it.
    pub owner_word: OwnerWord,
}

/// The error if the daemon replaced the table of names during the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced;

/// Performs [`super::Directory::find`] over bare words: the table word, the tables' seeds, all
/// places, the entries, and the blocks of long names.
///
/// A place leads to an entry, and the entry itself contains its key. So an outdated place can
/// mislead reader R, even a place of a replaced table, but can never lead R to another name's
/// value.
///
/// R must not miss a live name either. Daemon D ensures this by two rules. A name's place in a
/// table does not move while the name lives. A place becomes free only while no live name is behind
/// it on that name's search.
#[inline]
pub fn find_in(
    table_word: &Word,
    seeds: &[Word; 2],
    places: &[Word],
    names: &[NameEntry],
    long_names: &[LongName],
    hash: u64,
    key: &[u8],
) -> Result<Option<FoundName>, Replaced> {
    let table = TableWord(table_word.read());
    let (first, count) = (table.first(), table.places());
    let Some(current) = places.get(size::index(first)..size::index(first + count)) else { return Err(Replaced) };
    let (buckets, _) = current.as_chunks::<{ size::index(BUCKET) }>();
    let mut found = None;
    let seed = seeds[table.half()].read();
    'search: for first in Search::new(hash, seed, table.log2()) {
        for place in &buckets[size::index(first / BUCKET)] {
            let place = PlaceWord(place.read());
            if place.is_free() {
                break 'search;
            }
            if !place.may_be(hash) {
                continue;
            }
            let Some(entry) = names.get(place.entry().index()) else { continue };
            if let Some(owner_word) = entry.probe(hash, key, long_names) {
                found = Some(FoundName { entry: place.entry(), owner_word });
                if owner_word.is_live() {
                    return Ok(found);
                }
                break 'search;
            }
        }
    }
    // The result "not found" is valid only if this table was current during the whole search.
    if TableWord(table_word.read()) == table { Ok(found) } else { Err(Replaced) }
}

/// Performs [`super::Directory::begin_table`] over bare words.
pub fn begin_table_in(seeds: &[Word; 2], table: TableWord, seed: u64) {
    // Release orders the store of the table word, which replaced this half's former table, before
    // the relaxed stores of this seed and the places. A reader R that still searches the former
    // table may read one of these. R then also finds the table word changed.
    fence(Ordering::Release);
    seeds[table.half()].put(seed);
}
