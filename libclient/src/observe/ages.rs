//! Ages of leases. A lease contains no time, so the observer remembers when it first saw the lease.

use std::collections::HashMap;
use std::time::Duration;
use tensorlend_layout::number::ClientNo;

/// The holder's number and epoch, and the lease word.
pub type Key = (ClientNo, u32, u64);

/// The first observation of each lease.
#[derive(Default)]
pub struct Ages {
    seen: HashMap<Key, Seen>,
    observation: u64,
}

#[derive(Clone, Copy)]
struct Seen {
    first_ns: u64,
    at_first: bool,
    observation: u64,
}

impl Ages {
    pub fn begin(&mut self) {
        self.observation += 1;
    }

    /// Returns the time for which this observer has seen a lease. Also returns true if the lease is older than this
    /// time, because the first observation already found it. A lease that was dropped and taken again between two
    /// observations looks like one lease.
    pub fn of(&mut self, key: Key, now_ns: u64) -> (Duration, bool) {
        let observation = self.observation;
        let fresh = Seen { first_ns: now_ns, at_first: observation == 1, observation };
        let seen = self.seen.entry(key).and_modify(|seen| seen.observation = observation).or_insert(fresh);
        (Duration::from_nanos(now_ns.saturating_sub(seen.first_ns)), seen.at_first)
    }

    /// Removes the leases that this observation did not find.
    pub fn end(&mut self) {
        let observation = self.observation;
        self.seen.retain(|_, seen| seen.observation == observation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ages_while_it_is_seen() {
        let mut ages = Ages::default();
        let (old, new) = ((ClientNo::new(1), 1, 7), (ClientNo::new(1), 1, 8));
        ages.begin();
        assert_eq!(ages.of(old, 100), (Duration::ZERO, true));
        ages.end();
        ages.begin();
        assert_eq!(ages.of(old, 150), (Duration::from_nanos(50), true));
        assert_eq!(ages.of(new, 150), (Duration::ZERO, false));
        ages.end();
        ages.begin();
        ages.end();
        ages.begin();
        assert_eq!(ages.of(old, 400), (Duration::ZERO, false), "it was gone in between");
    }
}
