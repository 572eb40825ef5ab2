//! Clients of this daemon's predecessor: they come back, or are gone.
//!
//! In system mode this daemon writes the same directory as its predecessor, and whoever has not come back reads what it
//! writes. In user mode nobody can: the directory is a copy, and who has not come back reads the old one. There no name
//! moves and nobody joins until all are back, or [`super::GATHERING_NS`] have passed.

use super::hello::same_version;
use super::{Conn, Core, Seat};
use crate::core::answer::{Answer, Lent, Outcome};
use crate::core::client::{Client, Life, Segment};
use crate::core::effect::Lending;
use crate::core::event::ConnId;
use std::collections::BTreeSet;
use tensorlend_layout::wire::{Refusal, Reply, Return};

impl Core {
    /// Whether clients may still read the directory that this one is a copy of.
    pub(super) fn is_gathering(&mut self) -> bool {
        let Some(until) = self.gathering_until_ns else { return false };
        let away = self.namespaces.values().flat_map(|n| n.members.values()).any(Client::is_away);
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
        let (_, role) = self.role_in(&back.namespace, &peer).ok_or_else(unknown)?;
        let id = *self.by_name.get(&back.namespace).ok_or_else(unknown)?;
        let namespace = self.namespaces.get_mut(&id).expect("names lead to namespaces");
        let client = namespace.members.get_mut(back.catalogue).ok_or_else(unknown)?;
        // A process without a number here is in a pid namespace of its own, as it was before.
        if !client.is_away() || client.member.0 != back.member || (client.uid, client.pid) != (peer.uid, peer.pid) {
            return Err(unknown());
        }
        let released: BTreeSet<u32> = back.shelved.iter().copied().collect();
        let known =
            |base: &u32| client.segments.get(base).is_some_and(|segment| !segment.is_lost() || released.contains(base));
        let has_more = back.segments.iter().flatten().any(|base| !known(base))
            || back.segments.is_none() && (client.has_lost || client.segments.values().any(Segment::is_lost))
            || back.cells != u8::MAX && usize::from(back.cells) > client.cells.len();
        if has_more {
            // Not all of it has outlived the daemon: what is lent anew would be what it has already.
            namespace.end_client(&mut self.env, back.catalogue);
            return Err(unknown());
        }
        for base in &released {
            if let Some(segment) = client.segments.get_mut(base).filter(|segment| segment.device.is_none()) {
                segment.released_ns = Some(self.env.now_ns);
                self.env.spills.look_again();
            }
        }
        // What it may do may have been changed meanwhile.
        client.role = role;
        self.conns.get_mut(&conn).expect("who asks is connected").seat =
            Some(Seat { namespace: id, catalogue: back.catalogue, role });
        if let Some(segments) = &back.segments {
            let lent: Vec<u32> = self.namespaces[&id].members[back.catalogue].segments.keys().copied().collect();
            let namespace = self.namespaces.get_mut(&id).expect("found above");
            // Lent or given back at the very moment in which the predecessor ended: the client has none of it.
            for base in lent.into_iter().filter(|base| !segments.contains(base)) {
                let _ = namespace.segments.return_segment(
                    &mut self.env,
                    &mut namespace.context,
                    &mut namespace.members,
                    &mut namespace.devices,
                    back.catalogue,
                    base,
                );
            }
        }
        let namespace = self.namespaces.get_mut(&id).expect("found above");
        namespace.members.drop_cells_after(&mut self.env, back.catalogue, back.cells);
        let directory = namespace.context.directory.mem();
        let lend = vec![(directory, Lending::Read), (directory, Lending::Nudge)];
        let welcome = namespace.members.welcome(&self.env, &namespace.context, back.catalogue);
        Ok(Outcome::Lend(Reply::Welcome(welcome), lend, Lent::Back))
    }

    /// It reads our directory now: until then it was away, and may have to come once more.
    pub(super) fn is_back(&mut self, conn: ConnId) -> bool {
        let Some(Conn { seat: Some(seat), peer, .. }) = self.conns.get(&conn) else { return false };
        let (seat, uid, pid, watched) = (*seat, peer.uid, peer.pid, peer.watched);
        // It may have been found gone meanwhile, and its namespace with it.
        let Some(namespace) = self.namespaces.get_mut(&seat.namespace) else { return false };
        let Some(client) = namespace.members.get_mut(seat.catalogue).filter(|client| client.is_away()) else {
            return false;
        };
        client.life = Life::Live(conn);
        client.watched = watched;
        // It was counted as a session when it was restored, and as a connection now.
        self.env.accounts.end_session(uid);
        // What it has it has mapped, whether or not the predecessor lived to hear so.
        namespace.acknowledged_all(&mut self.env, conn, seat.catalogue);
        // It may have closed streams while there was no daemon.
        namespace.streams.look_at_streams(&self.env, &namespace.members);
        tracing::info!(
            namespace = namespace.context.ledger.name(),
            client = seat.catalogue,
            pid,
            uid,
            "client is back"
        );
        true
    }
}
