//! The one that decides.
//!
//! All state belongs to it: nodes, promises, copies, transfers. Whatever happens elsewhere comes to it as an [`Event`]: the engine's
//! callbacks, the service that clients ask, the watches over names, and workers who are done. [Who posts](Post) sees to that, one after the
//! other. It waits for nothing but the local broker; what may take long (copies, packing, full ways) is done by [`Workers`], who
//! [post](Post::run) what came of it.
//!
//! # How another kind plugs in
//!
//! A kind (streams, lists, listings) is a field of [`Hub`] with its state machines, and four places that lead to it:
//! `Hub::on_question` (what other gateways ask, by the key's kind), `Hub::on_frame` (what they send), `Hub::on_asked` (what clients
//! of this machine ask) and `Hub::on_tick` with `Hub::due` (time); `Hub::on_came` and `Hub::on_went` if it cares for nodes. Its own callbacks
//! and workers come back by [`Post::run`], with the hub and the time as arguments. Bytes are fetched by [`Hub::fetch`](crate::import::transfers),
//! which is the same for everything that can be read by stamp and offset.

use crate::export::names::Exports;
use crate::export::streams::Links;
use crate::import::budget::Budget;
use crate::import::listings::Listings;
use crate::import::lists::Mirrors;
use crate::import::names::Imports;
use crate::import::streams::Inlets;
use crate::import::transfers::Transfers;
use crate::key::{Key, Kind};
use crate::local::{Space, documents};
use crate::nodes::{Nodes, Turn};
use crate::post::{Post, Run};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::transport::{Declared, Frame, Question, Transport, Trouble};
use crate::wire::{AboutList, AboutName, AboutNames, AboutStream, Asker, BadFrame, Changed, Epoch, NodeName, decode};
use crate::workers::Workers;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::remote::RemoteRequest;
use tensorlend::{Call, Version};
use tensorlend_os::thread;

/// How often it looks at the clock, at least.
const TICK: Duration = Duration::from_millis(200);
/// How often it looks what others have not read, or heard, for long: there may be many.
const SWEEP: Duration = Duration::from_millis(100);
/// How often `.gateway/stat` may change.
const TELL: Duration = Duration::from_secs(1);

/// What happens.
pub enum Event {
    /// Another gateway asks.
    Question(Question),
    /// Another gateway says something.
    Frame(Key, Frame),
    /// A node came or went.
    Node(NodeName, Epoch, bool),
    /// A client of this machine asks.
    Asked {
        /// In which namespace.
        space: usize,
        /// What.
        request: RemoteRequest,
        /// To be answered.
        call: Call,
    },
    /// Names that were watched hold something else.
    Moved {
        /// In which namespace.
        space: usize,
        /// Which, and what.
        names: Vec<(String, Option<Version>)>,
    },
    /// Somebody is done.
    Run(Run),
    /// The end.
    Stop,
}

/// What all parts use.
pub struct Context {
    /// What the gateway is to do.
    pub settings: Arc<Settings>,
    /// The way to others.
    pub transport: Arc<dyn Transport>,
    /// The way back here.
    pub post: Post,
    /// This gateway, as it asks others.
    pub asker: Asker,
    /// The namespaces, as they are configured.
    pub spaces: Vec<Space>,
    /// What is counted.
    pub statistics: Statistics,
    /// Those who copy into drafts.
    pub copiers: Workers,
    /// Those who pack and answer: a way that is full holds them up.
    pub senders: Workers,
    /// Those who ask.
    pub askers: Workers,
    /// One who says words: in order.
    pub herald: Workers,
}

impl Context {
    /// The namespace that is called so between gateways.
    pub fn space(&self, name: &str) -> Option<usize> {
        self.settings.spaces.iter().position(|space| space.name == name)
    }

    /// Counts a message that is none, and says so.
    pub fn drop_message(&mut self, from: &str, why: &dyn std::fmt::Display) {
        self.statistics.dropped += 1;
        tracing::debug!(from, %why, "a message was dropped");
    }

    /// Asks; `done` is run by the hub.
    pub fn ask(
        &self,
        key: Key,
        frame: Frame,
        timeout: Duration,
        done: impl FnOnce(&mut Hub, Instant, Result<Frame, Trouble>) + Send + 'static,
    ) {
        let (transport, post) = (self.transport.clone(), self.post.clone());
        let late = post.clone();
        let done = Arc::new(std::sync::Mutex::new(Some(done)));
        let other = done.clone();
        let take =
            |done: &std::sync::Mutex<Option<_>>| done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let asked = self.askers.run(move || {
            let answered = Box::new(move |answer| {
                if let Some(done) = take(&done) {
                    post.deliver(Event::Run(Box::new(move |hub, now| done(hub, now, answer))));
                }
            });
            transport.ask(&key, frame, timeout, answered);
        });
        if !asked && let Some(done) = take(&other) {
            late.run(move |hub, now| done(hub, now, Err(Trouble::Engine("too many questions".into()))));
        }
    }

    /// Says something, in order; nobody waits for it.
    pub fn say(&self, key: Key, frame: Frame) {
        let transport = self.transport.clone();
        self.herald.run(move || {
            if let Err(error) = transport.send(&key, frame) {
                tracing::debug!(%error, "a word could not be sent");
            }
        });
    }
}

/// What the gateway knows.
pub struct Hub {
    /// What all parts use.
    pub context: Context,
    /// Who is there.
    pub nodes: Nodes,
    /// What others read here.
    pub exports: Exports,
    /// What is read of others.
    pub imports: Imports,
    /// What is on its way.
    pub transfers: Transfers,
    /// How much that may be.
    pub budget: Budget,
    /// Streams that are sent.
    pub links: Links,
    /// Streams that are received.
    pub inlets: Inlets,
    /// Listings that are being made.
    pub listings: Listings,
    /// Lists that are mirrored.
    pub mirrors: Mirrors,
    /// When it was looked what others have not read, or heard, for long.
    swept: Option<Instant>,
    told: (Statistics, Option<Instant>),
    declared: Vec<Declared>,
    over: bool,
    ended: Option<Box<dyn FnOnce() + Send>>,
}

/// A gateway that runs in this process. Dropping it ends it.
pub struct Gateway {
    post: Post,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum CannotStart {
    /// The local broker.
    #[error("the local broker: {0}")]
    Broker(#[from] tensorlend::Error),
    /// Another gateway is there already.
    #[error("a gateway serves namespace {0:?} already: one gateway for each namespace of a machine")]
    Double(String),
    /// The engine.
    #[error("the way to other nodes: {0}")]
    Transport(#[from] Trouble),
    /// The kernel.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl Gateway {
    /// Starts one.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn start(settings: Settings, transport: Arc<dyn Transport>) -> Result<Self, CannotStart> {
        let post = Post::default();
        let begun = Self::begin(settings, transport, &post);
        match begun {
            Ok(thread) => Ok(Self { post, thread: Some(thread) }),
            Err(why) => {
                post.give_up();
                Err(why)
            }
        }
    }

    fn begin(
        settings: Settings,
        transport: Arc<dyn Transport>,
        post: &Post,
    ) -> Result<std::thread::JoinHandle<()>, CannotStart> {
        let epoch = Epoch::draw()?;
        let settings = Arc::new(settings);
        let spaces: Result<Vec<Space>, CannotStart> =
            (0..settings.spaces.len()).map(|at| Space::open(&settings, at, post)).collect();
        let asker = Asker { node: settings.node.clone(), epoch };
        let nodes = Nodes::new(settings.node.clone(), epoch);
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        let context = Context {
            transport,
            post: post.clone(),
            asker,
            spaces: spaces?,
            statistics: Statistics { v: 1, node: settings.node.to_string(), ..Statistics::default() },
            copiers: Workers::start("gateway-copy", threads.min(4))?,
            senders: Workers::start("gateway-send", threads)?,
            askers: Workers::start("gateway-ask", 2)?,
            herald: Workers::start("gateway-say", 1)?,
            settings,
        };
        let mut hub = Hub {
            exports: Exports::new(&context),
            imports: Imports::new(&context),
            transfers: Transfers::new(&context.settings),
            budget: Budget::new(context.settings.windows_bytes),
            links: Links::default(),
            inlets: Inlets::default(),
            listings: Listings::default(),
            mirrors: Mirrors::default(),
            context,
            nodes,
            swept: None,
            told: (Statistics::default(), None),
            declared: Vec::new(),
            over: false,
            ended: None,
        };
        hub.declared = hub.declare()?;
        hub.context.spaces.iter().try_for_each(|space| documents::node(space, &hub.nodes, None))?;
        post.begin(hub);
        let clock = post.clone();
        Ok(thread::spawn("gateway-clock", move || clock.clock())?)
    }

    /// Where events of this gateway are posted.
    pub fn post(&self) -> &Post {
        &self.post
    }

    /// Calls this when it ends by itself: the broker has ended its session for good.
    pub fn on_end(self, ended: impl FnOnce() + Send + 'static) -> Self {
        self.post.run(move |hub, _| hub.ended = Some(Box::new(ended)));
        self
    }

    /// Ends it, and waits for that.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.post.event(Event::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

impl Hub {
    /// Tells the engine what is answered and heard here. That the node is there comes last.
    fn declare(&self) -> Result<Vec<Declared>, CannotStart> {
        let (transport, here) = (&self.context.transport, &self.context.asker);
        let mut declared = Vec::new();
        for space in &self.context.settings.spaces {
            for kind in [Kind::Name, Kind::List, Kind::Stream] {
                let post = self.context.post.clone();
                let key = Key::About { node: here.node.clone(), kind, space: space.name.clone(), name: None };
                let on_question = move |question| post.deliver(Event::Question(question));
                declared.push(transport.answer(&key, Arc::new(on_question))?);
            }
            let post = self.context.post.clone();
            let key = Key::Names(here.node.clone(), space.name.clone());
            declared.push(transport.answer(&key, Arc::new(move |question| post.deliver(Event::Question(question))))?);
        }
        let post = self.context.post.clone();
        let key = Key::Message { from: None, to: here.node.clone(), link: None };
        declared.push(transport.listen(&key, Arc::new(move |key, frame| post.deliver(Event::Frame(key, frame))))?);
        let post = self.context.post.clone();
        let key = Key::Changed { from: None, to: here.node.clone(), space: None };
        declared.push(transport.listen(&key, Arc::new(move |key, frame| post.deliver(Event::Frame(key, frame))))?);
        let post = self.context.post.clone();
        let on_node = move |node, epoch, alive| post.deliver(Event::Node(node, epoch, alive));
        declared.push(transport.watch_alive(Arc::new(on_node))?);
        declared.push(transport.declare_alive(&here.node, here.epoch)?);
        Ok(declared)
    }

    /// Whether it is to end.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ends it: first it is gone for the others, then for its own clients.
    pub fn end(mut self) {
        drop(std::mem::take(&mut self.declared));
        self.imports.end(&self.context);
        for space in &mut self.context.spaces {
            space.close();
        }
        self.abort();
    }

    /// Says that it has ended.
    pub fn abort(mut self) {
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }

    /// Something has happened.
    pub fn on_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Question(question) => self.on_question(question, now),
            Event::Frame(key, frame) => self.on_frame(key, &frame, now),
            Event::Node(node, epoch, alive) => self.on_node(&node, epoch, alive, now),
            Event::Asked { space, request, call } => self.on_asked(space, request, call, now),
            Event::Moved { space, names } => self.exports.on_moved(&mut self.context, space, &names),
            Event::Run(run) => run(self, now),
            Event::Stop => self.over = true,
        }
    }

    /// Another gateway asks.
    fn on_question(&mut self, question: Question, now: Instant) {
        let Question { key, frame, answer } = question;
        let done = match key {
            Key::About { kind, space, name: Some(name), .. } => {
                let Some(space) = self.context.space(&space) else { return };
                match kind {
                    Kind::Name => decode::<AboutName>(&frame.head)
                        .map(|about| self.on_name_question((space, &name), about, frame.body, answer, now)),
                    Kind::Stream => decode::<AboutStream>(&frame.head)
                        .map(|about| self.on_stream_question(space, &name, about, answer, now)),
                    // What there is, or the bytes of one item.
                    Kind::List => match decode::<AboutList>(&frame.head) {
                        Ok(about) => {
                            self.on_list_question(space, &name, about, answer);
                            Ok(())
                        }
                        Err(BadFrame::Kind { .. }) => decode::<AboutName>(&frame.head)
                            .map(|about| self.on_item_question(space, &name, about, answer)),
                        Err(why) => Err(why),
                    },
                }
            }
            Key::Names(_, space) => {
                let Some(space) = self.context.space(&space) else { return };
                decode::<AboutNames>(&frame.head).map(|about| self.on_names_question(space, about, answer))
            }
            _ => return,
        };
        if let Err(why) = done {
            self.context.drop_message("a question", &why);
        }
    }

    /// Another gateway says something.
    fn on_frame(&mut self, key: Key, frame: &Frame, now: Instant) {
        match key {
            Key::Changed { from: Some(from), space: Some(space), .. } => {
                let Some(space) = self.context.space(&space) else { return };
                match decode::<Changed>(&frame.head) {
                    Ok(changed) => self.on_changed(&from, space, &changed, now),
                    Err(why) => self.context.drop_message(from.as_str(), &why),
                }
            }
            Key::Message { from: Some(from), link: Some(link), .. } => self.on_stream_frame(&from, link, frame),
            _ => {}
        }
    }

    /// A client of this machine asks.
    fn on_asked(&mut self, space: usize, request: RemoteRequest, call: Call, now: Instant) {
        match request {
            RemoteRequest::Get { .. } | RemoteRequest::Wait { .. } | RemoteRequest::Where { .. } => {
                self.on_name_asked(space, request, call, now);
            }
            RemoteRequest::Put { name, dataset } => self.on_put_asked(space, &name, dataset, call, now),
            RemoteRequest::Subscribe { name } => self.on_subscribe_asked(space, name, call, now),
            RemoteRequest::Names { glob } => self.on_names_asked(space, &glob, call),
            RemoteRequest::List { name } => self.on_list_asked(space, name, call),
        }
    }

    fn on_node(&mut self, node: &NodeName, epoch: Epoch, alive: bool, now: Instant) {
        let turn = self.nodes.on_token(node, epoch, alive);
        match turn {
            Some(Turn::Came { epoch, same }) => {
                tracing::info!(%node, same, "a node is there");
                self.on_came(node, epoch, now);
            }
            Some(Turn::Went) => {
                tracing::info!(%node, "a node cannot be reached");
                self.on_went(node);
            }
            Some(Turn::Double) => {
                self.context.statistics.dropped += 1;
                tracing::error!(%node, "another gateway has the name of this node: give each its own");
            }
            None => return,
        }
        for space in &self.context.spaces {
            if let Err(error) = documents::node(space, &self.nodes, Some(node)) {
                tracing::warn!(%node, %error, "what became of a node could not be published");
            }
        }
    }

    fn on_came(&mut self, node: &NodeName, epoch: Epoch, now: Instant) {
        self.exports.on_came(&mut self.context, node, epoch);
        self.transfers.on_came(node, now);
        self.imports_came(node, epoch);
        self.inlets_came(node, now);
    }

    fn on_went(&mut self, node: &NodeName) {
        self.exports.on_went(node);
        self.imports.cache.on_parted(node);
    }

    /// When there is something to do by the clock, at the latest.
    pub fn due(&self, now: Instant) -> Instant {
        [self.imports.cache.due(), self.transfers.due()].into_iter().flatten().fold(now + TICK, Instant::min)
    }

    /// Time passes.
    pub fn on_tick(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP) {
            self.swept = Some(now);
            self.exports.on_tick(&mut self.context, now);
        }
        self.imports_tick(now);
        self.transfers_tick(now);
        self.inlets_look(now);
        self.links.on_tick(now);
        if self.told.1.is_none_or(|told| now.saturating_duration_since(told) >= TELL) {
            self.tell(now);
        }
    }

    fn tell(&mut self, now: Instant) {
        let statistics = &mut self.context.statistics;
        statistics.nodes_alive = self.nodes.iter().filter(|(_, known)| known.alive).count();
        (statistics.promises, statistics.kept) = self.exports.size();
        (statistics.cached_names, statistics.cached_bytes) = self.imports.cache.size();
        statistics.transfers = self.transfers.len();
        (statistics.in_flight_bytes, statistics.in_flight_bytes_max) =
            (self.budget.in_flight(), self.budget.bytes_max());
        statistics.queued_bytes = self.inlets.queued_bytes();
        (statistics.streams_sent, statistics.messages_dropped) = self.links.size();
        (statistics.streams_received, statistics.messages_received, statistics.messages_lost) = self.inlets.size();
        self.told.1 = Some(now);
        if self.told.0 != *statistics {
            self.told.0 = statistics.clone();
            for space in &self.context.spaces {
                if let Err(error) = documents::statistics(space, statistics) {
                    tracing::debug!(%error, "the statistics could not be published");
                }
            }
        }
    }
}
