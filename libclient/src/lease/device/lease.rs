//! Leases on tensors in device memory.

use super::{Described, describe};
use crate::error::{Error, Result};
use crate::gpu::early::{Mark, unfinished};
use crate::gpu::stream::{OnStream, Streams};
use crate::gpu::{End, Gpu, trouble};
use crate::lease::raw::Held;
use crate::names::version::Version;
use crate::segment::janitor::Ending;
use crate::segment::map::{DeviceMap, DeviceRange};
use crate::session::Session;
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::device::legacy::LegacyExport;
use crate::tensor::device::slice::BorrowedSlice;
use crate::tensor::device::staging;
use crate::tensor::dims::as_usize;
use crate::tensor::draft::Draft;
use crate::tensor::element::Element;
use crate::tensor::spec::TensorSpec;
use cudarc::driver::CudaStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend_layout::tensor::{BadTensor, SlotInfo};
use tensorlend_layout::word::{Member, MemberState};
use tensorlend_layout::{DType, Device, Uuid};
use tensorlend_os::mutex::lock;

/// Shortest and longest pause between two polls for the end of a producer's work.
const SETTLED_NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// Maximum time for which a reader retries to open a producer's event.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// The right to read one tensor on a device, in place. While the lease exists, no client reuses the memory, whatever
/// happens to the name or to the producer.
///
/// After the drop, the lease ends when all streams recorded on it ([`DeviceLease::record_stream`],
/// [`DeviceLease::slice`]) have finished their work up to the drop. The drop does not block. Without recorded streams
/// the lease ends at once, so the caller must have waited for its own device work before.
///
/// ```no_run
/// use tensorlend::Client;
///
/// let client = Client::connect()?;
/// let image = client.get_device("camera/front")?; // no copy: the producer's own memory
/// println!("{} {:?} at {:#x} on {}", image.dtype(), image.shape(), image.ptr(), image.device());
/// let pixels: Vec<f32> = image.to_vec()?;
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct DeviceLease {
    /// `None` only during the drop.
    inner: Option<Box<Inner>>,
}

struct Inner {
    name: String,
    said: Described,
    range: DeviceRange,
    streams: Mutex<Streams>,
    gpu: Arc<Gpu>,
    /// The lease. Declared first, because it must be cleared before the memory is unmapped.
    held: Held,
    _map: Arc<DeviceMap>,
}

impl DeviceLease {
    /// Returns a lease on the tensor that the record describes. The caller has checked the record against the segment. The
    /// producer's work may still be pending.
    pub(crate) fn new(session: &Session, held: Held, info: &SlotInfo, name: &str) -> Result<Self> {
        let doing = format!("get {name:?}");
        let said = describe(session, &held, info, name)?;
        let elsewhere = held.segment().elsewhere.as_ref();
        let map = elsewhere.map(|elsewhere| elsewhere.map.clone());
        let map = map.ok_or_else(|| Error::Damaged { name: name.to_owned(), cause: BadTensor::Record })?;
        let (start, gpu) = map.mapped(&doing)?;
        // The range is inside the segment: the caller has checked the record.
        let range = DeviceRange { ptr: start + info.data_offset, bytes: info.data_bytes };
        let (gpu, streams, name) = (gpu.clone(), Mutex::default(), name.to_owned());
        Ok(Self { inner: Some(Box::new(Inner { name, said, range, streams, gpu, held, _map: map })) })
    }

    fn inner(&self) -> &Inner {
        self.inner.as_deref().expect("there until it is dropped")
    }

    pub(crate) fn held(&self) -> &Held {
        &self.inner().held
    }

    /// Returns the address of the tensor's first byte on the device. Other clients' memory is mapped read-only. A kernel
    /// that writes to it fails, and its context becomes unusable.
    pub fn ptr(&self) -> u64 {
        self.inner().range.ptr
    }

    /// Returns the device's UUID, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.inner().said.uuid
    }

    /// Returns the device's number in this process.
    pub fn device(&self) -> Device {
        self.inner().gpu.local()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.inner().said.dtype
    }

    /// Returns the sizes in elements.
    pub fn shape(&self) -> &[usize] {
        as_usize(&self.inner().said.layout.shape)
    }

    /// Returns the strides in elements, one for each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.inner().said.layout.strides
    }

    /// Returns whether the tensor's elements are contiguous, in C order.
    pub fn is_row_major(&self) -> bool {
        self.inner().said.layout.row_major
    }

    /// Returns the number of elements. Returns 1 for a tensor without dimensions.
    pub fn elements(&self) -> usize {
        self.inner().said.layout.elements as usize
    }

    /// Returns the offset of the element with index 0 from [`DeviceLease::ptr`], in bytes.
    pub fn byte_offset(&self) -> usize {
        self.inner().said.byte_offset as usize
    }

    /// Returns the number of bytes of the elements, without gaps: the number of elements times the bytes of one.
    pub fn nbytes(&self) -> usize {
        self.elements() * self.dtype().item_bytes()
    }

    /// Returns the number of bytes from [`DeviceLease::ptr`] on, including gaps between strided elements.
    pub fn span(&self) -> usize {
        self.inner().range.bytes as usize
    }

    /// Returns the metadata that the tensor's producer set, in host memory. Empty if the producer set none.
    pub fn metadata(&self) -> &[u8] {
        &self.inner().said.layout.metadata
    }

    /// Returns the timestamp that the tensor's producer set, in nanoseconds of the clock on which producer and readers
    /// agreed. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        self.inner().said.timestamp_ns
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.held().version()
    }

    /// Validates the lease like [`crate::Lease::validate`]. Returns false in the child of a fork, where no device
    /// memory is mapped.
    pub fn validate(&self) -> bool {
        !self.held().link().is_forked() && self.held().validate()
    }

    /// Records a stream whose work reads the tensor. After the drop, the lease ends only when the stream has finished
    /// the work that is queued in it by then.
    ///
    /// Call this method before you drop the lease, for each stream with work that reads the tensor:
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tensorlend::Client;
    ///
    /// fn consume(client: &Client, stream: &Arc<cudarc::driver::CudaStream>) -> tensorlend::Result<()> {
    ///     let image = client.get_device("camera/front")?;
    ///     image.record_stream(stream)?;
    ///     // ... launch kernels in `stream` that read at image.ptr() ...
    ///     Ok(()) // the lease is dropped here, and ends after the kernels
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Device`] for a stream of another context than the device's primary one, and for errors of the driver.
    pub fn record_stream(&self, stream: impl Into<OnStream>) -> Result<()> {
        let stream = stream.into();
        stream.check(&self.inner().gpu, "record a stream")?;
        lock(&self.inner().streams).add(stream);
        Ok(())
    }

    /// Orders a stream after the producer's work on the tensor, if the producer published the tensor early and the work
    /// is still pending. Does not block the caller. Records the stream.
    ///
    /// # Errors
    /// [`Error::Device`] with [`Unfinished`](crate::DeviceTrouble::Unfinished) if the producer has ended. Otherwise the
    /// errors of [`DeviceLease::record_stream`].
    pub fn wait(&self, stream: impl Into<OnStream>) -> Result<()> {
        let (stream, doing) = (stream.into(), "wait for a tensor that was published early");
        self.record_stream(&stream)?;
        let inner = self.inner();
        let Some(mark) = inner.outstanding() else { return Ok(()) };
        let Some(event) = inner.open(mark)? else { return Ok(()) };
        inner.gpu.order(&stream, &event, doing)
    }

    /// Returns whether the producer published the tensor early and its work on the tensor may still be pending.
    pub fn is_early(&self) -> bool {
        self.inner().outstanding().is_some()
    }

    /// Blocks until the producer has finished its work on a tensor that it published early.
    ///
    /// # Errors
    /// [`Error::Device`] with [`Unfinished`](crate::DeviceTrouble::Unfinished) if the producer has ended.
    pub fn finish(&self) -> Result<()> {
        let inner = self.inner();
        let Some(mark) = inner.outstanding() else { return Ok(()) };
        let Some(event) = inner.open(mark)? else { return Ok(()) };
        event.synchronize().map_err(trouble("wait for a tensor that was published early"))?;
        // The event also fires when its producer is killed. So only the producer's own mark is proof, which the
        // producer clears immediately after the event.
        let mut nap = SETTLED_NAP.0;
        while !self.is_finished()? {
            std::thread::sleep(nap);
            nap = (nap * 2).min(SETTLED_NAP.1);
        }
        Ok(())
    }

    /// Returns whether the producer's work on the tensor is known to be finished. Returns true for every tensor that was not
    /// published early. A reader that made a stream wait calls this method after its own work. If the result is true, the
    /// work read the finished tensor.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// let image = client.get_device_early("camera/front")?;
    /// # fn use_in_a_stream(_: &tensorlend::DeviceLease) -> tensorlend::Result<()> { Ok(()) }
    /// use_in_a_stream(&image)?; // with image.wait(stream) before
    /// assert!(image.is_finished()?, "the producer has finished the tensor");
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Device`] with [`Unfinished`](crate::DeviceTrouble::Unfinished) if the producer ended before it
    /// finished its work.
    pub fn is_finished(&self) -> Result<bool> {
        let inner = self.inner();
        inner.check_process()?;
        // Read the producer's state before the mark: a live producer clears the mark before it ends.
        let lives = inner.producer_lives();
        if inner.outstanding().is_none() {
            return Ok(true);
        }
        if lives { Ok(false) } else { Err(unfinished(&inner.name)) }
    }

    /// Copies the elements, in C order, to the host. Blocks until the copy is complete.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// let image = client.get_device("camera/front")?;
    /// let mut pixels = vec![0.0f32; image.elements()];
    /// image.copy_to_host(&mut pixels)?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::Length`] unless `out` has exactly
    /// [`DeviceLease::elements`] elements; [`Error::Device`] for errors of the driver.
    pub fn copy_to_host<T: Element>(&self, out: &mut [T]) -> Result<()> {
        if T::DTYPE != self.dtype() {
            return Err(Error::DType { found: self.dtype(), wanted: T::DTYPE });
        }
        self.copy_to_bytes(bytemuck::cast_slice_mut(out))
    }

    /// Copies the elements' bytes, in C order, to the host. Blocks until the copy is complete.
    ///
    /// # Errors
    /// [`Error::Length`] unless `out` has exactly [`DeviceLease::nbytes`] bytes; [`Error::Device`] for errors of the
    /// driver.
    pub fn copy_to_bytes(&self, out: &mut [u8]) -> Result<()> {
        let (inner, nbytes) = (self.inner(), self.nbytes());
        if out.len() != nbytes {
            let (found, given) = (nbytes as u64, out.len() as u64);
            return Err(Error::Length { name: inner.name.clone(), found, given });
        }
        inner.check_process()?;
        let session = Session::of(inner.held.link());
        self.copy_elements(session.as_ref(), out)
    }

    /// Copies all elements into a draft in host memory, in C order. Blocks until the copy is complete. The method locks the
    /// draft's pages, so that the device writes directly into the lent slot.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// let image = client.get_device("camera/front")?;
    /// let mut copy = client.create(image.dtype(), image.shape())?;
    /// image.copy_to_draft(&mut copy)?;
    /// copy.publish("camera/front/host")?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Length`] if it has another number of elements;
    /// [`Error::Strided`] for a draft with strides; [`Error::Device`] for errors of the driver.
    pub fn copy_to_draft(&self, draft: &mut Draft) -> Result<()> {
        let inner = self.inner();
        if draft.dtype() != self.dtype() {
            return Err(Error::DType { found: draft.dtype(), wanted: self.dtype() });
        }
        if draft.spec().strides.is_some() || draft.spec().byte_offset != 0 {
            return Err(Error::Strided);
        }
        if draft.bytes_mut().len() != self.nbytes() {
            let (found, given) = (self.nbytes() as u64, draft.bytes_mut().len() as u64);
            return Err(Error::Length { name: inner.name.clone(), found, given });
        }
        inner.check_process()?;
        // Ignore a failure: without locked pages the copy is slower, but correct.
        if let Some((range, locked)) = draft.session().alloc().host_segment(draft.cell().slot()) {
            locked.try_lock(&inner.gpu, range, false);
        }
        self.copy_elements(None, draft.bytes_mut())
    }

    /// Copies the elements in C order. With `session`, copies a long tensor through a staging buffer.
    fn copy_elements(&self, session: Option<&Arc<Session>>, out: &mut [u8]) -> Result<()> {
        let inner = self.inner();
        if self.is_row_major() {
            let range = self.row_major_range();
            return staging::copy_out(session, &inner.gpu, range, out);
        }
        let mut all = vec![0; inner.range.bytes as usize];
        staging::copy_out(session, &inner.gpu, inner.range, &mut all)?;
        let item = self.dtype().item_bytes();
        crate::tensor::strided::gather(
            &all,
            item,
            inner.said.byte_offset,
            &inner.said.layout.shape,
            self.strides(),
            out,
        );
        Ok(())
    }

    /// Copies the elements, in C order, into a new vector on the host. Blocks until the copy is complete.
    ///
    /// # Errors
    /// The errors of [`DeviceLease::copy_to_host`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::DType { found: self.dtype(), wanted: T::DTYPE });
        }
        let mut all = vec![T::zeroed(); self.elements()];
        self.copy_to_host(&mut all)?;
        Ok(all)
    }

    /// Returns the elements as a slice of `cudarc`, for work in `stream` that reads them, and records the stream.
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::Strided`] unless the tensor is row-major;
    /// otherwise the errors of [`DeviceLease::record_stream`].
    pub fn slice<T: Element>(&self, stream: &Arc<CudaStream>) -> Result<BorrowedSlice<'_, T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::DType { found: self.dtype(), wanted: T::DTYPE });
        }
        if !self.is_row_major() {
            return Err(Error::Strided);
        }
        self.record_stream(stream)?;
        Ok(BorrowedSlice::new(self.row_major_range(), stream))
    }

    /// Returns the elements of a row-major tensor.
    fn row_major_range(&self) -> DeviceRange {
        DeviceRange { ptr: self.ptr() + self.inner().said.byte_offset, bytes: self.nbytes() as u64 }
    }

    /// Copies the tensor into a plain block of device memory, for a program that only knows CUDA's older handles
    /// (`cuIpcOpenMemHandle`). tensorlend neither protects nor counts the block. Any process that knows the handle can
    /// open the block and write to it.
    ///
    /// # Errors
    /// [`Error::Device`] if the device or the machine does not support such handles, or if the device has no free
    /// memory.
    pub fn legacy_export(&self) -> Result<LegacyExport> {
        self.inner().check_process()?;
        LegacyExport::new(&self.inner().gpu, self.inner().range)
    }

    /// Returns a draft on the same device with the same contents.
    pub(crate) fn duplicate(&self, session: &Arc<Session>) -> Result<DeviceDraft> {
        let layout = &self.inner().said.layout;
        let spec = TensorSpec {
            dtype: self.dtype(),
            shape: self.shape().to_vec(),
            strides: (!layout.row_major).then(|| self.strides().to_vec()),
            byte_offset: self.byte_offset(),
        };
        let mut draft = DeviceDraft::new(session, self.uuid(), None, &spec)?;
        draft.copy_from_device(self.ptr())?;
        draft.set_metadata(self.metadata())?.set_timestamp(self.timestamp());
        Ok(draft)
    }
}

impl Inner {
    fn check_process(&self) -> Result<()> {
        self.held.link().check()
    }

    /// Returns the mark of the producer's pending work, as the record contains it now.
    fn outstanding(&self) -> Option<&Mark> {
        let mark = self.said.early.as_ref()?;
        let segment = self.held.segment();
        let record = &segment.records[(self.held.cell.slot() - segment.base) as usize];
        let early = SlotInfo::unpack(&record.copy()).is_ok_and(|info| info.early);
        early.then_some(mark)
    }

    fn producer_lives(&self) -> bool {
        let member = &self.held.link().directory.members[usize::from(self.held.catalogue)];
        Member(member.member.read()).state() == MemberState::Open
    }

    /// Opens the producer's event. Returns `None` if no work is pending any more.
    fn open(&self, mark: &Mark) -> Result<Option<Arc<tensorlend_cuda::Event>>> {
        let start = Instant::now();
        loop {
            let lives = self.producer_lives();
            if self.outstanding().is_none() {
                return Ok(None);
            }
            if !lives {
                return Err(unfinished(&self.name));
            }
            match self.gpu.early.open(&self.gpu, mark, "open a producer's event") {
                Ok(event) => return Ok(Some(event)),
                // The producer has probably ended, and the daemon will detect that soon.
                Err(_) if start.elapsed() < OPEN_TIMEOUT => std::thread::sleep(SETTLED_NAP.1),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if inner.held.link().is_forked() {
            return;
        }
        let (doing, streams) = ("end a lease", lock(&inner.streams).take());
        if streams.is_empty() {
            return;
        }
        let gpu = inner.gpu.clone();
        match gpu.end_of(streams.iter(), doing) {
            End::Events(events) => {
                let link = inner.held.segment().link.clone();
                let then = Box::new(move |_| drop(inner));
                link.lendings.janitor.leave(Ending { gpu, events, then, dropped: None });
            }
            End::Now => drop(inner),
            // Forget the lease, so that it lasts as long as its session.
            End::Unknown => std::mem::forget(inner),
        }
    }
}

impl std::fmt::Debug for DeviceLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceLease")
            .field("device", &self.uuid())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
