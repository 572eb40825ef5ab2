//! Epoch guards: sections of code in which a thread reads the client's tables of mapped memory without a lock.
//!
//! This is epoch-based reclamation with one flag per thread. A thread R opens a guard and reads a table. A thread U unlinks
//! an entry from the table, calls [`Shards::wait_for_guards`], and then frees the entry. At that time, every guard under
//! which R may have seen the entry has closed.

use crate::link::shards::{Last, SHARED, Shards};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard};
use tensorlend_os::barrier;

/// A thread's flag, which is odd while the thread holds an [`EpochGuard`]. It is aligned to two cache lines, because
/// the processor's prefetcher fetches pairs of lines.
#[repr(align(128))]
pub(super) struct Flag(AtomicU64);

impl Flag {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Makes the flag odd. Only the flag's own thread calls this function.
    #[inline(always)]
    fn raise(&self) {
        // Relaxed: only this thread stores to the flag.
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "epoch guards do not nest");
        self.0.store(before.wrapping_add(1), Ordering::Relaxed);
        // This store must come before every read of the tables.
        barrier::light_fence();
    }

    /// Makes the flag even. Only the flag's own thread calls this function.
    #[inline(always)]
    fn lower(&self) {
        // Release: this thread's reads under the guard come before this store. So they also come before a waiting
        // thread frees an entry.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A guard under which entries of the client's tables stay valid. A thread that unlinks an entry waits for every guard
/// under which another thread may have seen the entry ([`Shards::wait_for_guards`]). Guards are short and never nest,
/// and a thread never blocks while it holds one.
pub struct EpochGuard<'s> {
    shards: &'s Shards,
    pub(super) shard: usize,
    /// The shard in which this guard takes leases, and the position of the first entry that may be free. The guard
    /// has found every earlier entry taken.
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

/// An epoch guard of a thread with a shard of its own. It takes no leases, so it has two words. An [`EpochGuard`] has
/// six.
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
    #[inline(always)]
    pub fn epoch_guard(self: &Arc<Self>) -> EpochGuard<'_> {
        let last = self.last();
        if last.first() == SHARED {
            return self.shared_epoch_guard(last);
        }
        self.flags[last.first()].raise();
        self.guard_of(last, None)
    }

    /// Opens an epoch guard if this thread has a shard of its own or can claim a free one.
    #[inline(always)]
    pub fn own_guard(self: &Arc<Self>) -> Option<OwnGuard<'_>> {
        let shard = self.last().first();
        if shard == SHARED {
            return None;
        }
        let flag = &self.flags[shard];
        flag.raise();
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

    /// Waits until every guard that is open now has closed. Afterwards no thread sees an entry that was unlinked
    /// before the call. A thread must not call this function while it holds a guard.
    pub fn wait_for_guards(&self) {
        // Against the order in `Flag::raise`. A thread R has opened a guard. Either this thread sees R's odd flag below, or R
        // sees the tables in their present state.
        barrier::all_threads();
        for flag in self.flags.iter() {
            // Acquire: pairs with the Release store in `Flag::lower`.
            let seen = flag.0.load(Ordering::Acquire);
            while !seen.is_multiple_of(2) && flag.0.load(Ordering::Acquire) == seen {
                // The kernel may have preempted thread R under its guard, and R may need this processor.
                std::thread::yield_now();
            }
        }
        drop(self.shared_guards.write().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// A thread that finds itself alone under a guard stays alone until the guard closes.
    #[test]
    fn a_second_thread_waits_for_the_guard_of_the_first() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = crate::Client::builder().socket(broker.socket()).connect().unwrap();
        client.put("x", &[1u8]).unwrap();
        let shards = &client.session().shards;
        let guard = shards.epoch_guard();
        assert!(shards.is_alone(&guard));
        let (has_begun, has_come) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                has_begun.store(true, Ordering::Relaxed);
                let guard = shards.epoch_guard();
                has_come.store(true, Ordering::Relaxed);
                assert!(!shards.is_alone(&guard));
            });
            while !has_begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!has_come.load(Ordering::Relaxed), "it opened a guard beside this one");
            drop(guard);
        });
        assert!(!shards.is_alone(&shards.epoch_guard()), "another thread may come again at any time");
    }
}
