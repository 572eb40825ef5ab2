//! Spilled segments. While memory is short, files contain segments that no process writes any more.
//!
//! Such a segment belongs to a disconnected client, or its owner P has released it for spill. P has
//! then unmapped the segment ([`Segments::release_for_spill`]), and still frees the segment's
//! slots. When a limit of bytes stops a request (`Core::spill_for_room`), daemon D writes such a
//! segment to a file if no process holds it. No process holds a segment if no descriptor or mapping
//! of the segment exists outside D.
//!
//! A reader R that wants to read the segment then sends D a request ([`Segments::segment_of`]),
//! like every client that has not mapped the segment. R waits until the bytes are in fresh memory.
//! Spilling changes no shared word except the metrics: names, cells, records and generations stay
//! as they are. A client with a lease in a segment holds that segment.
//!
//! A file has no name, and only the system layer and the fd store have descriptors of the file. So
//! the file ends with them, however the daemon ends. To spill, the daemon stores the file before it
//! removes the memory from the fd store. To recall, the daemon stores the memory before it removes
//! the file. A daemon that finds both uses the memory ([`crate::core::recovery::restore`]), because
//! both are complete until one is removed.

use super::Segments;
use crate::core::account::Kind;
use crate::core::account::NamespaceId;
use crate::core::client::{ClientState, Residence, Segment};
use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::env::Env;
use crate::core::event::{MemId, Unmade};
use crate::core::label::Label;
use crate::core::members::Members;
use crate::core::orders::{Making, Part, Purpose};
use crate::core::outcome::{Outcome, RequestResult, Wait};
use crate::core::parts::Parts;
use crate::core::settings::{Payer, SpillSettings};
use crate::core::spills::{SpillWrite, Whose};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::Refusal;

/// Fill level of the pool, of a uid's limit or of a namespace's limit, in percent, above which owners
/// should release segments for spill. Applies if the configuration sets no water marks
/// ([`SpillSettings::marks`]).
const SHORT_PERCENT: u8 = 50;

/// A segment that may be spilled. Candidates that were never tried come first, then those tried
/// longest ago. Among equals, the one lent first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub tried_ns: Option<u64>,
    pub since_ns: u64,
    pub whose: Whose,
    pub uid: u32,
    pub bytes: u64,
    /// Time at which the living owner reported the release of the segment.
    pub let_go_ns: Option<u64>,
    /// Time at which the daemon asked clients to let go of the segment.
    pub wanted_ns: Option<u64>,
}

impl Env {
    /// Reclaims a segment of `uid` that may not be in memory. Returns `Ok` with the segment if the
    /// caller must still free its memory. Otherwise returns `Err` with only the slot records.
    pub fn free_spilled(&mut self, uid: u32, mut segment: Segment) -> Result<Segment, Part> {
        let in_file = match std::mem::take(&mut segment.residence) {
            // A file in progress is dropped when its write ends.
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

    /// Returns true if owners should release segments, because the pool, the uid or the namespace is above the low
    /// water mark.
    pub fn is_short(&self, uid: u32, namespace: NamespaceId) -> bool {
        let percent = |spill: &SpillSettings| spill.marks.map_or(SHORT_PERCENT, |marks| marks.low_percent);
        let percent = self.settings.spill.as_ref().map(percent);
        self.accounts.is_paid_by_daemon(namespace)
            && percent.is_some_and(|it| self.pool.is_above(it) || self.accounts.is_above(it, uid, namespace))
    }
}

impl Segments {
    /// Returns the segments that no process writes any more and that have no copy in a file. Segments
    /// for which clients pay stay in memory. The daemon would pay for them after a recall.
    pub fn spillable<'a>(context: &'a Context, members: &'a Members) -> impl Iterator<Item = Candidate> + use<'a> {
        // A client that has ended may still write. Segments of such a client count once they are
        // quiescent.
        let spills = context.ledger.limits().payer == Payer::Daemon;
        let clients = members.iter().filter(move |(_, client)| spills && (client.is_frozen() || client.is_live()));
        clients.flat_map(move |(number, client)| {
            let gone = client.is_frozen();
            let is_whole =
                |s: &Segment| s.device.is_none() && s.slots.acked && matches!(s.residence, Residence::Memory);
            let whole = client.segments.iter().filter(move |(_, s)| (gone || s.released_ns.is_some()) && is_whole(s));
            whole.map(move |(&base, segment)| Candidate {
                tried_ns: segment.tried_ns,
                since_ns: context.directory.segments[segment.line.index()].since_ns.peek(),
                whose: Whose { namespace: context.ledger.id(), number, base },
                uid: client.uid,
                bytes: segment.bytes,
                let_go_ns: segment.released_ns.filter(|_| !gone),
                wanted_ns: segment.wanted_ns,
            })
        })
    }

    /// Orders the write of a segment to a file.
    pub fn spill(env: &mut Env, members: &mut Members, whose: Whose) {
        let client = members.me(whose.number);
        let uid = client.uid;
        let segment = client.segments.get_mut(whose.base).expect("it is a candidate");
        segment.residence = Residence::Leaving { lent: false };
        segment.tried_ns = Some(env.clock.now_ns());
        env.spills.begin(SpillWrite { whose, mem: segment.mem });
        let (mem, bytes) = (segment.mem, segment.bytes);
        let file = env.orders.new_id();
        env.effects.push(Effect::Spill { mem, file, bytes, uid });
    }

    /// Completes the write of a segment, if no process held the segment during it. Returns true if
    /// the segment's memory is free now.
    pub fn spilled(parts: &mut Parts<'_>, SpillWrite { whose, mem }: SpillWrite, file: MemId, written: bool) -> bool {
        let Some(client) = parts.members.get_mut(whose.number) else { return false };
        let (uid, ended) = (client.uid, matches!(client.state, ClientState::Ended { .. }));
        // If the segment was freed or lent to a reader during the write, the memory stays, and the daemon deletes the file.
        let Some(segment) = client.segments.get_mut(whose.base).filter(|segment| segment.mem == mem) else {
            return false;
        };
        let Residence::Leaving { lent } = std::mem::take(&mut segment.residence) else { return false };
        // If the client ended during the write, the daemon still probes this memory, so the memory
        // stays.
        if !written || lent || ended {
            return false;
        }
        segment.residence = Residence::File { failed: None };
        segment.mem = file;
        let bytes = segment.bytes;
        Self::cancel_want_out(parts.context, segment);
        // The file must be in the fd store before the memory is removed from the store.
        parts
            .env
            .effects
            .keep(file, Label::Spilled { namespace: whose.namespace, owner: whose.number, base: whose.base });
        let kept = parts.env.accounts.charge_recovered(Some(uid), whose.namespace, Kind::Segment, 0);
        parts.env.accounts.refund(std::mem::replace(&mut segment.charge, kept));
        parts.env.release_segment(mem, bytes);
        parts.env.spills.add(uid, bytes);
        parts.context.directory.count_bytes(whose.number, bytes, false);
        true
    }

    /// Handles a request for a segment that may be in a file. Returns `None` for a segment in memory, which the caller lends.
    pub fn recall(parts: &mut Parts<'_>, number: ClientNo, base: SlotNo) -> Option<RequestResult> {
        let (id, client) = (parts.context.ledger.id(), parts.members.me(number));
        let uid = client.uid;
        let segment = client.segments.get_mut(base).expect("the caller found it");
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
            // The daemon reports the failure once. The next request tries again.
            return Some(Err(reason.refusal(bytes)));
        }
        let charge = match parts.env.accounts.charge(Some(uid), id, Kind::Segment, bytes) {
            Ok(charge) => charge,
            Err(refusal) => return Some(Err(refusal)),
        };
        let Some(released) = parts.env.pool.reserve(bytes) else {
            parts.env.accounts.refund(charge);
            return Some(Err(parts.env.pool_is_full(bytes)));
        };
        for mem in released {
            parts.env.release(mem);
        }
        let mem = parts.env.orders.order(Purpose::Spilled(Whose { namespace: id, number, base }));
        parts.env.effects.push(Effect::Recall { mem, file: segment.mem, bytes, uid });
        let making =
            Making { mem, charge, segment_bytes: Some(bytes), device: None, export: None, made: false, view: None };
        segment.residence = Residence::Returning { making };
        Some(Ok(Outcome::Later(Wait::Spilled)))
    }

    /// Completes the recall of a segment, after its memory has been made or its file could not be
    /// read.
    pub fn recalled(parts: &mut Parts<'_>, whose: Whose, made: Result<(), Unmade>) {
        let client = parts.members.me(whose.number);
        let uid = client.uid;
        let segment = client.segments.get_mut(whose.base).expect("its purpose ends when it is freed");
        let Residence::Returning { making } = std::mem::take(&mut segment.residence) else {
            unreachable!("its memory was on order");
        };
        if let Err(reason) = made {
            tracing::error!(client = whose.number.get(), "a spilled segment could not be read: {reason}");
            parts.env.spills.failures += 1;
            segment.residence = Residence::File { failed: Some(reason) };
            parts.env.uncount(making);
            return;
        }
        let bytes = segment.bytes;
        parts.env.accounts.refund(std::mem::replace(&mut segment.charge, making.charge));
        let file = std::mem::replace(&mut segment.mem, making.mem);
        parts.env.spills.remove(uid, bytes);
        // The memory must be in the fd store before the file is removed from the store.
        parts
            .env
            .effects
            .keep(making.mem, Label::Segment { namespace: whose.namespace, owner: whose.number, base: whose.base });
        parts.env.effects.push(Effect::DropFile { file });
        parts.context.directory.count_bytes(whose.number, bytes, true);
    }
}
