//! What a dataset consists of, decoded.

use crate::peers::sheets::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::tensor::Tensor;
use crate::tensor::layout_of::copy_index;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tensorlend_layout::dataset::Index;
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, SlotInfo, check_extent};

/// What a dataset consists of. Small: a list of many is quick to make, to move and to drop.
pub struct Group {
    /// The record of the index, as [`SlotInfo::pack`] makes it, and the index itself: names and places of the tensors,
    /// checked. Those of other datasets may stand beside them.
    words: Arc<[u64]>,
    /// Where they begin and end.
    from: u32,
    end: u32,
    more: Option<Box<More>>,
    /// Its tensors, made when one is asked for first, unless it took more than the index to make them.
    tensors: OnceLock<Box<[Tensor]>>,
}

/// What few datasets have.
#[derive(Default)]
struct More {
    /// Metadata of the whole, if they do not fit into the record.
    metadata: Vec<u8>,
    /// Segments that its tensors lie in, besides the one of the index.
    segments: Vec<Arc<PeerSegment>>,
}

/// Words of a record.
const RECORD_WORDS: usize = 16;

/// Copies what makes a [`Group`]: its record, and its index, which nobody has looked at yet. Returns where they begin. The
/// caller holds the lease.
#[inline(always)]
pub fn copy_group(record: &[u64; RECORD_WORDS], bytes: &Bytes, into: &mut Vec<u64>) -> usize {
    let from = into.len();
    into.extend(record);
    copy_index(bytes, into);
    from
}

/// Why there is no [`Group`] by the index alone.
pub enum NotPlain {
    /// Some slot's record, or its extension, has to be read.
    Records,
    /// This slot's segment is not mapped.
    Segment(u32),
    Damaged(BadTensor),
}

impl Group {
    /// By the index alone, as [`copy_group`] copied it to this place, with a record that is not extended: every member is
    /// checked as the index tells it. `own` is the segment of the index, `segment_of` finds that of any slot.
    #[inline(always)]
    pub fn plain<'s>(
        words: &Arc<[u64]>,
        place: Range<usize>,
        own: &Arc<PeerSegment>,
        segment_of: impl Fn(u32) -> Option<&'s Arc<PeerSegment>>,
    ) -> std::result::Result<Self, NotPlain> {
        let index = index_in(&words[place.clone()]).filter(Index::check);
        let index = index.ok_or(NotPlain::Damaged(BadTensor::Record))?;
        let mut more: Option<Box<More>> = None;
        for at in 0..index.len() {
            let (slot, generation, brief) = index.place(at);
            let info = SlotInfo::of_brief(&brief, generation).ok_or(NotPlain::Records)?.map_err(NotPlain::Damaged)?;
            let segment = if own.holds(slot) {
                own
            } else {
                let segment = segment_of(slot).ok_or(NotPlain::Segment(slot))?;
                let segments = &mut more.get_or_insert_default().segments;
                if !segments.iter().any(|s| Arc::ptr_eq(s, segment)) {
                    segments.push(segment.clone());
                }
                segment
            };
            // What is checked here is what a tensor is made of later: it comes from the same copy.
            info.check(generation, segment.map.bytes() as u64).map_err(NotPlain::Damaged)?;
            let shape = &info.dims[..usize::from(info.ndim)];
            check_extent(info.dtype, shape, None, info.byte_offset, info.data_bytes).map_err(NotPlain::Damaged)?;
        }
        let (from, end) = (place.start as u32, place.end as u32);
        Ok(Self { words: words.clone(), from, end, more, tensors: OnceLock::new() })
    }

    /// By its members' records, where the index does not say all: the tensors, the metadata, and the segments that they lie in.
    pub fn of_records(
        words: Arc<[u64]>,
        metadata: Vec<u8>,
        tensors: Vec<Tensor>,
        segments: Vec<Arc<PeerSegment>>,
    ) -> Self {
        let tensors = OnceLock::from(tensors.into_boxed_slice());
        let more = Some(Box::new(More { metadata, segments }));
        Self { from: 0, end: words.len() as u32, words, more, tensors }
    }

    fn words(&self) -> &[u64] {
        &self.words[self.from as usize..self.end as usize]
    }

    /// Names and places of its tensors.
    #[inline]
    pub fn index(&self) -> Index<'_> {
        index_in(self.words()).expect("it was checked when the lease was taken")
    }

    /// Metadata of the whole.
    pub fn metadata(&self) -> &[u8] {
        let words = &self.words()[..RECORD_WORDS];
        let bytes = (words[2] >> 32) as usize;
        match &self.more {
            Some(more) if !more.metadata.is_empty() => &more.metadata,
            // Little endian, as the record is.
            _ => &bytemuck::cast_slice(&words[12..])[..bytes.min(METADATA_INLINE)],
        }
    }

    /// Timestamp of the whole.
    pub fn timestamp_ns(&self) -> u64 {
        self.words()[6]
    }

    /// Its tensors. `own` is the segment of the index.
    pub fn tensors(&self, own: &Arc<PeerSegment>) -> &[Tensor] {
        self.tensors.get_or_init(|| {
            let index = self.index();
            let others = self.more.iter().flat_map(|more| &more.segments);
            let tensor = |at| {
                let (slot, generation, brief) = index.place(at);
                let info = SlotInfo::of_brief(&brief, generation)?.ok()?;
                let segment = std::iter::once(own).chain(others.clone()).find(|s| s.holds(slot))?;
                Tensor::read(&info, Bytes::new(&segment.map, info.data_offset, info.data_bytes)?, None).ok()
            };
            let tensor = |at| tensor(at).expect("it was checked when the lease was taken");
            (0..index.len()).map(tensor).collect()
        })
    }
}

/// The index behind a record.
#[inline(always)]
pub fn index_in(words: &[u64]) -> Option<Index<'_>> {
    Index::new(bytemuck::cast_slice(words.get(RECORD_WORDS..)?))
}
