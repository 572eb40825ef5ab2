//! The detection of forks, without a system call at each check. A process can check whether a value
//! belongs to it, and which mappings it inherited.
//!
//! A child never has its parent's writable mappings. The child has the parent's read-only mappings
//! if the [`Hooks`] have protected their contents at the fork. Otherwise the child has none of the
//! parent's mappings.
#![allow(unsafe_code)]

use crate::map;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

static FORKS: AtomicU64 = AtomicU64::new(0);
/// The lowest generation whose read-only mappings this process has.
static READABLE: AtomicU64 = AtomicU64::new(0);

/// The actions around a fork of the process. They protect the memory that the child may read.
#[derive(Debug)]
pub struct Hooks {
    /// Runs in the parent before the fork.
    pub before: fn(),
    /// Runs in the parent after the fork, even if the fork has failed.
    pub in_parent: fn(),
    /// Runs in the child after the fork. Returns true if the child may read its parent's read-only
    /// mappings. If not, a reservation replaces these mappings. Must neither allocate nor panic,
    /// because another thread of the parent may have held a lock.
    pub in_child: fn() -> bool,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Sets the actions around forks, once in a program. Only the first call has an effect.
pub fn on_fork(hooks: Hooks) {
    watch();
    let _ = HOOKS.set(hooks);
}

/// Returns this process's distance in forks from the process that first called [`watch`]. A session
/// stores the number of the process that opened it. If this function later returns another number,
/// this process is a forked child, and the session does not belong to it.
#[inline]
pub fn generation() -> u64 {
    // Relaxed: only a child of a fork stores this number, before the child has a second thread.
    FORKS.load(Ordering::Relaxed)
}

/// Returns true if this process has the read-only mappings that a process of `generation` made.
#[inline]
pub fn is_readable(generation: u64) -> bool {
    // Relaxed: only a child of a fork stores this number, before the child has a second thread.
    generation >= READABLE.load(Ordering::Relaxed)
}

/// The process that made a mapping, and whether that process's children may read the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// Returns the origin of a mapping that this process makes. `inherited` is true for a mapping
    /// that its children may read.
    pub fn here(inherited: bool) -> Self {
        Self(generation() << 1 | u64::from(inherited))
    }

    /// Returns the origin of a part of the mapping that children may not read.
    pub fn not_inherited(self) -> Self {
        Self(self.0 & !1)
    }

    /// Returns true if this process made the mapping.
    #[inline]
    pub fn is_ours(self) -> bool {
        self.0 >> 1 == generation()
    }

    /// Returns true if this process may read the mapping, because it made or inherited the mapping.
    #[inline]
    pub fn is_readable(self) -> bool {
        self.is_ours() || self.is_inherited()
    }

    #[cold]
    fn is_inherited(self) -> bool {
        self.0 & 1 != 0 && is_readable(self.0 >> 1)
    }
}

/// Number of words of [`UNSHARED`].
const UNSHARED_WORDS: usize = 1024;
/// One bit for each descriptor below 65,536 that a child closes.
static UNSHARED: [AtomicU64; UNSHARED_WORDS] = [const { AtomicU64::new(0) }; UNSHARED_WORDS];

/// A descriptor that a forked child closes at once, if the process called [`watch`]. An example is
/// a socket whose peer must notice the death of this process while a child lives. A descriptor with
/// a number above 65,535 stays open in the child.
#[derive(Debug)]
pub struct Unshared(OwnedFd);

impl Unshared {
    /// Takes ownership of a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        if let Some((word, bit)) = Self::word_and_bit(&fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }

    fn word_and_bit(fd: &OwnedFd) -> Option<(&'static AtomicU64, u64)> {
        let number = usize::try_from(fd.as_raw_fd()).ok()?;
        Some((UNSHARED.get(number / 64)?, 1 << (number % 64)))
    }

    /// Closes the descriptors in a child. The child never drops the values that own them: these
    /// values belong to threads that the child does not have, or to objects that check the process.
    fn close_all_in_child() {
        for (first, word) in (0..).step_by(64).zip(&UNSHARED) {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number: RawFd = first + bits.trailing_zeros().cast_signed();
                // SAFETY: close is async-signal-safe. The number is that of a descriptor that the
                // parent owned at the fork, so this child has a copy of it.
                unsafe { libc::close(number) };
                bits &= bits - 1;
            }
        }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // This precedes the close, because another thread may get the same number after the close.
        if let Some((word, bit)) = Self::word_and_bit(&self.0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

impl Deref for Unshared {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Unshared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Starts counting forks. Must run before the first [`generation`] whose result matters.
pub fn watch() {
    extern "C" fn before() {
        if let Some(hooks) = HOOKS.get() {
            (hooks.before)();
        }
    }
    extern "C" fn in_parent() {
        if let Some(hooks) = HOOKS.get() {
            (hooks.in_parent)();
        }
    }
    extern "C" fn in_child() {
        let generation = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
        let readable = HOOKS.get().is_some_and(|hooks| (hooks.in_child)());
        if !readable {
            READABLE.store(generation, Ordering::Relaxed);
        }
        map::reserve(readable);
        Unshared::close_all_in_child();
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: pthread_atfork requires functions that stay loaded for as long as the process may
        // fork. These functions are part of the program. In the child of a process with several
        // threads, `in_child` may run only async-signal-safe code. It accesses static atomics, and
        // calls mmap, close and a hook with the same duty. It can neither allocate, lock nor panic.
        // `before` and `in_parent` run in the parent, which has no such limits. A panic in them
        // would end the process.
        let registered = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // Registration fails only if memory is exhausted. Without the handler, a child could write
        // into its parent's session.
        assert_eq!(registered, 0, "pthread_atfork");
    });
}
