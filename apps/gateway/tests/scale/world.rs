//! Many gateways in one thread: the state machines of copies and subscriptions, driven by events in simulated time.
//!
//! Only the bytes of tensors and zenoh itself are left out: messages between gateways are encoded, so that their length
//! is known, arrive after a delay, and may be lost. A node reads names of others and overwrites its own. A copy that it
//! considers valid must be the name's value, except for the time that an invalidation message takes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};
use tensorlend::Version;
use tensorlend_gateway::export::invalidation::{Invalidation, Subscriptions};
use tensorlend_gateway::import::cache::{Cache, Effect, Failure, Position, Verdict};
use tensorlend_gateway::key::{Key, Kind};
use tensorlend_gateway::name::RemoteName;
use tensorlend_gateway::wire::{
    AboutName, Asker, Chunk, Descriptor, Epoch, HEARTBEAT, NameAnswer, NameQuestion, NodeName, Shape, Stamp,
    TensorShape, encode,
};
use tensorlend_layout::random::splitmix64;

/// Latency between two nodes, in microseconds: a switch between them.
const WAY_US: u64 = 200;
/// Interval at which a gateway checks its subscribed names for changes.
const LOOK_US: u64 = 1_000;
/// Interval of the state machines' timer events.
const TICK_US: u64 = 100_000;
/// Timeout of a request.
const ANSWER_US: u64 = 1_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub nodes: usize,
    /// Number of names of each node.
    pub names: usize,
    /// Number of names of others that each node reads, drawn once.
    pub working_set: usize,
    /// Reads per second and node.
    pub reads: f64,
    /// New values per second and node, over all its names.
    pub updates: f64,
    /// Lost messages per million.
    pub lost_ppm: u64,
}

/// Counters of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Reads that found a valid copy and sent nothing.
    pub hits: u64,
    /// Reads that sent a request.
    pub asked: u64,
    /// Reads without a result, since a message was lost or a node was disconnected.
    pub failed: u64,
    pub updates: u64,
    /// Requests, and their answers.
    pub questions: u64,
    /// Invalidation messages.
    pub words: u64,
    /// Messages that only prove that none was lost.
    pub heartbeats: u64,
    /// Notifications that a node connected or disconnected, one for each receiver.
    pub notices: u64,
    /// Bytes of headers and keys of all messages except the notifications.
    pub bytes: u64,
    /// Bytes of notifications. A notification consists of the key of a node's liveliness token.
    pub notice_bytes: u64,
}

impl Traffic {
    /// Returns the difference to an earlier state.
    pub fn since(self, before: Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            asked: self.asked - before.asked,
            failed: self.failed - before.failed,
            updates: self.updates - before.updates,
            questions: self.questions - before.questions,
            words: self.words - before.words,
            heartbeats: self.heartbeats - before.heartbeats,
            notices: self.notices - before.notices,
            bytes: self.bytes - before.bytes,
            notice_bytes: self.notice_bytes - before.notice_bytes,
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Read(usize),
    Update(usize),
    Look(usize),
    Tick(usize),
    Question { asker: usize, of: usize, name: usize, have: Option<u64>, wanted: bool, fetch: u64 },
    Answer { asker: usize, fetch: u64, answer: Answer },
    Overdue { asker: usize, fetch: u64 },
    Word { from: usize, to: usize, number: u64, names: Vec<(usize, Option<u64>)> },
    Token { hears: usize, of: usize, alive: bool },
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Value(u64),
    Unchanged,
    Other,
}

struct Node {
    name: NodeName,
    epoch: Epoch,
    there: bool,
    /// The value of each of its names: a counter.
    values: Vec<u64>,
    /// Names that may have changed since the last invalidation messages.
    changed: Vec<usize>,
    looks: bool,
    subscriptions: Subscriptions,
    cache: Cache,
    /// The names of other nodes that this node reads.
    reads: Vec<RemoteName>,
    /// Pending requests, and the nodes that they were sent to.
    open: HashMap<u64, usize>,
}

/// All nodes, and the messages in flight between them.
pub struct World {
    load: Load,
    start: Instant,
    now_us: u64,
    turn: u64,
    random: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    nodes: Vec<Node>,
    /// Whether reads and updates have ended.
    quiet: bool,
    /// Counters so far.
    pub traffic: Traffic,
    /// Maximum age of a replaced value that was read as valid, in microseconds.
    pub old_us: u64,
    replaced_us: HashMap<(usize, usize, u64), u64>,
}

impl World {
    /// Creates nodes that have just started, and notifies them of each other.
    pub fn new(load: Load, seed: u64) -> Self {
        let mut it = Self {
            load,
            start: Instant::now(),
            now_us: 0,
            turn: 0,
            random: seed,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            quiet: false,
            traffic: Traffic::default(),
            old_us: 0,
            replaced_us: HashMap::new(),
        };
        for at in 0..load.nodes {
            let (name, epoch) = (node_name(at), Epoch(at as u64 + 1));
            let reads = (0..load.working_set)
                .map(|_| {
                    let other = (at + 1 + it.below(load.nodes as u64 - 1) as usize) % load.nodes;
                    let name = name_of(it.below(load.names as u64) as usize);
                    RemoteName { space: 0, node: node_name(other), name }
                })
                .collect();
            it.nodes.push(Node {
                name,
                epoch,
                there: true,
                values: vec![1; load.names],
                changed: Vec::new(),
                looks: false,
                subscriptions: Subscriptions::new(epoch, 100_000, load.nodes),
                cache: Cache::new(u64::MAX, 1 << 20),
                reads,
                open: HashMap::new(),
            });
        }
        for at in 0..load.nodes {
            it.announce(at, true, false);
            let (read, update, tick) = (it.soon(load.reads), it.soon(load.updates), it.below(TICK_US));
            it.after(WAY_US + read, Event::Read(at));
            it.after(WAY_US + update, Event::Update(at));
            it.after(tick, Event::Tick(at));
        }
        it
    }

    /// Lets this much time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now_us + time.as_micros() as u64;
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.queue.pop() else { break };
            self.now_us = at;
            self.happen(event);
        }
        self.now_us = end;
    }

    /// Ends reads, updates and losses, and lets all messages arrive.
    pub fn settle(&mut self) {
        (self.quiet, self.load.lost_ppm) = (true, 0);
        self.run(6 * HEARTBEAT);
    }

    /// Disconnects a node, or connects it again.
    pub fn part(&mut self, at: usize, there: bool) {
        self.nodes[at].there = there;
        self.announce(at, there, true);
    }

    /// Returns the number of copies that are considered valid, and how many of them differ from the name's value.
    pub fn copies(&self) -> (u64, u64) {
        let (mut good, mut wrong) = (0, 0);
        for node in &self.nodes {
            for name in &node.reads {
                if let Some(placed) = node.cache.placed(name).filter(|placed| !placed.stale) {
                    good += 1;
                    let (of, at) = (index_of(name.node.as_str()), index_of(&name.name));
                    wrong += u64::from(placed.stamp.counter != self.nodes[of].values[at]);
                }
            }
        }
        (good, wrong)
    }

    /// Notifies all connected nodes of a node; `both`: it is notified of them, too.
    fn announce(&mut self, of: usize, alive: bool, both: bool) {
        let key = Key::Alive(Some(self.nodes[of].name.clone()), Some(self.nodes[of].epoch)).expression().len() as u64;
        for hears in (0..self.load.nodes).filter(|hears| *hears != of) {
            if self.nodes[hears].there {
                let notices = if both { 2 } else { 1 };
                self.traffic.notices += notices;
                self.traffic.notice_bytes += notices * key;
                self.after(WAY_US, Event::Token { hears, of, alive });
                if both {
                    self.after(WAY_US, Event::Token { hears: of, of: hears, alive });
                }
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read(at) if !self.quiet => {
                let next = self.soon(self.load.reads);
                self.after(next, Event::Read(at));
                if self.nodes[at].there {
                    self.read(at);
                }
            }
            Event::Update(at) if !self.quiet => {
                let next = self.soon(self.load.updates);
                self.after(next, Event::Update(at));
                self.update(at);
            }
            Event::Read(_) | Event::Update(_) => {}
            Event::Look(at) => self.look(at),
            Event::Tick(at) => {
                self.after(TICK_US, Event::Tick(at));
                let now = self.now();
                let words = self.nodes[at].subscriptions.on_tick(now);
                self.say(at, words);
                let effects = self.nodes[at].cache.on_tick(now);
                self.act(at, effects);
            }
            Event::Question { asker, of, name, have, wanted, fetch } => {
                if self.nodes[of].there {
                    self.answer(asker, of, name, have, wanted, fetch);
                }
            }
            Event::Answer { asker, fetch, answer } => self.answered(asker, fetch, &answer),
            Event::Overdue { asker, fetch } => {
                if self.nodes[asker].open.remove(&fetch).is_some() {
                    let now = self.now();
                    let effects = self.nodes[asker].cache.on_failed(fetch, &Failure::Unreachable, now);
                    self.act(asker, effects);
                }
            }
            Event::Word { from, to, number, names } => {
                if self.nodes[to].there && self.nodes[from].there {
                    let (node, epoch, now) = (self.nodes[from].name.clone(), self.nodes[from].epoch, self.now());
                    let stamp = |value: Option<u64>| value.map(|counter| Stamp { epoch, counter });
                    let names: Vec<_> = names.into_iter().map(|(name, value)| (name_of(name), stamp(value))).collect();
                    let (_, effects) =
                        self.nodes[to].cache.on_changed(&node, 0, Position { epoch, number }, &names, now);
                    self.act(to, effects);
                }
            }
            Event::Token { hears, of, alive } => {
                let (node, epoch) = (self.nodes[of].name.clone(), self.nodes[of].epoch);
                if alive {
                    let words = self.nodes[hears].subscriptions.on_node_up(&node, epoch);
                    self.say(hears, words);
                    let effects = self.nodes[hears].cache.on_node_up(&node, epoch);
                    self.act(hears, effects);
                } else {
                    self.nodes[hears].subscriptions.on_node_down(&node);
                    self.nodes[hears].cache.on_node_down(&node);
                }
            }
        }
    }

    fn read(&mut self, at: usize) {
        let which = self.below(self.load.working_set as u64) as usize;
        let name = self.nodes[at].reads[which].clone();
        if let Some(placed) = self.nodes[at].cache.placed(&name).filter(|placed| !placed.stale) {
            // As a client reads: from the local directory, without a request.
            self.traffic.hits += 1;
            let key = (index_of(name.node.as_str()), index_of(&name.name), placed.stamp.counter);
            if let Some(since) = self.replaced_us.get(&key) {
                self.old_us = self.old_us.max(self.now_us - since);
            }
            return;
        }
        self.traffic.asked += 1;
        let (ticket, now) = (self.turn, self.now());
        let effects = self.nodes[at].cache.on_get(&name, ticket, now + 2 * Duration::from_micros(ANSWER_US), now);
        self.act(at, effects);
    }

    fn update(&mut self, at: usize) {
        let name = self.below(self.load.names as u64) as usize;
        let node = &mut self.nodes[at];
        self.replaced_us.insert((at, name, node.values[name]), self.now_us);
        node.values[name] += 1;
        self.traffic.updates += 1;
        node.changed.push(name);
        if !std::mem::replace(&mut node.looks, true) {
            let next = LOOK_US - self.now_us % LOOK_US;
            self.after(next, Event::Look(at));
        }
    }

    fn look(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.looks = false;
        let mut names = std::mem::take(&mut node.changed);
        names.sort_unstable();
        names.dedup();
        let changed: Vec<_> = names
            .into_iter()
            .map(|name| (name_of(name), Some(Stamp { epoch: node.epoch, counter: node.values[name] })))
            .collect();
        let words = node.subscriptions.on_changed(0, &changed);
        self.say(at, words);
    }

    fn say(&mut self, from: usize, words: Vec<Invalidation>) {
        for Invalidation { to, changed, .. } in words {
            let key =
                Key::Changed { from: Some(self.nodes[from].name.clone()), to: to.clone(), space: Some("lab".into()) };
            self.traffic.bytes += (key.expression().len() + encode(&changed).len()) as u64;
            if changed.names.is_empty() {
                self.traffic.heartbeats += 1;
            } else {
                self.traffic.words += 1;
            }
            let names = changed.names.iter().map(|(name, stamp)| (index_of(name), stamp.map(|s| s.counter))).collect();
            let to = index_of(to.as_str());
            self.send(Event::Word { from, to, number: changed.number, names });
        }
    }

    fn answer(&mut self, asker: usize, of: usize, name: usize, have: Option<u64>, wanted: bool, fetch: u64) {
        let who = Asker { node: self.nodes[asker].name.clone(), epoch: self.nodes[asker].epoch };
        let node = &mut self.nodes[of];
        let value = node.values[name];
        let told = Stamp { epoch: node.epoch, counter: value };
        let word = node.subscriptions.subscribe(&who, 0, &name_of(name), Some(told)).evicted;
        let answer = match (have == Some(value), wanted) {
            (true, _) => Answer::Unchanged,
            (false, true) => Answer::Value(value),
            (false, false) => Answer::Other,
        };
        let said = match &answer {
            Answer::Unchanged => NameAnswer::Unchanged,
            Answer::Value(_) | Answer::Other => {
                let tensor =
                    TensorShape { dtype: (2, 32, 1), shape: vec![4, 256], metadata: vec![], timestamp_ns: 1 << 60 };
                let descriptor = Descriptor { origin: node.name.clone(), shape: Shape::Tensor(tensor) };
                NameAnswer::Value { descriptor, stamp: told, chunk: Chunk::default() }
            }
        };
        self.traffic.bytes += encode(&said).len() as u64;
        self.say(of, word.into_iter().collect());
        self.send(Event::Answer { asker, fetch, answer });
    }

    fn answered(&mut self, at: usize, fetch: u64, answer: &Answer) {
        let Some(of) = self.nodes[at].open.remove(&fetch) else { return };
        let (now, epoch) = (self.now(), self.nodes[of].epoch);
        let cache = &mut self.nodes[at].cache;
        let effects = match answer {
            Answer::Value(counter) => {
                cache.on_value(fetch, Stamp { epoch, counter: *counter }, Version::from_words([1, fetch]), 4096, now)
            }
            Answer::Unchanged => cache.on_unchanged(fetch, now),
            Answer::Other => cache.on_other(fetch, now),
        };
        self.act(at, effects);
    }

    fn act(&mut self, at: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ask { name, have, wanted, fetch } => {
                    let asker = Asker { node: self.nodes[at].name.clone(), epoch: self.nodes[at].epoch };
                    let inline_max = if wanted { 64 * 1024 } else { 0 };
                    let question = AboutName { asker, what: NameQuestion::Get { have, inline_max } };
                    let (of, index) = (index_of(name.node.as_str()), index_of(&name.name));
                    let key =
                        Key::About { node: name.node, kind: Kind::Name, space: "lab".into(), name: Some(name.name) };
                    self.traffic.questions += 1;
                    self.traffic.bytes += (key.expression().len() + encode(&question).len()) as u64;
                    self.nodes[at].open.insert(fetch, of);
                    let have = have.map(|stamp| stamp.counter);
                    self.send(Event::Question { asker: at, of, name: index, have, wanted, fetch });
                    self.after(ANSWER_US, Event::Overdue { asker: at, fetch });
                }
                Effect::Answer(_, Verdict::Here { .. }) | Effect::Delete(_) => {}
                Effect::Answer(..) => self.traffic.failed += 1,
            }
        }
    }

    /// Sends a message, unless it is lost.
    fn send(&mut self, event: Event) {
        if self.below(1_000_000) >= self.load.lost_ppm {
            self.after(WAY_US, event);
        }
    }

    fn after(&mut self, us: u64, event: Event) {
        self.turn += 1;
        self.queue.push(Reverse((self.now_us + us, self.turn, event)));
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    /// Returns the time until the next of this many events per second: exponentially distributed.
    fn soon(&mut self, per_second: f64) -> u64 {
        let part = (self.below(1 << 53) as f64 + 1.0) / (1u64 << 53) as f64;
        (-part.ln() / per_second * 1e6).min(1e12) as u64 + 1
    }

    fn below(&mut self, end: u64) -> u64 {
        splitmix64(&mut self.random) % end
    }
}

fn node_name(at: usize) -> NodeName {
    NodeName::new(&format!("node-{at:04}")).expect("a node's name")
}

fn name_of(at: usize) -> String {
    format!("simulation/field-{at:04}")
}

/// Returns the number at the end of a node's or a tensor's name.
fn index_of(name: &str) -> usize {
    name.rsplit_once('-').and_then(|(_, digits)| digits.parse().ok()).expect("a name that was made here")
}
