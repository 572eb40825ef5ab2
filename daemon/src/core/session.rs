//! Connections: one response to each request, in order. A client acknowledges a reply with descriptors before its next request.

mod back;
mod blocked;
mod check;
mod chores;
mod hello;
mod inspect;
mod lines;
mod packet;
mod pressure;
mod reload;
pub(super) mod requests;
mod restore;
mod spill;
mod turn;
mod unsent;
mod waiting;
mod wanted;
mod work;

use super::account::NamespaceId;
use super::bindings::{Binding, Bindings, NewItems};
use super::counters::Counter;
use super::effect::Effect;
use super::env::Env;
use super::event::{ConnId, Event, Unmade};
use super::namespace::Namespace;
use super::namespaces::Namespaces;
use super::opening::Opening;
use super::outcome::{Lent, Outcome, RequestResult, Requester, RingRequest, Wait, Work};
use super::parts::Parts;
use super::probes::Probed;
use super::range::{SegmentSize, SizeOnDevice};
use super::segment::Segments;
use super::settings::{Peer, Role, Settings};
use super::stat::stat;
use super::stream::{CursorId, StreamId, Streams};
use lines::Blocked;
use requests::Counts;
use std::collections::BTreeMap;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{FdStoreState, QueueRequest, Refusal, Reply, Request};
use tensorlend_layout::word::LifeWord;
use waiting::Waiting;

/// Maximum time for which a copied directory waits for the clients that read the old one. Running
/// clients reconnect within milliseconds.
const GATHERING_NS: u64 = 5_000_000_000;

/// Number of steps between two checks of all parts in debug builds. A check reads all names.
const CHECK_EVERY: u64 = 64;
/// Pause before the daemon reads a claimed name again.
const CLAIM_PAUSE_NS: u64 = 100_000;
/// Pause before the daemon probes memory again that a client has just returned.
const QUIESCENT_PAUSE_NS: u64 = 500_000;
/// Maximum time for which a request waits for the daemon's chores. Then the daemon refuses the request.
const CHORES_NS_MAX: u64 = 10_000_000_000;

/// The namespace and the number of a connected client.
#[derive(Clone, Copy, Debug)]
struct Joined {
    namespace: NamespaceId,
    number: ClientNo,
    role: Role,
}

#[derive(Debug)]
enum Phase {
    /// The client may send a request.
    Idle,
    /// The client must acknowledge memory.
    Lent(Lent),
    /// The client's request waits for memory.
    Working(Work),
    /// The client's request waits, for another client or another event.
    Later { request: Request, since_ns: u64 },
    /// The client's claim waits for a queue. The client may end the wait.
    Blocked { request: QueueRequest, since_ns: u64 },
}

#[derive(Debug)]
struct Conn {
    peer: Peer,
    /// The connection's admission over the limits, if a limit refuses it a session.
    over: Option<Over>,
    /// Whether the connection has one of the sessions reserved for administrators.
    reserved: bool,
    joined: Option<Joined>,
    phase: Phase,
    /// Number of the connection's refused requests.
    refusals: u64,
    /// The time at which a refusal of the client's current request counts.
    counts: Counts,
    /// The last refusal of memory, until the client reports that it gave up: see [`Request::GaveUp`].
    withheld: Option<Refusal>,
}

/// The admission of a connection over the limits. Such a connection may only request metrics, or continue a session of
/// the previous daemon.
#[derive(Clone, Copy, Debug)]
struct Over {
    /// Time at which the daemon ends the connection.
    until_ns: u64,
    /// Whether the connection has a place of the reserve for metrics.
    reserved: bool,
}

/// The failure to make a directory.
#[derive(Debug)]
struct Failed {
    at_ns: u64,
    reason: Unmade,
    /// Whether an administrator requested the directory, with the memory reserved for
    /// administrators.
    reserved: bool,
}

/// The client of a request, and the time since which the request waits.
#[derive(Clone, Copy, Debug)]
struct Asker {
    conn: ConnId,
    joined: Joined,
    since_ns: u64,
}

/// The state machine of the daemon.
#[derive(Debug)]
pub struct Core {
    env: Env,
    conns: BTreeMap<ConnId, Conn>,
    namespaces: Namespaces,
    opening: Vec<Opening>,
    /// Namespaces whose directory could not be made.
    failed: BTreeMap<String, Failed>,
    /// Connections whose requests wait.
    waiting: Waiting,
    /// Connections whose claims wait for queues.
    blocked: Blocked,
    /// Time until which the daemon waits for clients that read the old directory: see [`Core::restore`].
    gathering_until_ns: Option<u64>,
    /// Whether the daemon has ended: see [`Core::leave`].
    left: bool,
}

impl Core {
    /// Returns a daemon without connections.
    pub fn new(settings: Settings) -> Self {
        Self {
            env: Env::new(settings),
            conns: BTreeMap::new(),
            namespaces: Namespaces::default(),
            opening: Vec::new(),
            failed: BTreeMap::new(),
            waiting: Waiting::default(),
            blocked: Blocked::default(),
            gathering_until_ns: None,
            left: false,
        }
    }

    /// Handles an event and returns the resulting effects. `now_ns` is CLOCK_BOOTTIME, or a
    /// simulation's clock.
    pub fn step(&mut self, now_ns: u64, event: Event) -> Vec<Effect> {
        self.env.clock.begin_step(now_ns);
        self.env.chores.begin_step();
        let gathering = self.is_gathering();
        self.env.set_gathering(gathering);
        self.waiting.begin_step();
        let is_alarm = matches!(event, Event::Alarm);
        match event {
            Event::Start => self.env.clock.start(),
            Event::Connected { conn, peer } => self.connected(conn, peer),
            Event::Packet { conn, bytes, descriptors, truncated } => {
                self.packet(conn, &bytes, descriptors, truncated);
            }
            Event::Unsent { conn, refusal } => self.unsent(conn, refusal),
            Event::Woken { conn } => self.woken(conn),
            Event::HungUp { conn } => self.end(conn, None),
            Event::Created { mem, made } => self.created(mem, made),
            Event::Allocated { mem, at, made } => self.allocated(mem, at, made),
            Event::Probed { mem, quiescent } => self.probed(Probed { mem, quiescent }),
            Event::Unreadable { mem } => self.namespaces.values_mut().for_each(|it| it.members.fault_sheet(mem)),
            Event::CreatedOnDevice { mem, made } => self.created_on_device(mem, made),
            Event::Spilled { file, written } => self.spilled(file, &written),
            Event::Exited { conn } => self.exited(conn),
            Event::Reload(settings) => self.reload(*settings),
            Event::Alarm => {}
        }
        let is_due = self.fire_timers();
        if self.do_chores() || is_due || !is_alarm {
            self.has_happened();
        }
        self.retry();
        if self.end_faulty() {
            self.has_happened();
            self.retry();
        }
        self.serve_blocked();
        self.tidy_up();
        if cfg!(debug_assertions) && self.env.clock.turn().is_multiple_of(CHECK_EVERY) {
            self.check();
        }
        self.env.effects.take()
    }

    /// Returns the time at which the core needs an [`Event::Alarm`] if no event comes earlier.
    /// Returns `None` if the core needs no alarm.
    pub fn alarm(&self) -> Option<u64> {
        self.env.clock.next_ns()
    }

    /// Returns true if there is no name, stream or list, and no client whose values remain.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Counts a wakeup of the daemon, for the metrics.
    pub fn count_wakeup(&mut self) {
        self.env.counters.count(Counter::Wakeups);
    }

    /// Counts a refusal, for the metrics. Responses that the client library expects do not count.
    pub fn count_refusal(&mut self, refusal: &Refusal) {
        if !refusal.is_ordinary() {
            self.env.counters.count_refusal(refusal.reason());
        }
    }

    /// Records the state of the fd store, for the metrics.
    pub fn note_fd_store(&mut self, state: Option<FdStoreState>) {
        self.env.fd_store = state;
    }

    /// Returns the bytes of segments and sheets that exist, including spare and idle segments. The
    /// result is 0 after the end.
    pub fn bytes(&self) -> u64 {
        self.env.pool.bytes() + self.env.accounts.sheet_bytes()
    }

    pub fn stat(&self) -> tensorlend_layout::wire::Stat {
        stat(&self.env, &self.namespaces, None)
    }

    fn woken(&mut self, conn: ConnId) {
        let Some(joined) = self.conns.get(&conn).and_then(|state| state.joined) else { return };
        if let Some(namespace) = self.namespaces.get_mut(&joined.namespace) {
            namespace.bindings.absorb_turn(&mut Parts {
                env: &mut self.env,
                context: &mut namespace.context,
                members: &mut namespace.members,
            });
        }
    }

    /// Performs a request. Sends the response or delays the request.
    fn ask(&mut self, conn: ConnId, request: Request, since_ns: u64) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.counts = requests::counts(&request);
        }
        let result = self.perform(conn, &request, since_ns);
        let result = self.or_wait_for_items(conn, result, since_ns);
        if let (Ok(Outcome::Blocked), Request::Queue(request)) = (&result, &request) {
            self.block(conn, request.clone(), since_ns);
            return;
        }
        if let Ok(Outcome::Later(wait)) = result {
            self.put_off(conn, wait);
            let state = self.conns.get_mut(&conn).expect("the requester is connected");
            state.phase = Phase::Later { request, since_ns };
            let is_first = self.env.settings.is_administrator(state.peer.uid);
            self.waiting.push(conn, is_first);
            return;
        }
        if result.is_err() {
            self.unreserve(conn, &request);
        }
        self.conclude(conn, result);
    }

    /// Returns the result. If names are short while items of a deleted list still count as names,
    /// returns a wait instead.
    fn or_wait_for_items(&self, conn: ConnId, result: RequestResult, since_ns: u64) -> RequestResult {
        match (&result, self.conns[&conn].joined) {
            (Err(Refusal::Limit { kind, .. }), Some(joined))
                if kind.is_names()
                    && self.env.chores.has_items(joined.namespace)
                    && self.env.clock.now_ns() - since_ns < CHORES_NS_MAX =>
            {
                Ok(Outcome::Later(Wait::Chores))
            }
            _ => result,
        }
    }

    /// Schedules the retry of a request that must wait.
    fn put_off(&mut self, conn: ConnId, wait: Wait) {
        match wait {
            Wait::Directory | Wait::Names | Wait::Spilled | Wait::Chores => {}
            Wait::Return => {
                let now_ns = self.env.clock.now_ns();
                let left_ns = self.gathering_until_ns.unwrap_or(0).saturating_sub(now_ns);
                self.env.clock.retry_after(left_ns.max(1));
            }
            Wait::Asserted { until_ns } => {
                self.env.clock.retry_after(until_ns.saturating_sub(self.env.clock.now_ns()).max(1));
            }
            Wait::Claim => self.env.clock.retry_after(CLAIM_PAUSE_NS),
            Wait::Quiescent => self.env.clock.retry_after(QUIESCENT_PAUSE_NS),
            Wait::Ack { number, ns_max } => {
                let Some(Conn { joined: Some(joined), .. }) = self.conns.get(&conn) else { return };
                let namespace = self.namespaces.get_mut(&joined.namespace).expect("it has a client");
                // The wait counts from the lending, not from the request.
                let lent_ns = namespace.members.get(number).map_or(0, |c| c.lent_ns);
                let waited_ns = self.env.clock.now_ns() - lent_ns;
                if waited_ns < ns_max {
                    self.env.clock.retry_after(ns_max - waited_ns);
                } else {
                    namespace.members.fault(number, "others wait for its acknowledgement, which is overdue");
                }
            }
        }
    }

    /// Frees the names that a failed request may have reserved.
    fn unreserve(&mut self, conn: ConnId, request: &Request) {
        let Some(Conn { joined: Some(joined), .. }) = self.conns.get(&conn) else { return };
        if let Request::Bind { name, .. } | Request::BindFor { name, .. } | Request::Rename { to: name, .. } = request
            && let Some(namespace) = self.namespaces.get_mut(&joined.namespace)
        {
            namespace.bindings.unreserve(&namespace.context, name.as_bytes());
        }
    }

    /// Sends the response to a request.
    fn conclude(&mut self, conn: ConnId, result: RequestResult) {
        let state = self.conns.get_mut(&conn).expect("the requester is connected");
        state.phase = Phase::Idle;
        let (reply, lend) = match result {
            Ok(Outcome::Reply(reply)) => (reply, Vec::new()),
            Ok(Outcome::Lend(reply, lend, lent)) => {
                state.phase = Phase::Lent(lent);
                (reply, lend)
            }
            Ok(Outcome::Working(work)) => {
                state.phase = Phase::Working(work);
                self.proceed(conn);
                return;
            }
            Ok(Outcome::Later(_) | Outcome::Blocked) => unreachable!("ask puts these off"),
            Err(refusal) => {
                if state.joined.is_none() {
                    self.end(conn, Some(refusal));
                    return;
                }
                self.refuse(conn, &refusal);
                (Reply::Refused(refusal), Vec::new())
            }
        };
        self.env.effects.push(Effect::Send { conn, reply, lend, close: false });
    }

    fn perform(&mut self, conn: ConnId, request: &Request, since_ns: u64) -> RequestResult {
        // The client that has just reconnected may have been the last missing one.
        let gathering = self.is_gathering();
        self.env.set_gathering(gathering);
        let Some(joined) = self.conns[&conn].joined else {
            return match request {
                Request::Hello(_) if gathering => Ok(Outcome::Later(Wait::Return)),
                Request::Hello(hello) => self.admit(conn, hello, since_ns),
                Request::Return(back) => self.welcome_back(conn, back),
                Request::Inspect(inspect) => self.inspect(&self.conns[&conn], inspect),
                _ => unreachable!("a violation"),
            };
        };
        if gathering && !matches!(request, Request::Ping | Request::Stat | Request::Inspect(_)) {
            return Ok(Outcome::Later(Wait::Return));
        }
        if !requests::rule(request).right.is_given_to(joined.role) {
            return Err(Refusal::ReadOnly(self.namespaces[&joined.namespace].context.ledger.name().to_owned()));
        }
        let asker = Asker { conn, joined, since_ns };
        match request {
            Request::Segment { bytes, slots_log2 } => {
                self.segment(asker, SegmentSize { bytes: *bytes, log2: *slots_log2 })
            }
            Request::SegmentOf { owner: number, slot } => self.segment_of(asker, *number, *slot),
            Request::DeviceSegment { uuid, bytes, slots_log2 } => {
                let size = SegmentSize { bytes: *bytes, log2: *slots_log2 };
                self.device_segment(asker, SizeOnDevice { device: *uuid, size })
            }
            Request::Stat => {
                let asker = Some((self.conns[&conn].peer.uid, joined.namespace));
                let stat = stat(&self.env, &self.namespaces, asker);
                Ok(Outcome::Reply(Reply::Stat(Box::new(stat))))
            }
            Request::Inspect(inspect) => self.inspect(&self.conns[&conn], inspect),
            Request::GaveUp => {
                if let Some(refusal) = self.conns.get_mut(&conn).and_then(|state| state.withheld.take()) {
                    self.note_refusal(conn, &refusal);
                }
                Ok(Outcome::Reply(Reply::Done))
            }
            _ => self.perform_in(asker, request),
        }
    }

    /// Performs a request that concerns the client's namespace alone.
    fn perform_in(&mut self, Asker { conn, joined, since_ns }: Asker, request: &Request) -> RequestResult {
        let namespace = self.namespaces.get_mut(&joined.namespace).expect("it has a client");
        let me = joined.number;
        let Namespace { context, members, bindings, streams, segments, devices, .. } = namespace;
        let parts = &mut Parts { env: &mut self.env, context, members };
        match request {
            Request::ReturnSegment { base } => segments.return_segment(parts, devices, me, *base),
            Request::ReleaseForSpill { base } => Segments::release_for_spill(parts, me, *base),
            Request::GrowCells => parts.members.grow_cells(parts.env, parts.context, conn, me),
            Request::SlotsOf { owner: number, slot } => Segments::slots_of(parts, me, *number, *slot),
            Request::CellsOf { client: number, part } => parts.members.cells_of(parts.context, *number, *part),
            Request::ValuesOf { names } => parts.members.values_of(parts.context, bindings, names),
            Request::LeasesOf { client: number } => parts.members.leases_of(*number),
            Request::Bind { name, cell } => {
                let binding = Binding { owner: me, cell: *cell, life: LifeWord::FOREVER };
                bindings.bind(parts, name, binding, since_ns)
            }
            Request::BindFor { name, cell, ttl_ns, ephemeral } => {
                let life = Bindings::lifetime(parts.env, *ttl_ns, *ephemeral)?;
                bindings.bind(parts, name, Binding { owner: me, cell: *cell, life }, since_ns)
            }
            Request::Delete { name } => bindings.delete(parts, name, since_ns),
            Request::Tidy { names } => bindings.tidy(parts, me, names),
            Request::Rename { from, to } => bindings.rename(parts, from, to, since_ns),
            Request::Notices => Ok(parts.members.notices(me)),
            Request::Wait => Ok(parts.members.wait(parts.context, me)),
            Request::StreamOpen { .. }
            | Request::StreamClosed { .. }
            | Request::StreamDelete { .. }
            | Request::Subscribe { .. }
            | Request::SubscribePollable { .. }
            | Request::Unsubscribe { .. }
            | Request::WakeDescriptor { .. } => {
                streams.perform(parts, bindings, Requester { conn, number: me }, request)
            }
            Request::ListAppend { list, cells } => {
                bindings.list_append(parts, list, NewItems { owner: me, cells, life: LifeWord::FOREVER })
            }
            Request::ListAppendEphemeral { list, cells } => {
                bindings.list_append(parts, list, NewItems { owner: me, cells, life: LifeWord::new(0, true) })
            }
            Request::ListDelete { list } => bindings.list_delete(parts.env, parts.context, list),
            Request::ListRename { from, to } => bindings.list_rename(parts, from, to),
            Request::Queue(request) => bindings.queue(parts, me, request),
            Request::Mapped { lendings, last } => devices.mapped(parts, me, lendings, *last),
            Request::Unmapped { lendings } => devices.unmapped(parts.env, parts.context, me, lendings),
            Request::Ping => Ok(Outcome::Reply(Reply::Done)),
            Request::Segment { .. }
            | Request::SegmentOf { .. }
            | Request::DeviceSegment { .. }
            | Request::Stat
            | Request::Inspect(_)
            | Request::GaveUp
            | Request::Hello(_)
            | Request::Return(_)
            | Request::HandBack
            | Request::Ack => unreachable!("handled before"),
        }
    }
}

impl Streams {
    /// Performs a request that concerns streams.
    fn perform(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        Requester { conn, number: me }: Requester,
        request: &Request,
    ) -> RequestResult {
        let cursor = |cursor| CursorId { number: me, cursor };
        match request {
            Request::StreamOpen { name, capacity, policy } => {
                let ring = RingRequest { producer: me, name: name.clone(), capacity: *capacity, policy: *policy };
                self.stream_open(parts, bindings, conn, ring)
            }
            Request::Subscribe { wake: true, .. } => {
                let why = "this version of the client library sends wake descriptors, which the daemon no longer takes";
                Err(Refusal::Bad(why.into()))
            }
            Request::Subscribe { name, cursor: it, wake: false } => self.subscribe(parts, name, cursor(*it), false),
            Request::SubscribePollable { name, cursor: it } => self.subscribe(parts, name, cursor(*it), true),
            Request::Unsubscribe { stream, id, cursor: it } => {
                Ok(self.unsubscribe(parts, StreamId { line: *stream, id: *id }, cursor(*it)))
            }
            Request::WakeDescriptor { stream, subscriber: number, cursor } => {
                let whose = CursorId { number: *number, cursor: *cursor };
                self.wake_descriptor(parts.members, me, *stream, whose)
            }
            Request::StreamDelete { name } => self.stream_delete(parts, bindings, name),
            Request::StreamClosed { stream, id } => {
                Ok(self.stream_closed(parts, me, StreamId { line: *stream, id: *id }))
            }
            _ => unreachable!("it concerns no stream"),
        }
    }
}
