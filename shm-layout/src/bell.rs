//! A counter in shared memory on which clients sleep.

use crate::sync::{AtomicU32, Ordering, fence};

/// A counter that sleepers wait on: the 32 bits that `futex(2)` compares, in a word of its own.
#[repr(C)]
pub struct Bell {
    count: AtomicU32,
    unused: AtomicU32,
}

impl Bell {
    /// Creates a bell outside shared memory, for models and simulations.
    pub fn new() -> Self {
        Self { count: AtomicU32::new(0), unused: AtomicU32::new(0) }
    }

    /// Returns the value that a waiter must sample *before* it checks whether there is anything to wait for.
    #[inline]
    pub fn read(&self) -> u32 {
        let count = self.count.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        count
    }

    /// Writer only: increments the counter; the system call that wakes the sleepers follows.
    #[inline]
    pub fn ring(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Returns the futex word.
    #[cfg(not(loom))]
    pub fn futex(&self) -> &AtomicU32 {
        &self.count
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}
