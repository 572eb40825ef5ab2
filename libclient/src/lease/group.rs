//! What a lease covers, decoded: one tensor, or a dataset of several.

use crate::device;
use crate::error::{Error, Result};
use crate::lease::fetch::fetch_segment_of_value;
use crate::lease::raw::{Held, Parts};
use crate::lease::{Dataset, Lease, Value};
use crate::peers::sheets::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::draft::Sealed;
use crate::tensor::layout_of::copy_index;
use crate::{Draft, TensorSpec};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tensorlend_layout::dataset::{self, DatasetMember, Index};
use tensorlend_layout::stream::Brief;
use tensorlend_layout::tensor::{BadTensor, METADATA_INLINE, SlotInfo, SlotKind, check_extent};
use tensorlend_layout::word::{Cell, SLOT_NONE};

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
fn index_in(words: &[u64]) -> Option<Index<'_>> {
    Index::new(bytemuck::cast_slice(words.get(RECORD_WORDS..)?))
}

/// Puts together what has more than one slot.
#[cold]
pub fn assemble(session: &Session, parts: Parts, name: &str) -> Result<Value> {
    let Parts { held, info, bytes } = parts;
    let Some(bytes) = bytes else { return device::value(session, held, &info, name) };
    match info.kind {
        SlotKind::Tensor => Ok(Value::Tensor(Lease::of(tensor(session, &held, &info, bytes, name)?, held))),
        SlotKind::Dataset => Ok(Value::Dataset(Dataset::of(group(session, &held, &info, bytes, name)?, held))),
        SlotKind::Extension => Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record }),
    }
}

fn tensor(session: &Session, held: &Held, info: &SlotInfo, bytes: Bytes, name: &str) -> Result<Tensor> {
    let extension = held.extension(session, info, name)?;
    let tensor = Tensor::read(info, bytes, extension.as_ref().map(|e| &e.bytes));
    tensor.map_err(|cause| Error::Damaged { name: name.to_owned(), cause })
}

fn group(session: &Session, held: &Held, info: &SlotInfo, bytes: Bytes, name: &str) -> Result<Group> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let mut words = Vec::new();
    copy_group(&info.pack(), &bytes, &mut words);
    let words: Arc<[u64]> = words.into();
    if info.extended {
        return group_of_records(session, held, info, bytes, words, name);
    }
    // The geometry may move while a segment is mapped: then it is asked for again.
    loop {
        let plain = {
            let section = session.shards.section();
            let geometry = session.directory.members[usize::from(held.catalogue)].geometry.read();
            let peer = session.peers().get(&section, held.catalogue);
            let segment_of = |slot| peer.and_then(|p| p.segment(slot, geometry, &session.directory));
            Group::plain(&words, 0..words.len(), held.segment(), segment_of)
        };
        match plain {
            Ok(group) => return Ok(group),
            Err(NotPlain::Records) => return group_of_records(session, held, info, bytes, words, name),
            Err(NotPlain::Damaged(cause)) => return Err(damaged(cause)),
            Err(NotPlain::Segment(slot)) if fetch_segment_of_value(session, held.catalogue, slot)? => {}
            Err(NotPlain::Segment(_)) => return Err(damaged(BadTensor::Segment)),
        }
    }
}

/// A dataset some of whose members do not stand in the index with all that makes them: reads every member's record.
fn group_of_records(
    session: &Session,
    held: &Held,
    info: &SlotInfo,
    bytes: Bytes,
    words: Arc<[u64]>,
    name: &str,
) -> Result<Group> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let index = index_in(&words).filter(Index::check).ok_or_else(|| damaged(BadTensor::Record))?;
    let mut more = Box::new(More::default());
    if info.extended {
        more.metadata = tensor(session, held, info, bytes, name)?.metadata().to_vec();
    }
    let mut tensors = Vec::with_capacity(index.len());
    for at in 0..index.len() {
        let (slot, generation, _) = index.place(at);
        let found = held.companion(session, slot, Some(generation), name)?;
        if found.info.kind != SlotKind::Tensor {
            return Err(damaged(BadTensor::Record));
        }
        tensors.push(tensor(session, held, &found.info, found.bytes, name)?);
        if !more.segments.iter().any(|s| Arc::ptr_eq(s, &found.segment)) {
            more.segments.push(found.segment);
        }
    }
    let tensors = OnceLock::from(tensors.into_boxed_slice());
    Ok(Group { from: 0, end: words.len() as u32, words, more: Some(more), tensors })
}

/// Copies all of it into slots of our own, sealed and ready to be published.
pub fn copy(session: &Arc<Session>, value: &Value) -> Result<Cell> {
    let sealed = match value {
        Value::Tensor(tensor) => duplicate(session, tensor)?.seal(0, SLOT_NONE),
        Value::Dataset(dataset) => {
            let drafts = dataset
                .iter()
                .map(|(name, tensor)| Ok((name.to_owned(), duplicate(session, tensor)?)))
                .collect::<Result<Vec<_>>>()?;
            seal_dataset(session, drafts, dataset.metadata(), dataset.timestamp(), 0)
        }
        #[cfg(feature = "cuda")]
        Value::Device(lease) => lease.duplicate(session)?.seal(0, SLOT_NONE),
    };
    sealed.map(|sealed| sealed.value)
}

/// A draft with the contents of a leased tensor.
fn duplicate(session: &Arc<Session>, tensor: &Tensor) -> Result<Draft> {
    let spec = TensorSpec {
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
        strides: tensor.own_strides().map(<[i64]>::to_vec),
        byte_offset: tensor.byte_offset(),
    };
    let mut draft = Draft::new(session, &spec)?;
    let bytes = draft.bytes_mut();
    bytes.copy_from_slice(&tensor.bytes()[..bytes.len()]);
    draft.set_metadata(tensor.metadata())?.set_timestamp(tensor.timestamp());
    Ok(draft)
}

/// Seals the members of a dataset and its index, chained: they live and die together.
pub fn seal_dataset(
    session: &Arc<Session>,
    members: Vec<(String, Draft)>,
    metadata: &[u8],
    timestamp_ns: u64,
    sequence: u64,
) -> Result<Sealed> {
    let index: Vec<DatasetMember<'_>> = members
        .iter()
        .map(|(name, draft)| {
            let cell = draft.cell();
            // What a member is follows when it is sealed.
            DatasetMember { name, slot: cell.slot(), generation: cell.generation(), brief: Brief::default() }
        })
        .collect();
    let mut head = Draft::index(session, &dataset::encode(&index))?;
    head.set_metadata(metadata)?.set_timestamp(timestamp_ns);
    // From the last member to the first, so that each is sealed with the one that follows it. A draft whose sealing
    // fails is dropped with those before it; what is chained behind it is freed here.
    let mut next = SLOT_NONE;
    for (at, (_, draft)) in members.into_iter().enumerate().rev() {
        match draft.seal(sequence, next) {
            Ok(sealed) => {
                next = sealed.value.slot();
                dataset::set_brief(head.bytes_mut(), at, &sealed.brief);
            }
            Err(e) => {
                if next != SLOT_NONE {
                    session.alloc().drop_slot(next);
                }
                return Err(e);
            }
        }
    }
    match head.seal(sequence, next) {
        Ok(sealed) => Ok(sealed),
        Err(e) => {
            if next != SLOT_NONE {
                session.alloc().drop_slot(next);
            }
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests;
