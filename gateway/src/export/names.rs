//! What others may read of this machine's names, and write.

use super::kept::{Kept, Limits};
use super::promises::{Promises, Word};
use super::stamps::Stamps;
use crate::hub::{Context, Hub};
use crate::import::transfers::{Outcome, Source};
use crate::key::{Key, Kind};
use crate::nodes::Nodes;
use crate::transport::{Body, Frame};
use crate::value::Outgoing;
use crate::wire::{
    AboutName, Asker, CHUNK_BYTES_MAX, Chunk, Codecs, Descriptor, Epoch, NameAnswer, NameQuestion, NodeName, Packing,
    Stamp, encode, words,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::Version;
use tensorlend::remote::{SERVICE, node_name};

/// What is kept for readers.
const KEPT: Limits = Limits { count: 256, bytes: 8 << 30, idle: Duration::from_secs(30) };
/// Names of which one listener is promised a word, at most.
const PROMISES_MAX: usize = 65_536;
/// Listeners, at most.
const LISTENERS_MAX: usize = 4096;
/// Names whose stamps are remembered, at most.
const STAMPS_MAX: usize = 262_144;
/// Offers that are remembered, so that none is taken twice.
const OFFERS_MAX: usize = 1024;

/// How an answer gets back.
pub type Answer = Box<dyn FnOnce(Frame) + Send>;

/// An offer of another node, by who made it and its number.
type Offer = (NodeName, Epoch, u64);

enum Taking {
    /// Its bytes are being fetched; these wait to hear of it.
    Fetching(Vec<Answer>),
    /// Done, with this.
    Done(NameAnswer),
}

/// The exporting side.
pub struct Exports {
    stamps: Stamps,
    promises: Promises,
    kept: Kept<Outgoing>,
    /// What this node offers others: for whom, until they have read it.
    offered: HashMap<(usize, String, Stamp), (NodeName, Outgoing)>,
    takings: HashMap<Offer, Taking>,
    taken: VecDeque<Offer>,
}

impl Exports {
    /// Nothing yet.
    pub fn new(context: &Context) -> Self {
        let epoch = context.asker.epoch;
        Self {
            stamps: Stamps::new(epoch, STAMPS_MAX),
            promises: Promises::new(epoch, PROMISES_MAX, LISTENERS_MAX),
            kept: Kept::new(KEPT),
            offered: HashMap::new(),
            takings: HashMap::new(),
            taken: VecDeque::new(),
        }
    }

    /// Promises, and values that are kept.
    pub fn size(&self) -> (usize, usize) {
        (self.promises.len().1, self.kept.len())
    }

    /// Watched names hold something else.
    pub fn on_moved(&mut self, context: &mut Context, space: usize, names: &[(String, Option<Version>)]) {
        let stamped: Vec<(String, Option<Stamp>)> = names
            .iter()
            .map(|(name, version)| (name.clone(), version.map(|version| self.stamps.of(space, name, version))))
            .collect();
        say(context, self.promises.on_changed(space, &stamped));
    }

    /// A node is there.
    pub fn on_came(&mut self, context: &mut Context, node: &NodeName, epoch: Epoch) {
        say(context, self.promises.on_came(node, epoch));
    }

    /// A node cannot be reached.
    pub fn on_went(&mut self, node: &NodeName) {
        self.promises.on_parted(node);
    }

    /// Time passes.
    pub fn on_tick(&mut self, context: &mut Context, now: Instant) {
        say(context, self.promises.on_tick(now));
        self.kept.on_tick(now);
    }

    /// Keeps a value that is offered to another node, until [`Exports::withdraw`].
    pub fn offer(&mut self, space: usize, name: &str, to: &NodeName, value: Outgoing) -> Stamp {
        let stamp = self.stamps.fresh();
        self.offered.insert((space, name.to_owned(), stamp), (to.clone(), value));
        stamp
    }

    /// An offer was taken, or not.
    pub fn withdraw(&mut self, space: usize, name: &str, stamp: Stamp) {
        self.offered.remove(&(space, name.to_owned(), stamp));
    }
}

/// Whether others may know of a name. What begins with a node's name is a copy, or would be taken for one; what a service or the
/// gateway lays down is nobody else's.
pub fn is_exported(context: &Context, nodes: &Nodes, space: usize, name: &str) -> bool {
    let first = name.split('/').next().unwrap_or_default();
    let of_node = NodeName::new(first).is_ok_and(|node| node == *nodes.here() || nodes.get(&node).is_some());
    let hidden = first == SERVICE || ["/.server/", "/.door/", "/.line/"].iter().any(|part| name.contains(part));
    // Nor what a client here would take for another node's, whoever says so: nobody shall have this gateway ask itself.
    let client = &context.spaces[space].client;
    let of_node =
        name.contains('/') && (of_node || client.version(&node_name(first)).is_ok_and(|known| known.is_some()));
    !hidden && !of_node && context.spaces[space].settings.export.is_match(name)
}

fn say(context: &mut Context, words: Vec<Word>) {
    for word in words {
        context.statistics.words_sent += 1;
        let space = Some(context.settings.spaces[word.space].name.clone());
        let key = Key::Changed { from: Some(context.asker.node.clone()), to: word.to, space };
        context.say(key, Frame { head: encode(&word.changed), body: Body::default() });
    }
}

fn too_many() -> NameAnswer {
    NameAnswer::Refused("too many nodes ask here".into())
}

fn reply(context: &Context, answer: Answer, said: NameAnswer) {
    let frame = Frame { head: encode(&said), body: Body::default() };
    context.senders.run(move || answer(frame));
}

impl Hub {
    /// Another gateway asks about a name.
    pub fn on_name_question(
        &mut self,
        (space, name): (usize, &str),
        about: AboutName,
        body: Body,
        answer: Answer,
        now: Instant,
    ) {
        let AboutName { asker, what } = about;
        if asker.node == *self.nodes.here() {
            self.context.statistics.loops += 1;
            self.context.drop_message(asker.node.as_str(), &"a question that came home");
            return;
        }
        self.context.statistics.answered += 1;
        match what {
            NameQuestion::Get { have, inline_max } => {
                self.on_get((space, name), &asker, have, inline_max, answer, now);
            }
            NameQuestion::Read { stamp, offset, bytes, codecs, checksum } => {
                let Some(value) = self.readable(space, name, stamp, &asker, now) else {
                    let current = self.current(space, name);
                    return reply(&self.context, answer, NameAnswer::Superseded(current));
                };
                if offset.saturating_add(u64::from(bytes)) > value.len() || bytes > CHUNK_BYTES_MAX {
                    let why = format!("{bytes} bytes at {offset}: the value has {}", value.len());
                    return reply(&self.context, answer, NameAnswer::Refused(why));
                }
                self.context.statistics.sent_bytes += u64::from(bytes);
                self.context.senders.run(move || {
                    let (body, element) = value.range(offset, u64::from(bytes));
                    let packing = match codecs {
                        Codecs { zstd: true, .. } => Packing::Zstd,
                        Codecs { lz4: true, .. } => Packing::Lz4,
                        Codecs { .. } => Packing::None,
                    };
                    let (chunk, body) = Chunk::pack(offset, body, element, packing, codecs, checksum);
                    answer(Frame { head: encode(&NameAnswer::Bytes(chunk)), body });
                });
            }
            NameQuestion::Done { stamp } => {
                self.exports.kept.done((space, name, stamp), &asker.node);
                reply(&self.context, answer, NameAnswer::Done);
            }
            NameQuestion::Put { descriptor, stamp, offer, chunk } => {
                self.on_put((space, name), &asker, (descriptor, stamp, offer), (chunk, body), answer);
            }
        }
    }

    fn on_get(
        &mut self,
        (space, name): (usize, &str),
        asker: &Asker,
        have: Option<Stamp>,
        inline_max: u32,
        answer: Answer,
        now: Instant,
    ) {
        if !is_exported(&self.context, &self.nodes, space, name) {
            return reply(&self.context, answer, NameAnswer::Nothing);
        }
        let value = match self.context.spaces[space].client.get_value(name) {
            Ok(value) => value,
            Err(error) if error.is_not_found() => {
                let said = if self.promise(asker, space, name, None, None) { NameAnswer::Nothing } else { too_many() };
                return reply(&self.context, answer, said);
            }
            Err(error) => return reply(&self.context, answer, NameAnswer::Refused(words(&error.to_string()))),
        };
        let version = value.version();
        let stamp = self.exports.stamps.of(space, name, version);
        if !self.promise(asker, space, name, Some(version), Some(stamp)) {
            return reply(&self.context, answer, too_many());
        }
        if have == Some(stamp) {
            return reply(&self.context, answer, NameAnswer::Unchanged);
        }
        let value = match Outgoing::new(value, self.nodes.here().clone()) {
            Ok(value) => value,
            Err(why) => return reply(&self.context, answer, NameAnswer::Refused(words(&why.to_string()))),
        };
        let bytes = u64::from(inline_max).min(value.len());
        if bytes < value.len() {
            self.exports.kept.keep((space, name, stamp), &asker.node, now, value.len(), value.clone());
        }
        self.context.statistics.sent_bytes += bytes;
        let checksum = self.context.settings.checksum;
        self.context.senders.run(move || {
            let (body, element) = value.range(0, bytes);
            let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), checksum);
            let descriptor = Descriptor::clone(value.descriptor());
            answer(Frame { head: encode(&NameAnswer::Value { descriptor, stamp, chunk }), body });
        });
    }

    /// Promises a word, and has the name watched. False: there are too many listeners.
    fn promise(&mut self, asker: &Asker, space: usize, name: &str, seen: Option<Version>, told: Option<Stamp>) -> bool {
        let nodes = &self.nodes;
        self.exports.promises.make_room(&asker.node, |node| nodes.is_alive(node));
        let made = self.exports.promises.promise(asker, space, name, told);
        if made.stands {
            self.context.spaces[space].watch.add(name, seen);
        }
        say(&mut self.context, made.word.into_iter().collect());
        made.stands
    }

    /// The stamp of what a name holds now, for others.
    fn current(&mut self, space: usize, name: &str) -> Option<Stamp> {
        if !is_exported(&self.context, &self.nodes, space, name) {
            return None;
        }
        let version = self.context.spaces[space].client.version(name).ok().flatten()?;
        Some(self.exports.stamps.of(space, name, version))
    }

    /// A value by its stamp: one that is kept, or offered, or what the name still holds.
    fn readable(&mut self, space: usize, name: &str, stamp: Stamp, asker: &Asker, now: Instant) -> Option<Outgoing> {
        if let Some((to, value)) = self.exports.offered.get(&(space, name.to_owned(), stamp)) {
            return (*to == asker.node).then(|| value.clone());
        }
        if !is_exported(&self.context, &self.nodes, space, name) {
            return None;
        }
        let key = (space, name, stamp);
        if let Some(value) = self.exports.kept.get(key, &asker.node, now) {
            return Some(value.clone());
        }
        let value = self.context.spaces[space].client.get_value(name).ok()?;
        if self.exports.stamps.of(space, name, value.version()) != stamp {
            return None;
        }
        let value = Outgoing::new(value, self.nodes.here().clone()).ok()?;
        self.exports.kept.keep(key, &asker.node, now, value.len(), value.clone());
        Some(value)
    }

    /// Another node wants a value to be taken.
    fn on_put(
        &mut self,
        (space, name): (usize, &str),
        asker: &Asker,
        (descriptor, stamp, offer): (Descriptor, Stamp, u64),
        first: (Chunk, Body),
        answer: Answer,
    ) {
        let offer = (asker.node.clone(), asker.epoch, offer);
        match self.exports.takings.get_mut(&offer) {
            Some(Taking::Fetching(waiting)) => {
                // Whoever asked before has given up.
                waiting.clear();
                waiting.push(answer);
                return;
            }
            Some(Taking::Done(said)) => {
                let said = said.clone();
                return reply(&self.context, answer, said);
            }
            None => {}
        }
        let accepted = self.context.spaces[space].settings.accept_put.is_match(name) && self.may_be_put(name);
        if !accepted {
            let why = format!("{name:?} is not to be written from other machines");
            return reply(&self.context, answer, NameAnswer::Refused(words(&why)));
        }
        if descriptor.origin != asker.node {
            self.context.statistics.loops += u64::from(descriptor.origin == *self.nodes.here());
            self.context.drop_message(asker.node.as_str(), &"a value that is another node's");
            return reply(&self.context, answer, NameAnswer::Refused("another node's value".into()));
        }
        if first.0.offset != 0 {
            self.context.drop_message(asker.node.as_str(), &"bytes that are not the first ones");
            return reply(&self.context, answer, NameAnswer::Refused("bytes that are not the first ones".into()));
        }
        if self.exports.takings.len() >= OFFERS_MAX {
            if let Some(oldest) = self.exports.taken.pop_front() {
                self.exports.takings.remove(&oldest);
            } else {
                return reply(&self.context, answer, NameAnswer::Refused("too many values are being taken".into()));
            }
        }
        self.exports.takings.insert(offer.clone(), Taking::Fetching(vec![answer]));
        let source = Source { space, node: asker.node.clone(), kind: Kind::Name, name: name.to_owned(), stamp };
        let client = self.context.spaces[space].puts.clone();
        let name = name.to_owned();
        self.fetch(client, source, Arc::new(descriptor), Some(first), move |hub, _, outcome| {
            let said = match outcome {
                Outcome::Complete(draft) => match draft.publish(&name) {
                    Ok(_) => NameAnswer::Done,
                    Err(error) => NameAnswer::Refused(words(&error.to_string())),
                },
                Outcome::Superseded => NameAnswer::Refused("the offer was withdrawn".into()),
                Outcome::Unreachable => NameAnswer::Refused("what was offered could not be fetched".into()),
                Outcome::Refused(why) => NameAnswer::Refused(words(&why)),
            };
            hub.context.statistics.puts_taken += u64::from(said == NameAnswer::Done);
            if let Some(Taking::Fetching(waiting)) =
                hub.exports.takings.insert(offer.clone(), Taking::Done(said.clone()))
            {
                for answer in waiting {
                    reply(&hub.context, answer, said.clone());
                }
            }
            hub.exports.taken.push_back(offer);
        });
    }

    /// Whether a name can be another node's to write at all.
    fn may_be_put(&self, name: &str) -> bool {
        let first = name.split('/').next().unwrap_or_default();
        let of_node =
            NodeName::new(first).is_ok_and(|node| node == *self.nodes.here() || self.nodes.get(&node).is_some());
        first != SERVICE && !of_node && !["/.server/", "/.door/", "/.line/"].iter().any(|part| name.contains(part))
    }
}
