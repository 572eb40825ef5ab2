//! Drafts: tensors that a producer is writing.
#![allow(unsafe_code)]

mod seal;

use crate::alloc::taken::Taken;
use crate::error::{Error, Result, check_name};
use crate::names::lifetime::Lifetime;
use crate::names::publish::Publication;
use crate::names::version::Version;
use crate::reused;
use crate::segment::bytes::OwnRecord;
use crate::session::Session;
use crate::tensor::dims::{Dims, as_u64, as_usize};
use crate::tensor::element::Element;
use crate::tensor::spec::TensorSpec;
use std::sync::Arc;
use tensorlend_layout::directory::key_word;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::tensor::{METADATA_INLINE, METADATA_MAX, NDIM_INLINE, Sealed, SlotInfo, SlotKind, check_extent};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{DType, Device, size};

/// A tensor that its producer is writing, in the shared memory in which readers will read it. No other client sees
/// the tensor before [`Draft::publish`]. Dropping the draft frees the memory.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::DType;
///
/// let mut draft = client.create(DType::F32, [2, 3])?;
/// assert_eq!((draft.dtype(), draft.shape()), (DType::F32, &[2, 3][..]));
/// assert_eq!(draft.spec().byte_offset, 0);
/// draft.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// draft.publish("weights")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `M` is the kind of memory. Without it, the draft is in host memory. With the feature `cuda`, `DeviceDraft` is a draft
/// on a device.
pub struct Draft<M: Memory = Host> {
    session: Arc<Session>,
    /// The slot, and its state.
    pub(crate) memory: M,
    /// True once the slot belongs to the code that publishes it. The box stays until the draft is dropped, so that freeing it
    /// delays no message.
    is_sealed: bool,
    kind: SlotKind,
    dtype: DType,
    shape: Dims<u64>,
    timestamp_ns: u64,
    /// Boxed, because few drafts have details. So most drafts are small to move.
    details: Option<Box<Details>>,
}

/// A kind of memory in which drafts are: the slot, and its state.
pub trait Memory: Sized {
    /// Returns the location of the slot's bytes.
    fn device(&self) -> Device;
    /// Returns the slot and its generation, its record, and the position of its bytes in its segment.
    fn slot(&self) -> (Cell, OwnRecord, Extent);
    /// Waits on the host for pending device work on the draft.
    #[inline]
    fn settle(_: &Draft<Self>) -> Result<()> {
        Ok(())
    }
    /// Writes the slot's record with `sequence` and `next`. Then the slot belongs to the caller, ready to be published, and
    /// the draft does not free it any more.
    fn seal(draft: &mut Draft<Self>, sequence: u64, next: SlotNo) -> Result<Sealed>;
    /// Seals like [`Memory::seal`], for a stream: if it is a small tensor, its entry has its bytes in place of its summary.
    #[inline]
    fn seal_entry(draft: &mut Draft<Self>, sequence: u64) -> Result<Sealed> {
        Self::seal(draft, sequence, SLOT_NONE)
    }
    /// Frees the slot of a draft that is dropped.
    fn free(&mut self, session: &Arc<Session>);
}

/// Host memory.
pub struct Host {
    /// Boxed, so that a dropped draft passes its slot to the next draft as a pointer.
    taken: Option<Box<Taken>>,
}

impl Drop for Host {
    #[inline]
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            reused::keep(taken);
        }
    }
}

impl Host {
    fn taken(&self) -> &Taken {
        self.taken.as_ref().expect(SLOT_MISSING)
    }
}

pub const SLOT_MISSING: &str = "a draft has its slot until it is published";

// Up to this size, moving a draft is a few instructions; a larger one is moved by a call.
const _: () = assert!(size_of::<Result<Draft>>() <= 128);

/// Rare properties of a draft.
#[derive(Default)]
pub struct Details {
    /// The strides in elements. `None`: row-major.
    pub strides: Option<Dims<i64>>,
    pub byte_offset: u64,
    pub metadata: Vec<u8>,
}

impl Details {
    /// Returns the strides and the byte offset of a tensor with this shape. Row-major strides are stored as `None`.
    pub fn of(spec: &TensorSpec, shape: &Dims<u64>) -> Option<Box<Self>> {
        let plain = Dims::row_major(shape);
        let strides = spec.strides.as_ref().and_then(|s| Dims::new(s)).filter(|s| **s != *plain);
        let byte_offset = spec.byte_offset as u64;
        let has_details = strides.is_some() || byte_offset != 0;
        has_details.then(|| Box::new(Self { strides, byte_offset, metadata: Vec::new() }))
    }
}

/// The position of a slot's bytes in its segment.
#[derive(Clone, Copy)]
pub struct Extent {
    pub offset: u64,
    pub bytes: u64,
}

/// The content of a draft's record, except the location of its bytes.
pub struct Head<'d> {
    pub kind: SlotKind,
    pub dtype: DType,
    pub device: Device,
    pub shape: &'d Dims<u64>,
    pub timestamp_ns: u64,
    pub details: Option<&'d Details>,
}

impl Head<'_> {
    /// Returns whether the record is too small for this content.
    #[inline]
    pub fn is_extended(&self) -> bool {
        self.shape.len() > NDIM_INLINE
            || self.details.is_some_and(|d| d.strides.is_some() || d.metadata.len() > METADATA_INLINE)
    }

    /// Returns the extension's bytes: all sizes, then the strides, then the metadata. An extended record does not
    /// contain them.
    #[cold]
    pub fn extension(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.shape.iter().flat_map(|d| d.to_le_bytes()).collect();
        if let Some(details) = self.details {
            bytes.extend(details.strides.iter().flat_map(|s| s.iter()).flat_map(|s| s.to_le_bytes()));
            bytes.extend(&details.metadata);
        }
        bytes
    }

    /// Returns the record of this draft in a slot with this extent.
    #[inline]
    pub fn info(&self, value: Cell, extent: Extent, sequence: u64, next: SlotNo, extended: bool) -> SlotInfo {
        let mut info = SlotInfo {
            generation: value.generation(),
            kind: self.kind,
            dtype: self.dtype,
            device: self.device,
            ndim: self.shape.ndim(),
            strided: false,
            extended,
            early: false,
            metadata_bytes: 0,
            next,
            data_offset: extent.offset,
            data_bytes: extent.bytes,
            byte_offset: 0,
            timestamp_ns: self.timestamp_ns,
            sequence,
            dims: [0; NDIM_INLINE],
            metadata: [0; METADATA_INLINE / 8],
        };
        if !extended {
            for (to, from) in info.dims.iter_mut().zip(&**self.shape) {
                *to = *from;
            }
        }
        if let Some(details) = self.details {
            info.strided = details.strides.is_some();
            info.byte_offset = details.byte_offset;
            info.metadata_bytes = size::count(details.metadata.len());
            if !extended {
                for (word, bytes) in info.metadata.iter_mut().zip(details.metadata.chunks(8)) {
                    *word = key_word(bytes);
                }
            }
        }
        info
    }
}

impl<M: Memory> Draft<M> {
    /// Returns a draft of a tensor that fills this memory.
    pub(crate) fn of(
        session: &Arc<Session>,
        dtype: DType,
        shape: Dims<u64>,
        details: Option<Box<Details>>,
        memory: M,
    ) -> Self {
        let (session, kind) = (session.clone(), SlotKind::Tensor);
        Self { session, memory, is_sealed: false, kind, dtype, shape, timestamp_ns: 0, details }
    }

    fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    #[inline]
    fn head(&self) -> Head<'_> {
        Head {
            kind: self.kind,
            dtype: self.dtype,
            device: self.memory.device(),
            shape: &self.shape,
            timestamp_ns: self.timestamp_ns,
            details: self.details.as_deref(),
        }
    }

    pub(crate) fn strides(&self) -> Option<&Dims<i64>> {
        self.details.as_ref()?.strides.as_ref()
    }

    pub(crate) fn byte_offset(&self) -> u64 {
        self.details.as_ref().map_or(0, |details| details.byte_offset)
    }

    /// Returns the dtype, shape and memory layout.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec {
            dtype: self.dtype,
            shape: self.shape().to_vec(),
            strides: self.strides().map(|strides| strides.to_vec()),
            byte_offset: size::index(self.byte_offset()),
        }
    }

    /// Returns the sizes in elements.
    pub fn shape(&self) -> &[usize] {
        as_usize(&self.shape)
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sets metadata that readers receive with the tensor: any bytes, 64 KiB at most. Up to 32 bytes cost nothing.
    /// More bytes need a slot of their own, in host memory.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U8, [480, 640, 3])?;
    /// draft.set_metadata(br#"{"encoding": "rgb8"}"#)?;
    /// draft.publish("image")?;
    /// assert_eq!(client.get("image")?.metadata(), br#"{"encoding": "rgb8"}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Metadata`] for more than 64 KiB.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<&mut Self> {
        if metadata.len() > METADATA_MAX {
            return Err(Error::Metadata(metadata.len()));
        }
        self.details().metadata = metadata.to_vec();
        Ok(self)
    }

    /// Sets a timestamp that readers receive with the tensor: nanoseconds since 1970, or on any clock on which producer
    /// and readers agree. Default: 0.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::SystemTime;
    ///
    /// let mut draft = client.create(tensorlend::DType::U8, [480, 640, 3])?;
    /// let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    /// draft.set_timestamp(now);
    /// draft.publish("image")?;
    /// assert_eq!(client.get("image")?.timestamp(), now);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_timestamp(&mut self, nanoseconds: u64) -> &mut Self {
        self.timestamp_ns = nanoseconds;
        self
    }

    /// Publishes the tensor under a name. From now on every client of the namespace can get it, and new readers
    /// cannot get the name's former value any more. Leases on the former value stay valid.
    ///
    /// Overwriting a name of this client, or publishing a new name, does not wait for the daemon. Overwriting a name of
    /// another client blocks for a round trip to the daemon. A draft on a device first waits on the host for the device
    /// work on it.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U8, [3])?;
    /// draft.bytes_mut().copy_from_slice(&[1, 2, 3]);
    /// let version = draft.publish("numbers")?;
    /// assert_eq!(client.get("numbers")?.version(), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Refused`] if a limit of the daemon, the namespace or the user is reached, or if this
    /// client has no right to write; [`Error::Disconnected`]; [`Error::Device`] if the device work failed.
    ///
    /// On an error, the draft is dropped and its memory freed. There is one exception: if the daemon hung up before
    /// it responded, the memory stays in use, because the name may refer to it.
    #[inline]
    pub fn publish(self, name: &str) -> Result<Version> {
        self.publish_as(name, Lifetime::default(), false)
    }

    /// Publishes like [`Draft::publish`], for a name that ends after a time, or with this client's session. Each
    /// publication, overwrite and deletion of such a name blocks for a round trip to the daemon, which has the clock.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::{DType, Lifetime};
    ///
    /// let draft = client.create(DType::F32, [2, 3])?;
    /// draft.publish_for("goal", Lifetime::ttl(Duration::from_secs(600)))?;
    /// let left = client.info("goal")?.lifetime.ttl.unwrap();
    /// assert!(left <= Duration::from_secs(600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise the errors of [`Draft::publish`].
    pub fn publish_for(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        self.publish_as(name, lifetime, false)
    }

    /// Publishes like [`Draft::publish_for`]. If the name belongs to this client, overwrites it without waiting for the
    /// daemon, and the name keeps the time that is left of its lifetime.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::{DType, Lifetime};
    ///
    /// client.create(DType::U8, [3])?.publish_for("box", Lifetime::ttl(Duration::from_secs(600)))?;
    /// client.create(DType::U8, [3])?.publish_within("box", Lifetime::ttl(Duration::from_secs(900)))?;
    /// let left = client.info("box")?.lifetime.ttl.unwrap();
    /// assert!(left <= Duration::from_secs(600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Draft::publish_for`].
    #[doc(hidden)]
    pub fn publish_within(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        self.publish_as(name, lifetime, true)
    }

    #[inline]
    fn publish_as(mut self, name: &str, lifetime: Lifetime, keeps_lifetime: bool) -> Result<Version> {
        check_name(name)?;
        lifetime.ttl_ns()?;
        let sealed = self.seal(0, SLOT_NONE)?;
        tensorlend_layout::crash_point!("draft: sealed");
        self.session.names().publish(name, &Publication { sealed, lifetime, keeps_lifetime })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the slot and its generation.
    pub(crate) fn cell(&self) -> Cell {
        self.memory.slot().0
    }

    /// Checks that the elements have this type.
    pub(crate) fn check_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype { Ok(()) } else { Err(Error::DType { found: self.dtype, wanted: T::DTYPE }) }
    }

    /// Returns whether the record is too small for the draft's description.
    #[inline]
    pub(crate) fn is_extended(&self) -> bool {
        self.head().is_extended()
    }
}

impl Draft {
    pub(crate) fn new(session: &Arc<Session>, spec: &TensorSpec) -> Result<Self> {
        let bytes = spec.bytes()?;
        let shape = Dims::new(as_u64(&spec.shape)).expect("checked with its bytes");
        let details = Details::of(spec, &shape);
        let mut draft = Self::with(session, spec.dtype, shape, bytes)?;
        draft.details = details;
        Ok(draft)
    }

    /// Returns a draft of a row-major tensor.
    #[inline]
    pub(crate) fn row_major(session: &Arc<Session>, dtype: DType, shape: &[u64]) -> Result<Self> {
        let bytes = check_extent(dtype, shape, None, 0, i64::MAX as u64).map(|n| n * dtype.item_bytes() as u64);
        match (bytes, Dims::new(shape)) {
            (Ok(bytes), Some(shape)) => Self::with(session, dtype, shape, bytes),
            // Call `Self::new`, which returns the detailed error.
            _ => Self::new(session, &TensorSpec::new(dtype, shape)),
        }
    }

    /// Returns a draft of a row-major tensor without a slot. The caller must give it one before the program has it.
    pub(crate) fn without_slot(session: &Arc<Session>, dtype: DType, shape: Dims<u64>) -> Self {
        Self::of(session, dtype, shape, None, Host { taken: None })
    }

    /// Gives a slot to a draft without one.
    #[inline]
    pub(crate) fn give_slot(&mut self, taken: Box<Taken>) {
        debug_assert!(self.memory.taken.is_none());
        self.memory.taken = Some(taken);
    }

    #[inline]
    fn with(session: &Arc<Session>, dtype: DType, shape: Dims<u64>, bytes: u64) -> Result<Self> {
        let mut draft = Self::without_slot(session, dtype, shape);
        draft.give_slot(session.take(bytes)?);
        Ok(draft)
    }

    /// Returns a draft of a dataset's index.
    pub(crate) fn index(session: &Arc<Session>, bytes: &[u8]) -> Result<Self> {
        let mut draft = Self::row_major(session, DType::U8, &[bytes.len() as u64])?;
        draft.kind = SlotKind::Dataset;
        draft.bytes_mut().copy_from_slice(bytes);
        Ok(draft)
    }

    /// Returns all bytes of the draft, for writing. They are uninitialized: they contain the data of a former tensor. They
    /// are aligned to 64 bytes. Drafts of at least 4096 bytes are aligned to 4096 bytes.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U16, [3])?;
    /// draft.bytes_mut().copy_from_slice(&[1, 0, 2, 0, 3, 0]); // little endian
    /// assert_eq!(draft.as_mut_slice::<u16>()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics in the child of a fork, because the draft belongs to the parent.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.session.is_forked(), "a draft belongs to the process that made it: create one in the child");
        debug_assert!(!self.is_sealed);
        let taken = self.memory.taken.as_mut().expect(SLOT_MISSING);
        // SAFETY: contract 1 and 3: the heap handed the slot out to this draft alone, which keeps the session, and the
        // draft is not published while the borrow lives.
        unsafe { taken.bytes.write() }
    }

    /// Copies all bytes into the draft, in memory order. For large tensors, this is faster than a plain copy.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U16, [3])?;
    /// draft.copy_from(&[1, 0, 2, 0, 3, 0])?; // little endian
    /// assert!(draft.copy_from(&[1, 0]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] if `bytes` is longer or shorter than [`Draft::bytes_mut`].
    ///
    /// # Panics
    /// Panics in the child of a fork, like [`Draft::bytes_mut`].
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<()> {
        let own = self.bytes_mut();
        if own.len() != bytes.len() {
            let (found, given) = (own.len() as u64, bytes.len() as u64);
            return Err(Error::Length { name: "the draft".into(), found, given });
        }
        crate::segment::copy::into_shared(own, bytes);
        Ok(())
    }

    /// Returns the elements in memory order, for writing. This is C order, unless the draft has strides. With strides, the
    /// slice contains all elements from the first byte on, including gaps.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::F32, [2, 3])?;
    /// draft.as_mut_slice::<f32>()?.fill(0.5);
    /// assert!(draft.as_mut_slice::<f64>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Strided`] if element 0 is not at the draft's
    /// first byte.
    ///
    /// # Panics
    /// Panics in the child of a fork, like [`Draft::bytes_mut`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_dtype::<T>()?;
        if self.strides().is_none() && self.byte_offset() != 0 {
            return Err(Error::Strided);
        }
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// Returns an array view of the draft's shape, for writing. Feature `ndarray`.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::F32, [2, 3])?;
    /// draft.ndarray_mut::<f32>()?[[1, 2]] = 6.0;
    /// draft.publish("weights")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the draft has another element type; [`Error::Strided`] if it has strides or a byte offset
    /// of its own.
    ///
    /// # Panics
    /// Panics in the child of a fork, like [`Draft::bytes_mut`].
    #[cfg(feature = "ndarray")]
    pub fn ndarray_mut<T: Element>(&mut self) -> Result<ndarray::ArrayViewMutD<'_, T>> {
        if self.strides().is_some() {
            return Err(Error::Strided);
        }
        let shape = self.shape().to_vec();
        let elements = self.as_mut_slice::<T>()?;
        let count = elements.len();
        ndarray::ArrayViewMutD::from_shape(&shape[..], elements).map_err(|cause| {
            Error::Argument(format!(
                "ndarray refuses {count} elements in the shape {shape:?}: {cause}: use as_mut_slice"
            ))
        })
    }
}

impl<M: Memory> Drop for Draft<M> {
    fn drop(&mut self) {
        if !self.is_sealed && !self.session.is_forked() {
            self.memory.free(&self.session);
        }
    }
}

impl<M: Memory> std::fmt::Debug for Draft<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft")
            .field("device", &self.memory.device())
            .field("dtype", &self.dtype)
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
