//! The floor of a store, a fence and a load. With this fence, each of two processes sees the
//! other's store.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::{Meter, repeated};

/// Measures a store to one word, a fence, and a load of another word, on one core. This is the
/// floor of a lease and of a publication.
pub fn store_fence_look() -> Box<dyn Meter> {
    let (mine, theirs) = (AtomicU64::new(0), AtomicU64::new(0));
    Box::new(repeated(move || {
        mine.store(black_box(1), Ordering::Release);
        fence(Ordering::SeqCst);
        black_box(black_box(&theirs).load(Ordering::Relaxed));
        Ok(())
    }))
}
