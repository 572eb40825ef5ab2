//! Epoch guards: stretches of code in which a thread reads the client's tables of mapped memory without a lock.
//!
//! This is epoch-based reclamation with one flag per thread. A thread R opens a guard and reads a table; a thread U unlinks
//! an entry from the table, calls [`Shards::wait_for_guards`], and frees the entry then: no guard that may have seen it is
//! open any more.

use crate::link::shards::{Last, SHARED, Shards};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use tensorlend_os::barrier;

/// A thread's flag: odd while the thread holds an [`EpochGuard`]. Aligned to two cache lines, because the processor's
/// prefetcher fetches pairs of lines.
#[repr(align(128))]
pub(super) struct Flag(AtomicU64);

impl Flag {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Raises the flag; only its thread calls this.
    #[inline(always)]
    fn raise(&self, asymmetric: bool) {
        // Relaxed: only this thread stores it.
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "epoch guards do not nest");
        self.0.store(before.wrapping_add(1), Ordering::Relaxed);
        // The store must come before every read of the tables. The compiler keeps this order here; the processor keeps
        // it because the waiting thread interrupts every running thread of this process (`membarrier`).
        if asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Lowers the flag; only its thread calls this.
    #[inline(always)]
    fn lower(&self) {
        // Release: this thread's reads under the guard come before the store, and so before a waiting thread frees
        // anything.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A guard under which entries of the client's tables stay valid. A thread that unlinks an entry waits for every guard
/// that may have seen it ([`Shards::wait_for_guards`]). Guards are short and never nest, and a thread never blocks
/// while it holds one.
pub struct EpochGuard<'s> {
    shards: &'s Shards,
    pub(super) shard: usize,
    /// The shard in which this guard takes leases, and the first entry that may be free: the guard found the entries
    /// before it taken.
    pub(super) current: Cell<usize>,
    pub(super) from: Cell<usize>,
    _shared: Option<RwLockReadGuard<'s, ()>>,
    /// Not `Send`: the flag belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl EpochGuard<'_> {
    /// Returns whether the guard belongs to these shards.
    pub fn is_of(&self, shards: &Shards) -> bool {
        std::ptr::eq(self.shards, shards)
    }
}

impl Drop for EpochGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.shard != SHARED {
            self.shards.flags[self.shard].lower();
        }
    }
}

/// An epoch guard of a thread with a shard of its own, which takes no lease: two words, while an [`EpochGuard`] has six.
pub struct OwnGuard<'s> {
    flag: &'s Flag,
    shard: usize,
    /// Not `Send`: the flag belongs to this thread.
    _here: PhantomData<*const ()>,
}

impl OwnGuard<'_> {
    /// Returns the shard that only this thread uses.
    #[inline(always)]
    pub fn shard(&self) -> usize {
        self.shard
    }
}

impl Drop for OwnGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.flag.lower();
    }
}

impl Shards {
    /// Opens an epoch guard.
    #[inline(always)]
    pub fn epoch_guard(self: &Arc<Self>) -> EpochGuard<'_> {
        let last = self.last();
        if last.first() == SHARED {
            return self.shared_epoch_guard(last);
        }
        self.flags[last.first()].raise(self.asymmetric);
        self.guard_of(last, None)
    }

    /// Opens an epoch guard if this thread has a shard of its own or can claim one.
    #[inline(always)]
    pub fn own_guard(self: &Arc<Self>) -> Option<OwnGuard<'_>> {
        let shard = self.last().first();
        if shard == SHARED {
            return None;
        }
        let flag = &self.flags[shard];
        flag.raise(self.asymmetric);
        Some(OwnGuard { flag, shard, _here: PhantomData })
    }

    #[cold]
    fn shared_epoch_guard(&self, last: Last) -> EpochGuard<'_> {
        let shared_guards = Some(self.shared_guards.read().unwrap_or_else(PoisonError::into_inner));
        self.guard_of(last, shared_guards)
    }

    #[inline(always)]
    fn guard_of<'s>(&'s self, last: Last, shared_guards: Option<RwLockReadGuard<'s, ()>>) -> EpochGuard<'s> {
        EpochGuard {
            shards: self,
            shard: last.first(),
            current: last.current().into(),
            from: 0.into(),
            _shared: shared_guards,
            _here: PhantomData,
        }
    }

    /// Waits until every guard that is open now has closed. Then no thread sees an entry that was unlinked before the
    /// call. Must not be called under a guard.
    pub fn wait_for_guards(&self) {
        // SeqCst, against the order in `Flag::raise`: either this thread sees R's flag below, or R sees the tables as they
        // are now.
        fence(Ordering::SeqCst);
        if self.asymmetric {
            barrier::all_threads();
        }
        for flag in self.flags.iter() {
            // Acquire: pairs with the Release at the guard's end.
            let seen = flag.0.load(Ordering::Acquire);
            while !seen.is_multiple_of(2) && flag.0.load(Ordering::Acquire) == seen {
                // The kernel may have preempted R under its guard, and R needs this processor.
                std::thread::yield_now();
            }
        }
        drop(self.shared_guards.write().unwrap_or_else(PoisonError::into_inner));
    }
}
