//! Admission of clients: versions, rights, and the namespace to join.

use super::requests::Counts;
use super::{Conn, Core, Failed, Over, Phase};
use crate::core::clock::Timer;
use crate::core::effect::Effect;
use crate::core::event::ConnId;
use crate::core::join::Newcomer;
use crate::core::opening::{NewNamespace, Opening};
use crate::core::outcome::{Outcome, RequestResult, Wait};
use crate::core::settings::{Admission, Peer, RESERVED_SESSIONS, Role};
use crate::core::versions::Versions;
use tensorlend_layout::name;
use tensorlend_layout::wire::{Hello, Refusal};

/// Maximum duration of a connection over the limits, which can only request metrics.
const OVER_NS_MAX: u64 = 10_000_000_000;
/// Maximum number of a user's connections over the limits, without those that may continue a session.
const OVER_OF_USER: u64 = 2;

impl Core {
    pub(super) fn connected(&mut self, conn: ConnId, peer: Peer) {
        let begun = self.env.accounts.begin_session(peer.uid);
        let reserved = !begun && self.has_reserve_for(peer.uid);
        // A client over the limit receives its refusal as the response to its hello, or the metrics
        // of its user. The daemon closes further connections of the user, and sends no refusal.
        let over = if begun || reserved { None } else { self.begin_over(conn, peer.uid) };
        if !begun && !reserved && over.is_none() {
            self.env.accounts.end_session(peer.uid);
            self.env.effects.push(Effect::Close { conn });
            return;
        }
        let state = Conn {
            peer,
            over,
            reserved,
            joined: None,
            phase: Phase::Idle,
            refusals: 0,
            counts: Counts::default(),
            withheld: None,
        };
        self.conns.insert(conn, state);
    }

    /// Returns true if the reserve admits a session of this uid although a limit refuses the
    /// session.
    pub(super) fn has_reserve_for(&self, uid: u32) -> bool {
        let taken = || self.conns.values().filter(|state| state.reserved).count();
        self.env.settings.is_administrator(uid) && taken() < RESERVED_SESSIONS as usize
    }

    /// Admits a connection over the limits, for a time. Returns `None` if the user has enough of them, or if neither
    /// clients nor the reserve for metrics have a descriptor left.
    fn begin_over(&mut self, conn: ConnId, uid: u32) -> Option<Over> {
        let own = self.env.accounts.over_of_user(uid);
        // A session that may continue counts once already, so its new connection may be over the limit.
        if own >= OVER_OF_USER && own >= OVER_OF_USER + self.disconnected_of_user(uid) {
            return None;
        }
        let reserved = self.env.accounts.begin_over(uid)?;
        let until_ns = self.env.clock.now_ns() + OVER_NS_MAX;
        self.env.clock.set_timer_at(until_ns, Timer::Over(conn));
        Some(Over { until_ns, reserved })
    }

    /// Ends the admission of a connection over the limits, if it has one. The connection ends, or continues a session.
    pub(super) fn end_over(&mut self, conn: ConnId) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        let Some(over) = state.over.take() else { return };
        self.env.clock.cancel(over.until_ns, Timer::Over(conn));
        self.env.accounts.end_over(state.peer.uid, over.reserved);
    }

    /// Returns the number of the previous daemon's sessions that the user of `uid` may continue.
    fn disconnected_of_user(&self, uid: u32) -> u64 {
        let owners = &self.env.settings.owners;
        let clients = self.namespaces.values().flat_map(|namespace| namespace.members.values());
        clients.filter(|client| client.is_disconnected() && owners.of(client.uid) == owners.of(uid)).count() as u64
    }

    /// Admits a client within the limits, or with a session of the reserve for administrators.
    pub(super) fn admit(&mut self, conn: ConnId, hello: &Hello, since_ns: u64) -> RequestResult {
        let result = self.hello(conn, hello, since_ns);
        let state = &self.conns[&conn];
        let is_refused = matches!(result, Err(Refusal::Limit { .. })) && !state.reserved;
        if !is_refused || !self.has_reserve_for(state.peer.uid) {
            return result;
        }
        self.conns.get_mut(&conn).expect("seen above").reserved = true;
        self.hello(conn, hello, since_ns)
    }

    fn hello(&mut self, conn: ConnId, hello: &Hello, since_ns: u64) -> RequestResult {
        let state = &self.conns[&conn];
        if let Some(over) = state.over {
            return Err(self.env.accounts.too_many_sessions(state.peer.uid, over.reserved));
        }
        let versions = Versions::agree((hello.protocol_min, hello.protocol_max), hello.layout())?;
        let (peer, beyond) = (state.peer.clone(), state.reserved);
        let admission = Admission { administrator: self.env.settings.is_administrator(peer.uid), beyond };
        let own = format!("uid:{}", peer.uid);
        let (name, limits, private, role) = match &hello.namespace {
            None => (own, self.env.settings.private, Some(peer.uid), Role::Writer),
            Some(name) if *name == own => (own, self.env.settings.private, Some(peer.uid), Role::Writer),
            Some(name) => {
                // The check comes first, because refusals and the log contain the name.
                name::check(name)?;
                let rule = self.env.settings.namespaces.get(name);
                let allowed = rule.and_then(|rule| Some((rule.limits, rule.role(&peer)?)));
                let (limits, role) = allowed.ok_or_else(|| Refusal::Namespace(name.clone()))?;
                (name.clone(), limits, None, role)
            }
        };
        // A failure counts only for clients that waited for this directory when the attempt failed.
        // A later client makes the daemon try again. An administrator who waited for another
        // client's attempt also makes the daemon try again, because that attempt did not use the
        // reserve.
        let concerns = |failed: &&Failed| since_ns <= failed.at_ns && (failed.reserved || !admission.administrator);
        if let Some(Failed { reason, .. }) = self.failed.get(&name).filter(concerns) {
            return Err(reason.clone().refusal(0));
        }
        if let Some(id) = self.namespaces.id_of(&name) {
            let namespace = self.namespaces.get_mut(&id).expect("names lead to namespaces");
            let newcomer = Newcomer { peer: &peer, label: &hello.label, role, admission, versions };
            return namespace.members.join(&mut self.env, &namespace.context, conn, newcomer);
        }
        if !self.opening.iter().any(|o| o.ledger.name() == name) {
            let id = self.namespaces.new_id();
            let namespace = NewNamespace { id, name: &name, private, limits };
            self.opening.push(Opening::begin(&mut self.env, namespace, admission)?);
        }
        Ok(Outcome::Later(Wait::Directory))
    }
}
