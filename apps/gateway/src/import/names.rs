//! Names of other nodes that clients of this machine read.

use super::cache::{Cache, Effect, Failure, Fetch, Position, Ticket, Verdict};
use crate::context::Context;
use crate::key::Kind;
use crate::local::LABEL;
use crate::name::RemoteName;
use crate::runtime::EventSender;
use crate::transfer::{Outcome, Request, Source};
use crate::transport::{Body, Frame, Trouble};
use crate::value::Piece;
use crate::wire::{Changed, Chunk, Descriptor, Epoch, INLINE_BYTES, NameAnswer, NameQuestion, NodeName, Stamp, decode};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::remote::{Placement, RemoteAnswer, RemoteRequest};
use tensorlend::{Call, Lifetime, ValueDraft, Version};

/// Maximum number of names of other nodes in the cache.
const NAMES_MAX: usize = 65_536;
/// Maximum time that a client waits for a response. It exceeds the time of long transfers, which
/// have timeouts of their own.
const ANSWER_MAX: Duration = Duration::from_mins(10);
/// Maximum time of one wait for a new value. A client that waits longer sends another request.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Maximum number of times that a fetch restarts because the value has changed during the transfer.
const RESTARTS_MAX: u32 = 100;

/// The response of another node to a request about a name, or the error instead of a response.
pub struct Event {
    fetch: Fetch,
    response: Result<Frame, Trouble>,
}

/// The purpose of a transfer: the copy of a name.
pub struct CopyOf {
    fetch: Fetch,
    stamp: Stamp,
    bytes: u64,
}

/// A request about a name that has no final response yet.
#[derive(Clone)]
struct Question {
    name: RemoteName,
    /// The stamp of the present copy.
    have: Option<Stamp>,
    /// Number of changes of the value during the fetch.
    restarts: u32,
}

/// Copies of names of other nodes.
pub struct Imports {
    events: EventSender<Event>,
    cache: Cache,
    /// Requests of clients that wait for a response, with their namespaces.
    callers: HashMap<Ticket, (usize, Call)>,
    last_ticket: Ticket,
    questions: HashMap<Fetch, Question>,
}

impl Imports {
    /// Creates the state, with an empty cache.
    pub fn new(context: &Context, events: EventSender<Event>) -> Self {
        let cache = Cache::new(context.settings.cache_bytes, NAMES_MAX);
        Self { events, cache, callers: HashMap::new(), last_ticket: 0, questions: HashMap::new() }
    }

    /// Returns the number of copies and their bytes.
    pub fn size(&self) -> (usize, u64) {
        self.cache.size()
    }

    /// Returns the time of the cache's next deadline.
    pub fn due(&self) -> Option<Instant> {
        self.cache.due()
    }

    /// Responds to all clients that still wait, because the gateway ends.
    pub fn end(&mut self, context: &Context) {
        for (_, (space, call)) in self.callers.drain() {
            context.answer(space, call, &RemoteAnswer::Unreachable);
        }
    }

    /// Handles a client's request about a name.
    pub fn on_asked(&mut self, context: &Context, space: usize, request: RemoteRequest, call: Call, now: Instant) {
        let (RemoteRequest::Get { name } | RemoteRequest::Wait { name, .. } | RemoteRequest::Where { name }) = &request
        else {
            return;
        };
        let asked = match context.imported_name(space, name) {
            Ok(asked) => asked,
            Err(why) => return context.refuse(space, call, why),
        };
        self.revise(context, &asked);
        match request {
            RemoteRequest::Where { .. } => {
                let placed = self.cache.placed(&asked);
                let placement = Placement {
                    alive: context.nodes.is_alive(&asked.node),
                    node: asked.node.to_string(),
                    cached: placed.is_some(),
                    stale: placed.is_some_and(|placed| placed.stale),
                    stamp: placed.map_or_else(String::new, |placed| placed.stamp.to_string()),
                };
                context.answer(space, call, &RemoteAnswer::Where(placement));
            }
            RemoteRequest::Wait { seen, timeout_ms, .. } => {
                let ticket = self.ticket(space, call);
                let until = now + Duration::from_millis(timeout_ms).min(WAIT_MAX);
                let seen = Version::from_words([seen.0, seen.1]);
                let effects = self.cache.on_wait(&asked, seen, ticket, until, now);
                self.apply(context, effects);
            }
            _ => {
                let ticket = self.ticket(space, call);
                let effects = self.cache.on_get(&asked, ticket, now + ANSWER_MAX, now);
                self.apply(context, effects);
            }
        }
    }

    fn ticket(&mut self, space: usize, call: Call) -> Ticket {
        self.last_ticket += 1;
        self.callers.insert(self.last_ticket, (space, call));
        self.last_ticket
    }

    /// Compares the directory with the cache. If a client has deleted or overwritten a copy, the
    /// cache forgets the copy.
    fn revise(&mut self, context: &Context, name: &RemoteName) {
        if let Some(version) = self.cache.version(name) {
            let now = context.client(name.space).version(&name.local());
            if now.is_ok_and(|now| now != Some(version)) {
                self.cache.on_lost(name);
            }
        }
    }

    /// Returns true if the local name of the copy has no value, or a copy as its value.
    fn is_free(&self, context: &Context, name: &RemoteName) -> bool {
        let (client, local) = (context.client(name.space), name.local());
        match client.version(&local) {
            Ok(None) => true,
            Ok(Some(version)) if self.cache.is_ours(name, version) => true,
            // After a restart of the daemon, the version of this gateway's copy may differ. Its publisher is still this
            // process.
            Ok(Some(_)) => client.info(&local).is_ok_and(|info| info.label == LABEL && info.pid == std::process::id()),
            Err(_) => false,
        }
    }

    fn apply(&mut self, context: &Context, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(ticket, verdict) => self.answer(context, ticket, verdict),
                Effect::Delete(name) => {
                    if self.is_free(context, &name)
                        && let Err(error) = context.client(name.space).delete(&name.local())
                    {
                        tracing::warn!(name = name.local(), %error, "a copy could not be deleted");
                    }
                }
                Effect::Ask { name, have, wanted, fetch } => {
                    self.questions.insert(fetch, Question { name, have, restarts: 0 });
                    self.ask(context, fetch, if wanted { INLINE_BYTES } else { 0 });
                }
            }
        }
    }

    fn ask(&self, context: &Context, fetch: Fetch, inline_max: u32) {
        let Some(Question { name, have, .. }) = self.questions.get(&fetch) else { return };
        let what = NameQuestion::Get { have: *have, inline_max };
        let (key, events) = (context.key(Kind::Name, name), self.events.clone());
        context.ask_about(key, what, Body::default(), context.settings.answer_timeout, move |response| {
            events.post_later(Event { fetch, response });
        });
    }

    fn answer(&mut self, context: &Context, ticket: Ticket, verdict: Verdict) {
        let Some((space, call)) = self.callers.remove(&ticket) else { return };
        let answer = match verdict {
            Verdict::Here { stale } => RemoteAnswer::here(stale),
            Verdict::Nothing => RemoteAnswer::Nothing,
            Verdict::Unreachable => RemoteAnswer::Unreachable,
            Verdict::Timeout => RemoteAnswer::Timeout,
            Verdict::Refused(why) => RemoteAnswer::Refused { why },
        };
        context.answer(space, call, &answer);
    }

    /// Handles a node's response about a name, or the error instead of a response. Returns a
    /// request if the value must be fetched.
    pub fn on_event(&mut self, context: &mut Context, event: Event, now: Instant) -> Option<Request<CopyOf>> {
        let Event { fetch, response } = event;
        let Question { name, have, .. } = self.questions.get(&fetch).cloned()?;
        let Ok(frame) = response else {
            context.statistics.troubles += 1;
            self.fail(context, fetch, &Failure::Unreachable, now);
            return None;
        };
        let answer = match decode::<NameAnswer>(&frame.head) {
            Ok(answer) => answer,
            Err(why) => {
                context.drop_message(name.node.as_str(), &why);
                let why = format!("the reply of {} cannot be decoded: {why}", name.node);
                self.fail(context, fetch, &Failure::Refused(why), now);
                return None;
            }
        };
        match answer {
            NameAnswer::Unchanged if have.is_some() => {
                context.statistics.unchanged += 1;
                self.questions.remove(&fetch);
                self.revise(context, &name);
                let effects = self.cache.on_unchanged(fetch, now);
                self.apply(context, effects);
            }
            NameAnswer::Nothing => {
                self.questions.remove(&fetch);
                let effects = self.cache.on_nothing(fetch, now);
                self.apply(context, effects);
            }
            NameAnswer::Refused(why) => {
                let why = format!("{}: {why}", name.node);
                self.fail(context, fetch, &Failure::Refused(why), now);
            }
            NameAnswer::Value { descriptor, stamp, chunk } => {
                let source = Source { kind: Kind::Name, name, stamp };
                return self.on_value(context, fetch, source, descriptor, Piece { chunk, body: frame.body }, now);
            }
            NameAnswer::Unchanged | NameAnswer::Bytes(_) | NameAnswer::Superseded(_) | NameAnswer::Done => {
                let why = "the reply does not fit the request";
                context.drop_message(name.node.as_str(), &why);
                self.fail(context, fetch, &Failure::Refused(why.into()), now);
            }
        }
        None
    }

    /// Handles a value whose first piece has come. Returns a request if a client wants the value.
    fn on_value(
        &mut self,
        context: &mut Context,
        fetch: Fetch,
        source: Source,
        descriptor: Descriptor,
        first: Piece,
        now: Instant,
    ) -> Option<Request<CopyOf>> {
        let (bytes, max) = (descriptor.bytes(), self.cache.bytes_max());
        if let Err(why) = check_value(context, &source.name.node, &descriptor, &first.chunk) {
            context.drop_message(source.name.node.as_str(), &why);
            self.fail(context, fetch, &Failure::Refused(why), now);
            None
        } else if !self.cache.is_wanted(fetch) {
            self.questions.remove(&fetch);
            let effects = self.cache.on_other(fetch, now);
            self.apply(context, effects);
            None
        } else if bytes > max {
            let why = format!("a value of {bytes} bytes; copies may have {max}");
            self.fail(context, fetch, &Failure::Refused(why), now);
            None
        } else {
            Some(Request {
                client: context.client(source.name.space).clone(),
                purpose: CopyOf { fetch, stamp: source.stamp, bytes },
                source,
                descriptor: Arc::new(descriptor),
                first: Some(first),
            })
        }
    }

    fn fail(&mut self, context: &Context, fetch: Fetch, why: &Failure, now: Instant) {
        self.questions.remove(&fetch);
        let effects = self.cache.on_failed(fetch, why, now);
        self.apply(context, effects);
    }

    /// Publishes a copy whose transfer has ended, and responds to the clients that wait for this
    /// copy.
    pub fn on_fetched(&mut self, context: &mut Context, copy: &CopyOf, outcome: Outcome, now: Instant) {
        let fetch = copy.fetch;
        match outcome {
            Outcome::Complete(draft) => self.publish(context, copy, draft, now),
            Outcome::Superseded => {
                let Some(question) = self.questions.get_mut(&fetch) else { return };
                question.restarts += 1;
                if question.restarts > RESTARTS_MAX {
                    let why = "it changes faster than it can be fetched".to_owned();
                    return self.fail(context, fetch, &Failure::Refused(why), now);
                }
                self.ask(context, fetch, INLINE_BYTES);
            }
            Outcome::Unreachable => self.fail(context, fetch, &Failure::Unreachable, now),
            Outcome::Refused(why) => self.fail(context, fetch, &Failure::Refused(why), now),
        }
    }

    fn publish(&mut self, context: &mut Context, copy: &CopyOf, draft: ValueDraft, now: Instant) {
        let CopyOf { fetch, stamp, bytes } = *copy;
        let Some(Question { name, .. }) = self.questions.get(&fetch).cloned() else { return };
        if !self.is_free(context, &name) {
            let why = format!("{:?} is a name that this machine gave to something of its own", name.local());
            return self.fail(context, fetch, &Failure::Refused(why), now);
        }
        // The former copy's name is often still this client's, and ephemeral. Then this takes no request to the daemon.
        match draft.publish_within(&name.local(), Lifetime::EPHEMERAL) {
            Ok(version) => {
                self.questions.remove(&fetch);
                context.statistics.fetched += 1;
                context.statistics.fetched_bytes += bytes;
                let effects = self.cache.on_value(fetch, stamp, version, bytes, now);
                self.apply(context, effects);
            }
            Err(error) => self.fail(context, fetch, &Failure::Refused(error.to_string()), now),
        }
    }

    /// Handles a node's invalidation message.
    pub fn on_changed(
        &mut self,
        context: &mut Context,
        from: &NodeName,
        space: usize,
        changed: &Changed,
        now: Instant,
    ) {
        context.statistics.words_heard += 1;
        let position = Position { epoch: changed.epoch, number: changed.number };
        let (known, effects) = self.cache.on_changed(from, space, position, &changed.names, now);
        if !known {
            context.drop_message(from.as_str(), &"an invalidation of another epoch of it");
        }
        self.apply(context, effects);
    }

    /// Deletes the copy of a value that a client of this machine has replaced on another node.
    pub fn on_put(&mut self, context: &Context, name: &RemoteName, now: Instant) {
        let effects = self.cache.on_put(name, now);
        self.apply(context, effects);
    }

    /// Handles a node that has become reachable.
    pub fn on_node_up(&mut self, context: &Context, node: &NodeName, epoch: Epoch) {
        let effects = self.cache.on_node_up(node, epoch);
        self.apply(context, effects);
    }

    /// Handles a node that cannot be reached any more.
    pub fn on_node_down(&mut self, node: &NodeName) {
        self.cache.on_node_down(node);
    }

    /// Handles the cache's deadlines that have passed.
    pub fn on_tick(&mut self, context: &Context, now: Instant) {
        let effects = self.cache.on_tick(now);
        self.apply(context, effects);
    }
}

/// Checks the origin of a value, and the range of its first piece.
fn check_value(context: &mut Context, node: &NodeName, descriptor: &Descriptor, chunk: &Chunk) -> Result<(), String> {
    if descriptor.origin != *node {
        context.statistics.loops += u64::from(descriptor.origin == *context.nodes.here());
        return Err(format!("a value of {}, from {node}", descriptor.origin));
    }
    if chunk.offset != 0 || u64::from(chunk.bytes) > descriptor.bytes() {
        return Err("bytes that are not of the value".to_owned());
    }
    Ok(())
}
