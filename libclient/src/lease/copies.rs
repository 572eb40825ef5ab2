//! Copies of leased values, in slots of this client.

#[cfg(not(feature = "cuda"))]
use crate::error::DeviceTrouble;
use crate::error::{Error, Result};
use crate::lease::member::Member;
use crate::lease::value::Value;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::dataset::seal_dataset;
use crate::tensor::draft::Draft;
use crate::tensor::member_draft::MemberDraft;
use std::sync::Arc;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::SLOT_NONE;

/// Copies a value into slots of this client, sealed and ready to be published.
///
/// # Errors
/// [`Error::SessionEnded`] if the daemon has ended the session: the copy may have bytes of two tensors.
pub fn copy(session: &Arc<Session>, value: &Value) -> Result<Sealed> {
    // The check follows the last read of the value, and precedes the first step that shows the copy to a reader.
    let validate = || if value.held().validate() { Ok(()) } else { Err(Error::SessionEnded) };
    match value {
        Value::Tensor(tensor) => {
            let mut draft = duplicate(session, tensor)?;
            validate()?;
            draft.seal(0, SLOT_NONE)
        }
        Value::Dataset(dataset) => {
            let drafts = dataset
                .members()
                .map(|(name, member)| Ok((name.to_owned(), duplicate_member(session, member)?)))
                .collect::<Result<Vec<_>>>()?;
            validate()?;
            seal_dataset(session, drafts, dataset.metadata(), dataset.timestamp(), 0)
        }
        #[cfg(feature = "cuda")]
        Value::Device(lease) => {
            let mut draft = lease.duplicate(session)?;
            validate()?;
            draft.seal(0, SLOT_NONE)
        }
    }
}

/// Returns a draft with the contents of a dataset's member, in the same memory.
fn duplicate_member(session: &Arc<Session>, member: Member<'_>) -> Result<MemberDraft> {
    match member {
        Member::Host(tensor) => duplicate(session, tensor).map(Into::into),
        #[cfg(feature = "cuda")]
        Member::Device(member) => member.tensor()?.duplicate(session).map(Into::into),
        #[cfg(not(feature = "cuda"))]
        Member::Device(_) => {
            let doing = "copy a dataset with a tensor on a device".to_owned();
            Err(Error::Device { doing, cause: DeviceTrouble::NoFeature })
        }
    }
}

/// Returns a draft with the contents of a leased tensor.
fn duplicate(session: &Arc<Session>, tensor: &Tensor) -> Result<Draft> {
    let mut draft = Draft::new(session, &tensor.spec())?;
    let bytes = draft.bytes_mut();
    bytes.copy_from_slice(&tensor.bytes()[..bytes.len()]);
    draft.set_metadata(tensor.metadata())?.set_timestamp(tensor.timestamp());
    Ok(draft)
}
