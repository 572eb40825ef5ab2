//! Host segments whose pages stay where they are, so that devices copy from and to them at full speed.
//!
//! A segment is registered once, as long as it is mapped. The contract: 1. a [`PageLock`] stands beside its mapping, in a field
//! before it, so that it is dropped first; 2. whoever has a device copy to or from a draft or a lease holds that until the
//! copy is done.
#![allow(unsafe_code)]

use super::api::On;
use super::gpu::{Gpu, trouble};
use crate::error::Result;
use crate::session::lock;
use crate::{Draft, Lease};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_os::map::Segment;

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

impl Draft {
    /// Keeps the host memory that the draft lies in where it is (`cuMemHostRegister`), so that copies between it and devices run
    /// by themselves and at full speed. The whole segment stays so until it is given back: the first call costs some
    /// milliseconds, others nothing. Whoever has a device copy holds the draft until that is done.
    ///
    /// # Errors
    /// [`crate::Error::Device`] without such a device, or where the driver refuses.
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        let doing = "keep a draft's pages in place";
        let session = self.session();
        session.check()?;
        let gpu = Gpu::find(on.into().uuid(doing)?, doing)?;
        let found = {
            let mut heap = lock(&session.heap);
            heap.host_segment(self.cell().slot()).map(|(map, locked)| (range_of(map), locked.clone()))
        };
        // The draft keeps its segment.
        found.map_or(Ok(()), |(range, locked)| locked.lock(&gpu, range, false, doing))
    }
}

impl Lease {
    /// As [`Draft::page_lock`], for the memory that the leased tensor lies in, which devices may then read.
    ///
    /// # Errors
    /// As [`Draft::page_lock`]: some devices take no memory that is mapped read-only.
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        let doing = "keep a tensor's pages in place";
        self.held().link().check()?;
        let gpu = Gpu::find(on.into().uuid(doing)?, doing)?;
        let segment = self.held().segment();
        segment.locked.lock(&gpu, range_of(&segment.map), true, doing)
    }
}
