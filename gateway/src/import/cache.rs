//! Copies of other nodes' values: what lies here, how good it is, who waits for it.
//!
//! No clock, no socket, no bytes: what happens goes in, with the time, and what is to be done comes out. So it can be tested by
//! itself, and simulated with a thousand nodes.
//!
//! ```text
//!                 asked for                     fetched                    changed
//!   nothing  ---------------->  being fetched ----------->  good (promise) --------> bad ---> deleted here, and so nothing
//!                                    ^                        |      ^        \
//!                                    |       node came back   |      |         \  somebody waits: fetched anew, and overwritten
//!                                    +--- stale <-------------+      +----------+
//!                                                 node went
//! ```
//!
//! The one rule: while its node can be reached, what lies in the local directory for longer than [`GRACE`] is good, or is about to be
//! found bad by a word that is on its way. Who asked for a copy that was bad when it came still gets it: it was what the name held after
//! it was asked for. [`GRACE`] is how long it has to take it.

mod doubts;

use crate::name::RemoteName;
use crate::wire::{Epoch, NodeName, Stamp};
use doubts::Doubts;
pub use doubts::REVALIDATED_AT_ONCE;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tensorlend::Version;

/// How long a copy lies in the directory at least, for those who asked for it.
pub const GRACE: Duration = Duration::from_millis(20);
/// A node that could not be asked is asked again so soon, where somebody waits for a new value.
const AGAIN: Duration = Duration::from_millis(500);

/// Who is to be answered.
pub type Ticket = u64;
/// One question to another node.
pub type Fetch = u64;

/// What somebody is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It lies here.
    Here {
        /// It may be old: its node cannot be asked.
        stale: bool,
    },
    /// There is no such name.
    Nothing,
    /// The node cannot be asked, and nothing lies here.
    Unreachable,
    /// Not in time.
    Timeout,
    /// Not so.
    Refused(String),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask what the name holds.
    Ask {
        /// Which.
        name: RemoteName,
        /// What is had of it.
        have: Option<Stamp>,
        /// Whether the value is wanted, if it is another one. Else nobody waits for it: only whether what is had is good.
        wanted: bool,
        /// The question's number.
        fetch: Fetch,
    },
    /// Answer.
    Answer(Ticket, Verdict),
    /// Delete the copy from the local directory.
    Delete(RemoteName),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node cannot be asked.
    Unreachable,
    /// It does not want to, or what it says cannot be used.
    Refused(String),
}

/// A copy in the local directory.
#[derive(Clone, Copy, Debug)]
struct Copy {
    stamp: Stamp,
    version: Version,
    bytes: u64,
    /// Not to be deleted before.
    until: Instant,
    /// Stands for its age: when it was asked for last.
    used: u64,
}

#[derive(Clone, Debug)]
struct Waiter {
    ticket: Ticket,
    until: Instant,
    /// Waits for another value than this; `None`: for any.
    seen: Option<Seen>,
}

/// What a waiter has seen: known by the stamp, if it is known of which value the local version was.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Stamp(Stamp),
    Other,
}

#[derive(Debug, Default)]
struct Entry {
    copy: Option<Copy>,
    /// The copy is what the node holds, as far as it has promised to say otherwise.
    good: bool,
    /// The copy is to be deleted once its grace is over.
    doomed: bool,
    /// A question that is on its way, and whether the value is wanted.
    fetch: Option<(Fetch, bool)>,
    /// Words that came meanwhile.
    words: Vec<Option<Stamp>>,
    /// Its promise may have been lost meanwhile.
    doubted: bool,
    waiters: Vec<Waiter>,
    /// The name was found to be nothing, and the node will say when it is something.
    promised: bool,
    /// To be asked again, since somebody waits.
    again: Option<Instant>,
    /// Which value which local version was: of the copy, or of the last one.
    last: Option<(Stamp, Version)>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.copy.is_none() && self.fetch.is_none() && self.waiters.is_empty()
    }
}

/// How good a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Of which value it is a copy.
    pub stamp: Stamp,
    /// Whether it may be older than what its node has.
    pub stale: bool,
}

/// All copies.
#[derive(Debug)]
pub struct Cache {
    bytes_max: u64,
    names_max: usize,
    entries: HashMap<RemoteName, Entry>,
    /// By node, so that a node that comes or goes costs no more than its own names.
    of_node: HashMap<NodeName, BTreeSet<RemoteName>>,
    alive: HashMap<NodeName, Epoch>,
    doubts: Doubts,
    fetches: HashMap<Fetch, RemoteName>,
    /// Names with something to be done at a time.
    due: BTreeSet<(Instant, RemoteName)>,
    bytes: u64,
    uses: u64,
    numbers: u64,
}

impl Cache {
    /// Nothing; `bytes_max` of copies at most, and `names_max` names.
    pub fn new(bytes_max: u64, names_max: usize) -> Self {
        Self {
            bytes_max,
            names_max: names_max.max(1),
            entries: HashMap::new(),
            of_node: HashMap::new(),
            alive: HashMap::new(),
            doubts: Doubts::default(),
            fetches: HashMap::new(),
            due: BTreeSet::new(),
            bytes: 0,
            uses: 0,
            numbers: 0,
        }
    }

    /// Names known of, and bytes of copies.
    pub fn size(&self) -> (usize, u64) {
        (self.entries.len(), self.bytes)
    }

    /// Bytes that a copy may have.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The local version of a name's copy.
    pub fn version(&self, name: &RemoteName) -> Option<Version> {
        Some(self.entries.get(name)?.copy?.version)
    }

    /// Whether this local version is what was published here for this name.
    pub fn is_ours(&self, name: &RemoteName, version: Version) -> bool {
        self.entries.get(name).is_some_and(|e| e.last.is_some_and(|(_, ours)| ours == version))
    }

    /// How good what lies here is.
    pub fn placed(&self, name: &RemoteName) -> Option<Placed> {
        let entry = self.entries.get(name)?;
        let stale = !entry.good;
        entry.copy.map(|copy| Placed { stamp: copy.stamp, stale })
    }

    /// Somebody wants the newest value.
    pub fn on_get(&mut self, name: &RemoteName, ticket: Ticket, until: Instant, now: Instant) -> Vec<Effect> {
        self.on_asked(name, Waiter { ticket, until, seen: None }, now)
    }

    /// Somebody wants a value other than the one of this local version.
    pub fn on_wait(
        &mut self,
        name: &RemoteName,
        seen: Version,
        ticket: Ticket,
        until: Instant,
        now: Instant,
    ) -> Vec<Effect> {
        let known = self.entries.get(name).and_then(|e| e.last).filter(|(_, version)| *version == seen);
        let seen = Some(known.map_or(Seen::Other, |(stamp, _)| Seen::Stamp(stamp)));
        self.on_asked(name, Waiter { ticket, until, seen }, now)
    }

    fn on_asked(&mut self, name: &RemoteName, waiter: Waiter, now: Instant) -> Vec<Effect> {
        let alive = self.alive.contains_key(&name.node);
        if !self.entries.contains_key(name) && !alive && waiter.seen.is_none() {
            return vec![Effect::Answer(waiter.ticket, Verdict::Unreachable)];
        }
        let mut out = Vec::new();
        if !self.make_room(name, &mut out) {
            out.push(Effect::Answer(waiter.ticket, Verdict::Refused("too many names are being fetched".into())));
            return out;
        }
        self.uses += 1;
        let uses = self.uses;
        let entry = self.entry(name);
        if let Some(copy) = &mut entry.copy {
            (copy.used, copy.until) = (uses, copy.until.max(now + GRACE));
        }
        let satisfied = |copy: &Copy| !matches!(waiter.seen, Some(Seen::Stamp(stamp)) if copy.stamp == stamp);
        match &entry.copy {
            // A wait for a new value goes on while its node is away: it may be back in time.
            Some(copy) if (entry.good || !alive) && satisfied(copy) => {
                out.push(Effect::Answer(waiter.ticket, Verdict::Here { stale: !alive }));
                return out;
            }
            None if !alive && waiter.seen.is_none() => {
                out.push(Effect::Answer(waiter.ticket, Verdict::Unreachable));
                return out;
            }
            _ => {}
        }
        let until = waiter.until;
        entry.waiters.push(waiter);
        self.due.insert((until, name.clone()));
        self.want(name, &mut out);
        out
    }

    /// Asks, if somebody waits for what no promise covers.
    fn want(&mut self, name: &RemoteName, out: &mut Vec<Effect>) {
        let alive = self.alive.contains_key(&name.node);
        let Some(entry) = self.entries.get_mut(name) else { return };
        // Those who want any value were answered if there is a good one; those who want another wait for the promised word.
        let covered = entry.good || (entry.promised && entry.waiters.iter().all(|w| w.seen.is_some()));
        if entry.waiters.is_empty() || covered || !alive || entry.again.is_some() {
            return;
        }
        match &mut entry.fetch {
            // What is asked for already is wanted now.
            Some((_, wanted)) => *wanted = true,
            None => self.ask(name, true, out),
        }
    }

    fn ask(&mut self, name: &RemoteName, wanted: bool, out: &mut Vec<Effect>) {
        self.numbers += 1;
        let fetch = self.numbers;
        let Some(entry) = self.entries.get_mut(name) else { return };
        (entry.fetch, entry.promised, entry.again) = (Some((fetch, wanted)), false, None);
        entry.words.clear();
        entry.doubted = false;
        if !wanted {
            self.doubts.on_asked(fetch);
        }
        self.fetches.insert(fetch, name.clone());
        let have = entry.copy.map(|copy| copy.stamp);
        out.push(Effect::Ask { name: name.clone(), have, wanted, fetch });
    }

    /// Ends a question; `None`: nobody asked so.
    fn end(&mut self, fetch: Fetch) -> Option<RemoteName> {
        self.doubts.on_end(fetch);
        let name = self.fetches.remove(&fetch)?;
        self.entries.get_mut(&name)?.fetch.take()?;
        Some(name)
    }

    /// Whether the value is wanted that a question was answered with. If not, [`Cache::on_other`] says that there is one.
    pub fn is_wanted(&self, fetch: Fetch) -> bool {
        let entry = self.fetches.get(&fetch).and_then(|name| self.entries.get(name));
        entry.is_some_and(|e| e.fetch.is_some_and(|(_, wanted)| wanted) && !e.waiters.is_empty())
    }

    /// The value is here, published under this local version.
    pub fn on_value(&mut self, fetch: Fetch, stamp: Stamp, version: Version, bytes: u64, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.uses += 1;
        let used = self.uses;
        let Some(entry) = self.entries.get_mut(&name) else { return out };
        let before = entry.copy.replace(Copy { stamp, version, bytes, until: now + GRACE, used });
        entry.last = Some((stamp, version));
        self.bytes = self.bytes - before.map_or(0, |copy| copy.bytes) + bytes;
        entry.doomed = false;
        self.settle(&name, now, &mut out);
        self.evict(Some(&name), now, &mut out);
        self.go_on(&mut out);
        out
    }

    /// The name holds what is had of it.
    pub fn on_unchanged(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        if let Some(entry) = self.entries.get_mut(&name) {
            if let Some(copy) = &mut entry.copy {
                copy.until = copy.until.max(now + GRACE);
                entry.doomed = false;
                self.settle(&name, now, &mut out);
            } else {
                // It was deleted meanwhile.
                entry.good = false;
                self.want(&name, &mut out);
            }
        }
        self.go_on(&mut out);
        out
    }

    /// A copy was confirmed, or is new: who waits is answered, if it is good for that.
    fn settle(&mut self, name: &RemoteName, now: Instant, out: &mut Vec<Effect>) {
        let alive = self.alive.get(&name.node).copied();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(copy) = entry.copy else { return };
        // A word that came while the question was on its way is of a later value, unless it says that it is not.
        let later = entry.words.drain(..).any(|word| makes_bad(word, copy.stamp));
        let bad = later || alive.is_some_and(|epoch| epoch != copy.stamp.epoch);
        // A node that was away meanwhile has forgotten what it promised.
        let doubted = std::mem::take(&mut entry.doubted);
        entry.good = !bad && !doubted && alive.is_some();
        entry.promised = false;
        let (stale, good) = (alive.is_none(), entry.good);
        entry.waiters.retain(|waiter| {
            let satisfied = !matches!(waiter.seen, Some(Seen::Stamp(stamp)) if stamp == copy.stamp);
            if satisfied {
                out.push(Effect::Answer(waiter.ticket, Verdict::Here { stale }));
            }
            !satisfied
        });
        if good {
            self.doubts.expect(name, now);
        }
        if bad {
            self.doom(name, now, out);
        } else if doubted {
            self.doubts.push(name.clone());
        }
    }

    /// What lies here is bad: it is fetched anew if somebody waits, and else deleted.
    fn doom(&mut self, name: &RemoteName, now: Instant, out: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.good = false;
        if entry.fetch.is_some() {
            return;
        }
        if !entry.waiters.is_empty() {
            self.want(name, out);
            return;
        }
        let Some(copy) = entry.copy else { return };
        if copy.until <= now {
            self.delete(name, out);
        } else {
            entry.doomed = true;
            self.due.insert((copy.until, name.clone()));
        }
    }

    fn delete(&mut self, name: &RemoteName, out: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(copy) = entry.copy.take() else { return };
        (entry.good, entry.doomed) = (false, false);
        self.bytes -= copy.bytes;
        out.push(Effect::Delete(name.clone()));
    }

    /// The name holds another value than is had, which nobody has waited for when it was asked.
    pub fn on_other(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.doom(&name, now, &mut out);
        self.go_on(&mut out);
        out
    }

    /// There is no such name.
    pub fn on_nothing(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.delete(&name, &mut out);
        if let Some(entry) = self.entries.get_mut(&name) {
            let told = entry.words.drain(..).count() > 0 || std::mem::take(&mut entry.doubted);
            entry.promised = !told && self.alive.contains_key(&name.node);
            let promised = entry.promised;
            entry.waiters.retain(|waiter| {
                if waiter.seen.is_none() {
                    out.push(Effect::Answer(waiter.ticket, Verdict::Nothing));
                }
                waiter.seen.is_some()
            });
            if promised {
                self.doubts.expect(&name, now);
            }
            self.want(&name, &mut out);
        }
        self.go_on(&mut out);
        out
    }

    /// There is no answer.
    pub fn on_failed(&mut self, fetch: Fetch, why: &Failure, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        if let Some(entry) = self.entries.get_mut(&name) {
            let verdict = match why {
                Failure::Unreachable if entry.copy.is_some() => Verdict::Here { stale: true },
                Failure::Unreachable => Verdict::Unreachable,
                Failure::Refused(why) => Verdict::Refused(why.clone()),
            };
            let refused = matches!(why, Failure::Refused(_));
            entry.words.clear();
            entry.waiters.retain(|waiter| {
                let over = waiter.seen.is_none() || refused;
                if over {
                    out.push(Effect::Answer(waiter.ticket, verdict.clone()));
                }
                !over
            });
            if refused {
                self.doom(&name, now, &mut out);
            } else if !entry.waiters.is_empty() || entry.copy.is_some() {
                // A node that is gone is not known to be for a while: what is had of it stays, and is asked for again.
                entry.again = Some(now + AGAIN);
                self.due.insert((now + AGAIN, name.clone()));
            }
        }
        self.go_on(&mut out);
        out
    }

    /// A node is there.
    pub fn on_node_up(&mut self, node: &NodeName, epoch: Epoch) -> Vec<Effect> {
        let mut out = Vec::new();
        let before = self.alive.insert(node.clone(), epoch);
        if before != Some(epoch) {
            self.doubts.on_life(node, epoch);
        }
        self.doubt(node, None, &mut out);
        let names: Vec<RemoteName> = self.of_node.get(node).into_iter().flatten().cloned().collect();
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.again = None;
            }
            self.want(&name, &mut out);
        }
        out
    }

    /// A node cannot be reached: what is had of it is stale, and stays.
    pub fn on_node_down(&mut self, node: &NodeName) {
        self.alive.remove(node);
        for name in self.of_node.get(node).into_iter().flatten() {
            if let Some(entry) = self.entries.get_mut(name) {
                (entry.good, entry.doomed, entry.promised) = (false, false, false);
                if entry.fetch.is_some() {
                    entry.doubted = true;
                }
            }
        }
    }

    /// The copy is not in the local directory any more: somebody has deleted it, or written over it.
    pub fn on_lost(&mut self, name: &RemoteName) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if let Some(copy) = entry.copy.take() {
            (entry.good, entry.doomed) = (false, false);
            self.bytes -= copy.bytes;
        }
    }

    /// A client of this machine has put a value there: what is had is not what the name holds any more.
    pub fn on_put(&mut self, name: &RemoteName, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        self.hear(name, None, now, &mut out);
        // Nobody asked for that copy after the put.
        if let Some(entry) = self.entries.get(name)
            && entry.doomed
        {
            self.delete(name, &mut out);
        }
        out
    }

    /// Time passes.
    pub fn on_tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.due().is_none_or(|due| due > now) {
            return out;
        }
        self.look_for_silence(now, &mut out);
        while let Some((at, name)) = self.due.first().cloned() {
            if at > now {
                break;
            }
            self.due.pop_first();
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            entry.waiters.retain(|waiter| {
                if waiter.until <= now {
                    out.push(Effect::Answer(waiter.ticket, Verdict::Timeout));
                }
                waiter.until > now
            });
            if entry.again.is_some_and(|at| at <= now) {
                entry.again = None;
                if entry.waiters.is_empty() {
                    self.doubts.push(name.clone());
                    self.go_on(&mut out);
                } else {
                    self.want(&name, &mut out);
                }
            }
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let left = entry.doomed && entry.fetch.is_none() && entry.waiters.is_empty();
            if let Some(copy) = entry.copy.filter(|_| left) {
                if copy.until <= now {
                    self.delete(&name, &mut out);
                } else {
                    self.due.insert((copy.until, name));
                }
            }
        }
        self.evict(None, now, &mut out);
        out
    }

    /// When there is something to do by the clock.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at).into_iter().chain(self.doubts.due()).min()
    }

    fn entry(&mut self, name: &RemoteName) -> &mut Entry {
        if !self.entries.contains_key(name) {
            self.of_node.entry(name.node.clone()).or_default().insert(name.clone());
        }
        self.entries.entry(name.clone()).or_default()
    }

    fn forget(&mut self, name: &RemoteName) {
        self.entries.remove(name);
        if let Some(names) = self.of_node.get_mut(&name.node) {
            names.remove(name);
            if names.is_empty() {
                self.of_node.remove(&name.node);
            }
        }
    }

    /// Makes room for one more name; false where all are in use.
    fn make_room(&mut self, name: &RemoteName, out: &mut Vec<Effect>) -> bool {
        if self.entries.contains_key(name) || self.entries.len() < self.names_max {
            return true;
        }
        // A tenth at once, so that it is seldom looked for.
        let mut idle: Vec<RemoteName> =
            self.entries.iter().filter(|(_, e)| e.is_idle()).map(|(name, _)| name.clone()).collect();
        idle.truncate(self.names_max / 10 + 1);
        if idle.is_empty() {
            let oldest = self.entries.iter().filter(|(_, e)| e.fetch.is_none() && e.waiters.is_empty());
            let oldest = oldest.min_by_key(|(_, e)| e.copy.map_or(0, |copy| copy.used)).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return false };
            self.delete(&oldest, out);
            idle.push(oldest);
        }
        for name in idle {
            self.forget(&name);
        }
        true
    }

    /// Deletes the oldest copies until all take no more than they may; never the one that is new. Those that somebody may be about to
    /// take go when their time has come.
    fn evict(&mut self, new: Option<&RemoteName>, now: Instant, out: &mut Vec<Effect>) {
        if self.bytes <= self.bytes_max {
            return;
        }
        let mut old: Vec<(u64, RemoteName)> = self
            .entries
            .iter()
            .filter(|(name, e)| Some(*name) != new && e.fetch.is_none() && e.waiters.is_empty())
            .filter_map(|(name, e)| e.copy.filter(|copy| copy.until <= now).map(|copy| (copy.used, name.clone())))
            .collect();
        old.sort_unstable();
        for (_, name) in old {
            if self.bytes <= self.bytes_max {
                break;
            }
            self.delete(&name, out);
        }
        if self.bytes > self.bytes_max
            && let Some(name) = self.entries.keys().next()
        {
            self.due.insert((now + GRACE, name.clone()));
        }
    }
}

/// Whether a copy is bad once this word was heard.
fn makes_bad(word: Option<Stamp>, have: Stamp) -> bool {
    word.is_none_or(|stamp| stamp.is_after(have) != Some(false))
}

#[cfg(test)]
mod tests;
