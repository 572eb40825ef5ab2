//! Maps the memory that the daemon lends, and checks it.

use crate::error::{Error, Result};
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use tensorlend_layout::catalogue::{SlotsPart, part_bytes};
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::{Records, Shared, Sheet, View};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

/// Maps a sheet. Checks its header if the daemon wrote it: the header of a directory, or of a sheet that was just
/// lent to this client. Another client can write the header of its own sheet, so that header proves nothing. A client
/// that damages its header must not keep other clients from reading elsewhere. The kernel reports a sheet's length.
pub fn sheet(fd: &OwnedFd, access: Access, magic: Magic, bytes: usize) -> Result<View> {
    let view = map::sheet(fd, bytes, access).map_err(Error::system("map shared memory"))?;
    let header: &SheetHeader = view.at(0).ok_or(Error::Protocol { doing: "map shared memory" })?;
    if access == Access::Write || magic == Magic::Directory {
        header.check(magic)?;
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
