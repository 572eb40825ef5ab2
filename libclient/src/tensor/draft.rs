//! A tensor that is being written.
#![allow(unsafe_code)]

use crate::alloc::heap::Taken;
use crate::error::{Error, Result, check_name};
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use crate::session::Session;
use crate::tensor::dims::Dims;
use crate::tensor::element::Element;
use std::sync::Arc;
use tensorlend_layout::directory::key_word;
use tensorlend_layout::stream::Brief;
use tensorlend_layout::tensor::{
    BadTensor, METADATA_INLINE, METADATA_MAX, NDIM_INLINE, SlotInfo, SlotKind, check_extent,
};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{DType, Device};

/// What a tensor is to be.
///
/// ```
/// use tensorlend::{DType, TensorSpec};
///
/// let spec = TensorSpec::new(DType::F32, &[2, 3]);
/// assert_eq!(spec.bytes()?, 24);
/// // The rows in reverse: index 0 lies where the second row begins.
/// let flipped = TensorSpec { strides: Some(vec![-3, 1]), byte_offset: 12, ..spec };
/// assert_eq!(flipped.bytes()?, 24);
/// # Ok::<(), tensorlend::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Sizes, in elements: 0 to 16 dimensions.
    pub shape: Vec<u64>,
    /// Strides, in elements; `None`: row-major. A stride may be negative if `byte_offset` leaves room for it.
    pub strides: Option<Vec<i64>>,
    /// Where the element with index 0 lies, in bytes from the first byte on.
    pub byte_offset: u64,
}

impl TensorSpec {
    /// A row-major tensor with these sizes, in elements.
    pub fn new(dtype: DType, shape: &[u64]) -> Self {
        Self { dtype, shape: shape.to_vec(), strides: None, byte_offset: 0 }
    }

    /// Bytes that the tensor takes, from the first one to the end of its last element.
    ///
    /// # Errors
    /// [`Error::Tensor`] for more than 16 dimensions, strides of another number, more than 2^63 bytes, elements before
    /// the first byte, or a byte offset that is no multiple of the element's bytes.
    pub fn bytes(&self) -> Result<u64> {
        let fail = |cause| {
            let strides = self.strides.as_ref().filter(|_| cause == BadTensor::Strides);
            let strides = strides.map_or_else(String::new, |strides| format!(" with strides {strides:?}"));
            Error::Tensor { what: format!("tensor of {} {:?}{strides}", self.dtype, self.shape), cause }
        };
        let item = self.dtype.item_bytes() as u64;
        let elements = check_extent(self.dtype, &self.shape, None, 0, i64::MAX as u64).map_err(fail)?;
        let Some(strides) = &self.strides else {
            let bytes = (elements * item).checked_add(self.byte_offset).ok_or(BadTensor::Overflow).map_err(fail)?;
            check_extent(self.dtype, &self.shape, None, self.byte_offset, bytes).map_err(fail)?;
            return Ok(bytes);
        };
        if elements == 0 {
            check_extent(self.dtype, &self.shape, Some(strides), self.byte_offset, self.byte_offset).map_err(fail)?;
            return Ok(self.byte_offset);
        }
        let reach = self
            .shape
            .iter()
            .zip(strides)
            .map(|(&dim, &stride)| i128::from(stride).max(0) * (i128::from(dim) - 1))
            .sum::<i128>();
        let end = (reach + 1) * i128::from(item) + i128::from(self.byte_offset);
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        check_extent(self.dtype, &self.shape, Some(strides), self.byte_offset, end).map_err(fail)?;
        Ok(end)
    }
}

/// A tensor that is being written, in the shared memory where its readers will find it. Nobody else sees it before
/// [`Draft::publish`]; dropping it gives the memory back.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::DType;
///
/// let mut draft = client.create(DType::F32, &[2, 3])?;
/// assert_eq!((draft.dtype(), draft.shape()), (DType::F32, &[2, 3][..]));
/// assert_eq!(draft.spec().byte_offset, 0);
/// draft.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// draft.publish("weights")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Draft {
    session: Arc<Session>,
    /// Elsewhere, so that a draft that is dropped and the next one hand on a pointer.
    taken: Option<Box<Taken>>,
    kind: SlotKind,
    dtype: DType,
    shape: Dims<u64>,
    timestamp_ns: u64,
    /// What few drafts have: elsewhere, so that those of most are small to move.
    details: Option<Box<Details>>,
}

// As long as this, moving a draft is a few instructions; a longer one is moved by a call.
const _: () = assert!(size_of::<Result<Draft>>() <= 128);

/// A slot that is ready to be published.
pub struct Sealed {
    /// Slot and generation.
    pub value: Cell,
    /// What a stream's entry says of it.
    pub brief: Brief,
}

/// What few drafts have.
#[derive(Default)]
pub struct Details {
    /// `None`: row-major.
    pub strides: Option<Dims<i64>>,
    pub byte_offset: u64,
    pub metadata: Vec<u8>,
}

/// What a draft's record says, besides where its bytes are.
pub struct Head<'d> {
    pub kind: SlotKind,
    pub dtype: DType,
    pub device: Device,
    pub shape: &'d Dims<u64>,
    pub timestamp_ns: u64,
    pub details: Option<&'d Details>,
}

impl Head<'_> {
    /// Whether there is more to say than fits into the record.
    #[inline]
    pub fn is_extended(&self) -> bool {
        self.shape.len() > NDIM_INLINE
            || self.details.is_some_and(|d| d.strides.is_some() || d.metadata.len() > METADATA_INLINE)
    }

    /// What does not fit into the record.
    #[cold]
    pub fn extension(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.shape.iter().flat_map(|d| d.to_le_bytes()).collect();
        if let Some(details) = self.details {
            bytes.extend(details.strides.iter().flat_map(|s| s.iter()).flat_map(|s| s.to_le_bytes()));
            bytes.extend(&details.metadata);
        }
        bytes
    }

    /// The record of a slot that is this draft's, with `bytes` bytes at `offset`.
    #[inline]
    pub fn info(&self, value: Cell, (offset, bytes): (u64, u64), sequence: u64, next: u32, extended: bool) -> SlotInfo {
        let mut info = SlotInfo {
            generation: value.generation(),
            kind: self.kind,
            dtype: self.dtype,
            device: self.device,
            ndim: self.shape.len() as u8,
            strided: false,
            extended,
            early: false,
            metadata_bytes: 0,
            next,
            data_offset: offset,
            data_bytes: bytes,
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
            info.metadata_bytes = details.metadata.len() as u32;
            if !extended {
                for (word, bytes) in info.metadata.iter_mut().zip(details.metadata.chunks(8)) {
                    *word = key_word(bytes);
                }
            }
        }
        info
    }
}

impl Draft {
    pub(crate) fn new(session: &Arc<Session>, spec: &TensorSpec) -> Result<Self> {
        let bytes = spec.bytes()?;
        let shape = Dims::new(&spec.shape).expect("checked with its bytes");
        // Strides that say "row-major" are no strides.
        let plain = Dims::row_major(&shape);
        let strides = spec.strides.as_ref().and_then(|s| Dims::new(s)).filter(|s| **s != *plain);
        let mut draft = Self::with(session, spec.dtype, shape, bytes)?;
        if strides.is_some() || spec.byte_offset != 0 {
            let details = draft.details();
            (details.strides, details.byte_offset) = (strides, spec.byte_offset);
        }
        Ok(draft)
    }

    /// A row-major tensor.
    #[inline]
    pub(crate) fn row_major(session: &Arc<Session>, dtype: DType, shape: &[u64]) -> Result<Self> {
        let bytes = check_extent(dtype, shape, None, 0, i64::MAX as u64).map(|n| n * dtype.item_bytes() as u64);
        match (bytes, Dims::new(shape)) {
            (Ok(bytes), Some(shape)) => Self::with(session, dtype, shape, bytes),
            // Says what is wrong.
            _ => Self::new(session, &TensorSpec::new(dtype, shape)),
        }
    }

    #[inline]
    fn with(session: &Arc<Session>, dtype: DType, shape: Dims<u64>, bytes: u64) -> Result<Self> {
        let taken = Some(session.take(bytes)?);
        Ok(Self {
            session: session.clone(),
            taken,
            kind: SlotKind::Tensor,
            dtype,
            shape,
            timestamp_ns: 0,
            details: None,
        })
    }

    fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    #[inline]
    fn head(&self) -> Head<'_> {
        Head {
            kind: self.kind,
            dtype: self.dtype,
            device: Device::CPU,
            shape: &self.shape,
            timestamp_ns: self.timestamp_ns,
            details: self.details.as_deref(),
        }
    }

    fn strides(&self) -> Option<&Dims<i64>> {
        self.details.as_ref()?.strides.as_ref()
    }

    fn byte_offset(&self) -> u64 {
        self.details.as_ref().map_or(0, |details| details.byte_offset)
    }

    /// The index of a dataset.
    pub(crate) fn index(session: &Arc<Session>, bytes: &[u8]) -> Result<Self> {
        let mut draft = Self::row_major(session, DType::U8, &[bytes.len() as u64])?;
        draft.kind = SlotKind::Dataset;
        draft.bytes_mut().copy_from_slice(bytes);
        Ok(draft)
    }

    fn taken(&self) -> &Taken {
        self.taken.as_ref().expect("a draft has its slot until it is published")
    }

    /// What the tensor is to be.
    pub fn spec(&self) -> TensorSpec {
        TensorSpec {
            dtype: self.dtype,
            shape: self.shape.to_vec(),
            strides: self.strides().map(|strides| strides.to_vec()),
            byte_offset: self.byte_offset(),
        }
    }

    /// Sizes, in elements.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// All of its bytes, as they are: whatever lay there before, until they are written. Aligned to 64 bytes, to 4096
    /// if there are that many.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U16, &[3])?;
    /// draft.bytes_mut().copy_from_slice(&[1, 0, 2, 0, 3, 0]); // little endian
    /// assert_eq!(draft.as_mut_slice::<u16>()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// In the child of a fork: the draft is the parent's.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.session.is_forked(), "a draft belongs to the process that made it: create one in the child");
        let taken = self.taken.as_mut().expect("a draft has its slot until it is published");
        // SAFETY: contract 1 and 3: the slot was handed out to this draft alone, which holds the session, and is not
        // published while it lives.
        unsafe { taken.bytes.write() }
    }

    /// Copies bytes in: all of them, in memory order. Faster than a plain copy where there are many.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U16, &[3])?;
    /// draft.copy_from(&[1, 0, 2, 0, 3, 0])?; // little endian
    /// assert!(draft.copy_from(&[1, 0]).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] if they are more or fewer than [`Draft::bytes_mut`].
    ///
    /// # Panics
    /// As [`Draft::bytes_mut`].
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<()> {
        let own = self.bytes_mut();
        if own.len() != bytes.len() {
            let (found, given) = (own.len() as u64, bytes.len() as u64);
            return Err(Error::Length { name: "the draft".into(), found, given });
        }
        crate::segment::copy::into_shared(own, bytes);
        Ok(())
    }

    /// Its elements in memory order: C order, unless it has strides of its own. With those, every place from the first
    /// byte on, gaps included.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::F32, &[2, 3])?;
    /// draft.as_mut_slice::<f32>()?.fill(0.5);
    /// assert!(draft.as_mut_slice::<f64>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if it has another element type; [`Error::Strided`] if it does not begin at its first byte.
    ///
    /// # Panics
    /// As [`Draft::bytes_mut`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { found: self.dtype, wanted: T::DTYPE });
        }
        if self.strides().is_none() && self.byte_offset() != 0 {
            return Err(Error::Strided);
        }
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    /// A view of it as an array of its shape.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::F32, &[2, 3])?;
    /// draft.ndarray_mut::<f32>()?[[1, 2]] = 6.0;
    /// draft.publish("weights")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if it has another element type; [`Error::Strided`] with strides or a byte offset of its own.
    ///
    /// # Panics
    /// As [`Draft::bytes_mut`].
    #[cfg(feature = "ndarray")]
    pub fn ndarray_mut<T: Element>(&mut self) -> Result<ndarray::ArrayViewMutD<'_, T>> {
        if self.strides().is_some() {
            return Err(Error::Strided);
        }
        let shape: Vec<usize> = self.shape.iter().map(|&d| d as usize).collect();
        let elements = self.as_mut_slice::<T>()?;
        ndarray::ArrayViewMutD::from_shape(shape, elements).map_err(|e| Error::Argument(e.to_string()))
    }

    /// Metadata that travels with the tensor: any bytes, 64 KiB at most. Up to 32 bytes cost nothing.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U8, &[480, 640, 3])?;
    /// draft.set_metadata(br#"{"encoding": "rgb8"}"#)?;
    /// draft.publish("image")?;
    /// assert_eq!(client.get("image")?.metadata(), br#"{"encoding": "rgb8"}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Metadata`] if there is more.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<&mut Self> {
        if metadata.len() > METADATA_MAX {
            return Err(Error::Metadata(metadata.len()));
        }
        self.details().metadata = metadata.to_vec();
        Ok(self)
    }

    /// A timestamp that travels with the tensor: nanoseconds since 1970, or of whatever clock its users agree on.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::SystemTime;
    ///
    /// let mut draft = client.create(tensorlend::DType::U8, &[480, 640, 3])?;
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

    /// Gives the tensor a name: from here on every client of the namespace reads it there, and what the name held
    /// before is gone for new readers. A name that is this client's already is replaced, and one that is nobody's
    /// taken, without the daemon; one of another client costs a round trip to it.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut draft = client.create(tensorlend::DType::U8, &[3])?;
    /// draft.bytes_mut().copy_from_slice(&[1, 2, 3]);
    /// let version = draft.publish("numbers")?;
    /// assert_eq!(client.get("numbers")?.version(), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Refused`] at a limit or without the right to write; [`Error::Disconnected`]. On error
    /// the draft is dropped. Its memory comes back, unless the daemon hung up before it answered: then it stays in use,
    /// since the name may lead to it.
    pub fn publish(mut self, name: &str) -> Result<Version> {
        check_name(name)?;
        let sealed = self.hand_over(0, SLOT_NONE)?;
        tensorlend_layout::crash_point!("draft: sealed");
        self.session.names().publish_value(name, sealed.value)
    }

    /// As [`Draft::publish`], for a name that ends by itself: after a time, or with this client's session. Costs a round
    /// trip to the daemon each time, which has the clock; and so does overwriting or deleting such a name.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::{DType, Lifetime};
    ///
    /// let draft = client.create(DType::F32, &[2, 3])?;
    /// draft.publish_for("goal", Lifetime::ttl(Duration::from_secs(600)))?;
    /// let left = client.info("goal")?.lifetime.ttl.unwrap();
    /// assert!(left <= Duration::from_secs(600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise as [`Draft::publish`].
    pub fn publish_for(mut self, name: &str, lifetime: Lifetime) -> Result<Version> {
        check_name(name)?;
        lifetime.ttl_ns()?;
        let sealed = self.hand_over(0, SLOT_NONE)?;
        self.session.names().publish_value_for(name, sealed.value, lifetime)
    }

    /// Writes the slot's record; the slot is ready to be published, `sequence` and `next` in place, and the caller's.
    #[inline]
    pub(crate) fn seal(mut self, sequence: u64, next: u32) -> Result<Sealed> {
        self.hand_over(sequence, next)
    }

    /// Whether there is more to say of it than fits into its record.
    #[inline]
    pub(crate) fn is_extended(&self) -> bool {
        self.head().is_extended()
    }

    /// What [`Draft::seal`] does: the slot is no longer the draft's to free.
    #[inline]
    fn hand_over(&mut self, sequence: u64, next: u32) -> Result<Sealed> {
        self.session.check()?;
        let extended = self.is_extended();
        let next = if extended { extend(&self.session, &self.head().extension(), next)? } else { next };
        let taken = self.taken.take().expect("a draft has its slot until it is published");
        let place = (taken.offset, taken.bytes.len() as u64);
        let info = self.head().info(taken.value, place, sequence, next, extended);
        tensorlend_layout::crash_point!("draft: filled");
        write(&taken, &info);
        if next != SLOT_NONE {
            self.session.alloc().chain(taken.slot(), next);
        }
        Ok(Sealed { value: taken.value, brief: info.brief().unwrap_or_default() })
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Slot and generation.
    pub(crate) fn cell(&self) -> Cell {
        self.taken().value
    }
}

/// Puts what does not fit into a record into a slot of its own, in host memory, that lives and dies with the one it is chained to.
#[cold]
pub fn extend(session: &Arc<Session>, bytes: &[u8], next: u32) -> Result<u32> {
    let mut taken = session.take(bytes.len() as u64)?;
    // SAFETY: contract 1 and 3: the slot was just handed out, nobody else has it, and the caller holds the session.
    unsafe { taken.bytes.write() }.copy_from_slice(bytes);
    let info = SlotInfo {
        generation: taken.generation(),
        kind: SlotKind::Extension,
        dtype: DType::U8,
        device: Device::CPU,
        ndim: 0,
        strided: false,
        extended: false,
        early: false,
        metadata_bytes: 0,
        next,
        data_offset: taken.offset,
        data_bytes: bytes.len() as u64,
        byte_offset: 0,
        timestamp_ns: 0,
        sequence: 0,
        dims: [0; NDIM_INLINE],
        metadata: [0; METADATA_INLINE / 8],
    };
    write(&taken, &info);
    session.alloc().chain(taken.slot(), next);
    Ok(taken.slot())
}

/// Writes the record of a slot that was handed out and not published.
#[inline]
fn write(taken: &Taken, info: &SlotInfo) {
    // SAFETY: contract 1: the slot is handed out, and the caller holds the session.
    unsafe { taken.record.get() }.write(info);
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take()
            && !self.session.is_forked()
        {
            self.session.alloc().drop_taken(taken);
        }
    }
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("dtype", &self.dtype).field("shape", &self.shape()).finish_non_exhaustive()
    }
}
