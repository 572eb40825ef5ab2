//! Leased device memory as slices of `cudarc`.
//!
//! The contract has two parts:
//! 1. The range contains the elements of a draft or a lease that stays borrowed in the meantime, and its segment is
//!    mapped.
//! 2. `cudarc` frees the memory of a slice that it owns, so these slices are never dropped.
#![allow(unsafe_code)]

use crate::segment::map::DeviceRange;
use cudarc::driver::{CudaSlice, CudaStream};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use tensorlend_layout::size;

/// A slice that does not free its memory.
struct Unowned<T>(Option<CudaSlice<T>>);

impl<T> Unowned<T> {
    fn new(range: DeviceRange, stream: &Arc<CudaStream>) -> Self {
        let elements = size::index(range.bytes) / size_of::<T>().max(1);
        // SAFETY: the range holds this number of elements, of a type for which every bit pattern is valid. `drop`
        // leaks the slice, so cudarc never frees the range.
        Self(Some(unsafe { stream.upgrade_device_ptr(range.ptr, elements) }))
    }

    fn get(&self) -> &CudaSlice<T> {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl<T> Drop for Unowned<T> {
    fn drop(&mut self) {
        // Leaking makes the slice's stream wait for work on the slice in other streams.
        self.0.take().map(CudaSlice::leak);
    }
}

/// The elements of a [`crate::DeviceLease`] as a slice of `cudarc`, for reading. Pass the slice to copies and kernels
/// that take a slice by reference. [`crate::DeviceTensor::slice`] creates it.
///
/// The slice borrows the lease and derefs to `CudaSlice<T>`. Dropping the slice does not free the memory.
pub struct BorrowedSlice<'l, T> {
    slice: Unowned<T>,
    of: PhantomData<&'l T>,
}

impl<T> BorrowedSlice<'_, T> {
    pub(crate) fn new(range: DeviceRange, stream: &Arc<CudaStream>) -> Self {
        Self { slice: Unowned::new(range, stream), of: PhantomData }
    }
}

impl<T> Deref for BorrowedSlice<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        self.slice.get()
    }
}

/// The elements of a [`crate::DeviceDraft`] as a slice of `cudarc`, for writing. [`crate::DeviceDraft::slice`]
/// creates it.
///
/// The slice borrows the draft and derefs to `CudaSlice<T>`. Dropping the slice does not free the memory.
pub struct BorrowedSliceMut<'d, T> {
    slice: Unowned<T>,
    of: PhantomData<&'d mut T>,
}

impl<T> BorrowedSliceMut<'_, T> {
    pub(crate) fn new(range: DeviceRange, stream: &Arc<CudaStream>) -> Self {
        Self { slice: Unowned::new(range, stream), of: PhantomData }
    }
}

impl<T> Deref for BorrowedSliceMut<'_, T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        self.slice.get()
    }
}

impl<T> DerefMut for BorrowedSliceMut<'_, T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        self.slice.0.as_mut().expect("there until it is dropped")
    }
}

impl<T> std::fmt::Debug for BorrowedSlice<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BorrowedSlice").field("elements", &self.len()).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for BorrowedSliceMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BorrowedSliceMut").field("elements", &self.len()).finish_non_exhaustive()
    }
}
