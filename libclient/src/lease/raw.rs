//! A lease as this crate holds it internally.

use crate::link::Link;
use crate::link::shards::Place;
use crate::names::version::Version;
use crate::peers::sheets::PeerSegment;
use std::sync::Arc;
use tensorlend_layout::leases;
use tensorlend_layout::word::Cell;

/// A validated lease: while it exists, the slot is not reused.
pub struct Held {
    /// The slot's segment; its link is the session that holds the lease.
    segment: Arc<PeerSegment>,
    place: Place,
    /// The slot's owner.
    pub catalogue: u16,
    /// The slot and its generation.
    pub cell: Cell,
    /// The owner word that led to it.
    pub home: u64,
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // A forked child has no lease table mapped; the lease belongs to its parent.
        let link = &self.segment.link;
        if !link.is_forked() {
            leases::release(link.shards.entry(self.place));
        }
    }
}

impl Held {
    /// A lease that was taken elsewhere: the entry at `place` holds it, and is cleared by the drop.
    #[inline]
    pub fn new(segment: Arc<PeerSegment>, place: Place, catalogue: u16, cell: Cell, home: u64) -> Self {
        Self { segment, place, catalogue, cell, home }
    }

    /// The slot's segment.
    #[inline]
    pub fn segment(&self) -> &Arc<PeerSegment> {
        &self.segment
    }

    /// The session that holds the lease.
    #[inline]
    pub fn link(&self) -> &Link {
        &self.segment.link
    }

    pub(crate) fn version(&self) -> Version {
        Version { home: self.home, cell: self.cell.0 }
    }

    pub(crate) fn validate(&self) -> bool {
        if self.link().is_forked() {
            return false;
        }
        // Acquire, before the check: all reads of the tensor come before it. If a read byte belonged to another tensor
        // already, the word shows that this session had ended.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.link().is_member()
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "catalogue {} {:?}", self.catalogue, self.cell)
    }
}
