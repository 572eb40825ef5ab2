//! `tensorlendd --fd-store`: a process that stores the daemon's descriptors where no service
//! manager does, as in a container.
//!
//! The process does the work of systemd's fd store: it stores each descriptor under a name. One
//! daemon at a time is connected to the process's Unix socket. The process first sends this daemon
//! all stored descriptors. Then it stores and removes descriptors at the daemon's request. When the
//! daemon dies, the process first applies the requests that are still in the socket, and then
//! accepts the next daemon.
//!
//! The process must not die with its daemon, so it is small. After its start it allocates no
//! memory, and it does not interpret the names. A second thread closes the removed descriptors, because
//! the last close of memory takes time, and the last close of a wake pair runs the callbacks of all
//! watchers. If the process is killed, the daemon continues, connects to the next such process, and
//! stores everything again (`sys/fd_store.rs`).

use crate::sys::fd_store::channel::{NAME_BYTES_MAX, PACKET_BYTES, SEND_MAX, kind, receive, send};
use crate::sys::{DaemonError, Listener, Order, Orders, Signals, limits, notify};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{DumpableBehavior, Resource};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tensorlend_layout::size;
use tensorlend_layout::word::low8;

/// Maximum number of descriptors that one process stores.
const ENTRIES_MAX: usize = 1 << 18;
/// Maximum number of descriptors that wait for the closing thread.
const CLOSING_MAX: usize = 4096;
/// Number of descriptors that this process needs for itself, with a reserve.
const OWN_DESCRIPTORS: u64 = 32;
/// The stored descriptors. The table's length is fixed, so that storing allocates no memory.
struct Entries {
    /// A hash of each name. A search compares the hashes first.
    hashes: Vec<u64>,
    lengths: Vec<u8>,
    /// The names, [`NAME_BYTES_MAX`] bytes each.
    names: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    capacity: usize,
    /// The descriptors to close.
    removed: SyncSender<OwnedFd>,
}

/// Returns the FNV-1a hash of a name. Only the daemon chooses names, so no attacker can choose
/// collisions.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Entries {
    /// Returns an empty table, and the descriptors that it removes.
    fn new(capacity: usize) -> (Self, Receiver<OwnedFd>) {
        let (removed, closing) = sync_channel(capacity.min(CLOSING_MAX));
        let it = Self {
            hashes: vec![0; capacity],
            lengths: vec![0; capacity],
            names: vec![0; capacity * NAME_BYTES_MAX],
            descriptors: Vec::with_capacity(capacity),
            capacity,
            removed,
        };
        (it, closing)
    }

    /// Passes a descriptor to the closing thread. If the channel is full, closes the descriptor here.
    fn close(&self, fd: OwnedFd) {
        drop(self.removed.try_send(fd));
    }

    fn name(&self, at: usize) -> &[u8] {
        &self.names[at * NAME_BYTES_MAX..][..usize::from(self.lengths[at])]
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let hash = hash(name);
        let used = &self.hashes[..self.descriptors.len()];
        (0..used.len()).find(|&at| used[at] == hash && self.name(at) == name)
    }

    /// Stores a descriptor, or drops it if the table is full. The daemon knows the capacity, and
    /// does not exceed it.
    fn store(&mut self, name: &[u8], fd: OwnedFd) {
        if let Some(at) = self.find(name) {
            let former = std::mem::replace(&mut self.descriptors[at], fd);
            self.close(former);
            return;
        }
        let at = self.descriptors.len();
        if at == self.capacity || name.len() > NAME_BYTES_MAX {
            self.close(fd);
            return;
        }
        self.hashes[at] = hash(name);
        self.lengths[at] = low8(name.len() as u64);
        self.names[at * NAME_BYTES_MAX..][..name.len()].copy_from_slice(name);
        self.descriptors.push(fd);
    }

    /// Removes a descriptor. The last entry moves to the removed entry's position.
    fn remove(&mut self, name: &[u8]) {
        let Some(at) = self.find(name) else { return };
        let last = self.descriptors.len() - 1;
        let removed = self.descriptors.swap_remove(at);
        self.close(removed);
        self.hashes[at] = self.hashes[last];
        self.lengths[at] = self.lengths[last];
        self.names.copy_within(last * NAME_BYTES_MAX..(last + 1) * NAME_BYTES_MAX, at * NAME_BYTES_MAX);
    }
}

/// Runs the fd store on a socket at `path`, until SIGTERM or SIGINT. With `idle`, also until no daemon was connected for this
/// time, or until a daemon leaves without any stored descriptor.
///
/// # Errors
/// An error if the socket cannot be created, or if a system call of the loop fails.
pub fn run(path: &Path, idle: Option<Duration>) -> Result<(), DaemonError> {
    // `killall tensorlendd` ends the daemons, but not the descriptors that they leave.
    let _ = rustix::thread::set_name(c"tl-fd-store");
    let signals = Signals::catch()?;
    let system = |what| move |error: Errno| DaemonError::System { what, error: error.into() };
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("PR_SET_DUMPABLE"))?;
    limits::raise_descriptors();
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let capacity = size::index(limit.saturating_sub(OWN_DESCRIPTORS)).min(ENTRIES_MAX);
    let (mut entries, closing) = Entries::new(capacity);
    std::thread::Builder::new()
        .name("tensorlend-close".into())
        .spawn(move || closing.into_iter().for_each(drop))
        .map_err(|error| DaemonError::System { what: "starting a thread", error })?;
    let listener = Listener::bind(path, 0o600)?;
    notify::ready("stores descriptors");
    tracing::info!("stores up to {capacity} descriptors, on {}", path.display());
    // From here on, this process allocates no memory.
    let mut daemon: Option<OwnedFd> = None;
    let mut ends = idle.map(|idle| Instant::now() + idle);
    loop {
        let peer = daemon.as_ref().map_or(listener.fd.as_fd(), AsFd::as_fd);
        let mut ready = [PollFd::new(&signals, PollFlags::IN), PollFd::from_borrowed_fd(peer, PollFlags::IN)];
        let left = ends.filter(|_| daemon.is_none()).map(|at| at.saturating_duration_since(Instant::now()));
        match poll(&mut ready, left.and_then(|left| Timespec::try_from(left).ok()).as_ref()) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("poll")(error)),
        }
        let [stops, is_ready] = ready.map(|it| !it.revents().is_empty());
        if stops && signals.next() == Some(Order::Stop) {
            notify::stopping();
            return Ok(());
        }
        if !is_ready {
            continue;
        }
        if let Some(connection) = daemon.take() {
            daemon = serve(&connection, &mut entries).then_some(connection);
            if daemon.is_none() {
                let kept_for = idle.filter(|_| !entries.descriptors.is_empty()).unwrap_or_default();
                ends = idle.map(|_| Instant::now() + kept_for);
            }
        } else {
            daemon = accept(&listener.fd).filter(|connection| send_all(connection.as_fd(), &entries).is_ok());
        }
    }
}

/// Accepts a daemon that runs as this process's user or as root. Disconnects a daemon that does not
/// read for five seconds.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let connection = accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    let uid = rustix::net::sockopt::socket_peercred(&connection).ok()?.uid;
    set_socket_timeout(&connection, Timeout::Send, Some(SEND_MAX)).ok()?;
    (uid == rustix::process::geteuid() || uid.is_root()).then_some(connection)
}

/// Sends the daemon all stored descriptors, and then the capacity.
fn send_all(connection: BorrowedFd<'_>, entries: &Entries) -> rustix::io::Result<()> {
    let mut bytes = [0; PACKET_BYTES];
    bytes[0] = kind::ENTRY;
    for (at, fd) in entries.descriptors.iter().enumerate() {
        let name = entries.name(at);
        bytes[1..=name.len()].copy_from_slice(name);
        send(connection, &bytes[..=name.len()], Some(fd.as_fd()))?;
    }
    bytes[0] = kind::ALL_SENT;
    bytes[1..5].copy_from_slice(&size::count(entries.capacity).to_le_bytes());
    send(connection, &bytes[..5], None)?;
    tensorlend_layout::crash_point!("store: all sent");
    Ok(())
}

/// Applies one packet from the daemon. Returns false if the connection has ended.
fn serve(connection: &OwnedFd, entries: &mut Entries) -> bool {
    let mut bytes = [0; PACKET_BYTES];
    let (length, fd) = match receive(connection.as_fd(), &mut bytes) {
        Ok(packet) => packet,
        Err(Errno::INTR) => return true,
        Err(_) => return false,
    };
    match (bytes[..length].split_first(), fd) {
        (Some((&kind::ENTRY, name)), Some(fd)) => {
            entries.store(name, fd);
            tensorlend_layout::crash_point!("store: entry stored");
        }
        (Some((&kind::REMOVE, name)), None) => {
            entries.remove(name);
            tensorlend_layout::crash_point!("store: entry removed");
        }
        // The connection has ended, or the peer is not a daemon of this project.
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn descriptor() -> OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn entries_are_replaced_by_name_and_removed_in_any_order() {
        let (mut entries, closing) = Entries::new(3);
        for name in ["a", "", "c", "more than fit"] {
            entries.store(name.as_bytes(), descriptor());
        }
        assert_eq!(entries.descriptors.len(), 3, "the fourth is not stored");
        assert_eq!(closing.try_iter().count(), 1, "the closing thread closes the fourth");
        let last = descriptor();
        let number = last.as_raw_fd();
        entries.store(b"c", last);
        entries.remove(b"a");
        entries.remove(b"a");
        let at = entries.find(b"c").unwrap();
        assert_eq!(
            (entries.descriptors[at].as_raw_fd(), entries.find(b"a"), entries.name(at)),
            (number, None, &b"c"[..])
        );
        let long = [b'x'; NAME_BYTES_MAX];
        entries.store(&long, descriptor());
        assert!(entries.find(&long).is_some());
        entries.remove(b"");
        entries.remove(b"c");
        entries.remove(&long);
        assert!(entries.descriptors.is_empty());
        assert_eq!(closing.try_iter().count(), 3, "the channel holds as many descriptors as the table");
    }
}
