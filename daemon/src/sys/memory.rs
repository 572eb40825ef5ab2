//! The memory that the core knows by ids. This module makes, lends and closes it.

pub mod adopt;
pub mod ahead;
mod recreated;
mod unmapped;
mod unreturned;
mod wake;

use super::backing::{Backing, SheetRange};
use super::device::DeviceMemory;
use super::lanes::{Lane, Lanes};
use super::room::Claim;
use crate::core::settings::Payer;
use crate::core::{Lending, MemId, SheetPlan};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tensorlend_layout::directory::DirectoryHead;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_layout::word::Bell;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};
use wake::WakePair;

#[derive(Debug)]
struct Memory {
    /// The descriptor, which the core's view of a client's sheet shares.
    fd: Arc<OwnedFd>,
    /// The mapping of a directory, whose bells the system layer rings. `None` for other memory.
    view: Option<View>,
    kind: Kind,
    /// The lane that frees or closes the memory.
    lane: Lane,
    /// Frees device memory when dropped. `None` for other memory.
    keeps: Option<Keeps>,
}

/// A value whose drop frees device memory.
struct Keeps(Box<dyn Send>);

impl std::fmt::Debug for Keeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeps")
    }
}

/// The kind of memory, which determines how the daemon closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A sheet. In system mode its lane first frees the sheet's pages.
    Sheet,
    /// A segment. Its lane first frees the segment's pages, because a client may keep the segment mapped.
    Segment,
    /// Device memory. A lane closes it, because the driver may be slow.
    Device,
    /// The producers' end of a wake pair. A lane closes it, because other processes may watch it.
    Wake,
}

/// Calls `act` with a writable descriptor of memory. Opens one only if the stored descriptor is read-only, which is possible
/// for memory of earlier builds. Returns `EAGAIN` if a process then has a file lease on the memory.
fn with_writable(fd: &OwnedFd, act: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    if rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::RDWR) {
        return act(fd.as_fd());
    }
    act(memfd::reopen_at_once(fd.as_fd(), Access::Write)?.as_fd())
}

/// Returns a descriptor of the memory in `fd` to send to a client. The result is never the stored
/// descriptor itself, because a client could then write through its open file without detection by
/// a probe.
pub fn lend(fd: &OwnedFd, how: Lending) -> io::Result<OwnedFd> {
    match how {
        Lending::Read => Ok(memfd::reopen_at_once(fd.as_fd(), Access::Read)?),
        Lending::Write => Ok(memfd::reopen_at_once(fd.as_fd(), Access::Write)?),
        // A wake descriptor is a duplicate of the socket itself, because each send to it is
        // non-blocking by flag. A descriptor of device memory is also a duplicate, because CUDA has
        // no read-only descriptors.
        Lending::Wake | Lending::Device => Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?),
        Lending::Woken => Err(io::Error::other("the other end of a wake pair is handed out once")),
        Lending::Wakeup => Err(io::Error::other("a wakeup eventfd is of a connection, not of memory")),
    }
}

/// Memory that a lane is about to close.
struct Retired {
    fd: Arc<OwnedFd>,
    /// A directory's mapping, which may be long.
    _view: Option<View>,
    is_sheet: bool,
    /// Whether the pages are freed before the close. In user mode a seal prevents it.
    punches: bool,
    lane: Lane,
}

impl Drop for Retired {
    fn drop(&mut self) {
        // Memory that still has a writer keeps its pages. A writer could hold the lock that the punch needs. The core closes
        // memory only when it has no writers, with one exception: the memory of sessions that a new daemon drops. Those clients
        // may still run and use their own memory.
        if !self.punches || !memfd::is_quiescent(self.fd.as_fd()).unwrap_or(false) {
            return;
        }
        // This frees the pages even if a reader still has the memory open or mapped. If a client accesses such a page later, the kernel
        // allocates a new page and charges it to that client's process, not to the daemon.
        let punched = with_writable(&self.fd, memfd::punch);
        if punched.is_ok() && !self.is_sheet {
            unreturned::compare(self.lane.uid());
        }
    }
}

/// All memory that the daemon holds.
#[derive(Debug, Default)]
pub struct Memories {
    table: BTreeMap<MemId, Memory>,
    /// The subscribers' ends of wake pairs, until a reply hands them out.
    woken: BTreeMap<MemId, OwnedFd>,
    /// Whether the daemon runs in system mode, in which no client has the daemon's uid.
    system: bool,
}

/// A new memfd, and its view for the core.
pub type Made = io::Result<(Arc<OwnedFd>, Option<View>)>;

/// The parameters of new memory.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub bytes: u64,
    /// Number of bytes, from the beginning, whose pages are allocated now. 0 for a segment whose
    /// pages the client allocates.
    pub bytes_first: u64,
    /// The header of a sheet. `None` for a segment.
    pub sheet: Option<SheetPlan>,
    /// Whether a sheet may use the memory reserved for administrators.
    pub reserved: bool,
}

impl Plan {
    /// Returns true for a directory, the only sheet that the daemon itself writes.
    pub fn is_directory(&self) -> bool {
        self.sheet.is_some_and(|plan| plan.magic == Magic::Directory)
    }

    fn claim(&self) -> Claim {
        if self.reserved { Claim::Administrators } else { Claim::Users }
    }
}

/// The parameters for making memory: whether the daemon runs in system mode, and the backing.
pub type Making = (bool, Backing);

/// Returns the name of a sheet's memfd. The name states the kind of the sheet, because no process
/// can change the name.
pub fn name_of(magic: Magic) -> &'static str {
    match magic {
        Magic::Directory => "tensorlend-directory",
        Magic::Catalogue => "tensorlend-catalogue",
        Magic::Cells => "tensorlend-cells",
        Magic::Slots => "tensorlend-slots",
        Magic::Leases => "tensorlend-leases",
        Magic::Stream => "tensorlend-stream",
    }
}

/// Creates memory. The function calls `may_continue` repeatedly, and stops if `may_continue` returns false.
///
/// In system mode (`system`), the function forbids further seals, because a seal could prevent the
/// daemon from freeing the pages when it closes the memory. In user mode, the function seals a
/// directory at once. The directory's readers have the daemon's uid, and only the seal prevents
/// them from reopening the directory for writing.
pub fn make(plan: Plan, how: Making, may_continue: &dyn Fn() -> bool) -> Made {
    match plan.sheet {
        Some(sheet) if plan.is_directory() => directory(plan, sheet, how, may_continue),
        _ => finish(plan, blank(plan, how, may_continue)?),
    }
}

/// Creates a directory, which the daemon keeps mapped writable.
fn directory(plan: Plan, sheet: SheetPlan, (system, backing): Making, may_continue: &dyn Fn() -> bool) -> Made {
    let fd = empty_sheet(plan.bytes, sheet, system)?;
    let writable = map_sheet(plan.bytes, &fd, Access::Write)?;
    backing.ask(&writable);
    let first = SheetRange { fd: fd.as_fd(), sheet: &writable, at: 0, bytes: plan.bytes_first };
    backing.allocate(first, plan.claim(), may_continue)?;
    sheet.initialise(&writable, plan.bytes);
    if !system {
        memfd::seal_writers(fd.as_fd())?;
    }
    Ok((fd.into(), Some(writable)))
}

/// Creates zeroed memory of this length and kind, other than a directory.
fn blank(plan: Plan, (system, backing): Making, may_continue: &dyn Fn() -> bool) -> io::Result<OwnedFd> {
    if let Some(sheet) = plan.sheet {
        let fd = empty_sheet(plan.bytes, sheet, system)?;
        backing.allocate_new(&fd, plan.bytes, plan.claim(), may_continue)?;
        return Ok(fd);
    }
    let payer = if plan.bytes_first == 0 { Payer::Client } else { Payer::Daemon };
    let fd = backing.make(plan.bytes, payer, may_continue)?;
    if system {
        memfd::seal_seals(fd.as_fd())?;
    }
    Ok(fd)
}

/// Writes the header of a sheet.
fn finish(plan: Plan, blank: OwnedFd) -> Made {
    let fd = Arc::new(blank);
    let Some(sheet) = plan.sheet else { return Ok((fd, None)) };
    let header = View::anonymous(size_of::<SheetHeader>());
    sheet.initialise(&header, plan.bytes);
    let mut words = [0; size_of::<SheetHeader>() / size_of::<u64>()];
    header.words(0, &mut words);
    recreated::write_all(fd.as_fd(), words.map(u64::to_ne_bytes).as_flattened(), 0)?;
    let view = unmapped::view(&fd, size::index(plan.bytes));
    Ok((fd, Some(view)))
}

fn empty_sheet(bytes: u64, sheet: SheetPlan, system: bool) -> io::Result<OwnedFd> {
    let fd = memfd::create_empty(name_of(sheet.magic), bytes)?;
    if system {
        memfd::seal_seals(fd.as_fd())?;
    }
    Ok(fd)
}

fn map_sheet(bytes: u64, fd: &OwnedFd, access: Access) -> io::Result<View> {
    map::sheet(fd, size::index(bytes), access)
}

impl Memories {
    /// Creates an empty table. `system` is true in system mode.
    pub fn new(system: bool) -> Self {
        Self { system, ..Self::default() }
    }

    fn add(&mut self, mem: MemId, memory: Memory) {
        let before = self.table.insert(mem, memory);
        assert!(before.is_none(), "memory is made once");
    }

    /// Adds new host memory to the table: a sheet of a client, which has a view, or a segment.
    pub fn insert(&mut self, mem: MemId, fd: impl Into<Arc<OwnedFd>>, view: Option<&View>, lane: Lane) {
        let kind = if view.is_none() { Kind::Segment } else { Kind::Sheet };
        self.add(mem, Memory { fd: fd.into(), view: None, kind, lane, keeps: None });
    }

    /// Adds a directory to the table. Its own lane frees it.
    pub fn insert_directory(&mut self, mem: MemId, fd: impl Into<Arc<OwnedFd>>, view: View) {
        let lane = Lane::Directory(mem);
        self.add(mem, Memory { fd: fd.into(), view: Some(view), kind: Kind::Sheet, lane, keeps: None });
    }

    /// Adds device memory to the table.
    pub fn insert_on_device(&mut self, mem: MemId, DeviceMemory { fd, keeps }: DeviceMemory, lane: Lane) {
        let keeps = keeps.map(Keeps);
        self.add(mem, Memory { fd: fd.into(), view: None, kind: Kind::Device, lane, keeps });
    }

    /// Makes a wake pair. The subscriber's end waits until [`Memories::lend`] hands it out.
    pub fn make_wake(&mut self, mem: MemId, lane: Lane) -> io::Result<()> {
        let WakePair { producers, subscriber } = wake::pair()?;
        self.table.insert(mem, Memory { fd: producers.into(), view: None, kind: Kind::Wake, lane, keeps: None });
        self.woken.insert(mem, subscriber);
        Ok(())
    }

    /// Drops the subscribers' ends of wake pairs that a reply has handed out.
    pub fn handed_out(&mut self, lent: &[(MemId, Lending)], lanes: &Lanes) {
        for (mem, _) in lent.iter().filter(|(_, how)| *how == Lending::Woken) {
            if let (Some(end), Some(memory)) = (self.woken.remove(mem), self.table.get(mem)) {
                lanes.close(memory.lane, end);
            }
        }
    }

    /// Records the user who writes this memory from now on. Its lane frees the memory.
    pub fn lent_to(&mut self, mem: MemId, lane: Lane) {
        if let Some(memory) = self.table.get_mut(&mem).filter(|memory| memory.view.is_none()) {
            memory.lane = lane;
        }
    }

    /// Adds the producers' end of a wake pair, which the fd store has passed. Earlier builds took both
    /// ends from clients, who can have left messages with any descriptors in it.
    pub fn adopt_wake(&mut self, mem: MemId, fd: OwnedFd, lane: Lane, lanes: &Lanes) -> bool {
        let Some(leftover) = wake::adopt(&fd) else {
            lanes.close(lane, fd);
            return false;
        };
        lanes.close(lane, leftover);
        self.table.insert(mem, Memory { fd: fd.into(), view: None, kind: Kind::Wake, lane, keeps: None });
        true
    }

    /// Closes the memory with this id, as its kind requires.
    pub fn release(&mut self, mem: MemId, lanes: &Lanes) {
        let Some(Memory { fd, view, kind, lane, keeps }) = self.table.remove(&mem) else { return };
        match kind {
            Kind::Segment | Kind::Sheet => {
                let is_sheet = kind == Kind::Sheet;
                lanes.free(lane, Retired { fd, _view: view, is_sheet, punches: self.system, lane });
            }
            Kind::Wake => lanes.close(lane, (fd, self.woken.remove(&mem))),
            // The descriptor is dropped before `keeps`, because the code that frees the memory may
            // check whether descriptors exist.
            Kind::Device => lanes.close(lane, (fd, keeps.map(|it| it.0))),
        }
    }

    /// Closes the objects that other processes hold, at the end of the daemon.
    pub fn release_foreign(&mut self, lanes: &Lanes) {
        let is_foreign = |_: &MemId, m: &mut Memory| m.kind == Kind::Wake;
        for (_, memory) in self.table.extract_if(.., is_foreign) {
            lanes.close(memory.lane, memory.fd);
        }
    }

    /// Returns the sheets that could not be read since the last call.
    pub fn take_unreadable(&self) -> Vec<MemId> {
        unmapped::take_unreadable(|fd| self.table.iter().find(|(_, it)| Arc::ptr_eq(&it.fd, fd)).map(|(&mem, _)| mem))
    }

    pub fn fd(&self, mem: MemId) -> Option<BorrowedFd<'_>> {
        self.table.get(&mem).map(|memory| memory.fd.as_fd())
    }

    fn get(&self, mem: MemId) -> io::Result<&OwnedFd> {
        self.table.get(&mem).map(|m| &*m.fd).ok_or_else(|| io::Error::other("no such memory"))
    }

    /// Returns a descriptor to send to a client, like [`lend`].
    pub fn lend(&self, mem: MemId, how: Lending) -> io::Result<OwnedFd> {
        match (how, self.woken.get(&mem)) {
            (Lending::Woken, Some(end)) => end.try_clone(),
            _ => lend(self.get(mem)?, how),
        }
    }

    /// Returns a duplicate of the stored descriptor, from which the daemon can lend the memory even
    /// after its release. The duplicate shares the open file of the stored descriptor, so no probe
    /// counts it as a further writer.
    pub fn hold(&self, mem: MemId) -> io::Result<OwnedFd> {
        self.get(mem)?.try_clone()
    }

    /// Returns a duplicate of a directory's descriptor, and its view, for the directory's lane.
    pub fn share(&self, mem: MemId) -> io::Result<(OwnedFd, View)> {
        let memory = self.table.get(&mem).and_then(|m| Some((&m.fd, m.view.clone()?)));
        let (fd, view) = memory.ok_or_else(|| io::Error::other("no such directory"))?;
        Ok((fd.try_clone()?, view))
    }

    /// Forbids new writers. The core requests this when the memory's writer has mapped the memory.
    /// In system mode no other process can open the memory for writing, and a seal would prevent
    /// the daemon from freeing the pages. So in system mode the function only marks the memory, for
    /// the next daemon.
    pub fn seal(&self, mem: MemId) -> io::Result<()> {
        let fd = self.get(mem)?;
        if self.system {
            return Ok(memfd::mark_mapped(fd.as_fd())?);
        }
        match with_writable(fd, memfd::seal_writers) {
            // The error is ignored if a client or the previous daemon has already set the same
            // seals.
            Err(_) if memfd::is_sealed(fd.as_fd())? => Ok(()),
            sealed => Ok(sealed?),
        }
    }

    /// Returns true if the memory has no writers. Returns false if the kernel cannot determine
    /// this.
    pub fn is_quiescent(&self, mem: MemId) -> bool {
        match self.get(mem).and_then(|fd| Ok(memfd::is_quiescent(fd.as_fd())?)) {
            Ok(quiescent) => quiescent,
            Err(error) => {
                tracing::warn!("checking whether a process can still write {mem:?}: {error}");
                false
            }
        }
    }

    /// Wakes the sleepers on one of a directory's bells.
    pub fn wake(&self, directory: MemId, bell: impl FnOnce(&DirectoryHead) -> &Bell) {
        let view = self.table.get(&directory).and_then(|m| m.view.as_ref());
        if let Some(head) = view.and_then(|view| view.at::<DirectoryHead>(0)) {
            tensorlend_os::futex::wake_all(bell(head));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lanes::tests::lanes;
    use tensorlend_layout::number::ClientNo;

    #[test]
    fn a_made_sheet_is_quiescent_although_the_daemon_reads_it() {
        let plan = SheetPlan { magic: Magic::Leases, owner: ClientNo::new(3), count: 0, first: 0 };
        let plan = Plan { bytes: 69632, bytes_first: 69632, sheet: Some(plan), reserved: false };
        let (fd, view) = make(plan, (true, Backing::default()), &|| true).unwrap();
        assert!(memfd::is_quiescent(fd.as_fd()).unwrap());
        let view = view.unwrap();
        assert!(SheetHeader::check(&view, Magic::Leases).is_ok());
        assert_eq!(view.word(std::mem::offset_of!(SheetHeader, owner)), Some(3));
    }

    #[test]
    fn what_is_lent_to_several_can_be_sealed_by_none_of_them() {
        let plan = Plan { bytes: 4096, bytes_first: 4096, sheet: None, reserved: false };
        for (system, sealed) in [(true, false), (false, true)] {
            let (fd, _) = make(plan, (system, Backing::default()), &|| true).unwrap();
            let lent = memfd::reopen(fd.as_fd(), Access::Write).unwrap();
            assert_eq!(memfd::seal_writers(lent.as_fd()).is_ok(), sealed);
        }
        assert!(make(plan, (false, Backing::default()), &|| false).is_err(), "called off");
    }

    #[test]
    fn a_directory_has_one_writer_in_either_mode() {
        let plan = SheetPlan { magic: Magic::Directory, owner: ClientNo::DAEMON, count: 0, first: 0 };
        let plan = Plan { bytes: 1 << 20, bytes_first: 65536, sheet: Some(plan), reserved: false };
        for system in [true, false] {
            let (fd, view) = make(plan, (system, Backing::default()), &|| true).unwrap();
            let lent = memfd::reopen(fd.as_fd(), Access::Read).unwrap();
            assert!(map::sheet(&lent, 1 << 20, Access::Write).is_err());
            // A client with the daemon's own uid could reopen the memory like this. In system mode no client has that
            // uid.
            let again = memfd::reopen(lent.as_fd(), Access::Write).unwrap();
            assert_eq!(map::sheet(&again, 1 << 20, Access::Write).is_ok(), system);
            view.unwrap().at::<tensorlend_layout::word::Word>(65536).unwrap().set(1);
        }
    }

    #[test]
    fn what_a_client_keeps_of_a_released_sheet_has_no_pages_in_system_mode() {
        let plan = SheetPlan { magic: Magic::Slots, owner: ClientNo::new(3), count: 1 << 10, first: 0 };
        let plan = Plan { bytes: 135_168, bytes_first: 135_168, sheet: Some(plan), reserved: false };
        for system in [true, false] {
            let mut memories = Memories::new(system);
            let (fd, view) = make(plan, (system, Backing::default()), &|| true).unwrap();
            memories.insert(MemId(1), fd, view.as_ref(), Lane::Daemon);
            let writer = memories.lend(MemId(1), Lending::Write).unwrap();
            // With a seal of its own, the client could prevent the daemon from freeing the pages.
            assert_eq!(memfd::seal_writers(writer.as_fd()).is_err(), system);
            memories.seal(MemId(1)).unwrap();
            let stored = memories.fd(MemId(1)).unwrap();
            assert!(memfd::is_sealed(stored).unwrap() || memfd::is_marked_mapped(stored).unwrap());
            drop(writer);
            let kept = memories.lend(MemId(1), Lending::Read).unwrap();
            assert!(memories.is_quiescent(MemId(1)));
            let lanes = lanes();
            memories.release(MemId(1), &lanes);
            drop(view);
            let blocks = || rustix::fs::fstat(&kept).unwrap().st_blocks;
            while system && blocks() > 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert_eq!(blocks() == 0, system);
        }
    }

    #[test]
    fn a_sheet_that_its_writer_locked_cannot_be_sealed() {
        let mut memories = Memories::default();
        let mem = MemId(1);
        memories.insert(mem, memfd::create("x", 4096).unwrap(), None, Lane::Daemon);
        let lent = memories.lend(mem, Lending::Write).unwrap();
        memfd::seal_seals(lent.as_fd()).unwrap();
        assert!(memories.seal(mem).is_err());
    }

    #[test]
    fn a_wake_pair_is_lent_to_producers_and_handed_out_once() {
        let (mut memories, lanes, mem) = (Memories::new(true), lanes(), MemId(1));
        memories.make_wake(mem, Lane::Daemon).unwrap();
        let subscriber = memories.lend(mem, Lending::Woken).unwrap();
        memories.handed_out(&[(mem, Lending::Woken)], &lanes);
        assert!(memories.lend(mem, Lending::Woken).is_err());
        let producer = memories.lend(mem, Lending::Wake).unwrap();
        memories.release(mem, &lanes);
        assert!(rustix::io::write(&producer, b"x").is_ok());
        drop(producer);
        let mut byte = [0; 2];
        assert_eq!(rustix::io::read(&subscriber, &mut byte), Ok(1));
        while rustix::io::read(&subscriber, &mut byte) == Err(rustix::io::Errno::AGAIN) {
            std::thread::yield_now();
        }
        assert_eq!(rustix::io::read(&subscriber, &mut byte), Ok(0), "the lane has closed the daemon's descriptor");
        assert!(memories.table.is_empty() && memories.woken.is_empty());
    }
}
