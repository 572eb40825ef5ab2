//! The state of a gateway. It routes each event to the part that owns the subject of the event.
//!
//! One thread at a time changes the state ([`crate::runtime::Mailbox`]). The parts wait only for the daemon of this
//! machine. Worker threads do long work (copies, packing) and post the result. Sends, which may wait for a full
//! transport, are deferred until the state is free.
//!
//! # How to add a kind of object
//!
//! A kind (streams, lists, listings) is a part with private fields. Its methods take the
//! [`Context`] and their other inputs as parameters, and never the hub. The part is a field of
//! [`Hub`] and appears in [`Hub::on_question`] (requests of other gateways), [`Hub::on_frame`]
//! (their messages), [`Hub::on_asked`] (requests of clients of this machine), and [`Hub::on_tick`].
//! Results of its worker threads and responses of other nodes arrive as events of the part's own
//! type, a variant of [`Event`]. A part that needs a value of another node returns a [`Request`].
//! The hub passes the request to [`Transfers`], and the outcome back to the part.

use crate::context::Context;
use crate::error::CannotStart;
use crate::export::names::{Asked, Exports, Part};
use crate::export::offers::Offers;
use crate::export::puts::{Offered, PutOf, Puts};
use crate::export::{listings as export_listings, lists as export_lists, offers, streams as export_streams};
use crate::import::listings::{self, Listings};
use crate::import::lists::{self, ItemOf, Lists};
use crate::import::names::{self, CopyOf, Imports};
use crate::import::streams as import_streams;
use crate::key::{Key, Kind};
use crate::local::{self, documents};
use crate::nodes::Change;
use crate::runtime::{Deferred, EventSender, Mailbox, State};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::transfer::{self, Finished, Request, Transfers};
use crate::transport::{Answer, Declared, Frame, Question, Transport};
use crate::value::Piece;
use crate::wire::{
    AboutList, AboutName, AboutNames, AboutStream, BadFrame, Changed, Epoch, NameAnswer, NameQuestion, NodeName, decode,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::Call;
use tensorlend::remote::RemoteRequest;

/// Maximum interval of [`Hub::on_tick`].
const TICK: Duration = Duration::from_millis(200);
/// Minimum interval between two polls of the exports, because the cost of a poll grows with the number of readers.
const EXPORTS_POLL: Duration = Duration::from_millis(100);
/// Minimum interval between two publications of `.gateway/stat`.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(1);

pub enum Event {
    /// A request of another gateway.
    Question(Question),
    /// A message of another gateway.
    Frame(Key, Frame),
    /// A node has become reachable (true) or unreachable (false).
    Node(NodeName, Epoch, bool),
    Local(local::Event),
    Transfer(transfer::Event),
    /// An event of a request about a name of another node.
    Name(names::Event),
    /// An event of a list that this gateway copies from another node.
    List(lists::Event),
    /// An event of a listing of names of other nodes.
    Listing(listings::Event),
    /// An event of a stream of another node.
    Stream(import_streams::Event),
    /// An event of a value that this machine puts on another node.
    Offer(offers::Event),
    /// An event of a list that another node copies.
    ListSent(export_lists::Event),
    /// An event of a listing that another node requested.
    Listed(export_listings::Event),
    /// Sets the function to call when the gateway ends by itself.
    OnEnd(Box<dyn FnOnce() + Send>),
    /// The program has stopped the gateway.
    Stop,
}

/// The purpose of a value that this gateway fetches.
enum Purpose {
    Copy(CopyOf),
    Item(ItemOf),
    Put(PutOf),
}

/// Senders through which workers post the responses to other nodes' requests.
struct Senders {
    list_sent: EventSender<export_lists::Event>,
    listed: EventSender<export_listings::Event>,
}

/// The state of a gateway: the context, and one part for each kind of object.
pub struct Hub {
    context: Context,
    exports: Exports,
    puts: Puts,
    sent_streams: export_streams::Links,
    offers: Offers,
    imports: Imports,
    lists: Lists,
    listings: Listings,
    streams: import_streams::Links,
    transfers: Transfers<Purpose>,
    senders: Senders,
    exports_polled: Option<Instant>,
    published: Published,
    declared: Vec<Declared>,
    is_over: bool,
    on_end: Option<Box<dyn FnOnce() + Send>>,
}

/// The statistics as last published, and the time of that publication.
#[derive(Default)]
struct Published {
    statistics: Statistics,
    at: Option<Instant>,
}

impl Hub {
    /// Connects to the daemon and declares this node to the others.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn start(
        settings: Settings,
        transport: Arc<dyn Transport>,
        mailbox: &Mailbox<Self>,
    ) -> Result<Self, CannotStart> {
        let context = Context::start(settings, transport, &mailbox.sender(Event::Local))?;
        let mut hub = Self {
            exports: Exports::new(&context),
            puts: Puts::default(),
            sent_streams: export_streams::Links::default(),
            offers: Offers::new(mailbox.sender(Event::Offer)),
            imports: Imports::new(&context, mailbox.sender(Event::Name)),
            lists: Lists::new(mailbox.sender(Event::List)),
            listings: Listings::new(mailbox.sender(Event::Listing)),
            streams: import_streams::Links::new(mailbox.sender(Event::Stream)),
            transfers: Transfers::new(&context.settings, mailbox.sender(Event::Transfer)),
            senders: Senders { list_sent: mailbox.sender(Event::ListSent), listed: mailbox.sender(Event::Listed) },
            context,
            exports_polled: None,
            published: Published::default(),
            declared: Vec::new(),
            is_over: false,
            on_end: None,
        };
        // Records of an earlier gateway, which may have had another name.
        hub.context.spaces.iter().for_each(documents::forget);
        hub.declared = hub.declare(mailbox)?;
        hub.context.spaces.iter().try_for_each(|space| documents::node(space, &hub.context.nodes, None))?;
        Ok(hub)
    }

    /// Declares to the transport the keys that this gateway serves and listens to. It declares the node's liveliness
    /// token last, so that other nodes send requests only when all keys are served.
    fn declare(&self, mailbox: &Mailbox<Self>) -> Result<Vec<Declared>, CannotStart> {
        let (transport, here) = (&self.context.transport, &self.context.asker);
        let mut declared = Vec::new();
        for space in &self.context.settings.spaces {
            let about = |kind| Key::About { node: here.node.clone(), kind, space: space.name.clone(), name: None };
            let names = Key::Names(here.node.clone(), space.name.clone());
            for key in [about(Kind::Name), about(Kind::List), about(Kind::Stream), names] {
                let mailbox = mailbox.clone();
                let on_question = move |question| mailbox.post_later(Event::Question(question));
                declared.push(transport.answer(&key, Arc::new(on_question))?);
            }
        }
        let messages = Key::Message { from: None, to: here.node.clone(), link: None };
        let changes = Key::Changed { from: None, to: here.node.clone(), space: None };
        for key in [messages, changes] {
            let mailbox = mailbox.clone();
            let on_frame = move |key, frame| mailbox.post_later(Event::Frame(key, frame));
            declared.push(transport.listen(&key, Arc::new(on_frame))?);
        }
        let mailbox = mailbox.clone();
        let on_node = move |node, epoch, alive| mailbox.post_later(Event::Node(node, epoch, alive));
        declared.push(transport.watch_alive(Arc::new(on_node))?);
        declared.push(transport.declare_alive(&here.node, here.epoch)?);
        Ok(declared)
    }

    /// Handles a request of another gateway.
    fn on_question(&mut self, question: Question, now: Instant) {
        let Question { key, frame, answer } = question;
        let done = match key {
            Key::About { kind, space, name: Some(name), .. } => {
                let Some(space) = self.context.space(&space) else { return };
                self.on_question_about(kind, space, &name, frame, answer, now)
            }
            Key::Names(_, space) => {
                let Some(space) = self.context.space(&space) else { return };
                decode::<AboutNames>(&frame.head).map(|about| {
                    export_listings::on_question(&mut self.context, &self.senders.listed, space, about, answer);
                })
            }
            _ => return,
        };
        if let Err(why) = done {
            self.context.drop_message("a question", &why);
        }
    }

    fn on_question_about(
        &mut self,
        kind: Kind,
        space: usize,
        name: &str,
        frame: Frame,
        answer: Answer,
        now: Instant,
    ) -> Result<(), BadFrame> {
        match kind {
            Kind::Name => self.on_name_question(space, name, frame, answer, now)?,
            Kind::Stream => {
                let about = decode::<AboutStream>(&frame.head)?;
                self.sent_streams.on_question(&mut self.context, space, name, about, answer, now);
            }
            // A request with a list's key asks for the items of the list, or for bytes of one item.
            Kind::List => match decode::<AboutList>(&frame.head) {
                Ok(about) => {
                    let sent = &self.senders.list_sent;
                    export_lists::on_question(&mut self.context, sent, space, name, about, answer);
                }
                Err(BadFrame::Kind { .. }) => {
                    let about = decode::<AboutName>(&frame.head)?;
                    export_lists::on_item_question(&mut self.context, space, name, about, answer);
                }
                Err(why) => return Err(why),
            },
        }
        Ok(())
    }

    fn on_name_question(
        &mut self,
        space: usize,
        name: &str,
        frame: Frame,
        answer: Answer,
        now: Instant,
    ) -> Result<(), BadFrame> {
        let AboutName { asker, what } = decode::<AboutName>(&frame.head)?;
        if self.context.is_loop(&asker) {
            return Ok(());
        }
        let Self { context, exports, puts, .. } = self;
        context.statistics.answered += 1;
        let asked = Asked { space, name, asker: &asker };
        match what {
            NameQuestion::Get { have, inline_max } => {
                exports.on_get(context, asked, have, inline_max, answer, now);
            }
            NameQuestion::Read { stamp, offset, bytes, codecs, checksum } => {
                let part = Part { stamp, offset, bytes, codecs, checksum };
                exports.on_read(context, asked, part, answer, now);
            }
            NameQuestion::Done { stamp } => {
                exports.on_done(space, name, stamp, &asker);
                context.reply(answer, NameAnswer::Done);
            }
            NameQuestion::Put { descriptor, stamp, offer, chunk } => {
                let first = Piece { chunk, body: frame.body };
                let offered = Offered { descriptor, stamp, number: offer, first };
                let request = puts.on_offer(context, space, name, &asker, offered, answer);
                self.fetch(request.map(|request| request.map(Purpose::Put)), now);
            }
        }
        Ok(())
    }

    /// Handles a message of another gateway.
    fn on_frame(&mut self, key: Key, frame: &Frame, now: Instant) {
        match key {
            Key::Changed { from: Some(from), space: Some(space), .. } => {
                let Some(space) = self.context.space(&space) else { return };
                match decode::<Changed>(&frame.head) {
                    Ok(changed) => self.imports.on_changed(&mut self.context, &from, space, &changed, now),
                    Err(why) => self.context.drop_message(from.as_str(), &why),
                }
            }
            Key::Message { from: Some(from), link: Some(link), .. } => {
                self.streams.on_piece(&mut self.context, &from, link, frame);
            }
            _ => {}
        }
    }

    fn on_local(&mut self, event: local::Event, now: Instant) {
        match event {
            local::Event::Asked { space, request, call } => self.on_asked(space, request, call, now),
            local::Event::Changed { space, names } => self.exports.on_changed(&mut self.context, space, &names),
            local::Event::Ended => self.is_over = true,
        }
    }

    /// Handles a request of a client of this machine.
    fn on_asked(&mut self, space: usize, request: RemoteRequest, call: Call, now: Instant) {
        let context = &mut self.context;
        match request {
            RemoteRequest::Get { .. } | RemoteRequest::Wait { .. } | RemoteRequest::Where { .. } => {
                self.imports.on_asked(context, space, request, call, now);
            }
            RemoteRequest::Put { name, dataset } => match context.remote_name(space, &name) {
                Ok(name) => self.offers.on_asked(context, &mut self.exports, name, dataset, call, now),
                Err(why) => context.refuse(space, call, why),
            },
            RemoteRequest::Subscribe { name } => self.streams.on_asked(context, space, &name, call, now),
            RemoteRequest::Names { glob } => self.listings.on_asked(context, space, &glob, call),
            RemoteRequest::List { name } => self.lists.on_asked(context, space, &name, call),
        }
    }

    fn on_offer(&mut self, event: offers::Event, now: Instant) {
        let Some(settled) = self.offers.on_event(&mut self.context, &mut self.exports, event, now) else { return };
        // Invalidate the copy before the client gets its response. A client that has put a value
        // must not read the old value on this machine. The other node's invalidation message may
        // arrive after the response.
        self.imports.on_put(&self.context, &settled.name, now);
        self.context.answer(settled.name.space, settled.call, &settled.answer);
    }

    /// Starts a transfer. If the transfer ends at once, its outcome may request the next transfer,
    /// which this function also starts.
    fn fetch(&mut self, mut request: Option<Request<Purpose>>, now: Instant) {
        while let Some(next) = request {
            let finished = self.transfers.start(&mut self.context, next);
            request = finished.and_then(|finished| self.on_fetched(finished, now));
        }
    }

    fn on_fetched(&mut self, finished: Finished<Purpose>, now: Instant) -> Option<Request<Purpose>> {
        let Finished { purpose, outcome } = finished;
        let context = &mut self.context;
        match purpose {
            Purpose::Copy(copy) => self.imports.on_fetched(context, &copy, outcome, now),
            Purpose::Put(put) => self.puts.on_fetched(context, put, outcome),
            Purpose::Item(item) => {
                return self.lists.on_fetched(context, item, outcome).map(|request| request.map(Purpose::Item));
            }
        }
        None
    }

    fn on_finished(&mut self, finished: impl IntoIterator<Item = Finished<Purpose>>, now: Instant) {
        for finished in finished {
            let request = self.on_fetched(finished, now);
            self.fetch(request, now);
        }
    }

    fn on_node(&mut self, node: &NodeName, epoch: Epoch, alive: bool, now: Instant) {
        let change = self.context.nodes.on_token(node, epoch, alive);
        match change {
            Some(Change::Up { epoch, same }) => {
                tracing::info!(%node, same, "a node is there");
                self.exports.on_node_up(&mut self.context, node, epoch);
                self.sent_streams.on_node_up(node, epoch);
                self.transfers.on_node_up(node, now);
                self.imports.on_node_up(&self.context, node, epoch);
                self.streams.on_node_up(&mut self.context, node, now);
            }
            Some(Change::Down) => {
                tracing::info!(%node, "a node cannot be reached");
                self.exports.on_node_down(node);
                self.imports.on_node_down(node);
            }
            Some(Change::Double) => {
                self.context.statistics.dropped += 1;
                tracing::error!(%node, "another gateway has the name of this node: give each its own");
            }
            None => return,
        }
        for space in &self.context.spaces {
            if let Err(error) = documents::node(space, &self.context.nodes, Some(node)) {
                tracing::warn!(%node, %error, "the state of a node could not be published");
            }
        }
    }

    fn publish_statistics(&mut self, now: Instant) {
        let statistics = &mut self.context.statistics;
        statistics.nodes_alive = self.context.nodes.iter().filter(|(_, known)| known.alive).count();
        (statistics.promises, statistics.kept) = self.exports.size();
        (statistics.cached_names, statistics.cached_bytes) = self.imports.size();
        statistics.transfers = self.transfers.count();
        (statistics.in_flight_bytes, statistics.in_flight_bytes_max) =
            (self.context.budget.in_flight(), self.context.budget.bytes_max());
        statistics.queued_bytes = self.streams.queued_bytes();
        (statistics.streams_sent, statistics.messages_dropped) = self.sent_streams.size();
        (statistics.streams_received, statistics.messages_received, statistics.messages_lost) = self.streams.size();
        self.published.at = Some(now);
        if self.published.statistics != *statistics {
            self.published.statistics = statistics.clone();
            for space in &self.context.spaces {
                if let Err(error) = documents::statistics(space, statistics) {
                    tracing::debug!(%error, "the statistics could not be published");
                }
            }
        }
    }
}

impl State for Hub {
    type Event = Event;

    fn on_event(&mut self, event: Event, now: Instant) {
        let context = &mut self.context;
        match event {
            Event::Question(question) => self.on_question(question, now),
            Event::Frame(key, frame) => self.on_frame(key, &frame, now),
            Event::Node(node, epoch, alive) => self.on_node(&node, epoch, alive, now),
            Event::Local(event) => self.on_local(event, now),
            Event::Transfer(event) => {
                let finished = self.transfers.on_event(context, event, now);
                self.on_finished(finished, now);
            }
            Event::Name(event) => {
                let request = self.imports.on_event(context, event, now);
                self.fetch(request.map(|request| request.map(Purpose::Copy)), now);
            }
            Event::List(event) => {
                let request = self.lists.on_event(context, event);
                self.fetch(request.map(|request| request.map(Purpose::Item)), now);
            }
            Event::Listing(event) => self.listings.on_event(context, event),
            Event::Stream(event) => self.streams.on_event(context, event, now),
            Event::Offer(event) => self.on_offer(event, now),
            Event::ListSent(event) => export_lists::on_event(context, event),
            Event::Listed(event) => export_listings::on_event(context, event),
            Event::OnEnd(on_end) => self.on_end = Some(on_end),
            Event::Stop => self.is_over = true,
        }
    }

    fn due(&self, now: Instant) -> Instant {
        [self.imports.due(), self.transfers.due()].into_iter().flatten().fold(now + TICK, Instant::min)
    }

    fn on_tick(&mut self, now: Instant) {
        if self.exports_polled.is_none_or(|polled| now.saturating_duration_since(polled) >= EXPORTS_POLL) {
            self.exports_polled = Some(now);
            self.exports.on_tick(&mut self.context, now);
        }
        self.imports.on_tick(&self.context, now);
        let finished = self.transfers.on_tick(&mut self.context, now);
        self.on_finished(finished, now);
        self.streams.on_tick(&mut self.context, now);
        self.sent_streams.on_tick(now);
        if self.published.at.is_none_or(|at| now.saturating_duration_since(at) >= STATISTICS_INTERVAL) {
            self.publish_statistics(now);
        }
        if cfg!(debug_assertions) {
            self.context.budget.check();
        }
    }

    fn take_deferred(&mut self) -> Vec<Deferred> {
        self.context.take_deferred()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    /// Ends the gateway. Withdraws its declarations to other nodes first, and then responds to the
    /// clients of this machine.
    fn end(mut self) {
        self.streams.leave(&self.context);
        drop(std::mem::take(&mut self.declared));
        self.imports.end(&self.context);
        for space in &mut self.context.spaces {
            space.close();
            documents::forget(space);
        }
        self.abort();
    }

    fn abort(mut self) {
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}
