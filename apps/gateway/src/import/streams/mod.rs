//! Streams of other nodes.
//!
//! Each link has a thread, which writes arriving pieces into drafts, and sends complete messages to the local stream
//! `NODE/NAME`. The gateway grants room to the sender only as this thread progresses ([`StreamQuestion::Grant`]). So a
//! local stream that waits for its subscribers delays the sender, and at most one window is in flight.
//!
//! A link ends when its local stream has no subscribers any more. It continues after a restart of
//! the sending gateway, and if the producer ends the stream and opens it again. A restarted gateway
//! finds the local streams of the previous gateway that still have subscribers, and opens their
//! links again ([`Links::on_node_up`]), after the last message that the previous gateway has sent.
//!
//! *No message is missing uncounted.* Each message has its position in the original stream, on the link and in the entry
//! of the local ring. The subscribers count the gaps themselves. So it does not matter where a message was lost, or
//! which gateways were killed in the meantime.

mod queue;
mod receiver;
mod writer;

use crate::budget::WINDOW_BYTES_LEAST;
use crate::context::Context;
use crate::key::Kind;
use crate::name::RemoteName;
use crate::nodes::Absence;
use crate::runtime::EventSender;
use crate::transport::{Body, Frame, Trouble};
use crate::wire::{AboutStream, Epoch, LINK_TIMEOUT, Message, NodeName, StreamAnswer, StreamQuestion, decode, encode};
use queue::{Coming, Shared, Taken, WINDOW_MESSAGES};
use receiver::Receiver;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteAnswer, StreamPosition};
use tensorlend::{Call, Policy, Stream};
use tensorlend_os::thread;
use writer::{Writer, subscribers};

/// Maximum number of links. The number is limited, because each link has a thread.
const LINKS_MAX: usize = 256;
/// Maximum interval between two grants of a link. A grant without progress keeps the link alive.
const RENEW: Duration = Duration::from_secs(1);
/// Time without local subscribers after which a link ends.
const IDLE: Duration = Duration::from_secs(5);
/// Time without a piece after which the messages that the sender reports as sent count as lost.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum time that the end of this gateway waits for other nodes to close their links.
const FAREWELL: Duration = Duration::from_secs(1);
/// Interval at which a thread polls whether its link was closed.
const POLL: Duration = Duration::from_millis(200);
/// The code of the error for a stream that has a producer.
const STREAM_TAKEN: &str = "TL-0503";

pub enum Event {
    /// A node's response about a stream, or the error instead of a response.
    Response(Asked, RemoteName, u64, Result<Frame, Trouble>),
    /// The thread of a link has freed a quarter of the window, so the next grant is worth its cost.
    Progress,
}

/// The kind of request to which a response belongs.
#[derive(Clone, Copy)]
pub enum Asked {
    /// A request to open a link.
    Open,
    /// A request to grant more of its window.
    Grant,
}

enum Phase {
    /// This gateway has requested the link, and the node has not responded.
    Opening,
    Open,
    /// The link is broken. The gateway requests it again at this time.
    Broken(Instant),
}

struct Link {
    number: u64,
    phase: Phase,
    /// Number of the node's connection on which this gateway requested the link.
    connection: Option<u64>,
    shared: Arc<Shared>,
    /// Whether the link's thread has been started.
    is_started: bool,
    /// Whether an earlier run of this gateway opened the link. Its subscribers are connected
    /// already, so no client requests the link.
    is_inherited: bool,
    /// Whether the local stream of an earlier run was ended, because the node has the stream no more.
    is_end_told: bool,
    callers: Vec<Call>,
    is_granting: bool,
    granted: Instant,
    /// The progress that the last grant reported.
    told: Taken,
    heard: Instant,
    used: Instant,
    silence: Silence,
}

/// The observations by which a link detects that pieces no longer arrive.
struct Silence {
    /// Number of pieces that had arrived at `since`.
    pieces: u64,
    since: Instant,
}

impl Link {
    /// Marks the link as broken until `until`, when the gateway requests it again. Until then,
    /// other links may use its window.
    fn pause(&mut self, until: Instant) {
        self.phase = Phase::Broken(until);
        self.shared.window.store(0, Ordering::Relaxed);
    }

    /// Starts the link's thread, unless it runs already.
    fn start(
        &mut self,
        context: &Context,
        events: &EventSender<Event>,
        name: &RemoteName,
        capacity: u32,
        wanted: StreamPosition,
    ) -> Result<(), String> {
        if !self.is_started {
            self.shared.set_wanted(Some(wanted));
            start(context, events, name, capacity, wanted, self.shared.clone())?;
            self.is_started = true;
        }
        Ok(())
    }

    /// Marks the link as open. Returns the response to clients that subscribe.
    fn opened(&mut self, now: Instant) -> RemoteAnswer {
        let pieces = self.shared.pieces.load(Ordering::Relaxed);
        self.phase = Phase::Open;
        (self.heard, self.used, self.silence) = (now, now, Silence { pieces, since: now });
        self.here(false)
    }

    /// Returns the response to a client that subscribes.
    fn here(&self, stale: bool) -> RemoteAnswer {
        RemoteAnswer::Here { stale, position: self.shared.wanted() }
    }
}

/// The links of all streams that this gateway receives from other nodes.
pub struct Links {
    events: EventSender<Event>,
    open: HashMap<RemoteName, Link>,
    names: HashMap<u64, RemoteName>,
    /// Numbers of messages that ended links received and lost.
    ended: (u64, u64),
    polled: Option<Instant>,
}

impl Links {
    /// Makes an empty collection, which posts events to `events`.
    pub fn new(events: EventSender<Event>) -> Self {
        Self { events, open: HashMap::new(), names: HashMap::new(), ended: (0, 0), polled: None }
    }

    /// Returns the number of links, of messages received, and of messages lost.
    pub fn size(&self) -> (usize, u64, u64) {
        let counts = self
            .open
            .values()
            .map(|link| (link.shared.received.load(Ordering::Relaxed), link.shared.lost.load(Ordering::Relaxed)));
        let (received, lost) = counts.fold(self.ended, |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (self.open.len(), received, lost)
    }

    /// Returns the bytes that have arrived but are still in the links' queues.
    pub fn queued_bytes(&self) -> u64 {
        self.open.values().map(|link| link.shared.queue().bytes).sum()
    }

    /// Returns the sum of the windows of all links. A link without a window contributes the bytes
    /// in its queue.
    fn windows(&self) -> u64 {
        self.open.values().map(|link| link.shared.room()).sum()
    }

    fn end(&mut self, name: &RemoteName) {
        let Some(link) = self.open.remove(name) else { return };
        self.names.remove(&link.number);
        link.shared.close();
        self.ended.0 += link.shared.received.load(Ordering::Relaxed);
        self.ended.1 += link.shared.lost.load(Ordering::Relaxed);
    }

    /// Handles a client's subscription to a stream of another node.
    pub fn on_asked(&mut self, context: &mut Context, space: usize, name: &str, call: Call, now: Instant) {
        let name = match context.imported_name(space, name) {
            Ok(name) => name,
            Err(why) => return context.refuse(space, call, why),
        };
        let is_alive = context.nodes.is_alive(&name.node);
        if let Some(link) = self.open.get_mut(&name) {
            link.used = now;
            match link.phase {
                Phase::Open => context.answer(space, call, &link.here(false)),
                Phase::Broken(_) if link.is_started => context.answer(space, call, &link.here(true)),
                Phase::Broken(_) if !is_alive => context.answer(space, call, &RemoteAnswer::Unreachable),
                // `open_link` requests the link again. The response to that request, or its timeout, then completes
                // this call.
                Phase::Broken(_) => {
                    link.callers.push(call);
                    self.open_link(context, &name, now);
                }
                Phase::Opening => link.callers.push(call),
            }
            return;
        }
        if !is_alive {
            return context.answer(space, call, &RemoteAnswer::Unreachable);
        }
        if self.open.len() >= LINKS_MAX {
            return context.refuse(space, call, format!("this machine's gateway receives {LINKS_MAX} streams already"));
        }
        self.begin(context, name, vec![call], now);
    }

    /// Handles a node that has become reachable. Requests the node's streams that an earlier run of
    /// this gateway received, if they still have subscribers on this machine. Also requests the links
    /// of an earlier connection again: the pieces that were on their way are lost, but the node may
    /// still have their messages.
    pub fn on_node_up(&mut self, context: &mut Context, node: &NodeName, now: Instant) {
        let connection = context.nodes.connection(node);
        for (_, link) in self.open.iter_mut().filter(|(name, _)| name.node == *node) {
            if !matches!(link.phase, Phase::Opening) && link.connection != connection {
                link.pause(now);
            }
        }
        for space in 0..context.spaces.len() {
            let streams = context.client(space).streams(&format!("{node}/*")).unwrap_or_else(|error| {
                tracing::warn!(%node, %error, "streams of a gateway before this one cannot be found");
                Vec::new()
            });
            for stream in streams.into_iter().filter(|stream| stream.count > 0) {
                let is_imported = context.spaces[space].settings.import.is_match(&stream.name);
                let Some(name) = RemoteName::parse(space, &stream.name).ok().filter(|_| is_imported) else { continue };
                if !self.open.contains_key(&name) && self.open.len() < LINKS_MAX {
                    self.begin(context, name, Vec::new(), now);
                }
            }
        }
    }

    fn begin(&mut self, context: &mut Context, name: RemoteName, callers: Vec<Call>, now: Instant) {
        let shared = Arc::<Shared>::default();
        // An earlier run of this gateway, or an earlier link, has got this far.
        match context.client(name.space).subscription(&name.local()).filled() {
            Ok(filled) => shared.set_wanted(filled),
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(stream = name.local(), %error, "the position in a stream cannot be read"),
        }
        let link = Link {
            number: 0,
            phase: Phase::Opening,
            connection: None,
            is_started: false,
            is_inherited: callers.is_empty() || shared.wanted().is_some(),
            is_end_told: false,
            callers,
            is_granting: false,
            granted: now,
            told: Taken::default(),
            heard: now,
            used: now,
            silence: Silence { pieces: 0, since: now },
            shared,
        };
        self.open.insert(name.clone(), link);
        self.open_link(context, &name, now);
    }

    /// Sets and returns a link's window, according to the budget.
    fn window(&mut self, context: &mut Context, name: &RemoteName) -> u64 {
        let Some(link) = self.open.get(name) else { return WINDOW_BYTES_LEAST };
        // `saturating_sub` is needed because the thread of a link without a window may empty its
        // queue between the two reads.
        let others = self.windows().saturating_sub(link.shared.room());
        let window = context.budget.window(self.open.len(), others, context.settings.window_bytes.max(1));
        link.shared.window.store(window, Ordering::Relaxed);
        context.budget.on_windows(others + window);
        window
    }

    fn open_link(&mut self, context: &mut Context, name: &RemoteName, now: Instant) {
        let window_bytes = self.window(context, name);
        let Some(link) = self.open.get_mut(name) else { return };
        let Ok(Epoch(number)) = Epoch::draw() else { return };
        self.names.remove(&link.number);
        self.names.insert(number, name.clone());
        (link.number, link.phase, link.heard, link.is_granting) = (number, Phase::Opening, now, false);
        link.connection = context.nodes.connection(&name.node);
        link.told = Taken::default();
        let from = link.shared.wanted();
        // This entry must follow the last piece of the former link and precede the first piece of
        // the new link. That piece may arrive before the response.
        link.shared.push_state(Coming::Reopened(number));
        let what = StreamQuestion::Open {
            link: number,
            window_messages: WINDOW_MESSAGES,
            window_bytes,
            drop_oldest: context.settings.spaces[name.space].stream_policy == Policy::DropOldest,
            from,
        };
        self.ask(context, name, what, Some((Asked::Open, number)));
    }

    /// Sends a request about a stream. If `asked` is set, the response arrives as an event with
    /// these values. Otherwise the response is ignored.
    fn ask(&self, context: &Context, name: &RemoteName, what: StreamQuestion, asked: Option<(Asked, u64)>) {
        let about = AboutStream { asker: context.asker.clone(), what };
        let frame = Frame { head: encode(&about), body: Body::default() };
        let (events, key, name) = (self.events.clone(), context.key(Kind::Stream, name), name.clone());
        let timeout = context.settings.answer_timeout;
        let done = move |response: Result<Frame, Trouble>| {
            if let Some((asked, number)) = asked {
                events.post_later(Event::Response(asked, name, number, response));
            }
        };
        match asked {
            Some((Asked::Open, _)) => context.ask_settled(key, frame, timeout, done),
            Some((Asked::Grant, _)) | None => context.ask(key, frame, timeout, done),
        }
    }

    /// Handles a node's response, or the progress of a link's thread.
    pub fn on_event(&mut self, context: &mut Context, event: Event, now: Instant) {
        let (asked, name, number, response) = match event {
            Event::Response(asked, name, number, response) => (asked, name, number, response),
            Event::Progress => return self.poll_all(context, now),
        };
        let response = response.and_then(|frame| {
            decode::<StreamAnswer>(&frame.head).map_err(|why| {
                context.drop_message(name.node.as_str(), &why);
                Trouble::Engine(why.to_string())
            })
        });
        match asked {
            Asked::Open => self.on_opened(context, &name, number, response, now),
            Asked::Grant => self.on_granted(&name, number, response, now),
        }
    }

    fn on_opened(
        &mut self,
        context: &mut Context,
        name: &RemoteName,
        number: u64,
        response: Result<StreamAnswer, Trouble>,
        now: Instant,
    ) {
        let Some(link) = self.open.get_mut(name).filter(|link| link.number == number) else { return };
        let answer = match response {
            Ok(StreamAnswer::Opened { capacity, position }) => {
                let wanted = link.shared.wanted().unwrap_or(position);
                match link.start(context, &self.events, name, capacity, wanted) {
                    Ok(()) => link.opened(now),
                    Err(why) => RemoteAnswer::Refused { why },
                }
            }
            Ok(StreamAnswer::Refused(why)) if !link.is_started => RemoteAnswer::Refused { why },
            // The link stays, because the producer may open the stream again.
            Ok(StreamAnswer::Nothing) if link.is_started => {
                link.shared.push_state(Coming::Ended);
                link.pause(now + RENEW);
                link.here(true)
            }
            Ok(StreamAnswer::Nothing) => {
                if !std::mem::replace(&mut link.is_end_told, true) {
                    end_inherited(context, name);
                }
                RemoteAnswer::Nothing
            }
            Ok(_) | Err(_) if link.is_started => {
                link.pause(now + RENEW);
                link.here(true)
            }
            Err(Trouble::Nobody) => match context.nodes.absence(&name.node, link.connection) {
                // The node does not serve this namespace.
                Absence::Unserved => RemoteAnswer::Nothing,
                Absence::Lost => RemoteAnswer::Unreachable,
                Absence::Returned => return self.open_link(context, name, now),
            },
            Ok(_) | Err(_) => RemoteAnswer::Unreachable,
        };
        let callers = std::mem::take(&mut link.callers);
        let is_here = matches!(answer, RemoteAnswer::Here { .. });
        // A refusal may be temporary, for example for lack of memory or because of the limit of links.
        if !is_here && link.is_inherited && subscribers(context.client(name.space), &name.local()) > 0 {
            link.pause(now + RENEW);
            link.used = now;
        } else if !is_here {
            self.end(name);
        }
        for call in callers {
            context.answer(name.space, call, &answer);
        }
    }

    /// Handles a piece of a message. A piece without a link is late or forged, so it is dropped.
    pub fn on_piece(&mut self, context: &mut Context, from: &NodeName, number: u64, frame: &Frame) {
        let name = self.names.get(&number).filter(|name| name.node == *from);
        let Some(link) = name.and_then(|name| self.open.get(name)) else {
            context.statistics.dropped += 1;
            return;
        };
        match decode::<Message>(&frame.head) {
            Ok(message) => {
                if link.shared.queue().is_full(context.settings.window_bytes) {
                    context.drop_message(from.as_str(), &"more than there is room for");
                    return;
                }
                link.shared.pieces.fetch_add(1, Ordering::Relaxed);
                link.shared.push(Coming::Piece(message, frame.body.clone()));
            }
            Err(why) => context.drop_message(from.as_str(), &why),
        }
    }

    /// Polls the links, at most every 50 ms.
    pub fn on_tick(&mut self, context: &mut Context, now: Instant) {
        if self.polled.is_none_or(|polled| now.saturating_duration_since(polled) >= POLL / 4) {
            self.polled = Some(now);
            self.poll_all(context, now);
        }
    }

    /// Sends due grants, requests broken links again, and ends links without local subscribers.
    fn poll_all(&mut self, context: &mut Context, now: Instant) {
        let names: Vec<RemoteName> = self.open.keys().cloned().collect();
        for name in names {
            self.poll(context, &name, now);
        }
        // The sum does not contain the windows of links that have ended.
        context.budget.on_windows(self.windows());
    }

    fn poll(&mut self, context: &mut Context, name: &RemoteName, now: Instant) {
        let Some(link) = self.open.get_mut(name) else { return };
        context.statistics.dropped += link.shared.dropped.swap(0, Ordering::Relaxed);
        if link.shared.is_closed() {
            return self.end(name);
        }
        if link.shared.subscribers.load(Ordering::Relaxed) > 0 || !link.callers.is_empty() {
            link.used = now;
        }
        if now.saturating_duration_since(link.used) > IDLE {
            let what = StreamQuestion::Close { link: link.number };
            self.ask(context, name, what, None);
            return self.end(name);
        }
        match link.phase {
            Phase::Broken(at) if at <= now && context.nodes.is_alive(&name.node) => self.open_link(context, name, now),
            Phase::Opening | Phase::Broken(_) => {}
            Phase::Open => self.grant(context, name, now),
        }
    }

    /// Grants the free part of the window to the sender if this part is at least a quarter of the
    /// window, or if a grant is due.
    fn grant(&mut self, context: &mut Context, name: &RemoteName, now: Instant) {
        let Some(link) = self.open.get_mut(name) else { return };
        let (taken, number) = (link.shared.taken_of(link.number), link.number);
        let is_much = taken.is_much_since(link.told, link.shared.window.load(Ordering::Relaxed));
        if link.is_granting || !(is_much || now.saturating_duration_since(link.granted) >= RENEW) {
            return;
        }
        (link.is_granting, link.granted, link.told) = (true, now, taken);
        let window_bytes = self.window(context, name);
        let what = StreamQuestion::Grant { link: number, through: taken.through, taken: taken.here, window_bytes };
        self.ask(context, name, what, Some((Asked::Grant, number)));
    }

    fn on_granted(&mut self, name: &RemoteName, number: u64, response: Result<StreamAnswer, Trouble>, now: Instant) {
        let Some(link) = self.open.get_mut(name).filter(|link| link.number == number) else { return };
        link.is_granting = false;
        match response {
            Ok(StreamAnswer::Granted { sent }) => {
                link.heard = now;
                let pieces = link.shared.pieces.load(Ordering::Relaxed);
                let is_idle = !link.shared.busy.load(Ordering::Relaxed) && link.shared.queue().is_empty();
                let is_missing = sent > link.shared.taken_of(number).through;
                if pieces != link.silence.pieces || !is_missing || !is_idle {
                    link.silence = Silence { pieces, since: now };
                } else if now.saturating_duration_since(link.silence.since) > SILENCE {
                    link.silence.since = now;
                    link.shared.push(Coming::Silence(sent));
                }
            }
            Ok(_) => link.pause(now),
            // The sender closes the link only after [`LINK_TIMEOUT`] without a grant, and the transport may recover
            // before.
            Err(_) if now.saturating_duration_since(link.heard) < LINK_TIMEOUT => {}
            Err(_) => link.pause(now + RENEW),
        }
    }
}

impl Links {
    /// Closes all links at the end of this gateway, so that the other nodes need not wait for their grants. Waits until the
    /// nodes have responded, at most `FAREWELL`.
    pub fn leave(&mut self, context: &Context) {
        let (responded, responses) = std::sync::mpsc::channel();
        let links = self.open.iter().filter(|(name, _)| context.nodes.is_alive(&name.node));
        let asked = links.map(|(name, link)| {
            let what = StreamQuestion::Close { link: link.number };
            let frame =
                Frame { head: encode(&AboutStream { asker: context.asker.clone(), what }), body: Body::default() };
            let responded = responded.clone();
            let done = Box::new(move |_| {
                let _ = responded.send(());
            });
            context.transport.ask(&context.key(Kind::Stream, name), frame, FAREWELL, done);
        });
        let (asked, until) = (asked.count(), Instant::now() + FAREWELL);
        for _ in 0..asked {
            if responses.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
                break;
            }
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.open.values().for_each(|link| link.shared.close());
    }
}

/// Ends the local stream that an earlier run of this gateway has left open, if there is one: the other node has no such stream
/// any more.
fn end_inherited(context: &Context, name: &RemoteName) {
    let (client, local) = (context.client(name.space), name.local());
    if client.streams(&globset::escape(&local)).is_ok_and(|found| found.iter().any(|stream| stream.count > 0))
        && let Err(error) = open_after_former(|| client.stream(&local).capacity(1).open()).map(drop)
    {
        tracing::warn!(stream = local, %error, "a stream that has ended on its node cannot be ended here");
    }
}

/// Opens a local stream. The thread of a link that has just ended may still have the stream, and drops it within [`POLL`].
fn open_after_former(open: impl Fn() -> tensorlend::Result<Stream>) -> tensorlend::Result<Stream> {
    let until = Instant::now() + 2 * POLL;
    loop {
        match open() {
            Err(error) if error.code() == STREAM_TAKEN && Instant::now() < until => std::thread::sleep(POLL / 100),
            opened => return opened,
        }
    }
}

/// Opens the local stream, in place of the local stream of an earlier run of this gateway. Then
/// starts the link's thread.
fn start(
    context: &Context,
    events: &EventSender<Event>,
    name: &RemoteName,
    capacity: u32,
    wanted: StreamPosition,
    shared: Arc<Shared>,
) -> Result<(), String> {
    let client = context.client(name.space).clone();
    let policy = context.spaces[name.space].settings.stream_policy;
    let local = name.local();
    let stream = open_after_former(|| client.stream(&local).capacity(capacity).policy(policy).open());
    let stream = stream.map_err(|error| error.to_string())?;
    let writer = Writer::new(client, local, stream, capacity, policy);
    let (events, receiver) = (events.clone(), Receiver::new(name.node.clone(), wanted));
    let started = thread::spawn("gateway-receive", move || {
        writer.run(&shared, receiver, &|| events.post(Event::Progress));
        shared.close();
    });
    started.map(drop).map_err(|error| error.to_string())
}
