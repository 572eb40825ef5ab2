//! Clients of this daemon's predecessor: they come back, or are gone.
//!
//! In system mode this daemon writes the same directory as its predecessor, and whoever has not come back reads what it
//! writes. In user mode nobody can: the directory is a copy, and who has not come back reads the old one. There no name
//! moves and nobody joins until all are back, or [`GATHERING_NS`] have passed.

use super::hello::same_version;
use super::{Conn, Core, Seat};
use crate::core::answer::{Answer, Lent, Outcome};
use crate::core::client::{Client, Life, Segment};
use crate::core::context::Context;
use crate::core::effect::{Effect, Lending};
use crate::core::env::{Env, Probing, Timer};
use crate::core::event::{ConnId, MemId};
use crate::core::members::Members;
use crate::core::namespace::Namespace;
use std::collections::BTreeSet;
use tensorlend_layout::wire::{Refusal, Reply, Return};

/// Pauses between two looks for a client that has not come back.
pub const AWAY_PAUSE_NS: u64 = 10_000_000;
const AWAY_PAUSE_NS_MAX: u64 = 1_000_000_000;

/// How long a copy of a directory waits for those who read the old one. They come as soon as they notice, which takes
/// milliseconds, unless they are stopped.
pub const GATHERING_NS: u64 = 5_000_000_000;

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
        let shelved: BTreeSet<u32> = back.shelved.iter().copied().collect();
        let known =
            |base: &u32| client.segments.get(base).is_some_and(|segment| !segment.is_lost() || shelved.contains(base));
        let has_more = back.segments.iter().flatten().any(|base| !known(base))
            || back.segments.is_none() && (client.has_lost || client.segments.values().any(Segment::is_lost))
            || back.cells != u8::MAX && usize::from(back.cells) > client.cells.len();
        if has_more {
            // Not all of it has outlived the daemon: what is lent anew would be what it has already.
            namespace.end_client(&mut self.env, back.catalogue);
            return Err(unknown());
        }
        for base in &shelved {
            if let Some(segment) = client.segments.get_mut(base).filter(|segment| segment.device.is_none()) {
                segment.shelved_ns = Some(self.env.now_ns);
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
                let _ = namespace.return_segment(&mut self.env, back.catalogue, base);
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
        namespace.look_at_streams(&self.env);
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

impl Members {
    /// Asks the kernel whether a client that has not come back is there still: as long as it is, its lease table can be
    /// written. That tells of a process that has ended as well as of one that has closed its session meanwhile.
    pub fn look_for(&mut self, env: &mut Env, context: &Context, catalogue: u16) {
        let id = context.ledger.id();
        if let Some(client) = self.get(catalogue).filter(|client| client.is_away())
            && let Some(leases) = &client.leases
        {
            env.probe(leases.mem, Probing::Away(id, catalogue));
        }
    }
}

impl Namespace {
    /// Seals what a client that will not come back may have published in, without its daemon's having lived to hear that it was
    /// mapped: others read it only so.
    pub fn seal_left(&mut self, env: &mut Env, catalogue: u16) {
        let user_mode = env.user_mode();
        let client = self.members.me(catalogue);
        let mut seal = Vec::new();
        for part in client.cells.iter_mut().filter(|part| !part.acked) {
            part.acked = true;
            seal.push(part.mem);
        }
        for segment in client.segments.values_mut().filter(|segment| !segment.slots.acked) {
            segment.slots.acked = true;
            seal.push(segment.slots.mem);
            if user_mode && segment.device.is_none() && segment.residence.is_in_memory() {
                seal.push(segment.mem);
            }
        }
        // Nobody is connected whom a failure would be told.
        env.effects.extend(seal.into_iter().map(|mem| Effect::Seal { conn: ConnId(u64::MAX), mem }));
    }

    /// The kernel's answer.
    pub fn looked_for(&mut self, env: &mut Env, catalogue: u16, mem: MemId, quiet: bool) {
        let id = self.context.ledger.id();
        let Some(client) = self.members.get_mut(catalogue) else { return };
        let Life::Away { pause_ns } = &mut client.life else { return };
        if client.leases.as_ref().is_none_or(|leases| leases.mem != mem) {
            return;
        }
        if quiet {
            self.seal_left(env, catalogue);
            self.end_client(env, catalogue);
        } else {
            env.set_timer(*pause_ns, Timer::Away(id, catalogue));
            *pause_ns = (*pause_ns * 2).min(AWAY_PAUSE_NS_MAX);
        }
    }
}
