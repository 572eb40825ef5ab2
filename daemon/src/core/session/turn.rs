//! What every turn ends with, and what connections, namespaces and the core itself end with.

use super::{Core, Phase, Seat};
use crate::core::account::NamespaceId;
use crate::core::effect::Effect;
use crate::core::env::{Probing, Timer};
use crate::core::event::ConnId;
use crate::core::namespace::Namespace;
use crate::core::settings::Peer;
use tensorlend_layout::wire::{Refusal, Reply};

impl Core {
    /// Ends a connection: because it hung up, or with a last word.
    pub(super) fn end(&mut self, conn: ConnId, word: Option<Refusal>) {
        if !self.conns.contains_key(&conn) {
            return;
        }
        self.abandon_work(conn);
        if let Some(at) = self.waiting.iter().position(|&c| c == conn) {
            self.waiting.remove(at);
            self.untried -= usize::from(at < self.untried);
        }
        let state = self.conns.get_mut(&conn).expect("checked above");
        if let Phase::Later { request, wake, .. } = std::mem::replace(&mut state.phase, Phase::Idle) {
            if let Some(wake) = wake {
                self.env.release(wake);
            }
            self.unreserve(conn, &request);
        }
        let state = self.conns.remove(&conn).expect("checked above");
        let its = |seat: &Seat| {
            let client = self.namespaces.get(&seat.namespace)?.members.get(seat.catalogue)?;
            (client.conn() == Some(conn)).then_some(*seat)
        };
        if let Some(refusal) = &word {
            let Peer { pid, uid, .. } = state.peer;
            let (namespace, client) = self.place(state.seat);
            tracing::warn!(namespace, client, pid, uid, "disconnected: {refusal}");
        }
        match state.seat.as_ref().and_then(its) {
            Some(seat) => {
                let namespace = self.namespaces.get_mut(&seat.namespace).expect("seen above");
                // Its session counts until its memory is quiet: else a uid would have as much mapped as it likes.
                namespace.end_client(&mut self.env, seat.catalogue);
            }
            // Without a seat, or about to come back: it may do so again, and is still looked for.
            None => self.env.accounts.end_session(state.peer.uid),
        }
        // Last: what its process has may have to be watched on.
        if let Some(refusal) = word {
            self.env.refusals += 1;
            let reply = Reply::Refused(refusal);
            self.env.effects.push(Effect::Send { conn, reply, lend: Vec::new(), close: true });
        }
    }

    /// Where a connection sits, for the log.
    pub(super) fn place(&self, seat: Option<Seat>) -> (Option<&str>, Option<u16>) {
        let namespace = seat.and_then(|seat| self.namespaces.get(&seat.namespace));
        (namespace.map(|namespace| namespace.context.ledger.name()), seat.map(|seat| seat.catalogue))
    }

    /// The process of a connection that has ended is gone.
    pub(super) fn exited(&mut self, conn: ConnId) {
        let _ = self
            .namespaces
            .values_mut()
            .any(|namespace| namespace.members.exited(&mut self.env, &namespace.context, conn));
    }

    /// Does what is due; whether there was anything but requests that are still to be tried.
    pub(super) fn fire_timers(&mut self) -> bool {
        let mut any = false;
        while let Some(&(at, timer)) = self.env.timers.first()
            && at <= self.env.now_ns
        {
            self.env.timers.pop_first();
            any |= timer != Timer::Untried;
            match timer {
                Timer::Retry => self.env.retry_ns = None,
                // Every turn does.
                Timer::Spares | Timer::Names | Timer::Staged | Timer::Spill | Timer::Untried => {}
                Timer::Chores => self.env.chores_due(),
                Timer::Returned(mem) => {
                    if self.env.probing.contains_key(&mem) {
                        self.env.effects.push(Effect::Probe { mem });
                    }
                }
                Timer::Probe(id, catalogue) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.members.probe_next(&mut self.env, &namespace.context, catalogue);
                    }
                }
                Timer::Departing(id, catalogue) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.departure_due(&mut self.env, catalogue);
                    }
                }
                Timer::Absorb(id) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        let Namespace { context, members, bindings, .. } = namespace;
                        bindings.absorb_due(&mut self.env, context, members, at);
                    }
                }
                Timer::Away(id, catalogue) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.members.look_for(&mut self.env, &namespace.context, catalogue);
                    }
                }
                Timer::Leases(id) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.pressure.leases_due(&mut self.env, &namespace.context);
                    }
                    // Where nobody looks any more, at once; else also after the look.
                    self.move_charges();
                }
                Timer::Lifetimes(id) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.bindings.lifetimes_due(
                            &mut self.env,
                            &mut namespace.context,
                            &mut namespace.members,
                            at,
                        );
                    }
                }
                Timer::Streams(id) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.streams.streams_due(
                            &mut self.env,
                            &mut namespace.context,
                            &mut namespace.members,
                            &mut namespace.bindings,
                            at,
                        );
                    }
                }
                Timer::Collect(id, catalogue) => {
                    if let Some(namespace) = self.namespaces.get_mut(&id) {
                        namespace.members.collect_due(&mut self.env, &namespace.context, catalogue);
                    }
                }
            }
        }
        any
    }

    /// Ends the clients that broke a rule of shared memory; whether there were any.
    pub(super) fn end_faulty(&mut self) -> bool {
        let env = &mut self.env;
        let faults: Vec<_> = self.namespaces.values_mut().flat_map(|it| it.take_faults(env)).collect();
        let any = !faults.is_empty();
        for (conn, why) in faults {
            self.end(conn, Some(Refusal::Violation(why.into())));
        }
        any
    }

    /// Something has happened for which put-off requests may wait: each of them is to be tried again.
    pub(super) fn has_happened(&mut self) {
        self.untried = self.waiting.len();
    }

    /// Tries put-off requests again, as many as one step may: those that are left in the next steps.
    pub(super) fn retry(&mut self) {
        while self.untried > 0 && self.retries_left > 0 {
            (self.untried, self.retries_left) = (self.untried - 1, self.retries_left - 1);
            let conn = self.waiting.pop_front().expect("it is untried");
            let Some(state) = self.conns.get_mut(&conn) else { continue };
            if let Phase::Later { request, wake, since_ns } = std::mem::replace(&mut state.phase, Phase::Idle) {
                self.ask(conn, request, wake, since_ns);
            }
        }
        if self.untried > 0 {
            self.env.set_timer(0, Timer::Untried);
        } else {
            self.failed.clear();
        }
    }

    pub(super) fn tidy_up(&mut self) {
        self.open_staged();
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
        let namespace = self.namespaces.remove(&id).expect("it is closed once");
        self.by_name.remove(namespace.context.ledger.name());
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

    /// Takes everything down, so that the accounts can show that every charge came back.
    pub(super) fn dissolve(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            self.end(conn, None);
        }
        let ids: Vec<NamespaceId> = self.namespaces.keys().copied().collect();
        for id in ids {
            let namespace = self.namespaces.get_mut(&id).expect("listed above");
            namespace.streams.streams_dissolve(&mut self.env, &namespace.context, &mut namespace.members);
            let catalogues: Vec<u16> = namespace.members.numbers();
            for catalogue in catalogues {
                namespace.drop_client(&mut self.env, catalogue);
            }
            namespace.devices.settle_all(&mut self.env, &namespace.context);
            self.close_namespace(id);
        }
        for opening in std::mem::take(&mut self.opening) {
            opening.give_up(&mut self.env);
        }
        for staged in std::mem::take(&mut self.staged).into_values() {
            staged.release(&mut self.env);
        }
        for mem in self.env.abandoned.keys().copied().collect::<Vec<_>>() {
            self.env.arrived_for_nobody(mem, false);
        }
        for (mem, why) in std::mem::take(&mut self.env.probing) {
            match why {
                Probing::Orphaned => self.env.orphan_probed(mem, true),
                Probing::Ended(..) | Probing::Away(..) | Probing::Departing(..) => {}
            }
        }
        self.env.pool.drain();
        for device in &mut self.env.devices {
            device.pool.drain();
        }
    }
}

impl Core {
    /// The daemon goes and its clients stay: they go on with what they have mapped, so that the shared words are left as
    /// they are. Nothing is asked of this core any more.
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
