//! The other members of the namespace. This client maps their sheets at the first use, and keeps them mapped.

mod members;
pub mod sheets;

use crate::link::Link;
use crate::link::epoch::EpochGuard;
use sheets::{Peer, Peers};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend_layout::number::ClientNo;

/// The mapped memory of other clients, and this client's own memory, mapped for reading.
pub struct PeerTable {
    link: Arc<Link>,
    peers: Peers,
    /// True if this daemon has ever reported that memory is short. A daemon reports this only if it spills.
    was_short: AtomicBool,
    /// Whether a publication rang its bell for a member that may be parked and whose lease table is not mapped.
    waiter_unmapped: AtomicBool,
}

impl Deref for PeerTable {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl PeerTable {
    pub fn new(link: Arc<Link>) -> Self {
        let peers = Peers::new(link.directory.members.len(), link.shards.clone());
        Self { link, peers, was_short: AtomicBool::new(false), waiter_unmapped: AtomicBool::new(false) }
    }

    /// Returns the mapped sheets of a member. See [`Peers::get`].
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, number: ClientNo) -> Option<&'s Peer> {
        self.peers.get(guard, number)
    }

    /// Records whether the daemon has reported, in a reply with a loan, that memory is short.
    pub fn note_short(&self, short: bool) {
        self.was_short.fetch_or(short, Ordering::Relaxed);
    }

    /// Forgets the reports of the former daemon.
    pub fn daemon_replaced(&self) {
        self.was_short.store(false, Ordering::Relaxed);
    }
}
