//! Clients of the previous daemon that have not reconnected.

use super::client::ClientState;
use super::clock::Timer;
use super::context::Context;
use super::effect::Effect;
use super::env::Env;
use super::event::ConnId;
use super::members::Members;
use super::namespace::Namespace;
use super::probes::{Probed, Probing};
use tensorlend_layout::number::ClientNo;

/// First pause between two probes for a client that has not reconnected, and the maximum pause.
pub const DISCONNECTED_PAUSE_NS: u64 = 10_000_000;
const DISCONNECTED_PAUSE_NS_MAX: u64 = 1_000_000_000;

impl Members {
    /// Asks the kernel whether a client that has not reconnected still runs. A running client can
    /// write its lease table. The probe also detects a process that continues after it has closed
    /// its session.
    pub fn probe_disconnected(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        let id = context.ledger.id();
        if let Some(client) = self.get(number).filter(|client| client.is_disconnected())
            && let Some(leases) = client.sheets.leases()
        {
            env.probes.probe(&mut env.effects, leases.mem, Probing::Disconnected(id, number));
        }
    }
}

impl Namespace {
    /// Seals the memory in which a client of the previous daemon may have published, if that client
    /// will not reconnect. The previous daemon may have ended before it received the client's
    /// acknowledgement, and other clients read only sealed memory.
    pub fn seal_left(&mut self, env: &mut Env, number: ClientNo) {
        let user_mode = env.settings.is_user_mode();
        let client = self.members.me(number);
        let mut seal = client.sheets.acknowledge_owed_cells();
        for segment in client.segments.values_mut().filter(|segment| !segment.slots.acked) {
            segment.slots.acked = true;
            seal.push(segment.slots.mem);
            if user_mode && segment.device.is_none() && segment.residence.is_in_memory() {
                seal.push(segment.mem);
            }
        }
        // The client has no connection that the system layer could close if sealing fails. So the
        // effect names no connection.
        env.effects.extend(seal.into_iter().map(|mem| Effect::Seal { conn: ConnId(u64::MAX), mem }));
    }

    /// Handles the kernel's response to a probe.
    pub fn disconnected_probed(&mut self, env: &mut Env, number: ClientNo, Probed { mem, quiescent }: Probed) {
        let id = self.context.ledger.id();
        let Some(client) = self.members.get_mut(number) else { return };
        let ClientState::Disconnected { pause_ns } = &mut client.state else { return };
        if client.sheets.leases().is_none_or(|leases| leases.mem != mem) {
            return;
        }
        if quiescent {
            self.seal_left(env, number);
            self.end_client(env, number);
        } else {
            env.clock.set_timer(*pause_ns, Timer::Disconnected(id, number));
            *pause_ns = (*pause_ns * 2).min(DISCONNECTED_PAUSE_NS_MAX);
        }
    }
}
