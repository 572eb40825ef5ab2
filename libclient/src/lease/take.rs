//! The steps to a lease, for one value at a time. [`batch`](super::batch) takes each step for many values together.
//!
//! 1. [`Seen::read`]: read the word that holds the value, and whether the cell's record describes it.
//! 2. [`Seen::place`]: find the value's segment.
//! 3. [`hold`]: store the lease, execute a fence, and check again every word on which the lease depends.
//! 4. [`Placed::description`]: read the description, or else the slot's record: [`Placed::summary`], or [`contents`] if no
//!    summary describes it.

use crate::alloc::heap::Wanted;
use crate::alloc::release;
use crate::error::{Error, Result};
use crate::lease::lease::{Held, Lease};
use crate::link::Link;
use crate::link::epoch::EpochGuard;
use crate::link::shards::LeaseEntry;
use crate::peers::{Peer, PeerSegment};
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::catalogue::{CellRecord, SlotRecord, cell_place};
use tensorlend_layout::leases;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::stream::{HeaderSummary, RingEntry};
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, LeaseWord, OwnerWord, Word};

pub enum Leased {
    /// A complete tensor.
    Tensor(Lease),
    /// A value of more than one slot, whose parts the caller must read.
    Other(Box<Parts>),
}

impl Leased {
    pub fn held(&self) -> &Held {
        match self {
            Self::Tensor(lease) => lease.held(),
            Self::Other(parts) => &parts.held,
        }
    }
}

/// A lease, and the contents of its slot.
pub struct Parts {
    pub held: Held,
    /// The slot's record, copied once.
    pub info: SlotInfo,
    /// The slot's bytes. `None`: the bytes are on a device.
    pub bytes: Option<Bytes>,
}

/// The location of the value's word.
#[derive(Clone, Copy)]
pub enum At<'a> {
    /// A cell of the catalogue.
    Cell(CellNo),
    /// A ring's entry, with the cell and the header summary that the reader read from this entry.
    Entry(&'a RingEntry, Cell, HeaderSummary),
}

/// The word that led to a cell or an entry. While this word is unchanged, the route is valid.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    pub word: &'a Word,
    pub seen: u64,
    /// The owner word that is part of the value's version.
    pub owner_word: u64,
    /// The epoch of the client to which the word belongs. 0 for an owner word, which changes with every new owner.
    pub member: u64,
}

impl<'a> Route<'a> {
    /// Returns a route through an owner word of the directory.
    #[inline]
    pub fn owner_word(word: &'a Word, seen: OwnerWord) -> Self {
        Self { word, seen: seen.0, owner_word: seen.0, member: 0 }
    }
}

/// The outcome of an attempt to lease a value.
pub enum Leasing {
    Held(Leased),
    Absent,
    /// The owner word has changed, so the caller must start again from the name.
    Moved,
}

/// The reason why an attempt gave no lease.
pub enum Miss {
    /// A word that led to the value has changed, so the caller must find the name again.
    Moved,
    /// The cell holds no value.
    Absent,
    /// This client has not mapped this part of the cells.
    Cells(u8),
    /// This client has not mapped the segment with this slot.
    Segment(SlotNo),
    /// Every entry of the lease table is taken.
    Full,
    /// The daemon has ended this session.
    Ended,
    /// The owner's record is not a valid tensor.
    Damaged(BadTensor),
}

/// The result of a step to a lease.
pub type Attempt<T> = std::result::Result<T, Miss>;

/// The first step's result: a word that may hold a value.
pub struct Seen<'s> {
    pub peer: &'s Peer,
    pub owner: ClientNo,
    pub route: Route<'s>,
    pub word: &'s Word,
    pub cell: Cell,
    /// The cell's record, if it describes the value.
    pub described: Option<&'s CellRecord>,
}

/// The second step's result: the location of a value, and the words on which its lease depends.
pub struct Placed<'s> {
    pub owner: ClientNo,
    pub route: Route<'s>,
    pub word: &'s Word,
    pub cell: Cell,
    pub peer: &'s Peer,
    /// The geometry word under which the reader found the segment.
    pub geometry: u64,
    pub segment: &'s Arc<PeerSegment>,
    /// The cell's record, if it described the value before the lease.
    pub described: Option<&'s CellRecord>,
}

/// Returns the sheets of the client that has a client number, if this client has mapped them. `member` is the client's
/// epoch, or 0 if the caller's route shows the end of a client by another word.
#[inline(always)]
pub fn peer_of<'s>(session: &'s Session, guard: &'s EpochGuard<'_>, owner: ClientNo, member: u64) -> Attempt<&'s Peer> {
    let Some(entry) = session.directory.members.get(owner.index()) else { return Err(Miss::Moved) };
    let life = entry.member.read();
    if member != 0 && member != life {
        return Err(Miss::Moved);
    }
    let peer = session.peers().get(guard, owner).filter(|p| p.is_of_epoch(life));
    peer.ok_or(Miss::Cells(0))
}

impl<'s> Seen<'s> {
    /// Reads the word at `at` in `catalogue`.
    #[inline(always)]
    pub fn read(
        session: &'s Session,
        guard: &'s EpochGuard<'_>,
        owner: ClientNo,
        route: Route<'s>,
        at: At<'s>,
    ) -> Attempt<Self> {
        let peer = peer_of(session, guard, owner, route.member)?;
        let (word, cell, described) = match at {
            At::Cell(cell) => match peer.record(cell) {
                Some(record) => {
                    let value = Cell(record.cell.read());
                    (&record.cell, value, record.describes(value).then_some(record))
                }
                None => return Err(Miss::Cells(cell_place(cell).0)),
            },
            At::Entry(entry, seen, _) => (&entry.cell, seen, None),
        };
        Ok(Self { peer, owner, route, word, cell, described })
    }

    /// Finds the value's segment.
    #[inline(always)]
    pub fn place(self, session: &'s Session) -> Attempt<Placed<'s>> {
        let Self { peer, owner, route, word, cell, described } = self;
        if !cell.is_value() {
            // A cell emptied by a former owner's housekeeping looks like a deletion. It is a deletion only if the
            // owner word is unchanged.
            return Err(if route.word.peek() == route.seen { Miss::Absent } else { Miss::Moved });
        }
        let geometry = session.directory.members[owner.index()].geometry.read();
        let Some(segment) = peer.segment(cell.slot(), geometry, &session.directory) else {
            return Err(Miss::Segment(cell.slot()));
        };
        Ok(Placed { owner, route, word, cell, peer, geometry, segment, described })
    }
}

impl<'s> Placed<'s> {
    #[inline(always)]
    pub fn lease(&self) -> LeaseWord {
        self.cell.lease(self.owner)
    }

    /// Returns the words that led to the value, with their contents.
    #[inline(always)]
    pub fn words(&self) -> [(&Word, u64); 2] {
        [(self.route.word, self.route.seen), (self.word, self.cell.0)]
    }

    #[inline(always)]
    pub fn record(&self) -> &'s SlotRecord {
        &self.segment.records[(self.cell.slot() - self.segment.base) as usize]
    }

    /// Returns the checked description of the leased value. Returns `None` if the caller must read the slot's record.
    #[inline(always)]
    pub fn description(&self) -> Option<HeaderSummary> {
        let summary = self.described?.summary(self.cell)?;
        self.fits(&summary).then_some(summary)
    }

    #[inline(always)]
    fn fits(&self, summary: &HeaderSummary) -> bool {
        SlotInfo::check_summary(summary, self.segment.map.bytes() as u64)
    }

    /// Returns the checked summary of the leased slot's record. Returns `None` if the caller must read the whole record.
    #[inline(always)]
    pub fn summary(&self) -> Option<HeaderSummary> {
        let summary = self.record().summary(self.cell.generation())?;
        self.fits(&summary).then_some(summary)
    }

    /// Returns the lease that is stored in this entry of the table.
    #[inline(always)]
    pub fn held(&self, entry: LeaseEntry) -> Held {
        Held::new(self.segment.clone(), entry, self.owner, self.cell, self.route.owner_word)
    }
}

/// Leases the value at `at` in `catalogue`, if the route to the value is still valid.
#[inline]
pub fn lease(session: &Session, owner: ClientNo, route: Route<'_>, at: At<'_>, name: &str) -> Result<Leasing> {
    match try_lease(session, owner, route, at) {
        Ok(leased) => Ok(Leasing::Held(leased)),
        Err(miss) => lease_slowly(session, miss, owner, route, at, name),
    }
}

#[cold]
fn lease_slowly(
    session: &Session,
    mut miss: Miss,
    owner: ClientNo,
    route: Route<'_>,
    at: At<'_>,
    name: &str,
) -> Result<Leasing> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let mut missing = 0;
    loop {
        let fetched = match miss {
            Miss::Absent => return Ok(Leasing::Absent),
            Miss::Moved => return Ok(Leasing::Moved),
            Miss::Full => return Err(Error::Leases(session.shards.held())),
            Miss::Ended => return Err(session.control.ended("read", Error::SessionEnded)),
            Miss::Damaged(cause) => return Err(damaged(cause)),
            Miss::Cells(part) => session.peers().fetch_cells(owner, part)?,
            Miss::Segment(slot) => fetch_segment(session, owner, slot)?,
        };
        if !fetched {
            // Either the route is out of date, or its writer stored a wrong location. The owner word shows which.
            let replaced = matches!(at, At::Entry(entry, seen, _) if entry.cell.read() != seen.0);
            if replaced || route.word.read() != route.seen {
                return Ok(Leasing::Moved);
            }
            missing += 1;
            if missing > 64 {
                return Err(damaged(BadTensor::Segment));
            }
            std::thread::yield_now();
        }
        miss = match try_lease(session, owner, route, at) {
            Ok(leased) => return Ok(Leasing::Held(leased)),
            Err(miss) => miss,
        };
    }
}

/// Maps the segment that holds a slot. Returns false if the daemon lends no segment for this slot, or no longer lends
/// it.
pub fn fetch_segment(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<bool> {
    match session.peers().fetch_segment(owner, slot) {
        Err(e) if e.is_limit() && make_room(session, &e) => session.peers().fetch_segment(owner, slot),
        fetched => fetched,
    }
}

/// Maps a segment like [`fetch_segment`], for the slot of a published value. The owner acknowledged the segment
/// before it published the value. But the daemon may read that acknowledgement, on another socket, after this
/// client's request. So this function retries.
pub fn fetch_segment_of_value(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<bool> {
    for _ in 0..64 {
        if fetch_segment(session, owner, slot)? {
            return Ok(true);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// Releases memory after the daemon refused a request, so that the daemon can spill. Returns whether it released any.
fn make_room(session: &Session, refused: &Error) -> bool {
    let unmapped = session.peers().unmap_unused();
    release::is_full(refused) && session.alloc().release_for_spill(Wanted::All) || unmapped
}

#[inline]
fn try_lease(session: &Session, owner: ClientNo, route: Route<'_>, at: At<'_>) -> Attempt<Leased> {
    let guard = session.shards.epoch_guard();
    let placed = Seen::read(session, &guard, owner, route, at)?.place(session)?;
    let entry = hold(session, &guard, owner, placed.lease(), &placed.words(), placed.geometry)?;
    let held = placed.held(entry);
    // The reader copied an entry's summary before it stored the lease. `hold` has checked that the entry did not change until
    // after the lease. Each kind of summary goes straight into the lease: a copy of it would wait for the processor's store
    // buffer.
    match at {
        At::Entry(.., summary) if SlotInfo::is_summary(&summary) && placed.fits(&summary) => {
            Ok(Leased::Tensor(Lease::of_summary(summary, held)))
        }
        At::Cell(_) if let Some(summary) = placed.description() => Ok(Leased::Tensor(Lease::of_summary(summary, held))),
        _ => lease_of_slot(&placed, held),
    }
}

/// Builds a lease from the slot's record. The caller has found no valid description or summary of the value elsewhere.
#[inline(never)]
fn lease_of_slot(placed: &Placed<'_>, held: Held) -> Attempt<Leased> {
    match placed.summary() {
        Some(summary) => Ok(Leased::Tensor(Lease::of_summary(summary, held))),
        None => lease_of_record(placed.record(), held),
    }
}

/// Stores a lease on a value, and checks again every word on which the lease depends. These are the words that led to the
/// value, this session's member word, and the `geometry` under which the reader found the value's segment.
#[inline]
pub fn hold(
    link: &Link,
    guard: &EpochGuard<'_>,
    owner: ClientNo,
    lease: LeaseWord,
    words: &[(&Word, u64)],
    geometry: u64,
) -> Attempt<LeaseEntry> {
    #[cfg(feature = "broken-for-tests")]
    let words = {
        crate::sabotage::dawdle();
        if crate::sabotage::broken() == Some(crate::sabotage::Broken::SecondRead) { &[] } else { words }
    };
    let (is_unchanged, entry) =
        link.shards.with_free(guard, |entry| leases::acquire(entry, lease, words)).ok_or(Miss::Full)?;
    confirm(link, entry, is_unchanged, owner, geometry)
}

/// Completes a lease that is stored in `entry`, after the fence. `is_unchanged` is whether the words that led to the value are
/// unchanged; otherwise the entry is free again.
#[inline(always)]
pub fn confirm(
    link: &Link,
    entry: LeaseEntry,
    is_unchanged: bool,
    owner: ClientNo,
    geometry: u64,
) -> Attempt<LeaseEntry> {
    if !is_unchanged {
        return Err(Miss::Moved);
    }
    // Leases of an ended session protect nothing, because no owner scans them any more.
    let ended = !link.is_member();
    // From here on, neither the slot nor the meaning of its number changes, because the daemon withdraws no leased range.
    // If the geometry changed before the lease, the mapping may be of another segment.
    if ended || link.directory.members[owner.index()].geometry.peek() != geometry {
        link.shards.release(entry);
        return Err(if ended { Miss::Ended } else { Miss::Moved });
    }
    Ok(entry)
}

/// Returns the checked content of a leased slot's record, and the slot's bytes. The bytes are `None` if they are on a device.
#[inline(always)]
pub fn contents(held: &Held, record: &[u64; 16]) -> std::result::Result<(SlotInfo, Option<Bytes>), BadTensor> {
    let segment = held.segment();
    let info = SlotInfo::unpack(record)?;
    info.check(held.cell.generation(), segment.bytes())?;
    let says_device = info.device.kind() == Device::cuda(0).kind();
    if segment.elsewhere.is_some() {
        // The daemon decides where bytes are. A record that names another location is invalid.
        let is_valid = info.kind == SlotKind::Tensor && says_device;
        return if is_valid { Ok((info, None)) } else { Err(BadTensor::Record) };
    }
    if says_device {
        return Err(BadTensor::Record);
    }
    let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes).ok_or(BadTensor::Segment)?;
    Ok((info, Some(bytes)))
}

/// Builds a lease from the record, if there is no header summary or a wrong one.
#[cold]
fn lease_of_record(record: &SlotRecord, held: Held) -> Attempt<Leased> {
    let (info, bytes) = contents(&held, &record.copy()).map_err(Miss::Damaged)?;
    match bytes {
        Some(bytes) if info.kind == SlotKind::Tensor && !info.extended => {
            let tensor = Tensor::read(&info, bytes, None).map_err(Miss::Damaged)?;
            Ok(Leased::Tensor(Lease::of(tensor, held)))
        }
        bytes => Ok(Leased::Other(Box::new(Parts { held, info, bytes }))),
    }
}
