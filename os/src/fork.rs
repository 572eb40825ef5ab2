//! Forks without a system call at each check: which process a value belongs to, and which of its mappings a child has.
//!
//! A child never has its parent's writable mappings. It has the parent's read-only mappings if the [`Hooks`] have protected
//! their contents at the fork, and otherwise none of them.
#![allow(unsafe_code)]

use crate::map;
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
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: pthread_atfork requires functions that stay loaded for as long as the process may fork; these are part of the
        // program. In the child of a process with several threads, `in_child` may run only async-signal-safe code: it touches
        // static atomics, calls mmap and a hook of which the same is required, and can neither allocate, lock nor panic. The
        // other two run in the parent, which has no such limits; a panic in them would end the process.
        let registered = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // The call fails only if memory is exhausted. Without the handler, a child could write into its parent's
        // session.
        assert_eq!(registered, 0, "pthread_atfork");
    });
}
