//! Forks without a system call at each check: which process a value belongs to, and which of its mappings a child has.
//!
//! A child never has its parent's writable mappings. It has the parent's read-only mappings if the [`Hooks`] have protected
//! their contents at the fork, and otherwise none of them.
#![allow(unsafe_code)]

use crate::map;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

static FORKS: AtomicU64 = AtomicU64::new(0);
/// The lowest generation of which this process has the read-only mappings.
static READABLE: AtomicU64 = AtomicU64::new(0);

/// The actions around a fork of the process, which protect what its child may read.
#[derive(Debug)]
pub struct Hooks {
    /// Runs in the parent before the fork.
    pub before: fn(),
    /// Runs in the parent after the fork, also if the fork has failed.
    pub in_parent: fn(),
    /// Runs in the child after the fork. Returns whether the child may read its parent's read-only mappings; if not, they are
    /// replaced by a reservation. Must neither allocate nor panic, since another thread of the parent may have held a lock.
    pub in_child: fn() -> bool,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();

/// Sets the actions around forks, once in a program. The first call wins.
pub fn on_fork(hooks: Hooks) {
    watch();
    let _ = HOOKS.set(hooks);
}

/// Returns the number of forks from the process that called [`watch`] first to this process. A session stores the
/// number of the process that opened it. If this function later returns another number, this process is a forked child,
/// to which the session does not belong.
#[inline]
pub fn generation() -> u64 {
    // Relaxed: only a child of a fork stores this number, before it has a second thread.
    FORKS.load(Ordering::Relaxed)
}

/// Returns whether this process has the read-only mappings that a process of `generation` made.
#[inline]
pub fn is_readable(generation: u64) -> bool {
    // Relaxed: as in `generation`.
    generation >= READABLE.load(Ordering::Relaxed)
}

/// The process that made a mapping, and whether its children may read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u64);

impl Origin {
    /// Returns the origin of a mapping that this process makes; `inherited` for one that its children may read.
    pub fn here(inherited: bool) -> Self {
        Self(generation() << 1 | u64::from(inherited))
    }

    /// Returns the origin of a part of the mapping that children may not read.
    pub fn not_inherited(self) -> Self {
        Self(self.0 & !1)
    }

    /// Returns whether this process made the mapping.
    #[inline]
    pub fn is_ours(self) -> bool {
        self.0 >> 1 == generation()
    }

    /// Returns whether this process may read there: it made the mapping, or inherited it.
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

/// A descriptor that a forked child closes at once, if the process called [`watch`]: a socket whose other end must notice
/// the death of this process while a child lives. A descriptor with a number above 65,535 stays open in the child.
#[derive(Debug)]
pub struct Unshared(OwnedFd);

impl Unshared {
    /// Takes over a descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        if let Some((word, bit)) = Self::place(&fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Self(fd)
    }

    fn place(fd: &OwnedFd) -> Option<(&'static AtomicU64, u64)> {
        let number = fd.as_raw_fd() as usize;
        Some((UNSHARED.get(number / 64)?, 1 << (number % 64)))
    }

    /// Closes the descriptors in a child, in which the values that own them are never dropped: they belong to threads that
    /// the child does not have, or to objects that check the process.
    fn close_all_in_child() {
        for (at, word) in UNSHARED.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number = at * 64 + bits.trailing_zeros() as usize;
                // SAFETY: close is async-signal-safe. The descriptor is the copy of one that the parent owned at the fork.
                unsafe { libc::close(number as i32) };
                bits &= bits - 1;
            }
        }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        // Before the close, after which another thread may get the same number.
        if let Some((word, bit)) = Self::place(&self.0) {
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

/// Starts counting; must run before the first [`generation`] whose result matters.
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
        // SAFETY: pthread_atfork requires functions that stay loaded for as long as the process may fork; these are part of the
        // program. In the child of a process with several threads, `in_child` may run only async-signal-safe code: it touches
        // static atomics, calls mmap, close and a hook of which the same is required, and can neither allocate, lock nor panic. The
        // other two run in the parent, which has no such limits; a panic in them would end the process.
        let registered = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // The call fails only if memory is exhausted. Without the handler, a child could write into its parent's
        // session.
        assert_eq!(registered, 0, "pthread_atfork");
    });
}
