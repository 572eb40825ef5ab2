//! Drafts and leases in host memory whose pages devices read and write directly.

use crate::api::device::On;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::lease::lease::Lease;
use crate::segment::pinned::range_of;
use crate::tensor::draft::Draft;

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
        let found = session.alloc().host_segment(self.cell().slot());
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
