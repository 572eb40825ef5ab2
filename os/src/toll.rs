//! CPU time that system calls on another process's descriptor take from this thread.
//!
//! A write to a socket runs the callbacks of all watchers of the other end. A hostile process can
//! watch its own end as often as `/proc/sys/fs/epoll/max_user_watches` allows, which is millions of
//! times. Each message to that process then takes a second of the sender's time.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Duration from which a call is slow. A faster call adds no cost.
const SLOW: Duration = Duration::from_millis(1);
/// Total cost of several slow calls above which a peer is excessive.
const COST_MAX: Duration = Duration::from_millis(20);
/// Cost of one call above which a peer is excessive. This limit is larger than the total limit,
/// because a virtual machine counts a pause of its own as CPU time.
const CALL_MAX: Duration = Duration::from_millis(100);
/// A fast call reduces the accumulated cost by 1/PART.
const PART: u32 = 16;
/// Number of fast calls after which the thread's CPU clock is no longer read.
const FAST_CALLS: u8 = 64;

/// The cost of the calls for one peer. Each fast call costs two readings of a clock.
#[derive(Debug)]
pub struct Toll {
    cost: Duration,
    /// Number of further calls that read the thread's CPU clock. Other threads may have interrupted
    /// a slow call, and only the CPU clock shows such an interruption.
    suspected: u8,
    excessive: bool,
}

impl Default for Toll {
    /// Creates a toll whose first calls read the thread's CPU clock. So even the first call detects
    /// a peer that has set its watches already.
    fn default() -> Self {
        Self { cost: Duration::ZERO, suspected: FAST_CALLS, excessive: false }
    }
}

impl Toll {
    /// Runs a call, and adds the CPU time of a slow call to the peer's cost.
    #[inline]
    pub fn run<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let own = (self.suspected > 0).then(thread_time);
        let started = Instant::now();
        let result = call();
        let slow = started.elapsed() >= SLOW;
        if slow || own.is_some() {
            self.count(slow, own);
        }
        result
    }

    #[cold]
    fn count(&mut self, slow: bool, own: Option<Duration>) {
        let used = own.map_or(Duration::ZERO, |before| thread_time().saturating_sub(before));
        if slow && own.is_none() {
            self.suspected = FAST_CALLS;
        } else if used >= SLOW {
            self.suspected = FAST_CALLS;
            self.excessive |= used > CALL_MAX || (self.cost >= SLOW && self.cost + used > COST_MAX);
            self.cost += used;
        } else {
            self.suspected -= 1;
            self.cost -= self.cost / PART;
        }
    }

    /// Returns true if the peer has cost too much. The result never becomes false again.
    pub fn is_excessive(&self) -> bool {
        self.excessive
    }

    /// Returns the accumulated cost of slow calls. Fast calls reduce it.
    pub fn cost(&self) -> Duration {
        self.cost
    }
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    // The kernel returns no negative time.
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(time: Duration) {
        let until = thread_time() + time;
        while thread_time() < until {}
    }

    #[test]
    fn a_peer_that_takes_this_threads_time_again_and_again_costs_too_much() {
        let mut toll = Toll::default();
        let mut calls = 0;
        while !toll.is_excessive() {
            // Fast calls in between do not hide slow ones.
            toll.run(|| burn(SLOW * 2));
            toll.run(|| ());
            calls += 1;
            assert!(calls < 100, "{toll:?}");
        }
        assert!(calls > 5, "one or two may happen to anybody");
        assert_eq!(toll.run(|| 7), 7);
        assert!(toll.is_excessive());
    }

    #[test]
    fn one_very_slow_call_is_enough_and_a_slow_one_is_not() {
        let mut toll = Toll::default();
        toll.run(|| burn(COST_MAX * 2));
        assert!(!toll.is_excessive() && toll.cost() >= COST_MAX * 2, "{toll:?}");
        let mut toll = Toll::default();
        toll.run(|| burn(CALL_MAX * 2));
        assert!(toll.is_excessive(), "{toll:?}");
    }

    #[test]
    fn a_call_in_which_this_thread_sleeps_costs_nothing() {
        let mut toll = Toll::default();
        for _ in 0..30 {
            toll.run(|| std::thread::sleep(SLOW * 2));
        }
        assert!(!toll.is_excessive() && toll.cost() < COST_MAX, "{toll:?}");
    }
}
