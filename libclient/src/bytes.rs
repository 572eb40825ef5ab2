//! Tensor bytes in mapped segments: the only place where this crate makes references into memory that it shares.
//!
//! The contract that every use answers to:
//! 1. The range lies inside the segment's mapping, which the holder keeps alive.
//! 2. For reading: the holder has a lease on the slot (validated after its fence), or is the slot's owner and has
//!    not given it back. An honest owner does not write a published slot again before no lease is left.
//! 3. For writing: the holder is the one draft of the slot, and the slot is not published.
//!
//! A *hostile* owner can write while we read. That is a data race by Rust's rules, which no protection can exclude for
//! memory that another process may write; in practice the reader sees changing numbers and nothing else, because
//! no type with invalid bit patterns is ever made of these bytes.
#![allow(unsafe_code)]

use std::sync::Arc;
use tensorlend_os::map::Segment;

/// A range of a mapped segment.
#[derive(Clone)]
pub struct Bytes {
    segment: Arc<Segment>,
    offset: usize,
    length: usize,
}

// SAFETY: a Bytes is a range and what keeps it mapped; all access goes through the two functions below, whose callers
// answer for exclusion.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `None` if the range does not lie inside the segment.
    pub fn new(segment: Arc<Segment>, offset: u64, length: u64) -> Option<Self> {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        (offset.checked_add(length)? <= segment.bytes()).then_some(Self { segment, offset, length })
    }

    /// The bytes, to read.
    ///
    /// # Safety
    /// 2 of the contract, for as long as the reference lives.
    pub unsafe fn read(&self) -> &[u8] {
        self.check();
        // SAFETY: 1: checked in new, and the segment is held; 2: by the caller.
        unsafe { std::slice::from_raw_parts(self.segment.start().add(self.offset), self.length) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// 3 of the contract, for as long as the reference lives.
    pub unsafe fn write(&mut self) -> &mut [u8] {
        self.check();
        // SAFETY: 1: checked in new, and the segment is held; 3: by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.segment.start().add(self.offset), self.length) }
    }

    /// # Panics
    /// In a forked child, which has nothing mapped there.
    #[inline]
    fn check(&self) {
        assert!(self.segment.is_ours(), "this tensor was leased or drafted by the parent process: get it in the child");
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// A part of this range; `None` if it does not lie inside.
    pub fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        (offset.checked_add(length)? <= self.length).then(|| Self {
            segment: self.segment.clone(),
            offset: self.offset + offset,
            length,
        })
    }
}
