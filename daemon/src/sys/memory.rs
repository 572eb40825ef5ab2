//! The descriptors behind the core's memory names.

use crate::core::{Lending, MemId, Received, SheetPlan};
use rustix::fs::{FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tensorlend_layout::directory::DirectoryHead;
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

#[derive(Debug)]
struct Memory {
    fd: OwnedFd,
    /// Of directories, whose bells the shell rings.
    view: Option<View>,
}

/// All memory that the daemon holds.
#[derive(Debug, Default)]
pub struct Memories {
    table: BTreeMap<MemId, Memory>,
    received: u64,
}

/// A fresh memfd, and the view that the core gets of it.
pub type Made = io::Result<(OwnedFd, Option<View>)>;

/// Makes memory. A sheet gets its header here, through a mapping that is gone before anybody is lent it; what the
/// daemon itself does not write it keeps mapped read-only.
pub fn make(bytes: u64, sheet: Option<SheetPlan>) -> Made {
    let name = match sheet {
        None => "tensorlend-segment",
        Some(plan) => match plan.magic {
            Magic::Directory => "tensorlend-directory",
            Magic::Catalogue => "tensorlend-catalogue",
            Magic::Cells => "tensorlend-cells",
            Magic::Slots => "tensorlend-slots",
            Magic::Leases => "tensorlend-leases",
            Magic::Stream => "tensorlend-stream",
        },
    };
    let fd = memfd::create(name, bytes)?;
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    let Some(plan) = sheet else {
        // Allocated pages are zeroed at their first touch: here, and not in the client.
        drop(map::segment(&fd, length, Access::Write, true)?);
        return Ok((fd, None));
    };
    let writable = map::sheet(&fd, length, Access::Write)?;
    plan.initialise(&writable);
    let view = if plan.magic == Magic::Directory { writable } else { map::sheet(&fd, length, Access::Read)? };
    Ok((fd, Some(view)))
}

impl Memories {
    /// Takes fresh memory in.
    pub fn insert(&mut self, mem: MemId, fd: OwnedFd, view: Option<&View>, directory: bool) {
        let view = view.filter(|_| directory).cloned();
        let before = self.table.insert(mem, Memory { fd, view });
        assert!(before.is_none(), "memory is made once");
    }

    /// Takes a client's descriptor in.
    pub fn receive(&mut self, fd: OwnedFd) -> Received {
        let wakes = rustix::fs::fstat(&fd).is_ok_and(|stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket => true,
            FileType::Fifo => {
                rustix::fs::fcntl_getfl(&fd).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
            }
            _ => false,
        });
        self.received += 1;
        let mem = MemId::received(self.received);
        self.table.insert(mem, Memory { fd, view: None });
        Received { mem, wakes }
    }

    /// Closes memory.
    pub fn release(&mut self, mem: MemId) {
        self.table.remove(&mem);
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
            Lending::Wake => {
                let pipe =
                    rustix::fs::fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
                if pipe {
                    // A description of its own: nobody else can make its writes block.
                    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
                        return Ok(own);
                    }
                }
                Ok(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)
            }
        }
    }

    /// No new writer from now on.
    pub fn seal(&self, mem: MemId) {
        if let Err(error) = self.get(mem).and_then(|fd| Ok(memfd::seal_writers(fd.as_fd())?)) {
            tracing::error!("sealing {mem:?}: {error}");
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

    /// Wakes those who sleep on a directory's bell.
    pub fn wake(&self, directory: MemId) {
        let view = self.table.get(&directory).and_then(|m| m.view.as_ref());
        if let Some(head) = view.and_then(|view| view.at::<DirectoryHead>(0)) {
            tensorlend_os::futex::wake_all(&head.bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn a_made_sheet_is_quiet_although_the_daemon_reads_it() {
        let plan = SheetPlan { magic: Magic::Leases, owner: 3, count: 0, first: 0 };
        let (fd, view) = make(69632, Some(plan)).unwrap();
        assert!(memfd::is_quiet(fd.as_fd()).unwrap());
        let head: &tensorlend_layout::header::SheetHeader = view.as_ref().unwrap().at(0).unwrap();
        assert!(head.check(Magic::Leases).is_ok());
        assert_eq!(head.owner.peek(), 3);
    }

    #[test]
    fn wake_descriptors_are_pipes_or_sockets() {
        let mut memories = Memories::default();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let copy = rustix::io::fcntl_dupfd_cloexec(&read, 3).unwrap();
        assert!(!memories.receive(copy).wakes, "the read end wakes nobody");
        let received = memories.receive(write);
        assert!(received.wakes);
        let lent = memories.lend(received.mem, Lending::Wake).unwrap();
        assert!(rustix::fs::fcntl_getfl(&lent).unwrap().contains(OFlags::NONBLOCK));
        assert!(rustix::io::write(&lent, b"x").is_ok());
        assert!(!memories.receive(memfd::create("x", 4096).unwrap()).wakes);
    }
}
