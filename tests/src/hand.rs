//! A hand-written client of the layout and the control protocol: it can do everything that a client program can, and
//! need not keep any rule.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tensorlend_layout::catalogue::{Catalogue, CellRecord};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::raw::{Sheet, View};
use tensorlend_layout::wire::{Hello, Reply, Request, Welcome, decode, encode};
use tensorlend_layout::word::{Absorbed, Cell, MemberState, OwnerWord};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_os::packet::{self, Packet};

/// Returns a SEQPACKET socket connected to this path.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns a valid hello.
pub fn hello(namespace: Option<&str>) -> Request {
    Request::Hello(Hello::new(namespace.map(str::to_owned), "by hand"))
}

/// Sends a request, and waits for the response.
pub fn ask(socket: &OwnedFd, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<(Reply, Vec<OwnedFd>)> {
    packet::send(socket, &encode(request), descriptors, SendFlags::empty())?;
    let Packet { bytes, descriptors, .. } = packet::receive(socket, RecvFlags::empty())?;
    let reply = decode(&bytes).ok_or_else(|| io::Error::other("hung up"))?;
    Ok((reply, descriptors))
}

/// Maps a whole memfd as shared words.
pub fn map(fd: &OwnedFd, access: Access) -> io::Result<View> {
    map::sheet(fd, rustix::fs::fstat(fd)?.st_size as usize, access)
}

fn wrong(reply: &Reply) -> io::Error {
    io::Error::other(format!("{reply:?}"))
}

/// The client.
pub struct Hand {
    /// The connection to the daemon.
    pub socket: OwnedFd,
    /// The daemon's response to the hello.
    pub welcome: Welcome,
    /// The directory's read-only descriptor, as received.
    pub directory_fd: OwnedFd,
    /// The directory's words.
    pub directory: Directory,
    /// The client's own catalogue, mapped writable.
    pub catalogue: Sheet<Catalogue>,
    /// The client's own lease table, mapped writable.
    pub leases: Sheet<LeaseTable>,
    /// The eventfd that wakes the daemon.
    pub wakeup: OwnedFd,
}

/// A lent segment.
pub struct Lent {
    /// The descriptor of the segment's bytes, as received.
    pub segment: OwnedFd,
    /// The descriptor of the segment's slot records.
    pub slots: OwnedFd,
    /// Length of the segment.
    pub bytes: u64,
    /// The first slot number.
    pub base: SlotNo,
}

impl Hand {
    /// Joins a namespace.
    ///
    /// # Errors
    /// Those of the kernel and of the daemon.
    pub fn join(socket: &Path, namespace: Option<&str>) -> io::Result<Self> {
        let socket = dial(socket)?;
        let (reply, descriptors) = ask(&socket, &hello(namespace), &[])?;
        let Reply::Welcome(welcome) = reply else { return Err(wrong(&reply)) };
        let [directory_fd, catalogue, leases, wakeup] =
            <[OwnedFd; 4]>::try_from(descriptors).map_err(|_| io::Error::other("four descriptors were promised"))?;
        let short = || io::Error::other("a sheet is too short");
        let directory = Directory::new(&map(&directory_fd, Access::Read)?).ok_or_else(short)?;
        let catalogue = Sheet::new(map(&catalogue, Access::Write)?).ok_or_else(short)?;
        let leases = Sheet::new(map(&leases, Access::Write)?).ok_or_else(short)?;
        let hand = Self { socket, welcome, directory_fd, directory, catalogue, leases, wakeup };
        hand.acknowledge()?;
        // After this response the member is listed, and its leases count.
        ask(&hand.socket, &Request::Ping, &[])?;
        Ok(hand)
    }

    /// Joins, and asks for new names until the daemon lets it announce the next. They are deleted again.
    ///
    /// # Errors
    /// The error of the kernel or the daemon.
    pub fn join_announcer(socket: &Path, namespace: Option<&str>) -> io::Result<Self> {
        let hand = Self::join(socket, namespace)?;
        let number = hand.welcome.client;
        let absorbed = &hand.directory.members[number.index()].absorbed;
        for asked in 0u32.. {
            if Absorbed(absorbed.read()).state() == MemberState::Open {
                break;
            }
            let name = format!("asked {asked} by {number}");
            for request in [Request::Bind { name: name.clone(), cell: CellNo::new(0) }, Request::Delete { name }] {
                let (reply, _) = hand.ask(&request)?;
                if let Reply::Refused(_) = reply {
                    return Err(wrong(&reply));
                }
            }
        }
        Ok(hand)
    }

    /// Acknowledges received descriptors.
    pub fn acknowledge(&self) -> io::Result<()> {
        Ok(packet::send(&self.socket, &encode(&Request::Ack), &[], SendFlags::empty())?)
    }

    /// Sends a request, and acknowledges the response's descriptors at once.
    pub fn ask(&self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let (reply, descriptors) = ask(&self.socket, request, &[])?;
        if !descriptors.is_empty() {
            self.acknowledge()?;
        }
        Ok((reply, descriptors))
    }

    /// Sends a request whose response has one descriptor, and does not acknowledge it yet.
    fn ask_for_one(&self, request: &Request) -> io::Result<(Reply, OwnedFd)> {
        let (reply, mut descriptors) = ask(&self.socket, request, &[])?;
        let one = descriptors.pop().ok_or_else(|| wrong(&reply))?;
        Ok((reply, one))
    }

    /// Requests a segment of its own; `map` creates writable mappings before the daemon seals it.
    pub fn segment<T>(&self, bytes: u64, slots_log2: u8, map: impl FnOnce(&Lent) -> io::Result<T>) -> io::Result<T> {
        let (reply, descriptors) = ask(&self.socket, &Request::Segment { bytes, slots_log2 }, &[])?;
        let Reply::Segment { bytes, base, .. } = reply else { return Err(wrong(&reply)) };
        let [segment, slots] =
            <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::Error::other("two descriptors were promised"))?;
        let mapped = map(&Lent { segment, slots, bytes, base });
        self.acknowledge()?;
        mapped
    }

    /// Requests the segment of another client's slot; the descriptor is read-only.
    pub fn segment_of(&self, owner: ClientNo, slot: SlotNo) -> io::Result<Lent> {
        let (reply, descriptors) = self.ask(&Request::SegmentOf { owner, slot })?;
        let Reply::Segment { bytes, base, .. } = reply else { return Err(wrong(&reply)) };
        let [segment, slots] =
            <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::Error::other("two descriptors were promised"))?;
        Ok(Lent { segment, slots, bytes, base })
    }

    /// Opens a stream of its own and returns the writable ring.
    pub fn stream(&self, name: &str, capacity: u32) -> io::Result<View> {
        let policy = tensorlend_layout::wire::Policy::DropOldest;
        let (_, ring) = self.ask_for_one(&Request::StreamOpen { name: name.into(), capacity, policy })?;
        let view = map(&ring, Access::Write);
        self.acknowledge()?;
        view
    }

    /// Requests another client's catalogue and lease table; the descriptors are read-only.
    pub fn sheets_of(&self, client: ClientNo) -> io::Result<(OwnedFd, OwnedFd)> {
        let (_, cells) = self.ask_for_one(&Request::CellsOf { client, part: 0 })?;
        self.acknowledge()?;
        let (_, leases) = self.ask_for_one(&Request::LeasesOf { client })?;
        self.acknowledge()?;
        Ok((cells, leases))
    }

    /// Returns the owner and the cell of a name, once the daemon has registered it.
    pub fn owner_word_of(&self, name: &str) -> io::Result<OwnerWord> {
        let hash = self.directory.hash(name.as_bytes());
        let start = Instant::now();
        while start.elapsed() < crate::PATIENCE {
            match self.directory.find(hash, name.as_bytes()) {
                Ok(Some(found)) if found.owner_word.is_live() => return Ok(found.owner_word),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(io::Error::other(format!("{name} is not in the directory")))
    }

    /// Returns the name's owner, the value of its cell, and the descriptors of the owner's catalogue and lease table.
    pub fn follow(&self, name: &str) -> io::Result<(ClientNo, Cell, OwnedFd, OwnedFd)> {
        let owner_word = self.owner_word_of(name)?;
        let (cells, leases) = self.sheets_of(owner_word.owner())?;
        let view = map(&cells, Access::Read)?;
        let at = std::mem::offset_of!(Catalogue, cells) + owner_word.cell().index() * size_of::<CellRecord>();
        let record: &CellRecord = view.at(at).ok_or(Errno::RANGE)?;
        Ok((owner_word.owner(), Cell(record.cell.read()), cells, leases))
    }

    /// Subscribes with a wake pair; returns the stream's index and id, and the subscriber's end.
    pub fn subscribe(&self, name: &str, cursor: u16) -> io::Result<(StreamLine, u64, OwnedFd)> {
        let (reply, descriptors) =
            self.ask(&Request::SubscribePollable { name: name.into(), cursor: CursorNo::new(cursor) })?;
        let Reply::Stream { stream, id, .. } = reply else { return Err(wrong(&reply)) };
        let wake = descriptors.into_iter().nth(1).ok_or_else(|| io::Error::other("a wake pair was promised"))?;
        Ok((stream, id, wake))
    }
}
