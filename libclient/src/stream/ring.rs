//! Mapping of rings.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use tensorlend_layout::header::{Magic, SheetHeader};
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
    // The daemon may have freed the ring and its pages since its reply. A subscriber then reads zeros, and finds in
    // the directory that the stream has ended.
    if access == Access::Write {
        SheetHeader::check(head.view(), Magic::Stream)?;
    }
    Ok((head, entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// The daemon frees the pages of a ring that it has given up, so a subscriber may map zeroes.
    #[test]
    fn a_reader_maps_a_ring_whose_pages_were_taken() {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 1 << 16).unwrap();
        let (_, entries) = map_ring(&fd, 16, Access::Read).unwrap();
        assert_eq!(entries.len(), 16);
        assert!(matches!(map_ring(&fd, 16, Access::Write), Err(Error::Sheet(_))));
        assert!(matches!(map_ring(&fd, 12, Access::Read), Err(Error::Protocol { .. })));
    }
}
