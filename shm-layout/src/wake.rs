//! Sleeping and waking: the orderings that keep a sleeper from missing a wake-up.
//!
//! Sleeper S: sample the bell, store parked, fence, check the condition again, sleep on the sampled bell. Waker W:
//! store the new state, fence, read parked, ring and wake. Either W sees the parked word, or S sees the new state. If
//! the bell rings between sample and sleep, the kernel finds another value in it and does not let S sleep.

use crate::sync::{Ordering, fence};
use crate::word::{Bell, Word};

/// Sleeper: samples the bell and declares itself parked. It must check its condition again after this. For `mark` see
/// [`declare`].
#[inline]
pub fn park(bell: &Bell, parked: &Word, mark: u64) -> u32 {
    // Sampled first: a ring after this moment changes the value that the sleep compares with.
    let sample = bell.read();
    declare(parked, mark);
    sample
}

/// Sleeper: declares itself parked, after sampling the bells. `mark` replaces the previous value: if several threads of
/// a client sleep under one parked word, it must cover all of their conditions, and they take turns to store it.
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
