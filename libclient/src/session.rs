//! A session: what one client has mapped and holds.

use crate::cells::Cells;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::instruments::Instruments;
use crate::parking::Parking;
use crate::peers::Peer;
use crate::reclaim::Retired;
use crate::shards::Shards;
use crate::sheets::{length, sheet, typed};
use crate::stream::ClosedRing;
use crate::subscription::Cursors;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, CellsPart, SlotsPart};
use tensorlend_layout::directory::{Directory, DirectoryHead};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::wire::{Hello, PROTOCOL_VERSION, Reply, Request, Welcome};
use tensorlend_layout::word::Word;
use tensorlend_layout::{LAYOUT_HASH, LAYOUT_VERSION};
use tensorlend_os::fork;
use tensorlend_os::memfd::Access;

/// One client's session with the daemon.
pub struct Session {
    pub control: Control,
    pub welcome: Welcome,
    pub directory: Directory,
    pub catalogue: Sheet<Catalogue>,
    pub shards: Arc<Shards>,
    pub parking: Parking,
    pub cells: Mutex<Cells>,
    pub cursors: Mutex<Cursors>,
    pub cell_parts: [OnceLock<Records<CellRecord>>; CELL_PARTS as usize],
    /// Held to read by every operation on a cell; held to write by who binds a cell to another name, so that no
    /// operation on the old name is in flight then.
    pub gate: RwLock<()>,
    /// One round of giving cells back at a time.
    pub housekeeping: Mutex<()>,
    /// One first publication or takeover at a time.
    pub binding: Mutex<()>,
    pub heap: Mutex<Heap>,
    pub instruments: Arc<Instruments>,
    pub retired: Mutex<Retired>,
    /// Streams that were closed here and still hold messages.
    pub closed: Mutex<Vec<ClosedRing>>,
    pub peers_table: RwLock<Vec<Option<Peer>>>,
    pub notices_seen: AtomicU64,
    forks: u64,
}

/// Locks, whatever a thread that panicked left: every structure behind these locks is valid between its own steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub fn open(
        control: Control,
        namespace: Option<String>,
        label: String,
        instruments: Arc<Instruments>,
    ) -> Result<Arc<Self>> {
        const _: () = assert!(size_of::<SlotsPart>() == size_of::<CellsPart>());
        fork::watch();
        let hello = Request::Hello(Hello {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            layout_version: LAYOUT_VERSION,
            layout_hash: LAYOUT_HASH,
            namespace,
            label,
        });
        let mut answer = control.ask(&hello, &[], "connect", "")?;
        let directory = answer.descriptor()?;
        let catalogue = answer.descriptor()?;
        let table = answer.descriptor()?;
        let Reply::Welcome(welcome) = answer.reply.clone() else { return answer.unexpected() };
        let view = sheet(&directory, Access::Read, Magic::Directory, length(&directory)?)?;
        debug_assert!(view.bytes() >= size_of::<DirectoryHead>());
        let directory = Directory::new(&view).ok_or(Error::Protocol { doing: "connect" })?;
        let catalogue = typed(sheet(&catalogue, Access::Write, Magic::Catalogue, size_of::<Catalogue>())?)?;
        let table: Sheet<LeaseTable> = typed(sheet(&table, Access::Write, Magic::Leases, size_of::<LeaseTable>())?)?;
        answer.acknowledge()?;
        let mut peers = Vec::new();
        peers.resize_with(directory.members.len(), || None);
        Ok(Arc::new(Self {
            parking: Parking::new(table.clone()),
            shards: Shards::new(table),
            cells: Mutex::new(Cells::default()),
            cursors: Mutex::new(Cursors::default()),
            cell_parts: [const { OnceLock::new() }; CELL_PARTS as usize],
            gate: RwLock::new(()),
            housekeeping: Mutex::new(()),
            binding: Mutex::new(()),
            heap: Mutex::new(Heap::new(instruments.clone())),
            instruments,
            retired: Mutex::new(Retired::default()),
            closed: Mutex::new(Vec::new()),
            peers_table: RwLock::new(peers),
            notices_seen: AtomicU64::new(0),
            forks: fork::generation(),
            control,
            welcome,
            directory,
            catalogue,
        }))
    }

    /// Refuses to serve a forked child.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// This client's catalogue number.
    #[inline]
    pub fn me(&self) -> u16 {
        self.welcome.catalogue
    }

    /// The word of a home in the directory.
    #[inline]
    pub fn home(&self, entry: u32) -> Option<&Word> {
        self.directory.names.get(entry as usize).map(|e| &e.home)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session of catalogue {} in {:?}", self.me(), self.welcome.namespace)
    }
}
