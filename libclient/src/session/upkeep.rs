//! The janitor's work for a session with device memory. The janitor holds no strong reference to the session.

use crate::link::Link;
use crate::peers::PeerTable;
use crate::segment::janitor;
use std::sync::{Arc, Weak};

pub struct Upkeep {
    link: Weak<Link>,
    peers: Weak<PeerTable>,
}

impl Upkeep {
    pub fn new(link: &Arc<Link>, peers: &Arc<PeerTable>) -> Self {
        Self { link: Arc::downgrade(link), peers: Arc::downgrade(peers) }
    }
}

impl janitor::Upkeep for Upkeep {
    fn sweep(&self) {
        if let Some(peers) = self.peers.upgrade() {
            peers.sweep();
        }
    }

    fn report(&self) -> bool {
        let Some(link) = self.link.upgrade() else { return false };
        let _ = link.lendings.tell(&link.control);
        true
    }
}
