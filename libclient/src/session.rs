//! A session: what one client has mapped and holds.

use crate::announce::Pending;
use crate::cells::Cells;
use crate::control::Control;
use crate::device::lendings::Lendings;
use crate::error::{Error, Result};
use crate::heap::Heap;
use crate::instruments::Instruments;
use crate::magazines::Magazines;
use crate::parking::Parking;
use crate::peers::Peers;
use crate::reclaim::Reclaiming;
use crate::reconnect;
use crate::shards::Shards;
use crate::sheets::{length, sheet, typed};
use crate::shelving::Shelving;
use crate::stream::ClosedRing;
use crate::subscription::Cursors;
use crate::waking::Tolls;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, CellsPart, SlotsPart};
use tensorlend_layout::directory::{Directory, DirectoryHead};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::wire::{Hello, Item, Reply, Request, Welcome};
use tensorlend_layout::word::Word;
use tensorlend_os::fork;
use tensorlend_os::memfd::Access;
pub use tensorlend_os::mutex::lock;

/// What keeps a session alive: as long as somebody holds it, the daemon knows this client, and its leases count. Leases
/// hold it when all else of the session is gone.
pub struct Link {
    pub control: Control,
    pub welcome: Welcome,
    pub directory: Directory,
    pub shards: Arc<Shards>,
    /// Device memory that it was lent, its own and others'.
    pub lendings: Lendings,
    forks: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // By now nothing of a device is mapped under this session: what was is told before the connection ends, so that
        // the daemon need not wait for the process to end.
        if !self.is_forked() {
            self.lendings.close(&self.control);
        }
    }
}

/// One client's session with the daemon.
pub struct Session {
    pub link: Arc<Link>,
    pub catalogue: Sheet<Catalogue>,
    pub parking: Parking,
    pub cells: Mutex<Cells>,
    pub cursors: Mutex<Cursors>,
    pub cell_parts: [OnceLock<Records<CellRecord>>; CELL_PARTS as usize],
    /// One round of giving cells back at a time.
    pub housekeeping: Mutex<()>,
    /// One first publication or takeover at a time.
    pub binding: Mutex<()>,
    pub heap: Mutex<Heap>,
    pub magazines: Magazines,
    pub instruments: Arc<Instruments>,
    /// Whether this daemon spills nothing, as it has said when something was to be shelved.
    pub shelve_refused: AtomicBool,
    /// Whether this daemon has ever said that memory is short, which it does where it spills.
    pub was_short: AtomicBool,
    /// One thread looks for what can be shelved.
    pub shelving: Mutex<Shelving>,
    /// One thread looks for what can be freed, for all of them.
    pub reclaiming: Mutex<Reclaiming>,
    /// What it cost to wake others.
    pub tolls: Tolls,
    /// Streams that were closed here and still hold messages.
    pub closed: Mutex<Vec<ClosedRing>>,
    pub peers: Peers,
    pub notices_seen: AtomicU64,
    /// Names that we have announced.
    pub pending: Mutex<Pending>,
    /// Descriptors of what this client was lent for its own, for a daemon that has lost them: see [`crate::reconnect`]. Those
    /// that can be written with count as writers: what is given back goes from here first.
    pub estate: Mutex<BTreeMap<Item, OwnedFd>>,
    /// With this the daemon is asked to look for them.
    pub nudge: Mutex<OwnedFd>,
    /// How many pins the heap knows, to be asked without its lock.
    pub pins: AtomicUsize,
}

impl std::ops::Deref for Session {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
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
        let hello = Request::Hello(Hello::new(namespace, label));
        let mut answer = control.ask(&hello, &[], "connect", "")?;
        let directory = answer.descriptor()?;
        let catalogue = answer.descriptor()?;
        let table = answer.descriptor()?;
        let nudge = answer.descriptor()?;
        let Reply::Welcome(welcome) = answer.reply.clone() else { return answer.unexpected() };
        tensorlend_layout::crash_point!("connect: welcomed");
        let view = sheet(&directory, Access::Read, Magic::Directory, length(&directory)?)?;
        debug_assert!(view.bytes() >= size_of::<DirectoryHead>());
        let file = directory;
        let directory = Directory::new(&view).ok_or(Error::Protocol { doing: "connect" })?;
        let words = typed(sheet(&catalogue, Access::Write, Magic::Catalogue, size_of::<Catalogue>())?)?;
        let leases: Sheet<LeaseTable> = typed(sheet(&table, Access::Write, Magic::Leases, size_of::<LeaseTable>())?)?;
        tensorlend_layout::crash_point!("connect: mapped");
        answer.acknowledge()?;
        tensorlend_layout::crash_point!("connect: acknowledged");
        // The daemon lists this member when it reads the acknowledgement. Before that, the owners of tensors do not look at the
        // lease table, so no lease may be taken.
        control.ask(&Request::Ping, &[], "connect", "")?;
        let estate = [(Item::Catalogue, catalogue), (Item::Leases, table)];
        let (catalogue, table) = (words, leases);
        let shards = Shards::new(table.clone());
        let session = Arc::new(Self {
            parking: Parking::new(table),
            cells: Mutex::new(Cells::default()),
            cursors: Mutex::new(Cursors::default()),
            cell_parts: [const { OnceLock::new() }; CELL_PARTS as usize],
            housekeeping: Mutex::new(()),
            binding: Mutex::new(()),
            heap: Mutex::new(Heap::new(instruments.clone(), welcome.segment_bytes)),
            magazines: Magazines::new(shards.clone()),
            instruments,
            shelve_refused: AtomicBool::new(false),
            was_short: AtomicBool::new(false),
            shelving: Mutex::default(),
            reclaiming: Mutex::new(Reclaiming::default()),
            tolls: Tolls::default(),
            closed: Mutex::new(Vec::new()),
            peers: Peers::new(directory.members.len(), shards.clone()),
            notices_seen: AtomicU64::new(0),
            pending: Mutex::new(Pending::default()),
            estate: Mutex::new(BTreeMap::from(estate)),
            nudge: Mutex::new(nudge),
            pins: AtomicUsize::new(0),
            link: Arc::new(Link {
                control,
                welcome,
                directory,
                shards,
                lendings: Lendings::default(),
                forks: fork::generation(),
            }),
            catalogue,
        });
        #[cfg(feature = "cuda")]
        session.lendings.janitor.know(&session);
        reconnect::watch(&session, view, &file)?;
        lock(&session.estate).insert(Item::Directory, file);
        Ok(session)
    }

    /// How many parts of its cells it has, besides the catalogue.
    pub fn cell_parts(&self) -> u8 {
        self.cell_parts.iter().skip(1).take_while(|part| part.get().is_some()).count() as u8
    }
}

impl Link {
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

    /// Whether the daemon still counts this session's leases and cursors. What it was asked after must have been read.
    #[inline]
    pub fn is_member(&self) -> bool {
        // The directory that is mapped may be one that nobody writes any more.
        !self.control.is_dead() && self.directory.members[usize::from(self.me())].member.peek() == self.welcome.member
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
