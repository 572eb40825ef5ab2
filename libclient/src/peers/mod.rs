//! The other members of the namespace: their sheets are mapped at the first use, and stay mapped.

mod members;
pub mod sheets;

use crate::link::Link;
use crate::link::epoch::EpochGuard;
use sheets::{Peer, Peers};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The mapped memory of other clients, and this client's own memory, mapped for reading.
pub struct PeerTable {
    link: Arc<Link>,
    peers: Peers,
    /// Whether this daemon has ever reported that memory is short, which it does only if it spills.
    was_short: AtomicBool,
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
        Self { link, peers, was_short: AtomicBool::new(false) }
    }

    /// Returns the mapped sheets of a member. See [`Peers::get`].
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, catalogue: u16) -> Option<&'s Peer> {
        self.peers.get(guard, catalogue)
    }

    /// Notes whether the daemon has reported, with a loan, that memory is short.
    pub fn note_short(&self, short: bool) {
        self.was_short.fetch_or(short, Ordering::Relaxed);
    }

    /// Forgets the reports of the former daemon.
    pub fn daemon_replaced(&self) {
        self.was_short.store(false, Ordering::Relaxed);
    }
}
