//! Drafts of datasets.

use crate::error::{Error, Result, check_name};
use crate::names::lifetime::Lifetime;
use crate::names::publish::Publication;
use crate::names::version::Version;
use crate::session::Session;
use crate::tensor::draft::Draft;
use crate::tensor::member_draft::MemberDraft;
use crate::tensor::sendable::Sendable;
use crate::tensor::sendable::sealed::{INSIDE, Inside, Message};
use std::sync::Arc;
use tensorlend_layout::dataset::MEMBERS_MAX;
use tensorlend_layout::dataset::{self, DatasetMember};
use tensorlend_layout::stream::HeaderSummary;
use tensorlend_layout::tensor::{METADATA_MAX, Sealed};
use tensorlend_layout::word::SLOT_NONE;

/// A dataset draft: several tensors that are published together. Readers see all of its tensors or none, with one
/// lease. With the feature `cuda`, a member may be on a device. Publishing then waits for the device work on all such
/// members, as `DeviceDraft::publish` does.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let mut image = client.create(tensorlend::DType::U8, [4, 4, 3])?;
/// image.bytes_mut().fill(7);
/// let mut depth = client.create(tensorlend::DType::F32, [4, 4])?;
/// depth.as_mut_slice::<f32>()?.fill(1.5);
/// client.dataset().add("image", image)?.add("depth", depth)?.publish("frame")?;
///
/// let frame = client.get_dataset("frame")?;
/// assert_eq!(frame.get("depth").unwrap().as_slice::<f32>()?[0], 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DatasetDraft {
    session: Arc<Session>,
    members: Vec<(String, MemberDraft)>,
    metadata: Vec<u8>,
    timestamp_ns: u64,
}

impl DatasetDraft {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session, members: Vec::new(), metadata: Vec::new(), timestamp_ns: 0 }
    }

    /// Adds a tensor under a name in the dataset. Readers see the tensors in the order in which you add them.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let depth = client.create(tensorlend::DType::F32, [4, 4])?;
    /// let frame = client.dataset().add("depth", depth)?;
    /// let again = client.create(tensorlend::DType::F32, [4, 4])?;
    /// assert!(frame.add("depth", again).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Argument`] for a name that the dataset already has, for the 4097th member, or for a
    /// draft of another client. On an error, all added tensors are dropped.
    pub fn add(mut self, name: &str, draft: impl Into<MemberDraft>) -> Result<Self> {
        self.push(name, draft)?;
        Ok(self)
    }

    /// Adds a tensor like [`DatasetDraft::add`], in place. On an error the dataset does not change, and only `draft`
    /// is dropped.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let mut frame = client.dataset();
    /// for name in ["left", "right"] {
    ///     frame.push(name, client.create(tensorlend::DType::F32, [4, 4])?)?;
    /// }
    /// assert!(frame.push("left", client.create(tensorlend::DType::F32, [4, 4])?).is_err());
    /// frame.set_metadata(b"episode 7")?.set_timestamp(1_700_000_000_000_000_000);
    /// frame.publish("frame")?;
    /// assert_eq!(client.get_dataset("frame")?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`DatasetDraft::add`].
    pub fn push(&mut self, name: &str, draft: impl Into<MemberDraft>) -> Result<()> {
        let draft = draft.into();
        self.check(name, draft.session())?;
        self.members.push((name.to_owned(), draft));
        Ok(())
    }

    /// Checks whether a tensor can be added under this name.
    ///
    /// # Errors
    /// The errors of [`DatasetDraft::add`].
    pub fn check_member(&self, name: &str, draft: &impl Sendable) -> Result<()> {
        self.check(name, draft.session(INSIDE))
    }

    fn check(&self, name: &str, session: &Arc<Session>) -> Result<()> {
        check_name(name)?;
        if self.members.iter().any(|(n, _)| n == name) {
            return Err(Error::Argument(format!("the dataset has a tensor {name:?} already: choose another name")));
        }
        if self.members.len() == MEMBERS_MAX {
            return Err(Error::Argument(format!("a dataset has at most {MEMBERS_MAX} tensors: use a list")));
        }
        if !Arc::ptr_eq(session, &self.session) {
            return Err(Error::Argument(format!(
                "the draft for {name:?} was made by another client: create it with this one"
            )));
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the members, metadata and timestamp of the dataset.
    pub(crate) fn into_parts(self) -> (Vec<(String, MemberDraft)>, Vec<u8>, u64) {
        (self.members, self.metadata, self.timestamp_ns)
    }

    /// Sets the metadata of the whole dataset: any bytes, 64 KiB at most. Each tensor may have metadata of its own in
    /// addition.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.dataset().metadata(b"episode 7")?.timestamp(1_700_000_000_000_000_000).publish("frame")?;
    /// let frame = client.get_dataset("frame")?;
    /// assert_eq!(frame.metadata(), b"episode 7");
    /// assert_eq!(frame.timestamp(), 1_700_000_000_000_000_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Metadata`] for more than 64 KiB.
    pub fn metadata(mut self, metadata: &[u8]) -> Result<Self> {
        self.set_metadata(metadata)?;
        Ok(self)
    }

    /// Sets the metadata like [`DatasetDraft::metadata`], in place.
    ///
    /// # Errors
    /// [`Error::Metadata`] for more than 64 KiB.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<&mut Self> {
        if metadata.len() > METADATA_MAX {
            return Err(Error::Metadata(metadata.len()));
        }
        self.metadata = metadata.to_vec();
        Ok(self)
    }

    /// Sets the timestamp like [`DatasetDraft::timestamp`], in place.
    pub fn set_timestamp(&mut self, nanoseconds: u64) -> &mut Self {
        self.timestamp_ns = nanoseconds;
        self
    }

    /// Sets the timestamp of the whole dataset: nanoseconds since 1970, or on any clock on which producer and readers
    /// agree.
    pub fn timestamp(mut self, nanoseconds: u64) -> Self {
        self.timestamp_ns = nanoseconds;
        self
    }

    /// Publishes the dataset under a name, like [`Draft::publish`], for all tensors at once. Returns its version.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let image = client.create(tensorlend::DType::U8, [4, 4, 3])?;
    /// let depth = client.create(tensorlend::DType::F32, [4, 4])?;
    /// let version = client.dataset().add("image", image)?.add("depth", depth)?.publish("frame")?;
    /// assert_eq!(client.get_dataset("frame")?.version(), version);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Draft::publish`]; [`Error::Refused`] if there is no memory for the dataset's index;
    /// [`Error::Device`] if the device work on a member failed.
    pub fn publish(self, name: &str) -> Result<Version> {
        self.publish_as(name, Lifetime::default(), false)
    }

    /// Publishes like [`DatasetDraft::publish`], for a name with a lifetime: see [`Draft::publish_for`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, Lifetime};
    ///
    /// let depth = client.create(DType::F32, [4, 4])?;
    /// client.dataset().add("depth", depth)?.publish_for("frame", Lifetime::EPHEMERAL)?;
    /// assert!(client.info("frame")?.lifetime.ephemeral);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise the errors of [`DatasetDraft::publish`].
    pub fn publish_for(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        self.publish_as(name, lifetime, false)
    }

    /// Publishes like [`Draft::publish_within`].
    ///
    /// # Errors
    /// The errors of [`DatasetDraft::publish_for`].
    #[doc(hidden)]
    pub fn publish_within(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        self.publish_as(name, lifetime, true)
    }

    fn publish_as(mut self, name: &str, lifetime: Lifetime, keeps_lifetime: bool) -> Result<Version> {
        check_name(name)?;
        lifetime.ttl_ns()?;
        let session = self.session.clone();
        let sealed = self.seal_for(0, INSIDE)?;
        session.names().publish(name, &Publication { sealed, lifetime, keeps_lifetime })
    }
}

impl Sendable for DatasetDraft {}

impl Message for DatasetDraft {
    fn session(&self, _: Inside) -> &Arc<Session> {
        &self.session
    }
    fn takes_memory(&self, _: Inside) -> bool {
        true
    }
    #[cfg(feature = "cuda")]
    fn ready(&self, _: Inside) -> Result<()> {
        self.members.iter().try_for_each(|(_, draft)| draft.settle())
    }
    fn seal_for(&mut self, sequence: u64, _: Inside) -> Result<Sealed> {
        self.session.check()?;
        #[cfg(feature = "cuda")]
        self.ready(INSIDE)?;
        seal_dataset(&self.session, std::mem::take(&mut self.members), &self.metadata, self.timestamp_ns, sequence)
    }
}

/// Seals the members of a dataset and its index. No device work on the members may be pending. All their slots form a chain, so that they are freed together.
pub fn seal_dataset(
    session: &Arc<Session>,
    members: Vec<(String, MemberDraft)>,
    metadata: &[u8],
    timestamp_ns: u64,
    sequence: u64,
) -> Result<Sealed> {
    let mut index = Vec::with_capacity(members.len());
    for (name, draft) in &members {
        let cell = draft.cell();
        // Sealing the member fills in its header summary.
        let summary = HeaderSummary::default();
        index.push(DatasetMember { name, slot: cell.slot(), generation: cell.generation(), summary });
    }
    let mut head = Draft::index(session, &dataset::encode(&index))?;
    head.set_metadata(metadata)?.set_timestamp(timestamp_ns);
    // Seal the members from the last to the first, so that each member is sealed with its successor in the chain. If sealing
    // a draft fails, this draft and the members before it are dropped, and this code frees the chain of the members after
    // it.
    let mut next = SLOT_NONE;
    for (at, (_, draft)) in members.into_iter().enumerate().rev() {
        match draft.seal(sequence, next) {
            Ok(sealed) => {
                next = sealed.value.slot();
                dataset::set_summary(head.bytes_mut(), at, &sealed.summary);
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
