//! Detection of a fork without a system call: a session belongs to the process that opened it.
#![allow(unsafe_code)]

use crate::map;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of forks between the first process that called this and the current one. A session stores the number
/// under which it was opened; another number later means that this process is a child, which shares neither socket nor
/// mappings.
#[inline]
pub fn generation() -> u64 {
    // Relaxed: only a child of a fork stores this number, before it has a second thread.
    FORKS.load(Ordering::Relaxed)
}

/// Starts counting; must run before the first [`generation`] whose result matters.
pub fn watch() {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
        map::reserve();
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: pthread_atfork requires a function that stays loaded for as long as the process may fork. In the child of a
        // process with several threads the function may run only async-signal-safe code. `in_child` is part of the program,
        // touches static atomics, calls mmap, and can neither allocate, lock nor panic.
        let registered = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // The call fails only if memory is exhausted. Without the handler, a child could write into its parent's
        // session.
        assert_eq!(registered, 0, "pthread_atfork");
    });
}
