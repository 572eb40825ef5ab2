//! A lease in the form that this crate uses internally.

use crate::link::Link;
use crate::link::shards::LeaseEntry;
use crate::names::version::Version;
use crate::peers::PeerSegment;
use std::sync::Arc;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::word::Cell;

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

    /// Returns the slot's segment.
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
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.link().is_member()
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "catalogue {} {:?}", self.owner, self.cell)
    }
}
