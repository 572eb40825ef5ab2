//! Values that others are reading: kept until they are done.

use crate::wire::{NodeName, Stamp};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// What may be kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Values.
    pub count: usize,
    /// Bytes of all of them. A single one may have more.
    pub bytes: u64,
    /// Nobody has read of it for so long: it is let go.
    pub idle: Duration,
}

struct Entry<T> {
    space: usize,
    name: String,
    stamp: Stamp,
    bytes: u64,
    readers: HashSet<NodeName>,
    used: Instant,
    value: T,
}

/// Values by name and stamp, the oldest first.
///
/// What is not kept any more can be asked for again, so that letting go too early costs time and nothing else.
pub struct Kept<T> {
    limits: Limits,
    entries: VecDeque<Entry<T>>,
}

impl<T> Kept<T> {
    /// Nothing.
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: VecDeque::new() }
    }

    /// Keeps a value for a reader.
    pub fn keep(
        &mut self,
        (space, name, stamp): (usize, &str, Stamp),
        reader: &NodeName,
        now: Instant,
        bytes: u64,
        value: T,
    ) {
        if self.get((space, name, stamp), reader, now).is_some() {
            return;
        }
        let readers = HashSet::from([reader.clone()]);
        self.entries.push_back(Entry { space, name: name.to_owned(), stamp, bytes, readers, used: now, value });
        while self.entries.len() > 1 && (self.entries.len() > self.limits.count || self.bytes() > self.limits.bytes) {
            self.entries.pop_front();
        }
    }

    /// One that is kept; its reader is remembered.
    pub fn get(&mut self, (space, name, stamp): (usize, &str, Stamp), reader: &NodeName, now: Instant) -> Option<&T> {
        let entry = self.entries.iter_mut().find(|e| e.stamp == stamp && e.space == space && e.name == name)?;
        entry.used = now;
        if !entry.readers.contains(reader) {
            entry.readers.insert(reader.clone());
        }
        Some(&entry.value)
    }

    /// A reader is done with it.
    pub fn done(&mut self, (space, name, stamp): (usize, &str, Stamp), reader: &NodeName) {
        self.entries.retain_mut(|e| {
            if e.stamp == stamp && e.space == space && e.name == name {
                e.readers.remove(reader);
            }
            !e.readers.is_empty()
        });
    }

    /// A reader is gone.
    pub fn on_parted(&mut self, reader: &NodeName) {
        self.entries.retain_mut(|e| {
            e.readers.remove(reader);
            !e.readers.is_empty()
        });
    }

    /// Lets go of what nobody reads.
    pub fn on_tick(&mut self, now: Instant) {
        let idle = self.limits.idle;
        self.entries.retain(|e| now.saturating_duration_since(e.used) < idle);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Epoch;

    const LIMITS: Limits = Limits { count: 3, bytes: 100, idle: Duration::from_secs(5) };

    fn stamp(counter: u64) -> Stamp {
        Stamp { epoch: Epoch(1), counter }
    }

    #[test]
    fn what_is_read_is_kept_until_all_its_readers_are_done() {
        let (a, b, now) = (NodeName::new("a").unwrap(), NodeName::new("b").unwrap(), Instant::now());
        let mut kept = Kept::new(LIMITS);
        let key = (0, "x", stamp(1));
        kept.keep(key, &a, now, 10, "value");
        assert_eq!(kept.get(key, &b, now), Some(&"value"));
        kept.done(key, &a);
        assert_eq!(kept.get(key, &b, now), Some(&"value"));
        kept.on_parted(&b);
        assert!(kept.is_empty());
    }

    #[test]
    fn too_many_too_large_and_idle_ones_go() {
        let (a, now) = (NodeName::new("a").unwrap(), Instant::now());
        let mut kept = Kept::new(LIMITS);
        for n in 0..10 {
            kept.keep((0, "x", stamp(n)), &a, now, 10, n);
        }
        assert_eq!((kept.len(), kept.get((0, "x", stamp(9)), &a, now)), (3, Some(&9)));
        // One that is larger than all may be is kept alone.
        kept.keep((0, "y", stamp(20)), &a, now, 1000, 20);
        assert_eq!((kept.len(), kept.bytes()), (1, 1000));
        kept.on_tick(now + Duration::from_secs(4));
        assert_eq!(kept.len(), 1);
        kept.on_tick(now + Duration::from_secs(6));
        assert!(kept.is_empty());
    }
}
