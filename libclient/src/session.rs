//! A session: what one client has mapped and holds.

use crate::control::{Answer, Control};
use crate::error::{Error, Result};
use crate::heap::{Heap, Unused, extent_bytes};
use crate::parking::Parking;
use crate::peers::{Peer, PeerSegment, life};
use crate::shards::Shards;
use crate::stream::ClosedRing;
use crate::subscription::Cursors;
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use tensorlend_layout::catalogue::{
    CELL_PARTS, Catalogue, CellRecord, CellsPart, SlotRecord, SlotsPart, cell_place, cells_count, part_bytes,
};
use tensorlend_layout::directory::{Directory, DirectoryHead};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::{self, LeaseTable};
use tensorlend_layout::raw::{Records, Sheet, View};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::wire::{Hello, PROTOCOL_VERSION, Refusal, Reply, Request, Welcome};
use tensorlend_layout::word::{Cell, Member, MemberState, RangeWord, Word};
use tensorlend_layout::{LAYOUT_HASH, LAYOUT_VERSION};
use tensorlend_os::memfd::Access;
use tensorlend_os::{fork, map};

use crate::cells::Cells;

/// Slots that wait to be reclaimed: at least so many before the lease tables are read, ...
const RETIRED_MIN: usize = 64;
/// ... or so many bytes.
const RETIRED_BYTES: u64 = 1 << 20;

#[derive(Default)]
struct Retired {
    slots: Vec<(u32, u64)>,
    bytes: u64,
    /// Leases seen by the last scan: reading them again is worth while when half as many slots wait.
    leases_seen: usize,
    /// Bytes that the last scan found leased: no use to look again before more has come.
    bytes_kept: u64,
}

/// One client's session with the daemon.
pub struct Session {
    pub control: Control,
    pub welcome: Welcome,
    pub directory: Directory,
    pub catalogue: Sheet<Catalogue>,
    pub shards: Arc<Shards>,
    pub parking: Parking,
    pub cells: Mutex<Cells>,
    pub cursors: Mutex<Cursors>,
    cell_parts: [OnceLock<Records<CellRecord>>; CELL_PARTS as usize],
    /// Held to read by every operation on a cell; held to write by who binds a cell to another name, so that no
    /// operation on the old name is in flight then.
    pub gate: RwLock<()>,
    /// One round of giving cells back at a time.
    pub housekeeping: Mutex<()>,
    /// One first publication or takeover at a time.
    pub binding: Mutex<()>,
    pub heap: Mutex<Heap>,
    retired: Mutex<Retired>,
    /// Streams that were closed here and still hold messages.
    pub closed: Mutex<Vec<ClosedRing>>,
    peers: RwLock<Vec<Option<Peer>>>,
    pub notices_seen: AtomicU64,
    forks: u64,
}

/// Locks, whatever a thread that panicked left: every structure behind these locks is valid between its own steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps a sheet and checks that it is what it should be.
fn sheet(fd: &OwnedFd, access: Access, magic: Magic, bytes: usize) -> Result<View> {
    let view = map::sheet(fd, bytes, access).map_err(Error::system("map a sheet"))?;
    let header: &tensorlend_layout::header::SheetHeader =
        view.at(0).ok_or(Error::Protocol { doing: "mapping a sheet" })?;
    header.check(magic)?;
    Ok(view)
}

fn length(fd: &OwnedFd) -> Result<usize> {
    let stat = fstat(fd).map_err(|e| Error::System { doing: "look at a descriptor", cause: e.into() })?;
    usize::try_from(stat.st_size).map_err(|_| Error::Protocol { doing: "mapping a sheet" })
}

fn typed<T: tensorlend_layout::raw::Shared>(view: View) -> Result<Sheet<T>> {
    Sheet::new(view).ok_or(Error::Protocol { doing: "mapping a sheet" })
}

/// The records behind the head of a part.
fn records<T: tensorlend_layout::raw::Shared>(
    fd: &OwnedFd,
    access: Access,
    magic: Magic,
    count: usize,
) -> Result<Records<T>> {
    let view = sheet(fd, access, magic, part_bytes(count))?;
    Records::new(&view, size_of::<SlotsPart>(), count).ok_or(Error::Protocol { doing: "mapping a part" })
}

impl Session {
    pub fn open(control: Control, namespace: Option<String>, label: String) -> Result<Arc<Self>> {
        const _: () = assert!(size_of::<SlotsPart>() == size_of::<CellsPart>());
        fork::watch();
        let hello = Request::Hello(Hello {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            layout_version: LAYOUT_VERSION,
            layout_hash: LAYOUT_HASH,
            namespace,
            label,
        });
        let mut answer = control.ask(&hello, &[], "connect", "")?;
        let directory = answer.descriptor()?;
        let catalogue = answer.descriptor()?;
        let table = answer.descriptor()?;
        let Reply::Welcome(welcome) = answer.reply.clone() else { return answer.unexpected() };
        let view = sheet(&directory, Access::Read, Magic::Directory, length(&directory)?)?;
        debug_assert!(view.bytes() >= size_of::<DirectoryHead>());
        let directory = Directory::new(&view).ok_or(Error::Protocol { doing: "connect" })?;
        let catalogue = typed(sheet(&catalogue, Access::Write, Magic::Catalogue, size_of::<Catalogue>())?)?;
        let table: Sheet<LeaseTable> = typed(sheet(&table, Access::Write, Magic::Leases, size_of::<LeaseTable>())?)?;
        answer.acknowledge()?;
        let mut peers = Vec::new();
        peers.resize_with(directory.members.len(), || None);
        Ok(Arc::new(Self {
            parking: Parking::new(table.clone()),
            shards: Shards::new(table),
            cells: Mutex::new(Cells::default()),
            cursors: Mutex::new(Cursors::default()),
            cell_parts: [const { OnceLock::new() }; CELL_PARTS as usize],
            gate: RwLock::new(()),
            housekeeping: Mutex::new(()),
            binding: Mutex::new(()),
            heap: Mutex::new(Heap::default()),
            retired: Mutex::new(Retired::default()),
            closed: Mutex::new(Vec::new()),
            peers: RwLock::new(peers),
            notices_seen: AtomicU64::new(0),
            forks: fork::generation(),
            control,
            welcome,
            directory,
            catalogue,
        }))
    }

    /// Refuses to serve a forked child.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// This client's catalogue number.
    #[inline]
    pub fn me(&self) -> u16 {
        self.welcome.catalogue
    }

    // ---- own cells

    /// The record of one of this client's own cells.
    #[inline]
    pub fn own_cell(&self, cell: u32) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        if part == 0 {
            return self.catalogue.cells.get(at);
        }
        self.cell_parts.get(usize::from(part))?.get()?.get(at)
    }

    /// A fresh cell; grows the catalogue where none is left.
    pub fn fresh_cell(&self) -> Result<u32> {
        loop {
            if let Some(cell) = lock(&self.cells).take() {
                return Ok(cell);
            }
            let mut answer = self.control.ask(&Request::GrowCells, &[], "grow the catalogue", "")?;
            let Reply::Cells { part, .. } = answer.reply else { return answer.unexpected() };
            let fd = answer.descriptor()?;
            let count = cells_count(part);
            let records = records(&fd, Access::Write, Magic::Cells, count)?;
            let place = self.cell_parts.get(usize::from(part));
            if place.is_none_or(|place| place.set(records).is_err()) {
                return answer.unexpected();
            }
            answer.acknowledge()?;
            lock(&self.cells).grow(part);
        }
    }

    // ---- own slots

    /// Takes a slot of `bytes` bytes: from what was freed, from what can be reclaimed, from a new segment.
    pub fn take(&self, bytes: u64) -> Result<crate::heap::Taken> {
        self.check()?;
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        self.reclaim(true);
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        self.notices()?;
        self.retire_closed();
        self.reclaim(true);
        lock(&self.heap).flush();
        if let Some(taken) = lock(&self.heap).take(bytes) {
            return Ok(taken);
        }
        match self.request_segment(bytes) {
            Err(e) if e.is_limit() => {
                let idle = lock(&self.heap).flush();
                if idle.is_empty() {
                    return Err(e);
                }
                for base in idle {
                    self.return_segment(base);
                }
                self.request_segment(bytes)?;
            }
            other => other?,
        }
        // Another thread may have taken what came: then there is another segment to ask for.
        let taken = lock(&self.heap).take(bytes);
        taken.map_or_else(|| self.take(bytes), Ok)
    }

    fn request_segment(&self, bytes: u64) -> Result<()> {
        let Some((length, _)) = extent_bytes(bytes) else {
            return Err(Error::Argument(format!("{bytes} bytes are more than any machine has")));
        };
        let (bytes, slots_log2) = lock(&self.heap).wanted(length, self.welcome.segment_bytes);
        let request = Request::Segment { bytes, slots_log2 };
        let mut answer = self.control.ask(&request, &[], "ask for memory", "")?;
        let Reply::Segment { bytes, base, slots_log2, .. } = answer.reply else { return answer.unexpected() };
        // Whatever comes of the mapping, the daemon hears that the descriptors have arrived.
        let mapped = (|| {
            let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
            let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "ask for memory" })?;
            let records = records(&slots, Access::Write, Magic::Slots, 1 << slots_log2)?;
            let map = map::segment(&segment, bytes, Access::Write, true).map_err(Error::system("map a segment"))?;
            Ok((map, records))
        })();
        answer.acknowledge()?;
        match mapped {
            Ok((map, records)) => {
                lock(&self.heap).add(base, slots_log2, map, records);
                Ok(())
            }
            Err(e) => {
                // Of no use to us: back with it.
                let _ = self.control.call(&Request::ReturnSegment { base }, "return a segment", "");
                Err(e)
            }
        }
    }

    /// Gives an unused segment back.
    fn return_segment(&self, base: u32) {
        let Some(returned) = lock(&self.heap).remove(base) else { return };
        // Refused while a reader has a short-lived entry on one of its slots: then we keep it a while longer.
        match self.control.call(&Request::ReturnSegment { base }, "return a segment", "") {
            Err(e) if e.is_certain() => lock(&self.heap).put_back(returned),
            _ => {}
        }
    }

    /// Retires the messages of streams that were closed here and have since been deleted or opened anew.
    pub fn retire_closed(&self) {
        let gone: Vec<ClosedRing> = {
            let mut closed = lock(&self.closed);
            closed.extract_if(.., |ring| ring.is_gone(&self.directory)).collect()
        };
        for value in gone.iter().flat_map(ClosedRing::values) {
            self.retire(value);
        }
    }

    /// Drops a slot that was never published.
    pub fn drop_slot(&self, slot: u32) {
        let unused = lock(&self.heap).release(slot);
        if let Unused::Segment(base) = unused {
            self.return_segment(base);
        }
    }

    /// A cell or ring entry no longer holds this value. When nobody holds it any more, it is freed as soon as no lease
    /// is on it.
    pub fn retire(&self, value: Cell) {
        if lock(&self.heap).let_go(value) {
            self.retire_again(value);
        }
    }

    /// Nobody holds this value any more, but somebody may have a lease on it.
    pub fn retire_again(&self, value: Cell) {
        let bytes = lock(&self.heap).chain_bytes(value.slot());
        let due = {
            let mut retired = lock(&self.retired);
            retired.slots.push((value.slot(), value.generation()));
            retired.bytes += bytes;
            retired.slots.len() >= RETIRED_MIN.max(retired.leases_seen / 2)
                || retired.bytes >= retired.bytes_kept + RETIRED_BYTES
        };
        if due {
            self.reclaim(false);
        }
    }

    /// Frees what is retired and not leased. `wait`: stand in line if another thread is at it.
    pub fn reclaim(&self, wait: bool) {
        let mut retired = if wait {
            lock(&self.retired)
        } else {
            match self.retired.try_lock() {
                Ok(retired) => retired,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            }
        };
        if retired.slots.is_empty() {
            return;
        }
        let Some(leased) = self.scan() else { return };
        retired.leases_seen = leased.len();
        let slots = std::mem::take(&mut retired.slots);
        let (kept, free): (Vec<_>, Vec<_>) =
            slots.into_iter().partition(|&(slot, generation)| leased.contains(&(slot, generation as u32 & 0xFF_FFFF)));
        let mut idle = Vec::new();
        {
            let mut heap = lock(&self.heap);
            for (slot, _) in free {
                if let Unused::Segment(base) = heap.release(slot) {
                    idle.push(base);
                }
            }
            retired.bytes = kept.iter().map(|&(slot, _)| heap.chain_bytes(slot)).sum();
        }
        retired.bytes_kept = retired.bytes;
        retired.slots = kept;
        drop(retired);
        for base in idle {
            self.return_segment(base);
        }
    }

    /// Every lease of the namespace on a slot of this client: (slot, low generation). `None`: a member's table could
    /// not be read, so that nothing may be freed.
    fn scan(&self) -> Option<std::collections::HashSet<(u32, u32)>> {
        leases::scan_fence();
        // The members are read after the fence: who joined later cannot have leased what was replaced before it.
        let mut leased = std::collections::HashSet::new();
        let members: Vec<u16> = self.directory.present().collect();
        for catalogue in members {
            let seen = self.with_leases(catalogue, |table| {
                table.scan(|lease| {
                    if lease.catalogue() == self.me() {
                        leased.insert((lease.slot(), lease.generation_low()));
                    }
                });
            });
            match seen {
                Ok(_) => {}
                // The daemon is away: what this member reads is unknown.
                Err(_) => return None,
            }
        }
        // For a reader that was ended while it runs on: what it looked at after use shows it that it was.
        leases::reuse_fence();
        Some(leased)
    }

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
            let peers = self.peers();
            if let Some(table) =
                peers[usize::from(catalogue)].as_ref().filter(|p| p.is_life(member)).and_then(Peer::leases)
            {
                return Ok(Some(look(table)));
            }
        }
        let request = Request::LeasesOf { catalogue };
        let mut answer = match self.control.ask(&request, &[], "read a lease table", "") {
            Ok(answer) => answer,
            // It left in this moment: then its leases no longer count.
            Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Reply::Sheet { member } = answer.reply else { return answer.unexpected() };
        let fd = answer.descriptor()?;
        let table: Sheet<LeaseTable> = typed(sheet(&fd, Access::Read, Magic::Leases, size_of::<LeaseTable>())?)?;
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
        // The first look fetches it where need be, the second finds it mapped.
        if self.with_leases(catalogue, |_| ())?.is_none() {
            return Ok(None);
        }
        Ok(self.peers()[usize::from(catalogue)].as_ref().and_then(Peer::leases).cloned())
    }

    /// Bytes of the slots in this namespace on which some live member has a lease.
    pub fn leased_bytes(&self) -> Result<u64> {
        let mut slots = std::collections::HashSet::new();
        for catalogue in self.directory.present().collect::<Vec<_>>() {
            self.with_leases(catalogue, |table| {
                table.scan(|lease| {
                    slots.insert((lease.catalogue(), lease.slot()));
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
            if let Some(segment) = self.peers()[usize::from(catalogue)]
                .as_ref()
                .filter(|p| p.is_life(member.member.read()))
                .and_then(|p| p.segment(slot, member.geometry.read()))
            {
                let words = segment.records[(slot - segment.base) as usize].copy();
                return Ok(SlotInfo::unpack(&words).map_or(0, |i| i.data_bytes.min(segment.map.bytes() as u64)));
            }
            if !self.fetch_segment(catalogue, slot)? {
                return Ok(0);
            }
        }
        Ok(0)
    }

    // ---- others' sheets

    pub fn peers(&self) -> RwLockReadGuard<'_, Vec<Option<Peer>>> {
        self.peers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn update_peer(&self, catalogue: u16, member: u64, change: impl FnOnce(&mut Peer)) {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = peers.get_mut(usize::from(catalogue)) else { return };
        if place.as_ref().is_none_or(|p| !p.is_life(member)) {
            *place = Some(Peer::of_life(life(member)));
        }
        change(place.as_mut().expect("set above"));
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
        let member = self.directory.members[usize::from(catalogue)].member.read();
        let request = Request::SegmentOf { catalogue, slot };
        let Some(mut answer) = self.ask_for(&request, "read a segment")? else { return Ok(false) };
        let Reply::Segment { bytes, base, slots_log2, geometry } = answer.reply else {
            return answer.unexpected();
        };
        let (segment, slots) = (answer.descriptor()?, answer.descriptor()?);
        let inode = |fd: &OwnedFd| {
            fstat(fd).map(|s| s.st_ino).map_err(|e| Error::System { doing: "look at a segment", cause: e.into() })
        };
        let identity = (inode(&segment)?, inode(&slots)?);
        let mut known = false;
        self.update_peer(catalogue, member, |peer| {
            if let Some(have) = peer.known(base).filter(|have| have.identity == identity) {
                have.geometry = geometry;
                known = true;
            }
        });
        if known {
            answer.acknowledge()?;
            return Ok(true);
        }
        let bytes = usize::try_from(bytes).map_err(|_| Error::Protocol { doing: "read a segment" })?;
        let records: Records<SlotRecord> = records(&slots, Access::Read, Magic::Slots, 1 << slots_log2)?;
        // Populated: no later read faults.
        let map = map::segment(&segment, bytes, Access::Read, true).map_err(Error::system("map a segment"))?;
        answer.acknowledge()?;
        self.sweep_peers();
        self.update_peer(catalogue, member, |peer| {
            peer.add_segment(PeerSegment { base, records, map: Arc::new(map), geometry, identity });
        });
        Ok(true)
    }

    /// Unmaps what is no longer lent, and what belonged to clients that are gone.
    fn sweep_peers(&self) {
        let ranges = self.directory.segments.iter().map(|entry| RangeWord(entry.range.read()));
        let lent: std::collections::HashSet<(u16, u32)> =
            ranges.filter(|range| range.is_lent()).map(|range| (range.catalogue(), range.base())).collect();
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        for (catalogue, place) in peers.iter_mut().enumerate() {
            let Some(peer) = place else { continue };
            let member = self.directory.members[catalogue].member.read();
            if peer.is_life(member) && Member(member).state() != MemberState::Vacant {
                peer.keep_segments(|base| lent.contains(&(catalogue as u16, base)));
            } else {
                *place = None;
            }
        }
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
            if let Some(sheet) =
                self.peers()[usize::from(catalogue)].as_ref().filter(|p| p.is_life(member)).and_then(Peer::catalogue)
            {
                return Ok(Some(use_it(sheet)));
            }
            if !self.fetch_cells(catalogue, 0)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    // ---- names that were taken from us

    /// Learns which names the daemon took from this client, and retires what their cells hold.
    pub fn notices(&self) -> Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let word = self.directory.members[usize::from(self.me())].notices.read();
        if word == self.notices_seen.load(Relaxed) {
            return Ok(());
        }
        // Against `tidy`: a cell is given back by one of the two, once.
        let _one = lock(&self.housekeeping);
        loop {
            let reply = self.control.call(&Request::Notices, "ask for notices", "")?;
            let Reply::Notices { cells, more } = reply else {
                return Err(Error::Protocol { doing: "ask for notices" });
            };
            let held: Vec<Cell> = {
                // No operation on these cells is in flight while we hold the gate.
                let _quiet = self.gate.write().unwrap_or_else(PoisonError::into_inner);
                cells.into_iter().filter_map(|cell| self.vacate(cell)).collect()
            };
            for value in held {
                self.retire(value);
            }
            if !more {
                break;
            }
        }
        self.notices_seen.store(word, Relaxed);
        Ok(())
    }

    /// Empties a cell to which no home leads any more; returns the value that it held, to be retired. The caller holds
    /// the gate.
    pub fn vacate(&self, cell: u32) -> Option<Cell> {
        let record = self.own_cell(cell)?;
        let mut cells = lock(&self.cells);
        if !cells.is_bound(cell) {
            return None;
        }
        let held = Cell(record.cell.swap(Cell::DELETED.0));
        record.name_bytes.set(0);
        cells.give(cell);
        held.is_value().then_some(held)
    }

    /// Members that may be parked and match `wants`: is there any?
    pub fn anybody_parked(&self, wants: impl Fn(u64) -> bool) -> bool {
        if self.directory.head().waiters_count.peek() == 0 {
            return false;
        }
        // A member whose table is not mapped may be parked: ringing once too often harms nobody.
        self.directory
            .waiters()
            .any(|c| self.with_leases(c, |table| wants(table.parked.read())).map_or(true, |seen| seen.unwrap_or(false)))
    }

    /// The word of a home in the directory.
    #[inline]
    pub fn home(&self, entry: u32) -> Option<&Word> {
        self.directory.names.get(entry as usize).map(|e| &e.home)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session of catalogue {} in {:?}", self.me(), self.welcome.namespace)
    }
}
