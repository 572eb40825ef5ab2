//! Drafts of values of any kind: tensors and datasets.

use crate::error::Result;
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use crate::session::Session;
use crate::tensor::dataset::DatasetDraft;
#[cfg(feature = "cuda")]
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::draft::Draft;
use crate::tensor::sendable::Sendable;
use crate::tensor::sendable::sealed::{Inside, Message};
use std::sync::Arc;
use tensorlend_layout::tensor::Sealed;

/// The draft of a tensor or of a dataset, for programs that know the kind only at run time. It is the producer's
/// counterpart of [`Value`](crate::Value).
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, ValueDraft};
///
/// let camera = client.stream("camera").open()?;
/// let depth = client.create(DType::F32, [4, 4])?;
/// let several = client.dataset().add("depth", client.create(DType::F32, [4, 4])?)?;
/// for draft in [ValueDraft::from(depth), ValueDraft::from(several)] {
///     camera.send(draft)?;
/// }
/// ValueDraft::from(client.create(DType::U8, [3])?).publish("numbers")?;
/// # assert_eq!(camera.sent(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The enum is `non_exhaustive`. With the feature `cuda`, it has a variant for devices.
#[derive(Debug)]
#[non_exhaustive]
pub enum ValueDraft {
    /// One tensor.
    Tensor(Draft),
    /// Several tensors.
    Dataset(DatasetDraft),
    /// One tensor on a device.
    #[cfg(feature = "cuda")]
    Device(DeviceDraft),
}

#[cfg(feature = "cuda")]
impl From<DeviceDraft> for ValueDraft {
    fn from(draft: DeviceDraft) -> Self {
        Self::Device(draft)
    }
}

impl From<Draft> for ValueDraft {
    fn from(draft: Draft) -> Self {
        Self::Tensor(draft)
    }
}

impl From<DatasetDraft> for ValueDraft {
    fn from(draft: DatasetDraft) -> Self {
        Self::Dataset(draft)
    }
}

/// Does the same with a draft of any kind.
macro_rules! each {
    ($value:expr, $draft:ident => $result:expr) => {
        match $value {
            ValueDraft::Tensor($draft) => $result,
            ValueDraft::Dataset($draft) => $result,
            #[cfg(feature = "cuda")]
            ValueDraft::Device($draft) => $result,
        }
    };
}

impl ValueDraft {
    /// Publishes the value under a name. Returns its version.
    ///
    /// # Errors
    /// The errors of [`Draft::publish`] or [`DatasetDraft::publish`].
    pub fn publish(self, name: &str) -> Result<Version> {
        self.publish_for(name, Lifetime::default())
    }

    /// Publishes the value under a name with a lifetime.
    ///
    /// # Errors
    /// The errors of [`Draft::publish_for`] or [`DatasetDraft::publish_for`].
    pub fn publish_for(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        each!(self, draft => draft.publish_for(name, lifetime))
    }

    /// Publishes like [`Draft::publish_within`]. A tensor on a device is published like [`ValueDraft::publish_for`].
    ///
    /// # Errors
    /// The errors of [`ValueDraft::publish_for`].
    #[doc(hidden)]
    pub fn publish_within(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        match self {
            Self::Tensor(draft) => draft.publish_within(name, lifetime),
            Self::Dataset(draft) => draft.publish_within(name, lifetime),
            #[cfg(feature = "cuda")]
            Self::Device(draft) => draft.publish_for(name, lifetime),
        }
    }
}

impl Sendable for ValueDraft {}

impl Message for ValueDraft {
    fn session(&self, inside: Inside) -> &Arc<Session> {
        each!(self, draft => Message::session(draft, inside))
    }

    fn takes_memory(&self, inside: Inside) -> bool {
        each!(self, draft => draft.takes_memory(inside))
    }

    fn ready(&self, inside: Inside) -> Result<()> {
        each!(self, draft => draft.ready(inside))
    }

    fn seal_for(&mut self, sequence: u64, inside: Inside) -> Result<Sealed> {
        each!(self, draft => draft.seal_for(sequence, inside))
    }

    fn seal_entry(&mut self, sequence: u64, inside: Inside) -> Result<Sealed> {
        each!(self, draft => draft.seal_entry(sequence, inside))
    }
}
