//! The world of one schedule.

use crate::client::Honest;
use crate::rng::Rng;
use crate::{Done, Flaw, Plan, note};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_daemon::core::chores::UNITS;
use tensorlend_daemon::core::settings::{Payer, Peer, Settings};
use tensorlend_daemon::core::{ConnId, Core, Event, Lending, MemId, SheetPlan};
use tensorlend_layout::Uuid;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{Refusal, Reply, Request, Welcome, decode};

/// Length of an ordinary segment. No real memory backs it.
pub const SEGMENT: u64 = 1 << 20;

/// The device of every world that has a device.
pub const DEVICE: Uuid = Uuid(*b"a device of sims");

/// A file in memory, independent of its holders. Each daemon has its own [`MemId`] for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct File(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Segment,
    /// Device memory, whose bytes nobody can read through its descriptor.
    Device,
    /// A spilled segment.
    File,
    Sheet(Magic),
    /// A client's wake descriptor.
    Wake,
}

/// The process id of the first actor; the others follow.
pub const PID_FIRST: u32 = 100;

/// A file that a daemon created, or that a client sent.
#[derive(Debug)]
pub struct Mem {
    pub kind: Kind,
    pub bytes: u64,
    /// Number of the daemon's ids for the file.
    pub held: u32,
    /// The clients' view; sheets only.
    pub view: Option<View>,
    /// Actors whose processes may write the file.
    pub writers: BTreeSet<usize>,
    /// The namespace (by its directory) in which it was lent; `lent_to` is the uid that may write it.
    pub lent_in: Option<File>,
    pub lent_to: Option<u32>,
    /// Whether there can be no new writer.
    pub sealed: bool,
    /// The last fill's number and generation for each slot of a segment.
    pub contents: BTreeMap<u32, (u64, u64)>,
}

impl Mem {
    pub fn new(kind: Kind, bytes: u64, view: Option<View>) -> Self {
        let (writers, contents) = (BTreeSet::new(), BTreeMap::new());
        Self { kind, bytes, held: 0, view, writers, lent_in: None, lent_to: None, sealed: false, contents }
    }
}

/// An order to the kernel that is not completed yet.
#[derive(Debug)]
pub enum Order {
    Create {
        mem: MemId,
        bytes: u64,
        sheet: Option<SheetPlan>,
    },
    Allocate {
        mem: MemId,
        at: u64,
    },
    Probe {
        mem: MemId,
    },
    CreateOnDevice {
        mem: MemId,
        bytes: u64,
    },
    Exited {
        conn: ConnId,
    },
    Spill {
        source: File,
        file: MemId,
        bytes: u64,
    },
    Recall {
        mem: MemId,
        source: File,
        bytes: u64,
    },
    /// The descriptors of a reply cannot be opened.
    Unsent {
        conn: ConnId,
        refusal: Refusal,
    },
}

#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: usize,
    pub truncated: bool,
}

/// A client's membership in a namespace.
#[derive(Clone)]
pub struct Seat {
    pub welcome: Welcome,
    pub directory_file: File,
    pub directory: Directory,
    pub catalogue: View,
    pub catalogue_file: File,
    pub leases: View,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} in {:?}", self.welcome, self.directory_file)
    }
}

impl Seat {
    pub fn number(&self) -> ClientNo {
        self.welcome.client
    }
}

/// A connection and its process.
#[derive(Debug)]
pub struct Actor {
    pub conn: ConnId,
    pub uid: u32,
    /// `None`: a liar.
    pub honest: Option<Honest>,
    pub connected: bool,
    /// Whether its daemon ended and it has not reconnected to the next one.
    pub away: bool,
    /// Whether its process, or a child with its mappings, lives.
    pub process: bool,
    /// Whether the daemon reads from it: its last packet got a response.
    pub read: bool,
    /// Whether the daemon reads from it although its last request, about a queue, waits.
    pub waits: bool,
    /// Whether the last packet was a request that may wait.
    pub may_wait: bool,
    pub outbox: VecDeque<Packet>,
    pub inbox: VecDeque<(Reply, Vec<(File, Lending)>)>,
    pub seat: Option<Seat>,
    /// Whether an acknowledgement is due.
    pub owes: bool,
    /// Whether the actor writes to the wakeup eventfd.
    pub wakes: bool,
}

/// A lent segment, as the daemon reported it.
#[derive(Debug)]
pub struct Lent {
    pub slots_log2: u8,
    pub segment: File,
    pub slots: File,
}

/// The world of one schedule.
pub struct Sim {
    pub plan: Plan,
    pub rng: Rng,
    pub core: Core,
    pub settings: Settings,
    /// Units of work that the core may spend on chores per step: few enough to leave some undone.
    pub units: u32,
    pub now_ns: u64,
    /// All files. Some are held by clients only.
    pub memory: BTreeMap<File, Mem>,
    pub files: u64,
    /// The daemon's ids of its files.
    pub names: BTreeMap<MemId, File>,
    /// The directories of open namespaces, as the daemon writes them.
    pub directories: BTreeMap<File, Directory>,
    pub life: crate::restart::Life,
    /// The places at which the daemon can be killed within its steps. `None`: nobody counts them.
    pub cuts: Option<crate::cuts::Cuts>,
    pub administrator: crate::reload::Administrator,
    pub disk: crate::spill::Disk,
    pub queues: crate::queues::Queues,
    pub orders: Vec<Order>,
    /// Orders that the kernel completes before anything else happens.
    pub at_once: VecDeque<Order>,
    pub actors: Vec<Actor>,
    /// The actor of each connection.
    pub conns: Vec<usize>,
    /// Ended connections whose processes' exit the daemon awaits.
    pub awaited: BTreeSet<ConnId>,
    /// Lent segments, by directory, catalogue and first slot.
    pub lent: BTreeMap<(File, ClientNo, SlotNo), Lent>,
    /// The latest owner of each catalogue number.
    pub members: BTreeMap<(File, ClientNo), usize>,
    /// Percentage of orders that fail for lack of memory.
    pub poor: u64,
    /// Whether the kernel completes orders at once.
    pub prompt: bool,
    /// Whether honest clients mostly send and receive without delay.
    pub brisk: bool,
    /// Maximum number of connections before the faults stop.
    pub actors_max: usize,
    pub fills: u64,
    pub step: u32,
    pub done: Done,
}

impl Sim {
    pub fn new(plan: Plan) -> Self {
        Self::with_rng(plan, Rng::new(plan.seed))
    }

    pub fn with_rng(plan: Plan, mut rng: Rng) -> Self {
        let disk = crate::spill::Disk::new(plan.seed);
        // From a separate generator, so that other choices of a seed do not change.
        let units = Rng::new(plan.seed ^ 0x007C_07E5).pick(&[1, 3, 10, 100, UNITS]);
        let mut settings = Settings { spill: disk.settings.clone(), ..crate::reload::settings(&mut rng) };
        // From a separate generator, like `units`.
        let mut payers = Rng::new(plan.seed ^ 0x7061_7965);
        for limits in settings.namespaces.values_mut().map(|rule| &mut rule.limits).chain([&mut settings.private]) {
            limits.payer = if payers.chance(8) { Payer::Client } else { Payer::Daemon };
        }
        let poor = if rng.chance(25) { 10 } else { 0 };
        let prompt = rng.chance(60);
        let brisk = rng.chance(75);
        let actors_max = 2 + rng.index(9);
        let life = crate::restart::Life::new(&mut rng);
        let sim = Self::begin(plan, rng, settings, units, life);
        Self { disk, poor, prompt, brisk, actors_max, ..sim }.started()
    }

    /// Returns a world whose daemon has not started, in which the kernel completes every order at once.
    pub fn begin(plan: Plan, rng: Rng, settings: Settings, units: u32, life: crate::restart::Life) -> Self {
        Self {
            plan,
            rng,
            core: Core::new(settings.clone()).with_units(units),
            units,
            administrator: crate::reload::Administrator::new(plan.seed, settings.clone()),
            disk: crate::spill::Disk::new(plan.seed),
            queues: crate::queues::Queues::new(plan.seed),
            settings,
            now_ns: 1_000_000_000,
            memory: BTreeMap::new(),
            files: 0,
            names: BTreeMap::new(),
            directories: BTreeMap::new(),
            life,
            cuts: None,
            orders: Vec::new(),
            at_once: VecDeque::new(),
            actors: Vec::new(),
            conns: Vec::new(),
            awaited: BTreeSet::new(),
            lent: BTreeMap::new(),
            members: BTreeMap::new(),
            poor: 0,
            prompt: true,
            brisk: true,
            actors_max: usize::MAX,
            fills: 0,
            step: 0,
            done: Done::default(),
        }
    }

    /// The daemon starts.
    pub fn started(mut self) -> Self {
        self.happen(Event::Start);
        self
    }

    /// Runs the schedule to its end.
    pub fn run(mut self) -> Done {
        for step in 0..self.plan.steps {
            self.step = step;
            self.random_step();
            self.check();
        }
        self.faults_stop();
        self.clean_up();
        self.done
    }

    /// Records a line, if lines are recorded.
    pub fn note(&self, line: impl FnOnce() -> String) {
        if self.plan.trace {
            note(format!("{:4} {:>14} ns  {}", self.step, self.now_ns, line()));
        }
    }

    /// The core processes an event, and then the kernel's immediate completions.
    pub fn happen(&mut self, event: Event) {
        self.take_in(event);
        while let Some(order) = self.at_once.pop_front() {
            let fails = self.rng.chance(self.poor);
            let event = self.answer_to(order, fails);
            if let Some(event) = event {
                self.take_in(event);
            }
        }
    }

    fn take_in(&mut self, event: Event) {
        self.keep_late();
        self.note(|| format!("event {event:?}"));
        self.done.events += 1;
        let now_ns = self.now_ns;
        let (effects, dies) = self.cut(|core| core.step(now_ns, event));
        // The effects of one event are bounded by the clients' resources, and these by the limits.
        assert!(effects.len() < 2000, "{} effects of one event", effects.len());
        let dies_after = self.life.dies_after.take();
        for effect in effects.into_iter().take(dies_after.unwrap_or(usize::MAX)) {
            self.perform(effect);
        }
        if dies || dies_after.is_some() {
            self.daemon_dies();
        }
    }

    pub fn has_flaw(&self, flaw: Flaw) -> bool {
        self.plan.flaw == Some(flaw)
    }

    /// Takes a step of any participant.
    fn random_step(&mut self) {
        self.now_ns += 1000 + self.rng.below(100_000);
        if self.core.alarm().is_some_and(|at| at <= self.now_ns) && self.rng.chance(60) {
            self.happen(Event::Alarm);
        }
        if self.life.is_gone {
            return self.without_daemon();
        }
        if self.actors.len() < 2 || (self.step < 40 && self.rng.chance(20)) {
            return self.connect();
        }
        if self.reloads() || self.kills_daemon() {
            return;
        }
        match self.rng.below(100) {
            0..4 => self.connect(),
            4..36 => self.deliver_any(),
            36..50 => self.answer_any(),
            50..77 => self.honest_any(),
            77..93 => self.liar_any(),
            93..95 => self.die_any(),
            95..98 => self.exit_any(),
            _ => self.pass_time(),
        }
    }

    fn connect(&mut self) {
        if self.actors.len() >= self.actors_max {
            return;
        }
        let honest = self.rng.chance(60);
        let uid = self.rng.pick(&[1, 1, 2, 2, 3]);
        self.dial(uid, honest);
    }

    pub fn dial(&mut self, uid: u32, honest: bool) -> usize {
        self.actors.push(Actor {
            conn: ConnId(0),
            uid,
            honest: honest.then(Honest::default),
            connected: false,
            away: false,
            process: true,
            read: true,
            waits: false,
            may_wait: false,
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            seat: None,
            owes: false,
            wakes: false,
        });
        self.connects(self.actors.len() - 1);
        self.actors.len() - 1
    }

    /// A process connects, perhaps again.
    pub fn connects(&mut self, actor: usize) {
        self.conns.push(actor);
        let conn = ConnId(self.conns.len() as u64);
        let it = &mut self.actors[actor];
        (it.conn, it.connected, it.read, it.owes) = (conn, true, true, false);
        (it.waits, it.may_wait) = (false, false);
        it.outbox.clear();
        it.inbox.clear();
        let peer = Peer {
            uid: it.uid,
            known: true,
            pid: PID_FIRST + actor as u32,
            command: String::new(),
            gids: Vec::new(),
            watched: true,
        };
        self.happen(Event::Connected { conn, peer });
    }

    pub fn any_actor(&mut self, which: impl Fn(&Actor) -> bool) -> Option<usize> {
        let of: Vec<usize> = (0..self.actors.len()).filter(|&a| which(&self.actors[a])).collect();
        (!of.is_empty()).then(|| self.rng.pick(&of))
    }

    fn deliver_any(&mut self) {
        match self.any_actor(|a| a.connected && ((a.read && !a.outbox.is_empty()) || a.wakes)) {
            Some(actor) => {
                self.deliver(actor);
                let brisk = self.brisk && self.actors[actor].honest.is_some() && self.rng.chance(80);
                if brisk && !self.actors[actor].inbox.is_empty() {
                    self.honest_hears(actor);
                    self.deliver(actor);
                }
            }
            None => self.honest_any(),
        }
    }

    /// The daemon reads a packet from a connection.
    pub fn deliver(&mut self, actor: usize) {
        let it = &mut self.actors[actor];
        let conn = it.conn;
        if std::mem::take(&mut it.wakes) {
            self.happen(Event::Woken { conn });
            return;
        }
        if !it.read {
            return;
        }
        let Some(packet) = it.outbox.pop_front() else { return };
        it.read = false;
        it.may_wait = matches!(decode(&packet.bytes), Some(Request::Queue(it)) if it.waits_for().is_some());
        self.done.packets += 1;
        let Packet { bytes, descriptors, truncated } = packet;
        self.happen(Event::Packet { conn, bytes, descriptors, truncated });
    }

    pub fn file(&mut self, memory: Mem) -> File {
        self.files += 1;
        self.memory.insert(File(self.files), memory);
        File(self.files)
    }

    /// Gives a file an id of the daemon.
    pub fn call(&mut self, mem: MemId, file: File) {
        assert!(self.names.insert(mem, file).is_none(), "{mem:?} is the name of something already");
        self.memory.get_mut(&file).expect("it is there").held += 1;
    }

    /// Removes an id of the daemon.
    pub fn call_no_more(&mut self, mem: MemId) -> Option<File> {
        let file = self.names.remove(&mem)?;
        self.memory.get_mut(&file).expect("it is there").held -= 1;
        Some(file)
    }

    /// Returns true if the daemon holds this file.
    pub fn is_held(&self, file: File) -> bool {
        self.memory.get(&file).is_some_and(|memory| memory.held > 0)
    }

    fn answer_any(&mut self) {
        if self.orders.is_empty() {
            return self.deliver_any();
        }
        let at = self.rng.index(self.orders.len());
        let fails = self.rng.chance(self.poor);
        let order = self.orders.swap_remove(at);
        self.answer(order, fails);
    }

    /// The kernel completes all orders.
    pub fn make_all(&mut self) {
        while let Some(order) = self.orders.pop() {
            self.answer(order, false);
        }
    }

    fn die_any(&mut self) {
        if let Some(actor) = self.any_actor(|a| a.connected && !a.away) {
            self.hang_up(actor);
            if self.rng.chance(60) {
                self.exit(actor);
            }
        }
    }

    /// An actor closes its connection.
    pub fn hang_up(&mut self, actor: usize) {
        let conn = self.actors[actor].conn;
        self.leave(actor);
        self.happen(Event::HungUp { conn });
    }

    /// An actor's connection has ended: its leases no longer protect anything.
    pub fn leave(&mut self, actor: usize) {
        let it = &mut self.actors[actor];
        it.connected = false;
        it.waits = false;
        it.outbox.clear();
        it.inbox.clear();
        if let Some(honest) = &mut it.honest {
            honest.held.clear();
        }
    }

    pub fn exit_any(&mut self) {
        if self.rng.chance(30)
            && let Some(actor) = self.any_actor(|a| a.away)
        {
            return self.ends_away(actor);
        }
        if let Some(actor) = self.any_actor(|a| !a.connected && !a.away && a.process) {
            self.exit(actor);
        }
    }

    /// An actor's process and its children exit, which removes their mappings.
    pub fn exit(&mut self, actor: usize) {
        self.note(|| format!("process {actor} exits"));
        self.actors[actor].process = false;
        for mem in self.memory.values_mut() {
            mem.writers.remove(&actor);
        }
        let its = |conn: &ConnId| self.conns[conn.0 as usize - 1] == actor;
        let exited: Vec<ConnId> = self.awaited.extract_if(.., its).collect();
        self.orders.extend(exited.into_iter().map(|conn| Order::Exited { conn }));
    }

    pub fn pass_time(&mut self) {
        // Honest clients acknowledge and publish in time.
        let busy = self.actors.iter().any(|a| {
            (a.connected || a.away)
                && a.honest
                    .as_ref()
                    .is_some_and(|h| a.away || h.claiming.is_some() || !a.outbox.is_empty() || !a.inbox.is_empty())
        });
        let ns_max = if busy { 10_000_000 } else { 3_000_000_000 };
        let until = self.now_ns + self.rng.below(ns_max);
        self.wait_until(until);
    }

    /// Lets time pass; alarms fire when they are due.
    pub fn wait_until(&mut self, until_ns: u64) {
        while let Some(at) = self.core.alarm()
            && at <= until_ns
        {
            self.now_ns = self.now_ns.max(at);
            self.happen(Event::Alarm);
        }
        self.now_ns = until_ns;
    }
}
