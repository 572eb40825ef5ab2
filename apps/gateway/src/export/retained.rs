//! Values that other nodes read in parts. This gateway retains each value until all its readers have finished.

use crate::wire::{NodeName, Stamp};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of values.
    pub count: usize,
    /// Maximum number of bytes of all values. A single value may have more.
    pub bytes: u64,
    /// Time without reads after which a value is released.
    pub idle: Duration,
}

/// Identifies a value: a name, and a stamp of its value.
#[derive(Clone, Copy, Debug)]
pub struct Stamped<'n> {
    /// The namespace's index in the configuration.
    pub space: usize,
    pub name: &'n str,
    pub stamp: Stamp,
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

impl<T> Entry<T> {
    fn is_of(&self, at: Stamped<'_>) -> bool {
        self.stamp == at.stamp && self.space == at.space && self.name == at.name
    }
}

/// Values by name and stamp, the oldest first.
///
/// A reader can request the current value again. So an early release costs time, but not
/// correctness.
pub struct Retained<T> {
    limits: Limits,
    entries: VecDeque<Entry<T>>,
}

impl<T> Retained<T> {
    /// Makes an empty collection with these limits.
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: VecDeque::new() }
    }

    pub fn insert(&mut self, at: Stamped<'_>, reader: &NodeName, now: Instant, bytes: u64, value: T) {
        if self.get(at, reader, now).is_some() {
            return;
        }
        let Stamped { space, name, stamp } = at;
        let readers = HashSet::from([reader.clone()]);
        self.entries.push_back(Entry { space, name: name.to_owned(), stamp, bytes, readers, used: now, value });
        while self.entries.len() > 1 && (self.entries.len() > self.limits.count || self.bytes() > self.limits.bytes) {
            self.entries.pop_front();
        }
    }

    /// Returns a retained value, and adds `reader` to its readers.
    pub fn get(&mut self, at: Stamped<'_>, reader: &NodeName, now: Instant) -> Option<&T> {
        let entry = self.entries.iter_mut().find(|entry| entry.is_of(at))?;
        entry.used = now;
        if !entry.readers.contains(reader) {
            entry.readers.insert(reader.clone());
        }
        Some(&entry.value)
    }

    /// Removes a reader that has finished with a value. Releases the value if it has no other
    /// reader.
    pub fn remove_reader(&mut self, at: Stamped<'_>, reader: &NodeName) {
        self.entries.retain_mut(|e| {
            if e.is_of(at) {
                e.readers.remove(reader);
            }
            !e.readers.is_empty()
        });
    }

    /// Releases values that no node has read for [`Limits::idle`].
    pub fn on_tick(&mut self, now: Instant) {
        let idle = self.limits.idle;
        self.entries.retain(|e| now.saturating_duration_since(e.used) < idle);
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Epoch;

    const LIMITS: Limits = Limits { count: 3, bytes: 100, idle: Duration::from_secs(5) };

    fn at(name: &str, counter: u64) -> Stamped<'_> {
        Stamped { space: 0, name, stamp: Stamp { epoch: Epoch(1), counter } }
    }

    #[test]
    fn what_is_read_is_retained_until_all_its_readers_are_done() {
        let (a, b, now) = (NodeName::new("a").unwrap(), NodeName::new("b").unwrap(), Instant::now());
        let mut retained = Retained::new(LIMITS);
        let key = at("x", 1);
        retained.insert(key, &a, now, 10, "value");
        assert_eq!(retained.get(key, &b, now), Some(&"value"));
        retained.remove_reader(key, &a);
        assert_eq!(retained.get(key, &b, now), Some(&"value"));
        retained.remove_reader(key, &b);
        assert!(retained.is_empty());
    }

    #[test]
    fn too_many_too_large_and_idle_ones_go() {
        let (a, now) = (NodeName::new("a").unwrap(), Instant::now());
        let mut retained = Retained::new(LIMITS);
        for n in 0..10 {
            retained.insert(at("x", n), &a, now, 10, n);
        }
        assert_eq!((retained.len(), retained.get(at("x", 9), &a, now)), (3, Some(&9)));
        // A value larger than the limit is retained alone.
        retained.insert(at("y", 20), &a, now, 1000, 20);
        assert_eq!((retained.len(), retained.bytes()), (1, 1000));
        retained.on_tick(now + Duration::from_secs(4));
        assert_eq!(retained.len(), 1);
        retained.on_tick(now + Duration::from_secs(6));
        assert!(retained.is_empty());
    }
}
