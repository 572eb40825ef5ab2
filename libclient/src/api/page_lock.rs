//! Page-locked host memory: drafts and leases that devices read and write directly.

use crate::api::device::On;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::lease::lease::Lease;
use crate::segment::pinned::range_of;
use crate::tensor::draft::Draft;

impl Draft {
    /// Page-locks the host memory of the draft (`cuMemHostRegister`), so that copies between it and devices run
    /// asynchronously and at full speed.
    ///
    /// The whole segment stays locked until the client returns it: the first call for a segment takes some
    /// milliseconds, later ones nothing. Keep the draft until a device copy that uses it is done.
    ///
    /// # Errors
    /// [`crate::Error::Device`] without such a device, or if the driver refuses.
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        let doing = "keep a draft's pages in place";
        let session = self.session();
        session.check()?;
        let gpu = Gpu::find(on.into().uuid(doing)?, doing)?;
        let found = session.alloc().host_segment(self.cell().slot());
        // The draft keeps its segment mapped.
        found.map_or(Ok(()), |(range, locked)| locked.lock(&gpu, range, false, doing))
    }
}

impl Lease {
    /// As [`Draft::page_lock`], for the memory of a leased tensor, which devices may then read.
    ///
    /// # Errors
    /// As [`Draft::page_lock`]: some devices do not accept memory that is mapped read-only.
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        let doing = "keep a tensor's pages in place";
        self.held().link().check()?;
        let gpu = Gpu::find(on.into().uuid(doing)?, doing)?;
        let segment = self.held().segment();
        segment.locked.lock(&gpu, range_of(&segment.map), true, doing)
    }
}
