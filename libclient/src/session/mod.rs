//! A session, composed of the owners of one client's resources.

pub mod reconnect;
pub mod streams;
#[cfg(feature = "cuda")]
mod upkeep;
mod wanted;

use crate::alloc::taken::Taken;
use crate::alloc::{Allocator, Outside};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::instruments::{AllocationInstruments, Names};
use crate::link::Link;
use crate::link::forks;
use crate::link::shards::Shards;
use crate::names::NameTable;
use crate::peers::PeerTable;
use crate::segment::mapping::{length, sheet, typed};
use crate::wait::Waiter;
use std::any::Any;
use std::sync::{Arc, Weak};
use streams::StreamTable;
use tensorlend_layout::catalogue::{Catalogue, CellsPart, SlotsPart};
use tensorlend_layout::directory::{Directory, DirectoryHead};
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::wire::{Hello, Reply, Request};
use tensorlend_os::fork;
use tensorlend_os::memfd::Access;

/// One client's session with the daemon.
pub struct Session {
    link: Arc<Link>,
    waiter: Waiter,
    alloc: Arc<Allocator>,
    instruments: Arc<AllocationInstruments>,
    names: NameTable,
    streams: StreamTable,
    peers: Arc<PeerTable>,
    letting_go: wanted::LettingGo,
}

impl std::ops::Deref for Session {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Session {
    /// Returns the session's state of waiting: the parked word, spinning, wake descriptors.
    #[inline]
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Returns the owner of other clients' mapped memory.
    #[inline]
    pub fn peers(&self) -> &PeerTable {
        &self.peers
    }

    /// Returns the owner of this client's slots and segments.
    #[inline]
    pub fn alloc(&self) -> &Allocator {
        &self.alloc
    }

    /// Returns the owner of this client's names and cells.
    #[inline]
    pub fn names(&self) -> &NameTable {
        &self.names
    }

    /// Returns the owner of cursors and closed rings.
    #[inline]
    pub fn streams(&self) -> &StreamTable {
        &self.streams
    }

    /// Returns the part of the session that leases keep alive.
    #[inline]
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Starts to watch for segments that a new daemon wants out of memory.
    pub fn watch_wanted(self: &Arc<Self>) {
        self.letting_go.start(self);
    }

    /// Returns the session of a link. Returns `None` if only leases of the session remain.
    #[cfg(feature = "cuda")]
    pub fn of(link: &Link) -> Option<Arc<Self>> {
        link.session.get()?.upgrade()?.downcast().ok()
    }

    /// Returns the instruments: statistics, limits and tracking of allocations.
    pub fn instruments(&self) -> &AllocationInstruments {
        &self.instruments
    }

    #[inline]
    pub fn take(&self, bytes: u64) -> Result<Box<Taken>> {
        self.alloc.take(self, bytes)
    }

    /// Sends the hello message, and maps the directory, the catalogue and the lease table.
    pub fn open(
        control: Control,
        namespace: Option<String>,
        label: String,
        instruments: Arc<AllocationInstruments>,
    ) -> Result<Arc<Self>> {
        const _: () = assert!(size_of::<SlotsPart>() == size_of::<CellsPart>());
        fork::watch();
        let (mut answer, layout) = control.hello(Hello::new(namespace, label))?;
        let directory = answer.descriptor()?;
        let catalogue = answer.descriptor()?;
        let table = answer.descriptor()?;
        let wakeup = answer.descriptor()?;
        let Reply::Welcome(welcome) = answer.reply.clone() else { return answer.unexpected() };
        tensorlend_layout::crash_point!("connect: welcomed");
        let view = sheet(&directory, Access::Read, Magic::Directory, length(&directory)?)?;
        debug_assert!(view.bytes() >= size_of::<DirectoryHead>());
        let file = reconnect::identity(&directory)?;
        let directory = Directory::new(&view).ok_or(Error::Protocol { doing: "connect" })?;
        let words = typed(sheet(&catalogue, Access::Write, Magic::Catalogue, size_of::<Catalogue>())?)?;
        let leases: Sheet<LeaseTable> = typed(sheet(&table, Access::Write, Magic::Leases, size_of::<LeaseTable>())?)?;
        tensorlend_layout::crash_point!("connect: mapped");
        answer.acknowledge()?;
        tensorlend_layout::crash_point!("connect: acknowledged");
        control.set_protocol(welcome.protocol);
        // The daemon lists this member when it has read the acknowledgement. Before that, owners of tensors do not scan the
        // member's lease table, so the member must not take a lease; and a daemon that is replaced forgets the member.
        control.ask(&Request::Ping, "connect", "")?;
        let shards = Shards::new(leases);
        let link = Arc::new(Link::new(control, welcome, layout.version, directory.clone(), shards.clone()));
        let peers = Arc::new(PeerTable::new(link.clone()));
        let alloc = Arc::new(Allocator::new(link.clone(), peers.clone(), instruments.clone()));
        let session = Arc::new(Self {
            waiter: Waiter::new(link.clone()),
            names: NameTable::new(alloc.clone(), peers.clone(), words, wakeup, link.clone()),
            streams: StreamTable::new(alloc.clone(), peers.clone()),
            peers,
            alloc,
            instruments,
            letting_go: wanted::LettingGo::default(),
            link,
        });
        #[cfg(feature = "cuda")]
        session
            .lendings
            .janitor
            .know(session.directory.clone(), Arc::new(upkeep::Upkeep::new(&session.link, &session.peers)));
        let itself: Weak<dyn Any + Send + Sync> = Arc::<Self>::downgrade(&session);
        let _ = session.link.session.set(itself);
        forks::watch(&session.shards);
        reconnect::watch(&session, view, file);
        session.letting_go.start(&session);
        Ok(session)
    }
}

impl Names for Session {
    fn delete(&self, name: &str) -> Result<bool> {
        self.names.delete(name)
    }
}

impl Outside for Session {
    fn notices(&self) -> Result<()> {
        self.names.notices()
    }

    fn retire_closed(&self) {
        self.streams.retire_closed();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session of catalogue {} in {:?}", self.me(), self.welcome.namespace)
    }
}
