//! A limit on the bytes of this client's slots.

use std::sync::atomic::{AtomicU64, Ordering};

/// The limit of one client. Invariant: `used_bytes <= bytes_max`.
#[derive(Default)]
pub struct Limit {
    bytes_max: u64,
    /// Bytes of slots in use, and of slots that threads are about to take.
    used_bytes: AtomicU64,
}

impl Limit {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used_bytes: AtomicU64::new(0) }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Reserves `bytes` bytes. If the limit does not allow this, returns the bytes in use as the error. A thread
    /// reserves before it takes a slot, so that several threads together cannot exceed the limit.
    pub fn reserve(&self, bytes: u64) -> Result<(), u64> {
        // Relaxed: the count orders no other memory.
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= self.bytes_max)
            })
            .map(drop)
    }

    pub fn give(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "gave back more than was taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_is_included() {
        let limit = Limit::new(100);
        assert_eq!(limit.reserve(60), Ok(()));
        assert_eq!(limit.reserve(41), Err(60));
        assert_eq!(limit.reserve(40), Ok(()));
        assert_eq!(limit.reserve(u64::MAX), Err(100));
        limit.give(1);
        assert_eq!(limit.reserve(1), Ok(()));
    }
}
