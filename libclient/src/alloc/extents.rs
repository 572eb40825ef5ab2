//! Free space of one segment: best fit, with immediate coalescing of neighbours.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of a segment. Invariants: no two free extents are adjacent, both indexes hold the same extents,
/// and the free bytes plus the bytes handed out equal the segment's length.
#[derive(Debug)]
pub struct Extents {
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    length: u64,
    free: u64,
}

impl Extents {
    /// Creates the extents of `length` bytes, all free.
    pub fn new(length: u64) -> Self {
        let mut it = Self { by_offset: BTreeMap::new(), by_length: BTreeSet::new(), length, free: 0 };
        if length > 0 {
            it.insert(0, length);
        }
        it
    }

    /// Returns whether no bytes are handed out.
    pub fn is_unused(&self) -> bool {
        self.free == self.length
    }

    /// Returns the number of bytes handed out.
    pub fn taken_bytes(&self) -> u64 {
        self.length - self.free
    }

    /// Returns whether no bytes are free.
    #[cfg(feature = "cuda")]
    pub fn is_full(&self) -> bool {
        self.free == 0
    }

    /// Returns the smallest extent that can hold `length` bytes at a multiple of `align`, as its length and offset.
    fn smallest(&self, length: u64, align: u64) -> Option<(u64, u64)> {
        let fits = |&&(l, o): &&(u64, u64)| o.next_multiple_of(align) - o + length <= l;
        // Any extent of length + align - 1 bytes fits, so the search skips only few badly aligned extents.
        self.by_length.range((length, 0)..).find(fits).copied()
    }

    /// Returns the number of bytes that would be left of the extent that [`Extents::take`] would use.
    pub fn best(&self, length: u64, align: u64) -> Option<u64> {
        self.smallest(length, align).map(|(had, _)| had - length)
    }

    /// Takes `length` bytes at a multiple of `align`, from the smallest extent that can hold them.
    pub fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let (had, offset) = self.smallest(length, align)?;
        self.remove(offset, had);
        let at = offset.next_multiple_of(align);
        if at > offset {
            self.insert(offset, at - offset);
        }
        if offset + had > at + length {
            self.insert(at + length, offset + had - at - length);
        }
        Some(at)
    }

    /// Adds an extent to the free space.
    pub fn give(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + length);
        if let Some((&o, &l)) = self.by_offset.range(..offset).next_back() {
            debug_assert!(o + l <= offset, "given back twice");
            if o + l == offset {
                start = o;
                self.remove(o, l);
            }
        }
        if let Some((&o, &l)) = self.by_offset.range(offset..).next() {
            debug_assert!(o >= end, "given back twice");
            if o == end {
                end += l;
                self.remove(o, l);
            }
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
        self.free += length;
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::random::splitmix64;

    #[test]
    fn everything_comes_back_as_one() {
        let mut e = Extents::new(1 << 20);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut seed = 7u64;
        for round in 0..20_000 {
            let random = splitmix64(&mut seed);
            let length = ((random >> 33) % 9000 + 1).next_multiple_of(64);
            let align = if length >= 4096 { 4096 } else { 64 };
            if round % 3 != 0
                && let Some(at) = e.take(length, align)
            {
                assert!(at % align == 0 && at + length <= 1 << 20);
                assert!(taken.iter().all(|&(o, l)| at + length <= o || o + l <= at), "overlap");
                taken.push((at, length));
            } else if !taken.is_empty() {
                let (o, l) = taken.swap_remove((random >> 20) as usize % taken.len());
                e.give(o, l);
            }
        }
        for (o, l) in taken {
            e.give(o, l);
        }
        assert!(e.is_unused());
        assert_eq!(e.take(1 << 20, 4096), Some(0));
        assert_eq!(e.take(64, 64), None);
    }
}
