//! Segments and sheets: the daemon lends them to writers, shows them to readers, and takes them
//! back.

mod device;
pub mod spill;
pub mod wanted;

use super::account::{Charge, Kind, limit};
use super::client::{Residence, Segment};
use super::context::Context;
use super::devices::Devices;
use super::effect::{Effect, Lending};
use super::env::Env;
use super::label::Label;
use super::ledger::Table;
use super::length;
use super::length::SLOTS_LOG2_MAX;
use super::members::Members;
use super::orders::{Making, Order};
use super::outcome::{Lent, Outcome, RequestResult, Requester, Task, Wait, Work};
use super::parts::Parts;
use super::range::{SegmentId, SegmentSize, SlotRange};
use super::settings::Payer;
use std::collections::BTreeSet;
use tensorlend_layout::directory::WANTED_WORDS;
use tensorlend_layout::number::{ClientNo, SegmentLine, SlotNo};
use tensorlend_layout::wire::{LimitKind, Refusal, Reply};
use tensorlend_layout::word::RangeWord;

const PAGE: u64 = 4096;

/// The directory's table of segments. Each entry belongs to a client's segment or is free.
#[derive(Debug)]
pub struct Segments {
    free: Vec<SegmentLine>,
}

impl Segments {
    /// Returns a table of `lines` free entries.
    pub fn new(lines: u32) -> Self {
        Self { free: (0..lines).rev().map(SegmentLine::new).collect() }
    }

    /// Returns the table of a previous daemon's directory, without free entries. The caller adds
    /// free entries with [`Segments::put_back`].
    pub fn restored() -> Self {
        Self { free: Vec::new() }
    }

    /// Checks that each entry of the directory's table belongs to a client's segment or is free,
    /// and that the bytes add up.
    ///
    /// # Panics
    /// Panics if the check fails.
    pub fn check(&self, context: &Context, members: &Members) {
        let lines = &context.directory.segments;
        let mut bytes_lent = 0;
        let mut lines_taken = BTreeSet::new();
        for (number, client) in members.iter() {
            let mut end = SlotNo::default();
            let mut bytes = 0;
            for (&base, segment) in client.segments.iter() {
                assert!(base >= end, "segments of {number} overlap at slot {base}");
                end = base + (1 << segment.slots_log2);
                assert!(lines_taken.insert(segment.line), "line {} is one segment's", segment.line);
                let range = RangeWord::new(segment.slots_log2, number, base);
                assert_eq!(lines[segment.line.index()].range.peek(), range.0, "line {} names it", segment.line);
                let is_host = segment.device.is_none();
                if is_host && segment.residence.is_in_memory() {
                    bytes += segment.bytes;
                }
                let charged = if is_host && !segment.residence.is_in_memory() { 0 } else { segment.bytes };
                assert_eq!(segment.charge.bytes(), charged, "the charge of the segment at slot {base} of {number}");
                let is_wanted = context.directory.head().wants_out(segment.line);
                assert!(is_wanted || segment.wanted_ns.is_none(), "line {} is wanted out of memory", segment.line);
                let is_alone = lines.len() <= 64 * WANTED_WORDS;
                assert!(!is_alone || is_wanted == segment.wanted_ns.is_some(), "nothing wants line {}", segment.line);
            }
            assert_eq!(context.directory.entry(number).bytes.peek(), bytes, "bytes lent to {number}");
            bytes_lent += bytes;
        }
        assert_eq!(context.directory.head().bytes_lent.peek(), bytes_lent, "bytes lent to all");
        assert_eq!(self.free.len() + lines_taken.len(), lines.len(), "each line is free or taken");
        for line in &self.free {
            assert_eq!(lines[line.index()].range.peek(), 0, "line {line} is free");
            let is_alone = lines.len() <= 64 * WANTED_WORDS;
            assert!(!is_alone || !context.directory.head().wants_out(*line), "line {line} has nothing to want");
        }
    }

    /// Adds a free entry.
    pub fn put_back(&mut self, line: SegmentLine) {
        self.free.push(line);
    }

    /// Sorts the free entries so that the lowest is used first.
    pub fn lowest_first(&mut self) {
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }
}

impl Segments {
    /// Handles a request for a segment.
    pub fn segment(
        &mut self,
        parts: &mut Parts<'_>,
        Requester { conn, number }: Requester,
        SegmentSize { bytes, log2 }: SegmentSize,
    ) -> RequestResult {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(PAGE) else {
            return Err(Refusal::Bad("no machine has that many bytes".into()));
        };
        // The daemon raises a length just below the ordinary one to the ordinary length. A spare of
        // that length may be ready, and the daemon can lend the segment again later.
        let ordinary = parts.env.settings.segment_bytes;
        let large = bytes.max(ordinary).checked_next_multiple_of(parts.env.settings.segment_unit);
        let bytes = if bytes > ordinary / 8 * 7 { large.unwrap_or(bytes) } else { bytes };
        let base = self.range_for_segment(parts.context, parts.members, number, log2)?;
        let uid = parts.members[number].uid;
        let charge = parts.env.accounts.charge(Some(uid), parts.context.ledger.id(), Kind::Segment, bytes)?;
        let (slots_bytes, slots_charge) = match Self::charge_slots(parts.env, parts.context, uid, log2) {
            Ok(charged) => charged,
            Err(refusal) => {
                parts.env.accounts.refund(charge);
                return Err(refusal);
            }
        };
        let Some((mem, made)) = parts.env.order_segment(conn, parts.context.ledger.borrower(uid), bytes) else {
            parts.env.accounts.refund(charge);
            parts.env.accounts.refund(slots_charge);
            return Err(parts.env.pool_is_full(bytes));
        };
        let order = Order::slots(slots_bytes, SlotRange { owner: number, base, log2 }, conn);
        let slots = parts.env.orders.sheet(&mut parts.env.effects, order, slots_charge);
        let segment = Making { mem, charge, segment_bytes: Some(bytes), device: None, export: None, made, view: None };
        Ok(Outcome::Working(Work { task: Task::Segment { base, log2 }, making: vec![segment, slots] }))
    }

    /// Returns the first slot of a new segment of this client, if the client may have another segment.
    pub fn range_for_segment(
        &mut self,
        context: &Context,
        members: &Members,
        number: ClientNo,
        log2: u8,
    ) -> Result<SlotNo, Refusal> {
        if log2 > SLOTS_LOG2_MAX {
            return Err(Refusal::Bad(format!("a segment has at most 2^{SLOTS_LOG2_MAX} slots, not 2^{log2}")));
        }
        // A client that has published keeps its number when it disconnects. The last eighth of the
        // numbers is for clients that have not published. They can still read and delete.
        let reserved = context.ledger.limits().members_max / 8;
        let first = members[number].segments.is_empty();
        if first && members.len() as u64 > u64::from(context.ledger.limits().members_max - reserved) {
            return Err(context.ledger.limit(
                LimitKind::Members,
                "the number of clients that may publish",
                "members_max",
                context.ledger.limits().members_max,
            ));
        }
        context.ledger.check_table_share(Table::Segments, members[number].uid, members.segment_uids())?;
        if self.free.is_empty() {
            return Err(Self::full(context));
        }
        let Some(base) = members[number].segments.free_range(log2) else {
            let why = "no range of 2^{log2} slot numbers is free among this client's 2^24: return segments";
            return Err(Refusal::Bad(why.replace("{log2}", &log2.to_string())));
        };
        Ok(base)
    }
}

impl Segments {
    /// Charges the records of 2^`log2` slots. Returns the number of their bytes and the charge.
    pub fn charge_slots(env: &mut Env, context: &Context, uid: u32, log2: u8) -> Result<(u64, Charge), Refusal> {
        let bytes = length::slots(1 << log2);
        Ok((bytes, env.accounts.charge_sheet(uid, context.ledger.id(), bytes)?))
    }

    /// Completes a request for a segment, after the segment and its slots have been made.
    pub fn segment_made(
        &mut self,
        parts: &mut Parts<'_>,
        devices: &mut Devices,
        range: SlotRange,
        work: Vec<Making>,
    ) -> RequestResult {
        let SlotRange { owner: number, base, log2 } = range;
        let line = match self.take_line(parts, number) {
            Ok(line) => line,
            Err(refusal) => {
                for making in work {
                    parts.env.abandon(making);
                }
                return Err(refusal);
            }
        };
        let [segment, slots]: [Making; 2] = work.try_into().expect("a segment and its slots");
        if segment.device.is_some() {
            return Ok(Self::device_segment_made(parts, devices, range, [segment, slots], line));
        }
        let bytes = segment.segment_bytes.expect("it is a segment");
        let segment_entry = &parts.context.directory.segments[line.index()];
        segment_entry.bytes.put(bytes);
        segment_entry.since_ns.put(parts.env.clock.now_ns());
        segment_entry.place.put(0);
        parts.context.directory.head().want_out(line, false);
        tensorlend_layout::crash_point!("daemon: range about to be lent");
        segment_entry.range.set(RangeWord::new(log2, number, base).0);
        tensorlend_layout::crash_point!("daemon: range lent");
        parts.context.directory.count_bytes(number, bytes, true);
        let geometry = parts.context.directory.entry(number).geometry.peek();
        let lend = vec![(segment.mem, Lending::Write), (slots.mem, Lending::Write)];
        let (namespace, owner) = (parts.context.ledger.id(), number);
        let short = parts.env.is_short(parts.members[number].uid, namespace);
        parts.env.effects.keep(segment.mem, Label::Segment { namespace, owner, base });
        parts.env.effects.keep(slots.mem, Label::Slots { namespace, owner, base });
        let client = parts.members.me(number);
        client.segments.insert(base, segment.into_segment(log2, slots.into_part(), line));
        client.lent_ns = parts.env.clock.now_ns();
        Ok(Outcome::Lend(
            Reply::Segment { bytes, base, slots_log2: log2, geometry, short, in_file: false },
            lend,
            Lent::Segment(base),
        ))
    }

    /// Takes a free line of the directory's table for a segment of this client. Other clients may have taken lines
    /// since the order of the segment.
    fn take_line(&mut self, parts: &Parts<'_>, number: ClientNo) -> Result<SegmentLine, Refusal> {
        let ledger = &parts.context.ledger;
        ledger.check_table_share(Table::Segments, parts.members[number].uid, parts.members.segment_uids())?;
        self.free.pop().ok_or_else(|| Self::full(parts.context))
    }

    /// Returns the refusal for a full table of segments.
    fn full(context: &Context) -> Refusal {
        let most = context.ledger.limits().segments_max;
        context.ledger.limit(LimitKind::Segments, "the number of segments", "segments_max", most)
    }

    /// Handles a request of `asker` to map a client's segment.
    pub fn segment_of(
        parts: &mut Parts<'_>,
        devices: &mut Devices,
        asker: ClientNo,
        number: ClientNo,
        slot: SlotNo,
    ) -> RequestResult {
        let client = parts.members.client(number)?;
        let missing = || Refusal::NotFound(format!("segment with slot {slot} of client {number}"));
        let (base, segment) = client.segment_of(slot).ok_or_else(missing)?;
        // A writer publishes in a segment only after it has mapped the segment.
        if !segment.slots.acked {
            // A client of the previous daemon may have mapped the segment and published in it
            // before the previous daemon received the acknowledgement.
            return if client.is_disconnected() { Ok(Outcome::Later(Wait::ack(number))) } else { Err(missing()) };
        }
        if segment.device.is_some() {
            let lend = vec![(segment.mem, Lending::Device), (segment.slots.mem, Lending::Read)];
            parts.members.check_watched(asker)?;
            let reply = Self::describe_on_device(parts, number, base).expect("seen above");
            let is_new = devices.lent(reply.lending, Some(asker));
            parts.members.show(parts.context, number, asker);
            let lent = if is_new { Lent::OnDevice(reply.lending) } else { Lent::Nothing };
            return Ok(Outcome::Lend(Reply::DeviceSegment(reply), lend, lent));
        }
        if let Some(result) = Self::recall(parts, number, base) {
            return result;
        }
        Self::cancel_want_out(parts.context, parts.members.me(number).segments.get_mut(base).expect("found above"));
        let client = parts.members.client(number)?;
        let uid = client.uid;
        let (base, segment) = client.segment_of(slot).ok_or_else(missing)?;
        let reply = Reply::Segment {
            bytes: segment.bytes,
            base,
            slots_log2: segment.slots_log2,
            geometry: parts.context.directory.entry(number).geometry.peek(),
            short: parts.env.is_short(uid, parts.context.ledger.id()),
            in_file: false,
        };
        let lend = vec![(segment.mem, Lending::Read), (segment.slots.mem, Lending::Read)];
        parts.members.show(parts.context, number, asker);
        Ok(Outcome::Lend(reply, lend, Lent::Nothing))
    }

    /// Handles a request of `asker` to map the records of a host segment's slots. The segment's
    /// bytes do not move, even if they are in a file.
    pub fn slots_of(parts: &mut Parts<'_>, asker: ClientNo, number: ClientNo, slot: SlotNo) -> RequestResult {
        let client = parts.members.client(number)?;
        let missing = || Refusal::NotFound(format!("segment with slot {slot} of client {number}"));
        let (base, segment) = client.segment_of(slot).ok_or_else(missing)?;
        if segment.device.is_some() {
            return Err(missing());
        }
        // A writer publishes in a segment only after it has mapped the segment.
        if !segment.slots.acked {
            return if client.is_disconnected() { Ok(Outcome::Later(Wait::ack(number))) } else { Err(missing()) };
        }
        let reply = Reply::Segment {
            bytes: segment.bytes,
            base,
            slots_log2: segment.slots_log2,
            geometry: parts.context.directory.entry(number).geometry.peek(),
            short: parts.env.is_short(client.uid, parts.context.ledger.id()),
            // A segment that a worker is writing to a file counts as in a file. A request for such
            // a segment's bytes would cancel the spill.
            in_file: !matches!(segment.residence, Residence::Memory),
        };
        let lend = vec![(segment.slots.mem, Lending::Read)];
        parts.members.show(parts.context, number, asker);
        Ok(Outcome::Lend(reply, lend, Lent::Nothing))
    }
}

impl Segments {
    /// Handles a request to return a segment.
    pub fn return_segment(
        &mut self,
        parts: &mut Parts<'_>,
        devices: &mut Devices,
        number: ClientNo,
        base: SlotNo,
    ) -> RequestResult {
        let Some(segment) = parts.members.me(number).segments.get(&base) else {
            return Err(Refusal::NotFound(format!("segment of yours with first slot {base}")));
        };
        let slots = base..base + (1 << segment.slots_log2);
        if parts.members.leased(number).iter().any(|slot| slots.contains(slot)) {
            return Err(Refusal::Bad(format!("the segment with first slot {base} is still leased")));
        }
        let segment = parts.members.me(number).segments.remove(base).expect("it was there");
        let whose = parts.members[number].former_writer(number);
        self.unlist(parts.context, number, &segment);
        if segment.device.is_some() {
            let slots = devices.give_up(parts, number, base, segment);
            parts.env.orphan_part(whose, slots);
            return Ok(Outcome::Reply(Reply::Done));
        }
        // The owner may still have the records mapped, whether or not the bytes are in a file.
        match parts.env.free_spilled(whose.uid, segment) {
            Ok(Segment { mem, bytes, charge, slots, .. }) => {
                parts.env.orphan_part(whose, slots);
                parts.env.orphan(whose, mem, charge, Some(bytes));
            }
            Err(slots) => parts.env.orphan_part(whose, slots),
        }
        Ok(Outcome::Reply(Reply::Done))
    }

    /// Handles an owner's report that it has unmapped a segment. The kernel confirms this when the
    /// daemon spills the segment.
    pub fn release_for_spill(parts: &mut Parts<'_>, number: ClientNo, base: SlotNo) -> RequestResult {
        if parts.env.settings.spill.is_none() {
            return Err(limit(LimitKind::Spill, "the memory on disk", "spill.directory", "0 bytes"));
        }
        if parts.context.ledger.limits().payer == Payer::Client {
            let setting = format!("{}.charge", parts.context.ledger.setting());
            return Err(limit(LimitKind::Spill, "the memory on disk", setting, "0 bytes"));
        }
        let Some(segment) = parts.members.me(number).segments.get_mut(base).filter(|it| it.device.is_none()) else {
            return Err(Refusal::NotFound(format!("segment of yours in host memory with first slot {base}")));
        };
        if segment.released_ns.is_none() {
            segment.released_ns = Some(parts.env.clock.now_ns());
            parts.env.spills.note_spillable();
        }
        Ok(Outcome::Reply(Reply::Done))
    }

    /// Ends the validity of a segment's slot numbers. The memory and its charge stay with the
    /// caller.
    fn unlist(&mut self, context: &Context, number: ClientNo, segment: &Segment) {
        // The range changes before the geometry. So a reader R that sees the new geometry sees that
        // this segment is not lent any more. If R first reads a geometry and then finds the segment
        // lent, R may store the mapping under that geometry. Both words change before daemon D
        // lends the numbers again.
        context.directory.segments[segment.line.index()].range.set(0);
        tensorlend_layout::crash_point!("daemon: range taken back");
        context.directory.entry(number).geometry.add(1);
        context.directory.head().want_out(segment.line, false);
        self.free.push(segment.line);
        if segment.device.is_none() && segment.residence.is_in_memory() {
            context.directory.count_bytes(number, segment.bytes, false);
        }
    }

    /// Reclaims a segment of a disconnected client. The segment is quiescent, or must end in any
    /// case.
    pub fn free_segment(
        &mut self,
        parts: &mut Parts<'_>,
        devices: &mut Devices,
        SegmentId { owner: number, base }: SegmentId,
        quiescent: bool,
    ) {
        let segment = parts.members.me(number).segments.remove(base).expect("it is there");
        self.unlist(parts.context, number, &segment);
        if segment.device.is_some() {
            let slots = devices.give_up(parts, number, base, segment);
            parts.env.release_part(slots);
            return;
        }
        let found = parts.env.free_spilled(parts.members[number].uid, segment);
        let Segment { mem, bytes, charge, slots, .. } = match found {
            Ok(segment) => segment,
            Err(slots) => return parts.env.release_part(slots),
        };
        parts.env.accounts.refund(charge);
        parts.env.release_part(slots);
        if quiescent && parts.env.may_lend_again(parts.context.ledger.id()) {
            let uid = parts.members[number].uid;
            parts.env.effects.push(Effect::Forget { mem });
            parts.env.keep_idle(mem, bytes, parts.context.ledger.borrower(uid));
        } else {
            parts.env.release_segment(mem, bytes);
        }
    }
}
