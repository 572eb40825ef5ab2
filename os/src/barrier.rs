//! A memory barrier on every running thread of this process, so that a fast path needs no barrier.
//!
//! The barrier is `membarrier(2)` with `PRIVATE_EXPEDITED`, which orders the threads of *one*
//! process. Between processes, both sides execute fences of their own.

use rustix::thread::{MembarrierCommand, membarrier};

/// Registers this process for [`all_threads`]. The process must call this before it first uses the
/// fast path. Returns false if the kernel refuses, for example because a sandbox forbids the system
/// call. The fast path then needs a fence of its own.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// Makes every running thread of this process execute a full memory barrier before this function
/// returns. A thread that is not running executed a barrier when the kernel switched the thread
/// out.
///
/// # Panics
/// If [`register`] has not returned true.
pub fn all_threads() {
    // The kernel refuses this only for an unregistered process.
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
