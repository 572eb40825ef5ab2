//! Adaptive spinning: a thread polls for a short time before it sleeps, where polling saves time.
//!
//! A wake-up costs about 20 us. Two processes may respond to each other faster than that. Without polling, after one late
//! response each process would put the other to sleep at every exchange. So a waiting thread polls for as long as a wake-up
//! costs. Polling is a waste if the other process is slower, or needs this processor. A thread cannot know this beforehand,
//! because the other process may be pinned to any processor. So each [`Spin`] learns from its waits whether polling saves
//! time.

use crate::error::Result;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest time to poll: about the cost of a wake-up.
const POLL_NS_MAX: u32 = 25_000;
/// Minimum polling time: a shorter poll is not worth starting.
const POLL_NS_MIN: u32 = 1_000;
/// Polling time for an announced event. It is less than the cost of one sleep and one wake-up together.
const SOON: Duration = Duration::from_micros(50);
/// Number of waits without polling after polling has saved no time. Then the thread tries polling again.
const WAITS_WITHOUT: u32 = 16;

/// The polling time that has saved time so far, for repeated waits of one kind.
#[derive(Debug)]
pub struct Spin {
    poll_ns: AtomicU32,
    waits_without: AtomicU32,
}

impl Spin {
    pub const fn new() -> Self {
        Self { poll_ns: AtomicU32::new(POLL_NS_MAX), waits_without: AtomicU32::new(0) }
    }

    /// Returns the polling time of the next wait.
    fn next_ns(&self) -> u32 {
        // Relaxed in this whole type: the value is an estimate, and any thread's store may be the last one.
        let poll_ns = self.poll_ns.load(Ordering::Relaxed);
        if poll_ns >= POLL_NS_MIN {
            return poll_ns;
        }
        if self.waits_without.fetch_add(1, Ordering::Relaxed) + 1 < WAITS_WITHOUT {
            return 0;
        }
        self.waits_without.store(0, Ordering::Relaxed);
        POLL_NS_MAX
    }

    fn learn(&self, poll_ns: u32, found: bool) {
        let next = if found { POLL_NS_MAX } else { poll_ns.min(self.poll_ns.load(Ordering::Relaxed)) / 2 };
        self.poll_ns.store(next, Ordering::Relaxed);
    }

    /// Polls until `poll` finds something, or until polling no longer saves time. Returns what `poll` found. Polls at
    /// least once.
    pub fn poll<T>(&self, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        if let Some(found) = poll()? {
            return Ok(Some(found));
        }
        let Some(most_ns) = self.start() else { return Ok(None) };
        let found = poll_for(Duration::from_nanos(most_ns.into()), poll)?;
        self.learn(most_ns, found.is_some());
        Ok(found)
    }

    /// Polls like [`Spin::poll`] until `is_there` returns true. Returns whether it did.
    #[inline]
    pub fn until(&self, mut is_there: impl FnMut() -> bool) -> bool {
        let Some(most_ns) = self.start() else { return is_there() };
        let most = Duration::from_nanos(most_ns.into());
        let found = bursts(most, || is_there().then_some(())).is_some();
        self.learn(most_ns, found);
        found
    }

    /// Returns the polling time of a wait that begins now. `None`: do not poll.
    fn start(&self) -> Option<u32> {
        if alone() { None } else { Some(self.next_ns()).filter(|&ns| ns > 0) }
    }
}

/// Polls for a short time, which depends on how long polling has saved time in this process so far.
pub fn spin<T>(poll: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    static NAMES_AND_LISTS: Spin = Spin::new();
    NAMES_AND_LISTS.poll(poll)
}

/// Polls for an announced event, at least once.
pub fn soon<T>(mut poll: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    if alone() { poll() } else { poll_for(SOON, poll) }
}

fn poll_for<T>(most: Duration, mut poll: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    bursts(most, || poll().transpose()).transpose()
}

/// Polls for at most about `most`. Reads the clock only after every sixteen polls, since it takes as long as several polls.
#[inline]
fn bursts<T>(most: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let mut start = None;
    loop {
        for _ in 0..16 {
            if let Some(found) = poll() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= most {
            return None;
        }
    }
}

/// Returns whether the machine has only one processor. On such a machine, polling would keep the awaited process from
/// running.
fn alone() -> bool {
    static ALONE: OnceLock<bool> = OnceLock::new();
    // Count the machine's processors, not those of this thread. A thread that is pinned to one processor may wait for
    // a process on another processor.
    *ALONE.get_or_init(|| {
        std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|online| online.trim() == "0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits without success until polling stops; returns the number of waits.
    fn exhaust(spin: &Spin) -> u32 {
        let mut waits = 0;
        while spin.poll_ns.load(Ordering::Relaxed) >= POLL_NS_MIN {
            assert_eq!(spin.poll(|| Ok(None::<()>)).unwrap(), None);
            waits += 1;
            assert!(waits < 100);
        }
        waits
    }

    #[test]
    fn polling_without_effect_ends_and_is_tried_again() {
        let spin = Spin::new();
        if alone() {
            return tensorlend_os::skip::skip("this machine has one processor");
        }
        assert!(exhaust(&spin) <= 6);
        let mut most = 0;
        for _ in 0..WAITS_WITHOUT {
            let mut polls = 0u32;
            spin.poll(|| Ok(None::<()>).inspect(|_| polls += 1)).unwrap();
            most = most.max(polls);
            if polls > 1 {
                break;
            }
        }
        assert!(most > 1, "never tried again");
    }

    #[test]
    fn a_find_restores_the_longest_polling_time() {
        let spin = Spin::new();
        if alone() {
            return tensorlend_os::skip::skip("this machine has one processor");
        }
        exhaust(&spin);
        for _ in 0..WAITS_WITHOUT {
            let mut polls = 0;
            let found = spin.poll(|| {
                polls += 1;
                Ok((polls > 3).then_some(polls))
            });
            if found.unwrap().is_some() {
                assert_eq!(spin.poll_ns.load(Ordering::Relaxed), POLL_NS_MAX);
                return;
            }
        }
        panic!("never polled again");
    }

    #[test]
    fn an_existing_value_is_found_without_waiting() {
        let spin = Spin::new();
        assert_eq!(spin.poll(|| Ok(Some(7))).unwrap(), Some(7));
    }
}
