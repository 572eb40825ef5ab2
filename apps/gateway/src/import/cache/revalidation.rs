//! Revalidation of copies whose invalidation may have been lost.
//!
//! A lost message appears as a gap in the numbers of a node's invalidations. Or the node is silent,
//! although this node has subscriptions there. The cache then revalidates each copy of that node,
//! at most [`REVALIDATED_AT_ONCE`] at a time.

use super::{Cache, Effect, Fetch, RemoteName, makes_bad};
use crate::wire::{Epoch, HEARTBEAT, NodeName, Stamp};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of copies that are revalidated at the same time.
pub const REVALIDATED_AT_ONCE: usize = 64;
/// Time without a message after which the subscriptions at a node count as lost. The other node
/// sends a message every [`HEARTBEAT`] while this node has subscriptions.
pub(super) const SILENCE: Duration = HEARTBEAT.saturating_mul(3);

/// The position of a message among the invalidations of a node.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pub epoch: Epoch,
    /// Number of the message. Each epoch begins with 1.
    pub number: u64,
}

/// The last message of one node about one namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// Time of the last message, or of the first subscription if no message has arrived. `None`
    /// without a subscription.
    at: Option<Instant>,
    epoch: Option<Epoch>,
    number: u64,
}

/// The nodes from which messages are expected, and the copies to revalidate.
#[derive(Debug, Default)]
pub(super) struct Revalidation {
    /// The last message, by node and namespace.
    heard: HashMap<(NodeName, usize), Heard>,
    /// Time of the next check for silence.
    silence: Option<Instant>,
    /// Copies to revalidate.
    waiting: VecDeque<RemoteName>,
    /// Revalidations in flight: requests for which no client waits.
    asked: HashSet<Fetch>,
}

impl Revalidation {
    /// Notes that messages of the name's node are expected from now on, because this node has subscribed to the name.
    pub(super) fn expect(&mut self, name: &RemoteName, now: Instant) {
        self.heard.entry((name.node.clone(), name.space)).or_default().at.get_or_insert(now);
        self.listen(now);
    }

    /// Notes a message. Returns true if a message before it was lost.
    fn on_message(&mut self, node: &NodeName, space: usize, position: Position, now: Instant) -> bool {
        let Position { epoch, number } = position;
        let heard = self.heard.entry((node.clone(), space)).or_default();
        let expected = if heard.epoch == Some(epoch) { heard.number.wrapping_add(1) } else { 1 };
        *heard = Heard { at: Some(now), epoch: Some(epoch), number };
        self.listen(now);
        number != expected
    }

    /// Notes a node's epoch, and forgets the message numbers of its earlier epochs.
    pub(super) fn on_epoch(&mut self, node: &NodeName, epoch: Epoch) {
        self.heard.retain(|(whose, _), heard| whose != node || heard.epoch == Some(epoch));
    }

    fn listen(&mut self, now: Instant) {
        self.silence.get_or_insert(now + HEARTBEAT);
    }

    /// Returns the nodes and namespaces that have been silent for longer than [`SILENCE`], although
    /// this node has subscriptions there.
    fn silent(&mut self, now: Instant, is_subscribed: impl Fn(&NodeName, usize) -> bool) -> Vec<(NodeName, usize)> {
        let mut silent = Vec::new();
        for ((node, space), heard) in &mut self.heard {
            if heard.at.is_some_and(|at| now.saturating_duration_since(at) >= SILENCE) {
                let subscribed = is_subscribed(node, *space);
                heard.at = subscribed.then_some(now);
                if subscribed {
                    silent.push((node.clone(), *space));
                }
            }
        }
        self.silence = self.heard.values().any(|heard| heard.at.is_some()).then(|| now + HEARTBEAT);
        silent
    }

    /// Returns the time of the next check for silence.
    pub(super) fn due(&self) -> Option<Instant> {
        self.silence
    }

    /// Queues a copy for revalidation.
    pub(super) fn push(&mut self, name: RemoteName) {
        self.waiting.push_back(name);
    }

    /// Returns the next copy to revalidate, unless the limit is reached.
    fn pop(&mut self) -> Option<RemoteName> {
        if self.asked.len() < REVALIDATED_AT_ONCE { self.waiting.pop_front() } else { None }
    }

    /// Counts a revalidation in flight.
    pub(super) fn on_asked(&mut self, fetch: Fetch) {
        self.asked.insert(fetch);
    }

    /// Notes that a request has ended.
    pub(super) fn on_end(&mut self, fetch: Fetch) {
        self.asked.remove(&fetch);
    }
}

impl Cache {
    /// Revalidates the copies of nodes that have been silent for longer than [`SILENCE`].
    pub(super) fn check_silence(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.revalidation.due().is_none_or(|at| at > now) {
            return;
        }
        let (of_node, entries) = (&self.of_node, &self.entries);
        let silent = self.revalidation.silent(now, |node, space| {
            let mut names = of_node.get(node).into_iter().flatten().filter(|name| name.space == space);
            names.any(|name| entries.get(name).is_some_and(|entry| entry.good || entry.subscribed))
        });
        for (node, space) in silent {
            if self.alive.contains_key(&node) {
                self.revalidate(&node, Some(space), out);
            }
        }
    }

    /// Handles a node's invalidation message. Returns false if the message belongs to another epoch
    /// of the node.
    pub fn on_changed(
        &mut self,
        node: &NodeName,
        space: usize,
        position: Position,
        names: &[(String, Option<Stamp>)],
        now: Instant,
    ) -> (bool, Vec<Effect>) {
        let mut out = Vec::new();
        if self.alive.get(node) != Some(&position.epoch) {
            return (false, out);
        }
        let gap = self.revalidation.on_message(node, space, position, now);
        for (name, stamp) in names {
            let name = RemoteName { space, node: node.clone(), name: name.clone() };
            self.on_invalidation(&name, *stamp, now, &mut out);
        }
        if gap {
            self.revalidate(node, Some(space), &mut out);
        }
        (true, out)
    }

    /// Handles a report that a name of a node holds the value with this stamp. `None` means an
    /// unknown value, or no value.
    pub(super) fn on_invalidation(
        &mut self,
        name: &RemoteName,
        stamp: Option<Stamp>,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if entry.fetch.is_some() {
            // The response may be older than the invalidation. `settle` compares the two when the
            // response arrives.
            entry.invalidations.push(stamp);
            if entry.invalidations.len() > 8 {
                // Only the latest invalidations matter. Drop the oldest to limit the queue's
                // length.
                entry.invalidations.remove(0);
            }
            return;
        }
        if std::mem::take(&mut entry.subscribed) {
            self.want(name, out);
        } else if entry.copy.is_some_and(|copy| makes_bad(stamp, copy.stamp)) {
            self.invalidate(name, now, out);
        }
    }

    /// Revalidates the copies of a node whose subscriptions may have been lost.
    pub(super) fn revalidate(&mut self, node: &NodeName, space: Option<usize>, out: &mut Vec<Effect>) {
        let names: Vec<RemoteName> = self.of_node.get(node).into_iter().flatten().cloned().collect();
        for name in names.into_iter().filter(|name| space.is_none_or(|space| name.space == space)) {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            if entry.fetch.is_some() {
                // The subscription of this request may be lost, too.
                entry.unconfirmed = true;
            } else if entry.copy.is_some() {
                (entry.good, entry.invalid) = (false, false);
                self.revalidation.push(name);
            } else if std::mem::take(&mut entry.subscribed) || entry.again.take().is_some() {
                self.want(&name, out);
            }
        }
        self.ask_next(out);
    }

    /// Requests the revalidation of the next queued copies, up to the limit.
    pub(super) fn ask_next(&mut self, out: &mut Vec<Effect>) {
        while let Some(name) = self.revalidation.pop() {
            let alive = self.alive.contains_key(&name.node);
            let Some(entry) = self.entries.get(&name) else { continue };
            if alive && entry.copy.is_some() && !entry.good && entry.fetch.is_none() {
                let wanted = !entry.waiters.is_empty();
                self.ask(&name, wanted, out);
            }
        }
    }
}
