//! Handles: numbers for objects that C holds.

use crate::code::{Code, INVALID_HANDLE};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Handles look like addresses and are never null. No number is used twice, so an old handle is refused. No handle has
/// the number of a special stream.
static NEXT: AtomicU64 = AtomicU64::new(0x00fa_4e00_0000);

pub fn fresh() -> u64 {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

pub struct Table<T>(Mutex<BTreeMap<u64, Arc<T>>>);

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, object: T) -> u64 {
        let handle = fresh();
        self.add_as(handle, Arc::new(object));
        handle
    }

    pub fn add_as(&self, handle: u64, object: Arc<T>) {
        self.lock().insert(handle, object);
    }

    pub fn get(&self, handle: u64) -> Result<Arc<T>, Code> {
        self.lock().get(&handle).cloned().ok_or(INVALID_HANDLE)
    }

    pub fn remove(&self, handle: u64) -> Result<Arc<T>, Code> {
        self.lock().remove(&handle).ok_or(INVALID_HANDLE)
    }

    pub fn all(&self) -> Vec<(u64, Arc<T>)> {
        self.lock().iter().map(|(handle, object)| (*handle, object.clone())).collect()
    }
}
