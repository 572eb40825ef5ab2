//! Decoded datasets.

use crate::lease::device::member::DeviceMember;
use crate::lease::member::Member;
use crate::peers::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::tensor::Tensor;
use crate::tensor::index::copy_index;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tensorlend_layout::dataset::Index;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::size;
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, SlotInfo, check_extent};

/// A decoded dataset. The struct is small, so that programs can quickly create, move and drop a `Vec` with many of
/// them.
pub struct Group {
    /// The index's record, as [`SlotInfo::pack`] encodes it, and then the checked index: names and locations of the
    /// tensors. The words of other datasets may be in the same allocation.
    words: Arc<[u64]>,
    /// The range of this dataset's words.
    from: u32,
    end: u32,
    more: Option<Box<More>>,
    /// The tensors in host memory. They are built at the first access, unless building them needed more than the index.
    tensors: OnceLock<Box<[Tensor]>>,
}

/// Rare properties of a dataset.
#[derive(Default)]
pub struct More {
    /// Metadata of the whole dataset, if the record is too small for it.
    pub metadata: Vec<u8>,
    /// Segments of the dataset's tensors in host memory, other than the segment of the index.
    pub segments: Vec<Arc<PeerSegment>>,
    /// The members on devices, with their numbers, in ascending order.
    pub devices: Vec<(usize, DeviceMember)>,
}

const RECORD_WORDS: usize = 16;

/// Copies the words of a [`Group`]: the record, and the unchecked index. Returns their position. The caller must hold
/// the lease.
#[inline(always)]
pub fn copy_group(record: &[u64; RECORD_WORDS], bytes: &Bytes, into: &mut Vec<u64>) -> usize {
    let from = into.len();
    into.extend(record);
    copy_index(bytes, into);
    from
}

/// The reason why the index alone is not enough for a [`Group`].
pub enum NotPlain {
    /// The caller must read the record of a slot, or its extension.
    Records,
    /// The segment of this slot is not mapped.
    Segment(SlotNo),
    Damaged(BadTensor),
}

fn unpack(summary: &HeaderSummary, generation: u64) -> std::result::Result<SlotInfo, NotPlain> {
    SlotInfo::of_summary(summary, generation).ok_or(NotPlain::Records)?.map_err(NotPlain::Damaged)
}

/// Checks a member's summary like [`SlotInfo::check_summary`], and finds the reason for which it is invalid.
#[cold]
fn check(summary: &HeaderSummary, generation: u64, segment_bytes: u64) -> std::result::Result<(), NotPlain> {
    let info = unpack(summary, generation)?;
    info.check(generation, segment_bytes).map_err(NotPlain::Damaged)?;
    let shape = &info.dims[..usize::from(info.ndim)];
    let extent = check_extent(info.dtype, shape, None, info.byte_offset, info.data_bytes);
    extent.map(|_| ()).map_err(NotPlain::Damaged)
}

impl Group {
    /// Returns a group from the index alone, as [`copy_group`] copied it. The record must not be extended. This function
    /// checks every member as the index describes it. `own` is the index's segment, and `segment_of` finds the segment of
    /// any slot.
    #[inline(always)]
    pub fn plain<'s>(
        words: &Arc<[u64]>,
        place: Range<usize>,
        own: &Arc<PeerSegment>,
        segment_of: impl Fn(SlotNo) -> Option<&'s Arc<PeerSegment>>,
    ) -> std::result::Result<Self, NotPlain> {
        let index = index_in(&words[place.clone()]).filter(Index::check);
        let index = index.ok_or(NotPlain::Damaged(BadTensor::Record))?;
        let mut more: Option<Box<More>> = None;
        for at in 0..index.len() {
            let (slot, generation, summary) = index.place(at);
            let segment = if own.holds(slot) {
                own
            } else {
                let Some(segment) = segment_of(slot) else {
                    unpack(&summary, generation)?;
                    return Err(NotPlain::Segment(slot));
                };
                let segments = &mut more.get_or_insert_default().segments;
                if !segments.iter().any(|s| Arc::ptr_eq(s, segment)) {
                    segments.push(segment.clone());
                }
                segment
            };
            // Check the same copy from which the tensor is built later.
            let bytes = segment.map.bytes() as u64;
            if !SlotInfo::check_summary(&summary, bytes) {
                check(&summary, generation, bytes)?;
            }
        }
        let (from, end) = (size::count(place.start), size::count(place.end));
        Ok(Self { words: words.clone(), from, end, more, tensors: OnceLock::new() })
    }

    /// Returns a group from its members' records, if the index is not enough. `tensors` are those in host memory.
    pub fn of_records(words: Arc<[u64]>, tensors: Vec<Tensor>, more: More) -> Self {
        let tensors = OnceLock::from(tensors.into_boxed_slice());
        Self { from: 0, end: size::count(words.len()), words, more: Some(Box::new(more)), tensors }
    }

    fn words(&self) -> &[u64] {
        &self.words[self.from as usize..self.end as usize]
    }

    /// Returns the index: the names and locations of the dataset's tensors.
    #[inline]
    pub fn index(&self) -> Index<'_> {
        index_in(self.words()).expect("it was checked when the lease was taken")
    }

    /// Returns the metadata of the whole dataset.
    pub fn metadata(&self) -> &[u8] {
        let words = &self.words()[..RECORD_WORDS];
        let bytes = (words[2] >> 32) as usize;
        match &self.more {
            Some(more) if !more.metadata.is_empty() => &more.metadata,
            // The bytes are little endian, like the record.
            _ => &bytemuck::cast_slice(&words[12..])[..bytes.min(METADATA_INLINE)],
        }
    }

    /// Returns the timestamp of the whole dataset.
    pub fn timestamp_ns(&self) -> u64 {
        self.words()[6]
    }

    /// Returns the segments of the dataset's tensors in host memory, other than the segment of the index.
    #[cfg(feature = "cuda")]
    pub fn segments(&self) -> &[Arc<PeerSegment>] {
        self.more.as_ref().map_or(&[], |more| &more.segments)
    }

    /// Returns the members on devices, with their numbers.
    #[inline]
    pub fn devices(&self) -> &[(usize, DeviceMember)] {
        self.more.as_ref().map_or(&[], |more| &more.devices)
    }

    /// Returns the member with this number, which must exist. `own` is the index's segment.
    pub fn member(&self, at: usize, own: &Arc<PeerSegment>) -> Member<'_> {
        let devices = self.devices();
        match devices.binary_search_by_key(&at, |(number, _)| *number) {
            Ok(found) => Member::Device(&devices[found].1),
            Err(before) => Member::Host(&self.tensors(own)[at - before]),
        }
    }

    /// Returns the tensors in host memory. `own` is the index's segment.
    pub fn tensors(&self, own: &Arc<PeerSegment>) -> &[Tensor] {
        self.tensors.get_or_init(|| {
            let index = self.index();
            let others = self.more.iter().flat_map(|more| &more.segments);
            let tensor = |at| {
                let (slot, generation, summary) = index.place(at);
                let info = SlotInfo::of_summary(&summary, generation)?.ok()?;
                let segment = std::iter::once(own).chain(others.clone()).find(|s| s.holds(slot))?;
                Tensor::read(&info, Bytes::new(&segment.map, info.data_offset, info.data_bytes)?, None).ok()
            };
            let tensor = |at| tensor(at).expect("it was checked when the lease was taken");
            (0..index.len()).map(tensor).collect()
        })
    }
}

/// Returns the index that follows a record.
#[inline(always)]
pub fn index_in(words: &[u64]) -> Option<Index<'_>> {
    Index::new(bytemuck::cast_slice(words.get(RECORD_WORDS..)?))
}
