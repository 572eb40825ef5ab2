//! Drafts on devices: tensors that a producer is writing in device memory.
#![allow(unsafe_code)]

use super::offer;
use crate::alloc::heap::arenas::ArenaKey;
use crate::error::{Error, Result, check_name};
use crate::gpu::stream::{OnStream, Streams};
use crate::gpu::{End, Gpu, trouble};
use crate::names::lifetime::Lifetime;
use crate::names::publish::Publication;
use crate::names::version::Version;
use crate::segment::bytes::OwnRecord;
use crate::segment::janitor::{Dropped, Ending};
use crate::segment::map::DeviceRange;
use crate::segment::map::TakenOn;
use crate::session::Session;
use crate::tensor::device::slice::BorrowedSliceMut;
use crate::tensor::dims::{Dims, as_u64, as_usize};
use crate::tensor::draft::{Details, Extent, Head, Sealed, extend};
use crate::tensor::element::Element;
use crate::tensor::sendable::Sendable;
use crate::tensor::sendable::sealed::{Inside, Message};
use crate::tensor::spec::TensorSpec;
use cudarc::driver::CudaStream;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::tensor::{EARLY_BYTES, METADATA_MAX, SlotKind};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{DType, Device, Uuid};

/// A tensor that its producer is writing on a device, in the memory in which readers will read it. No other client sees
/// the tensor before it is published. Dropping the draft frees the memory.
///
/// Publishing waits on the host until the device work on the draft is done. This is the work of each stream recorded on
/// it ([`DeviceDraft::record_stream`], [`DeviceDraft::slice`]). If none is recorded, it is the work of all streams of
/// the device's primary context. If the program has never asked for the draft's address, publishing does not wait.
/// Dropping a draft with recorded streams does not wait. Without them, it waits as publishing does. So record the
/// streams: without them, a stuck stream blocks both operations, even a stream that does not use the draft.
///
/// ```no_run
/// use tensorlend::{Client, DType, Device};
///
/// let client = Client::connect()?;
/// let mut image = client.create_on(Device::cuda(0), DType::F32, [480, 640, 3])?;
/// image.copy_from_host(&vec![0.5f32; 480 * 640 * 3])?; // or launch kernels that write at image.ptr()
/// image.publish("camera/front")?;
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct DeviceDraft {
    session: Arc<Session>,
    taken: Option<TakenOn>,
    gpu: Arc<Gpu>,
    range: DeviceRange,
    dtype: DType,
    shape: Dims<u64>,
    timestamp_ns: u64,
    details: Details,
    streams: Streams,
    /// True if there may be device work on the draft for which no thread has waited.
    worked: AtomicBool,
    /// True if work of a former draft with the same slot may still be pending in the stream in which this draft was created.
    inherits: bool,
}

impl DeviceDraft {
    pub(crate) fn new(session: &Arc<Session>, uuid: Uuid, stream: Option<OnStream>, spec: &TensorSpec) -> Result<Self> {
        let doing = "create a tensor on a device";
        session.check()?;
        let bytes = spec.bytes()?;
        let offer = offer(session, uuid, doing)?;
        let gpu = Gpu::find(uuid, doing)?;
        let mut streams = Streams::default();
        let mut key = ArenaKey { uuid, stream: 0 };
        let worked = AtomicBool::new(stream.is_some());
        let mut dropped = None;
        if let Some(stream) = stream {
            stream.check(&gpu, doing)?;
            if offer.allocator == tensorlend_layout::wire::Allocator::Arena {
                key.stream = stream.as_raw() as u64;
            }
            dropped = session.alloc().take_dropped(key, offer, bytes, &gpu, &stream);
            streams.add(stream);
        }
        let inherits = dropped.is_some();
        let taken = dropped.map_or_else(|| session.alloc().take_on(&**session, key, offer, bytes, doing), Ok)?;
        let (start, _) = taken.map.mapped(doing)?;
        let shape = Dims::new(as_u64(&spec.shape)).expect("checked with its bytes");
        // Row-major strides are stored as `None`.
        let plain = Dims::row_major(&shape);
        let strides = spec.strides.as_ref().and_then(|s| Dims::new(s)).filter(|s| **s != *plain);
        let details = Details { strides, byte_offset: spec.byte_offset as u64, metadata: Vec::new() };
        let range = DeviceRange { ptr: start + taken.offset, bytes };
        let (session, dtype) = (session.clone(), spec.dtype);
        let taken = Some(taken);
        Ok(Self { session, taken, gpu, range, dtype, shape, timestamp_ns: 0, details, streams, worked, inherits })
    }

    /// Returns the address of the draft's first byte on the device, a multiple of 512. The memory is uninitialized.
    pub fn ptr(&self) -> u64 {
        // Relaxed: the thread that publishes or drops the draft received the draft from this thread.
        self.worked.store(true, Ordering::Relaxed);
        self.range.ptr
    }

    /// Returns the length in bytes, including gaps between strided elements.
    pub fn nbytes(&self) -> usize {
        self.range.bytes as usize
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the sizes in elements.
    pub fn shape(&self) -> &[usize] {
        as_usize(&self.shape)
    }

    /// Returns the dtype, shape and memory layout.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec {
            dtype: self.dtype,
            shape: self.shape().to_vec(),
            strides: self.details.strides.as_ref().map(|strides| strides.to_vec()),
            byte_offset: self.details.byte_offset as usize,
        }
    }

    /// Returns the device's UUID, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.gpu.uuid
    }

    /// Returns the device's number in this process.
    pub fn device(&self) -> Device {
        self.gpu.local()
    }

    /// Sets metadata that readers receive with the tensor, in host memory: any bytes, 64 KiB at most.
    ///
    /// # Errors
    /// [`Error::Metadata`] for more than 64 KiB.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<&mut Self> {
        if metadata.len() > METADATA_MAX {
            return Err(Error::Metadata(metadata.len()));
        }
        self.details.metadata = metadata.to_vec();
        Ok(self)
    }

    /// Sets a timestamp that readers receive with the tensor, like [`crate::Draft::set_timestamp`].
    pub fn set_timestamp(&mut self, nanoseconds: u64) -> &mut Self {
        self.timestamp_ns = nanoseconds;
        self
    }

    /// Records a stream whose work writes the tensor. Publishing waits for that work, and the memory is not reused
    /// before the work is done. If any stream is recorded, the draft ignores work in other streams.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tensorlend::{Client, DType, Device};
    ///
    /// fn produce(client: &Client, stream: &Arc<cudarc::driver::CudaStream>) -> tensorlend::Result<()> {
    ///     let mut draft = client.create_on(Device::cuda(0), DType::F32, [1024])?;
    ///     draft.record_stream(stream)?;
    ///     // ... launch kernels in `stream` that write at draft.ptr() ...
    ///     draft.publish("weights")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Device`] for a stream of another context than the device's primary one, and for errors of the driver.
    pub fn record_stream(&mut self, stream: impl Into<OnStream>) -> Result<&mut Self> {
        let stream = stream.into();
        stream.check(&self.gpu, "record a stream")?;
        if self.inherits {
            self.order(&stream, "record a stream")?;
        }
        self.add(stream);
        Ok(self)
    }

    fn add(&mut self, stream: OnStream) {
        *self.worked.get_mut() = true;
        self.streams.add(stream);
    }

    /// Orders a stream after the draft's work in all other recorded streams, and records the stream. Does not block the
    /// caller.
    ///
    /// # Errors
    /// The errors of [`DeviceDraft::record_stream`].
    pub fn wait(&mut self, stream: impl Into<OnStream>) -> Result<&mut Self> {
        let stream = stream.into();
        self.order(&stream, "wait for the work on a draft")?;
        Ok(self)
    }

    fn order(&mut self, stream: &OnStream, doing: &str) -> Result<()> {
        self.session.check()?;
        stream.check(&self.gpu, doing)?;
        for other in self.streams.iter().filter(|other| other.as_raw() != stream.as_raw()) {
            let event = self.gpu.record(other, doing)?;
            self.gpu.order(stream, &event, doing)?;
            // Other code may record the event again: the stream waits for the state that the event had at the call
            // above.
            self.gpu.give_event(event);
        }
        self.add(stream.clone());
        Ok(())
    }

    /// Copies all elements from the host into the draft, in memory order. Blocks until the copy is complete. Does not
    /// wait for pending work in streams.
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Length`] for more or fewer elements;
    /// [`Error::Device`] for errors of the driver.
    pub fn copy_from_host<T: Element>(&mut self, elements: &[T]) -> Result<()> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { found: self.dtype, wanted: T::DTYPE });
        }
        self.copy_from_bytes(bytemuck::cast_slice(elements))
    }

    /// Copies all bytes from the host into the draft, like [`DeviceDraft::copy_from_host`].
    ///
    /// # Errors
    /// [`Error::Length`] for more or fewer bytes; [`Error::Device`] for errors of the driver.
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != self.range.bytes {
            let (found, given) = (self.range.bytes, bytes.len() as u64);
            return Err(Error::Length { name: "the draft".into(), found, given });
        }
        self.disinherit()?;
        crate::tensor::device::copies::copy_in(&self.gpu, self.range, bytes)
    }

    /// Waits for the work of the former draft with this slot, because the next operation is not in the draft's
    /// stream.
    fn disinherit(&mut self) -> Result<()> {
        if self.inherits {
            self.settle()?;
            self.inherits = false;
        }
        Ok(())
    }

    /// Copies all bytes from another place on the device into the draft, in memory order, as work of `stream`. Records the
    /// stream. Does not block.
    ///
    /// # Errors
    /// The errors of [`DeviceDraft::record_stream`]; [`Error::Device`] for errors of the driver.
    ///
    /// # Safety
    /// [`DeviceDraft::nbytes`] bytes from `from` on must be readable on the device, and must not be written, until the
    /// stream has finished the copy. It has, at the latest, when the draft is published or [`DeviceDraft::finish`] has
    /// returned.
    pub unsafe fn copy_from_ptr(&mut self, from: u64, stream: impl Into<OnStream>) -> Result<()> {
        let doing = "copy on a device";
        let stream = stream.into();
        self.order(&stream, doing)?;
        if self.range.bytes == 0 {
            return Ok(());
        }
        let context = self.gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        // SAFETY: the caller guarantees `from`. The draft's memory is not freed before the stream has finished the
        // copy.
        let copied = unsafe {
            tensorlend_cuda::copy::dtod_async(self.range.ptr, from, self.range.bytes as usize, stream.by_ref())
        };
        copied.map_err(trouble(doing))
    }

    /// Copies all bytes from the host into the draft, in memory order, as work of `stream`. Records the stream, and keeps
    /// `source` until the stream has finished the copy. Does not block if the pages of the bytes are locked. Otherwise the
    /// driver may first copy the bytes.
    pub(crate) fn copy_from_shared<S: Send + Sync + 'static>(
        &mut self,
        source: Arc<S>,
        bytes: impl FnOnce(&S) -> &[u8],
        stream: impl Into<OnStream>,
    ) -> Result<()> {
        let stream = stream.into();
        self.order(&stream, "copy to a device")?;
        let janitor = &self.session.lendings.janitor;
        crate::tensor::device::copies::copy_in_later(&self.gpu, janitor, self.range, source, bytes, &stream)
    }

    pub(crate) fn copy_from_device(&mut self, from: u64) -> Result<()> {
        self.disinherit()?;
        crate::tensor::device::copies::copy_on(&self.gpu, self.range, from)
    }

    /// Returns the elements as a slice of `cudarc`, for work in `stream`, and records the stream.
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Strided`] for a draft with strides or a byte
    /// offset; otherwise the errors of [`DeviceDraft::record_stream`].
    pub fn slice<T: Element>(&mut self, stream: &Arc<CudaStream>) -> Result<BorrowedSliceMut<'_, T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { found: self.dtype, wanted: T::DTYPE });
        }
        if self.details.strides.is_some() || self.details.byte_offset != 0 {
            return Err(Error::Strided);
        }
        self.record_stream(stream)?;
        Ok(BorrowedSliceMut::new(self.range, stream))
    }

    /// Blocks until the device work on the draft is done, as publishing does. If you then publish at once, publishing
    /// does not wait. It waits if you record another stream or ask for the address in between.
    ///
    /// # Errors
    /// [`Error::Device`] if the work failed.
    pub fn finish(&mut self) -> Result<&mut Self> {
        self.settle()?;
        Ok(self.at_rest())
    }

    /// Waits like [`DeviceDraft::finish`], for work in unknown streams: waits for all work in the device's primary
    /// context.
    ///
    /// # Errors
    /// [`Error::Device`] if any of that work failed.
    pub fn finish_all(&mut self) -> Result<&mut Self> {
        self.session.check()?;
        self.gpu.synchronize("wait for the work on a tensor")?;
        Ok(self.at_rest())
    }

    fn at_rest(&mut self) -> &mut Self {
        self.streams.take();
        *self.worked.get_mut() = false;
        self.inherits = false;
        self
    }

    /// Waits on the host for the work on the draft.
    pub(crate) fn settle(&self) -> Result<()> {
        let doing = "wait for the work on a tensor";
        self.session.check()?;
        if !self.worked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.streams.is_empty() {
            return self.gpu.synchronize(doing);
        }
        let context = self.gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        self.streams.iter().try_for_each(|stream| stream.by_ref().synchronize().map_err(trouble(doing)))
    }

    /// Blocks until the device work on the tensor is done, and publishes the tensor under a name: see
    /// [`crate::Draft::publish`].
    ///
    /// # Errors
    /// [`Error::Device`] if the work failed; otherwise the errors of [`crate::Draft::publish`]. On an error the draft
    /// is dropped.
    pub fn publish(self, name: &str) -> Result<Version> {
        self.publish_for(name, Lifetime::default())
    }

    /// Publishes like [`DeviceDraft::publish_for`]. No device work on the draft may be pending.
    pub(crate) fn publish_settled(mut self, name: &str, lifetime: Lifetime) -> Result<Version> {
        let value = self.hand_over(0, SLOT_NONE, false)?.value;
        self.session.names().publish(name, Publication { value, lifetime, keeps_lifetime: false })
    }

    /// Publishes like [`DeviceDraft::publish`], for a name with a lifetime: see [`crate::Draft::publish_for`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise the errors of [`DeviceDraft::publish`].
    pub fn publish_for(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        check_name(name)?;
        lifetime.ttl_ns()?;
        self.settle()?;
        self.publish_settled(name, lifetime)
    }

    /// Publishes the tensor under a name while the work on it is still pending in `stream`. This stream first waits for the
    /// work in all other recorded streams. Does not block the caller.
    ///
    /// Readers wait for the work on the host ([`crate::Client::get_device`]) or in a stream of theirs
    /// ([`crate::Client::get_device_early`]). If the producer is killed before the work is done, readers receive
    /// [`crate::DeviceTrouble::Unfinished`], and their streams go on.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tensorlend::{Client, DType, Device};
    ///
    /// fn produce(client: &Client, stream: &Arc<cudarc::driver::CudaStream>) -> tensorlend::Result<()> {
    ///     let draft = client.create_on(Device::cuda(0), DType::F32, [1024])?;
    ///     // ... launch kernels in `stream` that write at draft.ptr() ...
    ///     draft.publish_early("weights", stream)?; // returns at once
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// The errors of [`DeviceDraft::publish`].
    pub fn publish_early(mut self, name: &str, stream: impl Into<OnStream>) -> Result<Version> {
        let doing = "publish a tensor early";
        check_name(name)?;
        self.session.check()?;
        let stream = stream.into();
        self.order(&stream, doing)?;
        let (session, gpu) = (self.session.clone(), self.gpu.clone());
        let Some(record) = self.taken.as_ref().map(|taken| taken.record) else { return Err(Error::SessionEnded) };
        let sealed = self.hand_over(0, SLOT_NONE, true)?;
        let slot = sealed.value.slot();
        // Pin the slot: whatever happens to the name, the memory must not be reused before the work on it is done.
        session.alloc().pin(slot);
        let record = Box::into_raw(Box::new(record));
        // SAFETY: 1: the function below drops the box after the stream has called `settle`, or never. 2: it only stores.
        let queued = unsafe { gpu.call(&stream, settle, record.cast(), doing) };
        let settled = queued.or_else(|_| {
            // Without the function in the stream, wait for the work here.
            stream.by_ref().synchronize().map_err(trouble(doing))?;
            // SAFETY: the box is valid, and nothing else uses it.
            unsafe { settle(record.cast()) };
            Ok(())
        });
        let (after, record) = (session.clone(), record.expose_provenance());
        let then = move |done| {
            after.alloc().unpin(slot);
            if done {
                // SAFETY: the stream has called the function, so nothing uses the box any more. If the context is lost,
                // the box stays, because the driver does not say when it forgets a function.
                drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<OwnRecord>(record)) });
            }
        };
        match gpu.end_of(std::iter::once(&stream), doing) {
            End::Events(events) => {
                session.lendings.janitor.leave(Ending { gpu, events, then: Box::new(then), dropped: None });
            }
            End::Now => then(true),
            // The slot stays pinned, because the device may still write to it. The session stays, because the stream may
            // still call the function, which writes to the session's memory.
            End::Unknown => std::mem::forget(then),
        }
        if let Err(error) = settled {
            session.alloc().drop_slot(slot);
            return Err(error);
        }
        session.names().publish(name, sealed.value)
    }

    /// Seals the slot after the work on it is done, like [`crate::Draft::seal`].
    pub(crate) fn seal(&mut self, sequence: u64, next: SlotNo) -> Result<Sealed> {
        self.settle()?;
        self.seal_settled(sequence, next)
    }

    /// Seals like [`DeviceDraft::seal`]. No device work on the draft may be pending.
    pub(crate) fn seal_settled(&mut self, sequence: u64, next: SlotNo) -> Result<Sealed> {
        self.hand_over(sequence, next, false)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the slot and its generation.
    pub(crate) fn cell(&self) -> Result<Cell> {
        self.taken.as_ref().map(|taken| taken.value).ok_or(Error::SessionEnded)
    }

    /// Returns the known work on the draft: the device, the recorded streams, and whether there may be other work.
    pub(crate) fn work(&self) -> (&Arc<Gpu>, Vec<OnStream>, bool) {
        (&self.gpu, self.streams.iter().cloned().collect(), self.worked.load(Ordering::Relaxed))
    }

    fn head(&self) -> Head<'_> {
        Head {
            kind: SlotKind::Tensor,
            dtype: self.dtype,
            device: self.gpu.local(),
            shape: &self.shape,
            timestamp_ns: self.timestamp_ns,
            details: Some(&self.details),
        }
    }

    /// Writes the slot's record. Afterwards the draft does not free the slot any more.
    fn hand_over(&mut self, sequence: u64, next: SlotNo, early: bool) -> Result<Sealed> {
        self.session.check()?;
        let head = self.head();
        let extended = head.is_extended() || early;
        let next = if extended {
            let mut bytes = head.extension();
            if early {
                bytes.extend([0; EARLY_BYTES]);
            }
            extend(&self.session, &bytes, next)?
        } else {
            next
        };
        let taken = self.taken.take().expect("a draft has its slot until it is published");
        let extent = Extent { offset: taken.offset, bytes: taken.bytes };
        let mut info = self.head().info(taken.value, extent, sequence, next, extended);
        info.early = early;
        // SAFETY: the slot is handed out and the draft holds the session, so the record stays mapped (contract 1 of
        // `bytes.rs`).
        unsafe { taken.record.get() }.write(&info);
        if next != SLOT_NONE {
            self.session.alloc().chain(taken.value.slot(), next);
        }
        Ok(Sealed { value: taken.value, summary: HeaderSummary::default() })
    }
}

/// Clears the mark of an early tensor. A stream calls this function after the work on the tensor.
unsafe extern "C" fn settle(record: *mut c_void) {
    // SAFETY: `publish_early` keeps the box until its stream has called this function. The slot is pinned, so its segment
    // and records stay mapped (contract 1 of `bytes.rs`).
    unsafe { (*record.cast::<OwnRecord>()).get() }.settle();
}

impl Drop for DeviceDraft {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else { return };
        if self.session.is_forked() {
            return;
        }
        if !*self.worked.get_mut() {
            self.session.alloc().drop_slot(taken.value.slot());
            return;
        }
        let (streams, slot) = (self.streams.take(), taken.value.slot());
        match self.gpu.end_of(streams.iter(), "drop a draft") {
            End::Events(events) => {
                let session = self.session.clone();
                // The segment stays mapped until this function runs, because the slot is not free before.
                let then = Box::new(move |_| session.alloc().drop_slot(slot));
                // If the slot is pinned, the holder of the pin may still read it.
                let pinned = self.session.alloc().has_pins();
                let one = streams.only().filter(|_| !pinned);
                let dropped = one.map(|stream| Dropped { taken, stream: stream.as_raw() });
                self.session.lendings.janitor.leave(Ending { gpu: self.gpu.clone(), events, then, dropped });
            }
            End::Now => self.session.alloc().drop_slot(slot),
            End::Unknown => {}
        }
    }
}

impl std::fmt::Debug for DeviceDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceDraft")
            .field("device", &self.gpu.uuid)
            .field("dtype", &self.dtype)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}

impl Sendable for DeviceDraft {}

impl Message for DeviceDraft {
    fn session(&self, _: Inside) -> &Arc<Session> {
        &self.session
    }
    fn takes_memory(&self, _: Inside) -> bool {
        self.head().is_extended()
    }
    fn ready(&self, _: Inside) -> Result<()> {
        self.settle()
    }
    fn seal_for(&mut self, sequence: u64, _: Inside) -> Result<Sealed> {
        self.seal(sequence, SLOT_NONE)
    }
}
