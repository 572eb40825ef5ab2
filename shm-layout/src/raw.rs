//! All unsafe access to shared memory: typed views over a mapping. Views without a mapping copy the words that they read.
#![allow(unsafe_code)]

use crate::sync::{Ordering, fence};
use crate::word::{Bell, Word};
use core::any::Any;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use std::sync::Arc;

/// Copies words, at most N in one step.
fn copy<const N: usize>(source: &dyn Source, offset: usize, into: &mut [u64]) {
    let mut bytes = [[0; size_of::<Word>()]; N];
    for (part, into) in into.chunks_mut(N).enumerate() {
        let bytes = &mut bytes[..into.len()];
        source.copy(offset + part * N * size_of::<Word>(), bytes.as_flattened_mut());
        into.iter_mut().zip(bytes).for_each(|(into, word)| *into = u64::from_ne_bytes(*word));
    }
}

/// Maximum number of copies of a word in search of two equal ones.
const ATTEMPTS_MAX: usize = 16;

/// A type that may lie in memory that other processes write.
///
/// # Safety
/// 1. The type consists of atomics only, without padding. So every bit pattern is a value and every
///    access is atomic.
/// 2. The type needs no alignment above 64 bytes.
pub unsafe trait Shared: Sized {}

// SAFETY: a Word is one atomic, aligned to its size.
unsafe impl Shared for Word {}
// SAFETY: a Bell is two atomics of 4 bytes, without padding.
unsafe impl Shared for Bell {}
// SAFETY: the elements consist of atomics without padding and need no alignment above 64 bytes.
// Arrays add no padding.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Memory whose bytes a view copies, because the memory is not mapped.
pub trait Source: Send + Sync {
    /// Returns the length of the memory in bytes.
    fn bytes(&self) -> usize;

    /// Copies `into.len()` bytes from `offset` on. They lie inside the memory.
    fn copy(&self, offset: usize, into: &mut [u8]);
}

#[derive(Clone)]
enum Keep {
    /// The object that keeps the memory mapped.
    Mapping(#[expect(dead_code, reason = "its drop ends the mapping")] Arc<dyn Any + Send + Sync>),
    Source(Arc<dyn Source>),
}

/// A sheet. A mapped one has an address, a length, and the object that keeps it mapped. Of another one, only
/// [`View::word`] and [`View::words`] read.
#[derive(Clone)]
pub struct View {
    start: NonNull<u8>,
    /// Number of mapped bytes.
    bytes: usize,
    keep: Keep,
}

// SAFETY: a view returns atomics only, and the object that keeps the mapping alive is itself Send and Sync.
unsafe impl Send for View {}
// SAFETY: a shared view also returns atomics only, and the object that keeps the mapping alive is
// Sync.
unsafe impl Sync for View {}

impl View {
    /// Creates a view of `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// 1. `start` is aligned to 64 bytes and valid for reads of `bytes` bytes for as long as `keep` lives.
    /// 2. This process accesses these bytes only through views.
    /// 3. No code stores through a view of a read-only mapping. (The page protection would end the
    ///    process, without harm to the memory.)
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        assert_eq!(start.as_ptr() as usize % 64, 0, "a sheet begins on a cache line");
        Self { start, bytes, keep: Keep::Mapping(keep) }
    }

    /// Creates a view without a mapping. Each read copies from the source.
    pub fn unmapped(source: Arc<dyn Source>) -> Self {
        Self { start: NonNull::dangling(), bytes: 0, keep: Keep::Source(source) }
    }

    /// Returns zeroed private memory in a sheet's shape, for tests and simulations.
    pub fn anonymous(bytes: usize) -> Self {
        #[repr(C, align(64))]
        struct Line([Word; 8]);
        // The view's `keep` owns the slice. From here on, code accesses the slice only through the view.
        #[cfg(loom)]
        let lines: Arc<[Line]> =
            (0..bytes.div_ceil(64)).map(|_| Line(core::array::from_fn(|_| Word::new(0)))).collect();
        // SAFETY: a `Line` is eight atomics without padding, so all zeros are a valid value.
        #[cfg(not(loom))]
        let lines: Arc<[Line]> = unsafe { Arc::new_zeroed_slice(bytes.div_ceil(64)).assume_init() };
        let start = NonNull::from(&*lines).cast::<u8>();
        // SAFETY: `keep` owns the slice, whose elements are aligned to 64 bytes and whose length
        // covers `bytes`. Atomics permit writes through a shared reference. No other code accesses
        // the slice, and the slice is writable.
        unsafe { Self::new(start, bytes, Arc::new(lines)) }
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        match &self.keep {
            Keep::Mapping(_) => self.bytes,
            Keep::Source(source) => source.bytes(),
        }
    }

    /// Reads the word at `offset`, with Acquire ordering. Returns `None` if the word would lie outside the sheet or misaligned.
    pub fn word(&self, offset: usize) -> Option<u64> {
        let Keep::Source(_) = self.keep else { return Some(self.at::<Word>(offset)?.read()) };
        // The kernel may copy a word in several parts, while its writer stores it. A writer stores a word in one step. So if two
        // copies in succession are equal, neither is a mixture, unless the word had the same two values twice: the words of this
        // layout contain numbers that only grow. A word that never stands still is of a hostile writer.
        let mut last = self.word_once(offset)?;
        for _ in 1..ATTEMPTS_MAX {
            let next = self.word_once(offset)?;
            if next == last {
                break;
            }
            last = next;
        }
        Some(last)
    }

    /// Reads the word at `offset` like [`View::word`], but with one copy, for words of which a mixture of two values does no
    /// harm. A word that was stored before the caller's last fence, and that stays, is not a mixture.
    pub fn word_once(&self, offset: usize) -> Option<u64> {
        let mut word = [0];
        self.words(offset, &mut word).then_some(word[0])
    }

    /// Copies the words from `offset` on. A word that changes at the same time may be copied in parts, in a view without a
    /// mapping. A later access of this thread is not done before the copy. Returns false if the words would lie outside the
    /// sheet or misaligned.
    pub fn words(&self, offset: usize, into: &mut [u64]) -> bool {
        let end = into.len().checked_mul(size_of::<Word>()).and_then(|bytes| bytes.checked_add(offset));
        if !offset.is_multiple_of(align_of::<Word>()) || end.is_none_or(|end| end > self.bytes()) {
            return false;
        }
        match &self.keep {
            Keep::Mapping(_) => {
                let words: &[Word] = self.array(offset, into.len()).unwrap_or_default();
                into.iter_mut().zip(words).for_each(|(into, word)| *into = word.peek());
            }
            Keep::Source(source) => {
                if into.len() <= 16 {
                    copy::<16>(&**source, offset, into);
                } else {
                    copy::<512>(&**source, offset, into);
                }
            }
        }
        fence(Ordering::Acquire);
        true
    }

    /// Returns the `T` at `offset`. Returns `None` if the `T` would lie outside the sheet or
    /// misaligned.
    #[inline]
    pub fn at<T: Shared>(&self, offset: usize) -> Option<&T> {
        self.array(offset, 1).map(|a: &[T]| &a[0])
    }

    /// Returns a slice of `count` elements from `offset` on. Returns `None` if the slice would lie
    /// outside the sheet or misaligned.
    #[inline]
    pub fn array<T: Shared>(&self, offset: usize, count: usize) -> Option<&[T]> {
        let end = count.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > self.bytes || !offset.is_multiple_of(align_of::<T>()) || count > isize::MAX as usize {
            return None;
        }
        // SAFETY: the slice is inside the mapping, which `View::new` requires to be valid. The
        // slice is aligned, because `start` is aligned to 64 bytes and `offset` to `T`. T is
        // Shared: any bits are a value and all access is atomic, so a writer in another process
        // causes no data race.
        Some(unsafe { core::slice::from_raw_parts(self.start.as_ptr().add(offset).cast::<T>(), count) })
    }
}

impl core::fmt::Debug for View {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "View of {} bytes", self.bytes())
    }
}

/// A view that begins with a `T`.
pub struct Sheet<T> {
    view: View,
    head: NonNull<T>,
    _is: PhantomData<fn() -> T>,
}

// SAFETY: the sheet holds a View, which is Send. The sheet gives out only shared references to T,
// which consists of atomics.
unsafe impl<T: Shared> Send for Sheet<T> {}
// SAFETY: the sheet holds a View, which is Sync. The sheet gives out only shared references to T,
// which consists of atomics.
unsafe impl<T: Shared> Sync for Sheet<T> {}

impl<T: Shared> Sheet<T> {
    /// Creates a sheet over the view. Returns `None` if the view is too short for a `T`.
    pub fn new(view: View) -> Option<Self> {
        let head = NonNull::from(view.at::<T>(0)?);
        Some(Self { view, head, _is: PhantomData })
    }

    /// Returns the whole view.
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl<T: Shared> Clone for Sheet<T> {
    fn clone(&self) -> Self {
        Self { view: self.view.clone(), head: self.head, _is: PhantomData }
    }
}

impl<T: Shared> Deref for Sheet<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `new` got the pointer from `View::at`, which checks it. The view that keeps the
        // memory mapped is a field of this value.
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

// SAFETY: the records hold a View, which is Send. They give out only shared references to T, which
// consists of atomics.
unsafe impl<T: Shared> Send for Records<T> {}
// SAFETY: the records hold a View, which is Sync. They give out only shared references to T, which
// consists of atomics.
unsafe impl<T: Shared> Sync for Records<T> {}

impl<T: Shared> Records<T> {
    /// Returns `count` records from byte `at` on. Returns `None` if the records would lie outside
    /// the view.
    pub fn new(view: &View, at: usize, count: usize) -> Option<Self> {
        let first = NonNull::from(view.array::<T>(at, count)?).cast();
        Some(Self { view: view.clone(), first, count, _is: PhantomData })
    }

    /// Returns the whole view.
    pub fn view(&self) -> &View {
        &self.view
    }
}

impl<T: Shared> Clone for Records<T> {
    fn clone(&self) -> Self {
        Self { view: self.view.clone(), first: self.first, count: self.count, _is: PhantomData }
    }
}

impl<T: Shared> Deref for Records<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` got the pointer from `View::array`, which checks it. The view that keeps
        // the memory mapped is a field of this value.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A structure of 128 bytes.
    type Line = [Word; 16];

    #[test]
    fn a_view_gives_what_lies_inside_it_and_nothing_else() {
        let view = View::anonymous(256);
        assert_eq!(view.bytes(), 256);
        assert!(view.at::<Word>(248).is_some());
        assert!(view.at::<Word>(249).is_none(), "beyond the end");
        assert!(view.at::<Word>(4).is_none(), "not aligned");
        assert!(view.at::<Word>(256).is_none());
        assert!(view.at::<Word>(usize::MAX - 7).is_none(), "the sum overflows");
        assert!(view.at::<Bell>(252).is_none());
        assert_eq!(view.array::<Word>(0, 32).unwrap().len(), 32);
        assert!(view.array::<Word>(0, 33).is_none());
        assert!(view.array::<Word>(8, 32).is_none());
        assert!(view.array::<Word>(0, usize::MAX / 4).is_none(), "the product overflows");
        assert_eq!(view.array::<Word>(256, 0).unwrap().len(), 0);
        assert!(view.array::<Word>(257, 0).is_none());
    }

    #[test]
    fn a_view_of_odd_length_ends_where_it_says() {
        let view = View::anonymous(65);
        assert!(view.at::<Word>(56).is_some());
        assert!(view.at::<Word>(64).is_none(), "the last byte is no word");
        assert!(View::anonymous(0).at::<Word>(0).is_none());
    }

    #[test]
    fn what_one_view_stores_its_clones_read() {
        let view = View::anonymous(128);
        view.at::<Word>(64).unwrap().set(7);
        let other = view.clone();
        drop(view);
        std::thread::scope(|s| {
            s.spawn(|| other.at::<Word>(64).unwrap().set(8));
        });
        assert_eq!(other.at::<Word>(64).unwrap().read(), 8);
    }

    /// Memory of which every word differs at each copy for some copies, as under a hostile writer or in a copy in parts.
    struct Unsteady(Word, u8);

    impl Source for Unsteady {
        fn bytes(&self) -> usize {
            1024
        }

        fn copy(&self, offset: usize, into: &mut [u8]) {
            let copies = self.0.peek();
            self.0.set(copies + 1);
            into.fill(copies.min(self.1.into()) as u8);
            assert!(offset + into.len() <= self.bytes());
        }
    }

    #[test]
    fn a_view_without_a_mapping_copies_what_lies_inside_it_and_no_word_in_parts() {
        let view = |steady_after| View::unmapped(Arc::new(Unsteady(Word::new(0), steady_after)));
        assert_eq!(view(0).bytes(), 1024);
        assert!(view(0).at::<Word>(0).is_none(), "nothing is mapped");
        assert_eq!((view(0).word(1016), view(0).word(1017), view(0).word(1024)), (Some(0), None, None));
        assert_eq!(view(3).word(0), Some(u64::from_ne_bytes([3; 8])), "of the first copies no two are equal");
        assert!(view(u8::MAX).word(0).is_some(), "the number of copies is limited");
        let mut words = [9; 128];
        assert!(view(0).words(0, &mut words));
        assert_eq!(words, [0; 128]);
        for offset in [8, 4, 1024, usize::MAX] {
            assert!(!view(0).words(offset, &mut words), "{offset}");
        }
        let mapped = View::anonymous(1024);
        mapped.at::<Word>(64).unwrap().set(7);
        assert!(mapped.words(0, &mut words));
        assert_eq!((words[8], mapped.word(64), mapped.word(1020)), (7, Some(7), None));
    }

    #[test]
    fn a_sheet_needs_its_whole_head_and_keeps_it_mapped() {
        assert!(Sheet::<Line>::new(View::anonymous(127)).is_none());
        let sheet = Sheet::<Line>::new(View::anonymous(128)).unwrap();
        let clone = sheet.clone();
        sheet[0].set(5);
        sheet[15].set(1);
        drop(sheet);
        assert_eq!((clone[0].read(), clone[15].read()), (5, 1));
        assert_eq!(clone.view().bytes(), 128);
        assert_eq!(clone.view().at::<Word>(0).unwrap().peek(), 5);
    }

    #[test]
    fn records_lie_side_by_side_inside_their_view() {
        let view = View::anonymous(128 * 3);
        assert!(Records::<Line>::new(&view, 0, 4).is_none());
        assert!(Records::<Line>::new(&view, 128, 3).is_none());
        assert!(Records::<Line>::new(&view, 4, 1).is_none());
        assert!(Records::<Line>::new(&view, 0, usize::MAX).is_none());
        assert!(Records::<Line>::new(&view, 384, 0).unwrap().is_empty());
        let records = Records::<Line>::new(&view, 128, 2).unwrap();
        records[1][15].set(9);
        assert_eq!(view.at::<Word>(376).unwrap().read(), 9);
        drop(view);
        let clone = records.clone();
        drop(records);
        assert_eq!((clone.len(), clone[1][15].read(), clone.view().bytes()), (2, 9, 384));
    }
}
