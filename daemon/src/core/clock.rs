//! The time of the current step, and the timers.

use super::account::NamespaceId;
use super::event::{ConnId, MemId};
use std::collections::BTreeSet;
use tensorlend_layout::number::ClientNo;

/// The action of a timer, and the object that the action applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Probes a client's memory again.
    Probe(NamespaceId, ClientNo),
    /// Probes again for a client of the previous daemon that has not reconnected.
    Disconnected(NamespaceId, ClientNo),
    /// Surveys the memory of a disconnected client again.
    Collect(NamespaceId, ClientNo),
    /// Continues a client's draining.
    Draining(NamespaceId, ClientNo),
    /// Ends a connection over the limits.
    Over(ConnId),
    /// Probes orphaned memory.
    Returned(MemId),
    /// Closes wake pairs that have ended.
    Wakes,
    /// Polls for announcements.
    Absorb(NamespaceId),
    /// Retries delayed requests.
    Retry,
    /// Retries the delayed requests that exceeded the last step's maximum number of retries.
    Untried,
    /// Orders spare segments.
    Spares,
    /// Continues the construction of a table of names.
    Names,
    /// Continues the chores.
    Chores,
    /// Scans the leases.
    Leases(NamespaceId),
    /// Ends the names whose lifetimes are over.
    Lifetimes(NamespaceId),
    /// Ends the streams that no client uses.
    Streams(NamespaceId),
    /// Retries a spill that failed because a process held the segment.
    Spill,
}

/// The time, and the timers.
#[derive(Debug, Default)]
pub struct Clock {
    now_ns: u64,
    started_ns: u64,
    /// Number of steps.
    turn: u64,
    timers: BTreeSet<(u64, Timer)>,
    /// Time of the next retry of delayed requests.
    retry_ns: Option<u64>,
}

impl Clock {
    /// Begins a step at this time. The clock never goes back.
    pub fn begin_step(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.turn += 1;
    }

    /// Sets the time, unless the clock is later already.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Records the time of the daemon's start.
    pub fn start(&mut self) {
        self.started_ns = self.now_ns;
    }

    /// Returns the time of this step.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the time since the daemon's start.
    pub fn uptime_ns(&self) -> u64 {
        self.now_ns - self.started_ns
    }

    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Sets a timer that fires after this delay.
    pub fn set_timer(&mut self, after_ns: u64, timer: Timer) {
        self.set_timer_at(self.now_ns + after_ns, timer);
    }

    pub fn set_timer_at(&mut self, at_ns: u64, timer: Timer) {
        self.timers.insert((at_ns, timer));
    }

    /// Removes the timer that fires at this time.
    pub fn cancel(&mut self, at_ns: u64, timer: Timer) {
        self.timers.remove(&(at_ns, timer));
    }

    /// Schedules a retry of delayed requests. The retry comes after this delay at the latest.
    pub fn retry_after(&mut self, after_ns: u64) {
        let at = self.now_ns + after_ns;
        // Every event retries the delayed requests, and each retry may call this function again. So
        // one timer is enough.
        if self.retry_ns.is_none_or(|before| before > at) {
            self.retry_ns = Some(at);
            self.set_timer_at(at, Timer::Retry);
        }
    }

    /// Takes the next timer that is due, with its time.
    pub fn fire(&mut self) -> Option<(u64, Timer)> {
        let due = self.timers.first().is_some_and(|&(at, _)| at <= self.now_ns);
        let fired = if due { self.timers.pop_first() } else { None };
        if let Some((_, Timer::Retry)) = fired {
            self.retry_ns = None;
        }
        fired
    }

    pub fn timers(&self) -> BTreeSet<Timer> {
        self.timers.iter().map(|&(_, timer)| timer).collect()
    }

    pub fn next_ns(&self) -> Option<u64> {
        self.timers.first().map(|&(at, _)| at)
    }
}
