//! Page-locked host segments, so that devices copy from and to them at full speed.
//!
//! A segment is registered once, as long as it is mapped. The contract: 1. a [`PageLock`] is a field next to its
//! mapping, declared before it, so that it is dropped first; 2. the owner of a device copy holds the draft or lease
//! until the copy is done.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

/// Keeps a host segment's pages locked; empty until the first use.
#[derive(Clone, Default)]
pub struct PageLock(Arc<Mutex<Option<HostRegistration>>>);

impl PageLock {
    /// Returns whether the segment is registered.
    pub fn is_locked(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Registers the segment with the driver, unless it is registered already. `start` and `bytes` are the segment's.
    pub fn lock(&self, gpu: &Gpu, (start, bytes): (*mut u8, usize), read_only: bool, doing: &str) -> Result<()> {
        let mut registered = lock(&self.0);
        if registered.is_some() {
            return Ok(());
        }
        let Some(start) = NonNull::new(start) else { return Ok(()) };
        let context = gpu.context(doing)?;
        // SAFETY: the range is mapped until this registration is dropped (contract 1), and no device uses it by then (contract
        // 2).
        let made = unsafe { HostRegistration::register(&context, &gpu.device, start, bytes, read_only) };
        *registered = Some(made.map_err(trouble(doing))?);
        Ok(())
    }
}

/// Returns the address range of a segment.
pub fn range_of(map: &Segment) -> (*mut u8, usize) {
    (map.start(), map.bytes())
}
