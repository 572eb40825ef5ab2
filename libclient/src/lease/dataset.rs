//! Leases on datasets, as programs use them.

use crate::error::{Error, Result, ValueKind};
use crate::lease::device::member::DeviceMember;
#[cfg(feature = "cuda")]
use crate::lease::device::tensor::DeviceTensor;
use crate::lease::group::Group;
use crate::lease::lease::Held;
use crate::lease::member::Member;
use crate::names::version::Version;
use crate::reused::{Reuse, Reused, Spares};
use crate::tensor::Tensor;
use std::ops::Range;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::thread::LocalKey;
use tensorlend_layout::dataset::Index;

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
///
/// A member is in host memory or on a device. [`Dataset::members`] and [`Dataset::member`] return members of both kinds;
/// the other methods return the tensors in host memory. With the feature `cuda`, `Dataset::device` returns a member on a
/// device. After the drop of the dataset, its lease ends when the streams recorded on such members have finished their
/// work up to the drop.
pub struct Dataset {
    inner: Reused<Whole>,
}

thread_local! {
    static SPARES: Spares<Option<Whole>> = const { Spares::new(Vec::new()) };
}

impl Reuse for Option<Whole> {
    fn spares() -> &'static LocalKey<Spares<Self>> {
        &SPARES
    }
}

struct Whole {
    /// The lease. Declared first, because it must be cleared before memory of devices is unmapped.
    held: Held,
    group: Group,
}

impl Dataset {
    #[inline]
    pub(crate) fn of(group: Group, held: Held) -> Self {
        Self { inner: Reused::new(Whole { held, group }) }
    }

    #[inline]
    fn whole(&self) -> &Whole {
        self.inner.get()
    }

    pub(crate) fn held(&self) -> &Held {
        &self.whole().held
    }

    /// Returns the segments of the dataset's tensors in host memory, other than the segment of its index.
    #[cfg(feature = "cuda")]
    pub(crate) fn segments(&self) -> &[std::sync::Arc<crate::peers::PeerSegment>] {
        self.whole().group.segments()
    }

    /// Returns the tensor in host memory with this name in the dataset. Returns `None` if there is no such tensor.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        match self.member(name)? {
            Member::Host(tensor) => Some(tensor),
            Member::Device(_) => None,
        }
    }

    /// Returns the member with this name. Returns `None` if there is no such member.
    pub fn member(&self, name: &str) -> Option<Member<'_>> {
        self.member_at(self.whole().group.index().find(name)?)
    }

    /// Returns the member with this number, in the order in which the producer added the members.
    pub fn member_at(&self, number: usize) -> Option<Member<'_>> {
        let Whole { group, held } = self.whole();
        (number < self.len()).then(|| group.member(number, held.segment()))
    }

    /// Returns all members with their names, in the order in which the producer added them.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (&str, Member<'_>)> + DoubleEndedIterator {
        let Whole { group, held } = self.whole();
        (0..self.len()).map(|at| (group.index().name(at), group.member(at, held.segment())))
    }

    /// Returns the tensor on a device with this name in the dataset. Maps its memory at the first call.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// let batch = client.get_dataset("batch")?;
    /// let features = batch.device("features")?;
    /// println!("{:?} at {:#x} on {}", features.shape(), features.ptr(), features.device());
    /// let labels: &[i64] = batch.tensor("labels")?.as_slice()?; // in host memory
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] if the dataset has no such member; [`Error::Kind`] if the member is in host memory;
    /// otherwise the errors of [`DeviceMember::tensor`].
    #[cfg(feature = "cuda")]
    pub fn device(&self, name: &str) -> Result<&DeviceTensor> {
        match self.member(name).ok_or_else(|| self.has_no(name))? {
            Member::Device(member) => member.tensor(),
            Member::Host(_) => Err(Error::Kind {
                name: name.to_owned(),
                found: ValueKind::Tensor,
                wanted: ValueKind::DeviceTensor,
                remedy: "Dataset::tensor",
            }),
        }
    }

    /// Checks that all members are in host memory, for a program that reads only such members. `dataset` is the dataset's
    /// name.
    ///
    /// # Errors
    /// [`Error::Kind`] for a dataset with a member on a device. The error names the first one.
    pub fn require_host(&self, dataset: &str) -> Result<()> {
        match self.members().find(|(_, member)| member.uuid().is_some()) {
            Some((member, _)) => Err(Error::Kind {
                name: format!("{dataset}/{member}"),
                found: ValueKind::DeviceTensor,
                wanted: ValueKind::HostValue,
                remedy: "the dataset's members, or copy the member to the host",
            }),
            None => Ok(()),
        }
    }

    /// Returns the tensor in host memory with this name in the dataset. A missing tensor is an error.
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
    /// [`Error::Argument`] if the dataset has no such tensor. The error lists the names in the dataset. [`Error::Kind`] if
    /// the tensor is on a device.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        match self.member(name).ok_or_else(|| self.has_no(name))? {
            Member::Host(tensor) => Ok(tensor),
            Member::Device(_) => Err(Error::Kind {
                name: name.to_owned(),
                found: ValueKind::DeviceTensor,
                wanted: ValueKind::Tensor,
                remedy: "the dataset's device, or its members",
            }),
        }
    }

    #[cold]
    fn has_no(&self, name: &str) -> Error {
        let names: Vec<String> = self.members().take(16).map(|(name, _)| format!("{name:?}")).collect();
        let more = if names.len() < self.len() { " and more" } else { "" };
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::Argument(format!("the dataset has no tensor named {name:?}: it has {names}{more}"))
    }

    /// Returns the tensors in host memory with their names, in the order in which the producer added them.
    /// [`Dataset::members`] also returns those on devices.
    pub fn iter(&self) -> DatasetIter<'_> {
        let (group, tensors) = (&self.whole().group, self.tensors());
        DatasetIter { index: group.index(), tensors, devices: group.devices(), left: 0..tensors.len() }
    }

    /// Returns the tensors in host memory without their names, in the order in which the producer added them.
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
        self.whole().group.tensors(self.whole().held.segment())
    }

    /// Returns the number of members, in host memory and on devices.
    pub fn len(&self) -> usize {
        self.whole().group.index().len()
    }

    /// Returns whether the dataset has no members.
    pub fn is_empty(&self) -> bool {
        self.whole().group.index().is_empty()
    }

    /// Returns the metadata of the whole dataset. Empty if the producer set none.
    pub fn metadata(&self) -> &[u8] {
        self.whole().group.metadata()
    }

    /// Returns the timestamp of the whole dataset in nanoseconds. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        self.whole().group.timestamp_ns()
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.whole().held.version()
    }

    /// Validates the lease like [`crate::Lease::validate`].
    pub fn validate(&self) -> bool {
        self.whole().held.validate()
    }
}

impl<'d> IntoIterator for &'d Dataset {
    type Item = (&'d str, &'d Tensor);
    type IntoIter = DatasetIter<'d>;

    fn into_iter(self) -> DatasetIter<'d> {
        self.iter()
    }
}

/// The tensors of a [`Dataset`] in host memory with their names: see [`Dataset::iter`].
#[derive(Clone)]
pub struct DatasetIter<'d> {
    index: Index<'d>,
    tensors: &'d [Tensor],
    /// The members on devices, with their numbers, in ascending order.
    devices: &'d [(usize, DeviceMember)],
    left: Range<usize>,
}

impl<'d> DatasetIter<'d> {
    fn at(&self, at: usize) -> (&'d str, &'d Tensor) {
        // Count the members on devices that precede this tensor.
        let (mut low, mut high) = (0, self.devices.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.devices[middle].0 - middle <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (self.index.name(at + low), &self.tensors[at])
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
        f.debug_map().entries(self.members()).finish()
    }
}

#[cfg(feature = "cuda")]
impl Drop for Dataset {
    fn drop(&mut self) {
        let Some(whole) = self.inner.take() else { return };
        if whole.group.devices().is_empty() || whole.held.link().is_forked() {
            return;
        }
        let (link, whole) = (whole.held.segment().link.clone(), Arc::new(whole));
        for tensor in whole.group.devices().iter().filter_map(|(_, member)| member.mapped()) {
            tensor.drop_after(&link.lendings.janitor, whole.clone());
        }
    }
}
