//! A network in memory for tests, with the delay, loss and partitions that a test sets.
//!
//! All nodes see each other directly. Frames that one node sends under one key arrive in order.
//! Frames under different keys may overtake each other. Each node has a thread that calls its
//! handlers, as an engine's threads do.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tensorlend_gateway::key::Key;
use tensorlend_gateway::transport::{
    Declared, Frame, OnAnswer, OnFrame, OnNode, OnQuestion, Question, Transport, Trouble,
};
use tensorlend_gateway::wire::{Epoch, NodeName};
use tensorlend_layout::random::splitmix64;
use tensorlend_os::mutex::lock;

/// Maximum number of bytes in flight to one node. [`Transport::send`] waits when this number is reached.
const FULL_BYTES: usize = 4 << 20;
/// Bytes that a frame occupies in addition to its head and body.
const FRAME_BYTES: usize = 64;

/// Properties of all paths between nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Minimum latency.
    pub delay: Duration,
    /// Maximum addition to the latency.
    pub jitter: Duration,
    /// Probability, 0 to 1, that a request, a response or a sent frame is lost, as if the path
    /// broke during its transmission.
    pub loss: f64,
}

/// All nodes, and the paths between them.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    /// Pairs of nodes that a test has partitioned.
    parted: HashSet<(u64, u64)>,
    weather: Weather,
    random: u64,
    numbers: u64,
    /// Arrival time of the last frame, by sender, receiver and key. A later frame gets a later time, which preserves
    /// the order.
    last: HashMap<(u64, u64, Key), Instant>,
    /// Number of lost requests, responses and frames.
    lost: u64,
}

struct Node {
    inbox: Arc<Inbox>,
    answers: Vec<(u64, Key, OnQuestion)>,
    listeners: Vec<(u64, Key, OnFrame)>,
    alive: Vec<(u64, NodeName, Epoch)>,
    watchers: Vec<(u64, OnNode)>,
}

/// The frames on their way to one node.
#[derive(Default)]
struct Inbox {
    arriving: Mutex<Arriving>,
    /// Signals that a frame was added, or that a delivered frame has freed room.
    changed: Condvar,
}

#[derive(Default)]
struct Arriving {
    heap: BinaryHeap<Reverse<Due>>,
    bytes: usize,
    closed: bool,
}

struct Due {
    at: Instant,
    number: u64,
    bytes: usize,
    what: Box<dyn FnOnce() + Send>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Inbox {
    fn push(&self, due: Due) {
        let mut arriving = lock(&self.arriving);
        if !arriving.closed {
            arriving.bytes += due.bytes;
            arriving.heap.push(Reverse(due));
            self.changed.notify_all();
        }
    }

    fn wait_room(&self) {
        let mut arriving = lock(&self.arriving);
        while arriving.bytes >= FULL_BYTES && !arriving.closed {
            arriving = self.changed.wait(arriving).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        let left = {
            let mut arriving = lock(&self.arriving);
            arriving.closed = true;
            std::mem::take(&mut arriving.heap)
        };
        self.changed.notify_all();
        // Drop these frames after the unlock, because the drop may call other nodes.
        drop(left);
    }

    fn run(&self) {
        let mut arriving = lock(&self.arriving);
        while !arriving.closed {
            let now = Instant::now();
            match arriving.heap.peek().map(|Reverse(due)| due.at) {
                None => arriving = self.changed.wait(arriving).unwrap_or_else(PoisonError::into_inner),
                Some(at) if at > now => {
                    arriving = self.changed.wait_timeout(arriving, at - now).unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {
                    let Reverse(due) = arriving.heap.pop().expect("there was one");
                    drop(arriving);
                    (due.what)();
                    arriving = lock(&self.arriving);
                    arriving.bytes -= due.bytes;
                    self.changed.notify_all();
                }
            }
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Draws the next random number in 0.0..1.0. The seed determines the sequence.
    fn draw(&mut self) -> f64 {
        (splitmix64(&mut self.random) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn is_lost(&mut self) -> bool {
        let loss = self.weather.loss;
        let lost = loss > 0.0 && self.draw() < loss;
        self.lost += u64::from(lost);
        lost
    }

    fn sees(&self, one: u64, other: u64) -> bool {
        self.nodes.contains_key(&other) && !self.parted.contains(&pair(one, other))
    }

    /// Returns the arrival time of a frame that is sent now.
    fn arrival(&mut self) -> Instant {
        let jitter = self.weather.jitter.mul_f64(self.draw());
        Instant::now() + self.weather.delay + jitter
    }

    fn deliver(&mut self, to: u64, at: Instant, bytes: usize, what: Box<dyn FnOnce() + Send>) {
        let number = self.number();
        if let Some(node) = self.nodes.get(&to) {
            node.inbox.push(Due { at, number, bytes, what });
        }
    }

    /// Reports the tokens of the node `watched` to the watchers of the node `watching`.
    fn tell(&mut self, watching: u64, watched: u64, alive: bool) {
        let Some(node) = self.nodes.get(&watched) else { return };
        let tokens: Vec<_> = node.alive.iter().map(|(_, name, epoch)| (name.clone(), *epoch)).collect();
        let Some(node) = self.nodes.get(&watching) else { return };
        let watchers: Vec<_> = node.watchers.iter().map(|(_, watcher)| watcher.clone()).collect();
        for (name, epoch) in tokens {
            for watcher in &watchers {
                let at = Instant::now() + self.weather.delay;
                let (name, watcher) = (name.clone(), watcher.clone());
                self.deliver(watching, at, 0, Box::new(move || watcher(name, epoch, alive)));
            }
        }
    }
}

fn pair(one: u64, other: u64) -> (u64, u64) {
    (one.min(other), one.max(other))
}

impl Network {
    /// Makes a network without nodes. The seed determines losses and latencies, but not the order of threads.
    pub fn new(seed: u64) -> Self {
        let state = State {
            nodes: BTreeMap::new(),
            parted: HashSet::new(),
            weather: Weather::default(),
            random: seed,
            numbers: 0,
            last: HashMap::new(),
            lost: 0,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Adds a node. Dropping the returned value removes the node.
    pub fn join(&self) -> Memory {
        let inbox = Arc::new(Inbox::default());
        let mut state = lock(&self.state);
        let id = state.number();
        let node = Node {
            inbox: inbox.clone(),
            answers: Vec::new(),
            listeners: Vec::new(),
            alive: Vec::new(),
            watchers: Vec::new(),
        };
        state.nodes.insert(id, node);
        std::thread::Builder::new()
            .name(format!("node {id}"))
            .spawn(move || inbox.run())
            .expect("a thread for a node in memory");
        Memory { network: self.clone(), id }
    }

    /// Sets the properties of all paths, for frames sent from now on.
    pub fn set_weather(&self, weather: Weather) {
        lock(&self.state).weather = weather;
    }

    /// Partitions two nodes, so that neither can reach the other. Frames in flight between them
    /// still arrive.
    pub fn part(&self, one: &Memory, other: &Memory) {
        let mut state = lock(&self.state);
        if state.parted.insert(pair(one.id, other.id)) {
            state.tell(one.id, other.id, false);
            state.tell(other.id, one.id, false);
        }
    }

    /// Ends the partition of two nodes.
    pub fn heal(&self, one: &Memory, other: &Memory) {
        let mut state = lock(&self.state);
        if state.parted.remove(&pair(one.id, other.id)) {
            state.tell(one.id, other.id, true);
            state.tell(other.id, one.id, true);
        }
    }

    /// Returns the number of lost requests, responses and frames.
    pub fn lost(&self) -> u64 {
        lock(&self.state).lost
    }
}

pub struct Memory {
    network: Network,
    id: u64,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let node = {
            let mut state = lock(&self.network.state);
            let others: Vec<u64> = state.nodes.keys().copied().filter(|&other| other != self.id).collect();
            for other in others {
                if state.sees(other, self.id) {
                    state.tell(other, self.id, false);
                }
            }
            state.last.retain(|(from, to, _), _| *from != self.id && *to != self.id);
            state.nodes.remove(&self.id)
        };
        if let Some(node) = node {
            node.inbox.close();
        }
    }
}

/// A declaration. Dropping this object withdraws the declaration.
struct Undo {
    state: Weak<Mutex<State>>,
    node: u64,
    number: u64,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade() else { return };
        let mut state = lock(&state);
        let others: Vec<u64> = state.nodes.keys().copied().filter(|&other| state.sees(other, self.node)).collect();
        let Some(node) = state.nodes.get_mut(&self.node) else { return };
        let number = self.number;
        let gone = (
            take(&mut node.answers, |one| one.0 == number),
            take(&mut node.listeners, |one| one.0 == number),
            take(&mut node.watchers, |one| one.0 == number),
        );
        if let Some((_, name, epoch)) = take(&mut node.alive, |one| one.0 == number) {
            for other in others {
                let watchers: Vec<_> = state.nodes.get(&other).map_or_else(Vec::new, |node| node.watchers.clone());
                for (_, watcher) in watchers {
                    let at = Instant::now() + state.weather.delay;
                    let name = name.clone();
                    state.deliver(other, at, 0, Box::new(move || watcher(name, epoch, false)));
                }
            }
        }
        // Drop the handlers after the unlock, because their drop may run code that takes this lock.
        drop(state);
        drop(gone);
    }
}

fn take<T>(all: &mut Vec<T>, which: impl Fn(&T) -> bool) -> Option<T> {
    all.iter().position(which).map(|at| all.remove(at))
}

impl Memory {
    fn declare(&self, declare: impl FnOnce(&mut Node, u64)) -> Result<Declared, Trouble> {
        let mut state = lock(&self.network.state);
        let number = state.number();
        let node = state.nodes.get_mut(&self.id).ok_or_else(|| Trouble::Engine("closed".into()))?;
        declare(node, number);
        Ok(Box::new(Undo { state: Arc::downgrade(&self.network.state), node: self.id, number }))
    }
}

/// The handler of one response. Only its first call has an effect.
struct Once {
    done: Mutex<Option<OnAnswer>>,
}

impl Once {
    fn call(&self, answer: Result<Frame, Trouble>) {
        let done = lock(&self.done).take();
        if let Some(done) = done {
            done(answer);
        }
    }
}

/// The path of one response. If this object is dropped without a response, it reports
/// [`Trouble::Nobody`] to the requester.
struct Back {
    network: Network,
    asked: u64,
    asker: u64,
    once: Arc<Once>,
    said: bool,
}

impl Back {
    fn send(&mut self, answer: Result<Frame, Trouble>) {
        self.said = true;
        let mut state = lock(&self.network.state);
        if !state.sees(self.asked, self.asker) || state.is_lost() {
            return;
        }
        let at = state.arrival();
        let once = self.once.clone();
        state.deliver(self.asker, at, 0, Box::new(move || once.call(answer)));
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if !self.said {
            self.send(Err(Trouble::Nobody));
        }
    }
}

impl Transport for Memory {
    fn ask(&self, key: &Key, frame: Frame, timeout: Duration, done: OnAnswer) {
        let once = Arc::new(Once { done: Mutex::new(Some(done)) });
        let mut state = lock(&self.network.state);
        let who = state.nodes.iter().find_map(|(&id, node)| {
            let one = node.answers.iter().find(|(_, answered, _)| answered.includes(key))?;
            (id != self.id && state.sees(self.id, id)).then(|| (id, one.2.clone()))
        });
        let Some((asked, on_question)) = who else {
            let at = state.arrival();
            state.deliver(self.id, at, 0, Box::new(move || once.call(Err(Trouble::Nobody))));
            return;
        };
        let late = once.clone();
        state.deliver(self.id, Instant::now() + timeout, 0, Box::new(move || late.call(Err(Trouble::Timeout))));
        if state.is_lost() {
            return;
        }
        let at = state.arrival();
        let mut back = Back { network: self.network.clone(), asked, asker: self.id, once, said: false };
        let answer = Box::new(move |frame: Frame| back.send(Ok(frame)));
        let question = Question { key: key.clone(), frame, answer };
        state.deliver(asked, at, 0, Box::new(move || on_question(question)));
    }

    fn answer(&self, key: &Key, on_question: OnQuestion) -> Result<Declared, Trouble> {
        self.declare(|node, number| node.answers.push((number, key.clone(), on_question)))
    }

    fn send(&self, key: &Key, frame: Frame) -> Result<(), Trouble> {
        let others: Vec<(u64, Arc<Inbox>, Vec<OnFrame>)> = {
            let state = lock(&self.network.state);
            let listens = |node: &Node| -> Vec<OnFrame> {
                node.listeners.iter().filter(|one| one.1.includes(key)).map(|one| one.2.clone()).collect()
            };
            let nodes = state.nodes.iter().filter(|(id, _)| **id != self.id && state.sees(self.id, **id));
            nodes.map(|(&id, node)| (id, node.inbox.clone(), listens(node))).filter(|one| !one.2.is_empty()).collect()
        };
        for (to, inbox, listeners) in others {
            inbox.wait_room();
            let mut state = lock(&self.network.state);
            if !state.sees(self.id, to) || state.is_lost() {
                continue;
            }
            let way = (self.id, to, key.clone());
            let at = state.arrival().max(state.last.get(&way).copied().unwrap_or_else(Instant::now));
            state.last.insert(way, at);
            for listener in listeners {
                let (key, frame) = (key.clone(), frame.clone());
                let bytes = frame.head.len() + frame.body.len() + FRAME_BYTES;
                state.deliver(to, at, bytes, Box::new(move || listener(key, frame)));
            }
        }
        Ok(())
    }

    fn listen(&self, key: &Key, on_frame: OnFrame) -> Result<Declared, Trouble> {
        self.declare(|node, number| node.listeners.push((number, key.clone(), on_frame)))
    }

    fn declare_alive(&self, node: &NodeName, epoch: Epoch) -> Result<Declared, Trouble> {
        let declared = self.declare(|here, number| here.alive.push((number, node.clone(), epoch)))?;
        let mut state = lock(&self.network.state);
        let others: Vec<u64> = state.nodes.keys().copied().filter(|&other| state.sees(other, self.id)).collect();
        for other in others {
            let watchers: Vec<_> = state.nodes.get(&other).map_or_else(Vec::new, |node| node.watchers.clone());
            for (_, watcher) in watchers {
                let at = Instant::now() + state.weather.delay;
                let name = node.clone();
                state.deliver(other, at, 0, Box::new(move || watcher(name, epoch, true)));
            }
        }
        Ok(declared)
    }

    fn watch_alive(&self, on_node: OnNode) -> Result<Declared, Trouble> {
        let declared = self.declare(|node, number| node.watchers.push((number, on_node.clone())))?;
        let mut state = lock(&self.network.state);
        let others: Vec<u64> = state.nodes.keys().copied().filter(|&other| state.sees(self.id, other)).collect();
        for other in others {
            let tokens = state.nodes.get(&other).map_or_else(Vec::new, |node| node.alive.clone());
            for (_, name, epoch) in tokens {
                let on_node = on_node.clone();
                let at = Instant::now() + state.weather.delay;
                state.deliver(self.id, at, 0, Box::new(move || on_node(name, epoch, true)));
            }
        }
        Ok(declared)
    }
}
