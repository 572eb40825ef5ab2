//! Tensors in shared memory, read in place.
#![allow(unsafe_code)]

pub mod dataset;
#[cfg(feature = "cuda")]
pub mod device;
pub mod dims;
pub mod draft;
pub mod element;
pub mod index;
pub mod member_draft;
pub mod sendable;
pub mod shape;
pub mod spec;
pub mod strided;
pub mod value_draft;

use crate::error::{Error, Result};
use crate::segment::bytes::Bytes;
use crate::tensor::dims::{Dims, as_usize};
use crate::tensor::element::Element;
use crate::tensor::spec::TensorSpec;
use crate::tensor::strided::gather;
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, SlotInfo, check_extent};
use tensorlend_layout::{DType, Device, size};

/// A tensor in shared memory, read-only. You access it through the lease that keeps it in place ([`crate::Lease`],
/// [`crate::Dataset`], [`crate::Message`]), and it cannot outlive the lease.
///
/// An honest producer never changes the bytes of a leased tensor. For leases that the daemon has ended, see
/// [`crate::Lease::validate`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Device};
///
/// let mut draft = client.create(DType::F32, [2, 3])?;
/// draft.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// draft.set_metadata(b"metres")?.set_timestamp(1_700_000_000_000_000_000);
/// draft.publish("points")?;
///
/// let points = client.get("points")?; // a lease, and by it a tensor
/// assert_eq!((points.dtype(), points.device()), (DType::F32, Device::CPU));
/// assert_eq!((points.shape(), points.strides()), (&[2, 3][..], &[3, 1][..]));
/// assert_eq!((points.elements(), points.nbytes()), (6, 24));
/// assert_eq!((points.byte_offset(), points.is_row_major()), (0, true));
/// assert_eq!((points.metadata(), points.timestamp()), (&b"metres"[..], 1_700_000_000_000_000_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `M` is the kind of memory. Without it, the tensor is in host memory. With the feature `cuda`, `DeviceTensor` is a
/// tensor on a device.
pub struct Tensor<M = Bytes> {
    /// The bytes, or the way to them.
    pub(crate) memory: M,
    dtype: DType,
    device: Device,
    layout: Layout,
    byte_offset: u64,
    timestamp_ns: u64,
}

/// The locations of a tensor's elements, checked against the tensor's bytes, and its metadata.
#[derive(Clone, Debug)]
struct Layout {
    /// Sizes in elements.
    shape: Dims<u64>,
    /// Strides in elements.
    strides: Dims<i64>,
    /// True if the strides are the row-major (C order) ones.
    row_major: bool,
    elements: u64,
    /// The producer's metadata.
    metadata: Vec<u8>,
}

impl Layout {
    /// Reads and checks a layout. The caller must hold the lease that covers `info` and its extension.
    #[inline(always)]
    fn read(info: &SlotInfo, bytes_of_slot: u64, extension: Option<&Bytes>) -> std::result::Result<Self, BadTensor> {
        let Some(extension) = extension else {
            let shape = Dims::of_four(info.dims, info.ndim).ok_or(BadTensor::Dimensions)?;
            let elements = check_extent(info.dtype, &shape, None, info.byte_offset, bytes_of_slot)?;
            // The metadata is usually empty, and an empty vector needs no allocation.
            let metadata = metadata_of(info);
            let strides = Dims::row_major(&shape);
            return Ok(Self { shape, strides, row_major: true, elements, metadata });
        };
        Self::read_extended(info, bytes_of_slot, extension)
    }

    #[cold]
    fn read_extended(info: &SlotInfo, bytes_of_slot: u64, extension: &Bytes) -> std::result::Result<Self, BadTensor> {
        // SAFETY: contract 1 and 2 of `bytes.rs`: the lease also covers the extension, and the caller holds its segment.
        // This function copies the bytes and keeps no reference.
        let bytes = unsafe { extension.read() };
        let bytes = bytes.get(..info.extension_bytes()).ok_or(BadTensor::Metadata)?;
        let sizes_bytes = usize::from(info.ndim) * 8;
        let (sizes, rest) = bytes.split_at(sizes_bytes);
        let words = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
        };
        let shape = Dims::new(&words(sizes)).ok_or(BadTensor::Dimensions)?;
        let (strides, metadata) = if info.strided {
            let (steps, metadata) = rest.split_at(sizes_bytes);
            let steps: Vec<i64> = words(steps).into_iter().map(u64::cast_signed).collect();
            (Dims::new(&steps), metadata)
        } else {
            (None, rest)
        };
        let elements = check_extent(info.dtype, &shape, strides.as_deref(), info.byte_offset, bytes_of_slot)?;
        Ok(Self {
            row_major: strides.is_none(),
            strides: strides.unwrap_or_else(|| Dims::row_major(&shape)),
            shape,
            elements,
            metadata: metadata.to_vec(),
        })
    }
}

/// Returns the metadata of a record that is not extended.
#[inline(always)]
fn metadata_of(info: &SlotInfo) -> Vec<u8> {
    if info.metadata_bytes == 0 { Vec::new() } else { inline_metadata(info) }
}

#[cold]
fn inline_metadata(info: &SlotInfo) -> Vec<u8> {
    let mut metadata: Vec<u8> = info.metadata.iter().flat_map(|word| word.to_le_bytes()).collect();
    metadata.truncate((info.metadata_bytes as usize).min(METADATA_INLINE));
    metadata
}

impl<M> Tensor<M> {
    /// Builds a tensor of this many bytes from its record and its extension. The caller must hold the lease that covers
    /// both.
    #[inline(always)]
    pub(crate) fn of(
        info: &SlotInfo,
        nbytes: u64,
        extension: Option<&Bytes>,
        memory: M,
    ) -> std::result::Result<Self, BadTensor> {
        let layout = Layout::read(info, nbytes, extension)?;
        Ok(Self {
            memory,
            dtype: info.dtype,
            device: info.device,
            layout,
            byte_offset: info.byte_offset,
            timestamp_ns: info.timestamp_ns,
        })
    }

    /// Returns the same tensor in another form of memory.
    pub(crate) fn with<N>(&self, memory: N) -> Tensor<N> {
        let Self { dtype, device, byte_offset, timestamp_ns, .. } = *self;
        Tensor { memory, dtype, device, layout: self.layout.clone(), byte_offset, timestamp_ns }
    }

    /// Makes this the tensor of another message, which differs only in its place and timestamp.
    #[inline(always)]
    pub(crate) fn renew(&mut self, memory: M, timestamp_ns: u64) {
        (self.memory, self.timestamp_ns) = (memory, timestamp_ns);
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the sizes in elements.
    pub fn shape(&self) -> &[usize] {
        as_usize(&self.layout.shape)
    }

    /// Returns the strides in elements, one for each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.layout.strides
    }

    /// Returns whether the tensor's elements are contiguous, in C order.
    pub fn is_row_major(&self) -> bool {
        self.layout.row_major
    }

    /// Returns the number of elements. Returns 1 for a tensor without dimensions.
    pub fn elements(&self) -> usize {
        size::index(self.layout.elements)
    }

    /// Returns the offset of the element with index 0 from the tensor's first byte, in bytes.
    pub fn byte_offset(&self) -> usize {
        size::index(self.byte_offset)
    }

    /// Returns the number of bytes of the elements, without gaps: the number of elements times the bytes of one.
    pub fn nbytes(&self) -> usize {
        self.elements() * self.dtype.item_bytes()
    }

    /// Returns the metadata that the tensor's producer set, in host memory, copied when the client took the lease. Empty
    /// if the producer set none.
    pub fn metadata(&self) -> &[u8] {
        &self.layout.metadata
    }

    /// Returns the timestamp that the tensor's producer set, in nanoseconds of the clock on which producer and readers
    /// agreed. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        self.timestamp_ns
    }

    /// Returns the dtype, shape and memory layout, for a copy of the tensor.
    pub(crate) fn spec(&self) -> TensorSpec {
        TensorSpec {
            dtype: self.dtype,
            shape: self.shape().to_vec(),
            strides: (!self.layout.row_major).then(|| self.layout.strides.to_vec()),
            byte_offset: self.byte_offset(),
        }
    }

    /// Copies the elements in C order from `bytes`, which are all bytes of the tensor. They contain every element: the
    /// client checked this when it took the lease.
    pub(crate) fn gather(&self, bytes: &[u8], out: &mut [u8]) {
        gather(bytes, self.dtype.item_bytes(), self.byte_offset, &self.layout.shape, self.strides(), out);
    }

    /// Checks that the elements have this type.
    pub(crate) fn check_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype { Ok(()) } else { Err(Error::DType { found: self.dtype, wanted: T::DTYPE }) }
    }
}

impl Tensor {
    /// Builds a tensor from its record and its extension. The caller must hold the lease that covers both.
    #[inline(always)]
    pub(crate) fn read(
        info: &SlotInfo,
        bytes: Bytes,
        extension: Option<&Bytes>,
    ) -> std::result::Result<Self, BadTensor> {
        Self::of(info, bytes.len() as u64, extension, bytes)
    }

    /// Returns the location of the tensor's bytes, which is always host memory.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns all bytes of the tensor in memory order, including gaps between strided elements.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u16, 2])?;
    /// assert_eq!(client.get("numbers")?.bytes(), [1, 0, 2, 0]); // little endian
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics in the child of a fork that did not inherit the lease. This happens if the parent could not create the token
    /// that shows when its children have ended.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: contract 1 and 2 of `bytes.rs`: code can only reach a `Tensor` by reference through the lease that
        // covers its slot and keeps its segment.
        unsafe { self.memory.read() }
    }

    /// Returns the elements, in place.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0])?;
    /// let numbers = client.get("numbers")?;
    /// assert_eq!(numbers.as_slice::<f32>()?, [1.0, 2.0]);
    /// assert!(numbers.as_slice::<f64>().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::Strided`] unless the tensor is
    /// [row-major](Tensor::is_row_major).
    ///
    /// # Panics
    /// Panics in the child of a fork that did not inherit the lease, like [`Tensor::bytes`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        let bytes = self.row_major_bytes().ok_or(Error::Strided)?;
        bytemuck::try_cast_slice(bytes)
            .map_err(|_| Error::Damaged { name: "the tensor".into(), cause: BadTensor::Bounds })
    }

    /// Returns the bytes of the elements if they are in C order, and otherwise `None`. Use it for a dtype without a Rust
    /// type.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, TensorView};
    ///
    /// client.put("scales", &TensorView { dtype: DType::F8_E4M3FN, shape: &[2], bytes: &[0x38, 0x40] })?;
    /// assert_eq!(client.get("scales")?.row_major_bytes(), Some(&[0x38, 0x40][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics in the child of a fork that did not inherit the lease, like [`Tensor::bytes`].
    pub fn row_major_bytes(&self) -> Option<&[u8]> {
        let from = self.byte_offset();
        self.is_row_major().then(|| &self.bytes()[from..from + self.nbytes()])
    }

    /// Copies the elements, in C order, into `out`. Also works for strided tensors.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u8, 2, 3])?;
    /// let mut copy = [0; 3];
    /// client.get("numbers")?.copy_to(&mut copy)?;
    /// assert_eq!(copy, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] unless `out` has exactly [`Tensor::nbytes`] bytes.
    ///
    /// # Panics
    /// Panics in the child of a fork that did not inherit the lease, like [`Tensor::bytes`].
    pub fn copy_to(&self, out: &mut [u8]) -> Result<()> {
        if out.len() != self.nbytes() {
            let (found, given) = (self.nbytes() as u64, out.len() as u64);
            return Err(Error::Length { name: "the tensor".into(), found, given });
        }
        if let Some(bytes) = self.row_major_bytes() {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        self.gather(self.bytes(), out);
        Ok(())
    }

    /// Returns an array view of the tensor, in place. Feature `ndarray`.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &ndarray::arr2(&[[1.0f32, 2.0], [3.0, 4.0]]))?;
    /// let lease = client.get("numbers")?;
    /// assert_eq!(lease.ndarray::<f32>()?[[1, 0]], 3.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::Strided`] for strides that ndarray does not
    /// support (negative ones: use [`Tensor::copy_to`]).
    ///
    /// # Panics
    /// Panics in the child of a fork that did not inherit the lease, like [`Tensor::bytes`].
    #[cfg(feature = "ndarray")]
    pub fn ndarray<T: Element>(&self) -> Result<ndarray::ArrayViewD<'_, T>> {
        use ndarray::ShapeBuilder;
        self.check_dtype::<T>()?;
        let shape = self.shape();
        if self.is_row_major() {
            let elements = self.as_slice::<T>()?;
            return ndarray::ArrayViewD::from_shape(shape, elements).map_err(|_| Error::Strided);
        }
        let strides: Option<Vec<usize>> = self.strides().iter().map(|&s| usize::try_from(s).ok()).collect();
        let bytes = &self.bytes()[self.byte_offset()..];
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        let elements = bytemuck::try_cast_slice(&bytes[..whole]).map_err(|_| Error::Strided)?;
        let strides = strides.ok_or(Error::Strided)?;
        ndarray::ArrayViewD::from_shape(shape.to_vec().strides(strides), elements).map_err(|_| Error::Strided)
    }
}

impl<M> std::fmt::Debug for Tensor<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor").field("dtype", &self.dtype).field("shape", &self.shape()).finish_non_exhaustive()
    }
}
