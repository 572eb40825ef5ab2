//! The order of a file's elements, and their conversion to C order and little endian.

use std::io::{self, Read};

use tensorlend::DType;

use super::header::Header;

/// The order of the elements in the file. In memory, the order is always C order and little endian.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    fortran: bool,
    big_endian: bool,
}

impl Layout {
    /// C order and little endian, which needs no conversion.
    pub(super) const PLAIN: Self = Self { fortran: false, big_endian: false };

    pub(super) fn of(header: &Header) -> Self {
        Self { fortran: header.fortran, big_endian: header.big_endian }
    }

    /// Reads a whole tensor of `out.len()` bytes from `reader`, without a second copy.
    pub(super) fn read(self, dtype: DType, shape: &[u64], reader: &mut impl Read, out: &mut [u8]) -> io::Result<()> {
        if self.fortran && !out.is_empty() {
            scatter(dtype.item_bytes(), shape, reader, out)?;
        } else {
            reader.read_exact(out)?;
        }
        let width = number_bytes(dtype);
        if self.big_endian && width > 1 {
            out.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
        Ok(())
    }
}

/// Returns the bytes of one number. For a complex type, this is the real or the imaginary part.
fn number_bytes(dtype: DType) -> usize {
    match dtype {
        DType::C64 | DType::C128 => dtype.item_bytes() / 2,
        _ => dtype.item_bytes(),
    }
}

/// Reads elements whose first axis varies fastest, and stores each element at its offset in C
/// order.
fn scatter(item: usize, shape: &[u64], reader: &mut impl Read, out: &mut [u8]) -> io::Result<()> {
    let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
    let mut strides = vec![item; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let mut index = vec![0; shape.len()];
    let mut place = 0;
    let mut left = out.len();
    let mut chunk = vec![0; left.min(4096 * item)];
    while left > 0 {
        let part = &mut chunk[..left.min(4096 * item)];
        reader.read_exact(part)?;
        left -= part.len();
        for element in part.chunks_exact(item) {
            out[place..place + item].copy_from_slice(element);
            for axis in 0..shape.len() {
                index[axis] += 1;
                place += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                place -= index[axis] * strides[axis];
                index[axis] = 0;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(layout: Layout, dtype: DType, shape: &[u64], data: &[u8]) -> Vec<u8> {
        let mut out = vec![0xEE; data.len()];
        layout.read(dtype, shape, &mut &data[..], &mut out).unwrap();
        out
    }

    #[test]
    fn fortran_order_becomes_c_order() {
        let fortran = Layout { fortran: true, ..Layout::PLAIN };
        assert_eq!(read(fortran, DType::U8, &[2, 3], &[0, 3, 1, 4, 2, 5]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(read(fortran, DType::U8, &[2, 2, 2], &[0, 4, 2, 6, 1, 5, 3, 7]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(read(fortran, DType::U16, &[2, 1, 2], &[0, 0, 2, 2, 1, 1, 3, 3]), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn fortran_order_over_many_chunks() {
        let (rows, columns) = (129u32, 401u32);
        let stored: Vec<u8> =
            (0..columns).flat_map(|c| (0..rows).flat_map(move |r| (r * columns + c).to_le_bytes())).collect();
        let wanted: Vec<u8> = (0..rows * columns).flat_map(u32::to_le_bytes).collect();
        let fortran = Layout { fortran: true, ..Layout::PLAIN };
        let shape = [u64::from(rows), u64::from(columns)];
        assert_eq!(read(fortran, DType::U32, &shape, &stored), wanted);
    }

    #[test]
    fn big_endian_numbers_are_turned_round() {
        let big = Layout { big_endian: true, ..Layout::PLAIN };
        let data = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(read(big, DType::U8, &[8], &data), data);
        assert_eq!(read(big, DType::F16, &[4], &data), [2, 1, 4, 3, 6, 5, 8, 7]);
        assert_eq!(read(big, DType::F64, &[1], &data), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(read(big, DType::C64, &[1], &data), [4, 3, 2, 1, 8, 7, 6, 5]);
    }
}
