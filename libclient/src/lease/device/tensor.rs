//! Tensors in device memory, as readers use them.

use crate::error::{DeviceTrouble, Error, Result};
use crate::gpu::Gpu;
use crate::gpu::gates::Gates;
use crate::gpu::stream::{OnStream, Streams};
use crate::peers::PeerSegment;
use crate::segment::janitor::Janitor;
use crate::segment::map::DeviceRange;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::device::copies;
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::device::legacy::LegacyExport;
use crate::tensor::device::slice::BorrowedSlice;
use crate::tensor::draft::Draft;
use crate::tensor::element::Element;
use cudarc::driver::CudaStream;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::tensor::{BadTensor, SlotInfo};
use tensorlend_layout::word::{Member, MemberState};
use tensorlend_layout::{Device, Uuid, size};
use tensorlend_os::mutex::lock;

/// Shortest and longest pause between two polls for the end of a producer's work.
const SETTLED_NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// Without a daemon nobody learns that a producer has ended. A reader then waits this long for the producer's mark.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(2);

/// The slot of a tensor on a device.
#[derive(Clone)]
pub struct DeviceSlot {
    pub owner: ClientNo,
    pub slot: SlotNo,
    /// The location of the bytes in the segment.
    pub data_offset: u64,
    pub data_bytes: u64,
    /// The slot's segment, which keeps the memory mapped.
    pub segment: Arc<PeerSegment>,
}

/// A tensor on a device: the target of a [`DeviceLease`](crate::DeviceLease), and a member of a
/// [`Dataset`](crate::Dataset). A borrow of the tensor cannot outlive its lease.
///
/// After the drop of the lease, the lease ends when all streams recorded on its tensors ([`DeviceTensor::record_stream`],
/// [`DeviceTensor::slice`]) have finished their work up to the drop.
pub type DeviceTensor = Tensor<Mapped>;

/// Memory on a device that this process has mapped.
pub struct Mapped {
    range: DeviceRange,
    streams: Mutex<Streams>,
    gpu: Arc<Gpu>,
    work: Arc<Work>,
}

/// The producer's work on a tensor.
struct Work {
    name: String,
    slot: DeviceSlot,
    /// Whether the producer published the tensor before the work was done.
    is_early: bool,
    /// The time since which this session knows no daemon that could report the producer's end.
    orphaned: OnceLock<Instant>,
}

impl DeviceTensor {
    /// Returns the described tensor, which is in this slot. The caller has checked the record against the segment. Maps the
    /// segment. If the producer published the tensor early, its work may still be pending.
    pub(crate) fn new<M>(slot: DeviceSlot, described: &Tensor<M>, is_early: bool, name: &str) -> Result<Self> {
        let map = slot.segment.elsewhere.as_ref().map(|elsewhere| elsewhere.map.clone());
        let map = map.ok_or_else(|| Error::Damaged { name: name.to_owned(), cause: BadTensor::Record })?;
        let (start, gpu) = map.mapped(&format!("get {name:?}"))?;
        // The range is inside the segment: the caller has checked the record.
        let range = DeviceRange { ptr: start + slot.data_offset, bytes: slot.data_bytes };
        let (gpu, streams) = (gpu.clone(), Mutex::default());
        let work = Work { name: name.to_owned(), slot, is_early, orphaned: OnceLock::new() };
        Ok(described.with(Mapped { range, streams, gpu, work: Arc::new(work) }))
    }

    /// Returns the address of the tensor's first byte on the device. Other clients' memory is mapped read-only. A kernel
    /// that writes to it fails, and its context becomes unusable.
    pub fn ptr(&self) -> u64 {
        self.memory.range.ptr
    }

    /// Returns the device's UUID, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.memory.gpu.uuid
    }

    /// Returns the device's number in this process.
    pub fn device(&self) -> Device {
        self.memory.gpu.local()
    }

    /// Returns the number of bytes from [`DeviceTensor::ptr`] on, including gaps between strided elements.
    pub fn span(&self) -> usize {
        size::index(self.memory.range.bytes)
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
        stream.check(&self.memory.gpu, "record a stream")?;
        lock(&self.memory.streams).add(stream);
        Ok(())
    }

    /// Orders a stream after the producer's work on the tensor, if the producer published the tensor early and the work
    /// is still pending. Records the stream. Does not block the caller, unless 1,024 such waits of this process on the
    /// device are pending, or the stream's queue is full. If the producer ends before its work is done, the stream
    /// continues, and [`DeviceTensor::is_finished`] returns the error.
    ///
    /// # Errors
    /// [`Error::Device`] with [`Unfinished`](crate::DeviceTrouble::Unfinished) if the producer has ended. Otherwise the
    /// errors of [`DeviceTensor::record_stream`].
    pub fn wait(&self, stream: impl Into<OnStream>) -> Result<()> {
        let (stream, doing) = (stream.into(), "wait for a tensor that was published early");
        self.record_stream(&stream)?;
        if self.is_finished()? {
            return Ok(());
        }
        let (work, gpu) = (Arc::downgrade(&self.memory.work), &self.memory.gpu);
        // Weak, so that the thread of the gates never unmaps memory, which calls the driver. The recorded stream keeps the
        // lease until the gate is open.
        let is_over = Box::new(move || work.upgrade().is_none_or(|work| work.is_finished().unwrap_or(true)));
        if Gates::of(gpu, doing)?.order(gpu, &stream, is_over, doing)? {
            return Ok(());
        }
        self.finish()
    }

    /// Returns whether the producer published the tensor early and its work on the tensor may still be pending.
    pub fn is_early(&self) -> bool {
        self.memory.work.is_outstanding()
    }

    /// Blocks until the producer has finished its work on a tensor that it published early.
    ///
    /// # Errors
    /// [`Error::Device`] with [`Unfinished`](crate::DeviceTrouble::Unfinished) if the producer has ended.
    pub fn finish(&self) -> Result<()> {
        // The event of a killed producer never fires (driver 580.159), and a wait for the event would not end. Only the
        // producer's mark proves that the work is done, and the producer clears the mark right after the work.
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
        self.check_process()?;
        self.memory.work.is_finished()
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
    /// [`DeviceTensor::elements`] elements; [`Error::Device`] for errors of the driver.
    pub fn copy_to_host<T: Element>(&self, out: &mut [T]) -> Result<()> {
        self.check_dtype::<T>()?;
        self.copy_to_bytes(bytemuck::cast_slice_mut(out))
    }

    /// Copies the elements' bytes, in C order, to the host. Blocks until the copy is complete.
    ///
    /// # Errors
    /// [`Error::Length`] unless `out` has exactly [`DeviceTensor::nbytes`] bytes; [`Error::Device`] for errors of the
    /// driver.
    pub fn copy_to_bytes(&self, out: &mut [u8]) -> Result<()> {
        let nbytes = self.nbytes();
        if out.len() != nbytes {
            let (found, given) = (nbytes as u64, out.len() as u64);
            return Err(Error::Length { name: self.memory.work.name.clone(), found, given });
        }
        self.check_process()?;
        self.copy_elements(out)
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
        if draft.dtype() != self.dtype() {
            return Err(Error::DType { found: draft.dtype(), wanted: self.dtype() });
        }
        if draft.spec().strides.is_some() || draft.spec().byte_offset != 0 {
            return Err(Error::Strided);
        }
        if draft.bytes_mut().len() != self.nbytes() {
            let (found, given) = (self.nbytes() as u64, draft.bytes_mut().len() as u64);
            return Err(Error::Length { name: self.memory.work.name.clone(), found, given });
        }
        self.check_process()?;
        // Ignore a failure: without locked pages the copy is slower, but correct.
        if let Some((range, locked)) = draft.session().alloc().host_segment(draft.cell().slot()) {
            locked.try_lock(&self.memory.gpu, range, false);
        }
        self.copy_elements(draft.bytes_mut())
    }

    /// Copies the elements in C order.
    fn copy_elements(&self, out: &mut [u8]) -> Result<()> {
        if self.is_row_major() {
            let range = self.row_major_range();
            return copies::copy_out(&self.memory.gpu, range, out);
        }
        let mut all = vec![0; size::index(self.memory.range.bytes)];
        copies::copy_out(&self.memory.gpu, self.memory.range, &mut all)?;
        self.gather(&all, out);
        Ok(())
    }

    /// Copies the elements, in C order, into a new vector on the host. Blocks until the copy is complete.
    ///
    /// # Errors
    /// The errors of [`DeviceTensor::copy_to_host`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.check_dtype::<T>()?;
        let mut all = vec![T::zeroed(); self.elements()];
        self.copy_to_host(&mut all)?;
        Ok(all)
    }

    /// Returns the elements as a slice of `cudarc`, for work in `stream` that reads them, and records the stream.
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::Strided`] unless the tensor is row-major;
    /// otherwise the errors of [`DeviceTensor::record_stream`].
    pub fn slice<T: Element>(&self, stream: &Arc<CudaStream>) -> Result<BorrowedSlice<'_, T>> {
        self.check_dtype::<T>()?;
        if !self.is_row_major() {
            return Err(Error::Strided);
        }
        self.record_stream(stream)?;
        Ok(BorrowedSlice::new(self.row_major_range(), stream))
    }

    /// Returns the elements of a row-major tensor.
    fn row_major_range(&self) -> DeviceRange {
        DeviceRange { ptr: self.ptr() + self.byte_offset() as u64, bytes: self.nbytes() as u64 }
    }

    /// Copies the tensor into a plain block of device memory, for a program that only knows CUDA's older handles
    /// (`cuIpcOpenMemHandle`). tensorlend neither protects nor counts the block. Any process that knows the handle can
    /// open the block and write to it.
    ///
    /// # Errors
    /// [`Error::Device`] if the device or the machine does not support such handles, or if the device has no free
    /// memory.
    pub fn legacy_export(&self) -> Result<LegacyExport> {
        self.check_process()?;
        LegacyExport::new(&self.memory.gpu, self.memory.range)
    }

    /// Checks a stream as [`DeviceTensor::record_stream`] does, without recording it.
    ///
    /// # Errors
    /// The errors of [`DeviceTensor::record_stream`].
    #[doc(hidden)]
    pub fn check_stream(&self, stream: &OnStream) -> Result<()> {
        stream.check(&self.memory.gpu, "record a stream")
    }

    /// Drops a value that keeps this tensor's lease, when the recorded streams have finished their present work. Does not
    /// block.
    pub(crate) fn drop_after<S: Send + 'static>(&self, janitor: &Arc<Janitor>, value: S) {
        let streams = lock(&self.memory.streams).take();
        if !streams.is_empty() {
            copies::drop_after(&self.memory.gpu, janitor, streams.iter(), value);
        }
    }

    /// Returns a draft on the same device with the same contents.
    pub(crate) fn duplicate(&self, session: &Arc<Session>) -> Result<DeviceDraft> {
        let mut draft = DeviceDraft::on_device(session, self.uuid(), None, &self.spec())?;
        draft.copy_from_device(self.ptr())?;
        draft.set_metadata(self.metadata())?.set_timestamp(self.timestamp());
        Ok(draft)
    }

    fn check_process(&self) -> Result<()> {
        self.memory.work.slot.segment.link.check()
    }
}

impl Work {
    /// Returns whether the record still has the mark of pending work.
    fn is_outstanding(&self) -> bool {
        if !self.is_early {
            return false;
        }
        let DeviceSlot { slot, segment, .. } = &self.slot;
        let record = &segment.records[(*slot - segment.base) as usize];
        SlotInfo::unpack(&record.copy()).is_ok_and(|info| info.early)
    }

    /// Implements [`DeviceTensor::is_finished`]. Calls nothing of CUDA.
    fn is_finished(&self) -> Result<bool> {
        // Read the producer's state before the mark: a live producer clears the mark before it ends.
        let lives = self.producer_lives();
        if !self.is_outstanding() {
            return Ok(true);
        }
        if lives {
            return Ok(false);
        }
        let (doing, cause) =
            (format!("wait for {:?}, which was published early", self.name), DeviceTrouble::Unfinished);
        Err(Error::Device { doing, cause })
    }

    fn producer_lives(&self) -> bool {
        let link = &self.slot.segment.link;
        let member = &link.directory.members[self.slot.owner.index()];
        if Member(member.member.read()).state() != MemberState::Open {
            return false;
        }
        link.is_member() || self.orphaned.get_or_init(Instant::now).elapsed() < ORPHAN_TIMEOUT
    }
}
