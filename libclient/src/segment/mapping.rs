//! Mapping what the daemon lends, and checking that it is what it should be.

use crate::error::{Error, Result};
use rustix::fs::fstat;
use std::os::fd::OwnedFd;
use tensorlend_layout::catalogue::{SlotsPart, part_bytes};
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::{Records, Shared, Sheet, View};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

/// Maps a sheet, and checks that it is what it should be if it is the daemon's word: a directory, or a sheet of our own that
/// was just lent. The header of another client's sheet is that client's to write. It says nothing, and a client that spoils
/// it must not keep others from what they look for elsewhere; how long the sheet is, the kernel tells.
pub fn sheet(fd: &OwnedFd, access: Access, magic: Magic, bytes: usize) -> Result<View> {
    let view = map::sheet(fd, bytes, access).map_err(Error::system("map a sheet"))?;
    let header: &SheetHeader = view.at(0).ok_or(Error::Protocol { doing: "mapping a sheet" })?;
    if access == Access::Write || magic == Magic::Directory {
        header.check(magic)?;
    }
    Ok(view)
}

pub fn length(fd: &OwnedFd) -> Result<usize> {
    let stat = fstat(fd).map_err(|e| Error::System { doing: "look at a descriptor", cause: e.into() })?;
    usize::try_from(stat.st_size).map_err(|_| Error::Protocol { doing: "mapping a sheet" })
}

pub fn typed<T: Shared>(view: View) -> Result<Sheet<T>> {
    Sheet::new(view).ok_or(Error::Protocol { doing: "mapping a sheet" })
}

/// The records behind the head of a part.
pub fn records<T: Shared>(fd: &OwnedFd, access: Access, magic: Magic, count: usize) -> Result<Records<T>> {
    let view = sheet(fd, access, magic, part_bytes::<T>(count))?;
    Records::new(&view, size_of::<SlotsPart>(), count).ok_or(Error::Protocol { doing: "mapping a part" })
}
