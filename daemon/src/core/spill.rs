//! Spilled segments: those that nobody writes any more, in files while memory is short.
//!
//! They are of clients that are gone, or shelved: a client that lives has let go of one in which it has nothing more to write
//! ([`Namespace::shelve`]), and frees its slots as ever. When a limit of bytes is in the way of
//! a request ([`Core::spill_for_room`](super::Core)), such a segment goes to a file, if nobody holds it: neither a descriptor nor a mapping of it exists
//! outside of the daemon. Who wants to read it then has to ask ([`Namespace::segment_of`]), as anybody does who has not mapped
//! it; and waits until its bytes are in fresh memory again. No shared word changes on either way but the figures: names,
//! cells, records and generations stay as they are, and whoever has leased something in a segment holds it.
//!
//! A file has no name, and no descriptor but the shell's and the keeper's: it ends with them, in whatever way the daemon ends. The
//! keeper has the file before it forgets the memory, and on the way back the memory before it forgets the file. A daemon that finds
//! both takes the memory ([`Namespace::restore`]): until the other one is forgotten, each of them is whole.

use super::account::{Kind, bytes_text, is_above, limit};
use super::answer::{Answer, Outcome, Wait};
use super::client::{Life, Segment};
use super::effect::Effect;
use super::env::{Env, Making, Part, Purpose, Timer};
use super::event::MemId;
use super::label::Label;
use super::namespace::Namespace;
use super::settings::SpillSettings;
use crate::core::account::NamespaceId;
use std::collections::BTreeMap;
use tensorlend_layout::wire::Refusal;

/// So many segments are tried for one request, at most: those that somebody holds cost a look each.
const TRIES_MAX: usize = 64;
/// Of these, so many of one uid's clients that live.
const LIVING_TRIES_MAX: usize = 32;
/// Who says that he lets go of a segment does so when he has the answer: for the marks it is not tried sooner.
const LET_GO_NS: u64 = 20_000_000;
/// Where nobody waits for room, a segment is not tried again sooner: its reader may have it mapped for long, or the disk be full.
const TRY_PAUSE_NS: u64 = 10_000_000_000;

/// From here on, in percent of the pool, owners are asked to let go of segments, unless there are marks.
const SHORT_PERCENT: u8 = 50;

/// Where the bytes of a segment are.
#[derive(Debug, Default)]
pub enum Residence {
    /// In its memory.
    #[default]
    Memory,
    /// In its memory, and on their way into a file.
    Leaving {
        /// Whether somebody has been lent it since.
        lent: bool,
    },
    /// In a file.
    File {
        /// Why they could not be read when somebody wanted them.
        failed: Option<String>,
    },
    /// In a file, and on their way into this memory.
    Returning {
        /// The memory, on order.
        making: Making,
    },
    /// Nowhere: what the daemon before had of it has ended with that one. Its owner, who had let go of it, lives, and has yet to
    /// free its slots.
    Lost,
}

impl Residence {
    /// Whether they are in the pool.
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Leaving { .. })
    }
}

/// Which segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    pub namespace: NamespaceId,
    pub catalogue: u16,
    pub base: u32,
}

/// What is in files.
#[derive(Debug, Default)]
pub struct Spills {
    bytes: u64,
    uids: BTreeMap<u32, u64>,
    /// The segment that is on its way into a file, and the memory that it is in: one at a time.
    leaving: Option<(Whose, MemId)>,
    /// Files that could not be written or read.
    pub failures: u64,
    /// Whether the pool was above its high mark and has not come to the low one since.
    draining: bool,
    /// Before this nothing has become free to be spilled for the marks, unless [`Spills::look_again`] says so.
    look_ns: u64,
    /// A file could not be written: none is for the marks before this.
    pause_ns: u64,
}

impl Spills {
    /// Bytes of segments that are in files only.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A segment is in a file.
    pub fn add(&mut self, uid: u32, bytes: u64) {
        self.bytes += bytes;
        *self.uids.entry(uid).or_default() += bytes;
    }

    /// There may be something that can be spilled.
    pub fn look_again(&mut self) {
        self.look_ns = 0;
    }

    fn remove(&mut self, uid: u32, bytes: u64) {
        self.look_again();
        self.bytes -= bytes;
        let own = self.uids.get_mut(&uid).expect("it was added");
        *own -= bytes;
        if *own == 0 {
            self.uids.remove(&uid);
        }
    }
}

/// A segment that may be spilled. Their order: what was not tried yet, or longest ago, then what was lent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub tried_ns: Option<u64>,
    pub since_ns: u64,
    pub whose: Whose,
    pub uid: u32,
    pub bytes: u64,
    /// Since when its owner has let go of it, as he says, if he lives.
    pub let_go_ns: Option<u64>,
}

impl Env {
    /// Whether a segment is on its way into a file.
    pub fn is_spilling(&self) -> bool {
        self.spills.leaving.is_some()
    }

    /// Takes back a segment of `uid` that may not be in memory. `Ok`: its memory is to be freed still; otherwise the records
    /// alone are.
    pub fn free_spilled(&mut self, uid: u32, mut segment: Segment) -> Result<Segment, Part> {
        let in_file = match std::mem::take(&mut segment.residence) {
            // What is written is dropped when it has been.
            Residence::Memory | Residence::Leaving { .. } => return Ok(segment),
            Residence::Lost => false,
            Residence::File { .. } => true,
            Residence::Returning { making, .. } => {
                self.abandon(making);
                true
            }
        };
        if in_file {
            self.spills.remove(uid, segment.bytes);
            self.effects.push(Effect::DropFile { file: segment.mem });
        }
        self.accounts.refund(segment.charge);
        Err(segment.slots)
    }

    /// Whether what can go to a file should be ready to: for everybody's sake, or for that of who is charged for it.
    pub fn is_short(&self, uid: u32, namespace: NamespaceId) -> bool {
        let percent = |spill: &SpillSettings| spill.marks.map_or(SHORT_PERCENT, |marks| marks.low_percent);
        let percent = self.settings.spill.as_ref().map(percent);
        percent.is_some_and(|it| self.is_pool_above(it) || self.accounts.is_above(it, uid, namespace))
    }

    fn is_pool_above(&self, percent: u8) -> bool {
        is_above(self.pool.lent_bytes(), self.pool.bytes_max(), percent)
    }

    /// Whether the limits of spilling leave room for it.
    pub fn may_spill(&self, it: &Candidate) -> bool {
        let Some(limits) = &self.settings.spill else { return false };
        let owners = &self.settings.owners;
        let owner = owners.of(it.uid);
        let own: u64 =
            self.spills.uids.iter().filter(|&(&uid, _)| owners.of(uid) == owner).map(|(_, bytes)| bytes).sum();
        let fits = |used: u64, most: u64| used.checked_add(it.bytes).is_some_and(|sum| sum <= most);
        fits(self.spills.bytes, limits.bytes_max) && fits(own, limits.uid_bytes_max)
    }
}

impl Namespace {
    /// Segments that nobody writes any more, in memory alone.
    pub fn spillable(&self) -> impl Iterator<Item = Candidate> + '_ {
        // Of one that has ended, and may still write, nothing until it is known to be quiet.
        let clients = self.members.iter().filter(|(_, client)| client.is_frozen() || client.is_live());
        clients.flat_map(move |(catalogue, client)| {
            let gone = client.is_frozen();
            let is_whole =
                |s: &Segment| s.device.is_none() && s.slots.acked && matches!(s.residence, Residence::Memory);
            let whole = client.segments.iter().filter(move |(_, s)| (gone || s.shelved_ns.is_some()) && is_whole(s));
            whole.map(move |(&base, segment)| Candidate {
                tried_ns: segment.tried_ns,
                since_ns: self.context.directory.segments[segment.entry as usize].since_ns.peek(),
                whose: Whose { namespace: self.context.ledger.id(), catalogue, base },
                uid: client.uid,
                bytes: segment.bytes,
                let_go_ns: segment.shelved_ns.filter(|_| !gone),
            })
        })
    }

    /// Has a segment written to a file.
    pub fn spill(&mut self, env: &mut Env, whose: Whose) {
        let segment = self.members.me(whose.catalogue).segments.get_mut(&whose.base).expect("it is a candidate");
        segment.residence = Residence::Leaving { lent: false };
        segment.tried_ns = Some(env.now_ns);
        env.spills.leaving = Some((whose, segment.mem));
        let (mem, bytes) = (segment.mem, segment.bytes);
        let file = env.name();
        env.effects.push(Effect::Spill { mem, file, bytes });
    }

    /// It is written, if nobody held it then; whether its memory is free now.
    fn spilled(&mut self, env: &mut Env, (whose, mem): (Whose, MemId), file: MemId, written: bool) -> bool {
        let Some(client) = self.members.get_mut(whose.catalogue) else { return false };
        let (uid, ended) = (client.uid, matches!(client.life, Life::Ended { .. }));
        // Freed meanwhile, or lent to somebody who may read it: then it stays, and the file goes.
        let Some(segment) = client.segments.get_mut(&whose.base).filter(|segment| segment.mem == mem) else {
            return false;
        };
        let Residence::Leaving { lent } = std::mem::take(&mut segment.residence) else { return false };
        // Of one that ended meanwhile, this memory is among what has to be found quiet.
        if !written || lent || ended {
            return false;
        }
        segment.residence = Residence::File { failed: None };
        segment.mem = file;
        let bytes = segment.bytes;
        // Before the memory goes.
        env.keep(file, Label::Spilled { namespace: whose.namespace, owner: whose.catalogue, base: whose.base });
        let kept = env.accounts.charge_kept(Some(uid), whose.namespace, Kind::Segment, 0);
        env.accounts.refund(std::mem::replace(&mut segment.charge, kept));
        env.release_segment(mem, bytes);
        env.spills.add(uid, bytes);
        self.context.directory.count_bytes(whose.catalogue, bytes, false);
        true
    }

    /// Somebody asks for a segment that may be in a file. `None`: it is in memory, and about to be lent.
    pub fn recall(&mut self, env: &mut Env, catalogue: u16, base: u32) -> Option<Answer> {
        let (id, client) = (self.context.ledger.id(), self.members.me(catalogue));
        let uid = client.uid;
        let segment = client.segments.get_mut(&base).expect("the caller found it");
        let bytes = segment.bytes;
        let failed = match &mut segment.residence {
            Residence::Memory => return None,
            Residence::Leaving { lent } => {
                *lent = true;
                return None;
            }
            Residence::Returning { .. } => return Some(Ok(Outcome::Later(Wait::Spilled))),
            Residence::Lost => {
                let reason = "they were out of the pool when the daemon was replaced, and nothing has kept them";
                return Some(Err(Refusal::Memory { bytes, reason: reason.into() }));
            }
            Residence::File { failed } => failed.take(),
        };
        if let Some(reason) = failed {
            // Once: who asks again has it tried again.
            return Some(Err(Refusal::Memory { bytes, reason }));
        }
        let charge = match env.accounts.charge(Some(uid), id, Kind::Segment, bytes) {
            Ok(charge) => charge,
            Err(refusal) => return Some(Err(refusal)),
        };
        let Some(released) = env.pool.reserve(bytes) else {
            env.accounts.refund(charge);
            let what = format!("the pool ({} in use)", bytes_text(env.pool.lent_bytes()));
            return Some(Err(limit(what, "pool.bytes_max", bytes_text(env.pool.bytes_max()))));
        };
        for mem in released {
            env.release(mem);
        }
        let mem = env.name_order(Purpose::Spilled(Whose { namespace: id, catalogue, base }));
        env.effects.push(Effect::Recall { mem, file: segment.mem, bytes });
        let making =
            Making { mem, charge, segment_bytes: Some(bytes), device: None, export: None, made: false, view: None };
        segment.residence = Residence::Returning { making };
        Some(Ok(Outcome::Later(Wait::Spilled)))
    }

    /// Memory with a segment's bytes is there, or they could not be read.
    pub fn recalled(&mut self, env: &mut Env, whose: Whose, made: Result<(), String>) {
        let client = self.members.me(whose.catalogue);
        let uid = client.uid;
        let segment = client.segments.get_mut(&whose.base).expect("it is disowned when it is freed");
        let Residence::Returning { making } = std::mem::take(&mut segment.residence) else {
            unreachable!("its memory was on order");
        };
        if let Err(reason) = made {
            tracing::error!(client = whose.catalogue, "a spilled segment could not be read: {reason}");
            env.spills.failures += 1;
            segment.residence = Residence::File { failed: Some(reason) };
            env.count_no_more(making);
            return;
        }
        let bytes = segment.bytes;
        env.accounts.refund(std::mem::replace(&mut segment.charge, making.charge));
        let file = std::mem::replace(&mut segment.mem, making.mem);
        env.spills.remove(uid, bytes);
        // Before the file goes.
        env.keep(making.mem, Label::Segment { namespace: whose.namespace, owner: whose.catalogue, base: whose.base });
        env.effects.push(Effect::DropFile { file });
        self.context.directory.count_bytes(whose.catalogue, bytes, true);
    }
}

impl super::Core {
    /// Somebody was refused by this setting: has a segment spilled that counts there, if there is one. Whether it is worth
    /// waiting.
    pub(super) fn spill_for_room(&mut self, uid: u32, id: NamespaceId, setting: &str, since_ns: u64) -> bool {
        let (env, namespaces) = self.parts();
        if env.settings.spill.is_none() || setting.starts_with("pool.sheet") || !setting.contains("bytes_max") {
            return false;
        }
        if env.is_spilling() {
            return true;
        }
        // What counts there: a share of the pool is one uid's.
        let counts = |it: &Candidate| match setting {
            "pool.bytes_max" => true,
            setting if setting.starts_with("namespace") => it.whose.namespace == id,
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
        namespaces.get_mut(&whose.namespace).expect("it has a candidate").spill(env, whose);
        true
    }

    /// Has a segment spilled if the pool is fuller than the configuration wants it, before anybody is refused.
    pub(super) fn spill_above_mark(&mut self) {
        let (env, namespaces) = self.parts();
        let Some(marks) = env.settings.spill.as_ref().and_then(|spill| spill.marks) else { return };
        let was_draining = env.spills.draining;
        env.spills.draining =
            env.is_pool_above(marks.high_percent) || was_draining && env.is_pool_above(marks.low_percent);
        if !env.spills.draining || env.is_spilling() || env.now_ns < env.spills.look_ns.max(env.spills.pause_ns) {
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
            namespaces.get_mut(&whose.namespace).expect("it has a candidate").spill(env, whose);
            return;
        }
        // Until then nothing changes by itself.
        env.spills.look_ns = candidates.iter().map(due_ns).min().unwrap_or(u64::MAX);
        if env.spills.look_ns != u64::MAX {
            env.set_timer(env.spills.look_ns - env.now_ns, Timer::Spill);
        }
    }

    /// A file was written, or not.
    pub(super) fn spilled(&mut self, file: MemId, written: &Result<(), String>) {
        let (env, namespaces) = self.parts();
        let (whose, mem) = env.spills.leaving.take().expect("a segment is spilled because somebody ordered it");
        if let Err(reason) = written {
            if !reason.is_empty() {
                env.spills.failures += 1;
                env.spills.pause_ns = env.now_ns + TRY_PAUSE_NS;
                if env.settings.spill.as_ref().is_some_and(|spill| spill.marks.is_some()) {
                    env.set_timer(TRY_PAUSE_NS, Timer::Spill);
                }
            }
            tracing::debug!(client = whose.catalogue, "a segment was not spilled: {reason}");
        }
        let namespace = namespaces.get_mut(&whose.namespace);
        let left = namespace.is_some_and(|namespace| namespace.spilled(env, (whose, mem), file, written.is_ok()));
        if !left && written.is_ok() {
            env.effects.push(Effect::DropFile { file });
        }
    }
}
