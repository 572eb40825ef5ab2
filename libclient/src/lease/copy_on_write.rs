//! Private copies of values, to which a reader may write without changing the values for others.
#![allow(unsafe_code)]

use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::lease::Lease;
use crate::lease::value::Value;
use crate::segment::populate;
use crate::session::Session;
use crate::tensor::Tensor;
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_os::map::{Private, private};

/// A value that this process may write to. Its writes are private, and other readers see the published value unchanged.
/// The kernel copies each page at the first write to it. The lease lasts as long as this value.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// client.put("numbers", &[1u8, 2, 3])?;
/// let mut mine = client.get("numbers")?.copy_on_write(&client)?;
/// mine.bytes_mut(0)[0] = 9;
/// assert_eq!(mine.bytes_mut(0), [9, 2, 3]);
/// assert_eq!(client.get("numbers")?.as_slice::<u8>()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CopyOnWrite {
    /// The private mappings. Declared before the value, whose lease keeps the pages that the kernel has not copied yet.
    maps: Vec<Option<Map>>,
    value: Value,
}

struct Map(Arc<Private>);

// SAFETY: a `Map` is a range of memory that only its `CopyOnWrite` accesses: through a shared reference for reading, and
// through an exclusive one for writing.
unsafe impl Send for Map {}
// SAFETY: a shared `Map` only allows reads of its range, which no thread can write at the same time.
unsafe impl Sync for Map {}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} private bytes", self.0.bytes())
    }
}

impl Lease {
    /// Makes the tensor writable for this process alone: see [`CopyOnWrite`]. Blocks for the mapping of the tensor. For
    /// the first tensor of a segment, also blocks for a round trip to the daemon.
    ///
    /// # Errors
    /// The errors of [`Value::copy_on_write`].
    pub fn copy_on_write(self, client: &Client) -> Result<CopyOnWrite> {
        Value::Tensor(self).copy_on_write(client)
    }
}

impl Value {
    /// Makes the value writable for this process alone, with all tensors of a dataset: see [`CopyOnWrite`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a lease of another client; [`Error::Kind`] for a tensor on a device, and for a dataset with
    /// such a member; [`Error::Disconnected`]; [`Error::System`] if the memory
    /// cannot be mapped.
    pub fn copy_on_write(self, client: &Client) -> Result<CopyOnWrite> {
        let session = client.session();
        let held = self.held();
        if !std::ptr::eq(held.link(), &raw const **session.link()) {
            return Err(Error::Argument("the lease was taken by another client: get the tensor with this one".into()));
        }
        let one = |tensor: &Tensor| map(session, held.owner, tensor);
        let maps = match &self {
            Self::Tensor(lease) => vec![one(lease)?],
            Self::Dataset(dataset) => {
                dataset.require_host("the leased dataset")?;
                dataset.iter().map(|(_, tensor)| one(tensor)).collect::<Result<_>>()?
            }
            #[cfg(feature = "cuda")]
            Self::Device(_) => {
                return Err(crate::lease::value::is_on_device("the leased value", crate::error::ValueKind::Tensor));
            }
        };
        Ok(CopyOnWrite { maps, value: self })
    }
}

impl CopyOnWrite {
    /// Returns the leased value: shapes, dtypes, metadata, and the bytes as all other readers see them, without this process's
    /// writes.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the writable bytes of a tensor, in the layout of [`Tensor::bytes`]: number 0 for a single tensor, otherwise the
    /// dataset's member with this number.
    ///
    /// # Panics
    /// Panics for a number beyond the last member. Panics in the child of a fork that did not inherit the value.
    pub fn bytes_mut(&mut self, member: usize) -> &mut [u8] {
        let Some(Map(map)) = &mut self.maps[member] else { return &mut [] };
        assert!(map.is_readable(), "this value was leased by the parent process: get it in the child");
        // SAFETY: the range is mapped privately, with this length, for the life of `self`. Only `self` gives access
        // to it, and `self` is borrowed mutably. A page that is not copied yet belongs to the slot, and the lease in
        // `self` keeps the slot unchanged (contract 2 of `bytes.rs`, with its note on hostile owners).
        unsafe { std::slice::from_raw_parts_mut(map.start(), map.bytes()) }
    }
}

/// Maps a tensor privately. Returns `None` for a tensor without bytes.
fn map(session: &Session, owner: ClientNo, tensor: &Tensor) -> Result<Option<Map>> {
    let bytes = tensor.bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    let place = {
        let guard = session.shards.epoch_guard();
        let peer = session.peers().get(&guard, owner);
        peer.and_then(|peer| peer.place_of(bytes.as_ptr()).map(|(segment, offset)| (segment.clone(), offset)))
    };
    let (segment, offset) = place.ok_or(Error::SessionEnded)?;
    let map = |descriptor: &OwnedFd| {
        let map = private(descriptor, offset, bytes.len()).map_err(Error::system("map a tensor privately"))?;
        let map = Arc::new(map);
        populate::behind(&map);
        Ok(Some(Map(map)))
    };
    if let Some(descriptor) = segment.kept.get() {
        return map(descriptor);
    }
    let descriptor = descriptor(session, owner, segment.base, segment.identity.0)?;
    let map = map(&descriptor);
    segment.kept.keep(descriptor);
    map
}

/// Requests the descriptor of a mapped segment, and checks by the inode that the descriptor refers to the same
/// segment.
fn descriptor(session: &Session, owner: ClientNo, slot: SlotNo, identity: u64) -> Result<OwnedFd> {
    let doing = "read a segment";
    let mut answer = session.control.ask(&Request::SegmentOf { owner, slot }, doing, "")?;
    let Reply::Segment { .. } = answer.reply else { return answer.unexpected() };
    let (segment, _slots) = (answer.descriptor()?, answer.descriptor()?);
    answer.acknowledge()?;
    match fstat(&segment) {
        Ok(stat) if stat.st_ino == identity => Ok(segment),
        Ok(_) => Err(Error::SessionEnded),
        Err(error) => Err(Error::System { doing: "inspect a segment", cause: error.into() }),
    }
}
