//! Listings of names, streams and lists.

mod describe;

use crate::error::{Error, Result};
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::device;
use crate::lease::lease::Held;
use crate::lease::member;
use crate::lease::take::Leased;
use crate::lease::value::Value;
use crate::listing::describe::{Described, Describer};
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use crate::session::Session;
use crate::tensor::Tensor;
use crate::tensor::dims::as_u64;
use crate::tensor::strided::is_row_major;
use std::collections::BTreeSet;
use std::sync::Arc;
use tensorlend_layout::name::{KeyKind, parse};
use tensorlend_layout::number::{ClientNo, EntryNo};
use tensorlend_layout::word::{OwnerWord, ProcessWord};
use tensorlend_layout::{DType, Uuid};

/// The description of a name's value. See [`crate::Client::info`] and [`crate::Client::list`].
///
/// The description is a snapshot: the name may hold another value by the time you read it. To detect this, compare
/// [`Info::version`] with [`crate::Client::version`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::InfoKind;
///
/// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
/// let info = client.info("numbers")?;
/// let InfoKind::Tensor(tensor) = &info.kind else { unreachable!("a tensor was put") };
/// println!("{} {:?}: {} bytes, put by {}", tensor.dtype, tensor.shape, info.nbytes, info.label);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The name.
    pub name: String,
    /// A tensor or a dataset, with dtypes and shapes.
    pub kind: InfoKind,
    /// Bytes of the elements. For a dataset, the bytes of all members together.
    pub nbytes: u64,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Timestamp that the value's producer set, in nanoseconds. 0 if the producer set none.
    pub timestamp_ns: u64,
    /// The owner's process id, as the daemon sees it. 0 if the process is in a pid namespace that the daemon does not
    /// see.
    pub pid: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's label.
    pub label: String,
    /// True if the owner is connected.
    pub alive: bool,
    /// The value's version.
    pub version: Version,
    /// The rest of the name's lifetime.
    pub lifetime: Lifetime,
    /// The device that holds a tensor's bytes. `None`: host memory. Each member of a dataset has a
    /// [device](TensorInfo::device) of its own.
    pub device: Option<Uuid>,
}

/// The kind of a value, with its tensors.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, InfoKind};
///
/// client.dataset().add("depth", client.create(DType::F32, [4, 4])?)?.publish("frame")?;
/// let InfoKind::Dataset(members) = client.info("frame")?.kind else { unreachable!("a dataset was published") };
/// assert_eq!((members[0].0.as_str(), members[0].1.dtype), ("depth", DType::F32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InfoKind {
    /// One tensor.
    Tensor(TensorInfo),
    /// The members of a dataset, with their names.
    Dataset(Vec<(String, TensorInfo)>),
}

/// The dtype, shape and strides of a tensor.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, InfoKind, TensorInfo};
///
/// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
/// let numbers = TensorInfo { dtype: DType::F32, shape: vec![3], strides: vec![1], device: None };
/// assert_eq!(client.info("numbers")?.kind, InfoKind::Tensor(numbers));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<i64>,
    /// The device that holds the elements. `None`: host memory.
    pub device: Option<Uuid>,
}

impl TensorInfo {
    /// Returns true if the elements are contiguous, in C order, like [`Tensor::is_row_major`].
    pub fn is_row_major(&self) -> bool {
        is_row_major(as_u64(&self.shape), &self.strides)
    }

    fn of_member(member: member::Member<'_>) -> Self {
        let (shape, strides) = (member.shape().to_vec(), member.strides().to_vec());
        Self { dtype: member.dtype(), shape, strides, device: member.uuid() }
    }
}

/// A stream or a list in a listing. See [`crate::Client::streams`] and [`crate::Client::lists`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
/// let lists = client.lists("*")?;
/// assert_eq!((lists[0].name.as_str(), lists[0].count), ("episodes", 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collection {
    /// The name of the stream or list.
    pub name: String,
    /// The number of items of a list, or of subscribers of a stream.
    pub count: u64,
}

/// A listing of names, including names whose values the client cannot describe. See [`crate::Client::listing`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// client.put("numbers", &[1.0f32])?;
/// let listing = client.listing("*")?;
/// assert_eq!((listing.infos.len(), listing.unreadable.len()), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Listing {
    /// Descriptions of the names' values, sorted by name.
    pub infos: Vec<Info>,
    /// Names whose values the client cannot describe, with the reason. Either a faulty client published the value
    /// ([`Error::Damaged`]); or it is spilled, its record is incomplete, and there is no memory to load it
    /// ([`Error::Refused`]).
    pub unreadable: Vec<(String, Error)>,
    /// Names whose spilled values stay in files, if the caller requested that: see [`crate::Client::overview`].
    pub spilled: Vec<Spilled>,
    /// Names of `infos` whose values are in files. The records of these values describe them completely.
    pub in_files: BTreeSet<String>,
}

/// A spilled value whose record does not describe it completely: a dataset, or a tensor with strides, more than 4
/// dimensions or more than 32 bytes of metadata. See [`crate::Client::overview`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// for spilled in client.overview("*")?.spilled {
///     match spilled.dtype {
///         Some(dtype) => println!("{}: {dtype}, in a file", spilled.name),
///         None => println!("{}: a dataset, in a file", spilled.name),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spilled {
    /// The name.
    pub name: String,
    /// Element type. `None` for a dataset.
    pub dtype: Option<DType>,
    /// The number of dimensions. `None` for a dataset.
    pub ndim: Option<usize>,
    /// Bytes of the value's elements, including gaps. `None` for a dataset.
    pub bytes: Option<u64>,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Timestamp that the value's producer set, in nanoseconds. 0 if the producer set none.
    pub timestamp_ns: u64,
    /// The owner's process id, as in [`Info::pid`].
    pub pid: u32,
    /// The owner's user id.
    pub uid: u32,
    /// The owner's label.
    pub label: String,
    /// True if the owner is connected.
    pub alive: bool,
    /// The value's version.
    pub version: Version,
    /// The rest of the name's lifetime.
    pub lifetime: Lifetime,
}

/// Calls `each` once for every live entry, with its kind, name, owner word and entry number. Also calls it only once
/// for a name that is deleted and published again during the walk.
fn walk(session: &Session, mut each: impl FnMut(KeyKind, String, OwnerWord, EntryNo)) {
    let directory = &session.directory;
    let mut seen = std::collections::HashSet::new();
    for (at, entry) in directory.entries() {
        let Some((owner_word, key)) = directory.live_key(entry) else { continue };
        if !seen.insert(key.clone()) {
            continue;
        }
        if let Some((kind, name)) = parse(&key) {
            each(kind, name.to_owned(), owner_word, at);
        }
    }
}

/// Returns the names that `wanted` accepts, sorted.
pub fn names(session: &Session, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    session.check()?;
    let mut names = session.names().announced_names()?;
    names.retain(|name| wanted(name));
    walk(session, |kind, name, _, _| {
        if kind == KeyKind::Name && wanted(&name) {
            names.push(name);
        }
    });
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Describes the value of every name that `wanted` accepts, sorted by name.
pub fn list(session: &Arc<Session>, wanted: impl Fn(&str) -> bool) -> Result<Vec<Info>> {
    Ok(listing(session, wanted, true)?.infos)
}

/// Describes values like [`list`], and also returns the names that it cannot describe. If `recalls` is true, loads
/// spilled values with incomplete records into memory.
pub fn listing(session: &Arc<Session>, wanted: impl Fn(&str) -> bool, recalls: bool) -> Result<Listing> {
    let names = names(session, wanted)?;
    let mut listing = Listing {
        infos: Vec::with_capacity(names.len()),
        unreadable: Vec::new(),
        spilled: Vec::new(),
        in_files: BTreeSet::new(),
    };
    let mut describer = Describer::new(session, !recalls);
    describer.prepare(names.iter().map(String::as_str))?;
    for name in names {
        let described = match describer.describe(&name) {
            Ok(Described::InFile(spilled)) => {
                listing.spilled.push(*spilled);
                continue;
            }
            described => described.and_then(|described| {
                if matches!(described, Described::Info { in_file: true, .. }) {
                    listing.in_files.insert(name.clone());
                }
                info_by(session, described, &name)
            }),
        };
        match described {
            Ok(Some(info)) => listing.infos.push(info),
            // The name was deleted in the meantime.
            Ok(None) => {}
            // Continue with the other names. A faulty client may have published this value, or it may be a spilled
            // value and there is no memory to load it.
            Err(cause @ (Error::Damaged { .. } | Error::Leases(_) | Error::Refused { .. } | Error::Device { .. })) => {
                listing.unreadable.push((name, cause));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(listing)
}

/// Returns streams or lists, sorted by name.
pub fn collections(session: &Session, wanted: KeyKind) -> Result<Vec<Collection>> {
    session.check()?;
    let mut found = Vec::new();
    walk(session, |kind, name, owner_word, _| {
        if kind == wanted {
            let at = owner_word.cell().index();
            let count = match kind {
                KeyKind::List => session.directory.lists.get(at).map(|l| l.end.read()),
                _ => session
                    .directory
                    .streams
                    .get(at)
                    .map(|s| s.subscribers.iter().filter(|word| word.read() != 0).count() as u64),
            };
            found.push(Collection { name, count: count.unwrap_or(0) });
        }
    });
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Describes a name's value.
pub fn info(session: &Arc<Session>, name: &str) -> Result<Info> {
    session.check()?;
    let mut describer = Describer::new(session, false);
    describer.prepare(std::iter::once(name))?;
    let described = describer.describe(name)?;
    info_by(session, described, name)?.ok_or_else(|| Error::NotFound(name.to_owned()))
}

fn info_by(session: &Arc<Session>, described: Described, name: &str) -> Result<Option<Info>> {
    match described {
        Described::Info { info, .. } => Ok(Some(*info)),
        Described::Absent => Ok(None),
        Described::Lease | Described::InFile(_) => info_of_lease(session, name),
    }
}

/// Describes a name's value through a lease on the value.
fn info_of_lease(session: &Arc<Session>, name: &str) -> Result<Option<Info>> {
    let Some(leased) = lease_key(session, name.as_bytes(), name)? else { return Ok(None) };
    // A value on a device is described without a driver, because this process may have none.
    let leased = match leased {
        Leased::Other(parts) if parts.bytes.is_none() => {
            let device = device::describe(session, &parts.held, parts.held.segment(), &parts.info, name)?;
            let uuid = Some(device.memory);
            let content = Content::of_tensor(&device, uuid);
            return Ok(Some(info_of(session, name, Origin::of(&parts.held), content, uuid)));
        }
        leased => leased,
    };
    let value = assemble::value(session, leased, name)?;
    let held = value.held();
    let content = match &value {
        Value::Tensor(tensor) => Content::of_tensor(tensor, None),
        Value::Dataset(dataset) => Content {
            kind: InfoKind::Dataset(dataset.members().map(|(n, t)| (n.to_owned(), TensorInfo::of_member(t))).collect()),
            nbytes: dataset.members().fold(0u64, |sum, (_, t)| sum.saturating_add(t.nbytes() as u64)),
            metadata_bytes: dataset.metadata().len(),
            timestamp_ns: dataset.timestamp(),
        },
        #[cfg(feature = "cuda")]
        Value::Device(_) => unreachable!("described above"),
    };
    Ok(Some(info_of(session, name, Origin::of(held), content, None)))
}

/// The owner and the version of a value.
#[derive(Clone, Copy)]
pub struct Origin {
    pub owner: ClientNo,
    pub version: Version,
}

impl Origin {
    fn of(held: &Held) -> Self {
        Self { owner: held.owner, version: Version { owner_word: held.owner_word, cell: held.cell.0 } }
    }
}

/// The part of a description that comes from the value's record.
pub struct Content {
    pub kind: InfoKind,
    pub nbytes: u64,
    pub metadata_bytes: usize,
    pub timestamp_ns: u64,
}

impl Content {
    /// Returns the description of one tensor.
    pub fn of_tensor<M>(tensor: &Tensor<M>, device: Option<Uuid>) -> Self {
        let (dtype, shape, strides) = (tensor.dtype(), tensor.shape().to_vec(), tensor.strides().to_vec());
        Self {
            kind: InfoKind::Tensor(TensorInfo { dtype, shape, strides, device }),
            nbytes: tensor.nbytes() as u64,
            metadata_bytes: tensor.metadata().len(),
            timestamp_ns: tensor.timestamp(),
        }
    }
}

pub fn info_of(session: &Session, name: &str, origin: Origin, content: Content, device: Option<Uuid>) -> Info {
    let Origin { owner, version } = origin;
    let Content { kind, nbytes, metadata_bytes, timestamp_ns } = content;
    let member = &session.directory.members[owner.index()];
    let process = ProcessWord(member.process.read());
    let label: Vec<u8> = member.label.iter().flat_map(|w| w.peek().to_le_bytes()).collect();
    Info {
        name: name.to_owned(),
        kind,
        nbytes,
        metadata_bytes: metadata_bytes as u64,
        timestamp_ns,
        pid: process.pid(),
        uid: process.uid(),
        label: String::from_utf8_lossy(&label).trim_end_matches('\0').to_owned(),
        alive: session.is_alive(owner),
        version,
        lifetime: session.names().lifetime_of(name.as_bytes()),
        device,
    }
}
