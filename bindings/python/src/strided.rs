//! The memory order of arrays, and the copy of arrays that are not C-contiguous.

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
