//! Copies of strided elements.

use crate::error::{Error, Result};
use crate::tensor::dims::as_u64;
use crate::tensor::draft::Draft;
use tensorlend_layout::size;
use tensorlend_layout::tensor::check_extent;

impl Draft {
    /// Copies the elements of a strided array, in C order, into this row-major draft. Such an array is a transposed matrix
    /// or a part of an image. The array has the draft's element type and shape. Its elements are in `bytes`, and the element
    /// with index 0 is at `byte_offset`. `strides` are in elements and may be negative.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let matrix = [1u8, 2, 3, 4, 5, 6]; // two rows of three
    /// let mut transposed = client.create(tensorlend::DType::U8, [3, 2])?;
    /// transposed.copy_from_strided(&matrix, 0, &[1, 3])?;
    /// assert_eq!(transposed.bytes_mut(), [1, 4, 2, 5, 3, 6]);
    /// assert!(transposed.copy_from_strided(&matrix, 1, &[1, 3]).is_err()); // beyond its end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] if an element is not in `bytes`, or there is not one stride for each dimension;
    /// [`Error::Argument`] if the draft is not row-major.
    ///
    /// # Panics
    /// Panics in the child of a fork, like [`Draft::bytes_mut`].
    pub fn copy_from_strided(&mut self, bytes: &[u8], byte_offset: usize, strides: &[i64]) -> Result<()> {
        let spec = self.spec();
        if spec.strides.is_some() || spec.byte_offset != 0 {
            return Err(Error::Argument("the draft is strided: create it row-major to copy into it".into()));
        }
        let shape = as_u64(&spec.shape);
        let elements = check_extent(spec.dtype, shape, Some(strides), byte_offset as u64, bytes.len() as u64);
        let elements = elements.map_err(|cause| {
            let what =
                format!("array of {} {:?} with strides {strides:?} in {} bytes", spec.dtype, spec.shape, bytes.len());
            Error::Tensor { what, cause }
        })?;
        let item = spec.dtype.item_bytes();
        if is_row_major(shape, strides) {
            return self.copy_from(&bytes[byte_offset..byte_offset + size::index(elements) * item]);
        }
        gather(bytes, item, byte_offset as u64, shape, strides, self.bytes_mut());
        Ok(())
    }
}

/// Copies the elements of a strided tensor, in C order, into `out`. Element 0 is at `byte_offset` in `all`, which
/// contains every element. `strides` are in elements of `item` bytes.
///
/// # Panics
/// Panics if an element lies outside `all`.
pub fn gather(all: &[u8], item: usize, byte_offset: u64, shape: &[u64], strides: &[i64], out: &mut [u8]) {
    // Without elements there is nothing to copy. The other sizes may be so large that their product overflows.
    if shape.contains(&0) {
        return;
    }
    // The innermost dimensions are often contiguous, for example in padded rows or a part of an image. Copy them
    // together.
    let (mut outer, mut run) = (shape.len(), 1u64);
    while outer > 0 && (shape[outer - 1] == 1 || u64::try_from(strides[outer - 1]) == Ok(run)) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    let (piece, item) = (size::index(run) * item, (item as u64).cast_signed());
    let mut index = vec![0u64; outer];
    for place in out.chunks_exact_mut(piece) {
        let step: i64 = index.iter().zip(strides).map(|(&i, &s)| i.cast_signed() * s).sum();
        let at = size::index(byte_offset.wrapping_add_signed(step * item));
        place.copy_from_slice(&all[at..at + piece]);
        for (i, &dim) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < dim {
                break;
            }
            *i = 0;
        }
    }
}

/// Returns whether elements with these strides are contiguous, in C order.
pub fn is_row_major(shape: &[u64], strides: &[i64]) -> bool {
    let packed = shape.iter().zip(strides).rev().try_fold(1u64, |run, (&dim, &stride)| {
        (dim == 1 || u64::try_from(stride) == Ok(run)).then(|| run.wrapping_mul(dim))
    });
    packed.is_some() || shape.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::gather;

    fn gathered(byte_offset: u64, shape: &[u64], strides: &[i64]) -> Vec<u8> {
        let all: Vec<u8> = (0..24).collect();
        let mut out = vec![0; shape.iter().product::<u64>() as usize];
        gather(&all, 1, byte_offset, shape, strides, &mut out);
        out
    }

    #[test]
    fn elements_come_in_c_order() {
        assert_eq!(gathered(0, &[2, 3], &[4, 1]), [0, 1, 2, 4, 5, 6]);
        assert_eq!(gathered(0, &[3, 2], &[1, 4]), [0, 4, 1, 5, 2, 6]);
        assert_eq!(gathered(5, &[2, 3], &[-3, 1]), [5, 6, 7, 2, 3, 4]);
        assert_eq!(gathered(3, &[2, 2], &[0, 0]), [3; 4]);
        assert_eq!(gathered(0, &[2, 1, 2, 3], &[12, 99, 3, 1]), [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17]);
        assert_eq!(gathered(7, &[], &[]), [7]);
        assert!(gathered(0, &[0, 3], &[3, 1]).is_empty());
        gather(&[], 1, 0, &[0, 1 << 40, 1 << 40], &[0, 1 << 40, 1], &mut []);
    }

    #[test]
    fn elements_of_several_bytes_stay_whole() {
        let all: Vec<u8> = (0..12).collect();
        let mut out = [0; 8];
        gather(&all, 2, 2, &[2, 2], &[1, 2], &mut out);
        assert_eq!(out, [2, 3, 6, 7, 4, 5, 8, 9]);
    }
}
