//! The fence of two processes that must not overlook each other.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{Meter, repeated};

/// Measures on one core: store its own word, fence, load the other's. The floor of a lease and of a publication.
pub fn store_fence_look() -> Box<dyn Meter> {
    let (mine, theirs) = (AtomicU64::new(0), AtomicU64::new(0));
    Box::new(repeated(move || {
        mine.store(black_box(1), Ordering::Release);
        fence(Ordering::SeqCst);
        black_box(black_box(&theirs).load(Ordering::Relaxed));
        Ok(())
    }))
}
