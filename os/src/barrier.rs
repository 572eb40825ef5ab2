//! A memory barrier on every running thread of this process, so that a fast path needs none of its own.
//!
//! `membarrier(2)` with `PRIVATE_EXPEDITED`. It orders the threads of *one* process, and nothing between processes: there both
//! sides have their own fences.

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for [`all_threads`]; must run before the first use of the fast path. False: the kernel refuses (a
/// sandbox forbids it, for example), and the fast path needs a fence of its own.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// Makes every running thread of this process pass through a full barrier before it returns; a thread that does not run passed
/// through one when it was switched out.
///
/// # Panics
/// Unless [`register`] returned true.
pub fn all_threads() {
    // The kernel refuses only unregistered processes.
    membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier was registered");
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_registered_works_and_can_be_registered_again() {
        if !super::register() {
            return crate::skip::skip("this kernel or sandbox has no membarrier");
        }
        assert!(super::register());
        super::all_threads();
    }
}
