//! What a lease covers, decoded: one tensor, or a dataset of several.

use crate::bytes::Bytes;
use crate::draft::Sealed;
use crate::error::{Error, Result};
use crate::held::Parts;
use crate::lease::{Dataset, Lease, Value};
use crate::peers::PeerSegment;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::{Draft, TensorSpec};
use std::sync::Arc;
use tensorlend_layout::dataset::{self, DatasetMember};
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, SLOT_NONE};

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

/// Puts together what has more than one slot.
#[cold]
pub fn assemble(session: &Session, parts: Parts, name: &str) -> Result<Value> {
    let Parts { held, info, bytes } = parts;
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let tensor = |info: &SlotInfo, bytes: Bytes| {
        let extension = held.extension(session, info, name)?;
        Tensor::read(info, bytes, extension.as_ref().map(|e| &e.bytes)).map_err(damaged)
    };
    match info.kind {
        SlotKind::Tensor => Ok(Value::Tensor(Lease::of(tensor(&info, bytes)?, held))),
        SlotKind::Dataset => {
            let head = tensor(&info, bytes)?;
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
            let metadata = head.metadata().to_vec();
            let group = Group { metadata, timestamp_ns: info.timestamp_ns, members, _segments: segments };
            Ok(Value::Dataset(Dataset::of(group, held)))
        }
        SlotKind::Extension => Err(damaged(BadTensor::Record)),
    }
}

/// Copies all of it into slots of our own, sealed and ready to be published.
pub fn copy(session: &Arc<Session>, value: &Value) -> Result<Cell> {
    let sealed = match value {
        Value::Tensor(tensor) => duplicate(session, tensor)?.seal(0, SLOT_NONE),
        Value::Dataset(dataset) => {
            let group = dataset.group();
            let drafts = group
                .members
                .iter()
                .map(|(name, tensor)| Ok((name.clone(), duplicate(session, tensor)?)))
                .collect::<Result<Vec<_>>>()?;
            seal_dataset(session, drafts, &group.metadata, group.timestamp_ns, 0)
        }
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
            Ok(sealed) => next = sealed.value.slot(),
            Err(e) => {
                if next != SLOT_NONE {
                    session.drop_slot(next);
                }
                return Err(e);
            }
        }
    }
    match head.seal(sequence, next) {
        Ok(sealed) => Ok(sealed),
        Err(e) => {
            if next != SLOT_NONE {
                session.drop_slot(next);
            }
            Err(e)
        }
    }
}
