//! All transfers of a gateway. They request ranges from other nodes, and worker threads copy the received bytes into
//! drafts.

use super::range::{Range, Rules, Standing, Transfer};
use crate::context::Context;
use crate::key::Kind;
use crate::name::RemoteName;
use crate::runtime::EventSender;
use crate::settings::Settings;
use crate::transport::{Body, Frame, Trouble};
use crate::value::{Incoming, Piece};
use crate::wire::{BadChunk, Descriptor, NameAnswer, NameQuestion, NodeName, Stamp, decode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::{Client, ValueDraft};
use tensorlend_os::mutex::lock;

/// Maximum number of damaged responses for one range.
const DAMAGED_MAX: u32 = 3;
/// Minimum interval between two polls of transfers that no event advances.
const POLL: Duration = Duration::from_millis(5);

/// Maximum size of a value that the hub's own thread copies if all its bytes have arrived.
const SMALL_BYTES: u64 = 64 << 10;
/// Maximum number of tensors of such a value.
const SMALL_TENSORS: usize = 16;

/// Identifies one value of another node.
#[derive(Clone, Debug)]
pub struct Source {
    /// A name, or an item of a list.
    pub kind: Kind,
    /// The name or list.
    pub name: RemoteName,
    pub stamp: Stamp,
}

/// A request for a transfer. `P` is the type of the purpose. The requesting part receives the
/// purpose with the outcome.
pub struct Request<P> {
    /// The client that creates the drafts.
    pub client: Client,
    /// The value to fetch.
    pub source: Source,
    pub descriptor: Arc<Descriptor>,
    /// The value's first bytes, if they have arrived already.
    pub first: Option<Piece>,
    pub purpose: P,
}

impl<P> Request<P> {
    /// Converts the purpose to another type.
    pub fn map<Q>(self, purpose: impl FnOnce(P) -> Q) -> Request<Q> {
        let Self { client, source, descriptor, first, purpose: of } = self;
        Request { client, source, descriptor, first, purpose: purpose(of) }
    }
}

pub enum Outcome {
    /// All bytes have arrived, and the draft can be published.
    Complete(ValueDraft),
    /// The other node no longer holds this value.
    Superseded,
    /// No response arrived for longer than the transfer's timeout.
    Unreachable,
    /// The transfer failed for this reason.
    Refused(String),
}

pub struct Finished<P> {
    pub purpose: P,
    pub outcome: Outcome,
}

pub enum Event {
    /// A worker has created the drafts of a transfer, or has failed to create them.
    Created(u64, Result<(), CreateError>),
    /// The other node has responded to the request for a range, or has failed to respond.
    Response(u64, Range, Result<Frame, Trouble>),
    /// A worker has copied the bytes of a range. An error means that the bytes were damaged.
    Copied(u64, Range, Result<(), BadChunk>),
}

/// The drafts while they are written; `None` once the transfer has ended.
type Drafts = Arc<Mutex<Option<Incoming>>>;

/// The reason why the drafts could not be created.
pub struct CreateError {
    why: String,
    /// True if the cause is an invalid descriptor from the other node.
    is_bad_message: bool,
}

/// A range whose bytes have arrived, with the chunk that describes them.
struct Arrived {
    range: Range,
    piece: Piece,
}

struct Running<P> {
    source: Source,
    client: Client,
    ranges: Transfer,
    drafts: Drafts,
    /// Whether the drafts exist, so that ranges may be copied.
    is_ready: bool,
    /// Ranges that have arrived before the drafts exist. At most one window.
    early: Vec<Arrived>,
    /// Whether at least one range was requested. The other node then retains the value until this
    /// node sends [`NameQuestion::Done`].
    is_requested: bool,
    purpose: P,
}

pub struct Transfers<P> {
    events: EventSender<Event>,
    rules: Rules,
    running: BTreeMap<u64, Running<P>>,
    last_number: u64,
    polled: Instant,
    /// Whether a transfer waits for room in the budget. At the next tick, this transfer takes the
    /// bytes that another transfer returned.
    is_starved: bool,
}

impl<P> Transfers<P> {
    /// Makes an empty collection. Its workers post to `events`.
    pub fn new(settings: &Settings, events: EventSender<Event>) -> Self {
        let rules = Rules {
            chunk_bytes: settings.chunk_bytes,
            window_bytes: settings.window_bytes,
            stall_timeout: settings.stall_timeout,
            damaged_max: DAMAGED_MAX,
        };
        let running = BTreeMap::new();
        Self { events, rules, running, last_number: 0, polled: Instant::now(), is_starved: false }
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Continues the transfers from a node that has become reachable, without waiting for their delays.
    pub fn on_node_up(&mut self, node: &NodeName, now: Instant) {
        for running in self.running.values_mut().filter(|running| running.source.name.node == *node) {
            running.ranges.on_way(now);
        }
    }

    /// Returns the time of the next poll, if there are transfers.
    pub fn due(&self) -> Option<Instant> {
        // Retries are due 50 ms or more after a failure, so a poll every 20 ms is frequent enough.
        (!self.running.is_empty()).then(|| Instant::now() + Duration::from_millis(20))
    }

    /// Starts a transfer. A small value is complete at once if its bytes came with the response.
    pub fn start(&mut self, context: &mut Context, request: Request<P>) -> Option<Finished<P>> {
        let Request { client, source, descriptor, first, purpose } = request;
        self.last_number += 1;
        let number = self.last_number;
        let total = descriptor.bytes();
        let here = first.as_ref().map_or(0, |first| u64::from(first.chunk.bytes));
        // A list's item that is fetched has no bytes on this machine yet (`first` is `None`), so a
        // worker creates its drafts.
        let has_few_tensors = descriptor.shape.tensors().take(SMALL_TENSORS + 1).count() <= SMALL_TENSORS;
        let is_small = first.is_some() && here == total && total <= SMALL_BYTES && has_few_tensors;
        let drafts = Drafts::default();
        let running = Running {
            source,
            client: client.clone(),
            ranges: Transfer::new(self.rules, total, here, Instant::now()),
            drafts: drafts.clone(),
            is_ready: false,
            early: Vec::new(),
            is_requested: false,
            purpose,
        };
        self.running.insert(number, running);
        let create = move || {
            let incoming = Incoming::new(&client, descriptor);
            let mut incoming =
                incoming.map_err(|error| CreateError { why: error.to_string(), is_bad_message: false })?;
            if let Some(first) = first {
                let received = incoming.receive(&first.chunk, &first.body);
                received.map_err(|bad| CreateError { why: bad.to_string(), is_bad_message: true })?;
            }
            *lock(&drafts) = Some(incoming);
            Ok(())
        };
        if is_small {
            // This thread copies the bytes of a small value, because waking a worker would take longer than the copy.
            return self.on_created(context, number, create(), Instant::now());
        }
        // A worker creates the drafts of a large value, because the daemon may need time to provide the memory.
        let events = self.events.clone();
        let is_queued = context.copiers.run(move || events.post(Event::Created(number, create())));
        if !is_queued {
            let error = CreateError { why: "too much to do".into(), is_bad_message: false };
            self.events.post(Event::Created(number, Err(error)));
        }
        // The first ranges travel while the worker creates the drafts.
        self.advance(context, number, Instant::now())
    }

    /// Applies an event. Returns the transfer if it has ended.
    pub fn on_event(&mut self, context: &mut Context, event: Event, now: Instant) -> Option<Finished<P>> {
        match event {
            Event::Created(number, created) => self.on_created(context, number, created, now),
            Event::Response(number, range, response) => self.on_response(context, number, range, response, now),
            Event::Copied(number, range, copied) => self.on_copied(context, number, range, copied, now),
        }
    }

    fn on_created(
        &mut self,
        context: &mut Context,
        number: u64,
        created: Result<(), CreateError>,
        now: Instant,
    ) -> Option<Finished<P>> {
        let running = self.running.get_mut(&number)?;
        match created {
            Ok(()) => {
                running.is_ready = true;
                for arrived in std::mem::take(&mut running.early) {
                    self.copy(context, number, arrived, now);
                }
                self.advance(context, number, now)
            }
            Err(CreateError { why, is_bad_message }) => {
                if is_bad_message {
                    context.drop_message(running.source.name.node.as_str(), &why);
                }
                self.finish(context, number, Outcome::Refused(why))
            }
        }
    }

    /// Lets a worker copy a range into the drafts.
    fn copy(&mut self, context: &mut Context, number: u64, Arrived { range, piece }: Arrived, now: Instant) {
        let Some(running) = self.running.get_mut(&number) else { return };
        let (drafts, events) = (running.drafts.clone(), self.events.clone());
        let is_queued = context.copiers.run(move || {
            let received = lock(&drafts).as_mut().map(|incoming| incoming.receive(&piece.chunk, &piece.body));
            if let Some(received) = received {
                events.post(Event::Copied(number, range, received));
            }
        });
        if !is_queued {
            let node = &running.source.name.node;
            running.ranges.on_landed(range, false, now, &mut context.budget.of(node));
        }
    }

    /// Ends a transfer that is complete or has failed. Otherwise requests its next ranges.
    fn advance(&mut self, context: &mut Context, number: u64, now: Instant) -> Option<Finished<P>> {
        let running = self.running.get_mut(&number)?;
        let is_creating = !running.is_ready;
        if is_creating && running.is_requested {
            return None;
        }
        match running.ranges.standing(now) {
            _ if is_creating => {}
            Standing::Going => {}
            Standing::Complete => {
                let incoming = lock(&running.drafts).take();
                let client = running.client.clone();
                let outcome = match incoming.map(|incoming| incoming.finish(&client)) {
                    Some(Ok(draft)) => Outcome::Complete(draft),
                    Some(Err(error)) => Outcome::Refused(error.to_string()),
                    None => Outcome::Refused("the drafts are gone".into()),
                };
                return self.finish(context, number, outcome);
            }
            Standing::Stuck => return self.finish(context, number, Outcome::Unreachable),
            Standing::Damaged => {
                let why = "its bytes came damaged again and again".into();
                return self.finish(context, number, Outcome::Refused(why));
            }
        }
        let ranges = running.ranges.fill(now, &mut context.budget.of(&running.source.name.node));
        self.is_starved |= running.ranges.is_held_up();
        running.is_requested |= !ranges.is_empty();
        let Source { kind, name, stamp } = &running.source;
        for range in ranges {
            let settings = &context.settings;
            let what = NameQuestion::Read {
                stamp: *stamp,
                offset: range.offset,
                bytes: range.bytes,
                codecs: settings.packing.codecs(),
                checksum: settings.checksum,
            };
            let (key, events) = (context.key(*kind, name), self.events.clone());
            context.ask_about(key, what, Body::default(), settings.answer_timeout, move |response| {
                events.post_later(Event::Response(number, range, response));
            });
        }
        None
    }

    fn on_response(
        &mut self,
        context: &mut Context,
        number: u64,
        range: Range,
        response: Result<Frame, Trouble>,
        now: Instant,
    ) -> Option<Finished<P>> {
        let running = self.running.get_mut(&number)?;
        let node = running.source.name.node.clone();
        let Ok(frame) = response else {
            context.statistics.troubles += 1;
            running.ranges.on_trouble(range, now, &mut context.budget.of(&node));
            return None;
        };
        match decode::<NameAnswer>(&frame.head) {
            Ok(NameAnswer::Bytes(chunk)) if chunk.offset == range.offset && chunk.bytes == range.bytes => {
                if !running.ranges.on_bytes(range, now) {
                    return None;
                }
                let arrived = Arrived { range, piece: Piece { chunk, body: frame.body } };
                if running.is_ready {
                    self.copy(context, number, arrived, now);
                } else {
                    running.early.push(arrived);
                }
                self.advance(context, number, now)
            }
            Ok(NameAnswer::Superseded(_) | NameAnswer::Nothing) => self.finish(context, number, Outcome::Superseded),
            Ok(NameAnswer::Refused(why)) => self.finish(context, number, Outcome::Refused(why)),
            other => {
                let why = other.map_or_else(|bad| bad.to_string(), |_| "the reply does not fit the request".to_owned());
                context.drop_message(node.as_str(), &why);
                if running.ranges.on_bytes(range, now) {
                    running.ranges.on_landed(range, false, now, &mut context.budget.of(&node));
                }
                self.advance(context, number, now)
            }
        }
    }

    fn on_copied(
        &mut self,
        context: &mut Context,
        number: u64,
        range: Range,
        copied: Result<(), BadChunk>,
        now: Instant,
    ) -> Option<Finished<P>> {
        let running = self.running.get_mut(&number)?;
        let node = &running.source.name.node;
        if let Err(why) = &copied {
            context.statistics.damaged += 1;
            context.drop_message(node.as_str(), why);
        }
        running.ranges.on_landed(range, copied.is_ok(), now, &mut context.budget.of(node));
        self.advance(context, number, now)
    }

    fn finish(&mut self, context: &mut Context, number: u64, outcome: Outcome) -> Option<Finished<P>> {
        let mut running = self.running.remove(&number)?;
        let Source { kind, name, stamp } = &running.source;
        running.ranges.end(&mut context.budget.of(&name.node));
        *lock(&running.drafts) = None;
        if running.is_requested {
            // Report to the other node that it no longer needs to retain the value. The response
            // does not matter.
            let what = NameQuestion::Done { stamp: *stamp };
            let timeout = context.settings.answer_timeout;
            context.ask_about(context.key(*kind, name), what, Body::default(), timeout, drop);
        }
        Some(Finished { purpose: running.purpose, outcome })
    }

    /// Polls all transfers, and returns those that have ended.
    pub fn on_tick(&mut self, context: &mut Context, now: Instant) -> Vec<Finished<P>> {
        // Events advance their transfers. Other transfers advance here, at intervals of [`POLL`],
        // or if one of them waits for bytes that were returned to the budget.
        if now.saturating_duration_since(self.polled) < POLL && !self.is_starved {
            return Vec::new();
        }
        (self.polled, self.is_starved) = (now, false);
        let numbers: Vec<u64> = self.running.keys().copied().collect();
        numbers.into_iter().filter_map(|number| self.advance(context, number, now)).collect()
    }
}

impl<P> Drop for Transfers<P> {
    fn drop(&mut self) {
        for running in self.running.values() {
            *lock(&running.drafts) = None;
        }
    }
}
