//! A memory barrier on every running thread of this process, so that a fast path needs none of its own.
//!
//! `membarrier(2)` with `PRIVATE_EXPEDITED`. It orders the threads of *one* process: between processes it orders
//! nothing, and there both sides have their own fences.

use rustix::thread::{MembarrierCommand, membarrier};

/// Announces to the kernel that this process will use [`all_threads`]. False: it cannot (a sandbox forbids it, say), and
/// the fast path needs a fence of its own. To be called before the fast path is first taken.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// Every thread of this process that runs now passes through a full barrier before this returns; one that does not run
/// has passed through one when it was switched out.
///
/// # Panics
/// Unless [`register`] said yes.
pub fn all_threads() {
    // The kernel refuses only what was not registered.
    membarrier(MembarrierCommand::PrivateExpedited).expect("membarrier was registered");
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_registered_works_and_can_be_registered_again() {
        if !super::register() {
            eprintln!("skipped: this kernel or sandbox has no membarrier");
            return;
        }
        assert!(super::register());
        super::all_threads();
    }
}
