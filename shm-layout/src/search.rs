//! The order in which a search visits the places of a table of names.

/// Number of places in a bucket of a table of names: one cache line.
pub const BUCKET: u64 = if cfg!(loom) { 1 } else { 8 };

/// Maximum number of a user's own places that a search for a new name of this user may pass. The
/// daemon refuses the name above this number.
pub const SEARCH_MAX: u64 = 16 * BUCKET;

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
/// The search uses only those bits of the hash that a [`crate::word::PlaceWord`] contains. So the
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::number::EntryNo;
    use crate::word::PlaceWord;

    #[test]
    fn a_search_visits_every_bucket_once() {
        let hash = 0xFEDC_BA98_7654_3210;
        let place = PlaceWord::new(hash, EntryNo::new(7));
        assert_eq!((place.entry().get(), place.is_free(), place.may_be(hash)), (7, false, true));
        assert!(place.may_be(hash ^ 0xFFF_FFFF) && !place.may_be(hash ^ (1 << 28)));
        for log2 in 3..=13 {
            let mut buckets: Vec<u64> = Search::new(hash, 5, log2).collect();
            assert_eq!(place.search(5, log2).collect::<Vec<_>>(), buckets);
            buckets.sort_unstable();
            assert_eq!(buckets, (0..1 << log2).step_by(8).collect::<Vec<u64>>());
        }
        // Another seed gives another order.
        let first = |seed| Search::new(hash, seed, 25).take(4).collect::<Vec<_>>();
        assert_ne!(first(5), first(6));
        assert!(!PlaceWord::PASSED.may_be(1 << 28) && !PlaceWord::FREE.may_be(0));
        assert!(!PlaceWord::PASSED.is_free() && PlaceWord::PASSED.entry() == EntryNo::new(0));
    }
}
