//! Mapping of the other members' sheets, at their first use.

use super::PeerTable;
use crate::control::Answer;
use crate::error::{Error, Result};
use crate::peers::{Line, Peer, PeerSegment, epoch_of};
use crate::segment::Elsewhere;
use crate::segment::kept::KeptDescriptor;
use crate::segment::mapping::{peer_segment, records, sheet, typed};
use crate::segment::pinned::PageLock;
use crate::segment::populate;
use rustix::fs::fstat;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorlend_layout::catalogue::{Catalogue, SlotRecord, cells_count};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::wire::{DeviceSegment, LendingId, Refusal, Reply, Request};
use tensorlend_layout::word::{Member, MemberState, RangeWord};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

/// The loan of another client's segment, as the daemon's reply describes it.
#[derive(Clone, Copy)]
struct Loan {
    /// The segment's owner, and the owner's member word before the request.
    number: ClientNo,
    member: u64,
    base: SlotNo,
    geometry: u64,
    identity: (u64, u64),
}

impl PeerTable {
    /// Calls `read` with a live member's lease table. Returns `Ok(None)` if there is no live member with this number.
    pub fn with_leases<R>(&self, number: ClientNo, read: impl FnOnce(&LeaseTable) -> R) -> Result<Option<R>> {
        if number == self.me() {
            return Ok(Some(read(self.shards.table())));
        }
        let Some(entry) = self.directory.members.get(number.index()) else { return Ok(None) };
        let member = entry.member.read();
        if !matches!(Member(member).state(), MemberState::Open | MemberState::Ending) {
            return Ok(None);
        }
        {
            let guard = self.shards.epoch_guard();
            let peer = self.peers.get(&guard, number).filter(|p| p.is_of_epoch(member));
            if let Some(table) = peer.and_then(Peer::leases) {
                return Ok(Some(read(table)));
            }
        }
        let request = Request::LeasesOf { client: number };
        // The member has just ended, so its leases no longer protect any value.
        let Some(mut answer) = self.ask_for(&request, "read another client's leases")? else { return Ok(None) };
        let Reply::Sheet { member } = answer.reply else { return answer.unexpected() };
        let fd = answer.descriptor()?;
        let table: Sheet<LeaseTable> = typed(sheet(&fd, Access::Read, Magic::Leases, size_of::<LeaseTable>())?)?;
        tensorlend_layout::crash_point!("fetch: leases mapped");
        answer.acknowledge()?;
        let found = read(&table);
        self.update(number, member, |peer| peer.set_leases(table));
        Ok(Some(found))
    }

    /// Returns a live member's lease table, which the caller may keep mapped.
    pub fn lease_table(&self, number: ClientNo) -> Result<Option<Sheet<LeaseTable>>> {
        if number == self.me() {
            return Ok(Some(self.shards.sheet().clone()));
        }
        // The first turn maps the table, and the next turn finds it mapped. If another thread unmaps the table in between to
        // free memory, a further turn maps it again.
        for _ in 0..8 {
            if self.with_leases(number, |_| ())?.is_none() {
                return Ok(None);
            }
            let member = self.directory.members[number.index()].member.read();
            let guard = self.shards.epoch_guard();
            let peer = self.peers.get(&guard, number).filter(|peer| peer.is_of_epoch(member));
            if let Some(table) = peer.and_then(Peer::leases) {
                return Ok(Some(table.clone()));
            }
        }
        Err(Error::Protocol { doing: "read another client's leases" })
    }

    fn update(&self, number: ClientNo, member: u64, change: impl FnOnce(&mut Peer)) {
        if self.peers.is_sweep_due() {
            self.sweep();
        }
        let mut changing = self.peers.change();
        // Do not drop a newer client that reused this number.
        let now = self.directory.members[number.index()].member.read();
        if epoch_of(now) != epoch_of(member) && changing.get(number).is_some_and(|peer| peer.is_of_epoch(now)) {
            return;
        }
        let mut peer = match changing.get(number) {
            Some(peer) if peer.is_of_epoch(member) => peer.clone(),
            _ => Peer::of_epoch(epoch_of(member)),
        };
        change(&mut peer);
        changing.set(number, Some(peer));
    }

    /// Maps a part of a client's cells. Returns false if there is no such part, or no longer.
    pub fn fetch_cells(&self, number: ClientNo, part: u8) -> Result<bool> {
        // Read the member word before the request. If the number gets another owner in the meantime, the cache entry
        // belongs to an ended epoch.
        let member = self.directory.members[number.index()].member.read();
        let request = Request::CellsOf { client: number, part };
        let Some(mut answer) = self.ask_for(&request, "read another client's names")? else { return Ok(false) };
        let fd = answer.descriptor()?;
        if part == 0 {
            let cells = typed(sheet(&fd, Access::Read, Magic::Catalogue, size_of::<Catalogue>())?)?;
            answer.acknowledge()?;
            self.update(number, member, |peer| peer.set_catalogue(cells));
        } else {
            let cells = records(&fd, Access::Read, Magic::Cells, cells_count(part))?;
            answer.acknowledge()?;
            self.update(number, member, |peer| peer.set_cells(part, cells));
        }
        Ok(true)
    }

    /// Maps the segment that holds a slot. Returns false if there is no such segment, or no longer.
    pub fn fetch_segment(&self, number: ClientNo, slot: SlotNo) -> Result<bool> {
        let member = self.directory.members[number.index()].member.read();
        let request = Request::SegmentOf { owner: number, slot };
        // Serializes this request with reports of unmapped device memory: see `lendings.rs`.
        let telling = self.lendings.telling();
        let Some(answer) = self.ask_for(&request, "read a segment")? else { return Ok(false) };
        match &answer.reply {
            Reply::Segment { .. } => {
                drop(telling);
                self.fetched_host_segment(number, member, answer)?;
            }
            Reply::DeviceSegment(lent) => {
                let (lent, lending) = (lent.clone(), lent.lending);
                let fetched = self.fetched_device_segment(number, member, lent, answer, telling);
                if fetched.is_err() {
                    self.never_mapped(lending);
                }
                fetched?;
            }
            _ => return answer.unexpected(),
        }
        Ok(true)
    }

    /// Adds a segment of host memory, and maps it.
    fn fetched_host_segment(&self, number: ClientNo, member: u64, mut answer: Answer<'_>) -> Result<()> {
        let Reply::Segment { bytes, base, slots_log2, geometry, short, .. } = answer.reply else {
            return answer.unexpected();
        };
        self.note_short(short);
        let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
        let inode = |fd: &OwnedFd| {
            fstat(fd).map(|s| s.st_ino).map_err(|e| Error::System { doing: "inspect a segment", cause: e.into() })
        };
        let loan = Loan { number, member, base, geometry, identity: (inode(&segment)?, inode(&slots)?) };
        if self.is_mapped(loan) {
            return answer.acknowledge();
        }
        let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "read a segment" })?;
        let records: Records<SlotRecord> = records(&slots, Access::Read, Magic::Slots, 1 << slots_log2)?;
        let map = peer_segment(&segment, bytes, populate::is_wanted(bytes))?;
        tensorlend_layout::crash_point!("fetch: segment mapped");
        answer.acknowledge()?;
        let locked = PageLock::of_mapped(&map, self.link.welcome.page_lock, true);
        self.add_segment(loan, records, (map, locked), None);
        Ok(())
    }

    /// Adds a mapped segment to its client's sheets. `map` has its bytes in host memory, and the lock on their pages.
    fn add_segment(
        &self,
        loan: Loan,
        records: Records<SlotRecord>,
        (map, locked): (map::Segment, PageLock),
        elsewhere: Option<Elsewhere>,
    ) {
        let Loan { number, member, base, geometry, identity } = loan;
        // The directory's row belongs to this loan if no range of the client has moved since the reply.
        let line = Line::find(&self.directory, number, base)
            .filter(|_| self.directory.members[number.index()].geometry.read() == geometry);
        self.sweep();
        self.update(number, member, |peer| {
            peer.add_segment(PeerSegment {
                base,
                records,
                locked,
                map,
                kept: KeptDescriptor::default(),
                elsewhere,
                geometry: AtomicU64::new(geometry),
                line,
                identity,
                link: self.link.clone(),
            });
        });
    }

    /// Returns true if this segment is already mapped. Then also records the geometry under which the daemon reported
    /// it.
    fn is_mapped(&self, loan: Loan) -> bool {
        let guard = self.shards.epoch_guard();
        let peer = self.peers.get(&guard, loan.number).filter(|p| p.is_of_epoch(loan.member));
        let mapped = peer.and_then(|p| p.known(loan.base)).filter(|have| have.identity == loan.identity);
        mapped.map(|have| have.geometry.store(loan.geometry, Ordering::Relaxed)).is_some()
    }

    /// Adds a segment whose bytes are on a device. Maps its records at once, and its bytes at their first use.
    fn fetched_device_segment(
        &self,
        number: ClientNo,
        member: u64,
        lent: DeviceSegment,
        mut answer: Answer<'_>,
        telling: MutexGuard<'_, ()>,
    ) -> Result<()> {
        let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
        let stat = fstat(&slots).map_err(|e| Error::System { doing: "inspect a segment", cause: e.into() })?;
        // Only the daemon's report identifies device memory, so use it.
        let identity = (lent.lending.since_ns, stat.st_ino);
        let loan = Loan { number, member, base: lent.lending.base, geometry: lent.geometry, identity };
        if self.is_mapped(loan) {
            return answer.acknowledge();
        }
        let records: Records<SlotRecord> = records(&slots, Access::Read, Magic::Slots, 1 << lent.slots_log2)?;
        let map = map::Segment::none().map_err(Error::system("map a segment"))?;
        answer.acknowledge()?;
        let elsewhere = self.elsewhere(lent, segment)?;
        drop(telling);
        self.add_segment(loan, records, (map, PageLock::default()), Some(elsewhere));
        Ok(())
    }

    /// Unmaps segments that are no longer lent, and the sheets of clients that have ended.
    pub fn sweep(&self) {
        let entries =
            self.directory.segments.iter().map(|entry| (RangeWord(entry.range.read()), entry.since_ns.peek()));
        let lent: HashMap<(ClientNo, SlotNo), u64> = entries
            .filter(|(range, _)| range.is_lent())
            .map(|(range, since_ns)| ((range.owner(), range.base()), since_ns))
            .collect();
        // If the daemon has lent device memory again, a mapping of the former loan prevents that loan's return. So
        // unmap it.
        let is_lent = |number: ClientNo, segment: &PeerSegment| {
            let since_ns = lent.get(&(number, segment.base));
            since_ns.is_some_and(|since_ns| segment.elsewhere.is_none() || *since_ns == segment.identity.0)
        };
        let mut changing = self.peers.change();
        for (number, member) in self.directory.numbered_members() {
            let Some(peer) = changing.get(number) else { continue };
            let member = member.member.read();
            if peer.is_of_epoch(member) && Member(member).state() != MemberState::Vacant {
                let mut peer = peer.clone();
                let ended = Member(member).state() == MemberState::Closed;
                let less = ended && peer.drop_leases();
                if peer.keep_segments(|segment| is_lent(number, segment)) || less {
                    changing.set(number, Some(peer));
                }
            } else {
                changing.set(number, None);
            }
        }
    }

    /// Unmaps the segments of clients that have ended, if no lease in this process needs them. If the daemon spills,
    /// also unmaps those of live clients, because the daemon cannot spill mapped segments. Returns whether there were
    /// any.
    pub fn unmap_unused(&self) -> bool {
        let was_short = self.was_short.load(Ordering::Relaxed);
        let mut changing = self.peers.change();
        let mut any = false;
        for (number, line) in self.directory.numbered_members() {
            let member = line.member.read();
            if was_short || Member(member).state() == MemberState::Closed {
                any |= changing.drop_unused(number, |_| true);
            }
        }
        any
    }

    /// Unmaps the segments that the daemon wants out of memory, if no lease in this process needs them.
    pub fn unmap_wanted(&self) {
        let mut changing = self.peers.change();
        for (number, _) in self.directory.numbered_members() {
            changing.drop_unused(number, |segment| segment.is_wanted_out(&self.directory));
        }
    }

    /// Returns the first slots of this client's own segments that the daemon wants out of memory.
    pub fn own_wanted(&self) -> Vec<SlotNo> {
        let lines = self.directory.numbered_segments();
        let wanted = lines.filter(|&(at, _)| self.directory.head().wants_out(at));
        let ranges = wanted.map(|(_, line)| RangeWord(line.range.read()));
        ranges.filter(|range| range.is_lent() && range.owner() == self.me()).map(RangeWord::base).collect()
    }

    /// Unmaps this client's read-only mappings of its own segments, if no lease in this process needs them.
    pub fn unmap_own(&self) {
        self.peers.change().drop_unused(self.me(), |_| true);
    }

    /// Reports device memory that the daemon has lent, and that this process could not map.
    #[cfg(feature = "cuda")]
    fn never_mapped(&self, lending: LendingId) {
        self.lendings.never_mapped(lending);
    }

    /// Reports device memory that the daemon has lent, and that this process could not map.
    #[cfg(not(feature = "cuda"))]
    fn never_mapped(&self, lending: LendingId) {
        let _ = self.control.call(&Request::Unmapped { lendings: vec![lending] }, "release device memory", "");
    }

    /// Returns the device part of a segment that the daemon has just lent. The part is not mapped yet. The caller must hold
    /// the lock that excludes reports of unmapped memory.
    #[cfg(feature = "cuda")]
    #[expect(clippy::unnecessary_wraps, reason = "as without the feature")]
    pub fn elsewhere(&self, lent: DeviceSegment, descriptor: OwnedFd) -> Result<Elsewhere> {
        let (bytes, uuid) = (lent.bytes, lent.uuid);
        let map = self.lendings.find_or_add(&self.link, lent, descriptor, crate::segment::map::Use::Read);
        Ok(Elsewhere { bytes, uuid, map })
    }

    /// Returns the device part of a segment that the daemon has just lent. Without the feature `cuda`, the process
    /// never maps the segment, so it reports the segment as unmapped at once.
    #[cfg(not(feature = "cuda"))]
    pub fn elsewhere(&self, lent: DeviceSegment, descriptor: OwnedFd) -> Result<Elsewhere> {
        use tensorlend_layout::wire::Request;
        drop(descriptor);
        let request = Request::Unmapped { lendings: vec![lent.lending] };
        self.control.call(&request, "release device memory", "")?;
        Ok(Elsewhere { bytes: lent.bytes, uuid: lent.uuid })
    }

    fn ask_for(&self, request: &Request, doing: &'static str) -> Result<Option<Answer<'_>>> {
        match self.control.ask(request, doing, "") {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Calls `use_it` with a client's catalogue, which has the client's bell. Returns `None` if the client has ended.
    pub fn with_bell<R>(&self, number: ClientNo, use_it: impl FnOnce(&Sheet<Catalogue>) -> R) -> Result<Option<R>> {
        for _ in 0..2 {
            let member = self.directory.members[number.index()].member.read();
            {
                let guard = self.shards.epoch_guard();
                let peer = self.peers.get(&guard, number).filter(|p| p.is_of_epoch(member));
                if let Some(sheet) = peer.and_then(Peer::catalogue) {
                    return Ok(Some(use_it(sheet)));
                }
            }
            if !self.fetch_cells(number, 0)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Maps the lease tables of the members that may be parked, if a publication has met one whose table was not mapped:
    /// see [`PeerTable::anybody_parked`].
    #[inline]
    pub fn map_waiters(&self) {
        // Relaxed: a publication that this thread does not see yet is left to the next call.
        if self.waiter_unmapped.load(Ordering::Relaxed) {
            self.map_waiters_now();
        }
    }

    #[cold]
    fn map_waiters_now(&self) {
        self.waiter_unmapped.store(false, Ordering::Relaxed);
        let unmapped = |&number: &ClientNo| {
            let member = self.directory.members[number.index()].member.read();
            let guard = self.shards.epoch_guard();
            let peer = self.peers.get(&guard, number).filter(|peer| peer.is_of_epoch(member));
            number != self.me() && peer.and_then(Peer::leases).is_none()
        };
        for number in self.directory.waiters().filter(unmapped) {
            // A member whose table is unreadable is treated as parked.
            if !self.control.is_up() || self.with_leases(number, |_| ()).is_err() {
                return;
            }
        }
    }
}
