//! Sleeping and waking: the orders that keep a sleeper from missing what it waits for.
//!
//! Sleeper: sample the bell, store parked, fence, look once more, sleep on the sampled bell. Waker: store the news,
//! fence, look at parked, ring and wake. Either the waker sees the parked word, or the sleeper sees the news; and if
//! the bell rings between sample and sleep, the kernel finds another value in it and does not put the sleeper to bed.

use crate::sync::{Ordering, fence};
use crate::word::{Bell, Word};

/// Sleeper: samples the bell and declares itself parked. What it waits for must be looked at again after this. For `mark`
/// see [`declare`].
#[inline]
pub fn park(bell: &Bell, parked: &Word, mark: u64) -> u32 {
    // Sampled first: a ring after this moment changes the value that the sleep compares with.
    let sample = bell.read();
    declare(parked, mark);
    sample
}

/// Sleeper: declares itself parked, the bells being sampled already. `mark` replaces what stood there: where several
/// threads of a client sleep under one parked word, it is what all of them wait for, and they take turns to store it.
#[inline]
pub fn declare(parked: &Word, mark: u64) {
    parked.set(mark);
    fence(Ordering::SeqCst);
}

/// Waker, once after its news and before it looks at any parked word.
#[inline]
pub fn news_fence() {
    fence(Ordering::SeqCst);
}
