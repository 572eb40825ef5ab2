//! Values that a reader may write to, without anybody else seeing it.
#![allow(unsafe_code)]

use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::lease::Lease;
use crate::lease::value::Value;
use crate::session::Session;
use crate::tensor::Tensor;
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_os::map::{Private, private};

/// A value that this process may write to: what it writes is its own, and the value that others read does not change. Pages
/// are copied when they are first written, and only those; the lease lasts as long as this does.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// client.put("numbers", &[1u8, 2, 3])?;
/// let mut mine = client.get("numbers")?.copy_on_write(&client)?;
/// mine.bytes_mut(0)[0] = 9;
/// assert_eq!(mine.bytes_mut(0), [9, 2, 3]);
/// assert_eq!(client.get("numbers")?.as_slice::<u8>()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CopyOnWrite {
    /// Before the value, whose lease keeps what is not copied yet in place.
    maps: Vec<Option<Map>>,
    value: Value,
}

struct Map(Private);

// SAFETY: a range of memory, reached through the CopyOnWrite alone: shared for reading, exclusively for writing.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} private bytes", self.0.bytes())
    }
}

impl Lease {
    /// Makes it writable for this process alone: see [`CopyOnWrite`]. Costs a round trip to the daemon and a mapping of the
    /// tensor's length.
    ///
    /// # Errors
    /// As [`Value::copy_on_write`].
    pub fn copy_on_write(self, client: &Client) -> Result<CopyOnWrite> {
        Value::Tensor(self).copy_on_write(client)
    }
}

impl Value {
    /// Makes it writable for this process alone, all tensors of a dataset: see [`CopyOnWrite`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a lease of another client; [`Error::Disconnected`]; [`Error::System`] if it cannot be mapped.
    pub fn copy_on_write(self, client: &Client) -> Result<CopyOnWrite> {
        let session = client.session();
        let held = self.held();
        if !std::ptr::eq(held.link(), &raw const **session.link()) {
            return Err(Error::Argument("the lease was taken by another client".into()));
        }
        let one = |tensor: &Tensor| map(session, held.catalogue, tensor);
        let maps = match &self {
            Self::Tensor(lease) => vec![one(lease)?],
            Self::Dataset(dataset) => dataset.iter().map(|(_, tensor)| one(tensor)).collect::<Result<_>>()?,
            #[cfg(feature = "cuda")]
            Self::Device(_) => {
                return Err(crate::lease::value::on_device("the leased value", crate::ValueKind::Tensor));
            }
        };
        Ok(CopyOnWrite { maps, value: self })
    }
}

impl CopyOnWrite {
    /// What was leased: shapes, dtypes, metadata, and the bytes as everybody else sees them.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The bytes of a tensor, writable, laid out as [`Tensor::bytes`]: of the only one, number 0, or of a dataset's member.
    ///
    /// # Panics
    /// For a number behind the last; in the child of a fork.
    pub fn bytes_mut(&mut self, member: usize) -> &mut [u8] {
        let Some(Map(map)) = &mut self.maps[member] else { return &mut [] };
        assert!(map.is_ours(), "this value was leased by the parent process: get it in the child");
        // SAFETY: mapped, privately, for so many bytes, as long as `self` lives; reached through `self` alone, which is
        // borrowed mutably. A page that is not copied yet is the slot's own, and the lease in `self` keeps it as it is (contract
        // 2 of `bytes.rs`, with what is said there of hostile owners).
        unsafe { std::slice::from_raw_parts_mut(map.start(), map.bytes()) }
    }
}

/// `None` for a tensor without bytes.
fn map(session: &Session, catalogue: u16, tensor: &Tensor) -> Result<Option<Map>> {
    let bytes = tensor.bytes();
    if bytes.is_empty() {
        return Ok(None);
    }
    let place = {
        let guard = session.shards.epoch_guard();
        let peer = session.peers().get(&guard, catalogue);
        peer.and_then(|peer| peer.place_of(bytes.as_ptr()))
    };
    let (slot, identity, offset) = place.ok_or(Error::SessionEnded)?;
    let descriptor = descriptor(session, catalogue, slot, identity)?;
    let map = private(&descriptor, offset, bytes.len()).map_err(Error::system("map a tensor privately"))?;
    Ok(Some(Map(map)))
}

/// Asks for the descriptor of a segment that is mapped here already, and is this one by its inode.
fn descriptor(session: &Session, catalogue: u16, slot: u32, identity: u64) -> Result<OwnedFd> {
    let doing = "read a segment";
    let mut answer = session.control.ask(&Request::SegmentOf { catalogue, slot }, &[], doing, "")?;
    let Reply::Segment { .. } = answer.reply else { return answer.unexpected() };
    let (segment, _slots) = (answer.descriptor()?, answer.descriptor()?);
    answer.acknowledge()?;
    match fstat(&segment) {
        Ok(stat) if stat.st_ino == identity => Ok(segment),
        Ok(_) => Err(Error::SessionEnded),
        Err(error) => Err(Error::System { doing: "look at a segment", cause: error.into() }),
    }
}
