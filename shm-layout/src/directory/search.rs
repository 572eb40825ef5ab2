//! The table of names: its places, the order in which a search visits them, and the look-up of a name.

use super::entry::{LongName, NameEntry};
use crate::number::EntryNo;
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{OwnerWord, TableWord, Word};
use core::fmt;

/// Number of places in a bucket of a table of names: one cache line.
pub const BUCKET: u64 = if cfg!(loom) { 1 } else { 8 };

/// Maximum number of a user's own places that a search for a new name of this user may pass. The
/// daemon refuses the name above this number.
pub const SEARCH_MAX: u64 = 16 * BUCKET;

/// A place of the directory's table of names. Fields, highest first: high bits of the name's hash (36 bits), its
/// entry (28). 0: free.
///
/// The bits of the hash determine the order of a [`Search`], so the daemon can build a table from the previous one
/// alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PlaceWord(pub u64);

impl PlaceWord {
    /// A place that no name uses. A search ends here.
    pub const FREE: Self = Self(0);
    /// A place whose name was removed (a tombstone). A search continues past it.
    pub const PASSED: Self = Self(1 << 28);

    /// Returns the place of a name with this hash in `entry`. `entry` is not 0.
    pub const fn new(hash: u64, entry: EntryNo) -> Self {
        Self(hash & !0xFFF_FFFF | (entry.get() & 0xFFF_FFFF) as u64)
    }

    /// Returns true if a search ends here.
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }

    /// Returns the entry to which the place refers, or 0 for none.
    pub const fn entry(self) -> EntryNo {
        EntryNo::low(self.0)
    }

    /// Returns true if a name with this hash may be at this place.
    #[inline]
    pub const fn may_be(self, hash: u64) -> bool {
        (self.0 ^ hash) >> 28 == 0 && self.entry().get() != 0
    }

    /// Returns the buckets of a search for this name in a table of 2^`log2` places with this seed.
    pub fn search(self, seed: u64, log2: u8) -> Search {
        Search::new(self.0, seed, log2)
    }
}

impl fmt::Debug for PlaceWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hash {:09x} entry {}", self.0 >> 28, self.entry())
    }
}

/// The buckets of a search for a hash, in the order of the search. Each bucket is given by the
/// number of its first place in the table.
///
/// The search is double hashing (Knuth, The Art of Computer Programming 3, section 6.4, algorithm
/// D) over buckets. The first bucket and the distance to the next one come from the hash and the
/// table's seed. The distance is odd, so a search visits every bucket once.
///
/// Every member knows the hash's key and can choose names that collide. The daemon draws a table's
/// seed when it begins the table. So the next table spreads the colliding names like any other
/// names.
///
/// The search uses only those bits of the hash that a [`PlaceWord`] contains. So the
/// daemon can build a table from the previous table alone.
#[derive(Clone, Debug)]
pub struct Search {
    bucket: u64,
    step: u64,
    mask: u64,
    left: u64,
}

impl Search {
    /// Returns the search for `hash` in a table of 2^`log2` places with this seed.
    #[inline]
    pub fn new(hash: u64, seed: u64, log2: u8) -> Self {
        let bits = u32::from(log2).saturating_sub(BUCKET.ilog2());
        let buckets = 1u64 << bits;
        // Folded multiplication, as in wyhash: XOR of the halves of the product.
        let (low, high) = (hash >> 28 ^ seed).carrying_mul(seed.rotate_left(32) | 1, 0);
        let mixed = low ^ high;
        // Two shifts instead of one: for a table of one bucket, a single shift by 64 would
        // overflow.
        Self { bucket: mixed >> 1 >> (63 - bits), step: mixed << 1 | 1, mask: buckets - 1, left: buckets }
    }
}

impl Iterator for Search {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let bucket = self.bucket;
        self.bucket = bucket.wrapping_add(self.step) & self.mask;
        Some(bucket * BUCKET)
    }
}

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
