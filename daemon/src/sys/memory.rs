//! The descriptors behind the core's memory names.

use super::adopt::{self, Copies};
use super::backing::Backing;
use super::closer::Closer;
use super::device::DeviceMemory;
use crate::core::{Lending, MemId, Received, SheetPlan};
use rustix::net::AddressFamily;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tensorlend_layout::directory::DirectoryHead;
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::word::Bell;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

#[derive(Debug)]
struct Memory {
    fd: OwnedFd,
    /// Of directories, whose bells the shell rings.
    view: Option<View>,
    kind: Kind,
    /// What frees a device's memory.
    keeps: Option<Keeps>,
}

/// Something that is only there to be dropped.
struct Keeps(Box<dyn Send>);

impl std::fmt::Debug for Keeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeps")
    }
}

/// How memory is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In user mode at once: it is short, and the kernel's. In system mode elsewhere, its pages first.
    Sheet,
    /// Elsewhere, its pages first: somebody may keep it mapped.
    Segment,
    /// Elsewhere: the driver may take its time.
    Device,
    /// Elsewhere: its last close may sleep.
    Received,
}

/// The descriptor for what only writers may do. Of memory that a client handed back there is one to read only, so that the
/// daemon's own does not count as a writer when the kernel is asked for any.
fn writable(fd: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    if rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::RDWR) {
        return rustix::io::fcntl_dupfd_cloexec(fd, 3);
    }
    memfd::reopen(fd.as_fd(), Access::Write)
}

/// Memory that is to be closed.
struct Retired {
    fd: OwnedFd,
    is_sheet: bool,
}

impl Drop for Retired {
    fn drop(&mut self) {
        // The core closes sheets once they are quiet, except of sessions that a new daemon does not continue. Their clients may run
        // still, and read what they wrote into their own sheets.
        if self.is_sheet && !memfd::is_quiet(self.fd.as_fd()).unwrap_or(false) {
            return;
        }
        // Whoever keeps it open or mapped keeps the pages no longer. This fails for those of user mode, which are sealed. A
        // page that such a mapping touches later comes back, uncounted here: the kernel charges it to whoever touches it.
        let _ = writable(&self.fd).and_then(|fd| memfd::punch(fd.as_fd()));
    }
}

/// All memory that the daemon holds.
#[derive(Debug, Default)]
pub struct Memories {
    table: BTreeMap<MemId, Memory>,
    received: u64,
    /// Whether no client has the daemon's uid.
    system: bool,
    /// How long a segment may be that clients bring back, which a daemon before this one has lent them. `None`: they may
    /// bring none.
    pub takes_back: Option<u64>,
    copies: Copies,
}

/// A fresh memfd, and the view that the core gets of it.
pub type Made = io::Result<(OwnedFd, Option<View>)>;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its length.
    pub bytes: u64,
    /// How much of it there must be at first.
    pub bytes_first: u64,
    /// If it is a sheet: its header.
    pub sheet: Option<SheetPlan>,
}

impl Plan {
    /// Whether the daemon itself writes it.
    pub fn is_directory(&self) -> bool {
        self.sheet.is_some_and(|plan| plan.magic == Magic::Directory)
    }
}

/// Whether no client has the daemon's uid, and what memory is made of.
pub type Making = (bool, Backing);

/// The name of a sheet's memfd: it tells what it was made as, and nobody can change it.
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

/// Makes memory. A sheet gets its header here, through a mapping that is gone before anybody is lent it; what the
/// daemon itself does not write it keeps mapped read-only.
///
/// `system`: nobody may seal it later, so that its pages can be taken away when it is closed. Else a directory is sealed at once: its readers have the daemon's uid, and
/// nothing but the seal keeps them from opening it anew for writing. `go_on` is asked now and then whether it is wanted
/// still.
pub fn make(plan: Plan, (system, backing): Making, go_on: &dyn Fn() -> bool) -> Made {
    let Plan { bytes, bytes_first, sheet } = plan;
    let Some(plan) = sheet else {
        let fd = backing.make(bytes, go_on)?;
        if system {
            memfd::seal_seals(fd.as_fd())?;
        }
        return Ok((fd, None));
    };
    let fd = memfd::create_empty(name_of(plan.magic), bytes)?;
    if system {
        memfd::seal_seals(fd.as_fd())?;
    }
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let writable = map::sheet(&fd, length, Access::Write)?;
    backing.ask(&writable);
    backing.allocate(fd.as_fd(), &writable, (0, bytes_first), go_on)?;
    plan.initialise(&writable);
    if plan.magic != Magic::Directory {
        let view = map::sheet(&fd, length, Access::Read)?;
        return Ok((fd, Some(view)));
    }
    if !system {
        memfd::seal_writers(fd.as_fd())?;
    }
    Ok((fd, Some(writable)))
}

impl Memories {
    /// None yet. `system`: no client has the daemon's uid.
    pub fn new(system: bool) -> Self {
        Self { system, ..Self::default() }
    }

    /// Takes fresh memory in.
    pub fn insert(&mut self, mem: MemId, fd: OwnedFd, view: Option<&View>, directory: bool) {
        let kind = if view.is_none() { Kind::Segment } else { Kind::Sheet };
        let view = view.filter(|_| directory).cloned();
        let before = self.table.insert(mem, Memory { fd, view, kind, keeps: None });
        assert!(before.is_none(), "memory is made once");
    }

    /// Takes memory of a device in.
    pub fn insert_on_device(&mut self, mem: MemId, DeviceMemory { fd, keeps }: DeviceMemory) {
        let keeps = keeps.map(Keeps);
        let before = self.table.insert(mem, Memory { fd, view: None, kind: Kind::Device, keeps });
        assert!(before.is_none(), "memory is made once");
    }

    /// Takes a client's descriptor in. Only a Unix socket can wake: what it is, the kernel knows without asking a file
    /// system, and a send to it never sleeps if it is told not to.
    pub fn receive(&mut self, fd: OwnedFd) -> Received {
        self.received += 1;
        let mem = MemId::received(self.received);
        let wakes = rustix::net::sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX);
        // Whoever sends it, what is his to send and what is not: it is closed if it is not kept, and nothing else is done to it.
        let takes_back = self.takes_back.filter(|_| !wakes);
        let own = takes_back
            .and_then(|most| adopt::own((mem, &fd), most, &mut self.copies, &|m| self.table.contains_key(&m)));
        let (fd, view, own) = own.map_or((fd, None, None), |(fd, view, own)| (fd, view, Some(own)));
        self.table.insert(mem, Memory { fd, view, kind: Kind::Received, keeps: None });
        Received { mem, wakes, own }
    }

    /// Closes memory.
    pub fn release(&mut self, mem: MemId, closer: &Closer) {
        match self.table.remove(&mem) {
            Some(Memory { fd, kind: Kind::Segment, .. }) => closer.close(Retired { fd, is_sheet: false }),
            Some(Memory { fd, kind: Kind::Sheet, .. }) if self.system => closer.close(Retired { fd, is_sheet: true }),
            Some(Memory { fd, kind: Kind::Received, .. }) => closer.close(fd),
            // The descriptor first: what frees the memory may look whether anything stands for it.
            Some(Memory { fd, kind: Kind::Device, keeps, .. }) => closer.close((fd, keeps.map(|it| it.0))),
            Some(Memory { kind: Kind::Sheet, .. }) | None => {}
        }
    }

    /// Closes what came from clients, at the end.
    pub fn release_received(&mut self, closer: &Closer) {
        for (_, memory) in self.table.extract_if(.., |_, m| m.kind == Kind::Received) {
            closer.close(memory.fd);
        }
    }

    /// The descriptor itself.
    pub fn fd(&self, mem: MemId) -> Option<BorrowedFd<'_>> {
        self.table.get(&mem).map(|memory| memory.fd.as_fd())
    }

    fn get(&self, mem: MemId) -> io::Result<&OwnedFd> {
        self.table.get(&mem).map(|m| &m.fd).ok_or_else(|| io::Error::other("no such memory"))
    }

    /// A descriptor to send. Never the original: it would count as a writer that no probe can see.
    pub fn lend(&self, mem: MemId, how: Lending) -> io::Result<OwnedFd> {
        let fd = self.get(mem)?;
        match how {
            Lending::Read => Ok(memfd::reopen(fd.as_fd(), Access::Read)?),
            Lending::Write => Ok(memfd::reopen(fd.as_fd(), Access::Write)?),
            // Of a wake descriptor the socket itself: whoever writes to it says for each write that it shall not block. Of
            // device memory too, since CUDA knows no descriptors that are for reading only.
            Lending::Wake | Lending::Device => Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?),
            Lending::Nudge => Err(io::Error::other("a nudge is of a connection, not of memory")),
        }
    }

    /// Another descriptor of a directory, and its words, for a thread of the daemon.
    pub fn share(&self, mem: MemId) -> io::Result<(OwnedFd, View)> {
        let memory = self.table.get(&mem).and_then(|m| Some((&m.fd, m.view.clone()?)));
        let (fd, view) = memory.ok_or_else(|| io::Error::other("no such directory"))?;
        Ok((fd.try_clone()?, view))
    }

    /// Gives a part of memory back, if its seals allow it.
    pub fn discard(&self, mem: MemId, at: u64, bytes: u64) {
        if let Err(error) = self.get(mem).and_then(|fd| Ok(memfd::punch_part(fd.as_fd(), at, bytes)?)) {
            tracing::warn!("giving a part of a directory back: {error}");
        }
    }

    /// Its writer has mapped it: no new writer from now on. In system mode nobody else can open it for writing in any case, and
    /// a seal would keep the daemon from taking its pages away: there it is only marked, for the next daemon.
    pub fn seal(&self, mem: MemId) -> io::Result<()> {
        let fd = self.get(mem)?;
        if self.system {
            return Ok(memfd::mark_mapped(fd.as_fd())?);
        }
        match writable(fd).and_then(|fd| memfd::seal_writers(fd.as_fd())) {
            // Somebody sealed it before us, as well as we would have.
            Err(_) if memfd::is_sealed(fd.as_fd())? => Ok(()),
            sealed => Ok(sealed?),
        }
    }

    /// Whether nobody can write it any more. If the kernel does not say, somebody may.
    pub fn is_quiet(&self, mem: MemId) -> bool {
        match self.get(mem).and_then(|fd| Ok(memfd::is_quiet(fd.as_fd())?)) {
            Ok(quiet) => quiet,
            Err(error) => {
                tracing::warn!("asking whether {mem:?} is quiet: {error}");
                false
            }
        }
    }

    /// Wakes those who sleep on one of a directory's bells.
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

    #[test]
    fn a_made_sheet_is_quiet_although_the_daemon_reads_it() {
        let plan = SheetPlan { magic: Magic::Leases, owner: 3, count: 0, first: 0 };
        let plan = Plan { bytes: 69632, bytes_first: 69632, sheet: Some(plan) };
        let (fd, view) = make(plan, (true, Backing::default()), &|| true).unwrap();
        assert!(memfd::is_quiet(fd.as_fd()).unwrap());
        let head: &tensorlend_layout::header::SheetHeader = view.as_ref().unwrap().at(0).unwrap();
        assert!(head.check(Magic::Leases).is_ok());
        assert_eq!(head.owner.peek(), 3);
    }

    #[test]
    fn what_is_lent_to_several_can_be_sealed_by_none_of_them() {
        let plan = Plan { bytes: 4096, bytes_first: 4096, sheet: None };
        for (system, sealed) in [(true, false), (false, true)] {
            let (fd, _) = make(plan, (system, Backing::default()), &|| true).unwrap();
            let lent = memfd::reopen(fd.as_fd(), Access::Write).unwrap();
            assert_eq!(memfd::seal_writers(lent.as_fd()).is_ok(), sealed);
        }
        assert!(make(plan, (false, Backing::default()), &|| false).is_err(), "called off");
    }

    #[test]
    fn a_directory_has_one_writer_in_either_mode() {
        let plan = SheetPlan { magic: Magic::Directory, owner: 0, count: 0, first: 0 };
        let plan = Plan { bytes: 1 << 20, bytes_first: 65536, sheet: Some(plan) };
        for system in [true, false] {
            let (fd, view) = make(plan, (system, Backing::default()), &|| true).unwrap();
            let lent = memfd::reopen(fd.as_fd(), Access::Read).unwrap();
            assert!(map::sheet(&lent, 1 << 20, Access::Write).is_err());
            // What a client of the daemon's own uid could do; in system mode the daemon's uid is nobody else's.
            let again = memfd::reopen(lent.as_fd(), Access::Write).unwrap();
            assert_eq!(map::sheet(&again, 1 << 20, Access::Write).is_ok(), system);
            view.unwrap().at::<tensorlend_layout::word::Word>(65536).unwrap().set(1);
        }
    }

    #[test]
    fn what_a_client_keeps_of_a_released_sheet_has_no_pages_in_system_mode() {
        let plan = SheetPlan { magic: Magic::Slots, owner: 3, count: 1 << 10, first: 0 };
        let plan = Plan { bytes: 135_168, bytes_first: 135_168, sheet: Some(plan) };
        for system in [true, false] {
            let mut memories = Memories::new(system);
            let (fd, view) = make(plan, (system, Backing::default()), &|| true).unwrap();
            memories.insert(MemId(1), fd, view.as_ref(), false);
            let writer = memories.lend(MemId(1), Lending::Write).unwrap();
            // Else it could keep the pages from being taken away.
            assert_eq!(memfd::seal_writers(writer.as_fd()).is_err(), system);
            memories.seal(MemId(1)).unwrap();
            assert!(memfd::is_sealed(writer.as_fd()).unwrap() || memfd::is_marked_mapped(writer.as_fd()).unwrap());
            drop(writer);
            let kept = memories.lend(MemId(1), Lending::Read).unwrap();
            assert!(memories.is_quiet(MemId(1)));
            let closer = Closer::start().unwrap();
            memories.release(MemId(1), &closer);
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
        memories.insert(mem, memfd::create("x", 4096).unwrap(), None, false);
        let lent = memories.lend(mem, Lending::Write).unwrap();
        memfd::seal_seals(lent.as_fd()).unwrap();
        assert!(memories.seal(mem).is_err());
    }

    /// A directory as one is made in user mode, or one whose maker has left it open for writers.
    fn directory(sealed: bool) -> OwnedFd {
        let plan = SheetPlan { magic: Magic::Directory, owner: 0, count: 0, first: 0 };
        let plan = Plan { bytes: 1 << 20, bytes_first: 65536, sheet: Some(plan) };
        make(plan, (!sealed, Backing::default()), &|| true).unwrap().0
    }

    #[test]
    fn what_comes_back_is_of_a_daemons_making_and_no_longer_than_it_can_be() {
        let mut memories = Memories { takes_back: Some(8192), ..Memories::default() };
        let mut own = |fd: OwnedFd| memories.receive(fd).own.map(|own| (own.magic, own.bytes, own.view.is_some()));
        let segment = |bytes| memfd::create_empty("tensorlend-segment", bytes).unwrap();
        assert_eq!(own(segment(8192)), Some((None, 8192, false)));
        assert_eq!(own(segment(1 << 46)), None, "longer than the pool");
        assert_eq!(own(memfd::create_empty("somebodys", 4096).unwrap()), None);
        let unsealed = rustix::fs::memfd_create("tensorlend-segment", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(own(unsealed), None);
        let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert_eq!(own(write), None);
        let plan = SheetPlan { magic: Magic::Leases, owner: 3, count: 0, first: 0 };
        for (bytes, taken) in [(69632, true), (1 << 46, false)] {
            let fd = memfd::create_empty(name_of(Magic::Leases), bytes).unwrap();
            plan.initialise(&map::sheet(&fd, bytes as usize, Access::Write).unwrap());
            assert_eq!(own(fd).is_some(), taken, "{bytes}");
        }
        assert_eq!(own(directory(false)), None, "somebody can write it still");
    }

    #[test]
    fn a_directory_that_everybody_brings_is_copied_once() {
        let mut memories = Memories { takes_back: Some(8192), ..Memories::default() };
        let closer = Closer::start().unwrap();
        let fd = directory(true);
        let bring = |memories: &mut Memories| memories.receive(fd.try_clone().unwrap());
        let first = bring(&mut memories);
        let own = first.own.expect("a daemon made it");
        assert!(own.copied && own.view.is_some());
        let second = bring(&mut memories).own.expect("it is the same");
        assert!(second.view.is_none() && second.magic == Some(Magic::Directory));
        memories.release(first.mem, &closer);
        assert!(bring(&mut memories).own.expect("as before").view.is_some(), "the copy is gone");
        memories.copies = Copies::full();
        let other = memories.receive(directory(true)).own.expect("it is one");
        assert!(other.view.is_none(), "enough was copied");
    }

    #[test]
    fn wake_descriptors_are_unix_sockets() {
        use rustix::net::{SocketFlags, SocketType, socketpair};
        let mut memories = Memories::default();
        let closer = Closer::start().unwrap();
        let (_read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert!(!memories.receive(write).wakes);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!memories.receive(tcp.into()).wakes);
        assert!(!memories.receive(memfd::create("x", 4096).unwrap()).wakes);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let received = memories.receive(theirs);
        assert!(received.wakes);
        let lent = memories.lend(received.mem, Lending::Wake).unwrap();
        memories.release(received.mem, &closer);
        assert!(rustix::io::write(&lent, b"x").is_ok());
        drop(lent);
        let mut byte = [0; 2];
        assert_eq!(rustix::io::read(&ours, &mut byte), Ok(1));
        assert_eq!(rustix::io::read(&ours, &mut byte), Ok(0), "the closer has closed it");
        memories.release_received(&closer);
        assert!(memories.table.is_empty());
    }
}
