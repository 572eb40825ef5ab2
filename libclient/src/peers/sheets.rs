//! Other clients' sheets, as this client has mapped them.
//!
//! What is cached here is geometry by the daemon's word: which catalogue number is whom, and which slots lie in which
//! segment. Each entry carries the member's life and geometry word under which it was fetched, and is used only
//! while those stand.
//!
//! Readers look in without a lock, inside a [`EpochGuard`]; a change makes a new entry, and the old one is dropped when no
//! section that may have seen it is open any more.
#![allow(unsafe_code)]

use crate::link::Link;
use crate::link::epoch::EpochGuard;
use crate::link::shards::Shards;
use crate::segment::Elsewhere;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cell_place};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::word::{Member, MemberState, RangeWord, Word};
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

/// A look for what can be unmapped goes over all members: so not at each part that is mapped. Until then a client keeps
/// sheets of so many that are gone.
const MAPPED_PER_SWEEP: u64 = 32;

/// All members' sheets, by catalogue number.
pub struct Peers {
    table: Box<[AtomicPtr<Peer>]>,
    /// Held by who changes an entry.
    changing: Mutex<()>,
    /// Parts that were mapped, ever.
    mapped: AtomicU64,
    shards: Arc<Shards>,
}

/// The right to change entries.
pub struct Changing<'p> {
    peers: &'p Peers,
    _one: MutexGuard<'p, ()>,
}

impl Peers {
    pub fn new(members: usize, shards: Arc<Shards>) -> Self {
        let table = (0..members).map(|_| AtomicPtr::new(null_mut())).collect();
        Self { table, changing: Mutex::new(()), mapped: AtomicU64::new(0), shards }
    }

    /// What is mapped of a member.
    ///
    /// # Panics
    /// With a section of another client.
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, catalogue: u16) -> Option<&'s Peer> {
        assert!(guard.is_of(&self.shards), "an epoch guard of another session");
        // Acquire, from the Release of the change that put it there.
        let peer = self.table.get(usize::from(catalogue))?.load(Ordering::Acquire);
        // SAFETY: null, or made by Box::into_raw in `set` and not changed since. It is dropped only after it was taken
        // out of the table and every section that was open then has ended: this one is, and outlives the reference.
        unsafe { peer.as_ref() }
    }

    /// Whether so much was mapped since the last time that it is worth while to look for what can be unmapped.
    pub fn is_sweep_due(&self) -> bool {
        self.mapped.fetch_add(1, Ordering::Relaxed) % MAPPED_PER_SWEEP == MAPPED_PER_SWEEP - 1
    }

    /// Begins a change; one at a time. Never inside a section.
    pub fn change(&self) -> Changing<'_> {
        Changing { peers: self, _one: lock(&self.changing) }
    }
}

impl Changing<'_> {
    /// The entry as it is.
    pub fn get(&self, catalogue: u16) -> Option<&Peer> {
        let peer = self.peers.table.get(usize::from(catalogue))?.load(Ordering::Relaxed);
        // SAFETY: as in Peers::get; entries are dropped by who holds the right to change them, through `&mut self`.
        unsafe { peer.as_ref() }
    }

    /// Drops what an entry has mapped in host memory and no lease needs; whether there was anything.
    pub fn drop_unused(&mut self, catalogue: u16) -> bool {
        let Some(mut peer) = self.get(catalogue).cloned() else { return false };
        let any = peer.drop_unused();
        if any {
            self.set(catalogue, Some(peer));
        }
        any
    }

    /// Puts another entry in its place.
    pub fn set(&mut self, catalogue: u16, peer: Option<Peer>) {
        let Some(place) = self.peers.table.get(usize::from(catalogue)) else { return };
        let new = peer.map_or(null_mut(), |peer| Box::into_raw(Box::new(peer)));
        // Release: the entry is complete when it is found. Acquire: of the one before, to drop it.
        let old = place.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            self.peers.shards.wait_for_guards();
            // SAFETY: from Box::into_raw, and out of the table, so that nobody else drops it; no section that may have
            // seen it is open, and `get` above borrows this Changing, which is borrowed mutably here.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for place in &mut self.table {
            let peer = std::mem::replace(place.get_mut(), null_mut());
            if !peer.is_null() {
                // SAFETY: from Box::into_raw; nobody else has a reference to this table.
                drop(unsafe { Box::from_raw(peer) });
            }
        }
    }
}

/// A segment of another client.
pub struct PeerSegment {
    /// First slot number.
    pub base: u32,
    /// Its slot records.
    pub records: Records<SlotRecord>,
    /// What keeps its pages in place for devices: before the mapping, which must last longer.
    #[cfg(feature = "cuda")]
    pub locked: crate::segment::pinned::PageLock,
    /// Its bytes, read-only; none if they are on a device, so that what is made for host memory finds nothing here.
    pub map: Segment,
    /// What there is of it on a device.
    pub elsewhere: Option<Elsewhere>,
    /// The latest geometry word under which base and segment were found to belong together.
    pub geometry: AtomicU64,
    /// Its line in the directory's table of segments, as it was lent.
    pub line: Option<Line>,
    /// Which memfds these are: inodes of segment and slots. They name them as long as they are mapped.
    pub identity: (u64, u64),
    /// The session under which leases on it are held: it lasts as long as they.
    pub link: Arc<Link>,
}

impl PeerSegment {
    /// Its length, wherever its bytes are.
    pub fn bytes(&self) -> u64 {
        self.elsewhere.as_ref().map_or(self.map.bytes() as u64, |it| it.bytes)
    }

    /// Whether a slot is one of its own.
    #[inline]
    pub fn holds(&self, slot: u32) -> bool {
        slot.wrapping_sub(self.base) < self.records.len() as u32
    }
}

/// A lending, as the directory's table of segments tells it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line {
    at: usize,
    range: u64,
    since_ns: u64,
}

impl Line {
    /// The line of the segment of `catalogue` that begins at `base`.
    pub fn find(directory: &Directory, catalogue: u16, base: u32) -> Option<Self> {
        directory.segments.iter().enumerate().find_map(|(at, entry)| {
            let range = RangeWord(entry.range.read());
            let ours = range.is_lent() && range.catalogue() == catalogue && range.base() == base;
            ours.then(|| Self { at, range: range.0, since_ns: entry.since_ns.peek() })
        })
    }

    /// Whether the directory still says the same.
    fn stands(&self, directory: &Directory) -> bool {
        let entry = &directory.segments[self.at];
        entry.range.read() == self.range && entry.since_ns.peek() == self.since_ns
    }
}

/// A catalogue of another client (or of this one: a client reads its own tensors as it reads anybody's).
#[derive(Clone, Default)]
pub struct Peer {
    /// Epoch and sheet number of the life that is cached here.
    life: u64,
    catalogue: Option<Sheet<Catalogue>>,
    /// By part, as far as they were asked for.
    cells: Vec<Option<Records<CellRecord>>>,
    segments: Vec<Arc<PeerSegment>>,
    leases: Option<Sheet<LeaseTable>>,
}

/// A member word without its state: which life it is.
pub fn life(member: u64) -> u64 {
    Member(member).with_state(MemberState::Vacant).0
}

impl Peer {
    pub fn of_life(life: u64) -> Self {
        Self { life, ..Self::default() }
    }

    pub fn is_life(&self, member: u64) -> bool {
        self.life == life(member)
    }

    /// The record of a cell; `None`: its part is not mapped.
    #[inline]
    pub fn record(&self, cell: u32) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        match (part, &self.catalogue) {
            (0, Some(catalogue)) => Some(&catalogue.cells[at]),
            (0, None) => None,
            _ => self.cells.get(usize::from(part))?.as_ref()?.get(at),
        }
    }

    /// The word of a cell; `None`: its part is not mapped.
    #[inline]
    pub fn cell(&self, cell: u32) -> Option<&Word> {
        self.record(cell).map(|record| &record.cell)
    }

    /// Whether a part of its cells is mapped.
    pub fn has_part(&self, part: u8) -> bool {
        match part {
            0 => self.catalogue.is_some(),
            _ => self.cells.get(usize::from(part)).is_some_and(Option::is_some),
        }
    }

    pub fn catalogue(&self) -> Option<&Sheet<Catalogue>> {
        self.catalogue.as_ref()
    }

    pub fn leases(&self) -> Option<&Sheet<LeaseTable>> {
        self.leases.as_ref()
    }

    /// The segment that holds a slot, if it is mapped and known to be the right one under this geometry word, which was
    /// read before.
    #[inline]
    pub fn segment(&self, slot: u32, geometry: u64, directory: &Directory) -> Option<&Arc<PeerSegment>> {
        let after = self.segments.partition_point(|s| s.base <= slot);
        let found = &self.segments[after.checked_sub(1)?];
        if slot - found.base >= found.records.len() as u32 {
            return None;
        }
        // Relaxed: process-private, and whatever it says is checked against the directory.
        if found.geometry.load(Ordering::Relaxed) != geometry {
            // Another range of this client has moved, or this one: the daemon clears a range before it moves the
            // geometry, so that a range that still is what it was is this segment's under the geometry read before.
            if !found.line.is_some_and(|line| line.stands(directory)) {
                return None;
            }
            found.geometry.store(geometry, Ordering::Relaxed);
        }
        Some(found)
    }

    pub fn set_catalogue(&mut self, catalogue: Sheet<Catalogue>) {
        self.catalogue = Some(catalogue);
    }

    pub fn set_leases(&mut self, leases: Sheet<LeaseTable>) {
        self.leases = Some(leases);
    }

    /// Drops the mapping of its lease table, since it holds no leases any more; false if none is mapped.
    pub fn drop_leases(&mut self) -> bool {
        self.leases.take().is_some()
    }

    pub fn set_cells(&mut self, part: u8, cells: Records<CellRecord>) {
        if part >= CELL_PARTS {
            return;
        }
        let part = usize::from(part);
        if self.cells.len() <= part {
            self.cells.resize_with(part + 1, || None);
        }
        self.cells[part] = Some(cells);
    }

    /// Where this address lies: the first slot of its segment, the inode of that, and the offset in it.
    pub fn place_of(&self, address: *const u8) -> Option<(u32, u64, u64)> {
        let offset = |s: &PeerSegment| address.addr().wrapping_sub(s.map.start().addr());
        let found = self.segments.iter().find(|s| offset(s) < s.map.bytes())?;
        Some((found.base, found.identity.0, offset(found) as u64))
    }

    /// The mapped segment that begins at `base`, whatever geometry it was fetched under.
    pub fn known(&self, base: u32) -> Option<&Arc<PeerSegment>> {
        self.segments.iter().find(|s| s.base == base)
    }

    /// Adds a segment in place of everything that overlaps its range.
    pub fn add_segment(&mut self, segment: PeerSegment) {
        let (first, end) = (segment.base, segment.base + segment.records.len() as u32);
        self.segments.retain(|s| s.base >= end || s.base + s.records.len() as u32 <= first);
        let at = self.segments.partition_point(|s| s.base < first);
        self.segments.insert(at, Arc::new(segment));
    }

    /// Of a clone of an entry: drops the mappings in host memory that nothing but the two of them has; false if there are
    /// none. A lease that is being taken by the entry meanwhile keeps its own.
    fn drop_unused(&mut self) -> bool {
        let before = self.segments.len();
        self.segments.retain(|s| s.elsewhere.is_some() || Arc::strong_count(s) > 2);
        self.segments.len() != before
    }

    /// Drops the mappings of segments that are no longer lent; false if all are.
    pub fn keep_segments(&mut self, lent: impl Fn(&PeerSegment) -> bool) -> bool {
        let before = self.segments.len();
        self.segments.retain(|s| lent(s));
        self.segments.len() != before
    }
}
