//! The other members of the namespace, and their sheets: catalogues, cells, lease tables and segments. This client maps
//! them at the first use (`members`), and keeps them mapped.
//!
//! The cached data is the geometry that the daemon has reported: which client has a number, and which slots
//! lie in which segment. Each entry has the member's epoch and the geometry word under which this client fetched it.
//! This client uses the entry only while both are unchanged.
//!
//! Readers use the table without a lock, under an [`EpochGuard`]. A change creates a new entry. The changing thread
//! drops the old entry when every guard under which a reader may have seen it has closed.
#![allow(unsafe_code)]

mod members;

use crate::link::Link;
use crate::link::epoch::EpochGuard;
use crate::link::shards::Shards;
use crate::segment::Elsewhere;
use crate::segment::kept::KeptDescriptor;
use crate::segment::pinned::PageLock;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cell_place};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo, SegmentLine, SlotNo};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::size;
use tensorlend_layout::word::{Member, MemberState, RangeWord, Word};
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

/// Number of parts that the client maps between two sweeps. Sweeps are rare, because each visits all members. Until the next
/// sweep, a client may keep the sheets of up to this many clients that have ended.
const MAPPED_PER_SWEEP: u64 = 32;

/// The mapped memory of other clients, and this client's own memory, mapped for reading.
pub struct PeerTable {
    link: Arc<Link>,
    peers: Peers,
    /// True if this daemon has ever reported that memory is short. A daemon reports this only if it spills.
    was_short: AtomicBool,
    /// Whether a publication rang its bell for a member that may be parked and whose lease table is not mapped.
    waiter_unmapped: AtomicBool,
}

impl Deref for PeerTable {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl PeerTable {
    pub fn new(link: Arc<Link>) -> Self {
        let peers = Peers::new(link.directory.members.len(), link.shards.clone());
        Self { link, peers, was_short: AtomicBool::new(false), waiter_unmapped: AtomicBool::new(false) }
    }

    /// Returns the mapped sheets of a member. See [`Peers::get`].
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, number: ClientNo) -> Option<&'s Peer> {
        self.peers.get(guard, number)
    }

    /// Returns whether a member may be parked for a bit that `wants` matches.
    pub fn anybody_parked(&self, wants: impl Fn(u64) -> bool) -> bool {
        if self.directory.head().waiters_count.peek() == 0 {
            return false;
        }
        let guard = self.shards.epoch_guard();
        self.directory.waiters().any(|number| {
            if number == self.me() {
                return wants(self.shards.table().parked.read());
            }
            let member = self.directory.members[number.index()].member.read();
            let peer = self.peers.get(&guard, number).filter(|p| p.is_of_epoch(member));
            // A member whose table is not mapped may be parked. An unnecessary bell does no harm, but requesting the
            // table would make a put wait for the daemon. The next reclaim maps it.
            let Some(table) = peer.and_then(Peer::leases) else {
                self.waiter_unmapped.store(true, Ordering::Relaxed);
                return true;
            };
            wants(table.parked.read())
        })
    }

    /// Records whether the daemon has reported, in a reply with a loan, that memory is short.
    pub fn note_short(&self, short: bool) {
        self.was_short.fetch_or(short, Ordering::Relaxed);
    }

    /// Forgets the reports of the former daemon.
    pub fn daemon_replaced(&self) {
        self.was_short.store(false, Ordering::Relaxed);
    }
}

/// All members' sheets, by client number.
struct Peers {
    table: Box<[AtomicPtr<Peer>]>,
    /// A lock for the thread that changes an entry.
    changing: Mutex<()>,
    /// The number of parts that this client has ever mapped.
    mapped: AtomicU64,
    shards: Arc<Shards>,
}

/// The right of one thread to change entries.
struct Changing<'p> {
    peers: &'p Peers,
    _one: MutexGuard<'p, ()>,
}

impl Peers {
    pub fn new(members: usize, shards: Arc<Shards>) -> Self {
        let table = (0..members).map(|_| AtomicPtr::new(null_mut())).collect();
        Self { table, changing: Mutex::new(()), mapped: AtomicU64::new(0), shards }
    }

    /// Returns the mapped catalogue, cells, lease table and segments of a member.
    ///
    /// # Panics
    /// Panics if the epoch guard belongs to another client.
    #[inline]
    pub fn get<'s>(&'s self, guard: &'s EpochGuard<'_>, number: ClientNo) -> Option<&'s Peer> {
        assert!(guard.is_of(&self.shards), "an epoch guard of another session");
        // Acquire: pairs with the Release in `Changing::set`, which stored the entry.
        let peer = self.table.get(number.index())?.load(Ordering::Acquire);
        // SAFETY: `peer` is null, or `set` made it by `Box::into_raw` and no code has changed it since. A changing thread drops
        // an entry only after it has unlinked the entry from the table and every guard that was open then has closed. This
        // guard is open, and outlives the reference.
        unsafe { peer.as_ref() }
    }

    /// Returns whether this client has mapped enough parts since the last sweep for another sweep.
    pub fn is_sweep_due(&self) -> bool {
        self.mapped.fetch_add(1, Ordering::Relaxed) % MAPPED_PER_SWEEP == MAPPED_PER_SWEEP - 1
    }

    /// Locks the table for a change. The caller must not hold an epoch guard.
    pub fn change(&self) -> Changing<'_> {
        Changing { peers: self, _one: lock(&self.changing) }
    }
}

impl Changing<'_> {
    /// Returns the present entry.
    pub fn get(&self, number: ClientNo) -> Option<&Peer> {
        let peer = self.peers.table.get(number.index())?.load(Ordering::Relaxed);
        // SAFETY: `peer` is null, or `set` made it by `Box::into_raw`. Only the holder of this lock drops entries,
        // through `&mut self`.
        unsafe { peer.as_ref() }
    }

    /// Drops those of an entry's mappings in host memory that no lease needs and that `is_one` selects. Returns whether
    /// there were any.
    pub fn drop_unused(&mut self, number: ClientNo, is_one: impl Fn(&PeerSegment) -> bool) -> bool {
        if !self.get(number).is_some_and(|peer| peer.segments.iter().any(|segment| is_one(segment))) {
            return false;
        }
        let Some(mut peer) = self.get(number).cloned() else { return false };
        let any = peer.drop_unused(is_one);
        if any {
            self.set(number, Some(peer));
        }
        any
    }

    /// Replaces an entry.
    pub fn set(&mut self, number: ClientNo, peer: Option<Peer>) {
        let Some(place) = self.peers.table.get(number.index()) else { return };
        let new = peer.map_or(null_mut(), |peer| Box::into_raw(Box::new(peer)));
        // Release: a reader finds a complete entry. Acquire: this thread sees the former entry, to drop it.
        let old = place.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            self.peers.shards.wait_for_guards();
            // SAFETY: `old` comes from `Box::into_raw`, and is unlinked from the table, so no other thread drops it. No
            // guard is open under which a reader may have seen it. `get` above borrows this `Changing`, which is borrowed
            // mutably here.
            drop(unsafe { Box::from_raw(old) });
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        for place in &mut self.table {
            let peer = std::mem::replace(place.get_mut(), null_mut());
            if !peer.is_null() {
                // SAFETY: `peer` comes from `Box::into_raw`, and no other code has a reference to this table.
                drop(unsafe { Box::from_raw(peer) });
            }
        }
    }
}

/// A segment of another client.
pub struct PeerSegment {
    /// The segment's first slot number.
    pub base: SlotNo,
    pub records: Records<SlotRecord>,
    /// Keeps the segment's pages locked for devices. Declared before the mapping, which must outlive the lock.
    pub locked: PageLock,
    /// The segment's bytes, read-only. Empty if the bytes are on a device, so that code for host memory finds no
    /// bytes.
    pub map: Segment,
    /// The segment's descriptor, after the first private mapping of one of its tensors.
    pub kept: KeptDescriptor,
    /// The description of the device memory that has the segment's bytes. `None` if the bytes are in host memory.
    pub elsewhere: Option<Elsewhere>,
    /// The latest geometry word under which this base belonged to this segment.
    pub geometry: AtomicU64,
    /// The segment's row in the directory's table of segments, at the time of the loan.
    pub line: Option<Line>,
    /// The inodes of the segment's memfd and of its slots' memfd. Both are unique while the memfds are mapped.
    pub identity: (u64, u64),
    /// The session that holds the leases on this segment. The session lasts as long as these leases.
    pub link: Arc<Link>,
}

impl PeerSegment {
    /// Returns the length of the segment, in host or device memory.
    pub fn bytes(&self) -> u64 {
        self.elsewhere.as_ref().map_or(self.map.bytes() as u64, |it| it.bytes)
    }

    /// Returns whether the daemon wants this segment out of memory. Returns true if this client does not know the
    /// directory's row: a segment that is unmapped without need is mapped again at its next use.
    pub fn is_wanted_out(&self, directory: &Directory) -> bool {
        self.line.is_none_or(|line| directory.head().wants_out(line.at))
    }

    #[inline]
    pub fn holds(&self, slot: SlotNo) -> bool {
        slot.is_of(self.base, self.records.len())
    }
}

/// A loan, as the directory's table of segments lists it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line {
    at: SegmentLine,
    range: u64,
    since_ns: u64,
}

impl Line {
    /// Returns the directory's row for the segment of `catalogue` that begins at `base`.
    pub fn find(directory: &Directory, number: ClientNo, base: SlotNo) -> Option<Self> {
        directory.numbered_segments().find_map(|(at, entry)| {
            let range = RangeWord(entry.range.read());
            let ours = range.is_lent() && range.owner() == number && range.base() == base;
            ours.then(|| Self { at, range: range.0, since_ns: entry.since_ns.peek() })
        })
    }

    /// Returns whether the directory's row is unchanged.
    fn is_unchanged(&self, directory: &Directory) -> bool {
        let entry = &directory.segments[self.at.index()];
        entry.range.read() == self.range && entry.since_ns.peek() == self.since_ns
    }
}

/// The mapped sheets of a client. This client also has an entry, because it reads its own tensors like those of other
/// clients.
#[derive(Clone, Default)]
pub struct Peer {
    /// The epoch and sheet number under which this client fetched the sheets.
    epoch: u64,
    catalogue: Option<Sheet<Catalogue>>,
    /// The cells by part. `None` for a part that this client has not requested.
    cells: Vec<Option<Records<CellRecord>>>,
    segments: Vec<Arc<PeerSegment>>,
    leases: Option<Sheet<LeaseTable>>,
}

/// Returns a member word without its state, which identifies the epoch.
pub fn epoch_of(member: u64) -> u64 {
    Member(member).with_state(MemberState::Vacant).0
}

impl Peer {
    pub fn of_epoch(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    pub fn is_of_epoch(&self, member: u64) -> bool {
        self.epoch == epoch_of(member)
    }

    /// Returns the record of a cell. Returns `None` if the cell's part is not mapped.
    #[inline]
    pub fn record(&self, cell: CellNo) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        match (part, &self.catalogue) {
            (0, Some(catalogue)) => Some(&catalogue.cells[at]),
            (0, None) => None,
            _ => self.cells.get(usize::from(part))?.as_ref()?.get(at),
        }
    }

    /// Returns the word of a cell. Returns `None` if the cell's part is not mapped.
    #[inline]
    pub fn cell(&self, cell: CellNo) -> Option<&Word> {
        self.record(cell).map(|record| &record.cell)
    }

    /// Returns whether a part of the client's cells is mapped.
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

    /// Returns the segment that holds a slot, if it is mapped and belongs to this geometry word, which the caller has read
    /// before.
    #[inline]
    pub fn segment(&self, slot: SlotNo, geometry: u64, directory: &Directory) -> Option<&Arc<PeerSegment>> {
        let after = self.segments.partition_point(|s| s.base <= slot);
        let found = &self.segments[after.checked_sub(1)?];
        if !found.holds(slot) {
            return None;
        }
        // Relaxed: the word is private to this process, and is checked against the directory.
        if found.geometry.load(Ordering::Relaxed) != geometry {
            // The geometry has changed, because this range or another range of the client has moved. The daemon clears a
            // range before it changes the geometry. So an unchanged range belongs to this segment under the geometry that
            // was read before.
            if !found.line.is_some_and(|line| line.is_unchanged(directory)) {
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

    /// Drops the mapping of the client's lease table, after its last lease. Returns false if the table is not mapped.
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

    /// Returns the location of an address: its segment, and the offset in the segment.
    pub fn place_of(&self, address: *const u8) -> Option<(&Arc<PeerSegment>, u64)> {
        let offset = |s: &PeerSegment| address.addr().wrapping_sub(s.map.start().addr());
        let found = self.segments.iter().find(|s| offset(s) < s.map.bytes())?;
        Some((found, offset(found) as u64))
    }

    /// Returns the mapped segment that begins at `base`, whatever its geometry word.
    pub fn known(&self, base: SlotNo) -> Option<&Arc<PeerSegment>> {
        self.segments.iter().find(|s| s.base == base)
    }

    /// Adds a segment, and removes all segments that overlap its range.
    pub fn add_segment(&mut self, segment: PeerSegment) {
        let (first, end) = (segment.base, segment.base + size::count(segment.records.len()));
        self.segments.retain(|s| s.base >= end || s.base + size::count(s.records.len()) <= first);
        let at = self.segments.partition_point(|s| s.base < first);
        self.segments.insert(at, Arc::new(segment));
    }

    /// Drops those mappings in host memory that only this clone and its original hold and that `is_one` selects. Returns
    /// false if there are none. A lease that a reader takes through the original in the meantime keeps its own mapping.
    fn drop_unused(&mut self, is_one: impl Fn(&PeerSegment) -> bool) -> bool {
        let before = self.segments.len();
        self.segments.retain(|s| s.elsewhere.is_some() || Arc::strong_count(s) > 2 || !is_one(s));
        self.segments.len() != before
    }

    /// Drops the mappings of segments that are no longer lent. Returns false if all segments are still lent.
    pub fn keep_segments(&mut self, lent: impl Fn(&PeerSegment) -> bool) -> bool {
        let before = self.segments.len();
        self.segments.retain(|s| lent(s));
        self.segments.len() != before
    }
}
