//! All unsafe access to shared memory: typed views over a mapping.
#![allow(unsafe_code)]

use crate::word::{Bell, Word};
use core::any::Any;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

/// A type that may lie in memory which other processes write.
///
/// # Safety
/// 1. It consists of atomics only, without padding, so that every bit pattern is a value and every access is atomic.
/// 2. It needs no alignment above 64 bytes.
pub unsafe trait Shared: Sized {}

// SAFETY: 1, 2: one atomic.
unsafe impl Shared for Word {}
// SAFETY: 1, 2: two atomics of 4 bytes.
unsafe impl Shared for Bell {}
// SAFETY: 1, 2: as its elements; arrays have no padding.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// A mapped sheet: where it lies, how long it is, and what keeps it mapped.
#[derive(Clone)]
pub struct View {
    start: NonNull<u8>,
    bytes: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a view gives out atomics only, and what keeps the mapping alive is itself Send and Sync.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// A view of `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// 1. `start` is aligned to 64 bytes and valid for reads of `bytes` bytes for as long as `keep` lives.
    /// 2. This process accesses these bytes through views only.
    /// 3. Nobody stores through a view of a read-only mapping (the page protection would kill the process: no
    ///    memory is harmed).
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        assert_eq!(start.as_ptr() as usize % 64, 0, "a sheet begins on a cache line");
        Self {
            start,
            bytes,
            _keep: keep,
        }
    }

    /// Zeroed private memory in a sheet's shape, for tests and simulations.
    pub fn anonymous(bytes: usize) -> Self {
        #[repr(C, align(64))]
        struct Line([Word; 8]);
        // The slice is owned by the keeper and reached through the view alone from here on.
        let lines: Arc<[Line]> = (0..bytes.div_ceil(64))
            .map(|_| Line(core::array::from_fn(|_| Word::new(0))))
            .collect();
        let start = NonNull::from(&*lines).cast::<u8>();
        // SAFETY: 1: the keeper owns the slice, whose elements are aligned to 64 and whose length covers `bytes`;
        // under atomics a shared reference permits writing. 2: nobody else has it. 3: it is writable.
        unsafe { Self::new(start, bytes, Arc::new(lines)) }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The `T` at `offset`; `None` if it would not lie inside the sheet or not be aligned.
    #[inline]
    pub fn at<T: Shared>(&self, offset: usize) -> Option<&T> {
        self.array(offset, 1).map(|a: &[T]| &a[0])
    }

    /// `count` of `T` from `offset` on; `None` if they would not lie inside the sheet or not be aligned.
    #[inline]
    pub fn array<T: Shared>(&self, offset: usize, count: usize) -> Option<&[T]> {
        let end = count.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > self.bytes || !offset.is_multiple_of(align_of::<T>()) || count > isize::MAX as usize {
            return None;
        }
        // SAFETY: inside the mapping (View::new, 1), aligned (start by 64, offset by T); T is Shared: any bits are a
        // value and all access is atomic, so that a writer in another process is no data race.
        Some(unsafe { core::slice::from_raw_parts(self.start.as_ptr().add(offset).cast::<T>(), count) })
    }
}

/// A view whose head is a `T`.
pub struct Sheet<T> {
    view: View,
    head: NonNull<T>,
    _is: PhantomData<fn() -> T>,
}

// SAFETY: as View, which it holds; T is reached by shared reference only and consists of atomics.
unsafe impl<T: Shared> Send for Sheet<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Sheet<T> {}

impl<T: Shared> Sheet<T> {
    /// `None` if the view is too short for a `T`.
    pub fn new(view: View) -> Option<Self> {
        let head = NonNull::from(view.at::<T>(0)?);
        Some(Self {
            view,
            head,
            _is: PhantomData,
        })
    }

    /// The whole view.
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl<T: Shared> Clone for Sheet<T> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            head: self.head,
            _is: PhantomData,
        }
    }
}

impl<T: Shared> Deref for Sheet<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: checked by View::at in new; the view that keeps it mapped is held beside it.
        unsafe { self.head.as_ref() }
    }
}

/// Records of a view: a slice of `T` that keeps the view mapped.
pub struct Records<T> {
    view: View,
    first: NonNull<T>,
    count: usize,
    _is: PhantomData<fn() -> T>,
}

// SAFETY: as Sheet.
unsafe impl<T: Shared> Send for Records<T> {}
// SAFETY: as Sheet.
unsafe impl<T: Shared> Sync for Records<T> {}

impl<T: Shared> Records<T> {
    /// `count` records from byte `at` on; `None` if they would not lie inside the view.
    pub fn new(view: &View, at: usize, count: usize) -> Option<Self> {
        let first = NonNull::from(view.array::<T>(at, count)?).cast();
        Some(Self {
            view: view.clone(),
            first,
            count,
            _is: PhantomData,
        })
    }

    /// The whole view.
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl<T: Shared> Clone for Records<T> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            first: self.first,
            count: self.count,
            _is: PhantomData,
        }
    }
}

impl<T: Shared> Deref for Records<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: checked by View::array in new; the view that keeps it mapped is held beside it.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}
