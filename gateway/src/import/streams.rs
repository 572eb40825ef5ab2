//! Streams that are received from others.
//!
//! Each link has a thread, which writes what comes into drafts and sends them in a local stream of the same name behind the node's. What it
//! has taken makes room for more ([`StreamQuestion::Grant`]): so a local stream that waits for its subscribers holds up the other side, and
//! messages are on the way as many as the window allows, and no more.
//!
//! A link ends when nobody here has subscribed any more, and goes on across whatever happens to the other side: a gateway there that was killed,
//! a stream that has ended and is opened again. What happens to this side is the next gateway's: it finds the streams that the one before has left
//! behind by those who still wait for them, and opens them again ([`Hub::inlets_came`]).

use super::budget::WINDOW_BYTES_LEAST;
use super::inlet::{Inlet, Step};
use super::names::remote_name;
use crate::config::CHUNK_BYTES_LEAST;
use crate::hub::{Context, Hub};
use crate::key::{Key, Kind};
use crate::local;
use crate::transport::{Body, Frame, Trouble};
use crate::value::Incoming;
use crate::wire::{AboutStream, Chunk, Epoch, Message, NodeName, StreamAnswer, StreamQuestion, decode, encode};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::remote::RemoteAnswer;
use tensorlend::{Call, Client, Policy, Stream};
use tensorlend_os::thread;

/// Messages that may be on their way in one link.
const WINDOW_MESSAGES: u32 = 16;
/// Links, at most: each has a thread.
const LINKS_MAX: usize = 256;
/// How often a link says that it goes on.
const RENEW: Duration = Duration::from_secs(1);
/// A link without local subscribers ends after so long.
const IDLE: Duration = Duration::from_secs(5);
/// Without a piece for so long, what was sent and has not come is taken for lost.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a thread looks whether its link goes on.
const NAP: Duration = Duration::from_millis(200);

/// What comes to a link's thread.
enum Coming {
    Piece(Message, Body),
    /// The link is opened anew, under this number, and asked for messages from this one of the stream on: what comes is counted from 0.
    Reopened(u64, Option<u64>),
    /// What was sent before this number does not come any more.
    Silence(u64),
    /// There is no such stream any more.
    Ended,
}

/// What a link's thread has taken out of its queue.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// Under which link: what is left of one before makes no room in the next.
    link: u64,
    /// The link's number of the first message that still takes room.
    through: u64,
    /// Bytes of that one that take none any more.
    here: u64,
    /// Bytes of all.
    bytes: u64,
}

impl Taken {
    /// Whether there is much to be granted: a quarter of the window, so that the way is never empty.
    fn is_much_since(self, told: Self, window_bytes: u64) -> bool {
        self.through.saturating_sub(told.through) >= u64::from(WINDOW_MESSAGES / 4)
            || self.bytes.saturating_sub(told.bytes) >= (window_bytes / 4).max(1)
    }
}

struct Queue {
    coming: VecDeque<Coming>,
    /// Of the bodies.
    bytes: u64,
    /// Pieces with which messages begin: each may have some MiB of names and metadata.
    messages: u32,
}

impl Queue {
    fn push(&mut self, coming: Coming) {
        if let Coming::Piece(message, body) = &coming {
            self.bytes += body.len() as u64;
            self.messages += u32::from(message.begins());
        }
        self.coming.push_back(coming);
    }

    fn pop(&mut self) -> Option<Coming> {
        let coming = self.coming.pop_front()?;
        if let Coming::Piece(message, body) = &coming {
            self.bytes -= body.len() as u64;
            self.messages -= u32::from(message.begins());
        }
        Some(coming)
    }

    /// Whether there is no room for more. What one window allows is there at most, and as much of before the link was opened anew, unless the
    /// other side breaks its word.
    fn is_full(&self, window_bytes: u64) -> bool {
        // A piece is as long as may be, or a message's last.
        let pieces = window_bytes / CHUNK_BYTES_LEAST + 2 * u64::from(WINDOW_MESSAGES);
        self.bytes > window_bytes.saturating_mul(2)
            || self.messages > 2 * WINDOW_MESSAGES
            || self.coming.len() as u64 > 2 * pieces
    }
}

/// What a link's thread and the hub share. Counts that order nothing, but for the queue.
struct Shared {
    queue: Mutex<Queue>,
    moved: Condvar,
    closed: AtomicBool,
    taken: Mutex<Taken>,
    /// Bytes that may be on their way, as the other side was told.
    window: AtomicU64,
    /// The stream's number of the message that should follow, and whether one has come.
    wanted: AtomicU64,
    /// Pieces that came.
    pieces: AtomicU64,
    received: AtomicU64,
    lost: AtomicU64,
    dropped: AtomicU64,
    subscribers: AtomicU64,
    busy: AtomicBool,
}

/// What stands for "none yet" in [`Shared::wanted`].
const NONE: u64 = u64::MAX;

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that it has here, or may have on their way.
    fn room(&self) -> u64 {
        let window = self.window.load(Ordering::Relaxed);
        if window > 0 { window } else { self.queue().bytes }
    }

    /// What was taken under this link.
    fn taken_of(&self, link: u64) -> Taken {
        let taken = *self.taken();
        if taken.link == link { taken } else { Taken { link, ..Taken::default() } }
    }

    fn push(&self, coming: Coming) {
        let mut queue = self.queue();
        queue.push(coming);
        self.moved.notify_all();
    }

    /// The link is opened anew, or its stream has ended. Where that was said last, too, it is said once: what is asked again and again does not
    /// fill the queue of a thread that waits.
    fn turn(&self, coming: Coming) {
        let mut queue = self.queue();
        queue.coming.pop_back_if(|last| matches!(last, Coming::Reopened(..)));
        queue.coming.pop_back_if(|last| matches!((last, &coming), (Coming::Ended, Coming::Ended)));
        drop(queue);
        self.push(coming);
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.moved.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

enum Phase {
    /// Asked for.
    Opening,
    Open,
    /// To be opened again, not before this.
    Broken(Instant),
}

struct Link {
    number: u64,
    node: NodeName,
    phase: Phase,
    shared: Arc<Shared>,
    started: bool,
    /// A gateway before this one has begun it: nobody asks for it again, and somebody waits.
    is_left: bool,
    waiting: Vec<Call>,
    granting: bool,
    granted: Instant,
    /// What was granted.
    told: Taken,
    heard: Instant,
    used: Instant,
    /// Pieces that had come when one last came, and when that was.
    silence: (u64, Instant),
}

impl Link {
    /// To be opened again, not before this. Until then nothing comes of it, so others may have its window.
    fn pause(&mut self, until: Instant) {
        self.phase = Phase::Broken(until);
        self.shared.window.store(0, Ordering::Relaxed);
    }
}

/// One stream of another node.
type Name = (usize, String);

/// All streams that are received.
#[derive(Default)]
pub struct Inlets {
    links: HashMap<Name, Link>,
    numbers: HashMap<u64, Name>,
    ended: (u64, u64),
    looked: Option<Instant>,
}

impl Inlets {
    /// How many there are, messages received, and messages lost.
    pub fn size(&self) -> (usize, u64, u64) {
        let counts = self
            .links
            .values()
            .map(|link| (link.shared.received.load(Ordering::Relaxed), link.shared.lost.load(Ordering::Relaxed)));
        let (received, lost) = counts.fold(self.ended, |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (self.links.len(), received, lost)
    }

    /// Bytes that have come and are not taken.
    pub fn queued_bytes(&self) -> u64 {
        self.links.values().map(|link| link.shared.queue().bytes).sum()
    }

    /// Windows of all links; of those that have none at the moment, what has come and is not taken.
    fn windows(&self) -> u64 {
        self.links.values().map(|link| link.shared.room()).sum()
    }

    fn forget(&mut self, name: &Name) -> Option<Link> {
        let link = self.links.remove(name)?;
        self.numbers.remove(&link.number);
        link.shared.close();
        self.ended.0 += link.shared.received.load(Ordering::Relaxed);
        self.ended.1 += link.shared.lost.load(Ordering::Relaxed);
        Some(link)
    }
}

impl Drop for Inlets {
    fn drop(&mut self) {
        self.links.values().for_each(|link| link.shared.close());
    }
}

fn reply(context: &Context, space: usize, calls: Vec<Call>, answer: &RemoteAnswer) {
    for call in calls {
        local::answer(&context.spaces[space].client, call, answer);
    }
}

impl Hub {
    /// A client of this machine wants a stream of another.
    pub fn on_subscribe_asked(&mut self, space: usize, name: String, call: Call, now: Instant) {
        let asked = match remote_name(space, &name) {
            Ok(asked) if asked.node != *self.nodes.here() => asked,
            Ok(asked) => {
                let why = format!("{} is this machine: leave its name out", asked.node);
                return reply(&self.context, space, vec![call], &RemoteAnswer::Refused { why });
            }
            Err(why) => return reply(&self.context, space, vec![call], &RemoteAnswer::Refused { why }),
        };
        if !self.context.spaces[space].settings.import.is_match(&name) {
            let why = format!("this machine's gateway does not import {name:?}");
            return reply(&self.context, space, vec![call], &RemoteAnswer::Refused { why });
        }
        let key = (space, name);
        if let Some(link) = self.inlets.links.get_mut(&key) {
            link.used = now;
            match link.phase {
                Phase::Open => reply(&self.context, space, vec![call], &RemoteAnswer::Here { stale: false }),
                Phase::Broken(_) if link.started => {
                    reply(&self.context, space, vec![call], &RemoteAnswer::Here { stale: true });
                }
                Phase::Broken(_) if !self.nodes.is_alive(&link.node) => {
                    reply(&self.context, space, vec![call], &RemoteAnswer::Unreachable);
                }
                // Whoever waits has an answer when the question has one, or none in time.
                Phase::Broken(_) => {
                    link.waiting.push(call);
                    self.open_inlet(&key, now);
                }
                Phase::Opening => link.waiting.push(call),
            }
            return;
        }
        if !self.nodes.is_alive(&asked.node) {
            return reply(&self.context, space, vec![call], &RemoteAnswer::Unreachable);
        }
        if self.inlets.links.len() >= LINKS_MAX {
            let why = format!("this machine's gateway receives {LINKS_MAX} streams already");
            return reply(&self.context, space, vec![call], &RemoteAnswer::Refused { why });
        }
        self.begin_inlet(key, asked.node, vec![call], now);
    }

    /// A node is there. Streams of it may lie here that a gateway before this one has received, and their subscribers wait.
    pub fn inlets_came(&mut self, node: &NodeName, now: Instant) {
        for space in 0..self.context.spaces.len() {
            let local = &self.context.spaces[space];
            let left = local.client.streams(&format!("{node}/*")).unwrap_or_else(|error| {
                tracing::warn!(%node, %error, "streams of a gateway before this one cannot be found");
                Vec::new()
            });
            let wanted =
                left.into_iter().filter(|stream| stream.count > 0 && local.settings.import.is_match(&stream.name));
            let names: Vec<Name> = wanted.map(|stream| (space, stream.name)).collect();
            for name in names {
                if !self.inlets.links.contains_key(&name) && self.inlets.links.len() < LINKS_MAX {
                    self.begin_inlet(name, node.clone(), Vec::new(), now);
                }
            }
        }
    }

    fn begin_inlet(&mut self, name: Name, node: NodeName, waiting: Vec<Call>, now: Instant) {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { coming: VecDeque::new(), bytes: 0, messages: 0 }),
            moved: Condvar::new(),
            closed: AtomicBool::new(false),
            taken: Mutex::default(),
            window: AtomicU64::new(0),
            wanted: AtomicU64::new(NONE),
            pieces: AtomicU64::new(0),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            subscribers: AtomicU64::new(0),
            busy: AtomicBool::new(false),
        });
        let link = Link {
            number: 0,
            node,
            phase: Phase::Opening,
            shared,
            started: false,
            is_left: waiting.is_empty(),
            waiting,
            granting: false,
            granted: now,
            told: Taken::default(),
            heard: now,
            used: now,
            silence: (0, now),
        };
        self.inlets.links.insert(name.clone(), link);
        self.open_inlet(&name, now);
    }

    /// A link's part of what may be on its way, from now on.
    fn inlet_window(&mut self, name: &Name) -> u64 {
        let Some(link) = self.inlets.links.get(name) else { return WINDOW_BYTES_LEAST };
        // The thread of one that has no window takes out of its queue meanwhile.
        let others = self.inlets.windows().saturating_sub(link.shared.room());
        let links = self.inlets.links.len();
        let window = self.budget.window(links, others, self.context.settings.window_bytes.max(1));
        link.shared.window.store(window, Ordering::Relaxed);
        self.budget.on_windows(others + window);
        window
    }

    fn open_inlet(&mut self, name: &Name, now: Instant) {
        let window_bytes = self.inlet_window(name);
        let Some(link) = self.inlets.links.get_mut(name) else { return };
        let drawn = Epoch::draw().map(|drawn| drawn.0);
        let Ok(number) = drawn else { return };
        self.inlets.numbers.remove(&link.number);
        self.inlets.numbers.insert(number, name.clone());
        (link.number, link.phase, link.heard, link.granting) = (number, Phase::Opening, now, false);
        link.told = Taken::default();
        let wanted = link.shared.wanted.load(Ordering::Relaxed);
        let from = (wanted != NONE).then_some(wanted);
        // Before the first piece, which may be here sooner than the answer; and behind the last one of the link before.
        link.shared.turn(Coming::Reopened(number, from));
        let settings = &self.context.settings;
        let what = StreamQuestion::Open {
            link: number,
            window_messages: WINDOW_MESSAGES,
            window_bytes,
            drop_oldest: settings.spaces[name.0].stream_policy == Policy::DropOldest,
            from,
        };
        let name = name.clone();
        self.ask_stream(&name.clone(), what, move |hub, now, answer| hub.on_inlet_opened(&name, number, answer, now));
    }

    fn ask_stream(
        &self,
        name: &Name,
        what: StreamQuestion,
        done: impl FnOnce(&mut Hub, Instant, Result<StreamAnswer, Trouble>) + Send + 'static,
    ) {
        let Ok(asked) = remote_name(name.0, &name.1) else { return };
        let space = self.context.settings.spaces[name.0].name.clone();
        let from = asked.node.to_string();
        let key = Key::About { node: asked.node, kind: Kind::Stream, space, name: Some(asked.name) };
        let about = AboutStream { asker: self.context.asker.clone(), what };
        let frame = Frame { head: encode(&about), body: Body::default() };
        self.context.ask(key, frame, self.context.settings.answer_timeout, move |hub, now, answer| {
            let said = match answer.map(|frame| decode::<StreamAnswer>(&frame.head)) {
                Ok(Ok(said)) => Ok(said),
                Ok(Err(why)) => {
                    hub.context.drop_message(&from, &why);
                    Err(Trouble::Engine(why.to_string()))
                }
                Err(trouble) => Err(trouble),
            };
            done(hub, now, said);
        });
    }

    fn on_inlet_opened(&mut self, name: &Name, number: u64, answer: Result<StreamAnswer, Trouble>, now: Instant) {
        let Some(link) = self.inlets.links.get_mut(name).filter(|link| link.number == number) else { return };
        let said = match answer {
            Ok(StreamAnswer::Opened { capacity }) => {
                let started = if link.started {
                    Ok(())
                } else {
                    start(&self.context, name, link.node.clone(), capacity, link.shared.clone())
                };
                match started {
                    Ok(()) => {
                        (link.started, link.phase, link.heard) = (true, Phase::Open, now);
                        (link.used, link.silence) = (now, (link.shared.pieces.load(Ordering::Relaxed), now));
                        RemoteAnswer::Here { stale: false }
                    }
                    Err(why) => RemoteAnswer::Refused { why },
                }
            }
            Ok(StreamAnswer::Refused(why)) => RemoteAnswer::Refused { why },
            // Its producer may come back, and be met again.
            Ok(StreamAnswer::Nothing) if link.started => {
                link.shared.turn(Coming::Ended);
                link.pause(now + RENEW);
                RemoteAnswer::Here { stale: true }
            }
            Ok(StreamAnswer::Nothing) => RemoteAnswer::Nothing,
            Ok(_) | Err(_) if link.started => {
                link.pause(now + RENEW);
                RemoteAnswer::Here { stale: true }
            }
            // Whoever has no such node or stream says nothing, as one that cannot be reached.
            Err(Trouble::Nobody) if self.nodes.is_alive(&link.node) => RemoteAnswer::Nothing,
            Ok(_) | Err(_) => RemoteAnswer::Unreachable,
        };
        let calls = std::mem::take(&mut link.waiting);
        let is_here = matches!(said, RemoteAnswer::Here { .. });
        let is_tried_again = link.is_left && !matches!(said, RemoteAnswer::Refused { .. });
        let client = &self.context.spaces[name.0].client;
        if !is_here && is_tried_again && subscribers(client, &name.1) > 0 {
            link.pause(now + RENEW);
            link.used = now;
        } else if !is_here {
            self.inlets.forget(name);
        }
        reply(&self.context, name.0, calls, &said);
    }

    /// A piece of a message came. One that belongs to no link comes late, or from somebody who makes it up.
    pub fn on_stream_frame(&mut self, from: &NodeName, number: u64, frame: &Frame) {
        let link = self.inlets.numbers.get(&number).and_then(|name| self.inlets.links.get(name));
        let Some(link) = link.filter(|link| link.node == *from) else {
            self.context.statistics.dropped += 1;
            return;
        };
        match decode::<Message>(&frame.head) {
            Ok(message) => {
                if link.shared.queue().is_full(self.context.settings.window_bytes) {
                    self.context.drop_message(from.as_str(), &"more than there is room for");
                    return;
                }
                link.shared.pieces.fetch_add(1, Ordering::Relaxed);
                link.shared.push(Coming::Piece(message, frame.body.clone()));
            }
            Err(why) => self.context.drop_message(from.as_str(), &why),
        }
    }

    /// Time passes, maybe not much.
    pub fn inlets_look(&mut self, now: Instant) {
        if self.inlets.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= NAP / 4) {
            self.inlets.looked = Some(now);
            self.inlets_tick(now);
        }
    }

    /// Time passes: links are renewed, opened again, ended.
    pub fn inlets_tick(&mut self, now: Instant) {
        let names: Vec<Name> = self.inlets.links.keys().cloned().collect();
        for name in names {
            self.inlet_tick(&name, now);
        }
        // Of those that have ended nothing comes any more.
        self.budget.on_windows(self.inlets.windows());
    }

    fn inlet_tick(&mut self, name: &Name, now: Instant) {
        let Some(link) = self.inlets.links.get_mut(name) else { return };
        self.context.statistics.dropped += link.shared.dropped.swap(0, Ordering::Relaxed);
        if link.shared.is_closed() {
            self.inlets.forget(name);
            return;
        }
        if link.shared.subscribers.load(Ordering::Relaxed) > 0 || !link.waiting.is_empty() {
            link.used = now;
        }
        if now.saturating_duration_since(link.used) > IDLE {
            let number = link.number;
            self.ask_stream(name, StreamQuestion::Close { link: number }, |_, _, _| {});
            self.inlets.forget(name);
            return;
        }
        match link.phase {
            Phase::Broken(at) if at <= now && self.nodes.is_alive(&link.node) => self.open_inlet(name, now),
            Phase::Opening | Phase::Broken(_) => {}
            Phase::Open => {
                let (taken, number) = (link.shared.taken_of(link.number), link.number);
                let much = taken.is_much_since(link.told, link.shared.window.load(Ordering::Relaxed));
                if link.granting || !(much || now.saturating_duration_since(link.granted) >= RENEW) {
                    return;
                }
                (link.granting, link.granted, link.told) = (true, now, taken);
                let owned = name.clone();
                let window_bytes = self.inlet_window(name);
                let what =
                    StreamQuestion::Grant { link: number, through: taken.through, taken: taken.here, window_bytes };
                self.ask_stream(name, what, move |hub, now, answer| hub.on_granted(&owned, number, answer, now));
            }
        }
    }

    fn on_granted(&mut self, name: &Name, number: u64, answer: Result<StreamAnswer, Trouble>, now: Instant) {
        let Some(link) = self.inlets.links.get_mut(name).filter(|link| link.number == number) else { return };
        link.granting = false;
        match answer {
            Ok(StreamAnswer::Granted { sent }) => {
                link.heard = now;
                let pieces = link.shared.pieces.load(Ordering::Relaxed);
                let is_idle = !link.shared.busy.load(Ordering::Relaxed) && link.shared.queue().coming.is_empty();
                let missing = sent > link.shared.taken_of(number).through;
                if pieces != link.silence.0 || !missing || !is_idle {
                    link.silence = (pieces, now);
                } else if now.saturating_duration_since(link.silence.1) > SILENCE {
                    link.silence.1 = now;
                    link.shared.push(Coming::Silence(sent));
                }
            }
            Ok(_) => link.pause(now),
            // The way may be back before the other side has forgotten the link.
            Err(_) if now.saturating_duration_since(link.heard) < crate::export::outlet::FORGOTTEN => {}
            Err(_) => link.pause(now + RENEW),
        }
    }
}

/// Subscribers of a local stream, also of one that has ended.
fn subscribers(client: &Client, name: &str) -> u64 {
    let found = client.streams(&globset::escape(name));
    found.ok().and_then(|found| found.first().map(|one| one.count)).unwrap_or(0)
}

fn start(context: &Context, name: &Name, node: NodeName, capacity: u32, shared: Arc<Shared>) -> Result<(), String> {
    let client = context.spaces[name.0].client.clone();
    let policy = context.spaces[name.0].settings.stream_policy;
    // What a gateway before this one left behind.
    let builder = client.stream(&name.1).capacity(capacity).policy(policy);
    let stream = builder.open().map_err(|error| error.to_string())?;
    let post = context.post.clone();
    let receiver =
        Receiver { client, name: name.1.clone(), capacity, policy, stream: Some(stream), incoming: None, looked: None };
    let started = thread::spawn("gateway-receive", move || {
        receiver.run(&shared, Inlet::new(node), &|| post.run(Hub::inlets_tick));
        shared.close();
    });
    started.map(drop).map_err(|error| error.to_string())
}

/// A link's thread.
struct Receiver {
    client: Client,
    name: String,
    capacity: u32,
    policy: Policy,
    /// `None`: it has ended there.
    stream: Option<Stream>,
    incoming: Option<Incoming>,
    /// When all names were looked through for the subscribers of one that has ended.
    looked: Option<Instant>,
}

impl Receiver {
    fn run(mut self, shared: &Shared, mut inlet: Inlet, tell: &dyn Fn()) {
        let (mut link, mut told, mut bytes) = (0, Taken::default(), 0);
        while !shared.is_closed() {
            self.count(shared);
            let mut queue = shared.queue();
            let Some(coming) = queue.pop() else {
                shared.busy.store(false, Ordering::Relaxed);
                drop(shared.moved.wait_timeout(queue, NAP).unwrap_or_else(PoisonError::into_inner));
                continue;
            };
            shared.busy.store(true, Ordering::Relaxed);
            drop(queue);
            if let Coming::Piece(_, body) = &coming {
                bytes += body.len() as u64;
            }
            match coming {
                Coming::Piece(message, body) => self.on_piece(shared, &mut inlet, message, &body),
                Coming::Reopened(number, from) => {
                    (self.incoming, link, told, bytes) = (None, number, Taken::default(), 0);
                    inlet.on_reopened(from);
                }
                Coming::Silence(sent) => {
                    self.incoming = None;
                    inlet.on_silence(sent);
                }
                Coming::Ended => {
                    (self.stream, self.incoming) = (None, None);
                    inlet.on_ended();
                }
            }
            let (received, lost) = inlet.counts();
            shared.received.store(received, Ordering::Relaxed);
            shared.lost.store(lost, Ordering::Relaxed);
            shared.wanted.store(inlet.wanted().unwrap_or(NONE), Ordering::Relaxed);
            let taken = Taken { link, through: inlet.next(), here: inlet.here(), bytes };
            *shared.taken() = taken;
            if taken.is_much_since(told, shared.window.load(Ordering::Relaxed)) {
                told = taken;
                tell();
            }
        }
        (self.incoming, self.looked) = (None, None);
        self.count(shared);
        drop(self.stream.take());
        // Whoever still waits for it is the next gateway's, which finds it by them.
        if shared.subscribers.load(Ordering::Relaxed) == 0 {
            let _ = self.client.delete_stream(&self.name);
        }
    }

    fn count(&mut self, shared: &Shared) {
        let count = match &self.stream {
            Some(stream) => stream.subscribers() as u64,
            None if self.looked.is_some_and(|looked| looked.elapsed() < RENEW) => return,
            None => {
                self.looked = Some(Instant::now());
                subscribers(&self.client, &self.name)
            }
        };
        shared.subscribers.store(count, Ordering::Relaxed);
    }

    fn on_piece(&mut self, shared: &Shared, inlet: &mut Inlet, message: Message, body: &Body) {
        let done = match inlet.on_piece(message) {
            Ok(Step::Begin(descriptor, chunk)) => match Incoming::new(&self.client, descriptor) {
                Ok(incoming) => {
                    self.incoming = Some(incoming);
                    self.write(&chunk, body)
                }
                Err(error) => Err(error.to_string()),
            },
            Ok(Step::Write(chunk)) => self.write(&chunk, body),
            Ok(Step::Skip) => Ok(()),
            Ok(Step::End) => {
                (self.stream, self.incoming) = (None, None);
                Ok(())
            }
            Err(why) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(stream = self.name, %why, "a piece was dropped");
                return;
            }
        };
        if let Err(why) = done {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(stream = self.name, why, "a message was given up");
            self.incoming = None;
            inlet.give_up();
            return;
        }
        if inlet.take()
            && let Some(incoming) = self.incoming.take()
            && let Err(error) = self.publish(shared, incoming)
        {
            tracing::warn!(stream = self.name, %error, "a stream of another node cannot be sent here");
            shared.close();
        }
    }

    fn write(&mut self, chunk: &Chunk, body: &Body) -> Result<(), String> {
        let incoming = self.incoming.as_mut().ok_or_else(|| "no message was begun".to_owned())?;
        incoming.receive(chunk, body).map_err(|why| why.to_string())
    }

    fn publish(&mut self, shared: &Shared, incoming: Incoming) -> tensorlend::Result<()> {
        let mut draft = incoming.finish(&self.client)?;
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.client.stream(&self.name).capacity(self.capacity).policy(self.policy).open()?,
        };
        loop {
            match stream.try_send(draft) {
                Ok(_) => break,
                Err(tensorlend::TrySendError::Full(back)) => {
                    draft = back;
                    shared.subscribers.store(stream.subscribers() as u64, Ordering::Relaxed);
                    if shared.is_closed() {
                        break;
                    }
                    match stream.wait_room(NAP) {
                        Err(error) if !error.is_timeout() => return Err(error),
                        _ => {}
                    }
                }
                Err(tensorlend::TrySendError::Failed(error)) => return Err(error),
            }
        }
        self.stream = Some(stream);
        Ok(())
    }
}
