//! Maps the memory that the daemon lends, and checks it.

use crate::error::{Error, Result};
use rustix::fs::fstat;
use std::io::{Error as Cause, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use tensorlend_layout::catalogue::{SlotsPart, part_bytes};
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::{Records, Shared, Sheet, View};
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::wire::Refusal;
use tensorlend_os::memfd::{self, Access};
use tensorlend_os::{cgroup, map};

/// Bytes of free memory that must remain after this client has allocated the pages of a segment. They are for the
/// program's own memory, without which the kernel would kill a process of the cgroup.
const MARGIN: u64 = 8 << 20;

/// Maps a sheet. Checks its header if the daemon wrote it: the header of a directory, or of a sheet that was just
/// lent to this client. Another client can write the header of its own sheet, so that header proves nothing. A client
/// that damages its header must not keep other clients from reading elsewhere. The kernel reports a sheet's length.
pub fn sheet(fd: &OwnedFd, access: Access, magic: Magic, bytes: usize) -> Result<View> {
    let view = map::sheet(fd, bytes, access).map_err(Error::system("map shared memory"))?;
    if access == Access::Write || magic == Magic::Directory {
        SheetHeader::check(&view, magic)?;
    }
    Ok(view)
}

pub fn length(fd: &OwnedFd) -> Result<usize> {
    let stat = fstat(fd).map_err(|e| Error::System { doing: "inspect a descriptor", cause: e.into() })?;
    usize::try_from(stat.st_size).map_err(|_| Error::Protocol { doing: "map shared memory" })
}

pub fn typed<T: Shared>(view: View) -> Result<Sheet<T>> {
    Sheet::new(view).ok_or(Error::Protocol { doing: "map shared memory" })
}

/// Maps a part, and returns the records after its header.
pub fn records<T: Shared>(fd: &OwnedFd, access: Access, magic: Magic, count: usize) -> Result<Records<T>> {
    let view = sheet(fd, access, magic, part_bytes::<T>(count))?;
    Records::new(&view, size_of::<SlotsPart>(), count).ok_or(Error::Protocol { doing: "map shared memory" })
}

/// Maps a new segment of this client. If the daemon has not allocated the pages, allocates them first, so that the kernel
/// charges them to the cgroup of this process.
///
/// # Errors
/// A limit if the cgroup, or the machine, has too little memory left.
pub fn own_segment(fd: &OwnedFd, bytes: usize) -> Result<map::Segment> {
    let failed = Error::system("map a segment");
    if !memfd::is_whole(fd.as_fd()).map_err(|e| failed(e.into()))? {
        let room = cgroup::room();
        if room < (bytes as u64).saturating_add(MARGIN) {
            let left = bytes_text(room);
            return Err(no_memory(bytes, format!("the cgroup of this process, or the machine, has {left} left")));
        }
        allocate(fd, bytes).map_err(|e| match e.kind() {
            ErrorKind::OutOfMemory | ErrorKind::StorageFull => no_memory(bytes, e.to_string()),
            _ => failed(e),
        })?;
    }
    map::segment(fd, bytes, Access::Write, true).map_err(failed)
}

fn no_memory(bytes: usize, reason: String) -> Error {
    let refusal = Refusal::Memory { bytes: bytes as u64, reason };
    Error::Refused { doing: "allocate a segment".into(), refusal }
}

fn allocate(fd: &OwnedFd, bytes: usize) -> std::io::Result<()> {
    if !memfd::is_marked_for_huge_pages(fd.as_fd())? {
        return Ok(memfd::fill(fd.as_fd(), bytes as u64, &|| true)?);
    }
    // Only a mapping can request huge pages. If the kernel has none, the next call allocates ordinary pages.
    let _ = map::segment(fd, bytes, Access::Write, false).and_then(|mapped| mapped.populate_huge());
    Ok(memfd::allocate(fd.as_fd(), 0, bytes as u64, &|| true)?)
}

/// Maps another client's segment. With `populate`, enters its pages into the page table, so that no later read causes a
/// page fault.
///
/// # Errors
/// An error if a page is missing. The writer has removed it, or has never allocated it. The mapping would allocate the
/// page, and the kernel would charge it to the cgroup of this process.
pub fn peer_segment(fd: &OwnedFd, bytes: usize, populate: bool) -> Result<map::Segment> {
    let failed = Error::system("map a segment");
    if !memfd::is_whole(fd.as_fd()).map_err(|e| failed(e.into()))? {
        return Err(failed(Cause::other("its writer has removed pages from it, or has not allocated them")));
    }
    map::segment(fd, bytes, Access::Read, populate).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_allocates_its_own_pages_and_no_pages_of_others() {
        let bytes = 4 << 20;
        for huge in [false, true] {
            let fd = memfd::create_empty("test", bytes).unwrap();
            if huge {
                memfd::mark_for_huge_pages(fd.as_fd()).unwrap();
            }
            let error = peer_segment(&fd, bytes as usize, true).err().unwrap();
            assert!(error.to_string().contains("removed pages"), "{error}");
            assert_eq!(fstat(&fd).unwrap().st_blocks, 0, "a reader allocates nothing");
            own_segment(&fd, bytes as usize).unwrap();
            assert!(memfd::is_whole(fd.as_fd()).unwrap());
            peer_segment(&fd, bytes as usize, true).unwrap();
            memfd::punch_part(fd.as_fd(), 8192, 4096).unwrap();
            assert!(peer_segment(&fd, bytes as usize, true).is_err(), "one page is missing");
        }
    }

    #[test]
    fn a_segment_that_the_machine_has_no_memory_for_is_refused_and_has_no_pages() {
        let fd = memfd::create_empty("test", 1 << 50).unwrap();
        let error = own_segment(&fd, 1 << 50).err().unwrap();
        assert!(error.is_limit() && error.to_string().contains("the cgroup of this process"), "{error}");
        assert_eq!(fstat(&fd).unwrap().st_blocks, 0);
    }
}
