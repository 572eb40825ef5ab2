//! Shapes as parameters.

use crate::error::{Error, Result};
use crate::tensor::dims::as_u64;
use std::borrow::Cow;

/// A shape as a parameter: the sizes of a tensor in elements, outermost dimension first.
///
/// Methods take `impl IntoShape`, so you can write:
///
/// | a shape | its dimensions |
/// |---|---|
/// | `()` | none: a scalar |
/// | `1000` | one |
/// | `[480, 640, 3]`, `&[480, 640, 3]` | as many as the array has |
/// | `(height, width)` | as many as the tuple has, six at most |
/// | `&[usize]`, `Vec<usize>`, `&Vec<usize>` | as many as there are elements |
///
/// A size is a `usize`. The integers `u64`, `u32`, `i64` and `i32` of other libraries need no cast, but their negative
/// values are errors. The sizes of a tuple may be of several types. (The compiler regards integer literals alone as `i32`,
/// so write `[5_000_000_000usize]` above its range.)
///
/// The trait is sealed: only this crate implements it. Methods return shapes as `&[usize]`, as `ndarray` and `candle`
/// do (for example [`Tensor::shape`](crate::Tensor::shape)), and such a shape can be a parameter again.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::DType;
///
/// let numbers = vec![1.0f32, 2.0, 3.0];
/// let row = client.create(DType::F32, numbers.len())?;
/// let image = client.create(DType::U8, [480, 640, 3])?;
/// let (height, width): (u32, u32) = (480, 640); // as image files have them
/// let depth = client.create(DType::F32, (height, width))?;
/// let same = client.create(DType::U8, image.shape())?;
/// let loss = client.create(DType::F32, ())?;
/// assert_eq!((row.shape(), same.shape(), depth.shape()), (&[3][..], &[480, 640, 3][..], &[480, 640][..]));
/// assert!(loss.shape().is_empty());
/// assert!(client.create(DType::F32, [-1, 3]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a shape",
    label = "give an integer, or an array, a tuple, a slice or a `Vec` of integers",
    note = "sizes are usize, u64, u32, i64 or i32"
)]
pub trait IntoShape: sealed::Shape {}

pub mod sealed {
    //! The part of [`super::IntoShape`] that programs neither call nor implement.

    use crate::error::Result;

    /// A conversion to sizes, which needs no allocation for the usual types.
    pub trait Shape {
        type Sizes: AsRef<[u64]>;

        fn sizes(self) -> Result<Self::Sizes>;
    }

    /// The size of one dimension.
    pub trait Size: Copy + std::fmt::Display {
        /// Returns the size. Returns `None` if it is negative.
        fn size(self) -> Option<u64>;

        /// Returns the numbers unchanged as sizes, if their type is `u64`.
        fn as_sizes(_: &[Self]) -> Option<&[u64]> {
            None
        }
    }
}

use sealed::{Shape, Size};

impl Size for usize {
    #[inline]
    fn size(self) -> Option<u64> {
        Some(self as u64)
    }

    #[inline]
    fn as_sizes(sizes: &[Self]) -> Option<&[u64]> {
        Some(as_u64(sizes))
    }
}

impl Size for u64 {
    #[inline]
    fn size(self) -> Option<u64> {
        Some(self)
    }

    #[inline]
    fn as_sizes(sizes: &[Self]) -> Option<&[u64]> {
        Some(sizes)
    }
}

impl Size for u32 {
    #[inline]
    fn size(self) -> Option<u64> {
        Some(self.into())
    }
}

impl Size for i64 {
    #[inline]
    fn size(self) -> Option<u64> {
        self.try_into().ok()
    }
}

impl Size for i32 {
    #[inline]
    fn size(self) -> Option<u64> {
        self.try_into().ok()
    }
}

#[cold]
fn negative(dimension: usize, size: impl Size) -> Error {
    Error::Argument(format!("the size of dimension {dimension} is {size}: give the number of its elements, from 0 up"))
}

#[inline]
fn array<T: Size, const N: usize>(given: &[T; N]) -> Result<[u64; N]> {
    let mut sizes = [0; N];
    for (dimension, (to, from)) in sizes.iter_mut().zip(given).enumerate() {
        *to = from.size().ok_or_else(|| negative(dimension, *from))?;
    }
    Ok(sizes)
}

#[inline]
fn slice<T: Size>(given: &[T]) -> Result<Cow<'_, [u64]>> {
    match T::as_sizes(given) {
        Some(sizes) => Ok(Cow::Borrowed(sizes)),
        None => given.iter().enumerate().map(|(at, size)| size.size().ok_or_else(|| negative(at, *size))).collect(),
    }
}

impl<T: Size, const N: usize> IntoShape for [T; N] {}
impl<T: Size, const N: usize> Shape for [T; N] {
    type Sizes = [u64; N];

    #[inline]
    fn sizes(self) -> Result<[u64; N]> {
        array(&self)
    }
}

impl<T: Size, const N: usize> IntoShape for &[T; N] {}
impl<T: Size, const N: usize> Shape for &[T; N] {
    type Sizes = [u64; N];

    #[inline]
    fn sizes(self) -> Result<[u64; N]> {
        array(self)
    }
}

impl<T: Size> IntoShape for &[T] {}
impl<'s, T: Size> Shape for &'s [T] {
    type Sizes = Cow<'s, [u64]>;

    #[inline]
    fn sizes(self) -> Result<Cow<'s, [u64]>> {
        slice(self)
    }
}

impl<T: Size> IntoShape for &Vec<T> {}
impl<'s, T: Size> Shape for &'s Vec<T> {
    type Sizes = Cow<'s, [u64]>;

    #[inline]
    fn sizes(self) -> Result<Cow<'s, [u64]>> {
        slice(self)
    }
}

impl<T: Size> IntoShape for Vec<T> {}
impl<T: Size> Shape for Vec<T> {
    type Sizes = Vec<u64>;

    fn sizes(self) -> Result<Vec<u64>> {
        slice(&self).map(Cow::into_owned)
    }
}

macro_rules! one_dimension {
    ($($integer:ty)*) => { $(
        impl IntoShape for $integer {}
        impl Shape for $integer {
            type Sizes = [u64; 1];

            #[inline]
            fn sizes(self) -> Result<[u64; 1]> {
                array(&[self])
            }
        }
    )* };
}

one_dimension! { usize u64 u32 i64 i32 }

impl IntoShape for () {}
impl Shape for () {
    type Sizes = [u64; 0];

    #[inline]
    fn sizes(self) -> Result<[u64; 0]> {
        Ok([])
    }
}

macro_rules! tuples {
    ($($count:literal: $($size:ident $at:tt),*;)*) => { $(
        impl<$($size: Size),*> IntoShape for ($($size,)*) {}
        impl<$($size: Size),*> Shape for ($($size,)*) {
            type Sizes = [u64; $count];

            #[inline]
            fn sizes(self) -> Result<[u64; $count]> {
                Ok([$(self.$at.size().ok_or_else(|| negative($at, self.$at))?),*])
            }
        }
    )* };
}

tuples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
    6: A 0, B 1, C 2, D 3, E 4, F 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(shape: impl IntoShape) -> std::result::Result<Vec<u64>, String> {
        shape.sizes().map(|sizes| sizes.as_ref().to_vec()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_form_gives_the_same_sizes() {
        let (height, width) = (480usize, 640u32);
        let wanted = || Ok(vec![480, 640]);
        assert_eq!(sizes([480, 640]), wanted());
        assert_eq!(sizes(&[480, 640]), wanted());
        assert_eq!(sizes([480u64, 640]), wanted());
        assert_eq!(sizes((height, width)), wanted());
        assert_eq!(sizes((480i64, 640)), wanted());
        assert_eq!(sizes(&[480usize, 640][..]), wanted());
        assert_eq!(sizes(&[480u64, 640][..]), wanted());
        assert_eq!(sizes(&[480i64, 640][..]), wanted());
        assert_eq!(sizes(vec![480u32, 640]), wanted());
        assert_eq!(sizes(&vec![height, 640]), wanted());
        assert_eq!(sizes(7), Ok(vec![7]));
        assert_eq!(sizes((7,)), Ok(vec![7]));
        assert_eq!(sizes((1, 2, 3, 4, 5, 6)), Ok(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(sizes(()), Ok(vec![]));
        assert_eq!(sizes([u64::MAX]), Ok(vec![u64::MAX]));
    }

    #[test]
    fn a_negative_size_is_named() {
        let why = "the size of dimension 1 is -3: give the number of its elements, from 0 up";
        for given in [sizes([1, -3]), sizes((1usize, -3)), sizes(vec![1i64, -3]), sizes(&[1i64, -3][..])] {
            assert_eq!(given, Err(why.to_owned()));
        }
    }
}
