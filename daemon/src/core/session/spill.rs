//! The triggers of spilling: a limit of bytes refuses a request, or the pool is above the
//! high water mark of the configuration.

use super::{Core, Joined};
use crate::core::account::NamespaceId;
use crate::core::clock::Timer;
use crate::core::effect::Effect;
use crate::core::event::{MemId, Unwritten};
use crate::core::namespace::Namespace;
use crate::core::parts::Parts;
use crate::core::segment::Segments;
use crate::core::segment::spill::Candidate;
use crate::core::segment::wanted::{WANTED_NS_MAX, WANTED_PAUSE_NS, is_awaited};
use std::collections::BTreeMap;
use tensorlend_layout::wire::LimitKind;

/// Maximum number of segments that the daemon tries for one request. A segment that a process holds costs one probe.
const TRIES_MAX: usize = 64;
/// Maximum number of tried segments that belong to connected clients of one uid.
const LIVING_TRIES_MAX: usize = 32;
/// Pause between an owner's report of a segment and the first attempt to spill the segment because of
/// the water marks. The owner unmaps the segment only after the daemon's response.
const LET_GO_NS: u64 = 20_000_000;
/// Pause before the daemon again tries to spill a segment because of the water marks. A reader may
/// have the segment mapped for long, or the disk may be full.
const TRY_PAUSE_NS: u64 = 10_000_000_000;

impl Core {
    /// Makes room for a request that the limit `full` refuses. Spills one segment that counts
    /// against this limit, if there is one. Returns true if the request should wait for a spill.
    pub(super) fn spill_for_room(&mut self, uid: u32, asker: Joined, full: LimitKind, since_ns: u64) -> bool {
        let Self { env, namespaces, .. } = self;
        let now_ns = env.clock.now_ns();
        if env.settings.spill.is_none() || !full.is_tensor_memory() {
            return false;
        }
        if env.spills.is_spilling() {
            return true;
        }
        if !env.spills.may_look(now_ns) && now_ns < since_ns + WANTED_NS_MAX {
            env.clock.retry_after(WANTED_PAUSE_NS);
            return true;
        }
        // Only segments that count against this limit are candidates. For a share of the pool,
        // these are the segments of one uid.
        let counts = |namespace: NamespaceId, owner: u32| match full {
            LimitKind::PoolBytes => true,
            LimitKind::NamespaceBytes => namespace == asker.namespace,
            _ => owner == uid,
        };
        let spillable = namespaces.values().flat_map(Namespace::spillable);
        let candidates: Vec<Candidate> = spillable.filter(|it| counts(it.whose.namespace, it.uid)).collect();
        // The daemon tries each segment at most once after the arrival of the request.
        let is_tried = |it: &&Candidate| it.tried_ns.is_some_and(|at| at >= since_ns);
        let (mut tries, mut of_living) = (0, BTreeMap::<u32, usize>::new());
        for it in candidates.iter().filter(is_tried) {
            tries += 1;
            if it.let_go_ns.is_some() {
                *of_living.entry(it.uid).or_default() += 1;
            }
        }
        // A uid may report many released segments that it still holds. This limit keeps such a uid
        // from using up all tries.
        let is_trusted = |it: &&Candidate| {
            it.let_go_ns.is_none() || of_living.get(&it.uid).is_none_or(|&tries| tries < LIVING_TRIES_MAX)
        };
        // Clients may have let go of a wanted segment since the last attempt.
        let is_due_again = |it: &&Candidate| {
            is_awaited(it.wanted_ns, now_ns) && it.tried_ns.is_none_or(|at| at + WANTED_PAUSE_NS <= now_ns)
        };
        let is_next = |it: &&Candidate| !is_tried(it) && tries < TRIES_MAX && is_trusted(it) || is_due_again(it);
        let fits = |it: &&Candidate| env.spills.has_room_for(&env.settings, it.uid, it.bytes);
        let coldest = candidates.iter().filter(|it| is_next(it) && fits(it)).min();
        let Some(&Candidate { whose, .. }) = coldest else {
            let awaits =
                now_ns < since_ns + WANTED_NS_MAX && self.want_out(Some(asker), |id, client| counts(id, client.uid));
            if awaits {
                self.env.spills.look_at(now_ns + WANTED_PAUSE_NS);
                self.env.clock.retry_after(WANTED_PAUSE_NS);
            }
            return awaits;
        };
        let namespace = namespaces.get_mut(&whose.namespace).expect("it has a candidate");
        Segments::spill(env, &mut namespace.members, whose);
        true
    }

    /// Spills a segment if the water marks require it: see [`crate::core::spills::Spills::drain`]. So
    /// the daemon spills before it has to refuse a request.
    pub(in crate::core) fn spill_above_mark(&mut self) {
        let Self { env, namespaces, .. } = self;
        let Some(marks) = env.settings.spill.as_ref().and_then(|spill| spill.marks) else { return };
        let (high, low) = (env.pool.is_above(marks.high_percent), env.pool.is_above(marks.low_percent));
        if !env.spills.drain(high, low) || env.spills.is_spilling() || !env.spills.may_scan(env.clock.now_ns()) {
            return;
        }
        let candidates = namespaces
            .values()
            .flat_map(Namespace::spillable)
            .filter(|it| env.spills.has_room_for(&env.settings, it.uid, it.bytes));
        let candidates: Vec<Candidate> = candidates.collect();
        let now_ns = env.clock.now_ns();
        let due_ns = |it: &Candidate| match (it.tried_ns, it.let_go_ns) {
            (Some(at), _) if is_awaited(it.wanted_ns, now_ns) => at + WANTED_PAUSE_NS,
            (Some(at), _) => at + TRY_PAUSE_NS,
            (None, Some(at)) => at + LET_GO_NS,
            (None, None) => 0,
        };
        if let Some(&Candidate { whose, .. }) = candidates.iter().filter(|it| due_ns(it) <= now_ns).min() {
            let namespace = namespaces.get_mut(&whose.namespace).expect("it has a candidate");
            Segments::spill(env, &mut namespace.members, whose);
            return;
        }
        // No segment becomes spillable before this time without a further event.
        let mut scan_ns = candidates.iter().map(due_ns).min().unwrap_or(u64::MAX);
        if self.want_out(None, |_, _| true) {
            scan_ns = scan_ns.min(now_ns + WANTED_PAUSE_NS);
        }
        self.env.spills.scan_at(scan_ns);
        if scan_ns != u64::MAX {
            self.env.clock.set_timer(scan_ns - now_ns, Timer::Spill);
        }
    }

    /// Handles the end of a write. The file is complete, or the write failed.
    pub(in crate::core) fn spilled(&mut self, file: MemId, written: &Result<(), Unwritten>) {
        let Self { env, namespaces, .. } = self;
        let write = env.spills.end();
        let whose = write.whose;
        match written {
            Ok(()) => env.spills.succeeded(),
            // A process holds the memory.
            Err(reason) if *reason == Unwritten::default() => {}
            Err(reason) => {
                let now_ns = env.clock.now_ns();
                env.spills.failed(reason, now_ns, now_ns + TRY_PAUSE_NS);
                if env.settings.spill.as_ref().is_some_and(|spill| spill.marks.is_some()) {
                    env.clock.set_timer(TRY_PAUSE_NS, Timer::Spill);
                }
            }
        }
        let namespace = namespaces.get_mut(&whose.namespace);
        let left = namespace.is_some_and(|namespace| {
            Segments::spilled(
                &mut Parts { env, context: &mut namespace.context, members: &mut namespace.members },
                write,
                file,
                written.is_ok(),
            )
        });
        if !left && written.is_ok() {
            env.effects.push(Effect::DropFile { file });
        }
    }
}
