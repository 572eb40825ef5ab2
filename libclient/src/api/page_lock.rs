//! Page-locked host memory: drafts and leases that devices read and write directly, and copies of leased tensors to devices.

use crate::api::device::On;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::gpu::stream::OnStream;
use crate::lease::dataset::Dataset;
use crate::lease::lease::Lease;
use crate::lease::member::Member;
use crate::lease::value::Value;
use crate::peers::PeerSegment;
use crate::segment::pinned::range_of;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::device::copies::drop_after;
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::draft::Draft;
use std::sync::Arc;

impl Draft {
    /// Page-locks the host memory of the draft (`cuMemHostRegister`). Then copies between the draft and
    /// devices run asynchronously and at full speed.
    ///
    /// The whole segment stays locked until the client returns it. The first call for a segment takes some
    /// milliseconds, and later calls cost nothing. Keep the draft until a device copy that uses it is done.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if this process has no such device, or if the driver refuses.
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
    /// Page-locks like [`Draft::page_lock`], for the memory of a leased tensor. Then devices can read it.
    ///
    /// # Errors
    /// The errors of [`Draft::page_lock`]. Some devices do not accept memory that is mapped read-only.
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        let segment = self.held().segment();
        page_lock(std::iter::once(segment), on.into())
    }

    /// Copies the tensor to a device, as work of `stream`, and returns the copy as a draft. See [`Value::to_device`].
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tensorlend::{Client, Device};
    ///
    /// fn upload(client: &Client, stream: &Arc<cudarc::driver::CudaStream>) -> tensorlend::Result<()> {
    ///     let image = client.get("camera/front")?; // in host memory
    ///     let copy = image.to_device(Device::cuda(0), stream)?; // returns at once
    ///     // ... launch kernels in `stream` that read at copy.ptr() ...
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`Value::to_device`].
    pub fn to_device(self, on: impl Into<On>, stream: impl Into<OnStream>) -> Result<DeviceDraft> {
        Arc::new(Value::Tensor(self)).to_device(0, on, stream)
    }
}

impl Value {
    /// Page-locks like [`Lease::page_lock`], for all tensors of the value.
    ///
    /// # Errors
    /// The errors of [`Draft::page_lock`].
    pub fn page_lock(&self, on: impl Into<On>) -> Result<()> {
        page_lock(self.segments(), on.into())
    }

    /// Copies a tensor in host memory to a device, as work of `stream`. Returns the copy as a draft, with metadata and
    /// timestamp. `member` is the tensor's number in a dataset, or 0 for a single tensor. The lease lasts until the stream
    /// has finished the copy.
    ///
    /// Does not block if the tensor's pages are locked. [`Lease::page_lock`] locks them. If the daemon's configuration
    /// sets `pool.page_lock`, this method does. Otherwise the driver first copies the bytes to its own memory.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tensor on a device, or a number beyond the last member; [`Error::SessionEnded`] if the
    /// lease has outlived its [`Client`](crate::Client); otherwise the errors of
    /// [`Client::create_on_stream`](crate::Client::create_on_stream).
    pub fn to_device(
        self: &Arc<Self>,
        member: usize,
        on: impl Into<On>,
        stream: impl Into<OnStream>,
    ) -> Result<DeviceDraft> {
        let (doing, stream) = ("copy to a device", stream.into());
        let held = self.held();
        held.link().check()?;
        let session = Session::of(held.link()).ok_or(Error::SessionEnded)?;
        let tensor = self.host_tensor(member)?;
        let mut draft = DeviceDraft::on_device(&session, on.into().uuid(doing)?, Some(stream.clone()), &tensor.spec())?;
        draft.set_metadata(tensor.metadata())?.set_timestamp(tensor.timestamp());
        if session.welcome.page_lock {
            // A dataset's tensors may be in other segments than its index.
            let start = tensor.bytes().as_ptr().addr();
            let holds = |segment: &&Arc<PeerSegment>| {
                let (first, bytes) = range_of(&segment.map);
                (first.addr()..first.addr() + bytes).contains(&start)
            };
            if let Some(segment) = self.segments().find(holds) {
                segment.locked.try_lock(draft.work().0, range_of(&segment.map), true);
            }
        }
        draft.copy_from_shared(self.clone(), |value| value.host_tensor(member).map_or(&[], Tensor::bytes), stream)?;
        Ok(draft)
    }

    /// Drops this reference to the value when a stream has finished its present work. Does not block. Use it for copies to a
    /// device that other libraries have queued.
    ///
    /// # Errors
    /// [`Error::Device`] if this process has no such device. Then this method drops the value at once.
    pub fn drop_after(self: Arc<Self>, on: impl Into<On>, stream: impl Into<OnStream>) -> Result<()> {
        let doing = "keep a tensor until a device has read it";
        let link = self.held().segment().link.clone();
        link.check()?;
        let gpu = Gpu::find(on.into().uuid(doing)?, doing)?;
        drop_after(&gpu, &link.lendings.janitor, std::iter::once(&stream.into()), self);
        Ok(())
    }

    /// Returns the segments that hold the value.
    fn segments(&self) -> impl Iterator<Item = &Arc<PeerSegment>> {
        let others = self.as_dataset().map_or(&[][..], Dataset::segments);
        std::iter::once(self.held().segment()).chain(others)
    }

    /// Returns a tensor in host memory.
    fn host_tensor(&self, member: usize) -> Result<&Tensor> {
        let tensor = match self {
            Self::Tensor(lease) => (member == 0).then_some(&**lease),
            Self::Dataset(dataset) => match dataset.member_at(member) {
                Some(Member::Host(tensor)) => Some(tensor),
                Some(Member::Device(_)) => return Err(is_on_device()),
                None => None,
            },
            Self::Device(_) => return Err(is_on_device()),
        };
        tensor.ok_or_else(|| {
            let count = self.as_dataset().map_or(1, Dataset::len);
            Error::Argument(format!("the value has no tensor number {member}: give a number from 0, below {count}"))
        })
    }
}

#[cold]
fn is_on_device() -> Error {
    let text = "the tensor is on a device, and only pages of host memory can be locked: copy it with `copy`";
    Error::Argument(text.into())
}

fn page_lock<'s>(mut segments: impl Iterator<Item = &'s Arc<PeerSegment>>, on: On) -> Result<()> {
    let doing = "keep a tensor's pages in place";
    let uuid = on.uuid(doing)?;
    segments.try_for_each(|segment| {
        segment.link.check()?;
        segment.locked.lock(&*Gpu::find(uuid, doing)?, range_of(&segment.map), true, doing)
    })
}
