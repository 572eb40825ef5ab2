//! Counts of events since the daemon's start, for the metrics.

use tensorlend_layout::wire::{Reason, Refusals};

/// A kind of event that the daemon counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Requests,
    /// Refusals because of a limit, by the core and by the system layer.
    RefusedLimit,
    /// Refusals of invalid requests.
    RefusedInvalid,
    /// Refusals because another client was faster.
    RefusedRace,
    Wakeups,
    /// Names that ended because their lifetimes were over.
    NamesExpired,
    /// Ephemeral names that ended with their producers' sessions.
    NamesEphemeralGone,
    /// Sessions that the daemon ended because of the memory that their leases retained.
    SessionsRevoked,
}

#[derive(Debug, Default)]
pub struct Counters([u64; 8]);

impl Counters {
    pub fn count(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }

    pub fn count_refusal(&mut self, reason: Reason) {
        self.count(match reason {
            Reason::Limit => Counter::RefusedLimit,
            Reason::Invalid => Counter::RefusedInvalid,
            Reason::Race => Counter::RefusedRace,
        });
    }

    pub fn refusals(&self) -> Refusals {
        Refusals {
            limit: self.number_of(Counter::RefusedLimit),
            invalid: self.number_of(Counter::RefusedInvalid),
            race: self.number_of(Counter::RefusedRace),
        }
    }

    pub fn number_of(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
}
