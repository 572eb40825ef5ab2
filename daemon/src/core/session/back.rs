//! Clients of this daemon's predecessor: they come back, or their processes are gone.
//!
//! In system mode this daemon writes the same directory as its predecessor, and whoever has not come back reads what it
//! writes. In user mode nobody can: the directory is a copy, and who has not come back reads the old one. There no name
//! moves and nobody joins until all are back, or [`GATHERING_NS`] have passed.

use super::hello::same_version;
use super::{Answer, Core, Lent, Outcome, Seat};
use crate::core::account::NamespaceId;
use crate::core::client::Life;
use crate::core::{ConnId, Lending};
use tensorlend_layout::wire::{Refusal, Reply, Return};

/// How long a copy of a directory waits for those who read the old one. They come as soon as they notice, which takes
/// milliseconds, unless they are stopped.
pub const GATHERING_NS: u64 = 5_000_000_000;

impl Core {
    /// Whether clients may still read the directory that this one is a copy of.
    pub(super) fn is_gathering(&mut self) -> bool {
        let Some(until) = self.gathering_until_ns else { return false };
        let away = self.namespaces.values().flat_map(|n| n.clients.values()).any(|client| client.is_away());
        if away && self.env.now_ns < until {
            return true;
        }
        self.gathering_until_ns = None;
        false
    }

    /// A client goes on with its session.
    pub(super) fn welcome_back(&mut self, conn: ConnId, back: &Return) -> Answer {
        same_version((back.protocol_min, back.protocol_max), (back.layout_version, back.layout_hash))?;
        let peer = self.conns[&conn].peer.clone();
        let unknown = || Refusal::NotFound("session to go on with: this daemon does not know it".into());
        let id = *self.by_name.get(&back.namespace).ok_or_else(unknown)?;
        let namespace = self.namespaces.get_mut(&id).expect("names lead to namespaces");
        let client = namespace.clients.get_mut(&back.catalogue).ok_or_else(unknown)?;
        // A process without a number here is in a pid namespace of its own, as it was before.
        if !client.is_away() || client.member.0 != back.member || (client.uid, client.pid) != (peer.uid, peer.pid) {
            return Err(unknown());
        }
        client.life = Life::Live(conn);
        let (role, lent) = (client.role, client.segments.keys().copied().collect::<Vec<_>>());
        self.conns.get_mut(&conn).expect("who asks is connected").seat =
            Some(Seat { namespace: id, catalogue: back.catalogue, role });
        // It was counted as a session when it was restored, and as a connection now.
        self.env.accounts.end_session(peer.uid);
        if let Some(segments) = &back.segments {
            // Lent or given back at the very moment in which the predecessor ended: the client has none of it.
            for base in lent.into_iter().filter(|base| !segments.contains(base)) {
                let _ = namespace.return_segment(&mut self.env, back.catalogue, base);
            }
        }
        namespace.drop_cells_after(&mut self.env, back.catalogue, back.cells);
        tracing::info!(
            namespace = namespace.name,
            client = back.catalogue,
            pid = peer.pid,
            uid = peer.uid,
            "client is back"
        );
        let lend = vec![(namespace.mem, Lending::Read), (namespace.mem, Lending::Nudge)];
        let welcome = namespace.welcome(&self.env, back.catalogue);
        Ok(Outcome::Lend(Reply::Welcome(welcome), lend, Lent::Nothing))
    }

    /// The process of a client that has not come back is gone.
    pub(super) fn gone(&mut self, id: NamespaceId, catalogue: u16) {
        if let Some(namespace) = self.namespaces.get_mut(&id)
            && namespace.clients.get(&catalogue).is_some_and(|client| client.is_away())
        {
            namespace.end_client(&mut self.env, catalogue);
        }
    }
}
