//! When segments are spilled: where a limit of bytes is in the way of a request, and above the marks of the configuration.

use super::Core;
use crate::core::account::NamespaceId;
use crate::core::effect::Effect;
use crate::core::env::Timer;
use crate::core::event::MemId;
use crate::core::namespace::Namespace;
use crate::core::segment::Segments;
use crate::core::segment::spill::Candidate;
use std::collections::BTreeMap;
use tensorlend_layout::wire::LimitKind;

/// So many segments are tried for one request, at most: those that somebody holds cost a look each.
const TRIES_MAX: usize = 64;
/// Of these, so many of one uid's clients that live.
const LIVING_TRIES_MAX: usize = 32;
/// Who says that he lets go of a segment does so when he has the answer: for the marks it is not tried sooner.
const LET_GO_NS: u64 = 20_000_000;
/// Where nobody waits for room, a segment is not tried again sooner: its reader may have it mapped for long, or the disk be full.
const TRY_PAUSE_NS: u64 = 10_000_000_000;

impl Core {
    /// A request met this limit: has a segment spilled that counts against it, if there is one. Returns whether it is worth
    /// waiting.
    pub(in crate::core) fn spill_for_room(
        &mut self,
        uid: u32,
        id: NamespaceId,
        full: LimitKind,
        since_ns: u64,
    ) -> bool {
        let Self { env, namespaces, .. } = self;
        if env.settings.spill.is_none() || !full.is_tensor_memory() {
            return false;
        }
        if env.is_spilling() {
            return true;
        }
        // What counts there: a share of the pool is one uid's.
        let counts = |it: &Candidate| match full {
            LimitKind::PoolBytes => true,
            LimitKind::NamespaceBytes => it.whose.namespace == id,
            _ => it.uid == uid,
        };
        let candidates: Vec<Candidate> = namespaces.values().flat_map(Namespace::spillable).filter(counts).collect();
        // Each once for this request, since it began.
        let is_tried = |it: &&Candidate| it.tried_ns.is_some_and(|at| at >= since_ns);
        let (mut tries, mut of_living) = (0, BTreeMap::<u32, usize>::new());
        for it in candidates.iter().filter(is_tried) {
            tries += 1;
            if it.let_go_ns.is_some() {
                *of_living.entry(it.uid).or_default() += 1;
            }
        }
        if tries >= TRIES_MAX {
            return false;
        }
        // Who says of much that he has let go of it, and holds it, does not take all of them.
        let is_trusted = |it: &&Candidate| {
            it.let_go_ns.is_none() || of_living.get(&it.uid).is_none_or(|&tries| tries < LIVING_TRIES_MAX)
        };
        let coldest = candidates.iter().filter(|it| !is_tried(it) && is_trusted(it) && env.may_spill(it)).min();
        let Some(&Candidate { whose, .. }) = coldest else { return false };
        let namespace = namespaces.get_mut(&whose.namespace).expect("it has a candidate");
        Segments::spill(env, &mut namespace.members, whose);
        true
    }

    /// Has a segment spilled if the pool is fuller than the configuration wants it, before anybody is refused.
    pub(in crate::core) fn spill_above_mark(&mut self) {
        let Self { env, namespaces, .. } = self;
        let Some(marks) = env.settings.spill.as_ref().and_then(|spill| spill.marks) else { return };
        let (high, low) = (env.is_pool_above(marks.high_percent), env.is_pool_above(marks.low_percent));
        if !env.spills.drain(high, low) || env.is_spilling() || !env.spills.may_look(env.now_ns) {
            return;
        }
        let candidates = namespaces.values().flat_map(Namespace::spillable).filter(|it| env.may_spill(it));
        let candidates: Vec<Candidate> = candidates.collect();
        let due_ns = |it: &Candidate| match (it.tried_ns, it.let_go_ns) {
            (Some(at), _) => at + TRY_PAUSE_NS,
            (None, Some(at)) => at + LET_GO_NS,
            (None, None) => 0,
        };
        if let Some(&Candidate { whose, .. }) = candidates.iter().filter(|it| due_ns(it) <= env.now_ns).min() {
            let namespace = namespaces.get_mut(&whose.namespace).expect("it has a candidate");
            Segments::spill(env, &mut namespace.members, whose);
            return;
        }
        // Until then nothing changes by itself.
        let look_ns = candidates.iter().map(due_ns).min().unwrap_or(u64::MAX);
        env.spills.look_at(look_ns);
        if look_ns != u64::MAX {
            env.set_timer(look_ns - env.now_ns, Timer::Spill);
        }
    }

    /// A file was written, or not.
    pub(in crate::core) fn spilled(&mut self, file: MemId, written: &Result<(), String>) {
        let Self { env, namespaces, .. } = self;
        let (whose, mem) = env.spills.end();
        if let Err(reason) = written {
            if !reason.is_empty() {
                env.spills.pause_until(env.now_ns + TRY_PAUSE_NS);
                if env.settings.spill.as_ref().is_some_and(|spill| spill.marks.is_some()) {
                    env.set_timer(TRY_PAUSE_NS, Timer::Spill);
                }
            }
            tracing::debug!(client = whose.catalogue, "a segment was not spilled: {reason}");
        }
        let namespace = namespaces.get_mut(&whose.namespace);
        let left = namespace.is_some_and(|namespace| {
            Segments::spilled(env, &namespace.context, &mut namespace.members, (whose, mem), file, written.is_ok())
        });
        if !left && written.is_ok() {
            env.effects.push(Effect::DropFile { file });
        }
    }
}
