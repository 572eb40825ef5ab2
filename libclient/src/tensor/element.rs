//! Rust types that are elements of tensors.

use half::{bf16, f16};
use tensorlend_layout::DType;

use crate::error::{Error, Result};
use crate::tensor::shape::IntoShape;
use crate::tensor::spec::TensorSpec;

/// A Rust type with the memory layout of a [`DType`]. Every bit pattern must be a valid value, because other processes
/// write the bytes.
///
/// ```
/// use tensorlend::{Complex, DType, Element};
///
/// assert_eq!(f32::DTYPE, DType::F32);
/// assert_eq!(<Complex<f32>>::DTYPE, DType::C64);
/// assert_eq!(size_of::<Complex<f32>>(), DType::C64.item_bytes());
/// ```
pub trait Element: bytemuck::Pod {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty: $dtype:ident),* $(,)?) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}

elements! {
    i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64,
    f16: F16, bf16: BF16, f32: F32, f64: F64,
}

/// A complex number. `Complex<f32>` is the element type of [`DType::C64`], and `Complex<f64>` of [`DType::C128`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::Complex;
///
/// client.put("spectrum", &[Complex::new(1.0f32, -1.0)])?;
/// assert_eq!(client.get("spectrum")?.as_slice::<Complex<f32>>()?[0].im, -1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use num_complex::Complex;

impl Element for Complex<f32> {
    const DTYPE: DType = DType::C64;
}
impl Element for Complex<f64> {
    const DTYPE: DType = DType::C128;
}

/// An array that [`crate::Client::put`] can copy: row-major elements with a shape. Slices, vectors and arrays of
/// [`Element`]s are tensors of one dimension. With the feature `ndarray`, the arrays of that crate are tensors of
/// their shape.
///
/// Implement this trait for your own array types:
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{AsTensor, DType};
///
/// struct Grey { width: usize, pixels: Vec<u8> }
///
/// impl AsTensor for Grey {
///     fn dtype(&self) -> DType {
///         DType::U8
///     }
///     fn shape(&self) -> Vec<usize> {
///         vec![self.pixels.len() / self.width, self.width]
///     }
///     fn write_to(&self, out: &mut [u8]) {
///         out.copy_from_slice(&self.pixels);
///     }
/// }
///
/// let image = Grey { width: 3, pixels: vec![0; 6] };
/// image.check()?;
/// client.put("image", &image)?;
/// assert_eq!(client.get("image")?.shape(), [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait AsTensor {
    /// Returns the element type.
    fn dtype(&self) -> DType;
    /// Returns the sizes in elements.
    fn shape(&self) -> Vec<usize>;
    /// Copies the elements, row-major, into `out`. `out` has exactly their length in bytes and is uninitialized.
    fn write_to(&self, out: &mut [u8]);
    /// Returns the bytes of the elements, if they are contiguous and row-major in memory. Then the client copies them in the
    /// fastest way and does not call [`AsTensor::write_to`]. By default, returns `None`.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }
    /// Checks that shape and bytes match. The default accepts all values.
    ///
    /// # Errors
    /// [`Error::Length`] if there are more or fewer bytes than the shape needs.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<T: Element> AsTensor for [T] {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        vec![self.len()]
    }
    fn write_to(&self, out: &mut [u8]) {
        out.copy_from_slice(bytemuck::cast_slice(self));
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(self))
    }
}

impl<T: Element> AsTensor for Vec<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        self.as_slice().shape()
    }
    fn write_to(&self, out: &mut [u8]) {
        self.as_slice().write_to(out);
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(self))
    }
}

impl<T: Element, const N: usize> AsTensor for [T; N] {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        vec![N]
    }
    fn write_to(&self, out: &mut [u8]) {
        self.as_slice().write_to(out);
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(self))
    }
}

/// A slice of elements with a shape. [`crate::Client::put`] accepts it. Use it if your program keeps an array as one
/// slice.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::Shaped;
///
/// let (height, width) = (480usize, 640usize);
/// let pixels = vec![0u8; height * width * 3];
/// client.put("image", &Shaped::new(&pixels, [height, width, 3])?)?;
/// assert_eq!(client.get("image")?.shape(), [480, 640, 3]);
/// assert!(Shaped::new(&pixels, [height, width]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Shaped<'a, T> {
    elements: &'a [T],
    shape: Vec<usize>,
}

impl<'a, T: Element> Shaped<'a, T> {
    /// Creates an array from row-major elements and a shape.
    ///
    /// # Errors
    /// [`Error::Length`] unless the shape has as many elements as the slice; [`Error::Tensor`] or [`Error::Argument`] for an
    /// invalid shape.
    pub fn new(elements: &'a [T], shape: impl IntoShape) -> Result<Self> {
        let spec = TensorSpec::try_new(T::DTYPE, shape)?;
        let (found, given) = (spec.bytes()?, size_of_val(elements) as u64);
        if found != given {
            return Err(Error::Length { name: format!("{:?}", spec.shape), found, given });
        }
        Ok(Self { elements, shape: spec.shape })
    }
}

impl<T: Element> AsTensor for Shaped<'_, T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }
    fn write_to(&self, out: &mut [u8]) {
        self.elements.write_to(out);
    }
    fn bytes(&self) -> Option<&[u8]> {
        AsTensor::bytes(self.elements)
    }
}

/// Borrowed bytes of any element type with a shape, for file readers and bindings. If the element type is known, [`Shaped`]
/// is simpler.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, TensorView};
///
/// client.put("numbers", &TensorView { dtype: DType::U16, shape: &[1, 2], bytes: &[1, 0, 2, 0] })?;
/// assert_eq!(client.get("numbers")?.as_slice::<u16>()?, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements.
    pub shape: &'a [usize],
    /// Row-major elements, little endian, exactly as many as the shape has.
    pub bytes: &'a [u8],
}

impl AsTensor for TensorView<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn shape(&self) -> Vec<usize> {
        self.shape.to_vec()
    }
    fn write_to(&self, out: &mut [u8]) {
        out.copy_from_slice(self.bytes);
    }
    fn bytes(&self) -> Option<&[u8]> {
        Some(self.bytes)
    }
    fn check(&self) -> Result<()> {
        let found = TensorSpec::new(self.dtype, self.shape).bytes()?;
        if found == self.bytes.len() as u64 {
            return Ok(());
        }
        Err(Error::Length { name: format!("{:?}", self.shape), found, given: self.bytes.len() as u64 })
    }
}

#[cfg(feature = "ndarray")]
impl<T: Element, S: ndarray::Data<Elem = T>, D: ndarray::Dimension> AsTensor for ndarray::ArrayBase<S, D> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn shape(&self) -> Vec<usize> {
        ndarray::ArrayBase::shape(self).to_vec()
    }
    fn write_to(&self, out: &mut [u8]) {
        let item = size_of::<T>();
        match self.as_slice() {
            Some(elements) => out.copy_from_slice(bytemuck::cast_slice(elements)),
            // In any other memory order, copy the elements one by one, in logical order.
            None => {
                for (place, element) in out.chunks_exact_mut(item).zip(self.iter()) {
                    place.copy_from_slice(bytemuck::bytes_of(element));
                }
            }
        }
    }
}
