//! What a lease covers, decoded: one tensor, or a dataset of several.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::held::{Held, Leased};
use crate::peers::PeerSegment;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::{Draft, TensorSpec};
use std::sync::Arc;
use tensorlend_layout::dataset::{self, DatasetMember};
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, SLOT_NONE};

/// A lease and what it covers. Field order matters to nobody: a tensor does nothing when it is dropped.
pub struct Payload {
    /// One tensor; or the dataset's members, by name, in their order.
    pub what: What,
    /// The lease.
    pub held: Held,
}

/// See [`Payload`].
#[expect(clippy::large_enum_variant, reason = "made at every get: a box would cost an allocation there")]
pub enum What {
    Tensor(Tensor),
    Dataset(Group),
}

/// What a dataset consists of.
pub struct Group {
    /// Metadata of the whole.
    pub metadata: Vec<u8>,
    /// Timestamp of the whole.
    pub timestamp_ns: u64,
    /// Its tensors.
    pub members: Vec<(String, Tensor)>,
    /// The segments that they lie in.
    pub _segments: Vec<Arc<PeerSegment>>,
}

impl Payload {
    #[inline]
    pub fn new(session: &Session, leased: Leased, name: &str) -> Result<Self> {
        let Leased { held, info, bytes } = leased;
        if info.kind == SlotKind::Tensor && !info.extended {
            let tensor = Tensor::new(&info, bytes, None, name)?;
            return Ok(Self { what: What::Tensor(tensor), held });
        }
        Self::assemble(session, held, &info, bytes, name)
    }

    #[cold]
    fn assemble(session: &Session, held: Held, info: &SlotInfo, bytes: Bytes, name: &str) -> Result<Self> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        let tensor = |info: &SlotInfo, bytes: Bytes| {
            let extension = held.extension(session, info, name)?;
            Tensor::new(info, bytes, extension.as_ref().map(|e| &e.bytes), name)
        };
        let what = match info.kind {
            SlotKind::Tensor => What::Tensor(tensor(info, bytes)?),
            SlotKind::Dataset => {
                let head = tensor(info, bytes)?;
                // Copied before it is looked at: its owner can write there.
                let bytes = head.bytes();
                let copy = bytes[..bytes.len().min(dataset::BYTES_MAX)].to_vec();
                let index = dataset::decode(&copy).ok_or_else(|| damaged(BadTensor::Record))?;
                let mut members = Vec::with_capacity(index.len());
                let mut segments: Vec<Arc<PeerSegment>> = Vec::new();
                for member in index {
                    let found = held.companion(session, member.slot, Some(member.generation), name)?;
                    members.push((member.name, tensor(&found.info, found.bytes)?));
                    if !segments.iter().any(|s| Arc::ptr_eq(s, &found.segment)) {
                        segments.push(found.segment);
                    }
                }
                What::Dataset(Group {
                    metadata: head.metadata().to_vec(),
                    timestamp_ns: info.timestamp_ns,
                    members,
                    _segments: segments,
                })
            }
            SlotKind::Extension => return Err(damaged(BadTensor::Record)),
        };
        Ok(Self { what, held })
    }

    /// Copies all of it into slots of our own, sealed and ready to be published.
    pub fn duplicate(&self, session: &Arc<Session>) -> Result<Cell> {
        match &self.what {
            What::Tensor(tensor) => duplicate(session, tensor)?.seal(0, SLOT_NONE),
            What::Dataset(group) => {
                let drafts = group
                    .members
                    .iter()
                    .map(|(name, tensor)| Ok((name.clone(), duplicate(session, tensor)?)))
                    .collect::<Result<Vec<_>>>()?;
                seal_dataset(session, drafts, &group.metadata, group.timestamp_ns, 0)
            }
        }
    }
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
) -> Result<Cell> {
    let index: Vec<DatasetMember> = members
        .iter()
        .map(|(name, draft)| DatasetMember {
            name: name.clone(),
            slot: draft.cell().slot(),
            generation: draft.cell().generation(),
        })
        .collect();
    let mut head = Draft::index(session, &dataset::encode(&index))?;
    head.set_metadata(metadata)?.set_timestamp(timestamp_ns);
    // From the last member to the first, so that each is sealed with the one that follows it. A draft whose sealing
    // fails is dropped with those before it; what is chained behind it is freed here.
    let mut next = SLOT_NONE;
    for (_, draft) in members.into_iter().rev() {
        match draft.seal(sequence, next) {
            Ok(value) => next = value.slot(),
            Err(e) => {
                if next != SLOT_NONE {
                    session.drop_slot(next);
                }
                return Err(e);
            }
        }
    }
    match head.seal(sequence, next) {
        Ok(value) => Ok(value),
        Err(e) => {
            if next != SLOT_NONE {
                session.drop_slot(next);
            }
            Err(e)
        }
    }
}
