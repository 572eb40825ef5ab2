//! The sizes and strides of a tensor.

/// Maximum number of dimensions of a tensor (numpy's limit is 64; users of torch and `DLPack` stay below 16).
pub const NDIM_MAX: usize = 16;

/// Sizes of a tensor: up to 16 dimensions, in elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    dims: [u64; NDIM_MAX],
    ndim: u8,
}

impl Shape {
    /// Creates a shape. Returns `None` above 16 dimensions.
    pub fn new(dims: &[u64]) -> Option<Self> {
        let mut all = [0; NDIM_MAX];
        all.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(Self { dims: all, ndim: u8::try_from(dims.len()).ok()? })
    }

    /// Returns the number of elements, which is 1 for a tensor without dimensions. Returns `None`
    /// if the number does not fit into 64 bits.
    pub fn elements(&self) -> Option<u64> {
        elements(self)
    }
}

impl core::ops::Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.dims[..self.ndim as usize]
    }
}

impl core::fmt::Debug for Shape {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(&**self, f)
    }
}

/// Strides in elements, one for each dimension.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    steps: [i64; NDIM_MAX],
    ndim: u8,
}

impl Strides {
    /// Creates strides. Returns `None` above 16 dimensions.
    pub fn new(steps: &[i64]) -> Option<Self> {
        let mut all = [0; NDIM_MAX];
        all.get_mut(..steps.len())?.copy_from_slice(steps);
        Some(Self { steps: all, ndim: u8::try_from(steps.len()).ok()? })
    }

    /// Returns the row-major (C order) strides of a shape.
    pub fn row_major(shape: &[u64]) -> Option<Self> {
        let mut steps = [0; NDIM_MAX];
        let mut step = 1i64;
        for (at, &dim) in shape.iter().enumerate().rev() {
            *steps.get_mut(at)? = step;
            step = step.saturating_mul(i64::try_from(dim.max(1)).unwrap_or(i64::MAX));
        }
        Self::new(&steps[..shape.len()])
    }
}

impl core::ops::Deref for Strides {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.steps[..self.ndim as usize]
    }
}

impl core::fmt::Debug for Strides {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Debug::fmt(&**self, f)
    }
}

#[inline]
pub(super) fn elements(shape: &[u64]) -> Option<u64> {
    let product = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    // A size of 0 makes the product 0, whatever the other sizes are.
    product.or_else(|| shape.contains(&0).then_some(0))
}
