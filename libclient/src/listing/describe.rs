//! Descriptions of values, read only from the records of their slots.
//!
//! A record describes a plain tensor completely. This code neither maps nor requests the segment with the elements,
//! so a spilled value stays in its file. Like a reader, it takes a lease while it copies the record. It needs no
//! lease if the daemon has read the record: see [`Describer::prepare`].

mod batch;

use crate::error::{Error, Result};
use crate::lease::by_name::{CellRoute, SeenCell};
use crate::lease::take::{Miss, hold};
use crate::listing::{Content, Info, InfoKind, Origin, Spilled, info_of};
use crate::peers::Peer;
use crate::segment::mapping::records;
use crate::session::Session;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::dataset::CHAIN_MAX;
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::raw::Records;
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::wire::{NameAt, Refusal, Reply, Request, ValueAt};
use tensorlend_layout::word::{Cell, RangeWord, SLOT_NONE};
use tensorlend_os::memfd::Access;

/// Maximum number of attempts on a name that changes. After these, the client leases the value instead.
const ATTEMPTS_MAX: usize = 64;

/// A lent segment as the directory lists it: its row there, its range word, and the time of the loan.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Lent {
    at: usize,
    range: u64,
    since_ns: u64,
}

impl Lent {
    /// Returns all lent segments, in the order in which [`find`] searches.
    fn all(session: &Session) -> Vec<Self> {
        let mut lines = Vec::new();
        for (at, entry) in session.directory.segments.iter().enumerate() {
            let (range, since_ns) = (entry.range.read(), entry.since_ns.peek());
            if RangeWord(range).is_lent() && entry.range.read() == range {
                lines.push(Self { at, range, since_ns });
            }
        }
        lines.sort_unstable_by_key(|lent| (RangeWord(lent.range).owner(), RangeWord(lent.range).base()));
        lines
    }
}

/// The description of a name.
pub enum Described {
    Info {
        info: Box<Info>,
        /// True if the value's bytes are in a file.
        in_file: bool,
    },
    Absent,
    /// The value's record is incomplete (a dataset, long metadata, a tensor on a device), so the client must lease
    /// the value.
    Lease,
    /// The value's record is incomplete, and the rest is in a file.
    InFile(Box<Spilled>),
}

/// A value with an incomplete record.
struct Doubtful {
    spilled: Spilled,
    owner: ClientNo,
    /// The next slot of the value's chain, which has the rest of the description.
    next: SlotNo,
    in_file: bool,
}

/// Describes names one after the other. Requests each sheet only once, even if the sheet is unavailable.
pub struct Describer<'s> {
    session: &'s Arc<Session>,
    /// True if spilled values stay in their files. Leasing them would load them into memory.
    glances: bool,
    /// The lent segments, sorted by owner and first slot.
    lent: Option<Vec<Lent>>,
    records: HashMap<Lent, Option<Records<SlotRecord>>>,
    /// Segments whose bytes are in files, as the daemon reported with their records.
    in_files: HashSet<Lent>,
    /// Parts of members' cells that do not exist.
    missing: HashSet<(ClientNo, u64, u8)>,
    /// The contents of names that the daemon has read.
    said: HashMap<NameAt, ValueAt>,
}

/// The slot records of a segment.
struct SegmentRecords {
    records: Records<SlotRecord>,
    /// The segment's first slot number.
    base: SlotNo,
    bytes: u64,
    /// The loan for which the daemon sent the records. `None`: the segment is mapped.
    lent: Option<Lent>,
}

struct Bytes {
    count: u64,
    /// True if the bytes are in a file.
    in_file: bool,
}

enum Attempt {
    Done(Described),
    Doubtful(Box<Doubtful>),
    Again,
    Damaged(BadTensor),
    Cells(ClientNo, u64, u8),
    Records(ClientNo, SlotNo),
    Full,
    Ended,
}

impl<'s> Describer<'s> {
    pub fn new(session: &'s Arc<Session>, glances: bool) -> Self {
        Self {
            session,
            glances,
            lent: None,
            records: HashMap::new(),
            in_files: HashSet::new(),
            missing: HashSet::new(),
            said: HashMap::new(),
        }
    }

    /// Describes the value of a name.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a name that a faulty client published; the errors of the session.
    pub fn describe(&mut self, name: &str) -> Result<Described> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(name)? {
                Attempt::Done(described) => return Ok(described),
                Attempt::Doubtful(it) => {
                    let in_file = it.in_file || self.is_any_in_file(it.owner, it.next)?;
                    return Ok(if in_file { Described::InFile(Box::new(it.spilled)) } else { Described::Lease });
                }
                Attempt::Again => std::hint::spin_loop(),
                Attempt::Damaged(cause) => return Err(damaged(cause)),
                Attempt::Cells(owner, member, part) => {
                    if self.missing.contains(&(owner, member, part)) {
                        return Err(damaged(BadTensor::Record));
                    }
                    if !self.session.peers().fetch_cells(owner, part)? {
                        self.missing.insert((owner, member, part));
                    }
                }
                Attempt::Records(owner, slot) => match self.lent_with(owner, slot) {
                    // The daemon lends a segment before its owner can publish in it. So an honest owner's cell always
                    // leads to a segment.
                    None => return Err(damaged(BadTensor::Segment)),
                    Some(lent) if self.is_on_device(lent) => return Ok(Described::Lease),
                    Some(lent) => match self.records.get(&lent) {
                        Some(None) => return Err(damaged(BadTensor::Segment)),
                        // The client has the records, but the segment has another owner now.
                        Some(Some(_)) => self.lent = None,
                        None => self.fetch(lent)?,
                    },
                },
                Attempt::Full => return Err(Error::Leases(self.session.shards.held())),
                Attempt::Ended => return Err(self.session.control.ended("list names", Error::SessionEnded)),
            }
        }
        Ok(Described::Lease)
    }

    fn attempt(&mut self, name: &str) -> Result<Attempt> {
        let session = self.session;
        let Some(found) = CellRoute::find(session, name.as_bytes())? else {
            return Ok(Attempt::Done(Described::Absent));
        };
        if let Some(attempt) = self.said(name, &found) {
            return Ok(attempt);
        }
        let owner = found.owner;
        let Some(entry) = session.directory.members.get(owner.index()) else { return Ok(Attempt::Again) };
        let member = entry.member.read();
        let guard = session.shards.epoch_guard();
        let SeenCell { peer, word, cell: seen } = match found.read(session, &guard) {
            Ok(seen) => seen,
            Err(Miss::Cells(part)) => return Ok(Attempt::Cells(owner, member, part)),
            Err(_) => return Ok(Attempt::Again),
        };
        if !seen.is_value() {
            return Ok(if found.is_unchanged() { Attempt::Done(Described::Absent) } else { Attempt::Again });
        }
        let geometry = entry.geometry.read();
        let records = self.mapped(peer, seen, geometry).or_else(|| self.fetched(owner, seen));
        let Some(SegmentRecords { records, base, bytes, lent }) = records else {
            return Ok(if found.is_unchanged() && word.peek() == seen.0 {
                Attempt::Records(owner, seen.slot())
            } else {
                Attempt::Again
            });
        };
        let words = [(found.route.word, found.route.seen), (word, seen.0)];
        let stored = match hold(session, &guard, owner, seen.lease(owner), &words, geometry) {
            Ok(stored) => stored,
            Err(Miss::Full) => return Ok(Attempt::Full),
            Err(Miss::Ended) => return Ok(Attempt::Ended),
            Err(_) => return Ok(Attempt::Again),
        };
        // The slot is leased, so from here on the daemon does not withdraw this segment.
        let is_it = lent.is_none_or(|lent| self.is_lent(lent));
        let record = is_it.then(|| records.get((seen.slot() - base) as usize).map(SlotRecord::copy));
        session.shards.release(stored);
        drop(guard);
        let Some(record) = record else { return Ok(Attempt::Records(owner, seen.slot())) };
        let Some(record) = record else { return Ok(Attempt::Damaged(BadTensor::Segment)) };
        let in_file = lent.is_some_and(|lent| self.in_files.contains(&lent));
        Ok(match self.read(name, &found, seen, &record, Bytes { count: bytes, in_file }) {
            Ok(attempt) => attempt,
            Err(cause) => Attempt::Damaged(cause),
        })
    }

    /// Returns whether the bytes of a slot, or of a later slot in its chain, are in a file. This is a hint: no lease keeps
    /// these slots.
    fn is_any_in_file(&mut self, owner: ClientNo, first: SlotNo) -> Result<bool> {
        let mut slot = first;
        for _ in 0..CHAIN_MAX {
            if slot == SLOT_NONE {
                break;
            }
            let Some(lent) = self.lent_with(owner, slot).filter(|lent| !self.is_on_device(*lent)) else { break };
            if !self.records.contains_key(&lent) {
                self.fetch(lent)?;
            }
            if self.in_files.contains(&lent) {
                return Ok(true);
            }
            let Some(Some(records)) = self.records.get(&lent) else { break };
            let record = records.get((slot - RangeWord(lent.range).base()) as usize).map(SlotRecord::copy);
            let Some(Ok(info)) = record.map(|record| SlotInfo::unpack(&record)) else { break };
            slot = info.next;
        }
        Ok(false)
    }

    /// Describes a value from its record.
    fn read(
        &self,
        name: &str,
        found: &CellRoute<'_>,
        seen: Cell,
        record: &[u64; 16],
        Bytes { count: segment_bytes, in_file }: Bytes,
    ) -> std::result::Result<Attempt, BadTensor> {
        let info = SlotInfo::unpack(record)?;
        info.check(seen.generation(), segment_bytes)?;
        if info.device.kind() == Device::cuda(0).kind() {
            return Err(BadTensor::Record);
        }
        let origin = Origin { owner: found.owner, version: found.version(seen) };
        if info.kind != SlotKind::Tensor || info.extended {
            return match info.kind {
                _ if !self.glances => Ok(Attempt::Done(Described::Lease)),
                SlotKind::Extension => Err(BadTensor::Record),
                kind => {
                    let spilled = self.spilled(name, origin, &info, kind);
                    Ok(Attempt::Doubtful(Box::new(Doubtful { spilled, owner: origin.owner, next: info.next, in_file })))
                }
            };
        }
        let tensor = Tensor::of(&info, info.data_bytes, None, ())?;
        let info = info_of(self.session, name, origin, Content::of_tensor(&tensor, None), None);
        Ok(Attempt::Done(Described::Info { info: Box::new(info), in_file }))
    }

    /// Describes a spilled value from its record.
    fn spilled(&self, name: &str, origin: Origin, info: &SlotInfo, kind: SlotKind) -> Spilled {
        let is_tensor = kind == SlotKind::Tensor;
        // The shape and the strides are in the file.
        let content = Content {
            kind: InfoKind::Dataset(Vec::new()),
            nbytes: 0,
            metadata_bytes: info.metadata_bytes as usize,
            timestamp_ns: info.timestamp_ns,
        };
        let said = info_of(self.session, name, origin, content, None);
        Spilled {
            name: said.name,
            dtype: is_tensor.then_some(info.dtype),
            ndim: is_tensor.then_some(usize::from(info.ndim)),
            bytes: is_tensor.then_some(info.data_bytes),
            metadata_bytes: said.metadata_bytes,
            timestamp_ns: said.timestamp_ns,
            pid: said.pid,
            uid: said.uid,
            label: said.label,
            alive: said.alive,
            version: said.version,
            lifetime: said.lifetime,
        }
    }

    fn mapped(&self, peer: Option<&Peer>, seen: Cell, geometry: u64) -> Option<SegmentRecords> {
        let segment = peer?.segment(seen.slot(), geometry, &self.session.directory)?;
        // A record on a device is incomplete, so the client must lease the value.
        let on_host = segment.elsewhere.is_none();
        on_host.then(|| SegmentRecords {
            records: segment.records.clone(),
            base: segment.base,
            bytes: segment.map.bytes() as u64,
            lent: None,
        })
    }

    /// Returns records that this client requested without their segment.
    fn fetched(&self, owner: ClientNo, seen: Cell) -> Option<SegmentRecords> {
        let lent = find(self.lent.as_ref()?, owner, seen.slot())?;
        let records = self.records.get(&lent)?.clone()?;
        let bytes = self.session.directory.segments[lent.at].bytes.peek();
        Some(SegmentRecords { records, base: RangeWord(lent.range).base(), bytes, lent: Some(lent) })
    }

    /// Returns whether the daemon still lends the segment as this line describes it.
    fn is_lent(&self, lent: Lent) -> bool {
        let line = &self.session.directory.segments[lent.at];
        line.range.read() == lent.range && line.since_ns.peek() == lent.since_ns
    }

    fn is_on_device(&self, lent: Lent) -> bool {
        self.session.directory.segments[lent.at].place.peek() & 0xFF != 0
    }

    /// Returns the segment that holds a slot.
    fn lent_with(&mut self, owner: ClientNo, slot: SlotNo) -> Option<Lent> {
        let known = self.lent.as_ref().and_then(|lent| find(lent, owner, slot));
        if let Some(known) = known.filter(|known| self.is_lent(*known)) {
            return Some(known);
        }
        let lines = Lent::all(self.session);
        let found = find(&lines, owner, slot);
        self.lent = Some(lines);
        found
    }

    /// Requests the records of a segment.
    fn fetch(&mut self, lent: Lent) -> Result<()> {
        let range = RangeWord(lent.range);
        let request = Request::SlotsOf { owner: range.owner(), slot: range.base() };
        let records = match self.session.control.ask(&request, "read slot records", "") {
            Ok(mut answer) => {
                let Reply::Segment { base, slots_log2, in_file, .. } = answer.reply else { return answer.unexpected() };
                let slots = answer.descriptor()?;
                let mapped = records(&slots, Access::Read, Magic::Slots, range.slots() as usize);
                answer.acknowledge()?;
                let is_it = base == range.base() && 1u32.checked_shl(u32::from(slots_log2)) == Some(range.slots());
                if !is_it || !self.is_lent(lent) {
                    // The daemon has just withdrawn the segment, and its slot numbers may belong to another owner
                    // now.
                    self.lent = None;
                    return Ok(());
                }
                if in_file {
                    self.in_files.insert(lent);
                }
                Some(mapped?)
            }
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => None,
            Err(e) => return Err(e),
        };
        self.records.insert(lent, records);
        Ok(())
    }
}

fn find(lent: &[Lent], owner: ClientNo, slot: SlotNo) -> Option<Lent> {
    let place = |lent: &Lent| (RangeWord(lent.range).owner(), RangeWord(lent.range).base());
    let after = lent.partition_point(|it| place(it) <= (owner, slot));
    let found = lent[after.checked_sub(1)?];
    let range = RangeWord(found.range);
    (range.owner() == owner && slot - range.base() < range.slots()).then_some(found)
}
