//! Names of others, for clients of this machine.

use super::cache::{Cache, Effect, Failure, Fetch, RemoteName, Ticket, Verdict};
use super::transfers::{Outcome, Source};
use crate::hub::{Context, Hub};
use crate::key::Kind;
use crate::local::{self, LABEL};
use crate::transport::{Body, Frame, Trouble};
use crate::wire::{Changed, Epoch, NameAnswer, NameQuestion, NodeName, Stamp, decode};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::remote::{Placement, RemoteAnswer, RemoteRequest, split};
use tensorlend::{Call, Lifetime};

/// Bytes of a value that come with the answer that says what it is.
pub(super) const INLINE_BYTES: u32 = 64 << 10;
/// Names of others that are known, at most.
const NAMES_MAX: usize = 65_536;
/// How long a client is waited for with an answer at most. Transfers give up by themselves.
const ANSWER_MAX: Duration = Duration::from_mins(10);
/// How long one wait for a new value is answered by a timeout at the latest: who still wants it asks again.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How often a value that changes while it is fetched is begun anew.
const AGAIN_MAX: u32 = 100;

/// The importing side.
pub struct Imports {
    /// What lies here.
    pub cache: Cache,
    asking: HashMap<Ticket, (usize, Call)>,
    tickets: Ticket,
    /// What was said to be had, by question.
    had: HashMap<Fetch, (RemoteName, Option<Stamp>, u32)>,
    pub(super) offers: u64,
}

impl Imports {
    /// Nothing yet.
    pub fn new(context: &Context) -> Self {
        let cache = Cache::new(context.settings.cache_bytes, NAMES_MAX);
        Self { cache, asking: HashMap::new(), tickets: 0, had: HashMap::new(), offers: 0 }
    }

    /// Nobody is answered any more.
    pub fn end(&mut self, context: &Context) {
        for (_, (space, call)) in self.asking.drain() {
            local::answer(&context.spaces[space].client, call, &RemoteAnswer::Unreachable);
        }
    }
}

/// A name of another machine, as a client says it.
pub(super) fn remote_name(space: usize, name: &str) -> Result<RemoteName, String> {
    let (node, rest) = split(name).ok_or_else(|| format!("{name:?} is no name of another machine: NODE/NAME"))?;
    let node = NodeName::new(node).map_err(|bad| bad.to_string())?;
    Ok(RemoteName { space, node, name: rest.to_owned() })
}

impl Hub {
    /// A client of this machine asks about a name.
    pub fn on_name_asked(&mut self, space: usize, request: RemoteRequest, call: Call, now: Instant) {
        let (RemoteRequest::Get { name } | RemoteRequest::Wait { name, .. } | RemoteRequest::Where { name }) = &request
        else {
            return;
        };
        let refuse = |hub: &Hub, call, why| {
            local::answer(&hub.context.spaces[space].client, call, &RemoteAnswer::Refused { why });
        };
        let asked = match remote_name(space, name) {
            Ok(asked) => asked,
            Err(why) => return refuse(self, call, why),
        };
        if asked.node == *self.nodes.here() {
            return refuse(self, call, format!("{} is this machine: leave its name out", asked.node));
        }
        if !self.context.spaces[space].settings.import.is_match(name) {
            return refuse(self, call, format!("this machine's gateway does not import {name:?}"));
        }
        self.look_after(&asked);
        match request {
            RemoteRequest::Where { .. } => {
                let placed = self.imports.cache.placed(&asked);
                let placement = Placement {
                    alive: self.nodes.is_alive(&asked.node),
                    node: asked.node.to_string(),
                    cached: placed.is_some(),
                    stale: placed.is_some_and(|placed| placed.stale),
                    stamp: placed.map_or_else(String::new, |placed| placed.stamp.to_string()),
                };
                local::answer(&self.context.spaces[space].client, call, &RemoteAnswer::Where(placement));
            }
            RemoteRequest::Wait { seen, timeout_ms, .. } => {
                let ticket = self.ticket(space, call);
                let until = now + Duration::from_millis(timeout_ms).min(WAIT_MAX);
                let seen = tensorlend::Version::from_words([seen.0, seen.1]);
                let effects = self.imports.cache.on_wait(&asked, seen, ticket, until, now);
                self.import(effects);
            }
            _ => {
                let ticket = self.ticket(space, call);
                let effects = self.imports.cache.on_get(&asked, ticket, now + ANSWER_MAX, now);
                self.import(effects);
            }
        }
    }

    fn ticket(&mut self, space: usize, call: Call) -> Ticket {
        self.imports.tickets += 1;
        self.imports.asking.insert(self.imports.tickets, (space, call));
        self.imports.tickets
    }

    /// Whether a copy still lies where it was published: a client may have deleted it, or written over it.
    fn look_after(&mut self, name: &RemoteName) {
        if let Some(version) = self.imports.cache.version(name) {
            let now = self.context.spaces[name.space].client.version(&name.local());
            if now.is_ok_and(|now| now != Some(version)) {
                self.imports.cache.on_lost(name);
            }
        }
    }

    /// Whether nothing of somebody else's lies under a copy's name.
    fn is_free(&self, name: &RemoteName) -> bool {
        let (client, local) = (&self.context.spaces[name.space].client, name.local());
        match client.version(&local) {
            Ok(None) => true,
            Ok(Some(version)) if self.imports.cache.is_ours(name, version) => true,
            // After a daemon has replaced another, what is ours may have another version.
            Ok(Some(_)) => client.info(&local).is_ok_and(|info| info.label == LABEL && info.pid == std::process::id()),
            Err(_) => false,
        }
    }

    /// Does what the cache wants.
    pub(super) fn import(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(ticket, verdict) => self.verdict(ticket, verdict),
                Effect::Delete(name) => {
                    if self.is_free(&name)
                        && let Err(error) = self.context.spaces[name.space].client.delete(&name.local())
                    {
                        tracing::warn!(name = name.local(), %error, "a copy could not be deleted");
                    }
                }
                Effect::Ask { name, have, wanted, fetch } => {
                    self.imports.had.insert(fetch, (name, have, 0));
                    self.ask_name(fetch, if wanted { INLINE_BYTES } else { 0 });
                }
            }
        }
    }

    fn ask_name(&mut self, fetch: Fetch, inline_max: u32) {
        let Some((name, have, _)) = self.imports.had.get(&fetch).cloned() else { return };
        let what = NameQuestion::Get { have, inline_max };
        let source = Source {
            space: name.space,
            node: name.node,
            kind: Kind::Name,
            name: name.name,
            stamp: Stamp { epoch: Epoch(0), counter: 0 },
        };
        let timeout = self.context.settings.answer_timeout;
        self.ask_about(&source, what, Body::default(), timeout, move |hub, now, answer| {
            hub.on_name_answer(fetch, answer, now);
        });
    }

    fn verdict(&mut self, ticket: Ticket, verdict: Verdict) {
        let Some((space, call)) = self.imports.asking.remove(&ticket) else { return };
        let said = match verdict {
            Verdict::Here { stale } => RemoteAnswer::Here { stale },
            Verdict::Nothing => RemoteAnswer::Nothing,
            Verdict::Unreachable => RemoteAnswer::Unreachable,
            Verdict::Timeout => RemoteAnswer::Timeout,
            Verdict::Refused(why) => RemoteAnswer::Refused { why },
        };
        local::answer(&self.context.spaces[space].client, call, &said);
    }

    fn on_name_answer(&mut self, fetch: Fetch, answer: Result<Frame, Trouble>, now: Instant) {
        let Some((name, have, _)) = self.imports.had.get(&fetch).cloned() else { return };
        let Ok(frame) = answer else {
            self.context.statistics.troubles += 1;
            return self.failed(fetch, &Failure::Unreachable, now);
        };
        let said = match decode::<NameAnswer>(&frame.head) {
            Ok(said) => said,
            Err(why) => {
                self.context.drop_message(name.node.as_str(), &why);
                let why = format!("what {} says cannot be read: {why}", name.node);
                return self.failed(fetch, &Failure::Refused(why), now);
            }
        };
        match said {
            NameAnswer::Unchanged if have.is_some() => {
                self.context.statistics.unchanged += 1;
                self.imports.had.remove(&fetch);
                self.look_after(&name);
                let effects = self.imports.cache.on_unchanged(fetch, now);
                self.import(effects);
            }
            NameAnswer::Nothing => {
                self.imports.had.remove(&fetch);
                let effects = self.imports.cache.on_nothing(fetch, now);
                self.import(effects);
            }
            NameAnswer::Refused(why) => {
                let why = format!("{}: {why}", name.node);
                self.failed(fetch, &Failure::Refused(why), now);
            }
            NameAnswer::Value { descriptor, stamp, chunk } => {
                let total = descriptor.bytes();
                let wrong = if descriptor.origin != name.node {
                    self.context.statistics.loops += u64::from(descriptor.origin == *self.nodes.here());
                    Some(format!("a value of {}, from {}", descriptor.origin, name.node))
                } else if chunk.offset != 0 || u64::from(chunk.bytes) > total {
                    Some("bytes that are not of the value".to_owned())
                } else {
                    None
                };
                if let Some(why) = wrong {
                    self.context.drop_message(name.node.as_str(), &why);
                    return self.failed(fetch, &Failure::Refused(why), now);
                }
                if !self.imports.cache.is_wanted(fetch) {
                    self.imports.had.remove(&fetch);
                    let effects = self.imports.cache.on_other(fetch, now);
                    return self.import(effects);
                }
                if total > self.imports.cache.bytes_max() {
                    let max = self.imports.cache.bytes_max();
                    let why = format!("a value of {total} bytes; copies may have {max}");
                    return self.failed(fetch, &Failure::Refused(why), now);
                }
                let source = Source { space: name.space, node: name.node, kind: Kind::Name, name: name.name, stamp };
                let client = self.context.spaces[source.space].client.clone();
                self.fetch(
                    client,
                    source,
                    Arc::new(descriptor),
                    Some((chunk, frame.body)),
                    move |hub, now, outcome| {
                        hub.on_fetched(fetch, stamp, total, outcome, now);
                    },
                );
            }
            NameAnswer::Unchanged | NameAnswer::Bytes(_) | NameAnswer::Superseded(_) | NameAnswer::Done => {
                let why = "not an answer to what was asked";
                self.context.drop_message(name.node.as_str(), &why);
                self.failed(fetch, &Failure::Refused(why.into()), now);
            }
        }
    }

    fn failed(&mut self, fetch: Fetch, why: &Failure, now: Instant) {
        self.imports.had.remove(&fetch);
        let effects = self.imports.cache.on_failed(fetch, why, now);
        self.import(effects);
    }

    fn on_fetched(&mut self, fetch: Fetch, stamp: Stamp, bytes: u64, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Complete(draft) => {
                let Some((name, _, _)) = self.imports.had.get(&fetch).cloned() else { return };
                if !self.is_free(&name) {
                    let why = format!("{:?} is a name that this machine gave to something of its own", name.local());
                    return self.failed(fetch, &Failure::Refused(why), now);
                }
                match draft.publish_for(&name.local(), Lifetime::EPHEMERAL) {
                    Ok(version) => {
                        self.imports.had.remove(&fetch);
                        self.context.statistics.fetched += 1;
                        self.context.statistics.fetched_bytes += bytes;
                        let effects = self.imports.cache.on_value(fetch, stamp, version, bytes, now);
                        self.import(effects);
                    }
                    Err(error) => self.failed(fetch, &Failure::Refused(error.to_string()), now),
                }
            }
            Outcome::Superseded => {
                let Some((_, _, times)) = self.imports.had.get_mut(&fetch) else { return };
                *times += 1;
                if *times > AGAIN_MAX {
                    let why = "it changes faster than it can be fetched".to_owned();
                    return self.failed(fetch, &Failure::Refused(why), now);
                }
                self.ask_name(fetch, INLINE_BYTES);
            }
            Outcome::Unreachable => self.failed(fetch, &Failure::Unreachable, now),
            Outcome::Refused(why) => self.failed(fetch, &Failure::Refused(why), now),
        }
    }

    /// A node says that names of it hold something else.
    pub fn on_changed(&mut self, from: &NodeName, space: usize, changed: &Changed, now: Instant) {
        self.context.statistics.words_heard += 1;
        let numbers = (changed.epoch, changed.number);
        let (known, effects) = self.imports.cache.on_changed(from, space, numbers, &changed.names, now);
        if !known {
            self.context.drop_message(from.as_str(), &"a word from another life of it");
        }
        self.import(effects);
    }

    /// A node is there.
    pub fn imports_came(&mut self, node: &NodeName, epoch: Epoch) {
        let effects = self.imports.cache.on_came(node, epoch);
        self.import(effects);
    }

    /// Time passes.
    pub fn imports_tick(&mut self, now: Instant) {
        let effects = self.imports.cache.on_tick(now);
        self.import(effects);
    }
}
