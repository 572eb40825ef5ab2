//! Leases: on any value, in the form that this crate uses, and on one tensor, as programs use them.

use crate::link::Link;
use crate::link::shards::LeaseEntry;
use crate::names::version::Version;
use crate::peers::PeerSegment;
use crate::reused::{Reuse, Reused, Spares};
use crate::segment::bytes::Bytes;
use crate::tensor::Tensor;
use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::LocalKey;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::stream::{HeaderSummary, SUMMARY_WORDS};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::Cell;

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
    inner: Reused<Inner>,
}

thread_local! {
    static SPARES: Spares<Option<Inner>> = const { Spares::new(Vec::new()) };
}

impl Reuse for Option<Inner> {
    fn spares() -> &'static LocalKey<Spares<Self>> {
        &SPARES
    }
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
        Self { inner: Reused::new(Inner { held, summary: [0; SUMMARY_WORDS], tensor }) }
    }

    /// Returns a lease on a tensor whose header summary was checked against the segment.
    #[inline]
    pub(crate) fn of_summary(summary: HeaderSummary, held: Held) -> Self {
        Self { inner: Reused::new(Inner { held, summary, tensor: OnceLock::new() }) }
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
        &self.inner.get().held
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.inner.get().held.version()
    }

    /// Returns whether the session that took this lease still exists, so that the lease protects the tensor's memory.
    ///
    /// This method returns false only after the daemon has ended the session of a running process. One reason is that the
    /// process broke a rule of the protocol. The other reason exists only if the daemon's configuration sets
    /// `uid.lease_ms_max`: memory was short, and leases kept replaced values for too long. The bytes may then belong to
    /// another tensor. Where that can happen, read, validate, and only then use the result.
    pub fn validate(&self) -> bool {
        self.inner.get().held.validate()
    }
}

impl Deref for Lease {
    type Target = Tensor;

    #[inline]
    fn deref(&self) -> &Tensor {
        let inner = self.inner.get();
        inner.tensor.get_or_init(|| inner.unpack())
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("tensor", &**self).field("held", &self.inner.get().held).finish_non_exhaustive()
    }
}

/// A validated lease. While it exists, no client reuses the slot.
pub struct Held {
    /// The slot's segment. Its link is the session that holds the lease.
    segment: Arc<PeerSegment>,
    entry: LeaseEntry,
    /// The slot's owner.
    pub owner: ClientNo,
    /// The slot and its generation.
    pub cell: Cell,
    /// The owner word through which the reader found the value.
    pub owner_word: u64,
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // A forked child only reads, because the lease belongs to its parent.
        let link = &self.segment.link;
        if !link.is_forked() {
            link.shards.release(self.entry);
        }
    }
}

impl Held {
    /// Returns the value for a lease that is stored in `entry`. Dropping the value clears the entry.
    #[inline]
    pub fn new(segment: Arc<PeerSegment>, entry: LeaseEntry, owner: ClientNo, cell: Cell, owner_word: u64) -> Self {
        Self { segment, entry, owner, cell, owner_word }
    }

    #[inline]
    pub fn segment(&self) -> &Arc<PeerSegment> {
        &self.segment
    }

    /// Returns the session that holds the lease.
    #[inline]
    pub fn link(&self) -> &Link {
        &self.segment.link
    }

    pub(crate) fn version(&self) -> Version {
        Version { owner_word: self.owner_word, cell: self.cell.0 }
    }

    pub(crate) fn validate(&self) -> bool {
        if !self.link().is_readable() || !self.link().shards.counts_here(self.entry) {
            return false;
        }
        // Acquire, between all reads of the tensor and the check. If a read returned a byte of a later tensor, the
        // member word shows that this session had ended.
        fence(Ordering::Acquire);
        self.link().is_member()
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "catalogue {} {:?}", self.owner, self.cell)
    }
}
