//! Tensor bytes in mapped segments, and the records that describe them. This is the only module of the crate that makes
//! references into shared memory.
//!
//! The contract of every use:
//! 1. The range lies inside the segment's mapping, and the mapping lasts while the range is used. A reader keeps the
//!    segment together with its lease. A draft keeps the session, whose heap keeps every segment with a slot that is
//!    handed out and not sealed yet (for segments released for spill, see [`crate::alloc::heap`]).
//! 2. For reading: the holder has a lease on the slot (validated after its fence), or the holder owns the slot and
//!    has not released it. An honest owner writes to a published slot again only when no lease covers the slot.
//! 3. For writing: the holder is the only draft of the slot, and the slot is not published.
//!
//! A *hostile* owner can write while a reader reads. By Rust's rules this is a data race. No protection can exclude
//! it for memory that another process may write. In practice the reader only sees changing numbers, because this
//! crate never makes a type with invalid bit patterns of these bytes.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::tensor::SMALL_WORDS;
use tensorlend_os::fork::Origin;
use tensorlend_os::map::Segment;

const NOT_HERE: &str =
    "this tensor was leased or drafted by the parent process, and is not mapped here: get it in the child";

/// A range of a mapped segment.
#[derive(Clone, Copy)]
pub struct Bytes {
    start: NonNull<u8>,
    length: usize,
    /// The process that mapped the range.
    origin: Origin,
}

// SAFETY: a `Bytes` is only a range. All access to its memory is through `read` and `write`, whose callers guarantee
// exclusion and the mapping.
unsafe impl Send for Bytes {}
// SAFETY: a `Bytes` is only a range. The callers of `read` and `write` guarantee exclusion and the mapping.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Returns a range of a segment. Returns `None` if the range is not inside the segment.
    #[inline]
    pub fn new(segment: &Segment, offset: u64, length: u64) -> Option<Self> {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        if offset.checked_add(length)? > segment.bytes() {
            return None;
        }
        // SAFETY: `offset` is inside the mapping, by the comparison above.
        let start = unsafe { segment.start().add(offset) };
        Some(Self { start: NonNull::new(start)?, length, origin: segment.origin() })
    }

    /// Returns a range of this process's private memory, which takes the place of a segment in the module's contract.
    #[inline]
    pub fn of_copy(copy: &[u64; SMALL_WORDS], length: usize) -> Option<Self> {
        (length <= size_of_val(copy)).then_some(Self {
            start: NonNull::from(copy).cast(),
            length,
            origin: Origin::here(false),
        })
    }

    /// Returns the same range for this process only: no lease protects its bytes for forked children.
    pub fn not_inherited(self) -> Self {
        Self { origin: self.origin.not_inherited(), ..self }
    }

    /// Returns the bytes, for reading.
    ///
    /// # Panics
    /// Panics in a forked child, unless the child inherited the mapping and reads under its parent's lease.
    ///
    /// # Safety
    /// Conditions 1 and 2 of the module's contract (mapping and lease) must hold for as long as the reference lives.
    #[inline]
    pub unsafe fn read(&self) -> &[u8] {
        assert!(self.origin.is_readable(), "{NOT_HERE}");
        // SAFETY: `new` checked that the range is inside the segment. The caller keeps it mapped, and holds a lease
        // or owns the slot.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Returns the bytes, for writing.
    ///
    /// # Panics
    /// Panics in a forked child, because a draft's memory is not mapped there.
    ///
    /// # Safety
    /// Conditions 1 and 3 of the module's contract (mapping and exclusion) must hold for as long as the reference
    /// lives.
    #[inline]
    pub unsafe fn write(&mut self) -> &mut [u8] {
        assert!(self.origin.is_ours(), "{NOT_HERE}");
        // SAFETY: `new` checked that the range is inside the segment. The caller keeps it mapped, and is the slot's
        // only draft.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }
}

/// The record of one of this client's own slots.
#[derive(Clone, Copy)]
pub struct OwnRecord(NonNull<SlotRecord>);

// SAFETY: a record consists of atomics. All access is through `get`, whose callers guarantee the mapping.
unsafe impl Send for OwnRecord {}
// SAFETY: a record consists of atomics, so several threads may access it through `get`. Its callers guarantee the
// mapping.
unsafe impl Sync for OwnRecord {}

impl OwnRecord {
    pub fn new(record: &SlotRecord) -> Self {
        Self(NonNull::from(record))
    }

    /// Returns the record.
    ///
    /// # Safety
    /// The slot's segment must be mapped: its records stay mapped as long as the segment.
    #[inline]
    pub unsafe fn get(&self) -> &SlotRecord {
        // SAFETY: `self` was made from a reference, and the caller guarantees that its target is still mapped.
        unsafe { self.0.as_ref() }
    }
}
