//! Sleeping and waking: the orderings that keep a sleeper from missing a wake-up.
//!
//! Sleeper S samples the bell, stores parked, fences, checks the condition again, and sleeps on the
//! sampled value. Waker W stores the new state, fences, reads parked, rings the bell and wakes the
//! sleepers. Either W sees the parked word, or S sees the new state. If W rings the bell between
//! S's sample and S's sleep, the kernel finds another value and does not let S sleep.

use crate::sync::{Ordering, fence};
use crate::word::{Bell, Word};

/// Sleeper: samples the bell and declares itself parked. The sleeper must check its condition again
/// afterwards. [`declare`] explains `mark`.
#[inline]
pub fn park(bell: &Bell, parked: &Word, mark: u64) -> u32 {
    // The sample comes first. A ring after this moment changes the value that the sleep compares.
    let sample = bell.read();
    declare(parked, mark);
    sample
}

/// Sleeper: declares itself parked, after sampling the bells. `mark` replaces the previous value.
/// If several threads of a client sleep under one parked word, `mark` must cover the conditions of
/// all of them. These threads store the word one at a time.
#[inline]
pub fn declare(parked: &Word, mark: u64) {
    parked.set(mark);
    fence(Ordering::SeqCst);
}

/// Waker: calls this once after it has stored the new state, and before it reads any parked word.
#[inline]
pub fn news_fence() {
    fence(Ordering::SeqCst);
}
