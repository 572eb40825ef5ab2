//! A shell without system calls, with its clients.

use crate::core::label::Label;
use crate::core::settings::{DeviceSettings, Mode, NamespaceLimits, NamespaceRule, Payer, Peer, Principal, Settings};
use crate::core::{ConnId, Core, Effect, Event, Lending, MemId, Unmade, Unwritten};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tensorlend_layout::Uuid;
use tensorlend_layout::catalogue::{Catalogue, SlotRecord};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::raw::View;
use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{Allocator, Export, Hello, Reply, Request, Stat, Welcome, encode};
use tensorlend_layout::word::{Absorbed, Cell, MemberState, OwnerWord, SLOT_NONE};

pub const SEGMENT: u64 = 1 << 20;
pub const STREAM_GRACE_NS: u64 = 10_000_000_000;
pub type Answer = (Reply, Vec<(MemId, Lending)>);

pub struct World {
    pub core: Core,
    pub now_ns: u64,
    /// Memory that exists; segments have no view.
    pub memory: BTreeMap<MemId, (u64, Option<View>)>,
    pub sealed: BTreeSet<MemId>,
    /// Memory that a process can still write.
    pub loud: BTreeSet<MemId>,
    /// Whether memory from lanes stays on order until [`World::finish`].
    pub slow: bool,
    /// Whether probes wait until [`World::finish`], and the memory that they are for.
    pub late: bool,
    pub probes: Vec<MemId>,
    pub orders: Vec<(MemId, u64, Option<crate::core::SheetPlan>)>,
    /// Maximum length of memory that can be made.
    pub bytes_max: u64,
    pub answers: BTreeMap<ConnId, VecDeque<Answer>>,
    pub closed: BTreeSet<ConnId>,
    pub wakes: usize,
    /// Number of parts of directories that were made, and that were returned.
    pub parts: usize,
    pub parts_discarded: usize,
    /// Whether no part can be made.
    pub no_parts: bool,
    conns: u64,
    /// Device memory that exists, with its length.
    pub on_device: BTreeMap<MemId, u64>,
    /// Connections whose processes the daemon waits for.
    pub awaited: BTreeSet<ConnId>,
    pub holders_woken: usize,
    pub wanted_woken: usize,
    /// The layout that new clients offer.
    pub layout: Layout,
    /// The error with which devices refuse memory.
    pub device_fails: Option<String>,
    /// Whether the daemon can watch the ends of processes.
    pub watches: bool,
    device_orders: Vec<(MemId, u64)>,
    /// Files, each with its memory and its length.
    pub files: BTreeMap<MemId, (MemId, u64)>,
    /// Segments that a process has mapped.
    pub held: BTreeSet<MemId>,
    /// Whether files are written only in [`World::finish_spills`], and the files to write.
    pub slow_spill: bool,
    spills: Vec<(MemId, MemId, u64)>,
    pub recalled: usize,
    /// Number of effects after which the daemon is killed.
    pub dies_after: Option<usize>,
    /// The descriptors in the fd store.
    pub stored: BTreeMap<MemId, Label>,
    /// Whether the daemon can open no descriptor for a reply.
    pub no_descriptors: bool,
}

pub struct Client {
    pub conn: ConnId,
    pub welcome: Welcome,
    pub directory: Directory,
    pub catalogue: View,
    pub leases: View,
}

pub fn limits() -> NamespaceLimits {
    NamespaceLimits {
        bytes_max: u64::MAX,
        names_max: 2048,
        members_max: 8,
        lists_max: 4,
        streams_max: 4,
        segments_max: 16,
        device_bytes_max: u64::MAX,
        payer: Payer::Daemon,
    }
}

pub fn settings() -> Settings {
    Settings {
        mode: Mode::User,
        pid: 1,
        seed: 42,
        pool_bytes_max: 16 * SEGMENT,
        sheet_bytes_max: 1 << 30,
        segment_bytes: SEGMENT,
        segment_unit: 4096,
        spare_segments: 1,
        page_lock: false,
        idle_bytes_max: 4 * SEGMENT,
        uid_bytes_max: u64::MAX,
        uid_sessions_max: 6,
        uid_share: false,
        owners: Arc::default(),
        administrators: Vec::new(),
        observers: vec![Principal::Uid(9), Principal::Gid(90)],
        refused_uid: None,
        stream_grace_ns: STREAM_GRACE_NS,
        descriptors_max: 10_000,
        lease_ns_max: None,
        devices: vec![device()],
        no_device: "there is none".into(),
        uid_device_bytes_max: u64::MAX,
        quarantine_ns: 100_000_000,
        spill: None,
        private: limits(),
        namespaces: BTreeMap::from([(
            "lab".into(),
            NamespaceRule {
                readers: vec![Principal::Uid(2)],
                writers: vec![Principal::Uid(1), Principal::Gid(50)],
                limits: limits(),
            },
        )]),
    }
}

/// Length of an ordinary segment of [`device`].
pub const DEVICE_SEGMENT: u64 = 4 << 20;

/// Returns a device with room for four ordinary segments.
pub fn device() -> DeviceSettings {
    DeviceSettings {
        uuid: Uuid(*b"device of a test"),
        name: "device".into(),
        allocator: Allocator::Pool,
        segment_bytes: DEVICE_SEGMENT,
        unit_bytes: 2 << 20,
        bytes_max: 4 * DEVICE_SEGMENT,
        idle_bytes_max: DEVICE_SEGMENT,
    }
}

pub fn hello() -> Hello {
    Hello::new(None, "test")
}

impl World {
    pub fn new(settings: Settings) -> Self {
        let mut world = Self {
            core: Core::new(settings),
            now_ns: 1_000_000_000,
            memory: BTreeMap::new(),
            sealed: BTreeSet::new(),
            loud: BTreeSet::new(),
            slow: false,
            late: false,
            probes: Vec::new(),
            orders: Vec::new(),
            bytes_max: u64::MAX,
            answers: BTreeMap::new(),
            closed: BTreeSet::new(),
            wakes: 0,
            parts: 0,
            parts_discarded: 0,
            no_parts: false,
            conns: 0,
            stored: BTreeMap::new(),
            files: BTreeMap::new(),
            held: BTreeSet::new(),
            slow_spill: false,
            spills: Vec::new(),
            recalled: 0,
            dies_after: None,
            on_device: BTreeMap::new(),
            awaited: BTreeSet::new(),
            holders_woken: 0,
            wanted_woken: 0,
            layout: Layout::CURRENT,
            device_fails: None,
            watches: true,
            device_orders: Vec::new(),
            no_descriptors: false,
        };
        world.happen(Event::Start);
        world
    }

    pub fn happen(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        loop {
            while let Some(event) = events.pop_front() {
                for effect in self.core.step(self.now_ns, event) {
                    match &mut self.dies_after {
                        Some(0) => return,
                        Some(left) => *left -= 1,
                        None => {}
                    }
                    events.extend(self.perform(effect));
                }
            }
            if self.core.alarm().is_none_or(|at| at > self.now_ns) {
                return;
            }
            events.push_back(Event::Alarm);
        }
    }

    pub fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Create { mem, bytes, sheet, background, .. } => {
                if background && self.slow {
                    self.orders.push((mem, bytes, sheet));
                    return None;
                }
                return Some(self.make(mem, bytes, sheet));
            }
            Effect::CreateWake { mem, .. } => drop(self.memory.insert(mem, (0, None))),
            Effect::CreateOnDevice { mem, bytes, .. } => {
                if self.slow {
                    self.device_orders.push((mem, bytes));
                    return None;
                }
                return Some(self.make_on_device(mem, bytes));
            }
            Effect::AwaitExit { conn } => {
                assert!(self.watches && self.awaited.insert(conn), "a process that can be watched is, once");
            }
            Effect::Spill { mem, file, bytes, .. } => {
                assert_eq!(self.memory[&mem].0, bytes);
                if self.slow_spill {
                    self.spills.push((mem, file, bytes));
                    return None;
                }
                return Some(self.write(mem, file, bytes));
            }
            Effect::Recall { mem, file, bytes, .. } => {
                assert_eq!(self.files[&file].1, bytes);
                self.recalled += 1;
                if self.slow {
                    self.orders.push((mem, bytes, None));
                    return None;
                }
                return Some(self.make(mem, bytes, None));
            }
            Effect::DropFile { file } => {
                assert!(self.files.remove(&file).is_some(), "{file:?} is dropped once");
                self.stored.remove(&file);
            }
            Effect::Release { mem } if self.on_device.contains_key(&mem) => {
                self.on_device.remove(&mem);
                self.stored.remove(&mem);
            }
            Effect::Release { mem } => {
                assert!(self.memory.remove(&mem).is_some(), "{mem:?} is released once");
                self.stored.remove(&mem);
                self.sealed.remove(&mem);
            }
            Effect::Allocate { mem, at, bytes, .. } => {
                assert!(at + bytes <= self.memory[&mem].0 && at.is_multiple_of(4096), "it lies inside");
                self.parts += 1;
                let made = if self.no_parts { Err("no space".into()) } else { Ok(()) };
                return Some(Event::Allocated { mem, at, made });
            }
            Effect::Discard { mem, at, bytes } => {
                self.parts_discarded += 1;
                let view = self.view(mem);
                let words: &[tensorlend_layout::word::Word] = view.array(at as usize, bytes as usize / 8).unwrap();
                for word in words {
                    word.put(0);
                }
            }
            Effect::Seal { mem, .. } => {
                assert!(self.memory.contains_key(&mem));
                self.sealed.insert(mem);
            }
            Effect::Probe { mem } => {
                assert!(self.memory.contains_key(&mem), "{mem:?} is probed while it exists");
                if self.late {
                    self.probes.push(mem);
                    return None;
                }
                return Some(Event::Probed { mem, quiescent: !self.loud.contains(&mem) });
            }
            Effect::Send { conn, reply, lend, close } => {
                for (mem, how) in &lend {
                    if *how == Lending::Device {
                        assert!(self.on_device.contains_key(mem), "{mem:?} is lent while it exists");
                        continue;
                    }
                    assert!(self.memory.contains_key(mem), "{mem:?} is lent while it exists");
                    let sheet = self.memory[mem].1.is_some();
                    if sheet && *how == Lending::Read && !matches!(reply, Reply::Welcome(_)) {
                        assert!(self.sealed.contains(mem), "a sheet is sealed before others read it");
                    }
                }
                assert!(encode(&reply).len() <= tensorlend_layout::wire::PACKET_BYTES_MAX);
                if self.no_descriptors && !lend.is_empty() {
                    return Some(Event::Unsent { conn, refusal: Unmade::Memory("none".into()).refusal(0) });
                }
                self.answers.entry(conn).or_default().push_back((reply, lend));
                if close {
                    self.closed.insert(conn);
                }
            }
            // Cancelled work has begun and arrives in any case.
            Effect::Resume { .. } | Effect::Cancel { .. } => {}
            Effect::Keep { mem, label } => {
                let on_device = self.on_device.contains_key(&mem);
                let exists = self.memory.contains_key(&mem) || self.files.contains_key(&mem) || on_device;
                assert!(exists, "{mem:?} is kept while it exists");
                self.stored.insert(mem, label);
            }
            Effect::Forget { mem } => {
                self.stored.remove(&mem);
            }
            Effect::Close { conn } => {
                self.closed.insert(conn);
            }
            Effect::Wake { directory } => {
                assert!(self.memory.contains_key(&directory));
                self.wakes += 1;
            }
            Effect::WakeHolders { directory } => {
                assert!(self.memory.contains_key(&directory));
                self.holders_woken += 1;
            }
            Effect::WakeWanted { directory } => {
                assert!(self.memory.contains_key(&directory));
                self.wanted_woken += 1;
            }
        }
        None
    }

    fn write(&mut self, mem: MemId, file: MemId, bytes: u64) -> Event {
        if self.held.contains(&mem) {
            return Event::Spilled { file, written: Err(Unwritten::default()) };
        }
        assert!(!self.memory.contains_key(&file) && self.files.insert(file, (mem, bytes)).is_none());
        Event::Spilled { file, written: Ok(()) }
    }

    /// Performs the pending writes of files.
    pub fn finish_spills(&mut self) {
        for (mem, file, bytes) in std::mem::take(&mut self.spills) {
            let event = self.write(mem, file, bytes);
            self.happen(event);
        }
    }

    fn make(&mut self, mem: MemId, bytes: u64, sheet: Option<crate::core::SheetPlan>) -> Event {
        if bytes > self.bytes_max {
            return Event::Created { mem, made: Err("no space".into()) };
        }
        let view = sheet.map(|plan| {
            let view = View::anonymous(bytes as usize);
            plan.initialise(&view, view.bytes() as u64);
            view
        });
        let before = self.memory.insert(mem, (bytes, view.clone()));
        assert!(before.is_none());
        Event::Created { mem, made: Ok(view) }
    }

    fn make_on_device(&mut self, mem: MemId, bytes: u64) -> Event {
        let made = self.device_fails.clone().map_or(Ok(Export::Allocation), Err);
        if made.is_ok() {
            let before = self.on_device.insert(mem, bytes);
            assert!(before.is_none());
        }
        Event::CreatedOnDevice { mem, made: made.map_err(Unmade::from) }
    }

    /// Ends the process of a connection, and with it the connection.
    pub fn exit(&mut self, conn: ConnId) {
        self.happen(Event::HungUp { conn });
        if self.awaited.remove(&conn) {
            self.happen(Event::Exited { conn });
        }
    }

    /// Makes the memory on order, and performs the pending probes.
    pub fn finish(&mut self) {
        for (mem, bytes, sheet) in std::mem::take(&mut self.orders) {
            let event = self.make(mem, bytes, sheet);
            self.happen(event);
        }
        for (mem, bytes) in std::mem::take(&mut self.device_orders) {
            let event = self.make_on_device(mem, bytes);
            self.happen(event);
        }
        for mem in std::mem::take(&mut self.probes) {
            self.happen(Event::Probed { mem, quiescent: !self.loud.contains(&mem) });
        }
    }

    pub fn wait_ns(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(at) = self.core.alarm()
            && at <= until
        {
            self.now_ns = self.now_ns.max(at);
            self.happen(Event::Alarm);
        }
        self.now_ns = until;
    }

    pub fn dial(&mut self, uid: u32, gids: &[u32]) -> ConnId {
        self.connect(uid, 100 + uid, gids)
    }

    /// Connects like [`World::dial`], from a process with this pid.
    pub fn connect(&mut self, uid: u32, pid: u32, gids: &[u32]) -> ConnId {
        let (command, gids) = ("test".into(), gids.to_vec());
        let peer = Peer { uid, known: true, pid, command, gids, watched: self.watches };
        self.conns += 1;
        let conn = ConnId(self.conns);
        self.happen(Event::Connected { conn, peer });
        conn
    }

    pub fn say(&mut self, conn: ConnId, request: &Request) {
        self.say_with(conn, request, 0);
    }

    /// Sends a request with this number of descriptors.
    pub fn say_with(&mut self, conn: ConnId, request: &Request, descriptors: usize) {
        self.happen(Event::Packet { conn, bytes: encode(request), descriptors, truncated: false });
    }

    pub fn hear(&mut self, conn: ConnId) -> Option<Answer> {
        self.answers.get_mut(&conn)?.pop_front()
    }

    pub fn view(&self, mem: MemId) -> View {
        self.memory[&mem].1.clone().expect("a sheet")
    }

    pub fn join(&mut self, uid: u32) -> Client {
        let client = self.join_unacknowledged(uid, None);
        self.say(client.conn, &Request::Ack);
        client
    }

    /// Returns a writer that may announce names.
    pub fn announcer(&mut self, uid: u32) -> Client {
        let client = self.join(uid);
        self.let_announce(&client);
        client
    }

    /// Makes a writer request new names until it may announce the next. The names are deleted again.
    pub fn let_announce(&mut self, client: &Client) {
        let absorbed = &client.directory.members[client.number().index()].absorbed;
        for asked in 0.. {
            if Absorbed(absorbed.peek()).state() == MemberState::Open {
                return;
            }
            let (name, cell) = (format!("asked {asked} of {}", client.number()), 4095);
            self.bind(client, &name, CellNo::new(cell), Cell::DELETED);
            assert_eq!(self.ask(client, &Request::Tidy { names: vec![(name, CellNo::new(cell))] }), Reply::Done);
        }
    }

    pub fn join_unacknowledged(&mut self, uid: u32, namespace: Option<&str>) -> Client {
        let conn = self.dial(uid, &[]);
        let hello = Hello { namespace: namespace.map(Into::into), ..hello() }.in_layout(self.layout);
        self.say(conn, &Request::Hello(hello));
        let Some((Reply::Welcome(welcome), lend)) = self.hear(conn) else { panic!("not welcome") };
        let hows: Vec<_> = lend.iter().map(|&(_, how)| how).collect();
        assert_eq!(hows, [Lending::Read, Lending::Write, Lending::Write, Lending::Wakeup]);
        let directory = Directory::new(&self.view(lend[0].0)).unwrap();
        Client { conn, welcome, directory, catalogue: self.view(lend[1].0), leases: self.view(lend[2].0) }
    }

    /// Sends a request, and acknowledges descriptors.
    pub fn ask(&mut self, client: &Client, request: &Request) -> Reply {
        self.ask_lent(client, request).0
    }

    pub fn ask_lent(&mut self, client: &Client, request: &Request) -> Answer {
        self.say(client.conn, request);
        let answer = self.hear(client.conn).expect("answered at once");
        if !answer.1.is_empty() {
            self.say(client.conn, &Request::Ack);
        }
        answer
    }

    pub fn segment(&mut self, client: &Client) -> Lent {
        match self.ask_lent(client, &Request::Segment { bytes: SEGMENT, slots_log2: 4 }) {
            (Reply::Segment { base, .. }, lend) => Lent { base, segment: lend[0].0, slots: self.view(lend[1].0) },
            other => panic!("{other:?}"),
        }
    }

    pub fn bind(&mut self, client: &Client, name: &str, cell: CellNo, value: Cell) -> OwnerWord {
        client.words().cells[cell.index()].cell.set(value.0);
        match self.ask(client, &Request::Bind { name: name.into(), cell }) {
            Reply::Bound { owner_word, .. } => OwnerWord(owner_word),
            other => panic!("{other:?}"),
        }
    }

    pub fn hang_up(&mut self, client: &Client) {
        self.happen(Event::HungUp { conn: client.conn });
    }

    pub fn stat(&self) -> Stat {
        self.core.stat()
    }

    /// Asserts that no client is left, and no memory except spares.
    pub fn assert_empty(&mut self) {
        self.wait_ns(60_000_000_000);
        let stat = self.stat();
        assert_eq!((stat.clients, stat.frozen, stat.segments, stat.names), (0, 0, 0, 0), "{stat:?}");
        assert_eq!((stat.bytes_sheets, stat.bytes_in_use), (0, 0), "{stat:?}");
        assert_eq!(self.memory.len() as u64, stat.bytes_spare / SEGMENT, "{:?}", self.memory);
        let of_devices: u64 = stat.devices.iter().map(|device| device.bytes).sum();
        assert_eq!((of_devices, self.on_device.len()), (0, 0), "{:?}", self.on_device);
        assert_eq!(self.core.alarm(), None, "nothing to wait for");
    }
}

pub struct Lent {
    pub base: SlotNo,
    pub segment: MemId,
    pub slots: View,
}

impl Lent {
    /// Writes the words of a slot's record that the daemon reads.
    pub fn write(&self, slot: SlotNo, generation: u64, next: Option<SlotNo>) {
        let records: &[SlotRecord] = self.slots.array(4096, 16).unwrap();
        let record = &records[(slot - self.base) as usize];
        record.words[0].set(generation << 24);
        record.words[2].set(next.unwrap_or(SLOT_NONE).into());
    }
}

impl Client {
    pub fn words(&self) -> &Catalogue {
        self.catalogue.at(0).unwrap()
    }

    pub fn table(&self) -> &LeaseTable {
        self.leases.at(0).unwrap()
    }

    pub fn number(&self) -> ClientNo {
        self.welcome.client
    }

    pub fn find_key(&self, key: &[u8]) -> Option<OwnerWord> {
        let found = self.directory.find(self.directory.hash(key), key).unwrap();
        found.map(|f| f.owner_word).filter(|h| h.is_live())
    }

    pub fn find(&self, name: &str) -> Option<OwnerWord> {
        self.find_key(name.as_bytes())
    }

    /// Stores a lease in entry `at` of the first shard.
    pub fn lease(&self, at: usize, owner: ClientNo, value: Cell) {
        let table = self.table();
        table.shards_used.set(1);
        table.high_water[0].set(64);
        table.entries[0][at].set(value.lease(owner).0);
    }

    pub fn release(&self, at: usize) {
        self.table().entries[0][at].set(0);
    }
}
