//! Files that the kernel made again after a live update.
//!
//! Linux's live update orchestrator preserves memfds over kexec, and a service manager can preserve
//! its fd store with them. The file of the new kernel has the same bytes and length. Its name, owner,
//! mode and inode are those of a new file, which any user may write. Some kernels also drop the seals
//! and accept no new ones. So the daemon identifies such a file only by its label, and copies the
//! bytes into memory of its own. It lends only the copy.
//!
//! No client of the former kernel is left. So no process holds the original, and no client that the
//! directory lists will return. The copies have no writers, and the daemon ends these clients as it
//! ends others that have exited.

use super::Making;
use crate::core::SLOTS_LOG2_MAX;
use crate::core::settings::Payer;
use crate::sys::backing::{Backing, Pages};
use crate::sys::room::{Claim, make_room};
use rustix::fs::{SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cells_count, part_bytes};
use tensorlend_layout::directory::{Directory, Geometry};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_layout::stream::{CAPACITY_MAX, RingEntry, StreamRing};
use tensorlend_layout::word::{LifeWord, ProcessWord};
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

/// Number of bytes read at a time.
const CHUNK: usize = 1 << 20;
/// Number of bytes that stay a hole if all of them are zero. The kernel fills the holes of a
/// preserved file with zeroes.
const HOLE: usize = 64 << 10;
/// Number of pauses, for all copies together, in which the fd store may close the originals of earlier copies.
/// If memory stays short, the daemon gives up the rest and serves its clients.
pub const PAUSES: u32 = 600;
const PAUSE: Duration = Duration::from_millis(50);

/// Returns true if no daemon has made this file under the running kernel. No process can change the
/// name that a daemon gives to its memory.
pub fn is_recreated(fd: &OwnedFd) -> bool {
    made_as(fd).is_none()
}

/// Returns the name with which the daemon created a memfd.
fn made_as(fd: &OwnedFd) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = path.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    name.starts_with("tensorlend-").then(|| name.to_owned())
}

/// Returns the maximum length of a sheet of this kind.
fn longest(magic: Magic) -> u64 {
    let bytes = match magic {
        Magic::Directory => return Geometry::LARGEST.bytes(),
        Magic::Catalogue => size_of::<Catalogue>(),
        Magic::Cells => part_bytes::<CellRecord>(cells_count(CELL_PARTS - 1)),
        Magic::Slots => part_bytes::<SlotRecord>(1 << SLOTS_LOG2_MAX),
        Magic::Leases => size_of::<LeaseTable>(),
        Magic::Stream => size_of::<StreamRing>() + CAPACITY_MAX as usize * size_of::<RingEntry>(),
    };
    bytes as u64
}

/// Copies a file into memory of this daemon. `magic` is the kind of a sheet, and `None` for a segment.
/// Returns the copy, and the writable view of a directory. In the copy of a directory, times, pids and
/// deadlines of the former kernel have ended.
/// Each wait for memory takes a pause from `pauses`.
pub fn copy(
    fd: &OwnedFd,
    magic: Option<Magic>,
    making: Making,
    now_ns: u64,
    pauses: &mut u32,
) -> io::Result<(OwnedFd, Option<View>)> {
    let (system, backing) = making;
    let stat = fstat(fd)?;
    let bytes = u64::try_from(stat.st_size).map_err(io::Error::other)?;
    if bytes == 0 || bytes > magic.map_or(u64::MAX, longest) {
        return Err(io::Error::other(format!("it has {bytes} bytes")));
    }
    let copy = match magic {
        None => {
            // write(2) does not work on reserved huge pages.
            let is_reserved = matches!(backing.pages, Pages::Reserved(_));
            let pages = if is_reserved { Pages::Ordinary } else { backing.pages };
            patiently(pauses, || Backing { pages, ..backing }.make(bytes, Payer::Daemon, &|| true))?
        }
        Some(magic) => {
            patiently(pauses, || make_room(bytes.min(stat.st_blocks.cast_unsigned() * 512), Claim::Users))?;
            memfd::create_empty(super::name_of(magic), bytes)?
        }
    };
    // The daemon allocates a directory only where it has contents, as before. Clients write the other
    // sheets and the segments, so their pages must exist.
    if magic.is_some_and(|magic| magic != Magic::Directory) {
        memfd::allocate(copy.as_fd(), 0, bytes, &|| true)?;
    }
    copy_data(fd, copy.as_fd(), bytes, HOLE)?;
    let view = match magic {
        Some(Magic::Directory) => {
            let view = map::sheet(&copy, size::index(bytes), Access::Write)?;
            if let Some(directory) = Directory::new(&view).filter(|it| it.geometry(bytes).is_some()) {
                begin_again(&directory, now_ns);
            }
            Some(view)
        }
        _ => None,
    };
    if system {
        memfd::seal_seals(copy.as_fd())?;
        memfd::mark_mapped(copy.as_fd())?;
    } else {
        memfd::seal_writers(copy.as_fd())?;
    }
    Ok((copy, view))
}

/// Repeats an allocation while memory is short, because the fd store needs a moment to close
/// originals.
fn patiently<T>(pauses: &mut u32, allocate: impl Fn() -> io::Result<T>) -> io::Result<T> {
    while *pauses > 0 {
        match allocate() {
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                *pauses -= 1;
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
    allocate()
}

/// Copies the first `bytes` bytes of a file to one of this length that contains zeroes. Does not write
/// where the original has a hole, or where a part of `hole` bytes is zero. 0 is no part.
pub fn copy_data(from: &OwnedFd, to: BorrowedFd<'_>, bytes: u64, hole: usize) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < bytes {
        at = match seek(from, SeekFrom::Data(at)) {
            Ok(at) => at,
            // The file has no more data.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(from, SeekFrom::Hole(at))?.min(bytes);
        while at < end {
            let step = buffer.len().min(size::index(end - at));
            let read = rustix::io::pread(from, &mut buffer[..step], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for part in buffer[..read].chunks(if hole == 0 { CHUNK } else { hole }) {
                if hole == 0 || part.iter().any(|byte| *byte != 0) {
                    write_all(to, part, at)?;
                }
                at += part.len() as u64;
            }
        }
    }
    Ok(())
}

pub fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(to, bytes, at)?;
        (bytes, at) = (&bytes[written..], at + written as u64);
    }
    Ok(())
}

/// Removes the words of a directory that the running kernel gives another meaning. Pids belong to
/// other processes now. Times count from another start of the machine, so the rest of a lifetime is
/// unknown, and names with a deadline end.
fn begin_again(directory: &Directory, now_ns: u64) {
    directory.settle_lives();
    for member in &*directory.members {
        member.process.set(ProcessWord(member.process.peek()).without_pid().0);
        member.since_ns.set(member.since_ns.peek().min(now_ns));
    }
    for segment in &*directory.segments {
        segment.since_ns.set(segment.since_ns.peek().min(now_ns));
    }
    for (_, name) in directory.entries() {
        let life = LifeWord(name.life.peek());
        if life.deadline_ns().is_some() {
            name.life.set(LifeWord::new(1, life.is_ephemeral()).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_copies_together_wait_for_a_limited_time() {
        let calls = std::cell::Cell::new(0);
        let full = || -> io::Result<()> {
            calls.set(calls.get() + 1);
            Err(io::ErrorKind::OutOfMemory.into())
        };
        let mut pauses = 2;
        assert!(patiently(&mut pauses, full).is_err());
        assert_eq!((calls.get(), pauses), (3, 0));
        assert!(patiently(&mut pauses, full).is_err());
        assert_eq!(calls.get(), 4, "the second copy does not wait");
    }
}
