//! The pool to compare with: it keeps what is dropped and hands it out again for exactly the same size, with or without a
//! bound on what it keeps.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Regions of type `R`, kept by their size in bytes.
#[derive(Debug)]
pub struct ExactPool<R> {
    free: HashMap<usize, VecDeque<(u64, R)>>,
    /// With a bound: which size was given back when, oldest first.
    order: BTreeMap<u64, usize>,
    bytes_max: Option<usize>,
    bytes: usize,
    tick: u64,
    /// What it did.
    pub count: Count,
}

const SMALL: usize = 1 << 20;

/// What a pool did.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Served from what it had.
    pub hits: u64,
    /// Made anew.
    pub misses: u64,
    /// Regions given up for the bound's sake, the one that was given back longest ago first.
    pub evictions: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Those among them of less than 1 MB.
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
    /// Keeps `bytes_max` bytes at most; `None`: everything.
    pub fn new(bytes_max: Option<usize>) -> Self {
        Self { free: HashMap::new(), order: BTreeMap::new(), bytes_max, bytes: 0, tick: 0, count: Count::default() }
    }

    /// A region of `bytes` bytes: one that was given back, or what `make` makes.
    pub fn take(&mut self, bytes: usize, make: impl FnOnce(usize) -> R) -> R {
        // The one that was given back last: it is the warmest.
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

    /// Gives one back.
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

    /// Bytes that wait in it.
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
