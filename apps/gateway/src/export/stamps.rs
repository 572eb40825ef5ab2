//! Stamps of values, derived from the local daemon's versions.

use crate::wire::{Epoch, Stamp};
use std::collections::{HashMap, VecDeque};
use tensorlend::Version;

/// Stamps of the latest values, by name. One counter serves all names. So a name that this table
/// has forgotten gets a new stamp, and never an earlier one. A reader that has a copy of its value
/// then fetches the same value once more.
#[derive(Debug)]
pub struct Stamps {
    epoch: Epoch,
    last: u64,
    max: usize,
    seen: HashMap<(usize, String), (Version, u64)>,
    order: VecDeque<(usize, String)>,
}

impl Stamps {
    /// Makes an empty table that remembers at most `max` names.
    pub fn new(epoch: Epoch, max: usize) -> Self {
        Self { epoch, last: 0, max: max.max(1), seen: HashMap::new(), order: VecDeque::new() }
    }

    /// Returns a stamp that no other value has.
    pub fn fresh(&mut self) -> Stamp {
        self.last += 1;
        Stamp { epoch: self.epoch, counter: self.last }
    }

    /// Returns the stamp of a name's value. `version` is the value's version in the local daemon.
    pub fn of(&mut self, space: usize, name: &str, version: Version) -> Stamp {
        let key = (space, name.to_owned());
        let (epoch, last) = (self.epoch, &mut self.last);
        if let Some((known, counter)) = self.seen.get_mut(&key) {
            if *known != version {
                *last += 1;
                (*known, *counter) = (version, *last);
            }
            return Stamp { epoch, counter: *counter };
        }
        *last += 1;
        let counter = *last;
        self.order.push_back(key.clone());
        self.seen.insert(key, (version, counter));
        while self.seen.len() > self.max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.seen.remove(&oldest);
        }
        Stamp { epoch, counter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(n: u64) -> Version {
        Version::from_words([1 << 50, n])
    }

    #[test]
    fn another_value_has_a_later_stamp_and_the_same_one_the_same() {
        let mut stamps = Stamps::new(Epoch(7), 100);
        let first = stamps.of(0, "x", version(1));
        assert_eq!(stamps.of(0, "x", version(1)), first);
        let second = stamps.of(0, "x", version(2));
        assert_eq!(second.is_after(first), Some(true));
        assert_ne!(stamps.of(1, "x", version(1)), first);
        // A return to the former version is a new value.
        assert_eq!(stamps.of(0, "x", version(1)).is_after(second), Some(true));
    }

    #[test]
    fn what_was_forgotten_never_gets_an_old_stamp() {
        let mut stamps = Stamps::new(Epoch(7), 2);
        let first = stamps.of(0, "x", version(1));
        for name in ["a", "b", "c"] {
            let _ = stamps.of(0, name, version(1));
        }
        assert_eq!(stamps.of(0, "x", version(2)).is_after(first), Some(true));
        assert!(stamps.seen.len() <= 2 && stamps.order.len() <= 2);
    }
}
