//! A lease as this crate holds it, and the way to one.

use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::peers::Peer;
use crate::session::Session;
use crate::shards::Place;
use std::sync::Arc;
use tensorlend_layout::catalogue::cell_place;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::leases;
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};
use tensorlend_layout::word::{Cell, Home, Word};

/// Which value of a name was seen: equal means that the name was not written in between. It has no order.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::Version;
///
/// let first = client.put("numbers", &[1u8])?;
/// let second = client.put("numbers", &[1u8])?;
/// assert!(first != second && second != Version::NONE);
/// assert_eq!(client.get("numbers")?.version(), second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    pub(crate) home: u64,
    pub(crate) cell: u64,
}

impl Version {
    /// What [`crate::Client::wait_newer`] takes for "any value at all".
    pub const NONE: Self = Self { home: 0, cell: 0 };
}

/// A validated lease: while it lives, nobody reuses the slot.
pub struct Held {
    pub session: Arc<Session>,
    place: Place,
    /// Whose slot.
    pub catalogue: u16,
    /// Which slot, in which of its lives.
    pub cell: Cell,
    /// The home word that led to it.
    pub home: u64,
    /// Its record, copied once.
    pub info: SlotInfo,
    /// Its bytes.
    pub bytes: Bytes,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child has no lease table mapped; the lease is its parent's.
        if !self.session.is_forked() {
            leases::release(self.session.shards.entry(self.place));
        }
    }
}

/// Where the value's word stands.
#[derive(Clone, Copy)]
pub enum At<'a> {
    /// In a cell of the catalogue.
    Cell(u32),
    /// In a ring's entry, where it was seen.
    Entry(&'a Word, Cell),
}

enum Step {
    Leased(Held),
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
    /// Looks a key up in the directory until the answer stands.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<FoundName> {
        let hash = self.directory.hash(key);
        loop {
            if let Ok(found) = self.directory.find(hash, key) {
                return found;
            }
            std::hint::spin_loop();
        }
    }

    /// Leases the value of a name.
    pub fn lease_key(self: &Arc<Self>, key: &[u8], name: &str) -> Result<Option<Held>> {
        self.check()?;
        loop {
            let Some(found) = self.find(key) else { return Ok(None) };
            if !found.home.is_live() {
                return Ok(None);
            }
            let word = &self.directory.names[found.entry as usize].home;
            match self.lease(found.home.catalogue(), (word, found.home), At::Cell(found.home.cell()), name)? {
                Leasing::Held(held) => return Ok(Some(held)),
                Leasing::Absent => return Ok(None),
                Leasing::Moved => std::hint::spin_loop(),
            }
        }
    }

    /// Leases the value at `at` in `catalogue`, as long as `home` stands.
    pub fn lease(self: &Arc<Self>, catalogue: u16, home: (&Word, Home), at: At<'_>, name: &str) -> Result<Leasing> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        let mut missing = 0;
        loop {
            let step = {
                let peers = self.peers();
                self.try_lease(peers.get(usize::from(catalogue)).and_then(Option::as_ref), catalogue, home, at)
            };
            let fetched = match step {
                Step::Leased(held) => return Ok(Leasing::Held(held)),
                Step::Absent => return Ok(Leasing::Absent),
                Step::Again => return Ok(Leasing::Moved),
                Step::Full => return Err(Error::Leases(self.shards.held())),
                Step::Ended => return Err(Error::SessionEnded),
                Step::Damaged(cause) => return Err(damaged(cause)),
                Step::NeedCells(part) => self.fetch_cells(catalogue, part)?,
                Step::NeedSegment(slot) => self.fetch_segment(catalogue, slot)?,
            };
            if !fetched {
                // Either the route is out of date, or its writer lies: the home word tells which.
                if home.0.read() != home.1.0 {
                    return Ok(Leasing::Moved);
                }
                missing += 1;
                if missing > 64 {
                    return Err(damaged(BadTensor::Segment));
                }
                std::thread::yield_now();
            }
        }
    }

    #[inline]
    fn try_lease(self: &Arc<Self>, peer: Option<&Peer>, catalogue: u16, home: (&Word, Home), at: At<'_>) -> Step {
        let Some(member) = self.directory.members.get(usize::from(catalogue)) else { return Step::Again };
        let Some(peer) = peer.filter(|p| p.is_life(member.member.read())) else { return Step::NeedCells(0) };
        let (word, seen) = match at {
            At::Cell(cell) => match peer.cell(cell) {
                Some(word) => (word, Cell(word.read())),
                None => return Step::NeedCells(cell_place(cell).0),
            },
            At::Entry(word, seen) => (word, seen),
        };
        if !seen.is_value() {
            // A former owner's housekeeping looks like a delete: only a home that still stands makes it one.
            return if home.0.peek() == home.1.0 { Step::Absent } else { Step::Again };
        }
        let geometry = member.geometry.read();
        let Some(segment) = peer.segment(seen.slot(), geometry, &self.directory) else {
            return Step::NeedSegment(seen.slot());
        };
        let route = [(home.0, home.1.0), (word, seen.0)];
        let place = match self.shards.with_free(|entry| leases::acquire(entry, seen.lease(catalogue), &route)) {
            None => return Step::Full,
            Some((false, _)) => return Step::Again,
            Some((true, place)) => place,
        };
        // A session that the daemon has ended holds nothing: its leases are not looked at any more.
        if self.directory.members[usize::from(self.me())].member.peek() != self.welcome.member {
            leases::release(self.shards.entry(place));
            return Step::Ended;
        }
        // From here on the slot stays as it is, and so does what its number means: the daemon takes no range away that
        // is leased. If the geometry moved before the lease, what is mapped may be another segment.
        if member.geometry.peek() != geometry {
            leases::release(self.shards.entry(place));
            return Step::Again;
        }
        let checked = SlotInfo::unpack(&segment.records[(seen.slot() - segment.base) as usize].copy())
            .and_then(|info| info.check(seen.generation(), segment.map.bytes() as u64).map(|()| info))
            .and_then(|info| {
                let bytes = Bytes::new(segment.map.clone(), info.data_offset, info.data_bytes);
                bytes.map(|bytes| (info, bytes)).ok_or(BadTensor::Segment)
            });
        match checked {
            Ok((info, bytes)) => {
                Step::Leased(Held { session: self.clone(), place, catalogue, cell: seen, home: home.1.0, info, bytes })
            }
            Err(cause) => {
                leases::release(self.shards.entry(place));
                Step::Damaged(cause)
            }
        }
    }

    /// What a name says now, without a lease: its version, if it has a value.
    pub fn peek(&self, key: &[u8]) -> Result<Peeked> {
        let mut missing = 0;
        loop {
            let Some(found) = self.find(key) else { return Ok(Peeked::default()) };
            let home = found.home;
            if !home.is_live() {
                return Ok(Peeked::default());
            }
            let word = &self.directory.names[found.entry as usize].home;
            let catalogue = home.catalogue();
            let cell = if catalogue == self.me() {
                self.own_cell(home.cell()).map(|record| Cell(record.cell.read()))
            } else {
                let peers = self.peers();
                let member = self.directory.members[usize::from(catalogue)].member.read();
                peers[usize::from(catalogue)]
                    .as_ref()
                    .filter(|p| p.is_life(member))
                    .and_then(|p| p.cell(home.cell()))
                    .map(|cell| Cell(cell.read()))
            };
            match cell {
                Some(cell) if word.peek() == home.0 => {
                    let version = Version { home: home.0, cell: cell.0 };
                    return Ok(Peeked { owner: Some(catalogue), seen: Some(version), exists: cell.is_value() });
                }
                Some(_) => {}
                None => {
                    if !self.fetch_cells(catalogue, cell_place(home.cell()).0)? {
                        missing += 1;
                        if missing > 64 && word.read() == home.0 {
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
    Held(Held),
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

impl Held {
    /// A slot that lives and dies with this one: its record and its bytes. An allegation of the owner, checked.
    pub fn companion(&self, slot: u32, generation: Option<u64>, name: &str) -> Result<(SlotInfo, Bytes)> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        // The geometry may move while a segment is mapped: then it is asked for again.
        loop {
            {
                let peers = self.session.peers();
                let geometry = self.session.directory.members[usize::from(self.catalogue)].geometry.read();
                if let Some(segment) = peers[usize::from(self.catalogue)]
                    .as_ref()
                    .and_then(|p| p.segment(slot, geometry, &self.session.directory))
                {
                    let words = segment.records[(slot - segment.base) as usize].copy();
                    let info = SlotInfo::unpack(&words).map_err(damaged)?;
                    info.check(generation.unwrap_or(info.generation), segment.map.bytes() as u64).map_err(damaged)?;
                    let bytes = Bytes::new(segment.map.clone(), info.data_offset, info.data_bytes);
                    return bytes.map(|bytes| (info, bytes)).ok_or_else(|| damaged(BadTensor::Segment));
                }
            }
            if !self.session.fetch_segment(self.catalogue, slot)? {
                break;
            }
        }
        Err(damaged(BadTensor::Segment))
    }

    /// The extension of a slot of this publication, if it has one.
    pub fn extension(&self, info: &SlotInfo, name: &str) -> Result<Option<Bytes>> {
        if !info.extended {
            return Ok(None);
        }
        let (extension, bytes) = self.companion(info.next, None, name)?;
        if extension.kind != SlotKind::Extension {
            return Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record });
        }
        Ok(Some(bytes))
    }
}
