//! Host segments whose pages stay where they are, so that devices copy from and to them at full speed.
//!
//! A segment is registered once, as long as it is mapped. The contract: 1. a [`PageLock`] stands beside its mapping, in a field
//! before it, so that it is dropped first; 2. whoever has a device copy to or from a draft or a lease holds that until the
//! copy is done.
#![allow(unsafe_code)]

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

/// What keeps a host segment's pages in place; nothing, until somebody wants that.
#[derive(Clone, Default)]
pub struct PageLock(Arc<Mutex<Option<HostRegistration>>>);

impl PageLock {
    /// Whether it is registered.
    pub fn is_locked(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Registers a segment that it stands beside, unless that is done. `start` and `bytes` are its.
    pub fn lock(&self, gpu: &Gpu, (start, bytes): (*mut u8, usize), read_only: bool, doing: &str) -> Result<()> {
        let mut registered = lock(&self.0);
        if registered.is_some() {
            return Ok(());
        }
        let Some(start) = NonNull::new(start) else { return Ok(()) };
        let context = gpu.context(doing)?;
        // SAFETY: mapped until this is dropped (contract 1), and not used by a device then (contract 2).
        let made = unsafe { HostRegistration::register(&context, &gpu.device, start, bytes, read_only) };
        *registered = Some(made.map_err(trouble(doing))?);
        Ok(())
    }
}

/// The range of a segment.
pub fn range_of(map: &Segment) -> (*mut u8, usize) {
    (map.start(), map.bytes())
}
