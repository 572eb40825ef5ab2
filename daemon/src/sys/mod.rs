//! The system layer, which performs the system calls for the core. One thread waits for sockets,
//! signals and the results of lanes. It passes each of them to the core as an event, and
//! performs the core's effects. An idle daemon sleeps without a timeout, unless it must notify a
//! service manager's watchdog.

mod backing;
mod clients;
mod connection;
mod device;
mod error;
pub mod fd_store;
mod finder;
mod idle;
mod lanes;
pub mod limits;
mod listen;
mod memory;
pub mod notify;
mod own_socket;
pub mod reload;
mod reply;
mod room;
mod shares;
mod signals;
mod socket_watch;
pub mod spill;
mod spill_orders;
mod turn;
mod worker;

pub use backing::Backing;
pub use device::Devices;
pub use error::DaemonError;
pub use fd_store::{FdStore, Inherited, Stored};
pub use listen::{Listener, await_turn};
pub use room::memory_limit;
pub use signals::{Order, Orders, Signals, Stop};

use crate::core::settings::{Mode, Settings};
use crate::core::{ConnId, Core, Effect, Event, MemId, Unmade};
use connection::{Bans, Connection, EXIT, Unread};
use device::MadeOnDevice;
use finder::Finder;
use idle::Idle;
use lanes::{Lane, Lanes};
use memory::adopt::{Adoption, PAUSES};
use memory::ahead::Ahead;
use memory::{Made, Making, Memories, Plan};
use notify::Watchdog;
use reload::{Reloader, Reloads};
use reply::Unsent;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::time::Timespec;
use shares::{BATCH, Shares};
use socket_watch::SocketWatch;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_os::clock::boottime_ns;
use turn::Turn;
use worker::{Done, Finished, Job, Part, Workers};

const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
const WORKERS: u64 = 2;
const FINDER: u64 = 3;
const FD_STORE: u64 = 4;
const SOCKET_FILE: u64 = 5;
const FIRST_CONNECTION: u64 = 16;
/// The bit in a token that marks the process of a connection.
const PROCESS: u64 = 1 << 63;
/// The bit in a token that marks the wakeup eventfd of a connection.
const WAKEUP: u64 = 1 << 62;

/// Maximum number of descriptors in epoll that belong to one connection: its socket, its process and its wakeup
/// eventfd.
const DESCRIPTORS: usize = 3;

/// The processes of ended connections, by the connections' tokens.
#[derive(Default)]
struct Processes {
    /// Processes of connections that have hung up, until the core has handled the hang-up.
    ending: BTreeMap<u64, OwnedFd>,
    /// Processes whose exit the core awaits.
    awaited: BTreeMap<u64, OwnedFd>,
}

/// The daemon's loop.
pub struct Shell {
    epoll: OwnedFd,
    listener: Listener,
    /// End of the pause in which the daemon accepts no connections because its descriptors ran out.
    accept_after_ns: Option<u64>,
    watchdog: Option<Watchdog>,
    socket_watch: Option<SocketWatch>,
    /// `None` for a daemon that does not end by itself.
    idle: Option<Idle>,
    /// The time before which the daemon does not look up unknown users and groups again.
    find_after_ns: u64,
    reloader: Option<Reloader>,
    reloads: Reloads,
    finder: Finder,
    workers: Workers,
    /// The directory for spilled segments, if spilling is configured.
    spill: Option<spill::Files>,
    /// The files of spilled segments, by the id of the file.
    files: BTreeMap<MemId, Arc<spill::Spilled>>,
    lanes: Lanes,
    /// The mode and backing for [`memory::make`].
    how: Making,
    memories: Memories,
    ahead: Ahead,
    connections: BTreeMap<u64, Connection>,
    connections_ever: u64,
    /// Users that are banned because their sockets are slow.
    bans: Bans,
    unread: Unread,
    /// Processes of ended connections, whose exit epoll still reports.
    processes: Processes,
    fd_store: FdStore,
    core: Core,
    events: VecDeque<Event>,
    unsent: VecDeque<Unsent>,
    /// The time that each user's connections have used in this turn of the loop.
    shares: Shares,
    turn: Turn,
    /// The uid that represents every user that this process's user namespace does not map. `None`
    /// if it maps all users.
    unknown_uid: Option<u32>,
    /// The daemon's own uid, if the daemon refuses clients with this uid. A reload does not change
    /// this field.
    refused_uid: Option<u32>,
    /// The gid that represents every group that this process's user namespace does not map. `None`
    /// if it maps all groups.
    unknown_gid: Option<u32>,
}

fn allocated(mem: MemId, at: u64, made: io::Result<()>) -> Event {
    Event::Allocated { mem, at, made: made.map_err(|e| error::unmade(&e)) }
}

fn system(what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |error| DaemonError::System { what, error: error.into() }
}

/// Makes epoll report the end of the fd store's process. After its welcome, that process sends
/// nothing.
fn watch_fd_store(epoll: &OwnedFd, connection: BorrowedFd<'_>) -> rustix::io::Result<()> {
    epoll::add(epoll, connection, EventData::new_u64(FD_STORE), EventFlags::IN)
}

/// Creates the epoll. It reports new connections, results of lanes and of look-ups, and the end of the fd store's process.
fn watch(listener: &Listener, workers: &Workers, finder: &Finder, fd_store: &FdStore) -> Result<OwnedFd, DaemonError> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
    for (fd, token) in [(listener.fd.as_fd(), LISTENER), (workers.bell(), WORKERS), (finder.bell(), FINDER)] {
        epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(system("epoll_ctl"))?;
    }
    if let Some(connection) = fd_store.connection() {
        watch_fd_store(&epoll, connection).map_err(system("epoll_ctl"))?;
    }
    Ok(epoll)
}

/// The memory that a daemon can lend.
pub struct Supply {
    pub backing: Backing,
    pub devices: Devices,
}

impl Shell {
    /// Creates a daemon that listens but does not run yet. The new daemon takes over the
    /// descriptors that a previous daemon stored.
    pub fn new(
        listener: Listener,
        settings: Settings,
        Supply { backing, devices }: Supply,
        Inherited { fd_store, stored }: Inherited,
    ) -> Result<Self, DaemonError> {
        let how = (settings.mode == Mode::System, backing);
        // The caller has checked that files can be created in this directory. The daemon handles
        // later errors of the file system when it spills a segment.
        let spill = settings.spill.as_ref().map(|spill| spill::Files::of(spill.directory.clone()));
        let eventfd = |error| DaemonError::System { what: "eventfd", error };
        let workers = Workers::new(how, devices).map_err(eventfd)?;
        let lanes = Lanes::start(Arc::clone(&settings.owners));
        let lanes = lanes.map_err(|error| DaemonError::System { what: "starting a thread", error })?;
        let finder = Finder::new().map_err(eventfd)?;
        let (mut shares, mut bans) = (Shares::default(), Bans::default());
        shares.set_owners(Arc::clone(&settings.owners));
        bans.set_owners(Arc::clone(&settings.owners));
        let mut it = Self {
            epoll: watch(&listener, &workers, &finder, &fd_store)?,
            listener,
            accept_after_ns: None,
            watchdog: None,
            socket_watch: None,
            idle: None,
            find_after_ns: 0,
            reloader: None,
            reloads: Reloads::default(),
            finder,
            workers,
            spill,
            files: BTreeMap::new(),
            lanes,
            how,
            memories: Memories::new(settings.mode == Mode::System),
            ahead: Ahead::default(),
            fd_store,
            connections: BTreeMap::new(),
            connections_ever: FIRST_CONNECTION,
            bans,
            unread: Unread::default(),
            processes: Processes::default(),
            unknown_uid: limits::unknown_uid(),
            unknown_gid: limits::unknown_gid(),
            refused_uid: settings.refused_uid,
            core: Core::new(settings),
            events: VecDeque::new(),
            unsent: VecDeque::new(),
            shares,
            turn: Turn::default(),
        };
        clients::refuse_descriptors(it.listener.fd.as_fd());
        it.take_over(stored);
        Ok(it)
    }

    /// Adopts the memory that a previous daemon stored, and restores the core's state from it.
    fn take_over(&mut self, stored: Vec<Stored>) {
        let adoption = Adoption {
            memories: &mut self.memories,
            files: &mut self.files,
            fd_store: &mut self.fd_store,
            lanes: &self.lanes,
            making: self.how,
            pauses: PAUSES,
        };
        let preserved = memory::adopt::adopt(stored, adoption);
        if preserved.is_empty() {
            return;
        }
        tensorlend_layout::crash_point!("next: memory adopted");
        for effect in self.core.restore(boottime_ns(), preserved) {
            self.perform(effect);
        }
        tensorlend_layout::crash_point!("next: restored");
    }

    /// Sets the service manager's watchdog. The loop then notifies the watchdog regularly.
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
        let mut ready = Vec::with_capacity(BATCH);
        loop {
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.came_around(boottime_ns());
            }
            self.shares.begin();
            self.turn.begin();
            self.handle_queued();
            self.turn.end();
            let mut timeout = self.timeout();
            let mut began = None;
            loop {
                ready.clear();
                match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout.as_ref()) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(system("epoll_wait")(error)),
                }
                self.core.count_wakeup();
                let began = *began.get_or_insert_with(|| {
                    self.turn.begin();
                    Instant::now()
                });
                for event in &ready {
                    if self.handle_event(event.data.u64(), event.flags, orders) == Some(Order::Stop) {
                        self.stop();
                        return Ok(());
                    }
                }
                let descriptors = DESCRIPTORS * self.connections.len();
                if !self.shares.takes_more(ready.len(), descriptors, began.elapsed()) {
                    break;
                }
                timeout = Some(Timespec::default());
            }
            if self.handle_due() {
                self.stop();
                return Ok(());
            }
            self.send_unsent();
            self.turn.end();
        }
    }

    /// Does what is due at this time. Returns true if the daemon ends because nobody uses it.
    fn handle_due(&mut self) -> bool {
        if self.core.alarm().is_some_and(|at| at <= boottime_ns()) {
            self.deliver(Event::Alarm);
        }
        if self.accept_after_ns.is_some_and(|at| at <= boottime_ns()) {
            self.accept_again();
        }
        if self.socket_due_ns().is_some_and(|at| at <= boottime_ns()) {
            self.check_socket();
        }
        if self.idle_due_ns().is_some_and(|at| at <= boottime_ns()) {
            if self.ends_idle() {
                return true;
            }
            self.idle.as_mut().map(Idle::postpone);
        }
        if self.fd_store.due_ns().is_some_and(|at| at <= boottime_ns()) {
            self.retry_fd_store();
        }
        if self.ahead.due_ns().is_some_and(|at| at <= boottime_ns()) {
            self.ahead.refill(self.how);
        }
        false
    }

    /// Handles an event of epoll. Returns the order that the event carried, or `None`.
    fn handle_event(&mut self, token: u64, flags: EventFlags, orders: &impl Orders) -> Option<Order> {
        match token {
            LISTENER => self.accept(),
            ORDERS => {
                let order = orders.next();
                if order == Some(Order::Reload) {
                    self.reload();
                }
                return order;
            }
            WORKERS => {
                for Finished { mem, lane, done } in self.workers.collect() {
                    let event = match done {
                        Done::Memory { directory, made } => self.take_in(mem, made, directory, lane),
                        Done::Device { made } => self.take_in_of_device(mem, made, lane),
                        Done::Discarded => continue,
                        Done::Spilled { written } => self.written(mem, written),
                        Done::Part { at, made } => allocated(mem, at, made),
                    };
                    self.deliver(event);
                }
            }
            FINDER => self.found(),
            FD_STORE => self.fd_store.lost(),
            SOCKET_FILE => self.check_socket(),
            token => self.handle_share(token, flags),
        }
        None
    }

    fn stop(&mut self) {
        self.say_goodbye();
        // Only clients with a wakeup eventfd were welcomed. The socket's file tells them that a next daemon may follow. Nobody
        // starts one after a daemon that ends by itself, and its clients would start one if they found the file.
        if self.idle.is_none() && self.connections.values().any(|c| c.wakeup.is_some()) {
            self.listener.leave();
        }
        self.core.leave();
    }

    fn timeout(&mut self) -> Option<Timespec> {
        let watchdog = self.watchdog.as_ref().map(Watchdog::due_ns);
        let queued = self.shares.any_wait().then_some(0);
        let (fd_store, ahead, socket) = (self.fd_store.due_ns(), self.ahead.due_ns(), self.socket_due_ns());
        let (core, accept, unsent) = (self.core.alarm(), self.accept_after_ns, self.unsent_due_ns());
        let due = [core, accept, watchdog, unsent, queued, fd_store, ahead, socket, self.idle_due_ns()];
        let at = due.into_iter().flatten().min()?;
        Timespec::try_from(Duration::from_nanos(at.saturating_sub(boottime_ns()))).ok()
    }

    /// Passes an event to the core and performs the effects. Then passes the events that follow
    /// from these effects to the core.
    fn deliver(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let gone = if let Event::HungUp { conn } = event { Some(conn.0) } else { None };
            let step = self.turn.step();
            let name = step.map(|_| turn::name_of(&event));
            let mut effects = self.core.step(boottime_ns(), event);
            // The core ends the clients of these sheets before the effects of what it has read.
            for mem in self.memories.take_unreadable() {
                effects.extend(self.core.step(boottime_ns(), Event::Unreadable { mem }));
            }
            self.turn.end_step(step, || format!("the event {}", name.unwrap_or_default()));
            for effect in effects {
                let step = self.turn.step();
                let name = step.map(|_| turn::name_of(&effect));
                self.perform(effect);
                self.turn.end_step(step, || format!("the effect {}", name.unwrap_or_default()));
            }
            if let Some(process) = gone.and_then(|token| self.processes.ending.remove(&token)) {
                // The core has handled the hang-up and does not await the exit of the process, so
                // epoll need not report the exit.
                self.unwatch(process);
            }
        }
        debug_assert!(self.processes.ending.is_empty(), "the core has handled each hang-up");
    }

    /// Handles the exit of a connection's process.
    fn process_ended(&mut self, token: u64) {
        if let Some(process) = self.processes.awaited.remove(&token) {
            self.unwatch(process);
            self.events.push_back(Event::Exited { conn: ConnId(token) });
        }
        self.hung_up(token);
    }

    /// Closes the pidfd of a process. No other process has this descriptor.
    fn unwatch(&self, process: OwnedFd) {
        let _ = epoll::delete(&self.epoll, &process);
        drop(process);
    }

    /// Reports the exit of a connection's process to the core, now or later. The process may
    /// already have exited.
    fn await_exit(&mut self, token: u64) {
        let connected = self.connections.get_mut(&token).and_then(|connection| connection.process.take());
        match connected.or_else(|| self.processes.ending.remove(&token)) {
            Some(process) => {
                // This re-arms the pidfd, so that epoll reports the exit even if it has already
                // reported it.
                let _ = epoll::modify(&self.epoll, &process, EventData::new_u64(token | PROCESS), EXIT);
                let former = self.processes.awaited.insert(token, process);
                debug_assert!(former.is_none(), "the core awaits each exit once");
            }
            // The client's process had already ended when the daemon accepted the connection, so there is no process to
            // watch.
            None => self.events.push_back(Event::Exited { conn: ConnId(token) }),
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Create { mem, bytes, bytes_first, sheet, background, reserved, conn } => {
                self.create(mem, Plan { bytes, bytes_first, sheet, reserved }, background, conn);
            }
            Effect::CreateWake { mem, uid } => {
                if let Err(error) = self.memories.make_wake(mem, self.lanes.of(uid)) {
                    tracing::warn!("making a wake pair: {error}");
                }
            }
            Effect::Allocate { mem, at, bytes } => {
                if let Err(error) = self.order_part(mem, at, bytes, Job::Part) {
                    self.events.push_back(allocated(mem, at, Err(error)));
                }
            }
            Effect::Discard { mem, at, bytes } => {
                if let Err(error) = self.order_part(mem, at, bytes, Job::Discard) {
                    tracing::warn!("giving a part of a directory back: {error}");
                }
            }
            Effect::Cancel { mem } => self.workers.cancel(mem),
            Effect::Keep { mem, label } => {
                if let Some(fd) = self.memories.fd(mem).or_else(|| self.files.get(&mem).map(|file| file.fd())) {
                    self.fd_store.keep(mem, &label, fd);
                }
            }
            Effect::Forget { mem } => self.fd_store.forget(mem),
            Effect::Release { mem } => {
                self.fd_store.forget(mem);
                self.memories.release(mem, &self.lanes);
            }
            Effect::Seal { conn, mem } => self.seal(conn, mem),
            Effect::Probe { mem } => {
                let quiescent = self.memories.is_quiescent(mem);
                self.events.push_back(Event::Probed { mem, quiescent });
            }
            Effect::Send { conn, reply, lend, close } => self.send(conn.0, reply, lend, close),
            Effect::Resume { conn } => self.resume(conn.0),
            Effect::Close { conn } => self.close(conn.0),
            Effect::Wake { directory } => self.memories.wake(directory, |head| &head.bell),
            Effect::WakeHolders { directory } => self.memories.wake(directory, |head| &head.returned),
            Effect::WakeWanted { directory } => self.memories.wake(directory, |head| &head.wanted_out),
            Effect::CreateOnDevice { mem, device, borrower, bytes } => {
                let lane = self.lanes.of(borrower.uid);
                self.workers.order(mem, lane, Job::Device { device, borrower, bytes }, &self.lanes);
            }
            Effect::Spill { mem, file, bytes, uid } => self.write(mem, file, bytes, uid),
            Effect::Recall { mem, file, bytes, uid } => self.recall(mem, file, bytes, uid),
            Effect::DropFile { file } => self.drop_file(file),
            Effect::AwaitExit { conn } => self.await_exit(conn.0),
        }
    }

    /// Makes memory for a connection's client, or for the daemon: in a lane (`background`), or now.
    fn create(&mut self, mem: MemId, plan: Plan, background: bool, conn: Option<ConnId>) {
        let connection = conn.and_then(|conn| self.connections.get(&conn.0));
        let lane = connection.map_or(Lane::Daemon, |connection| self.lanes.of(connection.uid));
        if background {
            self.workers.order(mem, lane, Job::Memory(plan), &self.lanes);
        } else {
            let made = self.ahead.make(plan, self.how, boottime_ns());
            let event = self.take_in(mem, made, plan.is_directory(), lane);
            self.events.push_back(event);
        }
    }

    /// Seals memory. Disconnects its client if that fails: the client has set other seals, or has a file lease on the
    /// memory, so other processes could become writers of the memory.
    fn seal(&mut self, conn: ConnId, mem: MemId) {
        tensorlend_layout::crash_point!("daemon: about to seal");
        let Err(error) = self.memories.seal(mem) else { return };
        let why = format!("its memory cannot be sealed: {error}");
        tracing::warn!("disconnected {}: {why}", self.core.who(conn));
        if let Some(connection) = self.connections.get_mut(&conn.0) {
            let _ = connection.send(&Reply::Refused(Refusal::Violation(why)), vec![], &self.lanes);
        }
        self.hung_up(conn.0);
    }

    /// Orders work on a part of a directory. The directory's lane does it in the order of these calls.
    fn order_part(&mut self, mem: MemId, at: u64, bytes: u64, what: impl FnOnce(Part) -> Job) -> io::Result<()> {
        let (fd, sheet) = self.memories.share(mem)?;
        let part = what(Part { fd, sheet, at, bytes });
        self.workers.order(mem, Lane::Directory(mem), part, &self.lanes);
        Ok(())
    }

    /// Reads the connection's packets again, after the acknowledgement of memory.
    fn resume(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.busy = false;
            self.watch(token);
        }
    }

    /// Stores the descriptors that the fd store does not have. If its process has ended, connects to the next one.
    fn retry_fd_store(&mut self) {
        let (memories, files) = (&self.memories, &self.files);
        if self.fd_store.retry(|mem| memories.fd(mem).or_else(|| files.get(&mem).map(|file| file.fd())))
            && let Some(connection) = self.fd_store.connection()
            && watch_fd_store(&self.epoll, connection).is_err()
        {
            self.fd_store.lost();
        }
    }

    fn take_in(&mut self, mem: MemId, made: Made, directory: bool, lane: Lane) -> Event {
        let made = match made {
            Ok((fd, view)) => {
                tensorlend_layout::crash_point!("daemon: memory made");
                match &view {
                    Some(view) if directory => self.memories.insert_directory(mem, fd, view.clone()),
                    _ => self.memories.insert(mem, fd, view.as_ref(), lane),
                }
                Ok(view)
            }
            Err(error) => Err(error::unmade(&error)),
        };
        Event::Created { mem, made }
    }

    fn take_in_of_device(&mut self, mem: MemId, made: MadeOnDevice, lane: Lane) -> Event {
        let made = made.map(|(memory, export)| {
            tensorlend_layout::crash_point!("device: memory made");
            self.memories.insert_on_device(mem, memory, lane);
            export
        });
        let made = made.map_err(Unmade::from);
        Event::CreatedOnDevice { mem, made }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for (_, connection) in std::mem::take(&mut self.connections) {
            let _ = shutdown(&connection.fd, Shutdown::Both);
            self.lanes.close(self.lanes.of(connection.uid), connection);
        }
        self.unread.close(&self.lanes);
        self.memories.release_foreign(&self.lanes);
    }
}
