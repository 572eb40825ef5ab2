//! The reclamation of memory after a limit of bytes has refused a request.

use super::{Asker, CHORES_NS_MAX, Core, Joined};
use crate::core::account::NamespaceId;
use crate::core::event::ConnId;
use crate::core::namespace::Namespace;
use crate::core::outcome::{Outcome, RequestResult, Requester, Wait};
use crate::core::parts::Parts;
use crate::core::range::{SegmentSize, SizeOnDevice};
use crate::core::segment::Segments;
use std::collections::BTreeMap;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{LimitKind, Refusal, SpillFault};

/// The result of a survey of disconnected clients for memory that is out of use.
enum Room {
    /// No survey took place, because the last one was recent.
    Unchanged,
    /// A survey has ended, and may have freed memory.
    Surveyed,
    /// A survey is in progress, and may free memory soon.
    Awaited,
}

impl Core {
    /// Handles a request for a segment. If a limit refuses the request, the daemon first reclaims memory that may be free.
    pub(super) fn segment(&mut self, asker: Asker, size: SegmentSize) -> RequestResult {
        let Asker { conn, joined, since_ns } = asker;
        let uid = self.conns[&conn].peer.uid;
        let requester = Requester { conn, number: joined.number };
        let lend = |core: &mut Self| {
            let namespace = core.namespaces.get_mut(&joined.namespace).expect("it has a client");
            let Namespace { context, members, segments, .. } = namespace;
            segments.segment(&mut Parts { env: &mut core.env, context, members }, requester, size)
        };
        let mut result = lend(self);
        let env = &mut self.env;
        if !matches!(result, Err(Refusal::Limit { .. })) || size.bytes > env.pool.bytes_max() {
            return result;
        }
        if env.orphans.expedite(&mut env.effects, env.clock.now_ns(), uid, since_ns) {
            return Ok(Outcome::Later(Wait::Quiescent));
        }
        match self.collect_for_room(joined, since_ns) {
            Room::Unchanged => {}
            Room::Awaited => return Ok(Outcome::Later(Wait::Chores)),
            Room::Surveyed => result = lend(self),
        }
        match &result {
            Err(Refusal::Limit { kind, .. }) if kind.is_tensor_memory() => {
                if self.signal_pressure((*kind == LimitKind::NamespaceBytes).then_some(joined.namespace)) {
                    result = lend(self);
                }
                self.or_spill(result, asker, Some(uid))
            }
            _ => result,
        }
    }

    /// Handles a request for the segment of a client's slot. If the segment is in a file and a
    /// limit refuses memory for it, the daemon spills other segments.
    pub(super) fn segment_of(&mut self, asker: Asker, number: ClientNo, slot: SlotNo) -> RequestResult {
        let namespace = self.namespaces.get_mut(&asker.joined.namespace).expect("it has a client");
        // The memory counts for the segment's owner.
        let owner = namespace.members.get(number).map(|owner| owner.uid);
        let result = Segments::segment_of(
            &mut Parts { env: &mut self.env, context: &mut namespace.context, members: &mut namespace.members },
            &mut namespace.devices,
            asker.joined.number,
            number,
            slot,
        );
        self.or_spill(result, asker, owner)
    }

    /// Returns the result, or a wait if spilling may make room. `uid` is the user whom the memory
    /// is charged to.
    fn or_spill(
        &mut self,
        result: RequestResult,
        Asker { conn, joined, since_ns }: Asker,
        uid: Option<u32>,
    ) -> RequestResult {
        let Err(Refusal::Limit { kind, .. }) = result else { return result };
        let Some(uid) = uid else { return result };
        if self.spill_for_room(uid, joined, kind, since_ns) {
            return Ok(Outcome::Later(Wait::Spilled));
        }
        self.or_fault_of_spilling(result, conn, since_ns)
    }

    /// Returns a refusal of memory that names the disk, if the daemon has failed to spill for this request.
    fn or_fault_of_spilling(&self, result: RequestResult, conn: ConnId, since_ns: u64) -> RequestResult {
        let in_full = self.env.settings.shows_folders_to(&self.conns[&conn].peer);
        match (result, self.env.spills.failed_since(since_ns, in_full)) {
            (Err(Refusal::Limit { kind, what, setting, limit }), Some(SpillFault { reason, .. })) => {
                let limit = format!("{limit}, and the daemon cannot spill to disk ({reason})");
                Err(Refusal::Limit {
                    kind,
                    what,
                    setting: format!("the free space of spill.directory or {setting}"),
                    limit,
                })
            }
            (result, _) => result,
        }
    }

    /// Handles a request for device memory. If a limit refuses the request, the daemon first reclaims memory that may be free.
    pub(super) fn device_segment(&mut self, asker: Asker, size: SizeOnDevice) -> RequestResult {
        let Asker { conn, joined, since_ns } = asker;
        let requester = Requester { conn, number: joined.number };
        let lend = |core: &mut Self| {
            let namespace = core.namespaces.get_mut(&joined.namespace).expect("it has a client");
            let Namespace { context, members, segments, devices, .. } = namespace;
            let env = &mut core.env;
            segments.device_segment(&mut Parts { env, context, members }, devices, requester, size)
        };
        let result = lend(self);
        if !matches!(result, Err(Refusal::Limit { .. })) {
            return result;
        }
        match self.collect_for_room(joined, since_ns) {
            Room::Unchanged => result,
            Room::Awaited => Ok(Outcome::Later(Wait::Chores)),
            Room::Surveyed => lend(self),
        }
    }

    /// Surveys disconnected clients for a request that met a limit. The survey runs at once, until
    /// this step has spent its units.
    fn collect_for_room(&mut self, joined: Joined, since_ns: u64) -> Room {
        let namespace = self.namespaces.get_mut(&joined.namespace).expect("it has a client");
        let begun = namespace.members.collect_for_room(&mut self.env, &namespace.context);
        if begun {
            self.do_chores();
        }
        let surveying =
            self.namespaces.get(&joined.namespace).is_some_and(|namespace| namespace.members.is_surveying());
        match (surveying, begun) {
            (true, _) if self.env.clock.now_ns() - since_ns < CHORES_NS_MAX => Room::Awaited,
            (_, true) => Room::Surveyed,
            _ => Room::Unchanged,
        }
    }

    /// Scans the leases after a refusal of memory. Scans the namespace whose limit was met, or all
    /// namespaces. Returns true if the scan has moved charges.
    pub(super) fn signal_pressure(&mut self, full: Option<NamespaceId>) -> bool {
        for namespace in self.namespaces.values_mut().filter(|n| full.is_none_or(|id| n.context.ledger.id() == id)) {
            namespace.pressure.signal_pressure(&mut self.env, &namespace.context);
        }
        self.do_chores();
        self.move_charges()
    }

    /// Charges each account for the values that its leases retain. Returns true if a charge has
    /// changed.
    pub(in crate::core) fn move_charges(&mut self) -> bool {
        let mut moved = BTreeMap::new();
        for namespace in self.namespaces.values() {
            namespace.pressure.add_moved(&namespace.members, self.env.clock.now_ns(), &mut moved);
        }
        self.env.accounts.move_charges(moved)
    }
}
