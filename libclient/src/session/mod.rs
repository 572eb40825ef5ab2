//! A session: what one client has mapped and holds.

pub mod reconnect;

use crate::alloc::heap::Taken;
use crate::alloc::{Allocator, Outside};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::instruments::{Instruments, Names};
use crate::link::Link;
use crate::link::descriptors::Descriptors;
use crate::link::shards::Shards;
use crate::names::announce::Pending;
use crate::names::cells::Cells;
use crate::peers::PeerTable;
use crate::segment::mapping::{length, sheet, typed};
use crate::stream::ring::ClosedRing;
use crate::stream::subscriber::Cursors;
use crate::sync::lock;
use crate::wait::Waiter;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, CellsPart, SlotsPart};
use tensorlend_layout::directory::{Directory, DirectoryHead};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::wire::{Hello, Item, Reply, Request};
use tensorlend_os::fork;
use tensorlend_os::memfd::Access;

/// One client's session with the daemon.
pub struct Session {
    pub link: Arc<Link>,
    pub catalogue: Sheet<Catalogue>,
    waiter: Waiter,
    pub cells: Mutex<Cells>,
    pub cursors: Mutex<Cursors>,
    pub cell_parts: [OnceLock<Records<CellRecord>>; CELL_PARTS as usize],
    /// One round of giving cells back at a time.
    pub housekeeping: Mutex<()>,
    /// One first publication or takeover at a time.
    pub binding: Mutex<()>,
    alloc: Arc<Allocator>,
    instruments: Arc<Instruments>,
    /// Streams that were closed here and still hold messages.
    pub closed: Mutex<Vec<ClosedRing>>,
    peers: Arc<PeerTable>,
    pub notices_seen: AtomicU64,
    /// Names that we have announced.
    pub pending: Mutex<Pending>,
    pub descriptors: Arc<Descriptors>,
    /// With this the daemon is asked to look for them.
    pub nudge: Mutex<OwnedFd>,
}

impl std::ops::Deref for Session {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Session {
    /// What it knows of waiting.
    #[inline]
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// What it has mapped of other clients.
    #[inline]
    pub fn peers(&self) -> &PeerTable {
        &self.peers
    }

    /// Its own memory.
    #[inline]
    pub fn alloc(&self) -> &Allocator {
        &self.alloc
    }

    /// What watches its allocations.
    pub fn instruments(&self) -> &Instruments {
        &self.instruments
    }

    /// Takes a slot of `bytes` bytes.
    #[inline]
    pub fn take(&self, bytes: u64) -> Result<Box<Taken>> {
        self.alloc.take(self, bytes)
    }

    /// Retires the messages of streams that were closed here and have since been deleted or opened anew, and are read by nobody
    /// who has no lease on them.
    pub fn retire_closed(&self) {
        let gone: Vec<ClosedRing> = {
            let mut closed = lock(&self.closed);
            closed.extract_if(.., |ring| ring.is_gone(self)).collect()
        };
        for ring in &gone {
            self.descriptors.remove(&ring.item());
        }
        for value in gone.iter().flat_map(ClosedRing::values) {
            self.alloc.retire(value);
        }
    }

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
        let descriptors = Arc::new(Descriptors::default());
        descriptors.insert(Item::Catalogue, catalogue);
        descriptors.insert(Item::Leases, table);
        let shards = Shards::new(leases);
        let link = Arc::new(Link::new(control, welcome, directory.clone(), shards.clone()));
        let peers = Arc::new(PeerTable::new(link.clone()));
        let session = Arc::new(Self {
            waiter: Waiter::new(link.clone()),
            cells: Mutex::new(Cells::default()),
            cursors: Mutex::new(Cursors::default()),
            cell_parts: [const { OnceLock::new() }; CELL_PARTS as usize],
            housekeeping: Mutex::new(()),
            binding: Mutex::new(()),
            alloc: Arc::new(Allocator::new(link.clone(), peers.clone(), descriptors.clone(), instruments.clone())),
            instruments,
            closed: Mutex::new(Vec::new()),
            peers,
            notices_seen: AtomicU64::new(0),
            pending: Mutex::new(Pending::default()),
            descriptors,
            nudge: Mutex::new(nudge),
            link,
            catalogue: words,
        });
        #[cfg(feature = "cuda")]
        session.lendings.janitor.know(&session);
        reconnect::watch(&session, view, &file)?;
        session.descriptors.insert(Item::Directory, file);
        Ok(session)
    }

    /// How many parts of its cells it has, besides the catalogue.
    pub fn cell_parts(&self) -> u8 {
        self.cell_parts.iter().skip(1).take_while(|part| part.get().is_some()).count() as u8
    }
}

impl Names for Session {
    fn delete(&self, name: &str) -> Result<bool> {
        self.delete(name)
    }
}

impl Outside for Session {
    fn notices(&self) -> Result<()> {
        self.notices()
    }

    fn retire_closed(&self) {
        self.retire_closed();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session of catalogue {} in {:?}", self.me(), self.welcome.namespace)
    }
}
