//! Spilled segments: those that nobody writes any more, in files while memory is short.
//!
//! They are of clients that are gone, or shelved: a client that lives has let go of one in which it has nothing more to write
//! ([`Segments::release_for_spill`]), and frees its slots as ever. When a limit of bytes is in the way of
//! a request (`Core::spill_for_room`), such a segment goes to a file, if nobody holds it: neither a descriptor nor a mapping of it exists
//! outside of the daemon. Who wants to read it then has to ask ([`Segments::segment_of`]), as anybody does who has not mapped
//! it; and waits until its bytes are in fresh memory again. No shared word changes on either way but the figures: names,
//! cells, records and generations stay as they are, and whoever has leased something in a segment holds it.
//!
//! A file has no name, and no descriptor but the shell's and the keeper's: it ends with them, in whatever way the daemon ends. The
//! keeper has the file before it forgets the memory, and on the way back the memory before it forgets the file. A daemon that finds
//! both takes the memory ([`crate::core::recovery::restore`]): until the other one is forgotten, each of them is whole.

use super::Segments;
use crate::core::account::NamespaceId;
use crate::core::account::{Kind, bytes_text, is_above, limit};
use crate::core::answer::{Answer, Outcome, Wait};
use crate::core::client::{Life, Residence, Segment};
use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::env::{Env, Making, Part, Purpose};
use crate::core::event::MemId;
use crate::core::label::Label;
use crate::core::members::Members;
use crate::core::settings::SpillSettings;
use crate::core::spills::Whose;
use tensorlend_layout::wire::{LimitKind, Refusal};

/// From here on, in percent of the pool, owners are asked to let go of segments, unless there are marks.
const SHORT_PERCENT: u8 = 50;

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
        self.spills.is_spilling()
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

    pub fn is_pool_above(&self, percent: u8) -> bool {
        is_above(self.pool.lent_bytes(), self.pool.bytes_max(), percent)
    }

    /// Whether the limits of spilling leave room for it.
    pub fn may_spill(&self, it: &Candidate) -> bool {
        let Some(limits) = &self.settings.spill else { return false };
        let owners = &self.settings.owners;
        let owner = owners.of(it.uid);
        let own = self.spills.bytes_of(|uid| owners.of(uid) == owner);
        let fits = |used: u64, most: u64| used.checked_add(it.bytes).is_some_and(|sum| sum <= most);
        fits(self.spills.bytes(), limits.bytes_max) && fits(own, limits.uid_bytes_max)
    }
}

impl Segments {
    /// Segments that nobody writes any more, in memory alone.
    pub fn spillable<'a>(context: &'a Context, members: &'a Members) -> impl Iterator<Item = Candidate> + use<'a> {
        // Of one that has ended, and may still write, nothing until it is known to be quiet.
        let clients = members.iter().filter(|(_, client)| client.is_frozen() || client.is_live());
        clients.flat_map(move |(catalogue, client)| {
            let gone = client.is_frozen();
            let is_whole =
                |s: &Segment| s.device.is_none() && s.slots.acked && matches!(s.residence, Residence::Memory);
            let whole = client.segments.iter().filter(move |(_, s)| (gone || s.released_ns.is_some()) && is_whole(s));
            whole.map(move |(&base, segment)| Candidate {
                tried_ns: segment.tried_ns,
                since_ns: context.directory.segments[segment.entry as usize].since_ns.peek(),
                whose: Whose { namespace: context.ledger.id(), catalogue, base },
                uid: client.uid,
                bytes: segment.bytes,
                let_go_ns: segment.released_ns.filter(|_| !gone),
            })
        })
    }

    /// Has a segment written to a file.
    pub fn spill(env: &mut Env, members: &mut Members, whose: Whose) {
        let segment = members.me(whose.catalogue).segments.get_mut(&whose.base).expect("it is a candidate");
        segment.residence = Residence::Leaving { lent: false };
        segment.tried_ns = Some(env.now_ns);
        env.spills.begin(whose, segment.mem);
        let (mem, bytes) = (segment.mem, segment.bytes);
        let file = env.name();
        env.effects.push(Effect::Spill { mem, file, bytes });
    }

    /// It is written, if nobody held it then; whether its memory is free now.
    pub fn spilled(
        env: &mut Env,
        context: &Context,
        members: &mut Members,
        (whose, mem): (Whose, MemId),
        file: MemId,
        written: bool,
    ) -> bool {
        let Some(client) = members.get_mut(whose.catalogue) else { return false };
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
        context.directory.count_bytes(whose.catalogue, bytes, false);
        true
    }

    /// Somebody asks for a segment that may be in a file. `None`: it is in memory, and about to be lent.
    pub fn recall(
        env: &mut Env,
        context: &Context,
        members: &mut Members,
        catalogue: u16,
        base: u32,
    ) -> Option<Answer> {
        let (id, client) = (context.ledger.id(), members.me(catalogue));
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
            return Some(Err(limit(LimitKind::PoolBytes, what, "pool.bytes_max", bytes_text(env.pool.bytes_max()))));
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
    pub fn recalled(env: &mut Env, context: &Context, members: &mut Members, whose: Whose, made: Result<(), String>) {
        let client = members.me(whose.catalogue);
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
        context.directory.count_bytes(whose.catalogue, bytes, true);
    }
}
