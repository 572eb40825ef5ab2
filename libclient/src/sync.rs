//! Locks that a panicking thread does not spoil.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever a thread that panicked left: every structure behind these locks is valid between its own steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
