//! The other members of the namespace: their sheets are fetched when they are first needed, and kept mapped.

mod members;
pub mod sheets;

use crate::link::Link;
use crate::link::epoch::EpochGuard;
use sheets::{Peer, Peers};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a session has mapped of other clients, and of its own memory to read it as anybody's.
pub struct PeerTable {
    link: Arc<Link>,
    peers: Peers,
    /// Whether this daemon has ever said that memory is short, which it does where it spills.
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

    /// What is mapped of a member. See [`Peers::get`].
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, catalogue: u16) -> Option<&'s Peer> {
        self.peers.get(guard, catalogue)
    }

    /// The daemon has said, with something that it lent, whether memory is short.
    pub fn note_short(&self, short: bool) {
        self.was_short.fetch_or(short, Ordering::Relaxed);
    }

    /// Another daemon has said nothing yet.
    pub fn daemon_replaced(&self) {
        self.was_short.store(false, Ordering::Relaxed);
    }
}
