//! Criterion benchmarks of tensorlend, each group beside its floor: what the machine takes for the least that any such
//! exchange needs. Run them with `cargo bench -p tensorlend-benches`; the machine decides the figures, so compare within
//! one run.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Two words of shared memory: what one side stores and what the other does.
#[derive(Debug, Default)]
pub struct Words {
    mine: AtomicU64,
    theirs: AtomicU64,
}

impl Words {
    /// The least of any exchange in which two processes must not overlook each other: store one's own word, fence, look at
    /// the other's.
    pub fn store_fence_look(&self) -> u64 {
        self.mine.store(black_box(1), Ordering::Release);
        fence(Ordering::SeqCst);
        black_box(&self.theirs).load(Ordering::Relaxed)
    }
}
