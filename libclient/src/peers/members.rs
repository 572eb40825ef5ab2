//! The other members of the namespace: their sheets are fetched when they are first needed, and kept mapped.

use crate::alloc::heap::Wanted;
use crate::alloc::shelving;
use crate::control::Answer;
use crate::error::{Error, Result};
use crate::peers::sheets::{Line, Peer, PeerSegment, life};
use crate::segment::mapping::{records, sheet, typed};
use crate::session::Session;
use rustix::fs::fstat;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorlend_layout::catalogue::{Catalogue, SlotRecord, cells_count};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::wire::{DeviceSegment, Refusal, Reply, Request};
use tensorlend_layout::word::{Member, MemberState, RangeWord};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

impl Session {
    /// Calls `look` with a live member's lease table; `Ok(None)` if there is no such live member.
    pub fn with_leases<R>(&self, catalogue: u16, look: impl FnOnce(&LeaseTable) -> R) -> Result<Option<R>> {
        if catalogue == self.me() {
            return Ok(Some(look(self.shards.table())));
        }
        let Some(entry) = self.directory.members.get(usize::from(catalogue)) else { return Ok(None) };
        let member = entry.member.read();
        if !matches!(Member(member).state(), MemberState::Open | MemberState::Ending) {
            return Ok(None);
        }
        {
            let section = self.shards.section();
            let peer = self.peers.get(&section, catalogue).filter(|p| p.is_life(member));
            if let Some(table) = peer.and_then(Peer::leases) {
                return Ok(Some(look(table)));
            }
        }
        let request = Request::LeasesOf { catalogue };
        // It left in this moment: then its leases no longer count.
        let Some(mut answer) = self.ask_for(&request, "read a lease table")? else { return Ok(None) };
        let Reply::Sheet { member } = answer.reply else { return answer.unexpected() };
        let fd = answer.descriptor()?;
        let table: Sheet<LeaseTable> = typed(sheet(&fd, Access::Read, Magic::Leases, size_of::<LeaseTable>())?)?;
        tensorlend_layout::crash_point!("fetch: leases mapped");
        answer.acknowledge()?;
        let found = look(&table);
        self.update_peer(catalogue, member, |peer| peer.set_leases(table));
        Ok(Some(found))
    }

    /// A live member's lease table, to keep mapped.
    pub fn lease_table(&self, catalogue: u16) -> Result<Option<Sheet<LeaseTable>>> {
        if catalogue == self.me() {
            return Ok(Some(self.shards.sheet().clone()));
        }
        // A look fetches it where need be, the next finds it mapped, unless it was made room for meanwhile: then nothing is
        // known of a member that may be there.
        for _ in 0..8 {
            if self.with_leases(catalogue, |_| ())?.is_none() {
                return Ok(None);
            }
            let member = self.directory.members[usize::from(catalogue)].member.read();
            let section = self.shards.section();
            let peer = self.peers.get(&section, catalogue).filter(|peer| peer.is_life(member));
            if let Some(table) = peer.and_then(Peer::leases) {
                return Ok(Some(table.clone()));
            }
        }
        Err(Error::Protocol { doing: "read a lease table" })
    }

    /// Bytes of the slots in this namespace on which some live member has a lease.
    pub fn leased_bytes(&self) -> Result<u64> {
        let mut slots = HashSet::new();
        for catalogue in self.directory.present().collect::<Vec<_>>() {
            self.with_leases(catalogue, |table| {
                table.scan(|lease| {
                    if !lease.is_of_segment() {
                        slots.insert((lease.catalogue(), lease.slot()));
                    }
                });
            })?;
        }
        let mut bytes = 0;
        for (catalogue, slot) in slots {
            bytes += self.slot_bytes(catalogue, slot)?;
        }
        Ok(bytes)
    }

    /// Length of somebody's slot, by its own word; 0 if it is gone.
    fn slot_bytes(&self, catalogue: u16, slot: u32) -> Result<u64> {
        for _ in 0..2 {
            let Some(member) = self.directory.members.get(usize::from(catalogue)) else { return Ok(0) };
            {
                let section = self.shards.section();
                if let Some(segment) = self
                    .peers
                    .get(&section, catalogue)
                    .filter(|p| p.is_life(member.member.read()))
                    .and_then(|p| p.segment(slot, member.geometry.read(), &self.directory))
                {
                    let words = segment.records[(slot - segment.base) as usize].copy();
                    return Ok(SlotInfo::unpack(&words).map_or(0, |i| i.data_bytes.min(segment.bytes())));
                }
            }
            if !self.fetch_segment(catalogue, slot)? {
                return Ok(0);
            }
        }
        Ok(0)
    }

    fn update_peer(&self, catalogue: u16, member: u64, change: impl FnOnce(&mut Peer)) {
        if self.peers.is_sweep_due() {
            self.sweep_peers();
        }
        let mut changing = self.peers.change();
        // Whoever has the number by now is not to be forgotten for who had it when we asked.
        let now = self.directory.members[usize::from(catalogue)].member.read();
        if life(now) != life(member) && changing.get(catalogue).is_some_and(|peer| peer.is_life(now)) {
            return;
        }
        let mut peer = match changing.get(catalogue) {
            Some(peer) if peer.is_life(member) => peer.clone(),
            _ => Peer::of_life(life(member)),
        };
        change(&mut peer);
        changing.set(catalogue, Some(peer));
    }

    /// Fetches a part of somebody's cells. False: there is no such part (any more).
    pub fn fetch_cells(&self, catalogue: u16, part: u8) -> Result<bool> {
        // Read before asking: if the number changes hands meanwhile, the cache entry is for a life that is over.
        let member = self.directory.members[usize::from(catalogue)].member.read();
        let request = Request::CellsOf { catalogue, part };
        let Some(mut answer) = self.ask_for(&request, "read a catalogue")? else { return Ok(false) };
        let fd = answer.descriptor()?;
        if part == 0 {
            let cells = typed(sheet(&fd, Access::Read, Magic::Catalogue, size_of::<Catalogue>())?)?;
            answer.acknowledge()?;
            self.update_peer(catalogue, member, |peer| peer.set_catalogue(cells));
        } else {
            let cells = records(&fd, Access::Read, Magic::Cells, cells_count(part))?;
            answer.acknowledge()?;
            self.update_peer(catalogue, member, |peer| peer.set_cells(part, cells));
        }
        Ok(true)
    }

    /// Fetches the segment that holds a slot. False: there is none (any more).
    pub fn fetch_segment(&self, catalogue: u16, slot: u32) -> Result<bool> {
        match self.fetch_segment_once(catalogue, slot) {
            Err(e) if e.is_limit() && self.make_room(&e) => self.fetch_segment_once(catalogue, slot),
            fetched => fetched,
        }
    }

    fn fetch_segment_once(&self, catalogue: u16, slot: u32) -> Result<bool> {
        let member = self.directory.members[usize::from(catalogue)].member.read();
        let request = Request::SegmentOf { catalogue, slot };
        // What is said of device memory and what is asked for follow each other: see there.
        let telling = self.lendings.telling();
        let Some(mut answer) = self.ask_for(&request, "read a segment")? else { return Ok(false) };
        let (bytes, base, slots_log2, geometry) = match &answer.reply {
            Reply::Segment { bytes, base, slots_log2, geometry, short, .. } => {
                self.was_short.fetch_or(*short, Ordering::Relaxed);
                (*bytes, *base, *slots_log2, *geometry)
            }
            Reply::DeviceSegment(lent) => {
                let lent = lent.clone();
                #[cfg(feature = "cuda")]
                let lending = lent.lending;
                let fetched = self.fetched_device_segment(catalogue, member, lent, answer, telling);
                #[cfg(feature = "cuda")]
                if fetched.is_err() {
                    self.lendings.never_mapped(&self.link, lending);
                }
                return fetched.map(|()| true);
            }
            _ => return answer.unexpected(),
        };
        drop(telling);
        let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
        let inode = |fd: &OwnedFd| {
            fstat(fd).map(|s| s.st_ino).map_err(|e| Error::System { doing: "look at a segment", cause: e.into() })
        };
        let identity = (inode(&segment)?, inode(&slots)?);
        let known = {
            let section = self.shards.section();
            let peer = self.peers.get(&section, catalogue).filter(|p| p.is_life(member));
            let known = peer.and_then(|p| p.known(base)).filter(|have| have.identity == identity);
            known.map(|have| have.geometry.store(geometry, Ordering::Relaxed)).is_some()
        };
        if known {
            answer.acknowledge()?;
            return Ok(true);
        }
        let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "read a segment" })?;
        let records: Records<SlotRecord> = records(&slots, Access::Read, Magic::Slots, 1 << slots_log2)?;
        // Populated: no later read faults.
        let map = map::segment(&segment, bytes, Access::Read, true).map_err(Error::system("map a segment"))?;
        tensorlend_layout::crash_point!("fetch: segment mapped");
        answer.acknowledge()?;
        // The line is this lending's, if no range of this client has moved since the answer.
        let line = Line::find(&self.directory, catalogue, base)
            .filter(|_| self.directory.members[usize::from(catalogue)].geometry.read() == geometry);
        self.sweep_peers();
        self.update_peer(catalogue, member, |peer| {
            let geometry = AtomicU64::new(geometry);
            let link = self.link.clone();
            #[cfg(feature = "cuda")]
            let locked = crate::segment::pinned::PageLock::default();
            peer.add_segment(PeerSegment {
                base,
                records,
                #[cfg(feature = "cuda")]
                locked,
                map,
                elsewhere: None,
                geometry,
                line,
                identity,
                link,
            });
        });
        Ok(true)
    }

    /// A segment whose bytes are on a device: its records are mapped as any others', its bytes when somebody wants them.
    fn fetched_device_segment(
        &self,
        catalogue: u16,
        member: u64,
        lent: DeviceSegment,
        mut answer: Answer<'_>,
        telling: MutexGuard<'_, ()>,
    ) -> Result<()> {
        let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
        let stat = fstat(&slots).map_err(|e| Error::System { doing: "look at a segment", cause: e.into() })?;
        // Of device memory only the daemon's word tells which it is.
        let identity = (lent.lending.since_ns, stat.st_ino);
        let (base, geometry) = (lent.lending.base, lent.geometry);
        let known = {
            let section = self.shards.section();
            let peer = self.peers.get(&section, catalogue).filter(|p| p.is_life(member));
            let known = peer.and_then(|p| p.known(base)).filter(|have| have.identity == identity);
            known.map(|have| have.geometry.store(geometry, Ordering::Relaxed)).is_some()
        };
        if known {
            return answer.acknowledge();
        }
        let records: Records<SlotRecord> = records(&slots, Access::Read, Magic::Slots, 1 << lent.slots_log2)?;
        let map = map::Segment::none().map_err(Error::system("map a segment"))?;
        answer.acknowledge()?;
        let elsewhere = self.elsewhere(lent, segment)?;
        drop(telling);
        let line = Line::find(&self.directory, catalogue, base)
            .filter(|_| self.directory.members[usize::from(catalogue)].geometry.read() == geometry);
        self.sweep_peers();
        self.update_peer(catalogue, member, |peer| {
            peer.add_segment(PeerSegment {
                base,
                records,
                #[cfg(feature = "cuda")]
                locked: crate::segment::pinned::PageLock::default(),
                map,
                elsewhere: Some(elsewhere),
                geometry: AtomicU64::new(geometry),
                line,
                identity,
                link: self.link.clone(),
            });
        });
        Ok(())
    }

    /// As [`Self::fetch_segment`], for a slot that was found in a value: its owner told the daemon that it had mapped the
    /// segment before it published anything there, but by another socket, which the daemon may read after ours.
    pub fn fetch_segment_of_value(&self, catalogue: u16, slot: u32) -> Result<bool> {
        for _ in 0..64 {
            if self.fetch_segment(catalogue, slot)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Unmaps what is no longer lent, and what belonged to clients that are gone.
    pub fn sweep_peers(&self) {
        let entries =
            self.directory.segments.iter().map(|entry| (RangeWord(entry.range.read()), entry.since_ns.peek()));
        let lent: HashMap<(u16, u32), u64> = entries
            .filter(|(range, _)| range.is_lent())
            .map(|(range, since_ns)| ((range.catalogue(), range.base()), since_ns))
            .collect();
        // Whoever has device memory mapped that was lent anew keeps it from going back.
        let stands = |catalogue: u16, segment: &PeerSegment| {
            let since_ns = lent.get(&(catalogue, segment.base));
            since_ns.is_some_and(|since_ns| segment.elsewhere.is_none() || *since_ns == segment.identity.0)
        };
        let mut changing = self.peers.change();
        for (catalogue, member) in self.directory.members.iter().enumerate() {
            let catalogue = catalogue as u16;
            let Some(peer) = changing.get(catalogue) else { continue };
            let member = member.member.read();
            if peer.is_life(member) && Member(member).state() != MemberState::Vacant {
                let mut peer = peer.clone();
                let ended = Member(member).state() == MemberState::Closed;
                let less = ended && peer.drop_leases();
                if peer.keep_segments(|segment| stands(catalogue, segment)) || less {
                    changing.set(catalogue, Some(peer));
                }
            } else {
                changing.set(catalogue, None);
            }
        }
    }

    /// Does what may let the daemon spill something, which has refused memory; whether there was anything.
    fn make_room(&self, refused: &Error) -> bool {
        let unmapped = self.unmap_unused();
        shelving::is_full(refused) && self.shelve(Wanted::All) || unmapped
    }

    /// Unmaps what no lease here needs of clients that are gone, and where something is spilled of others, too: while it is
    /// mapped, the daemon cannot spill it. Whether there was anything.
    pub fn unmap_unused(&self) -> bool {
        let was_short = self.was_short.load(Ordering::Relaxed);
        let mut changing = self.peers.change();
        let mut any = false;
        for catalogue in 0..self.directory.members.len() as u16 {
            let member = self.directory.members[usize::from(catalogue)].member.read();
            if was_short || Member(member).state() == MemberState::Closed {
                any |= changing.drop_unused(catalogue);
            }
        }
        any
    }

    /// Unmaps what no lease here needs of this client's own segments, as it has them mapped to read.
    pub fn unmap_own(&self) {
        self.peers.change().drop_unused(self.me());
    }

    fn ask_for(&self, request: &Request, doing: &'static str) -> Result<Option<Answer<'_>>> {
        match self.control.ask(request, &[], doing, "") {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The bell of somebody's catalogue; `None`: it is gone.
    pub fn with_bell<R>(&self, catalogue: u16, use_it: impl FnOnce(&Sheet<Catalogue>) -> R) -> Result<Option<R>> {
        for _ in 0..2 {
            let member = self.directory.members[usize::from(catalogue)].member.read();
            {
                let section = self.shards.section();
                let peer = self.peers.get(&section, catalogue).filter(|p| p.is_life(member));
                if let Some(sheet) = peer.and_then(Peer::catalogue) {
                    return Ok(Some(use_it(sheet)));
                }
            }
            if !self.fetch_cells(catalogue, 0)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Members that may be parked and match `wants`: is there any?
    pub fn anybody_parked(&self, wants: impl Fn(u64) -> bool) -> bool {
        if self.directory.head().waiters_count.peek() == 0 {
            return false;
        }
        let section = self.shards.section();
        self.directory.waiters().any(|catalogue| {
            if catalogue == self.me() {
                return wants(self.shards.table().parked.read());
            }
            let member = self.directory.members[usize::from(catalogue)].member.read();
            let peer = self.peers.get(&section, catalogue).filter(|p| p.is_life(member));
            // A member whose table is not mapped may be parked. Ringing once too often harms nobody; asking for the table
            // would make a put wait for the daemon. The next reclaim maps it.
            peer.and_then(Peer::leases).is_none_or(|table| wants(table.parked.read()))
        })
    }
}
