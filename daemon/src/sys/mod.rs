//! The shell: system calls around the core. One thread waits for sockets, signals and finished memory, passes each to
//! the core as an event, and performs the core's effects. An idle daemon sleeps without a timeout, except for a service
//! manager's watchdog.

mod backing;
mod cgroup;
mod closer;
mod connection;
mod device;
mod finder;
mod keeper;
pub mod limits;
mod listen;
mod memory;
pub mod notify;
pub mod reload;
mod reply;
mod signals;
pub mod spill;
mod worker;

pub use backing::Backing;
pub use cgroup::memory_limit;
pub use device::Devices;
pub use keeper::{Heirloom, Keeper};
pub use listen::{Listener, await_turn};
pub use signals::{Order, Orders, Signals, Stop};

use crate::config::ConfigError;
use crate::core::settings::{Mode, Peer, Settings};
use crate::core::{ConnId, Core, Effect, Event, MemId};
use closer::Closer;
use connection::{Bans, Connection, Farewell};
use device::MadeOnDevice;
use finder::Finder;
use memory::{Made, Making, Memories, Plan};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use notify::Watchdog;
use reload::Reloader;
use reply::Unsent;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_os::clock::boottime_ns;
use tensorlend_os::toll::Toll;
use worker::{Done, Finished, Part, Workers};

/// The reason why the daemon cannot run.
#[derive(thiserror::Error)]
pub enum DaemonError {
    /// The kernel is too old.
    #[error(transparent)]
    Kernel(#[from] tensorlend_os::kernel::KernelTooOld),
    /// /proc is not mounted.
    #[error("/proc/self/fd cannot be read ({0}), and tensorlendd reopens memory through it: mount proc on /proc")]
    NoProc(io::Error),
    /// The limit of open descriptors is too low.
    #[error(
        "this process may have {limit} open descriptors (RLIMIT_NOFILE), and tensorlendd needs {least} at least: raise \
         the hard limit (ulimit -Hn, LimitNOFILE= of a unit)"
    )]
    Descriptors {
        /// The limit.
        limit: u64,
        /// The required minimum.
        least: u64,
    },
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No path for the socket is configured or known.
    #[error("XDG_RUNTIME_DIR is not set, so there is no place for the socket: name one with --socket PATH")]
    NoSocketPath,
    /// The socket cannot be created.
    #[error("the socket {path:?} {what}: {error}")]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The failed step.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A file that is not a stale socket is in the way.
    #[error(
        "the socket {path:?} cannot be made: there is {found}, which tensorlendd does not replace: remove it, or name \
         another path with --socket PATH"
    )]
    Occupied {
        /// The socket's path.
        path: PathBuf,
        /// The kind of file.
        found: String,
    },
    /// Another daemon runs already.
    #[error("another daemon listens on {0:?} already: stop it, or name another socket with --socket PATH")]
    Running(PathBuf),
    /// The daemon that was ordered to reload does not respond.
    #[error("process {pid} was ordered to reload, but at {path:?} {what}: is it the daemon of this configuration?")]
    NoAnswer {
        /// The other daemon's pid.
        pid: i32,
        /// The path of the other daemon's socket.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The service manager's socket cannot be used.
    #[error("the socket that the service manager handed over cannot be used: {0}")]
    Activation(io::Error),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// The call.
        what: &'static str,
        /// The call's error.
        error: io::Error,
    },
}

const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
const WORKERS: u64 = 2;
const FINDER: u64 = 3;
const FIRST_CONNECTION: u64 = 16;
/// Marks the token of a connection's process.
const PROCESS: u64 = 1 << 63;
/// Marks the token of a connection's wakeup eventfd.
const NUDGE: u64 = 1 << 62;

/// Pause of accepting connections after descriptors ran out.
const ACCEPT_PAUSE_NS: u64 = 1_000_000_000;

/// Pause between two lookups of unknown users and groups: a name service may be slow.
const FIND_PAUSE_NS: u64 = 10_000_000_000;

/// The processes of ended connections, by the connections' tokens.
#[derive(Default)]
struct Processes {
    /// The core is about to process the hang-up.
    ending: BTreeMap<u64, OwnedFd>,
    /// Processes whose exit the core awaits.
    awaited: BTreeMap<u64, OwnedFd>,
}

/// The daemon's loop.
pub struct Shell {
    epoll: OwnedFd,
    listener: Listener,
    /// End of a pause of accepting connections for lack of descriptors.
    accept_after_ns: Option<u64>,
    watchdog: Option<Watchdog>,
    /// Unknown users and groups are not looked up again before this time.
    find_after_ns: u64,
    reloader: Option<Reloader>,
    finder: Finder,
    workers: Workers,
    /// The directory of spilled segments, if spilling is configured.
    spill: Option<spill::Files>,
    /// Spilled segments.
    files: BTreeMap<MemId, Arc<spill::Spilled>>,
    closer: Closer,
    /// The mode and backing for [`memory::make`].
    how: Making,
    memories: Memories,
    connections: BTreeMap<u64, Connection>,
    connections_ever: u64,
    /// Temporarily banned users.
    bans: Bans,
    /// Processes of ended connections.
    processes: Processes,
    keeper: Keeper,
    core: Core,
    events: VecDeque<Event>,
    unsent: VecDeque<Unsent>,
    /// The uid that stands for every user whom this process's user namespace does not map, if there are any.
    unknown_uid: Option<u32>,
    /// As `unknown_uid`, for groups.
    unknown_gid: Option<u32>,
}

fn allocated(mem: MemId, at: u64, made: io::Result<()>) -> Event {
    Event::Allocated { mem, at, made: made.map_err(|e| e.to_string()) }
}

fn system(what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |error| DaemonError::System { what, error: error.into() }
}

/// The reason of a ban.
const SLOW_SOCKET: &str = "messages on its socket take too long: too many watches (epoll) are on it";

impl Shell {
    /// Creates a daemon that listens but does not run yet. It takes over the stored descriptors of a previous one.
    pub fn new(
        listener: Listener,
        settings: Settings,
        (backing, devices): (Backing, Devices),
        (mut keeper, heirlooms): (Keeper, Vec<Heirloom>),
    ) -> Result<Self, DaemonError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let how = (settings.mode == Mode::System, backing);
        // The caller has checked that files can be created there; that may change at any time.
        let spill = settings.spill.as_ref().map(|spill| spill::Files::of(spill.directory.clone()));
        let threads = |error| DaemonError::System { what: "starting a thread", error };
        let workers = Workers::start(how, &devices).map_err(threads)?;
        let closer = Closer::start().map_err(threads)?;
        let finder = Finder::new().map_err(|error| DaemonError::System { what: "eventfd", error })?;
        let watch = |fd: BorrowedFd<'_>, token| epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN);
        watch(listener.fd.as_fd(), LISTENER).map_err(system("epoll_ctl"))?;
        watch(workers.bell(), WORKERS).map_err(system("epoll_ctl"))?;
        watch(finder.bell(), FINDER).map_err(system("epoll_ctl"))?;
        let mut memories = Memories::new(settings.mode == Mode::System);
        let mut files = BTreeMap::new();
        let kept = memory::adopt::adopt(heirlooms, (&mut memories, &mut files), &mut keeper);
        let mut it = Self {
            epoll,
            listener,
            accept_after_ns: None,
            watchdog: None,
            find_after_ns: 0,
            reloader: None,
            finder,
            workers,
            spill,
            files,
            closer,
            how,
            memories,
            keeper,
            connections: BTreeMap::new(),
            connections_ever: FIRST_CONNECTION,
            bans: Bans::default(),
            processes: Processes::default(),
            unknown_uid: limits::unknown_uid(),
            unknown_gid: limits::unknown_gid(),
            core: Core::new(settings),
            events: VecDeque::new(),
            unsent: VecDeque::new(),
        };
        if kept.is_empty() && it.listener.replaced {
            it.core.expect_clients(boottime_ns());
            it.memories.takes_back = it.core.takes_back(boottime_ns());
        }
        if !kept.is_empty() {
            for effect in it.core.restore(boottime_ns(), kept) {
                it.perform(effect);
            }
        }
        Ok(it)
    }

    /// Notifies a service manager's watchdog on each turn of the loop.
    pub fn watched(mut self, watchdog: Option<Watchdog>) -> Self {
        self.watchdog = watchdog;
        self
    }

    /// Sets the source of the configuration for reloads.
    pub fn reloaded_by(mut self, reloader: Reloader) -> Self {
        self.reloader = Some(reloader);
        self
    }

    /// Runs the event loop until `orders` requests a stop. Returns an error if a system call of the loop fails.
    pub fn run(mut self, orders: &impl Orders) -> Result<(), DaemonError> {
        epoll::add(&self.epoll, orders, EventData::new_u64(ORDERS), EventFlags::IN).map_err(system("epoll_ctl"))?;
        self.deliver_all();
        self.deliver(Event::Start);
        let mut ready = Vec::with_capacity(64);
        loop {
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.came_around(boottime_ns());
            }
            ready.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(system("epoll_wait")(error)),
            }
            self.core.count_wakeup();
            for event in &ready {
                let (token, flags) = (event.data.u64(), event.flags);
                match token {
                    LISTENER => self.accept(),
                    ORDERS => match orders.next() {
                        Some(Order::Stop) => {
                            self.stop();
                            return Ok(());
                        }
                        Some(Order::Reload) => self.reload(),
                        None => {}
                    },
                    WORKERS => {
                        for Finished { mem, done } in self.workers.collect() {
                            let event = match done {
                                Done::Memory { directory, made } => self.take_in(mem, made, directory),
                                Done::Device { made } => self.take_in_of_device(mem, made),
                                Done::Spilled { written } => self.written(mem, written),
                                Done::Part { at, made } => allocated(mem, at, made),
                            };
                            self.deliver(event);
                        }
                    }
                    FINDER => self.found(),
                    token if token & PROCESS != 0 => {
                        self.process_ended(token & !PROCESS);
                        self.deliver_all();
                    }
                    token if token & NUDGE != 0 => self.deliver(Event::Nudged { conn: ConnId(token & !NUDGE) }),
                    token => self.connection_ready(token, flags),
                }
            }
            if self.core.alarm().is_some_and(|at| at <= boottime_ns()) {
                self.deliver(Event::Alarm);
            }
            if self.accept_after_ns.is_some_and(|at| at <= boottime_ns()) {
                self.accept_again();
            }
            self.send_unsent();
        }
    }

    fn stop(&mut self) {
        self.say_goodbye();
        // Only welcomed clients have memory that they can hand back to the next daemon.
        if self.connections.values().any(|c| c.nudge.is_some()) {
            self.listener.leave();
        }
        self.core.leave();
    }

    /// Looks unknown users and groups of namespaces up again when a client connects: their packages or their name
    /// service may be available now. The result applies to later connections.
    fn find_unknown(&mut self) {
        let now_ns = boottime_ns();
        let Some(reloader) = self.reloader.as_ref().filter(|it| it.has_unknown()) else { return };
        if now_ns < self.find_after_ns {
            return;
        }
        self.find_after_ns = now_ns + FIND_PAUSE_NS;
        let (config, mode) = reloader.running();
        self.finder.look(config, mode);
    }

    /// Handles the end of a lookup of users and groups.
    fn found(&mut self) {
        let Some(found) = self.finder.take() else { return };
        let Some(reloader) = &mut self.reloader else { return };
        if let Some(settings) = reloader.found(&found.config, found.settings, found.unknown) {
            notify::status(&reloader.status());
            self.deliver(Event::Reload(Box::new(settings)));
        }
    }

    /// Reads the configuration again. An invalid one changes nothing.
    fn reload(&mut self) {
        let Some(reloader) = &mut self.reloader else { return };
        notify::reloading();
        if let Some(settings) = reloader.read() {
            self.deliver(Event::Reload(Box::new(settings)));
        }
        notify::ready(&self.reloader.as_ref().map_or_else(String::new, Reloader::status));
    }

    fn timeout(&self) -> Option<Timespec> {
        let watchdog = self.watchdog.as_ref().map(Watchdog::due_ns);
        let at =
            [self.core.alarm(), self.accept_after_ns, watchdog, self.unsent_due_ns()].into_iter().flatten().min()?;
        let wait = at.saturating_sub(boottime_ns());
        Some(Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as _ })
    }

    /// Passes an event to the core, performs its effects, and passes the core the events that follow from them.
    fn deliver(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let gone = if let Event::HungUp { conn } = event { Some(conn.0) } else { None };
            for effect in self.core.step(boottime_ns(), event) {
                self.perform(effect);
            }
            if let Some(process) = gone.and_then(|token| self.processes.ending.remove(&token)) {
                // The core does not await the exit of this process.
                self.unwatch(process);
            }
        }
    }

    /// Handles the exit of a connection's process.
    fn process_ended(&mut self, token: u64) {
        if let Some(process) = self.processes.awaited.remove(&token) {
            self.unwatch(process);
            self.events.push_back(Event::Exited { conn: ConnId(token) });
        }
        self.hung_up(token);
    }

    fn unwatch(&self, process: OwnedFd) {
        let _ = epoll::delete(&self.epoll, &process);
        self.closer.close(process);
    }

    /// Reports the exit of a connection's process to the core, also if it has happened already.
    fn await_exit(&mut self, token: u64) {
        let connected = self.connections.get_mut(&token).and_then(|connection| connection.process.take());
        match connected.or_else(|| self.processes.ending.remove(&token)) {
            Some(process) => {
                self.processes.awaited.insert(token, process);
            }
            // The client's process had already ended when it connected, so there is nothing to watch.
            None => self.events.push_back(Event::Exited { conn: ConnId(token) }),
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Create { mem, bytes, bytes_first, sheet, background, reserved } => {
                let plan = Plan { bytes, bytes_first, sheet, reserved };
                if background {
                    self.workers.order(mem, plan);
                } else {
                    let made = memory::make(plan, self.how, &|| true);
                    let event = self.take_in(mem, made, plan.is_directory());
                    self.events.push_back(event);
                }
            }
            Effect::Allocate { mem, at, bytes, background } => match self.memories.share(mem) {
                Ok((fd, sheet)) => {
                    let part = Part { fd, sheet, at, bytes };
                    if background {
                        self.workers.order_part(mem, part);
                    } else {
                        let made = part.make(self.how, &|| true);
                        self.events.push_back(allocated(mem, at, made));
                    }
                }
                Err(error) => self.events.push_back(allocated(mem, at, Err(error))),
            },
            Effect::Discard { mem, at, bytes } => self.memories.discard(mem, at, bytes),
            Effect::Cancel { mem } => self.workers.cancel(mem),
            Effect::Keep { mem, label } => {
                if let Some(fd) = self.memories.fd(mem).or_else(|| self.files.get(&mem).map(|file| file.fd())) {
                    self.keeper.keep(mem, &label, fd);
                }
            }
            Effect::Forget { mem } => self.keeper.forget(mem),
            Effect::Release { mem } => {
                self.keeper.forget(mem);
                self.memories.release(mem, &self.closer);
            }
            Effect::Seal { conn, mem } => {
                tensorlend_layout::crash_point!("daemon: about to seal");
                if let Err(error) = self.memories.seal(mem) {
                    // The client has sealed it differently, or has a file lease on it: it could preserve a writable mapping
                    // for others.
                    let refusal = Refusal::Violation(format!("its memory cannot be sealed: {error}"));
                    tracing::warn!("disconnected: {refusal}");
                    if let Some(connection) = self.connections.get_mut(&conn.0) {
                        let _ = connection.send(&Reply::Refused(refusal), vec![], &self.closer);
                    }
                    self.hung_up(conn.0);
                }
            }
            Effect::Probe { mem } => {
                let quiet = self.memories.is_quiet(mem);
                self.events.push_back(Event::Probed { mem, quiet });
            }
            Effect::Send { conn, reply, lend, close } => self.send(conn.0, reply, lend, close),
            Effect::Resume { conn } => {
                if let Some(connection) = self.connections.get_mut(&conn.0) {
                    connection.busy = false;
                    self.watch(conn.0);
                }
            }
            Effect::Close { conn } => self.close(conn.0),
            Effect::Wake { directory } => self.memories.wake(directory, |head| &head.bell),
            Effect::WakeHolders { directory } => self.memories.wake(directory, |head| &head.returned),
            Effect::CreateOnDevice { mem, device, borrower, bytes } => {
                self.workers.order_on_device(mem, device, borrower, bytes);
            }
            Effect::Spill { mem, file, bytes } => self.write(mem, file, bytes),
            Effect::Recall { mem, file, bytes } => {
                let plan = Plan { bytes, bytes_first: bytes, sheet: None, reserved: false };
                let file = self.files.get(&file).expect("the core knows what was written");
                self.workers.order_recall(mem, Arc::clone(file), plan);
            }
            Effect::DropFile { file } => {
                self.keeper.forget(file);
                // The last close frees its disk space.
                if let Some(file) = self.files.remove(&file) {
                    self.closer.close(file);
                }
            }
            Effect::AwaitExit { conn } => self.await_exit(conn.0),
        }
    }

    fn write(&mut self, mem: MemId, file: MemId, bytes: u64) {
        if self.unsent.iter().any(|it| it.lends(mem)) {
            // A client is about to map it, and no probe of the kernel shows that yet.
            self.events.push_back(Event::Spilled { file, written: Err(String::new()) });
            return;
        }
        let files = self.spill.clone().expect("nothing is spilled without a directory");
        let memory = self.memories.fd(mem).expect("what is spilled is there").try_clone_to_owned();
        match memory {
            Ok(memory) => self.workers.order_spill(file, files, memory, bytes),
            Err(error) => self.events.push_back(Event::Spilled { file, written: Err(error.to_string()) }),
        }
    }

    fn written(&mut self, file: MemId, written: spill::Written) -> Event {
        let written = written.map(|it| {
            self.files.insert(file, it);
        });
        Event::Spilled { file, written }
    }

    fn take_in(&mut self, mem: MemId, made: Made, directory: bool) -> Event {
        let made = match made {
            Ok((fd, view)) => {
                tensorlend_layout::crash_point!("daemon: memory made");
                self.memories.insert(mem, fd, view.as_ref(), directory);
                Ok(view)
            }
            Err(error) => Err(error.to_string()),
        };
        Event::Created { mem, made }
    }

    fn take_in_of_device(&mut self, mem: MemId, made: MadeOnDevice) -> Event {
        let made = made.map(|(memory, export)| {
            tensorlend_layout::crash_point!("device: memory made");
            self.memories.insert_on_device(mem, memory);
            export
        });
        Event::CreatedOnDevice { mem, made }
    }

    /// Updates a connection's epoll interest, if it has changed.
    fn watch(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            if let Err(error) = epoll::modify(&self.epoll, &connection.fd, EventData::new_u64(token), wanted) {
                tracing::error!("epoll_ctl: {error}");
            }
        }
    }

    fn close(&mut self, token: u64) {
        self.close_with(token, None);
    }

    /// Closes a connection, with a last message that gives the reason.
    fn close_with(&mut self, token: u64, word: Option<Refusal>) {
        let Some(connection) = self.connections.remove(&token) else { return };
        // The closing thread closes it later; until then it must not wake the loop.
        let _ = epoll::delete(&self.epoll, &connection.fd);
        for other in connection.process.iter().chain(&connection.nudge) {
            let _ = epoll::delete(&self.epoll, other);
        }
        let (uid, cost_ms) = (connection.uid, connection.toll.cost().as_millis() as u64);
        if self.bans.note_end(uid, &connection.toll, boottime_ns()) {
            tracing::warn!(uid, cost_ms, "disconnected: {SLOW_SOCKET}");
            self.core.count_refusal();
        }
        self.closer.close(Farewell::to(connection, word));
        if self.accept_after_ns.is_some() {
            self.accept_again();
        }
    }

    fn hung_up(&mut self, token: u64) {
        self.hung_up_with(token, None);
    }

    /// Disconnects a client that has made calls on its socket so slow that others would wait, unless the machine may have paused.
    fn check_toll(&mut self, token: u64) {
        let Some(it) = self.connections.get_mut(&token).filter(|it| it.toll.is_excessive()) else { return };
        if self.bans.forgives(it.uid, &it.toll, boottime_ns()) {
            let (uid, cost_ms) = (it.uid, it.toll.cost().as_millis() as u64);
            tracing::info!(uid, cost_ms, "a message to this user's client took long: the next one ends its session");
            it.toll = Toll::default();
            return;
        }
        self.hung_up_with(token, Some(Refusal::Violation(SLOW_SOCKET.into())));
    }

    fn hung_up_with(&mut self, token: u64, word: Option<Refusal>) {
        if let Some(connection) = self.connections.get_mut(&token) {
            let process = connection.process.take();
            self.close_with(token, word);
            self.processes.ending.extend(process.map(|process| (token, process)));
            self.events.push_back(Event::HungUp { conn: ConnId(token) });
        }
    }

    fn connection_ready(&mut self, token: u64, flags: EventFlags) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if flags.contains(EventFlags::OUT) && connection.flush(&self.closer).is_err() {
            self.hung_up(token);
        } else if flags.contains(EventFlags::IN) && !connection.busy {
            self.receive(token);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.hung_up(token);
        }
        self.check_toll(token);
        self.deliver_all();
        self.watch(token);
    }

    fn deliver_all(&mut self) {
        while let Some(event) = self.events.pop_front() {
            self.deliver(event);
        }
    }

    fn receive(&mut self, token: u64) {
        let connection = self.connections.get_mut(&token).expect("the caller found it");
        match connection.receive() {
            Ok(packet) if packet.bytes.is_empty() => self.hung_up(token),
            Ok(packet) => {
                connection.busy = true;
                if self.memories.takes_back.is_some() {
                    // Not for ever.
                    self.memories.takes_back = self.core.takes_back(boottime_ns());
                }
                let descriptors = packet.descriptors.into_iter().map(|fd| self.memories.receive(fd)).collect();
                let (bytes, truncated) = (packet.bytes, packet.truncated);
                self.events.push_back(Event::Packet { conn: ConnId(token), bytes, descriptors, truncated });
            }
            Err(Errno::AGAIN) => {}
            Err(_) => self.hung_up(token),
        }
    }

    fn accept(&mut self) {
        match accept_with(&self.listener.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => self.welcome(fd),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                // The connection stays in the backlog: without this pause the loop would spin on it.
                tracing::warn!("no descriptor for another connection: accepting none for a second");
                self.accept_after_ns = Some(boottime_ns() + ACCEPT_PAUSE_NS);
                let _ = epoll::delete(&self.epoll, &self.listener.fd);
            }
            Err(_) => {}
        }
    }

    fn accept_again(&mut self) {
        self.accept_after_ns = None;
        if let Err(error) = epoll::add(&self.epoll, &self.listener.fd, EventData::new_u64(LISTENER), EventFlags::IN) {
            tracing::error!("epoll_ctl: {error}");
        }
    }

    fn welcome(&mut self, fd: OwnedFd) {
        let Ok(credentials) = getsockopt(&fd, PeerCredentials) else {
            self.closer.close(fd);
            return;
        };
        let now_ns = boottime_ns();
        if let Some(until_ns) = self.bans.until_ns(credentials.uid(), now_ns).filter(|_| !is_own(credentials.uid())) {
            let seconds = (until_ns - now_ns).div_ceil(1_000_000_000);
            let why = format!("messages to processes of your user took too long: connect again in {seconds} s");
            self.core.count_refusal();
            self.closer.close(Farewell::to_stranger(fd, Refusal::Violation(why)));
            return;
        }
        self.find_unknown();
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let gids = limits::groups(&fd, gid, self.unknown_gid);
        let token = self.connections_ever;
        self.connections_ever += 1;
        if let Err(error) = epoll::add(&self.epoll, &fd, EventData::new_u64(token), EventFlags::IN) {
            tracing::error!("epoll_ctl: {error}");
            // The socket's queue may already contain descriptors, whose closing may block.
            self.closer.close(fd);
            return;
        }
        // None if the process is outside this pid namespace: then only the hang-up reports its end.
        let process = match getsockopt(&fd, PeerPidfd) {
            Ok(process) => Some(process),
            // Kernels before 6.5 lack this option: the pid may have been reused.
            Err(nix::errno::Errno::ENOPROTOOPT) => {
                Pid::from_raw(credentials.pid()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            }
            Err(_) => None,
        };
        let watch = |process| epoll::add(&self.epoll, process, EventData::new_u64(token | PROCESS), EventFlags::IN);
        let watched = process.as_ref().is_some_and(|process| watch(process).is_ok());
        let known = self.unknown_uid != Some(uid);
        let peer = Peer { uid, known, pid: credentials.pid().cast_unsigned(), gids, watched };
        self.connections.insert(token, Connection::new(fd, uid, process));
        self.deliver(Event::Connected { conn: ConnId(token), peer });
    }

    /// Tells clients with a pending request that no response will follow.
    fn say_goodbye(&mut self) {
        for connection in self.connections.values_mut().filter(|c| c.busy) {
            let _ = connection.send(&Reply::Refused(Refusal::Stopping), vec![], &self.closer);
        }
    }
}

/// Returns true if this user administers the daemon: the superuser, or the daemon's own user.
fn is_own(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl Drop for Shell {
    fn drop(&mut self) {
        for (_, connection) in std::mem::take(&mut self.connections) {
            let _ = shutdown(&connection.fd, Shutdown::Both);
            self.closer.close(connection);
        }
        self.memories.release_received(&self.closer);
    }
}
