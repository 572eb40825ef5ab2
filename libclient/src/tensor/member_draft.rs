//! Drafts of a dataset's members.

use crate::error::Result;
use crate::session::Session;
#[cfg(feature = "cuda")]
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::draft::Draft;
#[cfg(feature = "cuda")]
use crate::tensor::draft::Memory;
use std::sync::Arc;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::Cell;

/// The draft of a dataset's member, in host memory or on a device: see [`DatasetDraft::add`](crate::DatasetDraft::add).
///
/// The enum is `non_exhaustive`. With the feature `cuda`, it has a variant for devices.
#[derive(Debug)]
#[non_exhaustive]
pub enum MemberDraft {
    /// A tensor in host memory.
    Host(Draft),
    /// A tensor on a device.
    #[cfg(feature = "cuda")]
    Device(DeviceDraft),
}

impl From<Draft> for MemberDraft {
    fn from(draft: Draft) -> Self {
        Self::Host(draft)
    }
}

#[cfg(feature = "cuda")]
impl From<DeviceDraft> for MemberDraft {
    fn from(draft: DeviceDraft) -> Self {
        Self::Device(draft)
    }
}

impl MemberDraft {
    pub(crate) fn session(&self) -> &Arc<Session> {
        match self {
            Self::Host(draft) => draft.session(),
            #[cfg(feature = "cuda")]
            Self::Device(draft) => draft.session(),
        }
    }

    /// Returns the slot and its generation.
    pub(crate) fn cell(&self) -> Cell {
        match self {
            Self::Host(draft) => draft.cell(),
            #[cfg(feature = "cuda")]
            Self::Device(draft) => draft.cell(),
        }
    }

    /// Waits on the host for the device work on the draft.
    #[cfg(feature = "cuda")]
    pub(crate) fn settle(&self) -> Result<()> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Device(draft) => Memory::settle(draft),
        }
    }

    /// Writes the slot's record. No device work on the draft may be pending.
    pub(crate) fn seal(self, sequence: u64, next: SlotNo) -> Result<Sealed> {
        match self {
            Self::Host(mut draft) => draft.seal(sequence, next),
            #[cfg(feature = "cuda")]
            Self::Device(mut draft) => draft.seal_any(sequence, next, false),
        }
    }
}
