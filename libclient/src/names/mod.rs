//! Names and the cells that hold their values: publishing, announcing, deleting.

pub mod announce;
mod append;
mod cells;
mod deleted;
mod hashed;
mod housekeeping;
pub mod lifetime;
pub mod publish;
pub mod version;

use crate::alloc::Allocator;
use crate::link::Link;
use crate::peers::PeerTable;
use announce::Pending;
use cells::Cells;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, cell_place};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_os::mutex::lock;

/// The owner of this client's catalogue: its cells and its announcements.
pub struct NameTable {
    link: Arc<Link>,
    peers: Arc<PeerTable>,
    alloc: Arc<Allocator>,
    catalogue: Sheet<Catalogue>,
    cells: Mutex<Cells>,
    cell_parts: [OnceLock<Records<CellRecord>>; CELL_PARTS as usize],
    /// A lock for the one thread that frees cells.
    housekeeping: Mutex<()>,
    /// A lock for the one thread that publishes a name for the first time, or takes over a name.
    binding: Mutex<()>,
    /// Read-locked while cells become items of lists, which may take long; write-locked while cells are returned after the
    /// daemon was replaced.
    appending: RwLock<()>,
    notices_seen: AtomicU64,
    /// This client's announcements.
    pending: Mutex<Pending>,
    /// The eventfd that wakes the daemon, so that it enters the announced names into the directory.
    wakeup: Mutex<OwnedFd>,
}

impl Deref for NameTable {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl NameTable {
    pub fn new(
        alloc: Arc<Allocator>,
        peers: Arc<PeerTable>,
        catalogue: Sheet<Catalogue>,
        wakeup: OwnedFd,
        link: Arc<Link>,
    ) -> Self {
        Self {
            link,
            peers,
            alloc,
            catalogue,
            cells: Mutex::new(Cells::default()),
            cell_parts: [const { OnceLock::new() }; CELL_PARTS as usize],
            housekeeping: Mutex::new(()),
            binding: Mutex::new(()),
            appending: RwLock::new(()),
            notices_seen: AtomicU64::new(0),
            pending: Mutex::new(Pending::default()),
            wakeup: Mutex::new(wakeup),
        }
    }

    /// Returns the shared catalogue.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Returns the record of one of this client's own cells.
    #[inline]
    pub fn own_cell(&self, cell: CellNo) -> Option<&CellRecord> {
        let (part, at) = cell_place(cell);
        if part == 0 {
            return self.catalogue.cells.get(at);
        }
        self.cell_parts.get(usize::from(part))?.get()?.get(at)
    }

    /// Returns the number of the last mapped part with cells, or 0 if only the catalogue itself has some. The daemon has lent
    /// all parts up to this one, also those that this client could not receive.
    pub fn cell_parts(&self) -> u8 {
        let is_mapped = |&part: &u8| self.cell_parts[usize::from(part)].get().is_some();
        (1..CELL_PARTS).rev().find(is_mapped).unwrap_or(0)
    }

    /// Replaces the eventfd after the daemon was replaced.
    pub fn set_wakeup(&self, wakeup: OwnedFd) {
        *lock(&self.wakeup) = wakeup;
    }
}
