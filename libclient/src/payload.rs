//! What a lease covers, decoded: one tensor, or a dataset of several.

use crate::error::{Error, Result};
use crate::held::Held;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::{Draft, TensorSpec};
use std::sync::Arc;
use tensorlend_layout::dataset::{self, DatasetMember};
use tensorlend_layout::tensor::{BadTensor, SlotKind};
use tensorlend_layout::word::{Cell, SLOT_NONE};

/// A lease and what it covers. Field order matters to nobody: tensors hold mappings, not leases.
pub struct Payload {
    /// One tensor; or the dataset's members, by name, in their order.
    pub what: What,
    /// Metadata of the whole.
    pub held: Held,
}

/// See [`Payload`].
#[expect(clippy::large_enum_variant, reason = "made at every get: a box would cost an allocation there")]
pub enum What {
    Tensor(Tensor),
    Dataset { metadata: Vec<u8>, members: Vec<(String, Tensor)> },
}

impl Payload {
    pub fn new(held: Held, name: &str) -> Result<Self> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        let extension = held.extension(&held.info, name)?;
        let head = Tensor::new(&held.info, held.bytes.clone(), extension.as_ref(), name)?;
        let what = match held.info.kind {
            SlotKind::Tensor => What::Tensor(head),
            SlotKind::Dataset => {
                // Copied before it is looked at: its owner can write there.
                let bytes = head.bytes();
                let copy = bytes[..bytes.len().min(dataset::BYTES_MAX)].to_vec();
                let index = dataset::decode(&copy).ok_or_else(|| damaged(BadTensor::Record))?;
                let members = index.into_iter().map(|member| {
                    let (info, bytes) = held.companion(member.slot, Some(member.generation), name)?;
                    let extension = held.extension(&info, name)?;
                    let tensor = Tensor::new(&info, bytes, extension.as_ref(), name)?;
                    Ok((member.name, tensor))
                });
                let members = members.collect::<Result<Vec<_>>>()?;
                What::Dataset { metadata: head.metadata().to_vec(), members }
            }
            SlotKind::Extension => return Err(damaged(BadTensor::Record)),
        };
        Ok(Self { what, held })
    }

    /// Copies all of it into slots of our own, sealed and ready to be published.
    pub fn duplicate(&self) -> Result<Cell> {
        let session = &self.held.session;
        match &self.what {
            What::Tensor(tensor) => {
                let mut draft = duplicate(session, tensor)?;
                let value = draft.seal(0, SLOT_NONE)?;
                Ok(draft.released(value))
            }
            What::Dataset { metadata, members } => {
                let drafts = members
                    .iter()
                    .map(|(name, tensor)| Ok((name.clone(), duplicate(session, tensor)?)))
                    .collect::<Result<Vec<_>>>()?;
                seal_dataset(session, drafts, metadata, self.held.info.timestamp_ns, 0)
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
    let mut draft = Draft::new(session.clone(), spec)?;
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
    let mut head = Draft::index(session.clone(), &dataset::encode(&index))?;
    head.set_metadata(metadata)?.set_timestamp(timestamp_ns);
    // From the last member to the first, so that each is sealed with the one that follows it. A draft whose sealing
    // fails is dropped with those before it; what is chained behind it is freed here.
    let mut next = SLOT_NONE;
    for (_, mut draft) in members.into_iter().rev() {
        match draft.seal(sequence, next) {
            Ok(value) => next = draft.released(value).slot(),
            Err(e) => {
                if next != SLOT_NONE {
                    session.drop_slot(next);
                }
                return Err(e);
            }
        }
    }
    match head.seal(sequence, next) {
        Ok(value) => Ok(head.released(value)),
        Err(e) => {
            if next != SLOT_NONE {
                session.drop_slot(next);
            }
            Err(e)
        }
    }
}
