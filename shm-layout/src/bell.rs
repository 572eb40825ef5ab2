//! A counter in shared memory on which clients sleep.

use crate::sync::{AtomicU32, Ordering, fence};

/// A counter that sleepers wait on. The 32 bits that `futex(2)` compares have a word of their own.
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

    /// Returns the counter's value. A waiter samples the value *before* it checks its condition.
    #[inline]
    pub fn read(&self) -> u32 {
        let count = self.count.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        count
    }

    /// Writer only: increments the counter. The caller then makes the system call that wakes the
    /// sleepers.
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
