//! The end of a client. The daemon first ends the client and then freezes it. The daemon drops the
//! client when none of its memory is in use.
//!
//! *Ended*: the client is disconnected, and its leases do not count. Its cells stay valid, and the
//! client may still write them. *Frozen*: the kernel reports that no process can write the client's
//! memory. The daemon reads the client's cells as final, and frees every segment that no owner
//! word, ring or lease leads to.

use super::client::{Client, ClientState};
use super::clock::Timer;
use super::context::Context;
use super::env::Env;
use super::event::{ConnId, MemId};
use super::members::LEASES_PAUSE_NS;
use super::members::Members;
use super::namespace::Namespace;
use super::parts::Parts;
use super::probes::{Probed, Probing};
use super::range::SegmentId;
use std::borrow::Cow;
use tensorlend_layout::directory::Bitmap;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::word::{Absorbed, Member, MemberState};

pub const PROBE_PAUSE_NS: u64 = 1_000_000;
const PROBE_PAUSE_NS_MAX: u64 = 10_000_000_000;

impl Namespace {
    /// Ends a client that has disconnected.
    pub fn end_client(&mut self, env: &mut Env, number: ClientNo) {
        // If the word is `Closed`, the previous daemon absorbed the client's announcements when the
        // client ended. Later announcements have no effect.
        if Absorbed(self.context.directory.entry(number).absorbed.peek()).state() != MemberState::Closed {
            self.bindings.drain(&mut Parts { env, context: &mut self.context, members: &mut self.members }, number);
        }
        let client = self.members.me(number);
        client.notices.clear();
        let (conn, watched) = (client.conn(), client.watched);
        let (holds, has_children) = (self.devices.is_holder(number), client.has_children());
        if !holds && !has_children {
            self.departed(env, number);
        }
        let head = self.context.directory.head();
        head.clients.set(head.clients.peek() - 1);
        self.members.end_wait(&self.context, number);
        self.streams.unsubscribe_all(env, &self.context, number);
        let rings = self.streams.rings(number);
        let client = self.members.me(number);
        let loud = client.memories().chain(rings).collect();
        client.state = ClientState::Ended { loud, pause_ns: PROBE_PAUSE_NS };
        self.streams.update_idle_times(env, &self.members);
        let client = self.members.me(number);
        let (pid, uid, who) = (client.pid, client.uid, client.who(number));
        let namespace = self.context.ledger.name();
        tracing::info!(namespace, client = number.get(), pid, uid, "{who} left namespace {namespace}");
        if holds {
            self.members.drain(env, &self.context, number, conn.filter(|_| watched));
        } else if has_children {
            self.members.await_children(env, &self.context, number);
        }
        // Wakes a producer that waits for this client, and every client that waits for this
        // client's names.
        self.context.directory.announce(u64::MAX);
        self.bindings.end_claims(&mut self.context, number);
        self.bindings.end_ephemeral(&mut Parts { env, context: &mut self.context, members: &mut self.members }, number);
        self.members.probe_next(env, &self.context, number);
        self.bindings.collect_held(&mut Parts { env, context: &mut self.context, members: &mut self.members });
    }
}

impl Members {
    /// Asks the kernel whether the next memory of an ended client is quiescent.
    pub fn probe_next(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        let id = context.ledger.id();
        let Some(Client { state: ClientState::Ended { loud, .. }, draining, .. }) = self.get(number) else {
            return;
        };
        match loud.front() {
            Some(&mem) if env.probes.is_probing(mem) => {}
            Some(_) if !env.probes.may_probe(env.clock.now_ns()) => {
                env.clock.set_timer(PROBE_PAUSE_NS, Timer::Probe(id, number));
            }
            Some(&mem) => env.probes.probe(&mut env.effects, mem, Probing::Ended(id, number)),
            // Work on a device, or a forked child, may still read under the client's leases: see [`super::draining`].
            None if draining.is_some() => {}
            None => {
                env.accounts.end_session(self.me(number).uid);
                let pause_ns = LEASES_PAUSE_NS;
                self.me(number).state = ClientState::Frozen { lease_held: false, pause_ns, due_ns: None, survey: None };
                env.spills.note_spillable();
                tensorlend_layout::crash_point!("daemon: quiet");
                self.collect(env, context, number);
            }
        }
    }

    /// Handles the kernel's response to a probe.
    pub fn probed(&mut self, env: &mut Env, context: &Context, number: ClientNo, Probed { mem, quiescent }: Probed) {
        let id = context.ledger.id();
        let Some(Client { state: ClientState::Ended { loud, pause_ns }, .. }) = self.get_mut(number) else {
            return;
        };
        // If another memory is first in the queue, the daemon released this one after the probe
        // began.
        if quiescent || loud.front() != Some(&mem) {
            loud.pop_front_if(|&mut front| front == mem);
            self.probe_next(env, context, number);
        } else {
            env.clock.set_timer(*pause_ns, Timer::Probe(id, number));
            *pause_ns = (*pause_ns * 2).min(PROBE_PAUSE_NS_MAX);
        }
    }

    /// Removes orphaned memory from an ended client's queue of probes. Orphaned memory has its own
    /// charge and its own probes.
    pub fn forget_loud(&mut self, env: &mut Env, context: &Context, number: ClientNo, mem: MemId) {
        let id = context.ledger.id();
        if let Some(Client { state: ClientState::Ended { loud, .. }, .. }) = self.get_mut(number) {
            let awaited = loud.front() == Some(&mem);
            loud.retain(|&m| m != mem);
            if awaited {
                // The pending response of the kernel now belongs to the orphaned memory. That
                // response would have started the next probe, so a timer does.
                env.clock.set_timer(0, Timer::Probe(id, number));
            }
        }
    }

    /// Handles a timer of a frozen client.
    pub fn collect_due(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        if let Some(Client { state: ClientState::Frozen { due_ns: Some(due), .. }, .. }) = self.get(number)
            && *due <= env.clock.now_ns()
        {
            self.collect(env, context, number);
        }
    }
}

impl Namespace {
    /// Drops a client whose memory is not in use. The client's number becomes free.
    pub fn drop_client(&mut self, env: &mut Env, number: ClientNo) {
        let bases: Vec<SlotNo> = self.members.me(number).segments.keys().copied().collect();
        let frozen = self.members.me(number).is_frozen();
        for base in bases {
            self.segments.free_segment(
                &mut Parts { env, context: &mut self.context, members: &mut self.members },
                &mut self.devices,
                SegmentId { owner: number, base },
                frozen,
            );
        }
        let head = self.context.directory.head();
        Bitmap(&head.present).clear(number);
        self.members.unlist_announcer(&self.context, number);
        let client = self.members.remove(number);
        self.members.end_showing(&self.context, number, client.shown.unwrap_or_default().into_keys());
        self.devices.departed(number);
        if !frozen {
            env.accounts.end_session(client.uid);
        }
        let entry = self.context.directory.entry(number);
        tensorlend_layout::crash_point!("daemon: number about to be vacant");
        entry.member.set(Member::new(MemberState::Vacant, client.member.epoch(), 0).0);
        entry.geometry.add(1);
        for part in client.sheets.into_parts() {
            env.release_part(part);
        }
        tracing::debug!(namespace = self.context.ledger.name(), client = number.get(), "nothing of the client is left");
    }

    /// Returns the connections of clients that broke a rule of shared memory, and the rules. Ends
    /// those of these clients that have no connection.
    pub fn take_faults(&mut self, env: &mut Env) -> Vec<(ConnId, Cow<'static, str>)> {
        let faults = self.members.take_faults();
        for (number, why) in &faults {
            let number = *number;
            if let Some(client) = self.members.get(number).filter(|client| client.is_disconnected()) {
                let (namespace, who) = (self.context.ledger.name(), client.who(number));
                tracing::warn!(namespace, client = number.get(), "ended {who} of namespace {namespace}: {why}");
                self.end_client(env, number);
            }
        }
        faults.into_iter().filter_map(|(n, why)| Some((self.members.conn(n)?, why))).collect()
    }
}
