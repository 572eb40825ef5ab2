//! The draining of a client whose leases count after its connection has ended.
//!
//! Two kinds of clients drain. The first kind has device memory. Work on a device continues after
//! the call that began the work, and even after the process was killed. So the leases of such a
//! client count until its process has ended and a quarantine has passed. During the quarantine the
//! driver ends the work of that process. The second kind has forked children that read under the
//! client's leases. These leases count until no process has the client's lease table mapped for
//! writing.
//!
//! The names, streams and cells of a draining client end like those of any client, but its member
//! word stays `Open`.

use super::client::{Client, Draining};
use super::clock::Timer;
use super::context::Context;
use super::effect::Effect;
use super::env::Env;
use super::event::ConnId;
use super::members::Members;
use super::namespace::Namespace;
use super::parts::Parts;
use super::probes::{Probed, Probing};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::word::MemberState;

/// First and maximum pause between two probes of a lease table, for a client whose process this
/// daemon has never seen.
const LEASES_PAUSE_NS: u64 = 10_000_000;
const LEASES_PAUSE_NS_MAX: u64 = 1_000_000_000;

impl Members {
    /// Begins a client's draining. `conn` is the client's former connection, if the daemon can watch the client's process.
    pub fn drain(&mut self, env: &mut Env, context: &Context, number: ClientNo, conn: Option<ConnId>) {
        if let Some(conn) = conn {
            env.effects.push(Effect::AwaitExit { conn });
            self.me(number).draining = Some(Draining::Process(conn));
        } else {
            self.me(number).draining = Some(Draining::Leases { pause_ns: LEASES_PAUSE_NS });
            self.probe_leases(env, context, number);
        }
    }

    /// Begins the wait for the children that the client has forked.
    pub fn await_children(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        self.me(number).draining = Some(Draining::Children { pause_ns: LEASES_PAUSE_NS });
        self.probe_leases(env, context, number);
    }

    /// Ends the draining of a client that waits for its children. Returns false if the client does
    /// not wait for children. The children then read memory that may be reused, as after the end of
    /// a session.
    pub fn abandon_children(&mut self, env: &mut Env, context: &Context, number: ClientNo) -> bool {
        let client = self.me(number);
        let waits = client.awaits_children();
        if waits {
            client.draining = Some(Draining::Over);
            env.clock.set_timer(0, Timer::Draining(context.ledger.id(), number));
        }
        waits
    }

    fn probe_leases(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        let id = context.ledger.id();
        match self.me(number).sheets.leases().map(|leases| leases.mem) {
            Some(mem) => env.probes.probe(&mut env.effects, mem, Probing::Draining(id, number)),
            None => self.quarantine(env, context, number),
        }
    }

    /// Handles the kernel's response about the lease table of a draining client.
    pub fn leases_probed(
        &mut self,
        env: &mut Env,
        context: &Context,
        number: ClientNo,
        Probed { mem, quiescent }: Probed,
    ) {
        let id = context.ledger.id();
        let Some(client) = self.get_mut(number) else { return };
        let awaits_children = client.awaits_children();
        let Some(Draining::Leases { pause_ns } | Draining::Children { pause_ns }) = &mut client.draining else {
            return;
        };
        if client.sheets.leases().is_none_or(|leases| leases.mem != mem) {
            return;
        }
        if quiescent && awaits_children {
            self.abandon_children(env, context, number);
        } else if quiescent {
            self.quarantine(env, context, number);
        } else {
            env.clock.set_timer(*pause_ns, Timer::Draining(id, number));
            *pause_ns = (*pause_ns * 2).min(LEASES_PAUSE_NS_MAX);
        }
    }

    /// Handles the end of a connection's process. Returns true if the connection's client belongs
    /// to this namespace.
    pub fn exited(&mut self, env: &mut Env, context: &Context, conn: ConnId) -> bool {
        let its = |client: &Client| client.draining == Some(Draining::Process(conn));
        let Some(number) = self.iter().find_map(|(number, it)| its(it).then_some(number)) else {
            return false;
        };
        self.quarantine(env, context, number);
        true
    }

    fn quarantine(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        let pause_ns = env.settings.quarantine_ns;
        let until_ns = env.clock.now_ns() + pause_ns;
        self.me(number).draining = Some(Draining::Quarantine { until_ns });
        env.clock.set_timer(pause_ns, Timer::Draining(context.ledger.id(), number));
    }
}

impl Namespace {
    /// Handles a timer of a draining client.
    pub fn draining_due(&mut self, env: &mut Env, number: ClientNo) {
        match self.members.get(number).and_then(|client| client.draining) {
            Some(Draining::Leases { .. } | Draining::Children { .. }) => {
                self.members.probe_leases(env, &self.context, number);
            }
            Some(Draining::Quarantine { until_ns }) if until_ns <= env.clock.now_ns() => {
                if self.members.me(number).has_children() {
                    self.members.await_children(env, &self.context, number);
                } else {
                    self.drained(env, number);
                }
            }
            Some(Draining::Over) => self.drained(env, number),
            _ => {}
        }
    }

    fn drained(&mut self, env: &mut Env, number: ClientNo) {
        self.members.me(number).draining = None;
        self.departed(env, number);
        self.context.directory.announce(u64::MAX);
        self.bindings.collect_held(&mut Parts { env, context: &mut self.context, members: &mut self.members });
        self.members.probe_next(env, &self.context, number);
    }

    /// Ends the leases of a client when no process or device can read under them any more.
    pub fn departed(&mut self, env: &mut Env, number: ClientNo) {
        let client = self.members.me(number);
        client.member = client.member.with_state(MemberState::Closed);
        let member = client.member;
        self.context.directory.entry(number).member.set(member.0);
        tensorlend_layout::crash_point!("daemon: leases dropped");
        let client = self.members.me(number);
        if let Some(leases) = client.sheets.take_leases() {
            env.orphan_part(client.former_writer(number), leases);
        }
        self.devices.departed(number);
        self.devices.settle_devices(env, &self.context);
    }
}
