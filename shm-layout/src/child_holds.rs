//! Holds of forked children on a lease of their parent.
//!
//! The state is private to the parent P. A child C only reads the leased bytes. Owner O of the slot
//! scans the lease table. The lease's entry stays in that table until P has released the lease
//! *and* the last child of each fork has ended.
//!
//! * Three kinds of threads of P take part. F counts a hold and then forks. R releases the lease. W
//!   learns from the kernel that the children of a fork have ended, and then ends the hold. Each
//!   change is one read-modify-write, so R and W agree on which of them clears the entry.
//! * If R begins before the fork, C has no value with which it could read. R may then clear the
//!   entry although F counts a hold. That hold ends without effect, or delays the release of the
//!   entry's next lease.
//! * If a thread of P takes a lease after F has counted the holds and before the fork, C has the
//!   value without a hold. C detects this in its copy of the state ([`ChildHolds::is_held`]). There is one exception: F has counted a
//!   hold for an earlier lease of the same entry, and that lease was not confirmed. This hold stays with the entry, and delays
//!   the release of the new lease until C has ended.
//! * Crashes: the state ends with P. The daemon preserves the lease table while a child has the
//!   table mapped. The end of C is the event that W waits for.

use crate::leases;
use crate::sync::{AtomicU32, Ordering};
use crate::word::Word;

/// P has released the lease.
const RELEASED: u32 = 1;
/// One hold.
const HOLD: u32 = 2;

/// The holds on one entry of the lease table.
#[derive(Debug, Default)]
pub struct ChildHolds(AtomicU32);

impl ChildHolds {
    /// Returns the state without holds.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Adds a hold, before a fork.
    pub fn add(&self) {
        // Relaxed: the count orders no other memory access. The same thread forks afterwards.
        self.0.fetch_add(HOLD, Ordering::Relaxed);
    }

    /// Returns true if there is a hold. In C, the state is a copy from the moment of the fork, so
    /// the result is true if C may read under the lease.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= HOLD
    }

    /// Releases the lease in `entry`, from any thread of P. The entry is cleared now, or when the
    /// last hold ends.
    #[inline]
    pub fn release(&self, entry: &Word) {
        // Acquire: if W has ended the last hold, C's reads precede the store below that clears the entry.
        let mut state = self.0.load(Ordering::Acquire);
        while state != 0 {
            debug_assert_eq!(state & RELEASED, 0, "a lease is released once");
            // Release: P's reads of the bytes precede the store that clears the entry. W may make
            // that store.
            match self.0.compare_exchange_weak(state, state | RELEASED, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
        leases::release(entry);
    }

    /// Ends a hold. Clears `entry` if P has released the lease and no hold remains.
    pub fn end(&self, entry: &Word) {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(state >= HOLD, "each hold ends once");
            let left = if state == HOLD | RELEASED { 0 } else { state - HOLD };
            // Acquire pairs with the Release of `ChildHolds::release`.
            match self.0.compare_exchange_weak(state, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if state == HOLD | RELEASED => return leases::release(entry),
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }
}
