//! The only source of atomics, so that loom can substitute its own.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A SeqCst fence that directly follows a [`crate::word::Word::swap`].
///
/// On x86-64 the swap is a locked instruction, which no load or store passes in either direction (Intel 64 and IA-32
/// Architectures Software Developer's Manual, volume 3A, "Memory Ordering in P6 and More Recent Processor Families"; AMD64
/// Architecture Programmer's Manual, volume 2, "Memory Barriers"). So only the compiler needs a fence there.
#[inline(always)]
pub fn fence_after_swap() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}
