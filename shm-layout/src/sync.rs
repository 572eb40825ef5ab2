//! The only source of atomics, so that loom can substitute its own.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A SeqCst fence that directly follows a [`crate::word::Word::swap`].
///
/// On x86-64 the exchange itself orders all earlier and later accesses of the processor, and drains its store buffer (Intel
/// 64 and IA-32 Architectures Software Developer's Manual 3A, section 10.2.2: locked instructions). So the fence orders only the
/// compiler there.
#[inline(always)]
pub fn fence_after_swap() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    fence(Ordering::SeqCst);
}
