//! A lease as this crate holds it, and the way to one.

use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::lease::fetch::{fetch_segment, fetch_segment_of_value};
use crate::link::Link;
use crate::link::shards::{Place, Section};
use crate::names::announce::Announced;
use crate::names::version::Version;
use crate::peers::sheets::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::catalogue::{SlotRecord, cell_place};
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::stream::{Brief, RingEntry};
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, Home, LeaseWord, Word};

/// A validated lease: while it lives, nobody reuses the slot.
pub struct Held {
    /// Where the slot lies, and by its link the session that holds the lease.
    segment: Arc<PeerSegment>,
    place: Place,
    /// Whose slot.
    pub catalogue: u16,
    /// Which slot, in which of its lives.
    pub cell: Cell,
    /// The home word that led to it.
    pub home: u64,
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // A forked child has no lease table mapped; the lease is its parent's.
        let link = &self.segment.link;
        if !link.is_forked() {
            leases::release(link.shards.entry(self.place));
        }
    }
}

/// What was leased.
pub enum Leased {
    /// A tensor, complete.
    Tensor(Lease),
    /// Something of more than one slot, yet to be put together.
    Other(Box<Parts>),
}

impl Leased {
    /// The lease.
    pub fn held(&self) -> &Held {
        match self {
            Self::Tensor(lease) => lease.held(),
            Self::Other(parts) => &parts.held,
        }
    }
}

/// A lease, and what lies there.
pub struct Parts {
    /// The lease.
    pub held: Held,
    /// The slot's record, copied once.
    pub info: SlotInfo,
    /// Its bytes; `None`: they are on a device.
    pub bytes: Option<Bytes>,
}

/// Where the value's word stands.
#[derive(Clone, Copy)]
pub enum At<'a> {
    /// In a cell of the catalogue.
    Cell(u32),
    /// In a ring's entry, where it and its brief were seen.
    Entry(&'a RingEntry, Cell, Brief),
}

/// The word that led to a cell or an entry: while it stands, so does the way.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    pub word: &'a Word,
    pub seen: u64,
    /// What the value's version says of it.
    pub home: u64,
    /// The life of the client to which the word belongs; 0: the word tells by itself.
    pub member: u64,
}

impl<'a> Route<'a> {
    /// By a home in the directory.
    #[inline]
    pub fn home(word: &'a Word, seen: Home) -> Self {
        Self { word, seen: seen.0, home: seen.0, member: 0 }
    }
}

/// Why there is no lease.
pub enum NotHeld {
    /// Every entry of the table is taken.
    Full,
    /// Something that led to the value is another now.
    Moved,
    /// The daemon has ended this session.
    Ended,
}

enum Step {
    Leased(Leased),
    /// Something moved: look at the name again.
    Again,
    Absent,
    NeedCells(u8),
    NeedSegment(u32),
    Full,
    Ended,
    Damaged(BadTensor),
}

impl Session {
    /// Leases the value of a name.
    #[inline]
    pub fn lease_key(&self, key: &[u8], name: &str) -> Result<Option<Leased>> {
        self.check()?;
        let hash = self.directory.hash(key);
        loop {
            let Some(found) = self.find_live(hash, key) else {
                match self.lease_announced(hash, key, name)? {
                    Leasing::Held(leased) => return Ok(Some(leased)),
                    Leasing::Absent => return Ok(None),
                    Leasing::Moved => continue,
                }
            };
            let word = &self.directory.names[found.entry as usize].home;
            let route = Route::home(word, found.home);
            match self.lease(found.home.catalogue(), route, At::Cell(found.home.cell()), name)? {
                Leasing::Held(leased) => return Ok(Some(leased)),
                Leasing::Absent => return Ok(None),
                Leasing::Moved => std::hint::spin_loop(),
            }
        }
    }

    /// The route to a name that is announced: by its client's `absorbed`.
    pub fn route_of(&self, announced: &Announced) -> Route<'_> {
        let word = &self.directory.members[usize::from(announced.catalogue)].absorbed;
        Route { word, seen: announced.absorbed.0, home: announced.home(), member: announced.member }
    }

    /// Leases the value of a name that is not in the directory.
    #[cold]
    fn lease_announced(&self, hash: u64, key: &[u8], name: &str) -> Result<Leasing> {
        let Some(announced) = self.names().announced(hash, key)? else {
            // Absorbed in between: then it is in the directory.
            let live = self.find_live(hash, key).is_some();
            return Ok(if live { Leasing::Moved } else { Leasing::Absent });
        };
        self.lease(announced.catalogue, self.route_of(&announced), At::Cell(announced.cell), name)
    }

    /// Leases the value at `at` in `catalogue`, as long as the route to it stands.
    #[inline]
    pub fn lease(&self, catalogue: u16, route: Route<'_>, at: At<'_>, name: &str) -> Result<Leasing> {
        match self.try_lease(catalogue, route, at) {
            Step::Leased(leased) => Ok(Leasing::Held(leased)),
            step => self.lease_slowly(step, catalogue, route, at, name),
        }
    }

    #[cold]
    fn lease_slowly(
        &self,
        mut step: Step,
        catalogue: u16,
        route: Route<'_>,
        at: At<'_>,
        name: &str,
    ) -> Result<Leasing> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        let mut missing = 0;
        loop {
            let fetched = match step {
                Step::Leased(leased) => return Ok(Leasing::Held(leased)),
                Step::Absent => return Ok(Leasing::Absent),
                Step::Again => return Ok(Leasing::Moved),
                Step::Full => return Err(Error::Leases(self.shards.held())),
                Step::Ended => return Err(Error::SessionEnded),
                Step::Damaged(cause) => return Err(damaged(cause)),
                Step::NeedCells(part) => self.peers().fetch_cells(catalogue, part)?,
                Step::NeedSegment(slot) => fetch_segment(self, catalogue, slot)?,
            };
            if !fetched {
                // Either the route is out of date, or its writer lies: the home word tells which.
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
            step = self.try_lease(catalogue, route, at);
        }
    }

    #[inline]
    fn try_lease(&self, catalogue: u16, route: Route<'_>, at: At<'_>) -> Step {
        let Some(member) = self.directory.members.get(usize::from(catalogue)) else { return Step::Again };
        let section = self.shards.section();
        let life = member.member.read();
        if route.member != 0 && route.member != life {
            return Step::Again;
        }
        let peer = self.peers().get(&section, catalogue).filter(|p| p.is_life(life));
        let Some(peer) = peer else { return Step::NeedCells(0) };
        let (word, seen) = match at {
            At::Cell(cell) => match peer.cell(cell) {
                Some(word) => (word, Cell(word.read())),
                None => return Step::NeedCells(cell_place(cell).0),
            },
            At::Entry(entry, seen, _) => (&entry.cell, seen),
        };
        if !seen.is_value() {
            // A former owner's housekeeping looks like a delete: only a home that still stands makes it one.
            return if route.word.peek() == route.seen { Step::Absent } else { Step::Again };
        }
        let geometry = member.geometry.read();
        let Some(segment) = peer.segment(seen.slot(), geometry, &self.directory) else {
            return Step::NeedSegment(seen.slot());
        };
        let words = [(route.word, route.seen), (word, seen.0)];
        let place = match self.hold(&section, catalogue, seen.lease(catalogue), &words, geometry) {
            Ok(place) => place,
            Err(NotHeld::Full) => return Step::Full,
            Err(NotHeld::Moved) => return Step::Again,
            Err(NotHeld::Ended) => return Step::Ended,
        };
        let record = &segment.records[(seen.slot() - segment.base) as usize];
        let brief = match at {
            // Copied before the lease, and the entry stood still until after it.
            At::Entry(.., brief) if brief[0] != 0 => Some(brief),
            _ => record.brief(seen.generation()),
        };
        let held = Held { segment: segment.clone(), place, catalogue, cell: seen, home: route.home };
        let bytes = segment.map.bytes() as u64;
        match brief {
            Some(brief) if SlotInfo::check_brief(&brief, bytes) => {
                Step::Leased(Leased::Tensor(Lease::of_brief(brief, held)))
            }
            _ => Self::lease_of_record(record, held, bytes),
        }
    }

    /// Stores a lease on a value, and looks again at all that it rests on: the words that led to the value, this session,
    /// and the `geometry` by which the value's segment was found.
    #[inline]
    pub fn hold(
        &self,
        section: &Section<'_>,
        catalogue: u16,
        lease: LeaseWord,
        words: &[(&Word, u64)],
        geometry: u64,
    ) -> std::result::Result<Place, NotHeld> {
        #[cfg(feature = "broken-for-tests")]
        let words = {
            crate::sabotage::dawdle();
            if crate::sabotage::broken() == Some(crate::sabotage::Broken::SecondLook) { &[] } else { words }
        };
        let (stands, place) =
            self.shards.with_free(section, |entry| leases::acquire(entry, lease, words)).ok_or(NotHeld::Full)?;
        if !stands {
            return Err(NotHeld::Moved);
        }
        // A session that the daemon has ended holds nothing: its leases are not looked at any more.
        let ended = !self.is_member();
        // From here on the slot stays as it is, and so does what its number means: the daemon takes no range away that
        // is leased. If the geometry moved before the lease, what is mapped may be another segment.
        if ended || self.directory.members[usize::from(catalogue)].geometry.peek() != geometry {
            leases::release(self.shards.entry(place));
            return Err(if ended { NotHeld::Ended } else { NotHeld::Moved });
        }
        Ok(place)
    }

    /// What a record says that is no brief, or a wrong one.
    #[cold]
    fn lease_of_record(record: &SlotRecord, held: Held, segment_bytes: u64) -> Step {
        let found = SlotInfo::unpack(&record.copy()).and_then(|info| {
            if held.segment.elsewhere.is_some() {
                info.check(held.cell.generation(), held.segment.bytes())?;
                // Where the bytes are is the daemon's to say: a record that tells another place is a lie.
                let stands = info.kind == SlotKind::Tensor && info.device.kind() == Device::cuda(0).kind();
                return if stands { Ok((info, None)) } else { Err(BadTensor::Record) };
            }
            info.check(held.cell.generation(), segment_bytes)?;
            if info.device.kind() == Device::cuda(0).kind() {
                return Err(BadTensor::Record);
            }
            let bytes = Bytes::new(&held.segment.map, info.data_offset, info.data_bytes).ok_or(BadTensor::Segment)?;
            Ok((info, Some(bytes)))
        });
        match found {
            Ok((info, None)) => Step::Leased(Leased::Other(Box::new(Parts { held, info, bytes: None }))),
            Ok((info, Some(bytes))) if info.kind != SlotKind::Tensor || info.extended => {
                Step::Leased(Leased::Other(Box::new(Parts { held, info, bytes: Some(bytes) })))
            }
            Ok((info, Some(bytes))) => match Tensor::read(&info, bytes, None) {
                Ok(tensor) => Step::Leased(Leased::Tensor(Lease::of(tensor, held))),
                Err(cause) => Step::Damaged(cause),
            },
            Err(cause) => Step::Damaged(cause),
        }
    }

    /// What a name says now, without a lease: its version, if it has a value.
    pub fn peek(&self, key: &[u8]) -> Result<Peeked> {
        let hash = self.directory.hash(key);
        let mut missing = 0;
        loop {
            let (route, catalogue, number) = match self.find_live(hash, key) {
                Some(FoundName { entry, home }) => {
                    let word = &self.directory.names[entry as usize].home;
                    (Route::home(word, home), home.catalogue(), home.cell())
                }
                None => match self.names().announced(hash, key)? {
                    Some(found) => (self.route_of(&found), found.catalogue, found.cell),
                    None if self.find_live(hash, key).is_some() => continue,
                    None => return Ok(Peeked::default()),
                },
            };
            let cell = if catalogue == self.me() {
                self.names().own_cell(number).map(|record| Cell(record.cell.read()))
            } else {
                let member = self.directory.members[usize::from(catalogue)].member.read();
                let section = self.shards.section();
                let peer = self.peers().get(&section, catalogue).filter(|p| p.is_life(member));
                if route.member != 0 && route.member != member {
                    continue;
                }
                peer.and_then(|p| p.cell(number)).map(|cell| Cell(cell.read()))
            };
            match cell {
                Some(cell) if route.word.peek() == route.seen => {
                    let version = Version { home: route.home, cell: cell.0 };
                    return Ok(Peeked { owner: Some(catalogue), seen: Some(version), exists: cell.is_value() });
                }
                Some(_) => {}
                None => {
                    if !self.peers().fetch_cells(catalogue, cell_place(number).0)? {
                        missing += 1;
                        if missing > 64 && route.word.read() == route.seen {
                            return Err(Error::Damaged {
                                name: String::from_utf8_lossy(key).into_owned(),
                                cause: BadTensor::Record,
                            });
                        }
                        std::thread::yield_now();
                    }
                }
            }
        }
    }
}

/// How a lease went.
pub enum Leasing {
    Held(Leased),
    Absent,
    /// The home word is another one now: start from the name.
    Moved,
}

/// What a name says, without a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peeked {
    /// Who owns it.
    pub owner: Option<u16>,
    /// Which value.
    pub seen: Option<Version>,
    /// Whether it is a value, and not a deletion.
    pub exists: bool,
}

/// A slot that a lease covers besides its own: its record, its bytes, and the segment that must be kept for them.
pub struct Companion {
    pub info: SlotInfo,
    pub bytes: Bytes,
    pub segment: Arc<PeerSegment>,
}

impl Held {
    /// A slot that lives and dies with this one. An allegation of the owner, checked.
    pub fn companion(&self, session: &Session, slot: u32, generation: Option<u64>, name: &str) -> Result<Companion> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        // The geometry may move while a segment is mapped: then it is asked for again.
        loop {
            {
                let section = session.shards.section();
                let geometry = session.directory.members[usize::from(self.catalogue)].geometry.read();
                let peer = session.peers().get(&section, self.catalogue);
                if let Some(segment) = peer.and_then(|p| p.segment(slot, geometry, &session.directory)) {
                    let words = segment.records[(slot - segment.base) as usize].copy();
                    let info = SlotInfo::unpack(&words).map_err(damaged)?;
                    info.check(generation.unwrap_or(info.generation), segment.map.bytes() as u64).map_err(damaged)?;
                    if info.device.kind() == Device::cuda(0).kind() {
                        return Err(damaged(BadTensor::Record));
                    }
                    let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes);
                    let bytes = bytes.ok_or_else(|| damaged(BadTensor::Segment))?;
                    return Ok(Companion { info, bytes, segment: segment.clone() });
                }
            }
            if !fetch_segment_of_value(session, self.catalogue, slot)? {
                break;
            }
        }
        Err(damaged(BadTensor::Segment))
    }

    /// The extension of a slot of this publication, if it has one.
    pub fn extension(&self, session: &Session, info: &SlotInfo, name: &str) -> Result<Option<Companion>> {
        if !info.extended {
            return Ok(None);
        }
        let extension = self.companion(session, info.next, None, name)?;
        if extension.info.kind != SlotKind::Extension {
            return Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record });
        }
        Ok(Some(extension))
    }

    /// A lease that was taken elsewhere: the entry at `place` holds it, and is cleared when this is dropped.
    #[inline]
    pub fn new(segment: Arc<PeerSegment>, place: Place, catalogue: u16, cell: Cell, home: u64) -> Self {
        Self { segment, place, catalogue, cell, home }
    }

    /// Where the slot lies.
    #[inline]
    pub fn segment(&self) -> &Arc<PeerSegment> {
        &self.segment
    }

    /// The session that holds the lease.
    pub fn link(&self) -> &Link {
        &self.segment.link
    }
}
