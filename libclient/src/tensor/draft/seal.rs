//! Sealing: writing a draft's record, after which the slot belongs to the code that publishes it.
#![allow(unsafe_code)]

use super::{Draft, Extent, Host, Memory, SLOT_MISSING};
use crate::alloc::taken::Taken;
use crate::error::Result;
use crate::segment::bytes::OwnRecord;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::tensor::{
    EARLY_BYTES, METADATA_INLINE, NDIM_INLINE, PlainTensor, Sealed, SlotInfo, SlotKind, SmallHead,
};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_layout::{DType, Device};

impl Memory for Host {
    #[inline]
    fn device(&self) -> Device {
        Device::CPU
    }

    fn slot(&self) -> (Cell, OwnRecord, Extent) {
        let taken = self.taken();
        (taken.value, taken.record, Extent { offset: taken.offset, bytes: taken.bytes.len() as u64 })
    }

    // Inlined, because a caller that gets the result through memory waits for the processor's store buffer.
    #[inline(always)]
    fn seal(draft: &mut Draft, sequence: u64, next: SlotNo) -> Result<Sealed> {
        draft.seal_host(sequence, next, false)
    }

    #[inline(always)]
    fn seal_entry(draft: &mut Draft, sequence: u64) -> Result<Sealed> {
        draft.seal_host(sequence, SLOT_NONE, true)
    }

    fn free(&mut self, session: &Arc<Session>) {
        if let Some(taken) = self.taken.take() {
            session.alloc().drop_taken(taken);
        }
    }
}

impl<M: Memory> Draft<M> {
    #[inline(always)]
    pub(crate) fn seal(&mut self, sequence: u64, next: SlotNo) -> Result<Sealed> {
        M::seal(self, sequence, next)
    }

    /// Seals the slot of any tensor or dataset index. No device work on it may be pending, unless `early` marks it so.
    #[cold]
    pub(crate) fn seal_any(&mut self, sequence: u64, next: SlotNo, early: bool) -> Result<Sealed> {
        debug_assert!(!self.is_sealed);
        self.session.check()?;
        let head = self.head();
        let extended = head.is_extended() || early;
        let next = if extended {
            let mut bytes = head.extension();
            bytes.extend_from_slice(if early { &[0; EARLY_BYTES] } else { &[] });
            extend(&self.session, &bytes, next)?
        } else {
            next
        };
        let (value, record, extent) = self.memory.slot();
        let mut info = self.head().info(value, extent, sequence, next, extended);
        info.early = early;
        // SAFETY: contract 1: the slot is handed out, and this draft holds the session.
        unsafe { record.get() }.write(&info);
        self.chain(value, next);
        self.is_sealed = true;
        Ok(Sealed { value, summary: info.summary().unwrap_or_default() })
    }

    #[inline]
    fn chain(&self, value: Cell, next: SlotNo) {
        if next != SLOT_NONE {
            self.session.alloc().chain(value.slot(), next);
        }
    }
}

impl Draft {
    #[inline(always)]
    fn seal_host(&mut self, sequence: u64, next: SlotNo, for_entry: bool) -> Result<Sealed> {
        self.session.check()?;
        tensorlend_layout::crash_point!("draft: filled");
        match (self.kind, &self.details, self.shape.four()) {
            (SlotKind::Tensor, None, Some(dims)) => Ok(self.seal_plain(dims, sequence, next, for_entry)),
            _ => self.seal_any(sequence, next, false),
        }
    }

    /// Seals the slot of a tensor without rare properties, which almost every tensor is. `for_entry`: the summary becomes the
    /// words of a stream's entry.
    #[inline(always)]
    fn seal_plain(&mut self, dims: [u64; NDIM_INLINE], sequence: u64, next: SlotNo, for_entry: bool) -> Sealed {
        debug_assert!(!self.is_sealed);
        let taken = self.memory.taken.as_ref().expect(SLOT_MISSING);
        let plain = self.plain(taken, dims);
        // SAFETY: contract 1: the slot is handed out, and this draft holds the session.
        let record = unsafe { taken.record.get() };
        let mut summary = record.prepare_plain(next, sequence, &plain);
        if for_entry && let Some(head) = SmallHead::of_summary(&summary) {
            summary = head.entry(self.filled_bytes(), summary[5]);
        }
        record.seal_plain(taken.generation());
        let value = taken.value;
        self.chain(value, next);
        self.is_sealed = true;
        Sealed { value, summary }
    }

    #[inline(always)]
    fn plain(&self, taken: &Taken, dims: [u64; NDIM_INLINE]) -> PlainTensor {
        PlainTensor {
            dtype: self.dtype,
            ndim: self.shape.ndim(),
            dims,
            data_offset: taken.offset,
            data_bytes: taken.bytes.len() as u64,
            timestamp_ns: self.timestamp_ns,
        }
    }

    /// Returns the bytes of a draft that is about to be sealed. Once it is sealed, another thread may release its segment,
    /// and unmap it.
    #[inline]
    fn filled_bytes(&self) -> &[u8] {
        debug_assert!(!self.is_sealed);
        // SAFETY: contract 1 and 2 of `bytes.rs`: the slot is handed out and not sealed, this draft has it, and holds the
        // session.
        unsafe { self.memory.taken().bytes.read() }
    }

    /// Writes the record as far as it is known before the tensor's bytes are, and not yet its generation. Returns the words
    /// of the entry for [`Draft::seal_prepared`]; `None` for a tensor with more than four dimensions, whose record is not
    /// written. The draft must have no timestamp and no details.
    #[inline]
    pub(crate) fn prepare(&self, sequence: u64) -> Option<HeaderSummary> {
        let taken = self.memory.taken();
        let dims = self.shape.four()?;
        // SAFETY: contract 1: the slot is handed out, and this draft holds the session.
        let record = unsafe { taken.record.get() };
        let summary = record.prepare_plain(SLOT_NONE, sequence, &self.plain(taken, dims));
        Some(SmallHead::of_summary(&summary).map_or(summary, |head| head.entry(&[], 0)))
    }

    /// Seals like [`Memory::seal`], with the record that [`Draft::prepare`] wrote for this draft, and completes the words of
    /// its entry: a summary, or those of a small tensor. Returns `None` if the draft has metadata, which that record lacks.
    #[inline(always)]
    pub(crate) fn seal_prepared(&mut self, entry: &mut HeaderSummary) -> Option<Cell> {
        debug_assert!(!self.is_sealed);
        if self.details.is_some() {
            return None;
        }
        let taken = self.memory.taken.as_ref().expect(SLOT_MISSING);
        // SAFETY: contract 1: the slot is handed out, and this draft holds the session.
        let record = unsafe { taken.record.get() };
        if self.timestamp_ns != 0 {
            record.stamp_plain(entry, self.timestamp_ns);
        }
        if let Some(head) = SmallHead::of_entry(entry) {
            *entry = head.entry(self.filled_bytes(), entry[5]);
        }
        record.seal_plain(taken.generation());
        let value = taken.value;
        self.is_sealed = true;
        Some(value)
    }

    /// Returns the box of a sealed slot. The draft can then be given another slot.
    #[expect(clippy::unnecessary_box_returns, reason = "the next slot uses the box again")]
    #[inline]
    pub(crate) fn give_up_slot(&mut self) -> Box<Taken> {
        debug_assert!(self.is_sealed);
        self.is_sealed = false;
        self.memory.taken.take().expect(SLOT_MISSING)
    }

    #[inline]
    pub(crate) fn has_slot(&self) -> bool {
        self.memory.taken.is_some()
    }

    /// Removes metadata, timestamp, strides and byte offset.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.timestamp_ns = 0;
        self.details = None;
    }
}

/// Writes the bytes that do not fit into a record. They go into a slot of their own, in host memory, which is chained
/// to the record's slot.
#[cold]
fn extend(session: &Arc<Session>, bytes: &[u8], next: SlotNo) -> Result<SlotNo> {
    let mut taken = session.take(bytes.len() as u64)?;
    // SAFETY: contract 1 and 3 of `bytes.rs`. The heap has just handed the slot out, no other code has it, and the
    // caller holds the session.
    unsafe { taken.bytes.write() }.copy_from_slice(bytes);
    let info = SlotInfo {
        generation: taken.generation(),
        kind: SlotKind::Extension,
        dtype: DType::U8,
        device: Device::CPU,
        ndim: 0,
        strided: false,
        extended: false,
        early: false,
        metadata_bytes: 0,
        next,
        data_offset: taken.offset,
        data_bytes: bytes.len() as u64,
        byte_offset: 0,
        timestamp_ns: 0,
        sequence: 0,
        dims: [0; NDIM_INLINE],
        metadata: [0; METADATA_INLINE / 8],
    };
    // SAFETY: contract 1 of `bytes.rs`: the slot is handed out, and the caller holds the session.
    unsafe { taken.record.get() }.write(&info);
    session.alloc().chain(taken.slot(), next);
    Ok(taken.slot())
}
