//! The fd store. It stores descriptors beyond the end of this daemon, and passes them to the next
//! one.
//!
//! A service manager can have an fd store. systemd's store (sd_notify(3), `FDSTORE=1` and
//! `FDSTOREREMOVE=1`) has a duplicate of each stored descriptor, under a name, until the unit is
//! unloaded. It passes all of them to the daemon's next start. Without a service manager, a
//! separate process is the store (`tensorlendd --fd-store`): the one that the option `fd_store` names, or one that a
//! user's daemon starts for itself.

pub mod channel;
pub mod own;

use super::{DaemonError, notify};
use crate::config::StoreAt;
use crate::core::MemId;
use crate::core::label::Label;
use channel::{NAME_BYTES_MAX, PACKET_BYTES, SEND_MAX, kind, receive, send};
use own::Starter;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use sd_notify::NotifyState;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tensorlend_layout::wire::FdStoreState;
use tensorlend_os::clock::boottime_ns;
use tensorlend_os::fork::Unshared;

/// Maximum time for which a starting daemon waits for its fd store. The store may have to start, or
/// the previous daemon may have to end.
const START_MAX: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two attempts to connect, or to store what is missing. Each failed attempt doubles
/// the pause.
const RETRY_MIN_NS: u64 = 500_000_000;
const RETRY_MAX_NS: u64 = 30_000_000_000;
/// Pause after an attempt that stored some of the missing descriptors.
const PROGRESS_NS: u64 = 20_000_000;
/// Maximum time for which the loop waits for the response of a restarted store.
const WELCOME_MAX: Duration = Duration::from_millis(100);

fn no_room(most: usize) -> String {
    format!("it has room for {most} descriptors only")
}

/// A descriptor that the store has passed, with its label.
pub type Stored = (Label, OwnedFd);

/// The fd store, and the descriptors that a previous daemon left in it.
#[derive(Default)]
pub struct Inherited {
    pub fd_store: FdStore,
    pub stored: Vec<Stored>,
}

/// The store to which the daemon sends its descriptors.
#[derive(Debug, Default)]
enum Store {
    #[default]
    None,
    ServiceManager(Room),
    Process(Connection),
}

/// The room in the service manager's store.
#[derive(Debug, Default)]
struct Room {
    /// The number of descriptors that the manager stores, if it has told the number to this process. The manager drops
    /// further descriptors, and does not report this.
    most: Option<usize>,
    /// The names of the descriptors in the store.
    entries: BTreeSet<String>,
}

impl Room {
    /// Returns the room of the manager that started this process. systemd sets the variable from version 254 on.
    fn of_environment(stored: &[Stored]) -> Self {
        let most = std::env::var("FDSTORE").ok().and_then(|text| text.parse().ok());
        Self { most, entries: stored.iter().map(|(label, _)| label.to_string()).collect() }
    }

    fn has_room(&self) -> bool {
        self.most.is_none_or(|most| self.entries.len() < most)
    }
}

/// The connection to a `tensorlendd --fd-store`.
#[derive(Debug, Default)]
struct Connection {
    path: PathBuf,
    /// Starts the store, if it is this daemon's own.
    starter: Option<Starter>,
    /// Whether the daemon has been connected to a store at this path.
    was_welcomed: bool,
    /// The socket. `None` after the store's process has ended, until the daemon has connected to
    /// the next one.
    socket: Option<Unshared>,
    /// The number of descriptors that the process can store.
    capacity: usize,
    /// The names of all descriptors in the store, including those that this daemon has not taken
    /// over yet.
    entries: BTreeSet<String>,
}

impl Connection {
    fn has_room(&self) -> bool {
        self.entries.len() < self.capacity
    }
}

/// The response of a store's process to a new connection.
struct Welcome {
    socket: Unshared,
    stored: Vec<(String, OwnedFd)>,
    capacity: usize,
}

impl Welcome {
    /// Connects to the store and receives all descriptors. Waits at most `wait` for each step.
    fn receive(path: &Path, wait: Duration) -> rustix::io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let socket = Unshared::new(socket);
        set_socket_timeout(&socket, Timeout::Recv, Some(wait))?;
        // A stopped process accepts no connection, and `connect` waits once its backlog is full.
        set_socket_timeout(&socket, Timeout::Send, Some(wait))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        // Another user may own the socket's directory, and must not get the descriptors.
        let uid = socket_peercred(&socket)?.uid;
        if uid != rustix::process::geteuid() && !uid.is_root() {
            return Err(Errno::PERM);
        }
        set_socket_timeout(&socket, Timeout::Send, Some(SEND_MAX))?;
        let mut stored = Vec::new();
        loop {
            let mut bytes = [0; PACKET_BYTES];
            let (length, fd) = match receive(socket.as_fd(), &mut bytes) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            match (&bytes[..length], fd) {
                ([kind::ENTRY, name @ ..], Some(fd)) => {
                    let name = std::str::from_utf8(name).map_err(|_| Errno::PROTO)?;
                    stored.push((name.to_owned(), fd));
                }
                ([kind::ALL_SENT, a, b, c, d], None) => {
                    let capacity = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                    return Ok(Self { socket, stored, capacity });
                }
                // The store has ended, or refuses this user.
                ([], None) => return Err(Errno::CONNREFUSED),
                _ => return Err(Errno::PROTO),
            }
        }
    }
}

/// The fd store, and the names of the descriptors that belong into it.
#[derive(Debug, Default)]
pub struct FdStore {
    store: Store,
    names: BTreeMap<MemId, String>,
    /// Descriptors that the store does not have, because it had no room or did not read in time.
    unstored: BTreeSet<MemId>,
    /// Names that the service manager must remove, but has not read yet.
    unremoved: BTreeSet<String>,
    retry_after_ns: u64,
    retry_pause_ns: u64,
    /// Whether the log has named a missing descriptor since the last time that nothing was missing.
    has_warned: bool,
    /// Whether the log has named a descriptor whose name is too long for the store.
    has_warned_of_length: bool,
    /// Whether the service manager has not read the last notification in time.
    is_stuck: bool,
}

impl FdStore {
    /// Connects to the store that the configuration names. By default, a daemon with `own` uses a store next to this socket,
    /// and any other daemon uses the store of the service manager, which passed `stored`.
    ///
    /// # Errors
    /// An error if a store in another process does not respond within ten seconds, or if another daemon is connected to it.
    pub fn connect(at: StoreAt<'_>, own: Option<&Path>, stored: Vec<Stored>) -> Result<Inherited, DaemonError> {
        match (at, own) {
            (StoreAt::Socket(path), _) => Self::of_process(path),
            (StoreAt::Default, Some(socket)) => Self::of_own_process(socket),
            (StoreAt::Default, None) => Ok(Inherited { fd_store: Self::of_this_process(&stored), stored }),
            (StoreAt::None, _) => Ok(Inherited::default()),
        }
    }

    /// Returns the store of the service manager that started this process, and passed `stored`. The result stores
    /// nothing if there is no service manager.
    fn of_this_process(stored: &[Stored]) -> Self {
        let room = || Store::ServiceManager(Room::of_environment(stored));
        let store = if notify::is_heard() { room() } else { Store::None };
        Self { store, ..Self::default() }
    }

    /// Connects to the store next to the daemon's socket, and starts it if none runs. If that fails, the daemon serves its
    /// clients without a store, and tries again later.
    ///
    /// # Errors
    /// An error if a store runs there and does not respond within ten seconds: it may have what a former daemon has left.
    fn of_own_process(socket: &Path) -> Result<Inherited, DaemonError> {
        let Some(path) = own::path(socket) else {
            tracing::warn!("the path of the socket is too long for that of an fd store: a restart loses all tensors");
            return Ok(Inherited::default());
        };
        let mut starter = Starter::new(path.clone());
        let start = Instant::now();
        loop {
            let has_ended = starter.has_ended();
            let error = match Welcome::receive(&path, START_MAX) {
                Ok(welcome) => return Ok(Self::welcomed(path, Some(starter), welcome)),
                Err(error) => error,
            };
            let is_over = start.elapsed() >= START_MAX;
            let failure = match error {
                Errno::NOENT | Errno::CONNREFUSED if is_over || has_ended => Some(error.into()),
                Errno::NOENT | Errno::CONNREFUSED => starter.start().err(),
                // The file belongs to another user.
                Errno::ACCESS | Errno::PERM => Some(error.into()),
                _ if is_over => return Err(DaemonError::FdStore { path, error: error.into() }),
                _ => None,
            };
            if let Some(failure) = failure {
                tracing::warn!(
                    "the fd store {} does not start: {failure}: a restart loses all tensors",
                    path.display()
                );
                let connection = Connection { path, starter: Some(starter), ..Connection::default() };
                let mut fd_store = Self { store: Store::Process(connection), ..Self::default() };
                fd_store.retry_later();
                return Ok(Inherited { fd_store, stored: Vec::new() });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Connects to the process that stores descriptors on the socket at `path`. Returns the store,
    /// and the descriptors that the previous daemon has stored in it.
    ///
    /// # Errors
    /// An error if no such process responds within ten seconds, or if another daemon is connected
    /// to it.
    fn of_process(path: &Path) -> Result<Inherited, DaemonError> {
        let start = Instant::now();
        loop {
            match Welcome::receive(path, START_MAX) {
                Ok(welcome) => return Ok(Self::welcomed(path.into(), None, welcome)),
                Err(error) if start.elapsed() >= START_MAX => {
                    return Err(DaemonError::FdStore { path: path.into(), error: error.into() });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn welcomed(path: PathBuf, starter: Option<Starter>, welcome: Welcome) -> Inherited {
        let Welcome { socket, stored, capacity } = welcome;
        let connection = Connection {
            path,
            starter,
            was_welcomed: true,
            socket: Some(socket),
            capacity,
            entries: stored.iter().map(|(name, _)| name.clone()).collect(),
        };
        let mut it = Self { store: Store::Process(connection), ..Self::default() };
        let mut labelled = Vec::with_capacity(stored.len());
        for (name, fd) in stored {
            match name.parse() {
                Ok(label) => labelled.push((label, fd)),
                Err(_) => it.forget_name(&name),
            }
        }
        Inherited { fd_store: it, stored: labelled }
    }

    /// Stores a descriptor under this label. If the same memory was stored under another label, the daemon removes that
    /// entry. Returns false if the descriptor could not be stored. [`Self::retry`] then stores it later.
    pub fn keep(&mut self, mem: MemId, label: &Label, fd: BorrowedFd<'_>) -> bool {
        if matches!(self.store, Store::None) {
            return true;
        }
        let name = label.to_string();
        if name.len() > NAME_BYTES_MAX {
            self.forget(mem);
            if !std::mem::replace(&mut self.has_warned_of_length, true) {
                tracing::warn!(
                    "the fd store cannot keep {name}, a restart will lose tensors: the namespace's name is too long"
                );
            }
            return false;
        }
        let was_stored = !self.unstored.remove(&mem);
        let former = self.names.insert(mem, name.clone()).filter(|former| was_stored && *former != name);
        // systemd ignores a descriptor that it already has, so the former entry is removed first.
        // If the daemon is killed between the two messages, systemd has lost the descriptor.
        if let (Store::ServiceManager(_), Some(former)) = (&self.store, &former) {
            self.forget_name(&former.clone());
        }
        self.unstored.insert(mem);
        let mut stored = self.store(&name, fd);
        if let (Store::Process(_), Some(former)) = (&self.store, former) {
            self.forget_name(&former);
            if stored.is_err() {
                // The former entry used the last room.
                stored = self.store(&name, fd);
            }
        }
        let Err(error) = stored else {
            self.unstored.remove(&mem);
            return true;
        };
        self.retry_later();
        self.warn(&name, &error);
        false
    }

    fn warn(&mut self, name: &str, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!("the fd store does not keep {name}, a restart will lose tensors: {why}");
        }
    }

    /// Stores a descriptor under a name. The function waits at most [`SEND_MAX`] while the store's queue is full. The
    /// store must not be deferred while the queue has room. If the daemon lent memory before it stored the memory, and
    /// were then killed, the memory would be lost.
    fn store(&mut self, name: &str, fd: BorrowedFd<'_>) -> Result<(), String> {
        match &mut self.store {
            Store::None => {}
            Store::ServiceManager(_) => {
                // systemd ignores a descriptor that it still has under a former name.
                self.remove_all().map_err(|error| error.to_string())?;
                if let Store::ServiceManager(room @ Room { most: Some(most), .. }) = &self.store
                    && !room.entries.contains(name)
                    && !room.has_room()
                {
                    return Err(no_room(*most));
                }
                let states = [NotifyState::FdStore, NotifyState::FdName(name)];
                self.notify(&states, &[fd]).map_err(|error| error.to_string())?;
                if let Store::ServiceManager(room) = &mut self.store {
                    room.entries.insert(name.to_owned());
                }
            }
            Store::Process(connection) => {
                if !connection.entries.contains(name) && !connection.has_room() {
                    return Err(no_room(connection.capacity));
                }
                connection.entries.insert(name.to_owned());
                self.request(kind::ENTRY, name, Some(fd));
            }
        }
        Ok(())
    }

    /// Stores a descriptor in the place of another one, which the store has under the name `former`. If the store has room
    /// for both, it has one of them at any time.
    pub fn replace(&mut self, mem: MemId, label: &Label, fd: BorrowedFd<'_>, former: &str) {
        let has_room = match &self.store {
            Store::None => return,
            Store::ServiceManager(room) => room.has_room(),
            Store::Process(connection) => connection.has_room(),
        };
        if !has_room {
            self.forget_name(former);
        }
        if self.keep(mem, label, fd) && has_room {
            self.forget_name(former);
        }
    }

    /// Returns the state of the store. Returns `None` without a store.
    pub fn state(&self) -> Option<FdStoreState> {
        let capacity = match &self.store {
            Store::None => return None,
            Store::ServiceManager(room) => room.most,
            Store::Process(Connection { socket: None, .. }) => Some(0),
            Store::Process(connection) => Some(connection.capacity),
        };
        let is_gone = capacity == Some(0);
        let missing = if is_gone { self.names.len() } else { self.unstored.len() };
        Some(FdStoreState {
            needed: self.names.len() as u64,
            missing: missing as u64,
            capacity: capacity.map(|it| it as u64),
        })
    }

    /// Sends a notification to the service manager. If the manager has not read for [`notify::SEND_MAX`], the function does not wait
    /// again until the manager takes a notification.
    fn notify(&mut self, states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let limit = if self.is_stuck { Duration::ZERO } else { notify::SEND_MAX };
        let sent = notify::send(states, fds, limit);
        self.is_stuck = sent == Err(Errno::AGAIN);
        sent
    }

    /// Records that the store already has the descriptor under this label.
    pub fn has(&mut self, mem: MemId, label: &Label) {
        if !matches!(self.store, Store::None) {
            self.names.insert(mem, label.to_string());
            self.unstored.remove(&mem);
        }
    }

    /// Removes the descriptor from the store, if the store has it.
    pub fn forget(&mut self, mem: MemId) {
        if let Some(name) = self.names.remove(&mem)
            && !self.unstored.remove(&mem)
        {
            self.forget_name(&name);
        }
    }

    /// Removes a descriptor by its name in the store. This daemon has not taken the descriptor
    /// over.
    pub fn forget_name(&mut self, name: &str) {
        match &mut self.store {
            Store::None => {}
            Store::ServiceManager(_) => {
                self.unremoved.insert(name.to_owned());
                if self.remove_all().is_err() {
                    self.retry_later();
                }
            }
            Store::Process(connection) => {
                connection.entries.remove(name);
                self.request(kind::REMOVE, name, None);
            }
        }
    }

    /// Makes the service manager remove the names that it has not removed yet.
    fn remove_all(&mut self) -> rustix::io::Result<()> {
        while let Some(name) = self.unremoved.first().cloned() {
            self.notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)], &[])?;
            self.unremoved.remove(&name);
            if let Store::ServiceManager(room) = &mut self.store {
                room.entries.remove(&name);
            }
        }
        Ok(())
    }

    /// Sends a request to the store's process. If the send fails, the process has ended or is
    /// stopped. The function then shuts the connection down, and epoll reports its end. After the
    /// next connection, the daemon stores everything again.
    fn request(&self, kind: u8, name: &str, fd: Option<BorrowedFd<'_>>) {
        let Store::Process(Connection { socket: Some(socket), .. }) = &self.store else { return };
        let mut bytes = [0; PACKET_BYTES];
        bytes[0] = kind;
        bytes[1..=name.len()].copy_from_slice(name.as_bytes());
        if send(socket.as_fd(), &bytes[..=name.len()], fd).is_err() {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }

    /// Returns the connection to the store's process. Epoll reports its end.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        match &self.store {
            Store::Process(connection) => connection.socket.as_ref().map(AsFd::as_fd),
            _ => None,
        }
    }

    /// Handles the end of the store's process.
    pub fn lost(&mut self) {
        if let Store::Process(connection) = &mut self.store
            && connection.socket.take().is_some()
        {
            tracing::warn!(
                "the fd store {} has ended: until the next one runs, the end of this daemon loses its tensors",
                connection.path.display()
            );
        }
    }

    /// Returns whether the log has named a missing descriptor, and none is missing now. The next attempt logs this: what was
    /// missing may have been removed in the meantime.
    fn is_shortage_over(&self) -> bool {
        self.has_warned && self.unstored.is_empty()
    }

    /// Returns the time of the next [`Self::retry`]. Returns `None` if it would have nothing to do, or if the store has no
    /// room for what is missing.
    pub fn due_ns(&self) -> Option<u64> {
        let is_due = match &self.store {
            _ if self.is_shortage_over() => true,
            Store::None => false,
            Store::ServiceManager(room) => !self.unstored.is_empty() && room.has_room() || !self.unremoved.is_empty(),
            Store::Process(Connection { socket: None, .. }) => true,
            Store::Process(connection) => !self.unstored.is_empty() && connection.has_room(),
        };
        is_due.then_some(self.retry_after_ns)
    }

    /// Plans the first attempt to store what is missing.
    fn retry_later(&mut self) {
        let now_ns = boottime_ns();
        if self.retry_after_ns <= now_ns {
            (self.retry_after_ns, self.retry_pause_ns) = (now_ns + RETRY_MIN_NS, RETRY_MIN_NS);
        }
    }

    /// Plans the attempt after this one.
    fn retry_again(&mut self, has_progressed: bool) {
        let pause_ns = self.retry_pause_ns.max(RETRY_MIN_NS);
        let (wait_ns, next_ns) =
            if has_progressed { (PROGRESS_NS, RETRY_MIN_NS) } else { (pause_ns, (2 * pause_ns).min(RETRY_MAX_NS)) };
        (self.retry_after_ns, self.retry_pause_ns) = (boottime_ns() + wait_ns, next_ns);
    }

    /// Stores what is missing. If the store's process has ended, first connects to the next one. Returns true if there
    /// is a new connection.
    pub fn retry<'a>(&mut self, fd_of: impl Fn(MemId) -> Option<BorrowedFd<'a>>) -> bool {
        if let Store::Process(Connection { socket: None, .. }) = &self.store {
            return self.reconnect(fd_of);
        }
        let missing = self.unstored.len() + self.unremoved.len();
        // An attempt must not wait for the service manager.
        self.is_stuck |= missing > 0;
        // If this fails, so does the first store.
        let _ = self.remove_all();
        for mem in self.unstored.clone() {
            if let (Some(fd), Some(name)) = (fd_of(mem), self.names.get(&mem).cloned())
                && self.store(&name, fd).is_err()
            {
                break;
            }
            self.unstored.remove(&mem);
        }
        self.retry_again(self.unstored.len() + self.unremoved.len() < missing);
        if self.is_shortage_over() {
            self.has_warned = false;
            tracing::info!("the fd store has all {} descriptors again", self.names.len());
        }
        false
    }

    /// Connects to the next process that runs at the configured path, and stores everything in it.
    /// Returns true on success.
    fn reconnect<'a>(&mut self, fd_of: impl Fn(MemId) -> Option<BorrowedFd<'a>>) -> bool {
        let Store::Process(connection) = &mut self.store else { return false };
        let Welcome { socket, stored, capacity } = match Welcome::receive(&connection.path, WELCOME_MAX) {
            // Only a starting daemon can take over the descriptors of a former daemon.
            Ok(welcome) if !connection.was_welcomed && !welcome.stored.is_empty() => {
                tracing::warn!(
                    "the fd store {} has descriptors of a former daemon: restart this daemon to take them over",
                    connection.path.display()
                );
                self.retry_again(false);
                return false;
            }
            Ok(welcome) => welcome,
            Err(error) => {
                if let (Errno::NOENT | Errno::CONNREFUSED, Some(starter)) = (error, &mut connection.starter)
                    && let Err(error) = starter.start()
                {
                    tracing::warn!("starting the fd store: {error}");
                }
                self.retry_again(false);
                return false;
            }
        };
        connection.was_welcomed = true;
        (connection.socket, connection.capacity) = (Some(socket), capacity);
        self.retry_pause_ns = RETRY_MIN_NS;
        connection.entries = stored.into_iter().map(|(name, _)| name).collect();
        // A process that had only been stopped still has older entries. They are removed first, to
        // make room.
        let names: BTreeSet<&str> = self.names.values().map(String::as_str).collect();
        let older = connection.entries.iter().filter(|name| !names.contains(name.as_str()));
        for name in older.cloned().collect::<Vec<_>>() {
            self.forget_name(&name);
        }
        self.unstored.clear();
        for (mem, name) in self.names.clone() {
            if let Some(fd) = fd_of(mem)
                && self.store(&name, fd).is_err()
            {
                self.unstored.insert(mem);
            }
        }
        let missing = self.unstored.len();
        self.has_warned = missing > 0;
        if missing > 0 {
            tracing::warn!("the fd store has no room for {missing} descriptors, a restart will lose tensors");
        }
        tracing::info!("the fd store runs again, and has {} descriptors", self.names.len() - missing);
        true
    }
}
