//! Drafts on devices: tensors that a producer is writing in device memory.
#![allow(unsafe_code)]

use super::{copies, offer};
use crate::alloc::heap::arenas::ArenaKey;
use crate::error::{Error, Result, check_name};
use crate::gpu::stream::{OnStream, Streams};
use crate::gpu::{End, Gpu, trouble};
use crate::names::version::Version;
use crate::segment::bytes::OwnRecord;
use crate::segment::janitor::{Dropped, Ending};
use crate::segment::map::DeviceRange;
use crate::segment::map::TakenOn;
use crate::session::Session;
use crate::tensor::device::slice::BorrowedSliceMut;
use crate::tensor::dims::{Dims, as_u64};
use crate::tensor::draft::{Details, Draft, Extent, Memory, SLOT_MISSING};
use crate::tensor::element::Element;
use crate::tensor::spec::TensorSpec;
use cudarc::driver::CudaStream;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{Device, Uuid, size};

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
pub type DeviceDraft = Draft<OnDevice>;

/// Memory of a draft on a device.
pub struct OnDevice {
    /// `None` only during the drop.
    taken: Option<TakenOn>,
    gpu: Arc<Gpu>,
    range: DeviceRange,
    streams: Streams,
    /// True if there may be device work on the draft for which no thread has waited.
    worked: AtomicBool,
    /// True if work of a former draft with the same slot may still be pending in the stream in which this draft was created.
    inherits: bool,
}

impl DeviceDraft {
    pub(crate) fn on_device(
        session: &Arc<Session>,
        uuid: Uuid,
        stream: Option<OnStream>,
        spec: &TensorSpec,
    ) -> Result<Self> {
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
        let range = DeviceRange { ptr: start + taken.offset, bytes };
        let details = Details::of(spec, &shape);
        let memory = OnDevice { taken: Some(taken), gpu, range, streams, worked, inherits };
        Ok(Self::of(session, spec.dtype, shape, details, memory))
    }

    /// Returns the address of the draft's first byte on the device, a multiple of 512. The memory is uninitialized.
    pub fn ptr(&self) -> u64 {
        // Relaxed: the thread that publishes or drops the draft received the draft from this thread.
        self.memory.worked.store(true, Ordering::Relaxed);
        self.memory.range.ptr
    }

    /// Returns the length in bytes, including gaps between strided elements.
    pub fn nbytes(&self) -> usize {
        size::index(self.memory.range.bytes)
    }

    /// Returns the device's UUID, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.memory.gpu.uuid
    }

    /// Returns the device's number in this process.
    pub fn device(&self) -> Device {
        self.memory.gpu.local()
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
        stream.check(&self.memory.gpu, "record a stream")?;
        if self.memory.inherits {
            self.order(&stream, "record a stream")?;
        }
        self.add(stream);
        Ok(self)
    }

    fn add(&mut self, stream: OnStream) {
        *self.memory.worked.get_mut() = true;
        self.memory.streams.add(stream);
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
        self.session().check()?;
        let gpu = &self.memory.gpu;
        stream.check(gpu, doing)?;
        for other in self.memory.streams.iter().filter(|other| other.as_raw() != stream.as_raw()) {
            let event = gpu.record(other, doing)?;
            gpu.order(stream, &event, doing)?;
            // Other code may record the event again: the stream waits for the state that the event had at the call
            // above.
            gpu.give_event(event);
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
        self.check_dtype::<T>()?;
        self.copy_from_bytes(bytemuck::cast_slice(elements))
    }

    /// Copies all bytes from the host into the draft, like [`DeviceDraft::copy_from_host`].
    ///
    /// # Errors
    /// [`Error::Length`] for more or fewer bytes; [`Error::Device`] for errors of the driver.
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 != self.memory.range.bytes {
            let (found, given) = (self.memory.range.bytes, bytes.len() as u64);
            return Err(Error::Length { name: "the draft".into(), found, given });
        }
        self.disinherit()?;
        copies::copy_in(&self.memory.gpu, self.memory.range, bytes)
    }

    /// Waits for the work of the former draft with this slot, because the next operation is not in the draft's
    /// stream.
    fn disinherit(&mut self) -> Result<()> {
        if self.memory.inherits {
            OnDevice::settle(self)?;
            self.memory.inherits = false;
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
        let DeviceRange { ptr, bytes } = self.memory.range;
        if bytes == 0 {
            return Ok(());
        }
        let context = self.memory.gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        // SAFETY: the caller guarantees `from`. The draft's memory is not freed before the stream has finished the
        // copy.
        let copied = unsafe { tensorlend_cuda::copy::dtod_async(ptr, from, size::index(bytes), stream.by_ref()) };
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
        let (janitor, OnDevice { gpu, range, .. }) = (&self.session().lendings.janitor, &self.memory);
        copies::copy_in_later(gpu, janitor, *range, source, bytes, &stream)
    }

    pub(crate) fn copy_from_device(&mut self, from: u64) -> Result<()> {
        self.disinherit()?;
        copies::copy_on(&self.memory.gpu, self.memory.range, from)
    }

    /// Returns the elements as a slice of `cudarc`, for work in `stream`, and records the stream.
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Strided`] for a draft with strides or a byte
    /// offset; otherwise the errors of [`DeviceDraft::record_stream`].
    pub fn slice<T: Element>(&mut self, stream: &Arc<CudaStream>) -> Result<BorrowedSliceMut<'_, T>> {
        self.check_dtype::<T>()?;
        if self.strides().is_some() || self.byte_offset() != 0 {
            return Err(Error::Strided);
        }
        self.record_stream(stream)?;
        Ok(BorrowedSliceMut::new(self.memory.range, stream))
    }

    /// Blocks until the device work on the draft is done, as publishing does. If you then publish at once, publishing
    /// does not wait. It waits if you record another stream or ask for the address in between.
    ///
    /// # Errors
    /// [`Error::Device`] if the work failed.
    pub fn finish(&mut self) -> Result<&mut Self> {
        OnDevice::settle(self)?;
        Ok(self.at_rest())
    }

    /// Waits like [`DeviceDraft::finish`], for work in unknown streams: waits for all work in the device's primary
    /// context.
    ///
    /// # Errors
    /// [`Error::Device`] if any of that work failed.
    pub fn finish_all(&mut self) -> Result<&mut Self> {
        self.session().check()?;
        self.memory.gpu.synchronize("wait for the work on a tensor")?;
        Ok(self.at_rest())
    }

    fn at_rest(&mut self) -> &mut Self {
        self.memory.streams.take();
        *self.memory.worked.get_mut() = false;
        self.memory.inherits = false;
        self
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
        self.session().check()?;
        let stream = stream.into();
        self.order(&stream, doing)?;
        let (session, gpu) = (self.session().clone(), self.memory.gpu.clone());
        let (value, record, _) = self.memory.slot();
        let slot = value.slot();
        self.seal_any(0, SLOT_NONE, true)?;
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
        session.names().publish(name, &Sealed::from(value).into())
    }

    /// Returns the known work on the draft: the device, the recorded streams, and whether there may be other work.
    pub(crate) fn work(&self) -> (&Arc<Gpu>, Vec<OnStream>, bool) {
        (&self.memory.gpu, self.memory.streams.iter().cloned().collect(), self.memory.worked.load(Ordering::Relaxed))
    }
}

/// Clears the mark of an early tensor. A stream calls this function after the work on the tensor.
unsafe extern "C" fn settle(record: *mut c_void) {
    // SAFETY: `publish_early` keeps the box until its stream has called this function. The slot is pinned, so its segment
    // and records stay mapped (contract 1 of `bytes.rs`).
    unsafe { (*record.cast::<OwnRecord>()).get() }.settle();
}

impl Memory for OnDevice {
    fn device(&self) -> Device {
        self.gpu.local()
    }

    fn slot(&self) -> (Cell, OwnRecord, Extent) {
        let taken = self.taken.as_ref().expect(SLOT_MISSING);
        (taken.value, taken.record, Extent { offset: taken.offset, bytes: taken.bytes })
    }

    fn settle(draft: &DeviceDraft) -> Result<()> {
        let doing = "wait for the work on a tensor";
        draft.session().check()?;
        let OnDevice { gpu, streams, worked, .. } = &draft.memory;
        if !worked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if streams.is_empty() {
            return gpu.synchronize(doing);
        }
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        streams.iter().try_for_each(|stream| stream.by_ref().synchronize().map_err(trouble(doing)))
    }

    fn seal(draft: &mut DeviceDraft, sequence: u64, next: SlotNo) -> Result<Sealed> {
        Self::settle(draft)?;
        draft.seal_any(sequence, next, false)
    }

    fn free(&mut self, session: &Arc<Session>) {
        let Some(taken) = self.taken.take() else { return };
        if !*self.worked.get_mut() {
            session.alloc().drop_slot(taken.value.slot());
            return;
        }
        let (streams, slot) = (self.streams.take(), taken.value.slot());
        match self.gpu.end_of(streams.iter(), "drop a draft") {
            End::Events(events) => {
                let after = session.clone();
                // The segment stays mapped until this function runs, because the slot is not free before.
                let then = Box::new(move |_| after.alloc().drop_slot(slot));
                // If the slot is pinned, the holder of the pin may still read it.
                let pinned = session.alloc().has_pins();
                let one = streams.only().filter(|_| !pinned);
                let dropped = one.map(|stream| Dropped { taken, stream: stream.as_raw() });
                session.lendings.janitor.leave(Ending { gpu: self.gpu.clone(), events, then, dropped });
            }
            End::Now => session.alloc().drop_slot(slot),
            End::Unknown => {}
        }
    }
}
