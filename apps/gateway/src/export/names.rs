//! Names of this machine that other nodes read.

use super::invalidation::{Invalidation, Subscriptions};
use super::retained::{Limits, Retained, Stamped};
use super::stamps::Stamps;
use crate::context::Context;
use crate::key::Key;
use crate::name::RemoteName;
use crate::transport::{Answer, Frame};
use crate::value::Outgoing;
use crate::wire::{
    Asker, CHUNK_BYTES_MAX, Chunk, Codecs, Descriptor, Epoch, NameAnswer, NodeName, Packing, Stamp, encode, words,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tensorlend::Version;

/// Limits of the values that are retained for readers.
const RETAINED: Limits = Limits { count: 256, bytes: 8 << 30, idle: Duration::from_secs(30) };
/// Maximum number of names to which one node is subscribed.
const SUBSCRIPTIONS_MAX: usize = 65_536;
const SUBSCRIBERS_MAX: usize = 4096;
/// Maximum number of names whose stamps this gateway remembers.
const STAMPS_MAX: usize = 262_144;

/// The subject and the sender of a request of another node.
#[derive(Clone, Copy)]
pub struct Asked<'q> {
    /// Index of the namespace.
    pub space: usize,
    /// The name that the other node requests.
    pub name: &'q str,
    /// The requesting gateway: its node and epoch.
    pub asker: &'q Asker,
}

/// A range of a value's bytes that another node requests.
pub struct Part {
    pub stamp: Stamp,
    /// Offset of the first byte.
    pub offset: u64,
    pub bytes: u32,
    /// Codecs that the asker accepts.
    pub codecs: Codecs,
    /// Whether the asker requests a checksum.
    pub checksum: bool,
}

impl Part {
    /// Returns the bytes of this part, encoded.
    pub fn pack(&self, value: &Outgoing) -> Frame {
        let (body, element) = value.range(self.offset, u64::from(self.bytes));
        let packing = match self.codecs {
            Codecs { zstd: true, .. } => Packing::Zstd,
            Codecs { lz4: true, .. } => Packing::Lz4,
            Codecs { .. } => Packing::None,
        };
        let (chunk, body) = Chunk::pack(self.offset, body, element, packing, self.codecs, self.checksum);
        Frame { head: encode(&NameAnswer::Bytes(chunk)), body }
    }

    pub fn is_within(&self, value: &Outgoing) -> bool {
        self.offset.saturating_add(u64::from(self.bytes)) <= value.len()
    }
}

/// The stamps, subscriptions and retained values of names that other nodes read.
pub struct Exports {
    stamps: Stamps,
    subscriptions: Subscriptions,
    retained: Retained<Outgoing>,
    /// Values that this machine offers to other nodes, by their name on the other node and their
    /// stamp on this one.
    offered: HashMap<(RemoteName, Stamp), Outgoing>,
}

impl Exports {
    /// Makes the state without subscriptions and retained values.
    pub fn new(context: &Context) -> Self {
        let epoch = context.asker.epoch;
        Self {
            stamps: Stamps::new(epoch, STAMPS_MAX),
            subscriptions: Subscriptions::new(epoch, SUBSCRIPTIONS_MAX, SUBSCRIBERS_MAX),
            retained: Retained::new(RETAINED),
            offered: HashMap::new(),
        }
    }

    /// Returns the number of subscriptions, and of retained values.
    pub fn size(&self) -> (usize, usize) {
        (self.subscriptions.len().1, self.retained.len())
    }

    /// Sends invalidation messages for watched names that have changed.
    pub fn on_changed(&mut self, context: &mut Context, space: usize, names: &[(String, Option<Version>)]) {
        let stamped: Vec<(String, Option<Stamp>)> = names
            .iter()
            .map(|(name, version)| (name.clone(), version.map(|version| self.stamps.of(space, name, version))))
            .collect();
        notify(context, self.subscriptions.on_changed(space, &stamped));
    }

    /// Sends the invalidation messages that a returning node has missed.
    pub fn on_node_up(&mut self, context: &mut Context, node: &NodeName, epoch: Epoch) {
        notify(context, self.subscriptions.on_node_up(node, epoch));
    }

    /// Drops the subscriptions of a node that has become unreachable.
    pub fn on_node_down(&mut self, node: &NodeName) {
        self.subscriptions.on_node_down(node);
    }

    /// Sends the invalidation messages that are due, and releases idle values.
    pub fn on_tick(&mut self, context: &mut Context, now: Instant) {
        notify(context, self.subscriptions.on_tick(now));
        self.retained.on_tick(now);
    }

    /// Holds a value that is offered to another node, until [`Exports::withdraw`].
    pub fn offer(&mut self, name: &RemoteName, value: Outgoing) -> Stamp {
        let stamp = self.stamps.fresh();
        self.offered.insert((name.clone(), stamp), value);
        stamp
    }

    /// Ends an offer, and releases its value.
    pub fn withdraw(&mut self, name: &RemoteName, stamp: Stamp) {
        self.offered.remove(&(name.clone(), stamp));
    }

    /// Handles another node's request for the value of a name. `have` is the stamp of that node's
    /// copy. If the value differs from this copy, the response contains the value's first bytes, at
    /// most `inline_max`.
    pub fn on_get(
        &mut self,
        context: &mut Context,
        asked: Asked<'_>,
        have: Option<Stamp>,
        inline_max: u32,
        answer: Answer,
        now: Instant,
    ) {
        let Asked { space, name, asker } = asked;
        if !context.is_exported(space, name) {
            return context.reply(answer, NameAnswer::Nothing);
        }
        let value = match context.client(space).get_value(name) {
            Ok(value) => value,
            Err(error) if error.is_not_found() => {
                let is_subscribed = self.subscribe(context, asked, None, None);
                return context.reply(answer, if is_subscribed { NameAnswer::Nothing } else { too_many() });
            }
            Err(error) => return context.reply(answer, NameAnswer::Refused(words(&error.to_string()))),
        };
        let version = value.version();
        let stamp = self.stamps.of(space, name, version);
        if !self.subscribe(context, asked, Some(version), Some(stamp)) {
            return context.reply(answer, too_many());
        }
        if have == Some(stamp) {
            return context.reply(answer, NameAnswer::Unchanged);
        }
        let value = match Outgoing::new(value, context.nodes.here().clone()) {
            Ok(value) => value,
            Err(why) => return context.reply(answer, NameAnswer::Refused(words(&why.to_string()))),
        };
        let bytes = u64::from(inline_max).min(value.len());
        if bytes < value.len() {
            self.retained.insert(Stamped { space, name, stamp }, &asker.node, now, value.len(), value.clone());
        }
        context.statistics.sent_bytes += bytes;
        let checksum = context.settings.checksum;
        context.defer(move || {
            let (body, element) = value.range(0, bytes);
            let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), checksum);
            let descriptor = Descriptor::clone(value.descriptor());
            answer(Frame { head: encode(&NameAnswer::Value { descriptor, stamp, chunk }), body });
        });
    }

    /// Handles another node's request for a part of a value.
    pub fn on_read(&mut self, context: &mut Context, asked: Asked<'_>, part: Part, answer: Answer, now: Instant) {
        let Some(value) = self.readable(context, asked, part.stamp, now) else {
            let current = self.current(context, asked.space, asked.name);
            return context.reply(answer, NameAnswer::Superseded(current));
        };
        if !part.is_within(&value) || part.bytes > CHUNK_BYTES_MAX {
            let why = format!("{} bytes at {}: the value has {}", part.bytes, part.offset, value.len());
            return context.reply(answer, NameAnswer::Refused(why));
        }
        context.statistics.sent_bytes += u64::from(part.bytes);
        context.senders.run(move || answer(part.pack(&value)));
    }

    /// Handles another node's report that it has finished reading a value.
    pub fn on_done(&mut self, space: usize, name: &str, stamp: Stamp, asker: &Asker) {
        self.retained.remove_reader(Stamped { space, name, stamp }, &asker.node);
    }

    /// Subscribes a node to the next change of a name, and watches the name. Returns false if too many nodes are
    /// subscribed.
    fn subscribe(
        &mut self,
        context: &mut Context,
        Asked { space, name, asker }: Asked<'_>,
        seen: Option<Version>,
        told: Option<Stamp>,
    ) -> bool {
        let nodes = &context.nodes;
        self.subscriptions.make_room(&asker.node, |node| nodes.is_alive(node));
        let subscribed = self.subscriptions.subscribe(asker, space, name, told);
        if subscribed.is_accepted {
            context.spaces[space].watch.add(name, seen);
        }
        notify(context, subscribed.evicted.into_iter().collect());
        subscribed.is_accepted
    }

    /// Returns the stamp of the value that a name holds now.
    fn current(&mut self, context: &Context, space: usize, name: &str) -> Option<Stamp> {
        if !context.is_exported(space, name) {
            return None;
        }
        let version = context.client(space).version(name).ok().flatten()?;
        Some(self.stamps.of(space, name, version))
    }

    /// Returns the value with this stamp if this machine offers or retains it, or if it is the current value of the
    /// name.
    fn readable(
        &mut self,
        context: &Context,
        Asked { space, name, asker }: Asked<'_>,
        stamp: Stamp,
        now: Instant,
    ) -> Option<Outgoing> {
        let offer = RemoteName { space, node: asker.node.clone(), name: name.to_owned() };
        if let Some(value) = self.offered.get(&(offer, stamp)) {
            return Some(value.clone());
        }
        if !context.is_exported(space, name) {
            return None;
        }
        let key = Stamped { space, name, stamp };
        if let Some(value) = self.retained.get(key, &asker.node, now) {
            return Some(value.clone());
        }
        let value = context.client(space).get_value(name).ok()?;
        if self.stamps.of(space, name, value.version()) != stamp {
            return None;
        }
        let value = Outgoing::new(value, context.nodes.here().clone()).ok()?;
        self.retained.insert(key, &asker.node, now, value.len(), value.clone());
        Some(value)
    }
}

fn notify(context: &mut Context, invalidations: Vec<Invalidation>) {
    for invalidation in invalidations {
        context.statistics.words_sent += 1;
        let space = Some(context.settings.spaces[invalidation.space].name.clone());
        let key = Key::Changed { from: Some(context.asker.node.clone()), to: invalidation.to, space };
        context.notify(key, &invalidation.changed);
    }
}

fn too_many() -> NameAnswer {
    NameAnswer::Refused("too many nodes ask here".into())
}
