//! Descriptions of tensors to create.

use crate::error::{Error, Result};
use crate::tensor::dims::{as_u64, as_usize};
use crate::tensor::shape::IntoShape;
use tensorlend_layout::DType;
use tensorlend_layout::tensor::{BadTensor, check_extent};

/// The dtype, shape and memory layout of a tensor to create.
///
/// ```
/// use tensorlend::{DType, TensorSpec};
///
/// let spec = TensorSpec::new(DType::F32, [2, 3]);
/// assert_eq!(spec.bytes()?, 24);
/// // The rows in reverse: index 0 lies where the second row begins.
/// let flipped = TensorSpec { strides: Some(vec![-3, 1]), byte_offset: 12, ..spec };
/// assert_eq!(flipped.bytes()?, 24);
/// # Ok::<(), tensorlend::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements: 0 to 16 dimensions.
    pub shape: Vec<usize>,
    /// Strides in elements. `None`: row-major. A stride may be negative if `byte_offset` leaves enough bytes before the
    /// first element.
    pub strides: Option<Vec<i64>>,
    /// Offset of the element with index 0, in bytes from the first byte.
    pub byte_offset: usize,
}

impl TensorSpec {
    /// Describes a row-major tensor with these sizes in elements.
    ///
    /// # Panics
    /// Panics for a negative size.
    pub fn new(dtype: DType, shape: impl IntoShape) -> Self {
        Self::try_new(dtype, shape).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_new(dtype: DType, shape: impl IntoShape) -> Result<Self> {
        Ok(Self { dtype, shape: as_usize(shape.sizes()?.as_ref()).to_vec(), strides: None, byte_offset: 0 })
    }

    /// Returns the number of bytes that the tensor needs, from its first byte to the end of its last element.
    ///
    /// # Errors
    /// [`Error::Tensor`] for more than 16 dimensions, a wrong number of strides, more than 2^63 bytes, elements before
    /// the first byte, or a byte offset that is not a multiple of the element's bytes.
    pub fn bytes(&self) -> Result<u64> {
        let fail = |cause| {
            let strides = self.strides.as_ref().filter(|_| cause == BadTensor::Strides);
            let strides = strides.map_or_else(String::new, |strides| format!(" with strides {strides:?}"));
            Error::Tensor { what: format!("tensor of {} {:?}{strides}", self.dtype, self.shape), cause }
        };
        let item = self.dtype.item_bytes() as u64;
        let (shape, byte_offset) = (as_u64(&self.shape), self.byte_offset as u64);
        let elements = check_extent(self.dtype, shape, None, 0, i64::MAX as u64).map_err(fail)?;
        let Some(strides) = &self.strides else {
            let bytes = (elements * item).checked_add(byte_offset).ok_or(BadTensor::Overflow).map_err(fail)?;
            check_extent(self.dtype, shape, None, byte_offset, bytes).map_err(fail)?;
            return Ok(bytes);
        };
        if elements == 0 {
            check_extent(self.dtype, shape, Some(strides), byte_offset, byte_offset).map_err(fail)?;
            return Ok(byte_offset);
        }
        let reach = shape
            .iter()
            .zip(strides)
            .map(|(&dim, &stride)| i128::from(stride).max(0) * (i128::from(dim) - 1))
            .sum::<i128>();
        let end = (reach + 1) * i128::from(item) + i128::from(byte_offset);
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        check_extent(self.dtype, shape, Some(strides), byte_offset, end).map_err(fail)?;
        Ok(end)
    }
}
