//! What is had and may be bad: promises whose word may have been lost, and copies that are asked for again for that.
//!
//! A word is missed by a gap in the numbers of its node's words, or by a silence of a node that has promised something. Then whatever is had of it
//! is asked for again, some at a time.

use super::{Cache, Effect, Fetch, RemoteName, makes_bad};
use crate::wire::HEARTBEAT;
use crate::wire::{Epoch, NodeName, Stamp};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Copies that are asked for again at once, when a node is back.
pub const REVALIDATED_AT_ONCE: usize = 64;
/// A node that has promised something is heard of every [`HEARTBEAT`]. After so long a silence its promises are not believed.
pub(super) const SILENCE: Duration = HEARTBEAT.saturating_mul(3);

/// What the words of one node came to.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// When the last word came, or since when words are expected; `None`: none are.
    at: Option<Instant>,
    epoch: Option<Epoch>,
    number: u64,
}

/// Who was heard of, and what is to be asked for again.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// By node and namespace.
    heard: HashMap<(NodeName, usize), Heard>,
    /// When to look next who is silent.
    silence: Option<Instant>,
    /// Copies that are to be asked for.
    waiting: VecDeque<RemoteName>,
    /// Questions that nobody waits for.
    asked: HashSet<Fetch>,
}

impl Doubts {
    /// There was a promise about a name: where it stands, something is heard of its node now and then.
    pub(super) fn expect(&mut self, name: &RemoteName, now: Instant) {
        self.heard.entry((name.node.clone(), name.space)).or_default().at.get_or_insert(now);
        self.listen(now);
    }

    /// A word came; whether some before it did not.
    fn on_word(&mut self, node: &NodeName, space: usize, (epoch, number): (Epoch, u64), now: Instant) -> bool {
        let heard = self.heard.entry((node.clone(), space)).or_default();
        let expected = if heard.epoch == Some(epoch) { heard.number.wrapping_add(1) } else { 1 };
        *heard = Heard { at: Some(now), epoch: Some(epoch), number };
        self.listen(now);
        number != expected
    }

    /// A node has another life: its words are counted anew.
    pub(super) fn on_life(&mut self, node: &NodeName, epoch: Epoch) {
        self.heard.retain(|(whose, _), heard| whose != node || heard.epoch == Some(epoch));
    }

    fn listen(&mut self, now: Instant) {
        self.silence.get_or_insert(now + HEARTBEAT);
    }

    /// Of whom nothing was heard for too long, where there `is_promised` something.
    fn silent(&mut self, now: Instant, is_promised: impl Fn(&NodeName, usize) -> bool) -> Vec<(NodeName, usize)> {
        let mut silent = Vec::new();
        for ((node, space), heard) in &mut self.heard {
            if heard.at.is_some_and(|at| now.saturating_duration_since(at) >= SILENCE) {
                let promised = is_promised(node, *space);
                heard.at = promised.then_some(now);
                if promised {
                    silent.push((node.clone(), *space));
                }
            }
        }
        self.silence = self.heard.values().any(|heard| heard.at.is_some()).then(|| now + HEARTBEAT);
        silent
    }

    /// When to look who is silent.
    pub(super) fn due(&self) -> Option<Instant> {
        self.silence
    }

    /// A copy is to be asked for again.
    pub(super) fn push(&mut self, name: RemoteName) {
        self.waiting.push_back(name);
    }

    /// The next one, unless as many are asked for as may be at once.
    fn pop(&mut self) -> Option<RemoteName> {
        if self.asked.len() < REVALIDATED_AT_ONCE { self.waiting.pop_front() } else { None }
    }

    /// A question that nobody waits for is on its way.
    pub(super) fn on_asked(&mut self, fetch: Fetch) {
        self.asked.insert(fetch);
    }

    /// A question has an answer, or has none.
    pub(super) fn on_end(&mut self, fetch: Fetch) {
        self.asked.remove(&fetch);
    }
}

impl Cache {
    /// Nodes that promised something and are silent: the last word, and the one after it, may have been lost.
    pub(super) fn look_for_silence(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if self.doubts.due().is_none_or(|at| at > now) {
            return;
        }
        let (of_node, entries) = (&self.of_node, &self.entries);
        let silent = self.doubts.silent(now, |node, space| {
            let mut names = of_node.get(node).into_iter().flatten().filter(|name| name.space == space);
            names.any(|name| entries.get(name).is_some_and(|entry| entry.good || entry.promised))
        });
        for (node, space) in silent {
            if self.alive.contains_key(&node) {
                self.doubt(&node, Some(space), out);
            }
        }
    }

    /// A word of a node: some of its names hold something else. False: it is not from the life that is known.
    pub fn on_changed(
        &mut self,
        node: &NodeName,
        space: usize,
        (epoch, number): (Epoch, u64),
        names: &[(String, Option<Stamp>)],
        now: Instant,
    ) -> (bool, Vec<Effect>) {
        let mut out = Vec::new();
        if self.alive.get(node) != Some(&epoch) {
            return (false, out);
        }
        let gap = self.doubts.on_word(node, space, (epoch, number), now);
        for (name, word) in names {
            let name = RemoteName { space, node: node.clone(), name: name.clone() };
            self.hear(&name, *word, now, &mut out);
        }
        if gap {
            self.doubt(node, Some(space), &mut out);
        }
        (true, out)
    }

    pub(super) fn hear(&mut self, name: &RemoteName, word: Option<Stamp>, now: Instant, out: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if entry.fetch.is_some() {
            // The answer may be older than the word: judged when it is here.
            entry.words.push(word);
            if entry.words.len() > 8 {
                // Of several words the last is enough.
                entry.words.remove(0);
            }
            return;
        }
        if std::mem::take(&mut entry.promised) {
            self.want(name, out);
        } else if entry.copy.is_some_and(|copy| makes_bad(word, copy.stamp)) {
            self.doom(name, now, out);
        }
    }

    /// Promises of a node may have been lost: whatever is had of it is asked for again.
    pub(super) fn doubt(&mut self, node: &NodeName, space: Option<usize>, out: &mut Vec<Effect>) {
        let names: Vec<RemoteName> = self.of_node.get(node).into_iter().flatten().cloned().collect();
        for name in names.into_iter().filter(|name| space.is_none_or(|space| name.space == space)) {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            if entry.fetch.is_some() {
                // Its promise may be one of those.
                entry.doubted = true;
            } else if entry.copy.is_some() {
                (entry.good, entry.doomed) = (false, false);
                self.doubts.push(name);
            } else if std::mem::take(&mut entry.promised) || entry.again.take().is_some() {
                self.want(&name, out);
            }
        }
        self.go_on(out);
    }

    /// Asks for more of what is in doubt.
    pub(super) fn go_on(&mut self, out: &mut Vec<Effect>) {
        while let Some(name) = self.doubts.pop() {
            let alive = self.alive.contains_key(&name.node);
            let Some(entry) = self.entries.get(&name) else { continue };
            if alive && entry.copy.is_some() && !entry.good && entry.fetch.is_none() {
                let wanted = !entry.waiters.is_empty();
                self.ask(&name, wanted, out);
            }
        }
    }
}
