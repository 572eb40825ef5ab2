//! The layout of tensors, the memory order of arrays, and the copy of arrays that are not C-contiguous.

use crate::display;
use tensorlend::{DType, Tensor, TensorSpec};

/// The element type, the sizes and the strides of a tensor that Python objects view.
#[derive(Clone)]
pub struct Layout {
    /// The element type.
    pub dtype: DType,
    /// Sizes, in elements.
    pub shape: Box<[i64]>,
    /// Strides, in elements.
    pub strides: Box<[i64]>,
    /// Whether consumers of an exported view may write.
    pub writable: bool,
}

impl Layout {
    /// Returns the layout of a leased tensor.
    pub fn leased<M>(tensor: &Tensor<M>, writable: bool) -> Self {
        let shape = tensor.shape().iter().map(|&size| size as i64).collect();
        Self { dtype: tensor.dtype(), shape, strides: tensor.strides().into(), writable }
    }

    /// Returns the layout of a draft.
    pub fn drafted(spec: TensorSpec) -> Self {
        let shape: Box<[i64]> = spec.shape.iter().map(|&size| size as i64).collect();
        let strides = spec.strides.map_or_else(|| row_major(&shape), Into::into);
        Self { dtype: spec.dtype, shape, strides, writable: true }
    }

    /// Returns the layout of a copy in C order.
    pub fn copied(&self) -> Self {
        Self { strides: row_major(&self.shape), writable: true, ..self.clone() }
    }

    /// Returns the sizes, in elements.
    pub fn sizes(&self) -> Vec<u64> {
        self.shape.iter().map(|&size| size as u64).collect()
    }

    /// Returns the bytes of one element.
    pub fn item(&self) -> usize {
        self.dtype.item_bytes()
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Returns the bytes of all elements.
    pub fn nbytes(&self) -> usize {
        self.elements() * self.item()
    }

    /// Returns the strides, in bytes.
    pub fn byte_strides(&self) -> Vec<i64> {
        self.strides.iter().map(|s| s * self.item() as i64).collect()
    }

    /// Returns true if the elements are C-contiguous.
    pub fn is_row_major(&self) -> bool {
        let axes = self.shape.iter().copied().zip(self.strides.iter().copied());
        self.shape.contains(&0) || is_packed(axes.rev(), 1)
    }

    /// Returns the dtype, the shape and the bytes, as `repr` shows them.
    pub fn text(&self) -> String {
        let (dtype, shape) = (self.dtype.numpy_name(), display::tuple(&self.shape));
        format!("{dtype} {shape}, {}", display::count(self.nbytes() as u64, "byte"))
    }
}

/// Returns C-contiguous strides in elements.
pub fn row_major(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![0; shape.len()];
    let mut next = 1;
    for (stride, dim) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next *= dim.max(&1);
    }
    strides.into()
}

/// The memory order of an array's elements.
pub enum Order {
    /// C-contiguous.
    RowMajor,
    /// Contiguous, with the axes in another order. Contains the strides in elements.
    Permuted(Vec<i64>),
    /// With gaps, repeated elements, or negative strides.
    Scattered,
}

/// Returns true if elements of `item` bytes are contiguous. `axes` has the size and the stride of each axis, the
/// innermost first.
pub fn is_packed(axes: impl IntoIterator<Item = (i64, i64)>, item: i64) -> bool {
    let mut next = item;
    axes.into_iter().all(|(size, stride)| {
        let fits = size == 1 || stride == next;
        next *= size;
        fits
    })
}

/// Returns the memory order of elements of `item` bytes with these sizes and these strides in bytes.
pub fn order(shape: &[u64], strides: &[i64], item: usize) -> Order {
    if shape.contains(&0) {
        return Order::RowMajor;
    }
    let sized = |axis: usize| (shape[axis] as i64, strides[axis]);
    if is_packed((0..shape.len()).rev().map(sized), item as i64) {
        return Order::RowMajor;
    }
    // Sort the axes by their strides. An axis of one element may have any stride.
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    axes.sort_by_key(|&axis| (strides[axis], shape[axis]));
    if !is_packed(axes.iter().copied().map(sized), item as i64) {
        return Order::Scattered;
    }
    let mut elements = vec![0; shape.len()];
    let mut next = 1;
    for axis in axes {
        elements[axis] = next;
        next *= shape[axis] as i64;
    }
    Order::Permuted(elements)
}

/// Copies elements in C order, contiguously, into `out`.
///
/// # Safety
/// Every element of this shape with these strides (in bytes) from `start` on is readable during the
/// call.
#[allow(unsafe_code)]
pub unsafe fn gather(start: *const u8, shape: &[u64], strides: &[i64], item: usize, out: &mut [u8]) {
    // Copy the longest contiguous run of trailing axes as one piece.
    let (mut piece, mut outer) = (item, shape.len());
    while outer > 0 && (shape[outer - 1] == 1 || strides[outer - 1] == piece as i64) {
        piece *= shape[outer - 1] as usize;
        outer -= 1;
    }
    let (shape, strides) = (&shape[..outer], &strides[..outer]);
    let mut index = vec![0u64; outer];
    let mut from = start;
    for place in out.chunks_exact_mut(piece.max(1)) {
        // SAFETY: the caller guarantees that the elements are readable. `from` is the first byte of
        // a piece that consists of `piece` bytes of elements, and `place` has that length.
        unsafe { std::ptr::copy_nonoverlapping(from, place.as_mut_ptr(), piece) };
        for axis in (0..outer).rev() {
            index[axis] += 1;
            from = from.wrapping_offset(strides[axis] as isize);
            if index[axis] < shape[axis] {
                break;
            }
            from = from.wrapping_offset(-(strides[axis] as isize) * shape[axis] as isize);
            index[axis] = 0;
        }
    }
}
