//! Rings: mapped, and what is left of those that are closed.

use crate::error::{Error, Result};
use crate::session::Session;
use std::os::fd::OwnedFd;
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::{self, LeaseTable};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{RingEntry, StreamRing};
use tensorlend_layout::wire::Item;
use tensorlend_layout::word::Cell;
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

/// What is left of a stream that its producer has closed: the messages, until nobody can reach them by its name.
pub struct ClosedRing {
    pub entries: Records<RingEntry>,
    pub index: u32,
    pub id: u64,
    pub sent: u64,
}

impl ClosedRing {
    /// Whether the stream was deleted or opened anew, and nobody reads its messages by his cursor alone.
    pub fn is_gone(&self, session: &Session) -> bool {
        let directory = &session.directory;
        if directory.streams.get(self.index as usize).is_some_and(|entry| entry.id.read() == self.id) {
            return false;
        }
        leases::scan_fence();
        // A table that cannot be read, the daemon being away, may hold everything.
        let keeps = |table: &LeaseTable| table.cursors.iter().any(|cursor| cursor.keeps(self.id, self.sent));
        let free = |catalogue| session.peers().with_leases(catalogue, keeps).is_ok_and(|keeps| keeps != Some(true));
        let free = directory.present().all(free);
        // As after a scan for leases.
        leases::reuse_fence();
        free
    }

    /// Its descriptor, by what it is.
    pub fn item(&self) -> Item {
        Item::Ring { stream: self.index, id: self.id }
    }

    /// The messages that it holds.
    pub fn values(&self) -> impl Iterator<Item = Cell> + '_ {
        self.entries.iter().map(|entry| Cell(entry.cell.peek())).filter(|value| value.is_value())
    }
}
