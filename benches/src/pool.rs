//! The pool to compare with: it caches dropped regions and reuses them for exactly the same size, with or without a
//! bound.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Regions of type `R`, cached by their size in bytes.
#[derive(Debug)]
pub struct ExactPool<R> {
    free: HashMap<usize, VecDeque<(u64, R)>>,
    /// The sizes of the returned regions, the oldest region first. Used only if the pool has a bound.
    order: BTreeMap<u64, usize>,
    bytes_max: Option<usize>,
    bytes: usize,
    tick: u64,
    pub count: Count,
}

const SMALL: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed a new region.
    pub misses: u64,
    /// Regions evicted because of the bound, least recently returned first.
    pub evictions: u64,
    pub evicted_bytes: u64,
    /// Number of evicted regions of less than 1 MB.
    pub evicted_small: u64,
}

impl Count {
    fn evict(&mut self, bytes: usize) {
        self.evictions += 1;
        self.evicted_bytes += bytes as u64;
        self.evicted_small += u64::from(bytes < SMALL);
    }
}

impl<R> ExactPool<R> {
    /// Creates a pool that caches `bytes_max` bytes at most; `None`: no limit.
    pub fn new(bytes_max: Option<usize>) -> Self {
        Self { free: HashMap::new(), order: BTreeMap::new(), bytes_max, bytes: 0, tick: 0, count: Count::default() }
    }

    /// Returns a region of `bytes` bytes: a cached one, or a new one from `make`.
    pub fn take(&mut self, bytes: usize, make: impl FnOnce(usize) -> R) -> R {
        // Take the region that was returned last: the caches probably still contain it.
        let Some((tick, region)) = self.free.get_mut(&bytes).and_then(VecDeque::pop_back) else {
            self.count.misses += 1;
            return make(bytes);
        };
        self.count.hits += 1;
        self.bytes -= bytes;
        if self.bytes_max.is_some() {
            self.order.remove(&tick);
        }
        region
    }

    pub fn give(&mut self, bytes: usize, region: R) {
        self.tick += 1;
        if let Some(bytes_max) = self.bytes_max {
            if bytes > bytes_max {
                self.count.evict(bytes);
                return;
            }
            while self.bytes + bytes > bytes_max {
                let (_, size) = self.order.pop_first().expect("bytes are kept, so there is an oldest");
                drop(self.free.get_mut(&size).and_then(VecDeque::pop_front).expect("it is where it was put"));
                self.bytes -= size;
                self.count.evict(size);
            }
            self.order.insert(self.tick, bytes);
        }
        self.bytes += bytes;
        self.free.entry(bytes).or_default().push_back((self.tick, region));
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::ExactPool;

    #[test]
    fn same_sizes_come_back() {
        let mut pool = ExactPool::new(None);
        pool.give(8, "a");
        assert_eq!([pool.take(4, |_| "new"), pool.take(8, |_| "new"), pool.take(8, |_| "new")], ["new", "a", "new"]);
        assert_eq!((pool.count.hits, pool.count.misses, pool.bytes()), (1, 2, 0));
    }

    #[test]
    fn the_oldest_goes_first() {
        let mut pool = ExactPool::new(Some(20));
        pool.give(8, "old");
        pool.give(12, "young");
        pool.give(8, "new");
        assert_eq!((pool.bytes(), pool.count.evictions, pool.count.evicted_bytes), (20, 1, 8));
        assert_eq!(
            [pool.take(12, |_| "made"), pool.take(8, |_| "made"), pool.take(8, |_| "made")],
            ["young", "new", "made"]
        );
        pool.give(21, "too large");
        assert_eq!((pool.bytes(), pool.count.evictions), (0, 2));
    }
}
