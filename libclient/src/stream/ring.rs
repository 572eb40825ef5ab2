//! Rings, mapped.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{RingEntry, StreamRing};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

/// Maps a ring: its head and its entries.
pub fn map_ring(fd: &OwnedFd, capacity: u32, access: Access) -> Result<(Sheet<StreamRing>, Records<RingEntry>)> {
    let wrong = || Error::Protocol { doing: "open stream" };
    if !capacity.is_power_of_two() {
        return Err(wrong());
    }
    let bytes = (size_of::<StreamRing>() + capacity as usize * size_of::<RingEntry>()).next_multiple_of(4096);
    let view = map::sheet(fd, bytes, access).map_err(Error::system("map a stream"))?;
    let entries = Records::new(&view, size_of::<StreamRing>(), capacity as usize).ok_or_else(wrong)?;
    let head: Sheet<StreamRing> = Sheet::new(view).ok_or_else(wrong)?;
    head.sheet.check(Magic::Stream)?;
    Ok((head, entries))
}
