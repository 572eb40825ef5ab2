//! The reconnection of the previous daemon's clients, and their end if they do not reconnect.
//!
//! In system mode this daemon writes the same directory as the previous daemon, so clients that
//! have not reconnected read its changes. In user mode the daemon's directory is a copy, and
//! clients that have not reconnected read the old directory. So in user mode no name moves and no
//! client joins for a time. This time ends when all clients have reconnected or
//! [`super::GATHERING_NS`] have passed.

use super::{Conn, Core, Joined};
use crate::core::client::{Client, ClientState, Segment};
use crate::core::effect::Lending;
use crate::core::env::Env;
use crate::core::event::ConnId;
use crate::core::namespace::Namespace;
use crate::core::outcome::{Lent, Outcome, RequestResult};
use crate::core::parts::Parts;
use crate::core::settings::{Peer, Role};
use crate::core::versions::Versions;
use std::collections::BTreeSet;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{Refusal, Reply, Return};

/// Returns true if the client has memory, or has values in memory, that this daemon does not have. The memory of segments
/// that the client has released for spill may be lost.
fn has_lost_memory(client: &Client, back: &Return) -> bool {
    let released: BTreeSet<SlotNo> = back.released.iter().copied().collect();
    let has =
        |base: &SlotNo| client.segments.get(base).is_some_and(|segment| !segment.is_lost() || released.contains(base));
    back.segments.iter().flatten().any(|base| !has(base))
        || back.segments.is_none() && (client.has_lost || client.segments.values().any(Segment::is_lost))
        || back.cells != u8::MAX && back.cells > client.sheets.further_parts()
}

impl Namespace {
    /// Returns the client's segments that are not in `known`. The previous daemon ended while it lent or reclaimed them,
    /// so the client does not have them.
    fn return_unknown(&mut self, env: &mut Env, number: ClientNo, known: &[SlotNo]) {
        let lent: Vec<SlotNo> = self.members[number].segments.keys().copied().collect();
        let parts = &mut Parts { env, context: &mut self.context, members: &mut self.members };
        for base in lent.into_iter().filter(|base| !known.contains(base)) {
            let _ = self.segments.return_segment(parts, &mut self.devices, number, base);
        }
    }
}

impl Core {
    /// Returns true while clients may still read a directory that this daemon has copied.
    pub(super) fn is_gathering(&mut self) -> bool {
        let Some(until_ns) = self.gathering_until_ns else { return false };
        let mut clients = self.namespaces.values().flat_map(|n| n.members.values());
        let continues = self.env.clock.now_ns() < until_ns && clients.any(Client::is_disconnected);
        if !continues {
            self.gathering_until_ns = None;
        }
        continues
    }

    /// Returns the role of a peer in a namespace, and the owner of a private namespace.
    pub(super) fn role_in(&self, namespace: &str, peer: &Peer) -> Option<(Option<u32>, Role)> {
        if namespace == format!("uid:{}", peer.uid) {
            return Some((Some(peer.uid), Role::Writer));
        }
        let rule = self.env.settings.namespaces.get(namespace)?;
        Some((None, rule.role(peer)?))
    }

    /// Handles a client's request to continue its session.
    pub(super) fn welcome_back(&mut self, conn: ConnId, back: &Return) -> RequestResult {
        let versions = Versions::agree((back.protocol_min, back.protocol_max), back.layout())?;
        let peer = self.conns[&conn].peer.clone();
        let unknown = || Refusal::NotFound("session to resume: this daemon does not know it".into());
        let (_, role) = self.role_in(&back.namespace, &peer).ok_or_else(unknown)?;
        let id = self.namespaces.id_of(&back.namespace).ok_or_else(unknown)?;
        let namespace = self.namespaces.get_mut(&id).expect("names lead to namespaces");
        let client = namespace.members.get_mut(back.client).ok_or_else(unknown)?;
        // A process without a number here is in its own pid namespace, as under the previous
        // daemon.
        if !client.is_disconnected()
            || client.member.0 != back.member
            || (client.uid, client.pid) != (peer.uid, peer.pid)
        {
            return Err(unknown());
        }
        if has_lost_memory(client, back) {
            // Some of the client's memory is lost, and the daemon would lend its slot numbers
            // again.
            namespace.end_client(&mut self.env, back.client);
            return Err(unknown());
        }
        for base in &back.released {
            if let Some(segment) = client.segments.get_mut(*base).filter(|segment| segment.device.is_none()) {
                segment.released_ns = Some(self.env.clock.now_ns());
                self.env.spills.note_spillable();
            }
        }
        // The client's access rights may have changed.
        client.role = role;
        client.versions = versions;
        self.conns.get_mut(&conn).expect("the requester is connected").joined =
            Some(Joined { namespace: id, number: back.client, role });
        let namespace = self.namespaces.get_mut(&id).expect("found above");
        if let Some(segments) = &back.segments {
            namespace.return_unknown(&mut self.env, back.client, segments);
        }
        namespace.members.drop_cells_after(&mut self.env, back.client, back.cells);
        if role != Role::Reader {
            namespace.bindings.assert_claims(&mut namespace.context, back.client, &back.claims);
        }
        tensorlend_layout::crash_point!("next: session continued");
        let directory = namespace.context.directory.mem();
        let lend = vec![(directory, Lending::Read), (directory, Lending::Wakeup)];
        let welcome = namespace.members.welcome(&self.env, &namespace.context, back.client);
        Ok(Outcome::Lend(Reply::Welcome(welcome), lend, Lent::Back))
    }

    /// Completes the reconnection of a client, which now reads this daemon's directory. If this
    /// daemon ends before this point, the client must reconnect to the next daemon.
    pub(super) fn is_back(&mut self, conn: ConnId) -> bool {
        let Some(Conn { joined: Some(joined), peer, .. }) = self.conns.get(&conn) else { return false };
        let (joined, uid, pid, watched) = (*joined, peer.uid, peer.pid, peer.watched);
        let command = peer.command.clone();
        // The daemon may have ended the client in the meantime, and closed its namespace.
        let Some(namespace) = self.namespaces.get_mut(&joined.namespace) else { return false };
        let Some(client) = namespace.members.get_mut(joined.number).filter(|client| client.is_disconnected()) else {
            return false;
        };
        client.state = ClientState::Live(conn);
        client.watched = watched;
        client.command = command;
        // The session was counted when the daemon restored the client, and again when the client
        // connected.
        self.env.accounts.end_session(uid);
        // The client has mapped all its memory, even if the previous daemon did not receive every
        // acknowledgement.
        namespace.acknowledged_all(&mut self.env, conn, joined.number);
        // The client may have closed streams while no daemon ran.
        namespace.streams.update_idle_times(&self.env, &namespace.members);
        let (name, who) = (namespace.context.ledger.name(), namespace.members[joined.number].who(joined.number));
        let older = namespace.members[joined.number].versions.note();
        tracing::info!(
            namespace = name,
            client = joined.number.get(),
            pid,
            uid,
            "{who} came back to namespace {name}{older}"
        );
        self.end_over(conn);
        true
    }
}
