//! The small world of the exhaustive search: two clients of a namespace, and the choices in it.

use super::model::{Model, Op, RING, Stream, Val};
use crate::client::{Asked, Honest};
use crate::cuts::Cuts;
use crate::restart::Life;
use crate::rng::Rng;
use crate::sim::{SEGMENT, Seat, Sim};
use crate::steps::{a_collection, a_name, hello};
use crate::Plan;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_daemon::core::Event;
use tensorlend_daemon::core::chores::UNITS;
use tensorlend_daemon::core::settings::{Mode, NamespaceLimits, NamespaceRule, Payer, Principal, Settings};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::name::{item_key, list_key, stream_key};
use tensorlend_layout::number::CursorNo;
use tensorlend_layout::wire::{CLAIM_BATCH_MAX, Hello, Policy, QueueItem, QueueReply, QueueRequest, Reply, Request};
use tensorlend_layout::word::{Cell, LifeWord, OwnerKind, OwnerWord, SubscriberWord};

/// Number of clients.
pub const CLIENTS: usize = 2;
/// A seed without an administrator who changes limits.
const SEED: u64 = 0;
/// log2 of the slots of a client's first segment.
const SLOTS_LOG2: u8 = 2;
/// Time to live of a name that expires.
const TTL_NS: u64 = 1_000_000_000;
/// Time within which a daemon has ended all that its clients' deaths end.
const ENDS_NS: u64 = 6_000_000_000;

/// One step of a client, of the kernel, or of the clock. The first number is the client, the second the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Overwrites an own name, or requests it.
    Put(usize, u64),
    /// Publishes a name without the daemon.
    Announce(usize, u64),
    /// Requests a name that ends with the client's session.
    Ephemeral(usize, u64),
    /// Requests a name that ends after a second.
    Expiring(usize, u64),
    Delete(usize, u64),
    /// Renames the first name to the second.
    Rename(usize),
    /// Learns which names it has lost, and tells which ones it has deleted.
    Tend(usize),
    /// Leases a name's value, or drops the lease.
    Lease(usize, u64),
    /// Appends this many items.
    Append(usize, u64, u8),
    AppendEphemeral(usize, u64),
    /// Renames the first list to the second.
    ListRename(usize),
    ListDelete(usize, u64),
    /// Claims an item of the first list.
    Claim(usize),
    Done(usize),
    GiveBack(usize),
    Open(usize),
    Send(usize),
    StreamDelete(usize),
    Subscribe(usize),
    /// Requests a further segment.
    Grow(usize),
    /// The same, and the kernel has no memory.
    GrowFails(usize),
    /// Returns an empty segment.
    Shrink(usize),
    /// The client's process ends.
    Dies(usize),
    /// The kernel completes the oldest order that it has not completed at once.
    Kernel,
    /// The next timer fires, within a second.
    Alarm,
    /// Three seconds pass.
    Later,
}

impl Choice {
    /// Returns the client that takes the step.
    pub fn client(self) -> Option<usize> {
        match self {
            Self::Put(a, _)
            | Self::Announce(a, _)
            | Self::Ephemeral(a, _)
            | Self::Expiring(a, _)
            | Self::Delete(a, _)
            | Self::Rename(a)
            | Self::Tend(a)
            | Self::Lease(a, _)
            | Self::Append(a, ..)
            | Self::AppendEphemeral(a, _)
            | Self::ListRename(a)
            | Self::ListDelete(a, _)
            | Self::Claim(a)
            | Self::Done(a)
            | Self::GiveBack(a)
            | Self::Open(a)
            | Self::Send(a)
            | Self::StreamDelete(a)
            | Self::Subscribe(a)
            | Self::Grow(a)
            | Self::GrowFails(a)
            | Self::Shrink(a)
            | Self::Dies(a) => Some(a),
            Self::Kernel | Self::Alarm | Self::Later => None,
        }
    }
}

/// A small world, and the state of its sequential model.
pub struct World {
    pub sim: Sim,
    pub model: Model,
    /// The operation of each client's latest request.
    ops: BTreeMap<usize, Op>,
    /// Clients whose responses the model has, and that have not read them.
    answered: BTreeSet<usize>,
    dead: BTreeSet<usize>,
}

fn settings(mode: Mode) -> Settings {
    let limits = NamespaceLimits {
        bytes_max: u64::MAX,
        names_max: 12,
        members_max: 4,
        lists_max: 2,
        streams_max: 1,
        segments_max: 6,
        device_bytes_max: u64::MAX,
        payer: Payer::Daemon,
    };
    let rule = NamespaceRule { readers: Vec::new(), writers: vec![Principal::Uid(1), Principal::Uid(2)], limits };
    Settings {
        mode,
        pid: 1,
        seed: SEED,
        pool_bytes_max: 8 * SEGMENT,
        sheet_bytes_max: 1 << 30,
        segment_bytes: SEGMENT,
        segment_unit: 4096,
        spare_segments: 0,
        page_lock: false,
        idle_bytes_max: 0,
        uid_bytes_max: u64::MAX,
        uid_sessions_max: 4,
        uid_share: false,
        owners: std::sync::Arc::default(),
        administrators: Vec::new(),
        observers: Vec::new(),
        refused_uid: None,
        stream_grace_ns: 50_000_000,
        descriptors_max: 10_000,
        lease_ns_max: None,
        devices: Vec::new(),
        no_device: String::new(),
        uid_device_bytes_max: u64::MAX,
        quarantine_ns: 100_000_000,
        spill: None,
        private: limits,
        namespaces: BTreeMap::from([("lab".into(), rule)]),
    }
}

impl World {
    /// Returns a world in which both clients have joined and have a segment.
    pub fn new(plan: Plan, mode: Mode) -> Self {
        let mut life = Life::new(&mut Rng::new(SEED));
        (life.keeper, life.kills_left) = (true, 0);
        let mut sim = Sim::begin(plan, Rng::new(SEED), settings(mode), UNITS, life).started();
        sim.disk.settings = None;
        let mut it = Self { sim, model: Model::default(), ops: BTreeMap::new(), answered: BTreeSet::new(), dead: BTreeSet::new() };
        for actor in 0..CLIENTS {
            // In user mode, all clients are of one user.
            let uid = if it.sim.is_user_mode() { 1 } else { actor as u32 + 1 };
            it.sim.dial(uid, true);
            let mut h = it.sim.actors[actor].honest.take().expect("it is honest");
            h.hello_sent = true;
            it.sim.ask(actor, &mut h, Asked::Hello, &Request::Hello(Hello { namespace: Some("lab".into()), ..hello() }));
            it.sim.actors[actor].honest = Some(h);
            it.sim.settle();
            let segment = Request::Segment { bytes: SEGMENT, slots_log2: SLOTS_LOG2 };
            it.client(actor, |w, h, _| {
                w.ask(actor, h, Asked::Segment, &segment, Op::Nothing);
                true
            });
            it.sim.settle();
        }
        it.ops.clear();
        it
    }

    /// Returns the operations without a response.
    pub fn pending(&self) -> (&BTreeMap<usize, Op>, &BTreeSet<usize>) {
        (&self.ops, &self.answered)
    }

    /// Takes one step. Returns false if it is not possible in this state.
    pub fn take(&mut self, choice: Choice) -> bool {
        self.sim.now_ns += 1000;
        self.sim.poor = 0;
        self.chooses(&[]);
        let taken = match choice {
            Choice::Kernel => {
                !self.sim.orders.is_empty() && {
                    let order = self.sim.orders.remove(0);
                    self.sim.answer(order, false);
                    true
                }
            }
            Choice::Alarm => self.sim.core.alarm().is_some_and(|at| {
                let is_soon = at < self.sim.now_ns + TTL_NS / 2;
                if is_soon {
                    self.sim.now_ns = self.sim.now_ns.max(at);
                    self.sim.happen(Event::Alarm);
                }
                is_soon
            }),
            Choice::Later => {
                self.sim.wait_until(self.sim.now_ns + 3 * TTL_NS);
                true
            }
            Choice::Dies(a) => {
                self.is_here(a) && {
                    self.dies(a);
                    true
                }
            }
            _ => self.client_takes(choice),
        };
        self.notes_answers();
        taken
    }

    fn dies(&mut self, a: usize) {
        self.dead.insert(a);
        self.ops.remove(&a);
        if self.sim.life.is_gone {
            self.sim.ends_away(a);
        } else {
            self.sim.hang_up(a);
            // The daemon may have been killed by the end of the connection.
            if self.sim.life.is_gone { self.sim.ends_away(a) } else { self.sim.exit(a) }
        }
    }

    /// Fixes the next choices of the steps of clients; all further ones are 99.
    fn chooses(&mut self, choices: &[u8]) {
        let mut all = [99; 32];
        all[..choices.len()].copy_from_slice(choices);
        self.sim.rng = Rng::of(&all);
    }

    pub fn is_here(&self, a: usize) -> bool {
        let it = &self.sim.actors[a];
        it.connected && !it.away && it.seat.is_some()
    }

    /// A client reads its responses, takes a step if it can, and sends what it has to send.
    fn client(&mut self, a: usize, step: impl FnOnce(&mut Self, &mut Honest, &Seat) -> bool) -> bool {
        while self.is_here(a) && !self.sim.actors[a].inbox.is_empty() {
            self.answered.remove(&a);
            self.ops.remove(&a);
            self.sim.honest_hears(a);
            self.sends(a);
        }
        if !self.is_here(a) {
            // The daemon was killed when it received the acknowledgement.
            return self.sim.life.is_gone;
        }
        let seat = self.sim.actors[a].seat.clone().expect("it has joined");
        let mut h = self.sim.actors[a].honest.take().expect("it is honest");
        let stepped = step(self, &mut h, &seat);
        self.sim.actors[a].honest = Some(h);
        self.sends(a);
        stepped
    }

    fn sends(&mut self, a: usize) {
        while let it = &self.sim.actors[a]
            && it.connected
            && (it.wakes || it.read && !it.outbox.is_empty())
        {
            self.sim.deliver(a);
        }
    }

    fn ask(&mut self, a: usize, h: &mut Honest, asked: Asked, request: &Request, op: Op) {
        self.sim.ask(a, h, asked, request);
        self.ops.insert(a, op);
    }

    fn client_takes(&mut self, choice: Choice) -> bool {
        let Some(a) = choice.client() else { return false };
        self.client(a, |w, h, seat| match choice {
            Choice::Lease(..) | Choice::Send(_) | Choice::Put(..) | Choice::Announce(..) => w.without_request(choice, h, seat),
            Choice::Delete(_, n) => w.deletes(a, n, h, seat),
            _ if h.asked.is_some() => false,
            Choice::Ephemeral(_, n) => w.binds(a, n, h, seat, (None, true)),
            Choice::Expiring(_, n) => w.binds(a, n, h, seat, (Some(TTL_NS), false)),
            Choice::Tend(_) => {
                w.sim.housekeeping(a, h, seat);
                h.asked.is_some()
            }
            Choice::Grow(_) | Choice::GrowFails(_) => {
                // The kernel completes this order at once, and fails if the chosen number is below the share of failures.
                w.sim.poor = if matches!(choice, Choice::Grow(_)) { 0 } else { 100 };
                let possible = h.segments.len() < 2;
                if possible {
                    w.ask(a, h, Asked::Segment, &Request::Segment { bytes: SEGMENT, slots_log2: 1 }, Op::Nothing);
                }
                possible
            }
            Choice::Shrink(_) => {
                w.sim.reclaim(h, seat);
                w.sim.give_back(a, h);
                h.asked.is_some()
            }
            Choice::Append(..) | Choice::AppendEphemeral(..) => w.appends(choice, h, seat),
            _ => w.requests(choice, h),
        })
    }

    /// A step for which a client may need no request.
    fn without_request(&mut self, choice: Choice, h: &mut Honest, seat: &Seat) -> bool {
        let a = choice.client().expect("it is of a client");
        self.sim.reclaim(h, seat);
        let puts = self.sim.done.puts;
        let own = |h: &Honest| h.own.values().map(|own| own.value.0).collect::<BTreeSet<u64>>();
        let before = own(h);
        match choice {
            Choice::Lease(_, n) if h.held.is_empty() => {
                self.chooses(&[99, 99, n as u8]);
                self.sim.begin_get(a, h, seat);
                let asked = h.getting.is_none() && h.asked.is_some();
                self.sim.get_on(h, seat);
                return asked || !h.held.is_empty();
            }
            Choice::Lease(..) => {
                self.sim.drop_lease(h, seat);
                return true;
            }
            _ if !has_slot(h) => return false,
            Choice::Send(_) => {
                if h.stream.as_ref().is_none_or(|stream| stream.is_closed) {
                    return false;
                }
                self.sim.send_message(a, h, seat);
                if let (true, Some(own)) = (self.sim.done.puts > puts, &h.stream)
                    && let Some(stream) = self.model.streams.get_mut(&a_collection(0))
                {
                    stream.messages.push(own.words().entry(own.sent - 1).cell.peek());
                    let old = stream.messages.len().saturating_sub(RING);
                    stream.messages.drain(..old);
                }
                return true;
            }
            Choice::Put(_, n) => {
                self.chooses(&[n as u8]);
                let asked = h.asked.is_some();
                self.sim.put(a, h, seat);
                if let (false, Some(Asked::Bind { key, value, .. })) = (asked, &h.asked) {
                    self.ops.insert(a, Op::Bind(key.clone(), val(a, value.0, LifeWord::FOREVER)));
                    return true;
                }
            }
            Choice::Announce(_, n) => {
                self.sim.claim(a, h, seat, a_name(n));
                self.sim.conclude_claim(a, h, seat);
            }
            _ => unreachable!("the caller passes no other"),
        }
        let published = self.sim.done.puts > puts;
        if let (true, Choice::Put(_, n) | Choice::Announce(_, n)) = (published, choice) {
            let cell = *own(h).difference(&before).next().expect("it is published");
            self.model.names.insert(a_name(n), val(a, cell, LifeWord::FOREVER));
        }
        published
    }

    fn deletes(&mut self, a: usize, n: u64, h: &mut Honest, seat: &Seat) -> bool {
        let deleted = |h: &Honest| h.own.values().filter(|own| own.deleted).count();
        let (before, asked) = (deleted(h), h.asked.is_some());
        self.chooses(&[n as u8]);
        self.sim.delete(a, h, seat);
        if deleted(h) > before {
            self.model.names.remove(&a_name(n));
            return true;
        }
        if !asked && h.asked.is_some() {
            self.ops.insert(a, Op::Delete(a_name(n)));
        }
        !asked && h.asked.is_some()
    }

    fn binds(&mut self, a: usize, n: u64, h: &mut Honest, seat: &Seat, (ttl_ns, ephemeral): (Option<u64>, bool)) -> bool {
        self.sim.reclaim(h, seat);
        let key = a_name(n);
        let Some((cell, value)) = self.sim.filled_cell(h, seat, &key) else { return false };
        let life = LifeWord::new(ttl_ns.map_or(0, |ttl| self.sim.now_ns + ttl), ephemeral);
        let op = Op::Bind(key.clone(), val(a, value.0, life));
        let request = Request::BindFor { name: key.clone(), cell, ttl_ns, ephemeral };
        self.ask(a, h, Asked::Bind { key, cell, value }, &request, op);
        true
    }

    fn appends(&mut self, choice: Choice, h: &mut Honest, seat: &Seat) -> bool {
        let (a, c, count, ephemeral) = match choice {
            Choice::Append(a, c, count) => (a, c, count, false),
            Choice::AppendEphemeral(a, c) => (a, c, 1, true),
            _ => unreachable!("the caller passes no other"),
        };
        self.sim.reclaim(h, seat);
        let cells: Vec<_> = (0..count).map_while(|_| self.sim.filled_cell(h, seat, "")).collect();
        if cells.len() < count.into() {
            for (cell, value) in cells {
                h.free(value);
                h.cells_free.push(cell);
            }
            return false;
        }
        let vals = cells.iter().map(|&(_, value)| val(a, value.0, LifeWord::new(0, ephemeral))).collect();
        let (list, numbers) = (a_collection(c), cells.iter().map(|&(cell, _)| cell).collect());
        let op = Op::Append(list.clone(), vals);
        let request = match ephemeral {
            true => Request::ListAppendEphemeral { list, cells: numbers },
            false => Request::ListAppend { list, cells: numbers },
        };
        self.ask(a, h, Asked::Append { cells }, &request, op);
        true
    }

    /// The other requests.
    fn requests(&mut self, choice: Choice, h: &mut Honest) -> bool {
        let (first, second) = (a_collection(0), a_collection(1));
        let (name, list) = (first.clone(), first.clone());
        let (a, asked, request, op) = match choice {
            Choice::Rename(a) => {
                let (from, to) = (a_name(0), a_name(1));
                (a, Asked::Other, Request::Rename { from: from.clone(), to: to.clone() }, Op::Rename(from, to))
            }
            Choice::ListRename(a) => {
                let request = Request::ListRename { from: first.clone(), to: second.clone() };
                (a, Asked::Other, request, Op::ListRename(first, second))
            }
            Choice::ListDelete(a, c) => {
                let list = a_collection(c);
                (a, Asked::Other, Request::ListDelete { list: list.clone() }, Op::ListDelete(list))
            }
            Choice::Claim(a) => {
                let claim = QueueRequest::Claim { list, done: Vec::new(), max: 1, wait: false };
                (a, Asked::Claim, Request::Queue(claim), Op::Nothing)
            }
            Choice::Done(a) | Choice::GiveBack(a) if !h.claims.is_empty() => {
                let claim = h.claims.remove(0);
                if matches!(choice, Choice::GiveBack(_)) {
                    (a, Asked::Other, Request::Queue(QueueRequest::GiveBack(claim)), Op::Nothing)
                } else {
                    let val = self.item(claim.item.list, claim.item.number);
                    (a, Asked::Confirm(claim), Request::Queue(QueueRequest::Done(claim)), Op::Done(val))
                }
            }
            Choice::Open(a) => {
                let request = Request::StreamOpen { name, capacity: RING as u32, policy: Policy::DropOldest };
                (a, Asked::StreamOpen, request, Op::Open(first, a))
            }
            Choice::StreamDelete(a) => (a, Asked::Other, Request::StreamDelete { name }, Op::StreamDelete(first)),
            Choice::Subscribe(a) => {
                let request = Request::Subscribe { name, cursor: CursorNo::low(0), wake: false };
                (a, Asked::Other, request, Op::Subscribe(first, a))
            }
            _ => return false,
        };
        self.ask(a, h, asked, &request, op);
        true
    }

    /// The model has the effects of all requests that the daemon has answered.
    fn notes_answers(&mut self) {
        for a in 0..CLIENTS {
            let it = &self.sim.actors[a];
            let Some((reply, _)) = it.inbox.front() else { continue };
            if self.answered.insert(a) {
                let (op, reply) = (self.ops.remove(&a).unwrap_or_default(), reply.clone());
                self.model = self.model.answered(&op, &reply, &|val| self.ends(val));
            }
        }
    }

    /// Returns true if a value may end at any time, or has ended.
    pub fn ends(&self, val: &Val) -> bool {
        val.deadline_ns.is_some_and(|at| at <= self.sim.now_ns) || val.ephemeral && self.dead.contains(&val.owner)
    }

    /// Checks the invariants, and that the model allows what a new client sees.
    pub fn check(&mut self) {
        self.sim.check();
        let pending: Vec<Op> = self.ops.values().cloned().collect();
        // A request without a response waits, and has no effect yet.
        let states = [self.model.clone()];
        self.sees(&states, &format!("with {pending:?} unanswered"));
    }

    /// Asserts that one of `states` allows what a new client sees, which is then the model's state.
    fn sees(&mut self, states: &[Model], when: &str) {
        let seen = self.visible();
        Model::assert_one_allows(states, &seen, &|val| self.ends(val), &|a| self.dead.contains(&a), when);
        self.model = seen;
    }

    /// Another daemon begins, after one that was killed, and is perhaps killed within its start at `second`. Returns the
    /// number of places at which it can be killed. `died`: the client whose process has ended, too.
    /// `None`: `is_new` returns false for the world in which both are dead.
    pub fn recovers(
        &mut self,
        died: Option<usize>,
        second: Option<usize>,
        is_new: &dyn Fn(u64) -> bool,
    ) -> Option<usize> {
        if let Some(a) = died {
            let op = self.ops.get(&a).cloned();
            self.dies(a);
            self.ops.extend(op.map(|op| (a, op)));
        }
        self.sim.poor = 0;
        self.chooses(&[]);
        let answered = std::mem::take(&mut self.answered);
        let pending: Vec<(usize, Op)> = std::mem::take(&mut self.ops).into_iter().filter(|(a, _)| !answered.contains(a)).collect();
        self.sim.cuts = Some(Cuts { passed: 0, at: second });
        self.sim.daemon_begins();
        let mut states = vec![self.model.clone()];
        for (_, op) in &pending {
            states = states.iter().flat_map(|state| state.around(op)).collect();
        }
        if self.sim.life.is_gone {
            if !is_new(self.fingerprint()) {
                return None;
            }
            self.sim.daemon_begins();
        }
        self.sees(&states, &format!("after a kill within {pending:?}"));
        self.sim.settle();
        if self.sim.life.is_gone {
            if !is_new(self.fingerprint()) {
                return None;
            }
            self.sim.daemon_begins();
            self.sim.settle();
        }
        self.have_returned(&pending);
        self.sim.cuts.take().map(|cuts| cuts.passed)
    }

    /// The clients have returned, and repeated their requests.
    fn have_returned(&mut self, pending: &[(usize, Op)]) {
        let mut states = vec![self.model.clone()];
        for (a, op) in pending {
            let repeats = matches!(op, Op::Bind(..) | Op::Open(..) | Op::Subscribe(..) | Op::Done(..));
            if self.dead.contains(a) {
                continue;
            }
            let other = |state: &Model| state.streams.values().any(|stream| stream.producer != *a);
            if matches!(op, Op::Open(..)) && states.iter().any(other) {
                // The daemon refuses the stream of another producer that lives.
                states = states.iter().flat_map(|state| state.around(op)).collect();
            } else if repeats {
                states = states.iter().map(|state| state.after(op)).collect();
            }
        }
        self.sees(&states, &format!("after a kill within {pending:?}, when the clients have returned,"));
        self.has_no_remains();
    }

    /// Checks that the restart has left no reserved name, and no segment that its owner does not know.
    fn has_no_remains(&self) {
        let Some(seat) = self.seat() else { return };
        for (entry, line) in seat.directory.entries() {
            let is_reserved = OwnerWord(line.owner_word.read()).kind() == OwnerKind::Reserved;
            assert!(!is_reserved || !self.ops.is_empty(), "entry {entry} is reserved for no request");
        }
        for &(_, number, base) in self.sim.lent.keys() {
            let actor = self.sim.members[&(seat.directory_file, number)];
            let h = self.sim.actors[actor].honest.as_ref().filter(|h| self.is_here(actor) && h.asked.is_none());
            assert!(h.is_none_or(|h| h.segments.contains_key(&base)), "client {actor} does not know its segment {base}");
        }
    }

    /// All values that must end have ended, every client gets its responses, a new client gets all the items of the queues
    /// that nobody has claimed, and when all have left nothing remains.
    pub fn finish(mut self) {
        self.sim.cuts = None;
        self.chooses(&[]);
        self.sim.settle();
        self.sim.wait_until(self.sim.now_ns + ENDS_NS);
        self.sim.settle();
        let pending: Vec<Op> = std::mem::take(&mut self.ops).into_values().collect();
        let mut states = vec![self.model.clone()];
        for op in &pending {
            states = states.iter().flat_map(|state| state.around(op)).collect();
        }
        self.sees(&states, "at the end");
        let left = |val: &Val| self.ends(val);
        assert!(!self.model.names.values().any(left), "names have not ended: {:?}", self.model);
        assert!(!self.model.lists.values().flatten().any(left), "items have not ended: {:?}", self.model);
        let idle = |stream: &Stream| self.dead.contains(&stream.producer) && self.dead.is_superset(&stream.subscribers);
        assert!(!self.model.streams.values().any(idle), "a stream has not ended: {:?}", self.model);
        self.sim.faults_stop();
        self.drains();
        self.sim.clean_up();
    }

    /// A new client claims all items that wait.
    fn drains(&mut self) {
        let actor = self.sim.dial(1, true);
        let hello = Hello { namespace: Some("lab".into()), ..hello() };
        for request in [Request::Hello(hello), Request::Ping] {
            self.sim.ask_plainly(actor, &request, "a newcomer");
        }
        let claimed: BTreeSet<_> =
            self.sim.actors[..CLIENTS].iter().flat_map(|it| it.honest.iter().filter(|_| it.connected)).flat_map(|h| &h.claims).map(|claim| claim.item).collect();
        for list in [a_collection(0), a_collection(1)] {
            let waiting: Vec<u64> =
                self.items(&list).into_iter().flatten().filter(|(item, _)| !claimed.contains(item)).map(|(item, _)| item.number).collect();
            let max = CLAIM_BATCH_MAX as u8;
            let claim = Request::Queue(QueueRequest::Claim { list: list.clone(), done: Vec::new(), max, wait: false });
            let reply = self.sim.ask_plainly(actor, &claim, "items");
            let found = match reply {
                Reply::Queue(QueueReply::Claimed(claims)) => claims.iter().map(|claim| claim.item.number).collect(),
                Reply::Queue(QueueReply::Empty) => Vec::new(),
                other => panic!("items of {list:?} were claimed, and there came {other:?}"),
            };
            assert_eq!(found, waiting, "the items of {list:?} that wait");
        }
    }

    /// Returns a membership that reads the directory as the present daemon writes it. `None`: the namespace has ended.
    fn seat(&self) -> Option<Seat> {
        let seat = self.sim.actors.iter().find_map(|it| it.seat.clone())?;
        let directory = self.sim.directories.get(&seat.directory_file)?.clone();
        Some(Seat { directory, ..seat })
    }

    fn value(&self, seat: &Seat, key: &[u8]) -> Option<Val> {
        let (owner, cell, route) = self.sim.find_value(seat, key)?;
        let life = match route {
            crate::client::Route::OwnerWord { entry, .. } => LifeWord(seat.directory.names[entry.index()].life.read()),
            _ => LifeWord::FOREVER,
        };
        let owner = self.sim.members[&(seat.directory_file, owner)];
        Some(val(owner, cell.0, life))
    }

    /// Returns the items of a list, if it exists.
    fn items(&self, list: &str) -> Option<Vec<(QueueItem, Val)>> {
        let seat = self.seat()?;
        let d: &Directory = &seat.directory;
        let key = list_key(list);
        let found = d.find(d.hash(&key), &key).ok().flatten().filter(|found| found.owner_word.is_live())?;
        let line = &d.lists[found.owner_word.cell().index()];
        let list = line.id.read();
        let item = |number| Some((QueueItem { list, number }, self.value(&seat, &item_key(list, number))?));
        Some((0..line.end.read()).filter_map(item).collect())
    }

    fn item(&self, list: u64, number: u64) -> Option<Val> {
        let seat = self.seat()?;
        let found = [a_collection(0), a_collection(1)].iter().filter_map(|list| self.items(list)).flatten().any(|(item, _)| item.list == list);
        self.value(&seat, &item_key(list, number)).filter(|_| found)
    }

    /// Returns all that a new client can find.
    pub fn visible(&self) -> Model {
        let Some(seat) = self.seat() else { return Model::default() };
        let names = [0, 1].map(a_name);
        let names = names.into_iter().filter_map(|name| Some((name.clone(), self.value(&seat, name.as_bytes())?))).collect();
        let lists = [0, 1].map(a_collection).into_iter();
        let lists = lists.filter_map(|list| Some((list.clone(), self.items(&list)?.into_iter().map(|(_, val)| val).collect())));
        let lists = lists.collect();
        let streams = self.stream(&seat).map(|stream| (a_collection(0), stream)).into_iter().collect();
        Model { names, lists, streams }
    }

    fn stream(&self, seat: &Seat) -> Option<Stream> {
        let (d, key) = (&seat.directory, stream_key(&a_collection(0)));
        let found = d.find(d.hash(&key), &key).ok().flatten().filter(|found| found.owner_word.is_live())?;
        let producer = self.sim.members[&(seat.directory_file, found.owner_word.owner())];
        let honest = self.sim.actors[producer].honest.as_ref();
        let own = honest.and_then(|h| h.stream.as_ref()).filter(|own| own.owner_word == found.owner_word.0);
        let messages = own.map_or_else(Vec::new, |own| {
            let first = own.sent.saturating_sub(RING as u64);
            (first..own.sent).map(|number| own.words().entry(number).cell.peek()).filter(|&cell| Cell(cell).is_value()).collect()
        });
        let line = &d.streams[found.owner_word.stream().index()];
        let words = line.subscribers.iter().map(tensorlend_layout::word::Word::read).filter(|&word| word != 0);
        let subscribers = words.map(|word| self.sim.members[&(seat.directory_file, SubscriberWord(word).client())]).collect();
        Some(Stream { producer, messages, subscribers })
    }
}

fn has_slot(h: &Honest) -> bool {
    h.segments.values().any(|seg| !seg.returning && seg.used.iter().any(|used| !used))
}

fn val(owner: usize, cell: u64, life: LifeWord) -> Val {
    Val { owner, cell, deadline_ns: life.deadline_ns(), ephemeral: life.is_ephemeral() }
}
