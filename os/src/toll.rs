//! The time that system calls on another process's descriptor take from this thread.
//!
//! Whoever writes to a socket runs the callbacks of everybody who watches the other end. A process can watch its own end as often
//! as `/proc/sys/fs/epoll/max_user_watches` allows, millions of times, and each message to it then takes a second of its
//! sender's time.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Calls that take less cost nothing.
const SLOW: Duration = Duration::from_millis(1);
/// Time of this thread in slow calls from which on a peer costs too much.
const COST_MAX: Duration = Duration::from_millis(20);
/// A fast call takes this part off the cost.
const PART: u32 = 16;
/// After so many fast calls the thread's own clock is not read any more.
const FAST_CALLS: u8 = 64;

/// What the calls for one peer have cost. While they are fast, it is two looks at a clock for each.
#[derive(Debug, Default)]
pub struct Toll {
    cost: Duration,
    /// Calls for which the thread's clock is read: others may have run in the middle of a slow call.
    suspected: u8,
    excessive: bool,
}

impl Toll {
    /// Makes a call and counts what it costs.
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
            self.cost += used;
            self.excessive |= self.cost > COST_MAX;
        } else {
            self.suspected -= 1;
            self.cost -= self.cost / PART;
        }
    }

    /// Whether the peer has cost too much. It stays so.
    pub fn is_excessive(&self) -> bool {
        self.excessive
    }

    /// What slow calls have cost.
    pub fn cost(&self) -> Duration {
        self.cost
    }
}

/// Time that this thread has run.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
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
            // Fast calls in between hide no slow ones.
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
    fn a_call_in_which_this_thread_sleeps_costs_nothing() {
        let mut toll = Toll::default();
        for _ in 0..30 {
            toll.run(|| std::thread::sleep(SLOW * 2));
        }
        assert!(!toll.is_excessive() && toll.cost() < COST_MAX, "{toll:?}");
    }
}
