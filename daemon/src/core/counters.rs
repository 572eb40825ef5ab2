//! Counts of events since the daemon's start, for the metrics.

/// A kind of event that the daemon counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Requests.
    Requests,
    /// Refusals, by the core and by the shell.
    Refusals,
    /// Wakeups of the daemon.
    Wakeups,
    /// Names that ended because their lifetimes were over.
    NamesExpired,
    /// Names that ended because their producers were gone.
    NamesEphemeralGone,
    /// Sessions that the daemon ended for the memory that their leases retained.
    SessionsRevoked,
}

/// The number of events of each kind.
#[derive(Debug, Default)]
pub struct Counters([u64; 6]);

impl Counters {
    /// Counts an event.
    pub fn count(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }

    /// Returns the number of events of one kind.
    pub fn number_of(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
}
