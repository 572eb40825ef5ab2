//! Holds of forked children on a lease of their parent.
//!
//! The state is private to the parent P; a child C only reads the leased bytes. The lease's entry in the lease table, which the
//! owner O of the slot scans, stays until P has released the lease *and* the last child of each fork has ended.
//!
//! * Threads of P: F forks and counts a hold before the fork, R releases the lease, W learns from the kernel that the children
//!   of a fork have ended, and ends the hold. Each change is one read-modify-write, so R and W agree on which of them clears
//!   the entry.
//! * If R begins before the fork, C has no value by which it could read. R may then clear the entry although F counts a hold.
//!   That hold ends without effect, or delays the release of the entry's next lease.
//! * If a thread of P takes a lease after F has counted the holds and before the fork, C has the value without a hold. C's copy
//!   of the state tells ([`ChildHolds::is_held`]).
//! * Crashes: with P, its state ends; the daemon keeps the lease table while a child has it mapped. The end of C is what W waits
//!   for.

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

    /// Counts a hold, before a fork.
    pub fn add(&self) {
        // Relaxed: the count orders nothing but itself; the fork follows in this thread.
        self.0.fetch_add(HOLD, Ordering::Relaxed);
    }

    /// Returns whether there is a hold; in C, with the state of the moment of the fork: whether C reads under the lease.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= HOLD
    }

    /// Releases the lease in `entry`, from any thread of P: now, or when the last hold ends.
    #[inline]
    pub fn release(&self, entry: &Word) {
        let mut state = self.0.load(Ordering::Relaxed);
        while state != 0 {
            debug_assert_eq!(state & RELEASED, 0, "a lease is released once");
            // Release: P's own reads of the bytes precede the clearing store, which W may make.
            match self.0.compare_exchange_weak(state, state | RELEASED, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
        leases::release(entry);
    }

    /// Ends a hold; clears `entry` if P has released the lease and no hold is left.
    pub fn end(&self, entry: &Word) {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(state >= HOLD, "each hold ends once");
            let left = if state == HOLD | RELEASED { 0 } else { state - HOLD };
            // Acquire pairs with the Release of `release`.
            match self.0.compare_exchange_weak(state, left, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if state == HOLD | RELEASED => return leases::release(entry),
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }
}
