//! Leases as programs use them: on one tensor, or on a dataset.

use crate::error::{Error, Result};
use crate::lease::group::Group;
use crate::lease::raw::Held;
use crate::names::version::Version;
use crate::segment::bytes::Bytes;
use crate::tensor::Tensor;
use std::ops::{Deref, Range};
use std::sync::OnceLock;
use tensorlend_layout::dataset::Index;
use tensorlend_layout::stream::{HeaderSummary, SUMMARY_WORDS};
use tensorlend_layout::tensor::SlotInfo;

/// The right to read one tensor in place. While the lease exists, no client reuses the tensor's memory, whatever
/// happens to the name or to the producer. Dropping the lease ends the right.
///
/// A lease derefs to [`Tensor`], which has the methods to read the tensor. Each lease uses one of the client's 4096
/// lease entries. Holding a lease costs memory: the slot of a replaced value stays in use until its last lease ends.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let version = client.put("weights", &[0.5f32; 4])?;
/// let lease = client.get("weights")?;
/// client.delete("weights")?;
/// assert_eq!(lease.as_slice::<f32>()?, [0.5; 4]); // methods are those of Tensor
/// assert_eq!(lease.version(), version);
/// assert!(lease.validate());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// References into the tensor cannot outlive the lease:
/// ```compile_fail,E0505
/// # let daemon = tensorlend_daemon::embedded().unwrap();
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect().unwrap();
/// let lease = client.get("weights").unwrap();
/// let weights = lease.as_slice::<f32>().unwrap();
/// drop(lease);
/// println!("{}", weights[0]);
/// ```
pub struct Lease {
    /// Boxed, because programs move a lease often. One allocation costs less than the moves.
    inner: Box<Inner>,
}

struct Inner {
    held: Held,
    /// The header summary of the tensor. It is checked, and decoded at the first access.
    summary: HeaderSummary,
    tensor: OnceLock<Box<Tensor>>,
}

impl Lease {
    /// Returns a lease on a tensor whose description came from its record.
    pub(crate) fn of(tensor: Tensor, held: Held) -> Self {
        let tensor = OnceLock::from(Box::new(tensor));
        Self { inner: Box::new(Inner { held, summary: [0; SUMMARY_WORDS], tensor }) }
    }

    /// Returns a lease on a tensor whose header summary was checked against the segment.
    #[inline]
    pub(crate) fn of_summary(summary: HeaderSummary, held: Held) -> Self {
        Self { inner: Box::new(Inner { held, summary, tensor: OnceLock::new() }) }
    }
}

impl Inner {
    #[cold]
    fn unpack(&self) -> Box<Tensor> {
        let info = SlotInfo::of_summary(&self.summary, self.held.cell.generation());
        let info = info.and_then(std::result::Result::ok).expect("it was checked when the lease was taken");
        let map = &self.held.segment().map;
        let bytes = Bytes::new(map, info.data_offset, info.data_bytes).expect("it was checked");
        Box::new(Tensor::read(&info, bytes, None).expect("it was checked"))
    }
}

impl Lease {
    #[inline]
    pub(crate) fn held(&self) -> &Held {
        &self.inner.held
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.inner.held.version()
    }

    /// Returns whether the session that took this lease still exists, so that the lease protects the tensor's memory.
    ///
    /// This method returns false only after the daemon has ended the session of a running process. One reason is that the
    /// process broke a rule of the protocol. The other reason exists only if the daemon's configuration sets
    /// `uid.lease_ms_max`: memory was short, and leases kept replaced values for too long. The bytes may then belong to
    /// another tensor. Where that can happen, read, validate, and only then use the result.
    pub fn validate(&self) -> bool {
        self.inner.held.validate()
    }
}

impl Deref for Lease {
    type Target = Tensor;

    #[inline]
    fn deref(&self) -> &Tensor {
        self.inner.tensor.get_or_init(|| self.inner.unpack())
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("tensor", &**self).field("held", &self.inner.held).finish_non_exhaustive()
    }
}

/// The right to read a dataset: several tensors, published together and covered by one lease.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::DType;
///
/// let image = client.create(DType::U8, [4, 4, 3])?;
/// let depth = client.create(DType::F32, [4, 4])?;
/// let version = client.dataset().add("image", image)?.add("depth", depth)?.metadata(b"left")?.publish("frame")?;
///
/// let frame = client.get_dataset("frame")?;
/// for (name, tensor) in &frame {
///     println!("{name}: {} {:?}", tensor.dtype(), tensor.shape());
/// }
/// assert_eq!((frame.len(), frame.is_empty()), (2, false));
/// assert_eq!(frame.get("depth").unwrap().shape(), [4, 4]);
/// assert_eq!((frame.metadata(), frame.timestamp()), (&b"left"[..], 0));
/// assert!(frame.version() == version && frame.validate());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dataset {
    inner: Box<Whole>,
}

struct Whole {
    group: Group,
    held: Held,
}

impl Dataset {
    #[inline]
    pub(crate) fn of(group: Group, held: Held) -> Self {
        Self { inner: Box::new(Whole { group, held }) }
    }

    pub(crate) fn held(&self) -> &Held {
        &self.inner.held
    }

    /// Returns the segments of the dataset's tensors, other than the segment of its index.
    #[cfg(feature = "cuda")]
    pub(crate) fn segments(&self) -> &[std::sync::Arc<crate::peers::sheets::PeerSegment>] {
        self.inner.group.segments()
    }

    /// Returns the tensor with this name in the dataset. Returns `None` if there is no such tensor.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let at = self.inner.group.index().find(name)?;
        self.tensors().get(at)
    }

    /// Returns the tensor with this name in the dataset. A missing tensor is an error.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.dataset().add("depth", client.create(tensorlend::DType::F32, [4, 4])?)?.publish("frame")?;
    /// let frame = client.get_dataset("frame")?;
    /// assert_eq!(frame.tensor("depth")?.shape(), [4, 4]);
    /// println!("{}", frame.tensor("image").unwrap_err()); // … no tensor named "image": it has "depth"
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the dataset has no such tensor. The error lists the names in the dataset.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.get(name).ok_or_else(|| {
            let names: Vec<String> = self.iter().take(16).map(|(name, _)| format!("{name:?}")).collect();
            let more = if names.len() < self.len() { " and more" } else { "" };
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::Argument(format!("the dataset has no tensor named {name:?}: it has {names}{more}"))
        })
    }

    /// Returns the tensors with their names, in the order in which the producer added them.
    pub fn iter(&self) -> DatasetIter<'_> {
        let (index, tensors) = (self.inner.group.index(), self.tensors());
        DatasetIter { index, tensors, left: 0..tensors.len() }
    }

    /// Returns the tensors without their names, in the order in which the producer added them.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let (image, depth) = (client.create(tensorlend::DType::U8, [4, 4, 3])?, client.create(tensorlend::DType::F32, [4, 4])?);
    /// client.dataset().add("image", image)?.add("depth", depth)?.publish("frame")?;
    /// let frame = client.get_dataset("frame")?;
    /// let [image, depth] = frame.tensors() else { panic!("it has two") };
    /// assert_eq!((image.shape(), depth.shape()), (&[4, 4, 3][..], &[4, 4][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tensors(&self) -> &[Tensor] {
        self.inner.group.tensors(self.inner.held.segment())
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.inner.group.index().len()
    }

    /// Returns whether the dataset has no tensors.
    pub fn is_empty(&self) -> bool {
        self.inner.group.index().is_empty()
    }

    /// Returns the metadata of the whole dataset. Empty if the producer set none.
    pub fn metadata(&self) -> &[u8] {
        self.inner.group.metadata()
    }

    /// Returns the timestamp of the whole dataset in nanoseconds. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        self.inner.group.timestamp_ns()
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.inner.held.version()
    }

    /// Validates the lease like [`Lease::validate`].
    pub fn validate(&self) -> bool {
        self.inner.held.validate()
    }
}

impl<'d> IntoIterator for &'d Dataset {
    type Item = (&'d str, &'d Tensor);
    type IntoIter = DatasetIter<'d>;

    fn into_iter(self) -> DatasetIter<'d> {
        self.iter()
    }
}

/// The tensors of a [`Dataset`] with their names: see [`Dataset::iter`].
#[derive(Clone)]
pub struct DatasetIter<'d> {
    index: Index<'d>,
    tensors: &'d [Tensor],
    left: Range<usize>,
}

impl<'d> DatasetIter<'d> {
    fn at(&self, at: usize) -> (&'d str, &'d Tensor) {
        (self.index.name(at), &self.tensors[at])
    }
}

impl<'d> Iterator for DatasetIter<'d> {
    type Item = (&'d str, &'d Tensor);

    fn next(&mut self) -> Option<Self::Item> {
        self.left.next().map(|at| self.at(at))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl DoubleEndedIterator for DatasetIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.left.next_back().map(|at| self.at(at))
    }
}

impl ExactSizeIterator for DatasetIter<'_> {}
impl std::iter::FusedIterator for DatasetIter<'_> {}

impl std::fmt::Debug for DatasetIter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.clone().map(|(name, _)| name)).finish()
    }
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
