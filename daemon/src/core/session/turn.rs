//! The work at the end of every turn, and the end of connections, of namespaces and of the core.

use super::requests::Counts;
use super::{Conn, Core, Joined, Phase};
use crate::core::account::NamespaceId;
use crate::core::clock::Timer;
use crate::core::effect::Effect;
use crate::core::env::Env;
use crate::core::event::ConnId;
use crate::core::namespace::Namespace;
use crate::core::parts::Parts;
use crate::core::probes::{Probed, Probing};
use crate::core::settings::Peer;
use crate::core::who::Who;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::versions;
use tensorlend_layout::wire::{PROTOCOL_OWN_VIEW, Reason, Refusal, Reply};

/// Number of refusals of a connection that the daemon logs at the level info.
const REFUSALS_LOGGED: u64 = 3;

impl Core {
    /// Ends a connection that hung up, or one that receives a last refusal.
    pub(super) fn end(&mut self, conn: ConnId, word: Option<Refusal>) {
        if !self.conns.contains_key(&conn) {
            return;
        }
        self.abandon_work(conn);
        self.waiting.remove(conn);
        self.unblock(conn);
        self.end_over(conn);
        let state = self.conns.get_mut(&conn).expect("checked above");
        if let Phase::Later { request, .. } = std::mem::replace(&mut state.phase, Phase::Idle) {
            self.unreserve(conn, &request);
        }
        let state = self.conns.remove(&conn).expect("checked above");
        let its = |joined: &Joined| {
            let client = self.namespaces.get(&joined.namespace)?.members.get(joined.number)?;
            (client.conn() == Some(conn)).then_some(*joined)
        };
        if let Some(refusal) = &word {
            let Peer { pid, uid, .. } = state.peer;
            let (namespace, client) = self.namespace_and_client(state.joined);
            let who = self.who_is(&state);
            // The text of a violation is addressed to the client, so the log gets only the reason.
            let (verb, why) = match refusal {
                Refusal::Violation(why) => ("disconnected", why.clone()),
                Refusal::Protocol { .. } | Refusal::Layout { .. } => {
                    ("refused", format!("{refusal} (this daemon is {})", versions::build()))
                }
                other => ("refused", other.to_string()),
            };
            let reason = refusal.reason().word();
            if !refusal.is_ordinary() {
                tracing::warn!(namespace, client, pid, uid, reason, "{verb} {who}: {why}");
            } else if matches!(refusal, Refusal::Layout { .. }) {
                // A client that continues its session does not offer another layout.
                tracing::info!(namespace, client, pid, uid, reason, "{verb} {who}: {why}");
            } else {
                tracing::debug!(namespace, client, pid, uid, reason, "{verb} {who}: {why}");
            }
        }
        match state.joined.as_ref().and_then(its) {
            Some(joined) => {
                let namespace = self.namespaces.get_mut(&joined.namespace).expect("seen above");
                // The session counts until its memory is quiescent. Otherwise a uid could have
                // unlimited memory mapped.
                namespace.end_client(&mut self.env, joined.number);
            }
            // The connection has no client, or its client is still reconnecting. Such a client may
            // try again later, and the daemon probes for it.
            None => self.env.accounts.end_session(state.peer.uid),
        }
        // The refusal is sent last, because the daemon may first have to watch the connection's
        // process.
        if let Some(refusal) = word {
            self.count_refusal(&refusal);
            let reply = Reply::Refused(refusal);
            self.env.effects.push(Effect::Send { conn, reply, lend: Vec::new(), close: true });
        }
    }

    /// Counts and logs the refusal of a joined client's request, unless it counts later or never: see [`Counts`].
    pub(super) fn refuse(&mut self, conn: ConnId, refusal: &Refusal) {
        let state = &self.conns[&conn];
        let client = state.joined.and_then(|it| self.namespaces.get(&it.namespace)?.members.get(it.number));
        let reports = client.is_some_and(|client| client.versions.protocol >= PROTOCOL_OWN_VIEW);
        let is_later = state.counts == Counts::GivenUp && reports && refusal.reason() == Reason::Limit;
        if !is_later && state.counts != Counts::Never {
            return self.note_refusal(conn, refusal);
        }
        tracing::debug!(uid = state.peer.uid, "refused {}, which expects this: {refusal}", self.who_is(state));
        if is_later {
            self.conns.get_mut(&conn).expect("seen above").withheld = Some(refusal.clone());
        }
    }

    /// Counts and logs a refusal. The first refusals of a connection are logged for an
    /// administrator, the others for a programmer. Otherwise a client that repeats a refused
    /// request would hide the log lines about other clients. Responses that a client expects are
    /// logged for a programmer.
    pub(super) fn note_refusal(&mut self, conn: ConnId, refusal: &Refusal) {
        if refusal.is_ordinary() {
            let (who, reason) = (self.who(conn), refusal.reason().word());
            tracing::debug!(uid = self.conns[&conn].peer.uid, reason, "refused {who}: {refusal}");
            return;
        }
        self.count_refusal(refusal);
        self.conns.get_mut(&conn).expect("the requester is connected").refusals += 1;
        let state = &self.conns[&conn];
        let Peer { pid, uid, .. } = state.peer;
        let (namespace, client) = self.namespace_and_client(state.joined);
        let (who, reason) = (self.who_is(state), refusal.reason().word());
        let rest = match state.refusals {
            REFUSALS_LOGGED => " (the daemon logs further refusals of this client at the level debug)",
            _ => "",
        };
        if state.refusals <= REFUSALS_LOGGED {
            tracing::info!(namespace, client, pid, uid, reason, "refused {who}: {refusal}{rest}");
        } else {
            tracing::debug!(namespace, client, pid, uid, reason, "refused {who}: {refusal}");
        }
    }

    /// Returns the client of a connection, for the log lines of the system layer.
    pub fn who(&self, conn: ConnId) -> String {
        self.conns.get(&conn).map_or_else(|| "a client".to_owned(), |state| self.who_is(state))
    }

    /// Returns the client of a connection, for the log.
    pub(super) fn who_is(&self, state: &Conn) -> String {
        let joined = state.joined.and_then(|joined| {
            let namespace = self.namespaces.get(&joined.namespace)?;
            let who = namespace.members.get(joined.number)?.who(joined.number);
            Some(format!("{who} of namespace {}", namespace.context.ledger.name()))
        });
        let Peer { pid, uid, command, .. } = &state.peer;
        joined.unwrap_or_else(|| Who { client: None, pid: *pid, uid: *uid, command, label: "" }.to_string())
    }

    /// Returns a connection's namespace and client number, for the log.
    pub(super) fn namespace_and_client(&self, joined: Option<Joined>) -> (Option<&str>, Option<u16>) {
        let namespace = joined.and_then(|joined| self.namespaces.get(&joined.namespace));
        (namespace.map(|namespace| namespace.context.ledger.name()), joined.map(|joined| joined.number.get()))
    }

    /// Handles the end of the process of an ended connection.
    pub(super) fn exited(&mut self, conn: ConnId) {
        let _ = self
            .namespaces
            .values_mut()
            .any(|namespace| namespace.members.exited(&mut self.env, &namespace.context, conn));
    }

    /// Fires the timers that are due. Returns true if any fired, except timers of requests left for
    /// a retry.
    pub(super) fn fire_timers(&mut self) -> bool {
        let mut any = false;
        while let Some((at, timer)) = self.env.clock.fire() {
            any |= timer != Timer::Untried;
            match timer {
                // The end of every turn does the work of these timers.
                Timer::Retry | Timer::Spares | Timer::Names | Timer::Spill | Timer::Untried => {}
                Timer::Chores => self.env.chores.has_fired(),
                Timer::Wakes => self.env.close_ended_wakes(at),
                Timer::Over(conn) => self.end_over_limit(conn),
                Timer::Returned(mem) => {
                    self.env.probes.repeat(&mut self.env.effects, mem);
                }
                Timer::Probe(id, client) => self.at(id, |env, it| it.members.probe_next(env, &it.context, client)),
                Timer::Draining(id, client) => self.at(id, |env, it| it.draining_due(env, client)),
                Timer::Absorb(id) => self.at(id, |env, it| {
                    let Namespace { context, members, bindings, .. } = it;
                    bindings.absorb_due(&mut Parts { env, context, members }, at);
                }),
                Timer::Disconnected(id, client) => {
                    self.at(id, |env, it| it.members.probe_disconnected(env, &it.context, client));
                }
                Timer::Leases(id) => {
                    self.at(id, |env, it| it.pressure.leases_due(env, &it.context));
                    // This moves the charges now if the scans have ended. Otherwise the next scan
                    // also moves them.
                    self.move_charges();
                }
                Timer::Lifetimes(id) => self.at(id, |env, it| {
                    let Namespace { context, members, bindings, .. } = it;
                    bindings.lifetimes_due(&mut Parts { env, context, members }, at);
                }),
                Timer::Streams(id) => self.at(id, |env, it| {
                    let Namespace { context, members, bindings, streams, .. } = it;
                    streams.streams_due(&mut Parts { env, context, members }, bindings, at);
                }),
                Timer::Collect(id, client) => self.at(id, |env, it| it.members.collect_due(env, &it.context, client)),
            }
        }
        any
    }

    /// Does work on a namespace, if it still exists.
    fn at(&mut self, id: NamespaceId, work: impl FnOnce(&mut Env, &mut Namespace)) {
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            work(&mut self.env, namespace);
        }
    }

    /// Ends a connection that was one too many for its user, and still is.
    fn end_over_limit(&mut self, conn: ConnId) {
        if let Some(Conn { over: Some(over), peer, .. }) = self.conns.get(&conn) {
            let refusal = self.env.accounts.too_many_sessions(peer.uid, over.reserved);
            self.end(conn, Some(refusal));
        }
    }

    /// Ends the clients that broke a rule of shared memory. Returns true if there were any.
    pub(super) fn end_faulty(&mut self) -> bool {
        let env = &mut self.env;
        let faults: Vec<_> = self.namespaces.values_mut().flat_map(|it| it.take_faults(env)).collect();
        let any = !faults.is_empty();
        for (conn, why) in faults {
            self.end(conn, Some(Refusal::Violation(why.into())));
        }
        any
    }

    /// Marks all delayed requests for a retry, because the conditions that they wait for may have
    /// changed.
    pub(super) fn has_happened(&mut self) {
        self.waiting.mark();
    }

    /// Retries as many delayed requests as one step may. Administrators' requests come first. The
    /// next steps retry the remaining requests.
    pub(super) fn retry(&mut self) {
        while let Some(conn) = self.waiting.next() {
            let Some(state) = self.conns.get_mut(&conn) else { continue };
            if let Phase::Later { request, since_ns } = std::mem::replace(&mut state.phase, Phase::Idle) {
                self.ask(conn, request, since_ns);
            }
        }
        if self.waiting.has_untried() {
            self.env.clock.set_timer(0, Timer::Untried);
        } else {
            self.failed.clear();
        }
    }

    pub(super) fn tidy_up(&mut self) {
        let mut empty = Vec::new();
        for namespace in self.namespaces.values_mut() {
            namespace.members.wake(&mut self.env, &mut namespace.context);
            namespace.context.directory.ring_returned(&mut self.env);
            namespace.bindings.end_turn(&mut self.env, &namespace.context);
            namespace.bindings.prepare_names(&mut self.env, &namespace.context, 0);
            namespace.bindings.arm_lifetimes(&mut self.env, &namespace.context);
            namespace.streams.arm_streams(&mut self.env, &namespace.context);
            if namespace.is_empty() {
                empty.push(namespace.context.ledger.id());
            }
        }
        for id in empty {
            self.close_namespace(id);
        }
        self.spill_above_mark();
        self.env.order_spares();
    }

    pub(super) fn close_namespace(&mut self, id: NamespaceId) {
        let namespace = self.namespaces.close(id);
        for mem in self.env.pool.drop_namespace(id) {
            self.env.release(mem);
        }
        for number in 0..self.env.devices.len() {
            for mem in self.env.devices[number].pool.drop_namespace(id) {
                self.env.release(mem);
            }
        }
        self.env.release(namespace.context.directory.mem());
        namespace.context.ledger.close(&mut self.env.accounts);
    }

    /// Releases everything, so that the accounts can show that every charge was refunded.
    pub(super) fn dissolve(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            self.end(conn, None);
        }
        let ids: Vec<NamespaceId> = self.namespaces.keys().copied().collect();
        for id in ids {
            let namespace = self.namespaces.get_mut(&id).expect("listed above");
            namespace.streams.streams_dissolve(&mut Parts {
                env: &mut self.env,
                context: &mut namespace.context,
                members: &mut namespace.members,
            });
            let catalogues: Vec<ClientNo> = namespace.members.numbers();
            for number in catalogues {
                namespace.drop_client(&mut self.env, number);
            }
            namespace.devices.settle_all(&mut self.env, &namespace.context);
            self.close_namespace(id);
        }
        for opening in std::mem::take(&mut self.opening) {
            opening.give_up(&mut self.env);
        }
        for mem in self.env.orders.abandoned() {
            self.env.arrived_for_nobody(mem, false);
        }
        for (mem, why) in self.env.probes.take_all() {
            match why {
                Probing::Orphaned => self.env.orphan_probed(Probed { mem, quiescent: true }),
                Probing::Ended(..) | Probing::Disconnected(..) | Probing::Draining(..) => {}
            }
        }
        self.env.close_ended_wakes(u64::MAX);
        self.env.pool.drain();
        for device in self.env.devices.iter_mut() {
            device.pool.drain();
        }
    }
}

impl Core {
    /// Ends the daemon while its clients continue with the memory that they have mapped. The shared
    /// words stay unchanged. The core handles no later event.
    pub fn leave(&mut self) {
        self.left = true;
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.left {
            self.env.accounts.write_off();
        } else if !std::thread::panicking() {
            self.dissolve();
        }
    }
}
