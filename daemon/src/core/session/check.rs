//! The equations between the parts of the daemon.

use super::{Conn, Core, Phase};
use crate::core::client::{Client, ClientState, Draining, Residence, Segment};
use crate::core::clock::Timer;
use crate::core::namespace::Namespace;
use crate::core::orders::Making;
use crate::core::probes::Probing;
use crate::core::spills::{SpillWrite, Whose};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::number::{ClientNo, SlotNo};

impl Core {
    /// Checks that all parts are consistent, as they must be after each step.
    ///
    /// # Panics
    /// Panics if a part is inconsistent.
    pub fn check(&self) {
        let env = &self.env;
        env.accounts.check();
        env.pool.check();
        for device in env.devices.iter() {
            device.pool.check();
        }
        env.orphans.check(|mem| env.probes.reason(mem) == Some(Probing::Orphaned));
        self.namespaces.check();
        self.check_blocked();
        self.check_sessions();
        self.check_spills();
        self.check_pool();
        let (timers, surveyed) = (env.clock.timers(), env.chores.surveyed());
        for namespace in self.namespaces.values() {
            for (number, client) in namespace.members.iter() {
                self.check_end(namespace, number, client, &timers);
                let is_surveyed = matches!(client.state, ClientState::Frozen { survey: Some(_), .. });
                let is_queued = surveyed.contains(&(namespace.context.ledger.id(), number));
                assert_eq!(is_surveyed, is_queued, "a chore surveys {number}");
            }
        }
    }

    /// Sessions = connections + clients without a connection that may still write their memory.
    fn check_sessions(&self) {
        let clients = self.namespaces.values().flat_map(|namespace| namespace.members.values());
        let unconnected = clients
            .filter(|client| matches!(client.state, ClientState::Disconnected { .. } | ClientState::Ended { .. }))
            .count();
        let sessions = self.conns.len() + unconnected;
        assert_eq!(self.env.accounts.all_sessions(), sessions as u64, "each connection and each writer is a session");
    }

    /// Bytes in files = bytes of the segments whose bytes are in a file.
    fn check_spills(&self) {
        let (mut in_files, mut leaving) = (BTreeMap::new(), Vec::new());
        for (whose, uid, segment) in self.segments() {
            match segment.residence {
                Residence::File { .. } | Residence::Returning { .. } => {
                    *in_files.entry(uid).or_default() += segment.bytes;
                }
                Residence::Leaving { .. } => leaving.push(SpillWrite { whose, mem: segment.mem }),
                Residence::Memory | Residence::Lost => {}
            }
        }
        self.env.spills.check(&in_files, &leaving);
    }

    /// Lent bytes of the pool = segments of clients in memory + orphaned segments + segments on order for requests.
    fn check_pool(&self) {
        let of_conn = |conn: &Conn| match &conn.phase {
            Phase::Working(work) => work.making.iter().filter_map(Making::host_bytes).sum(),
            _ => 0,
        };
        let on_order = self.conns.values().map(of_conn).sum::<u64>() + self.env.orders.abandoned_bytes();
        let of_clients = self.segments().map(|(_, _, segment)| match &segment.residence {
            Residence::Returning { making } => making.host_bytes().unwrap_or(0),
            residence if residence.is_in_memory() && segment.device.is_none() => segment.bytes,
            _ => 0,
        });
        let lent = of_clients.sum::<u64>() + self.env.orphans.segment_bytes() + on_order;
        assert_eq!(self.env.pool.lent_bytes(), lent, "each lent byte of the pool has a holder");
    }

    /// Checks that an event will continue the end of this client. Otherwise its memory would stay charged for ever.
    fn check_end(&self, namespace: &Namespace, number: ClientNo, client: &Client, timers: &BTreeSet<Timer>) {
        let (env, id) = (&self.env, namespace.context.ledger.id());
        let leases = client.sheets.leases().map(|leases| leases.mem);
        let is_probing = |why| leases.is_some_and(|mem| env.probes.reason(mem) == Some(why));
        match &client.state {
            ClientState::Live(conn) => assert!(self.conns.contains_key(conn), "{conn:?} of {number} exists"),
            ClientState::Disconnected { .. } => assert!(
                is_probing(Probing::Disconnected(id, number)) || timers.contains(&Timer::Disconnected(id, number)),
                "{number} comes back or ends"
            ),
            ClientState::Ended { loud, .. } => match loud.front() {
                Some(&mem) => assert!(
                    env.probes.is_probing(mem) || timers.contains(&Timer::Probe(id, number)),
                    "the memory of {number} becomes quiescent"
                ),
                None => assert!(client.draining.is_some(), "{number} is frozen"),
            },
            ClientState::Frozen { .. } => {}
        }
        let has_timer = timers.contains(&Timer::Draining(id, number));
        match client.draining {
            None | Some(Draining::Process(_)) => {}
            Some(Draining::Over | Draining::Quarantine { .. }) => assert!(has_timer, "{number} is drained"),
            Some(Draining::Leases { .. } | Draining::Children { .. }) => {
                assert!(has_timer || is_probing(Probing::Draining(id, number)), "the leases of {number} end");
            }
        }
    }

    /// Returns all segments of clients, each with its identity and its owner's uid.
    fn segments(&self) -> impl Iterator<Item = (Whose, u32, &Segment)> {
        self.namespaces.iter().flat_map(|(&namespace, it)| {
            it.members.iter().flat_map(move |(number, client)| {
                let whose = move |base: SlotNo| Whose { namespace, number, base };
                client.segments.iter().map(move |(&base, segment)| (whose(base), client.uid, segment))
            })
        })
    }
}
