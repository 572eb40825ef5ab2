//! Sizes or strides: one number for each dimension, up to four of them without an allocation.

use tensorlend_layout::tensor::{NDIM_INLINE, NDIM_MAX};
use tensorlend_layout::word::low8;

/// A short list of numbers, one for each dimension.
#[derive(Clone, Debug)]
pub struct Dims<T> {
    inline: [T; NDIM_INLINE],
    /// All numbers, if there are more than four. This is a thin pointer, because every lease moves this struct.
    #[expect(clippy::box_collection, reason = "a thin pointer")]
    more: Option<Box<Vec<T>>>,
    ndim: u8,
}

impl<T: Copy + Default> Dims<T> {
    /// Returns a list of these numbers. Returns `None` if there are more than 16.
    #[inline]
    pub fn new(numbers: &[T]) -> Option<Self> {
        if numbers.len() > NDIM_MAX {
            return None;
        }
        // Read the numbers one by one, so that they stay in registers. Numbers that are stored singly and loaded in
        // pairs would wait for the store.
        let number = |at: usize| numbers.get(at).copied().unwrap_or_default();
        let inline = [number(0), number(1), number(2), number(3)];
        let more = (numbers.len() > NDIM_INLINE).then(|| Box::new(numbers.to_vec()));
        Some(Self { inline, more, ndim: low8(numbers.len() as u64) })
    }

    /// Returns the number of dimensions.
    #[inline(always)]
    pub fn ndim(&self) -> u8 {
        self.ndim
    }

    /// Returns the numbers of a list that [`Dims::new`] made, followed by zeros; `None` above four.
    #[inline(always)]
    pub fn four(&self) -> Option<[T; NDIM_INLINE]> {
        self.more.is_none().then_some(self.inline)
    }

    /// Returns the first `ndim` of four numbers; `None` above four.
    #[inline(always)]
    pub fn of_four(numbers: [T; NDIM_INLINE], ndim: u8) -> Option<Self> {
        (usize::from(ndim) <= NDIM_INLINE).then_some(Self { inline: numbers, more: None, ndim })
    }
}

impl Dims<i64> {
    /// Returns the row-major (C order) strides of a shape.
    #[inline(always)]
    pub fn row_major(shape: &Dims<u64>) -> Self {
        let stride = |step: &mut i64, dim: u64| {
            let stride = *step;
            *step = step.saturating_mul(i64::try_from(dim.max(1)).unwrap_or(i64::MAX));
            stride
        };
        let mut step = 1;
        let mut inline = [0; NDIM_INLINE];
        let more = shape.more.as_ref().map(|sizes| {
            let mut strides = vec![0; sizes.len()];
            for (to, &dim) in strides.iter_mut().zip(sizes.iter()).rev() {
                *to = stride(&mut step, dim);
            }
            Box::new(strides)
        });
        if more.is_none() {
            for (to, &dim) in inline.iter_mut().zip(&**shape).rev() {
                *to = stride(&mut step, dim);
            }
        }
        Self { inline, more, ndim: shape.ndim }
    }
}

impl<T> std::ops::Deref for Dims<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.more {
            None => &self.inline[..usize::from(self.ndim)],
            Some(all) => all,
        }
    }
}

// Sizes are `u64` in shared memory and `usize` in programs, which index with them. Both types must have the same
// layout.
const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "tensorlend supports 64-bit machines only");

/// Converts sizes in shared memory to the type that programs use.
#[inline(always)]
pub fn as_usize(sizes: &[u64]) -> &[usize] {
    bytemuck::cast_slice(sizes)
}

/// Converts a program's sizes to the type in shared memory.
#[inline(always)]
pub fn as_u64(sizes: &[usize]) -> &[u64] {
    bytemuck::cast_slice(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_layout::tensor::Strides;

    #[test]
    fn any_number_of_dimensions_comes_back() {
        for ndim in 0..=NDIM_MAX {
            let sizes: Vec<u64> = (1..=ndim as u64).collect();
            let dims = Dims::new(&sizes).unwrap();
            assert_eq!(&*dims, sizes);
            assert_eq!(&*Dims::row_major(&dims), &*Strides::row_major(&sizes).unwrap());
        }
        assert!(Dims::new(&[1u64; NDIM_MAX + 1]).is_none());
        assert_eq!(&*Dims::of_four([3u64, 4, 0, 0], 2).unwrap(), [3, 4]);
        assert!(Dims::of_four([0u64; 4], 5).is_none());
    }
}
