//! The cache of other nodes' values: which copies exist, which of them are valid, and which clients wait for one.
//!
//! This is a pure state machine without clock, socket or tensor bytes. Each method takes an event and the time, and
//! returns effects. So a test can simulate a thousand nodes.
//!
//! ```text
//!                 asked for                     fetched                    changed
//!   nothing  ---------------->  being fetched ----------->  good (subscribed) --------> bad ---> deleted here, and so nothing
//!                                    ^                        |      ^        \
//!                                    |       node came back   |      |         \  a client waits: fetched again, and overwritten
//!                                    +--- stale <-------------+      +----------+
//!                                                 node went
//! ```
//!
//! Invariant, while a node can be reached: each copy that has been in the local directory for longer than [`GRACE`] is
//! valid, or its invalidation is in flight. A copy may be invalid already when it arrives. Clients that requested it
//! before still get it, because the name held that value after their requests. [`GRACE`] is the time that they have to
//! lease it.

mod check;
mod eviction;
mod revalidation;

use crate::name::RemoteName;
use crate::wire::{Epoch, NodeName, Stamp};
use revalidation::Revalidation;
pub use revalidation::{Position, REVALIDATED_AT_ONCE};
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tensorlend::Version;

/// Minimum time that a copy stays in the directory, so that the clients that requested it can lease it.
pub const GRACE: Duration = Duration::from_millis(20);
/// Delay before a failed request is repeated, if a client waits for a new value.
const AGAIN: Duration = Duration::from_millis(500);

/// The number of a client's request that waits for a response.
pub type Ticket = u64;
/// The number of a request to another node.
pub type Fetch = u64;

/// The response to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The directory has a copy.
    Here {
        /// True if the node cannot be reached, so that the copy may be out of date.
        stale: bool,
    },
    /// The node has no such name.
    Nothing,
    /// The node cannot be reached, and the directory has no copy.
    Unreachable,
    /// The client's timeout passed first.
    Timeout,
    /// The request was refused, for this reason.
    Refused(String),
}

/// An action that the caller of the cache must perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Request the value of a name from its node.
    Ask {
        name: RemoteName,
        /// Stamp of the present copy.
        have: Option<Stamp>,
        /// True if a client waits for the value. The node then sends a value that differs from the copy. False for a
        /// mere revalidation.
        wanted: bool,
        /// The request's number.
        fetch: Fetch,
    },
    /// Respond to the request of a client.
    Answer(Ticket, Verdict),
    /// Delete the copy from the local directory.
    Delete(RemoteName),
}

/// The reason why a request to another node has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node cannot be reached.
    Unreachable,
    /// The node refuses, or its response is invalid.
    Refused(String),
}

/// A copy in the local directory.
#[derive(Clone, Copy, Debug)]
struct Copy {
    stamp: Stamp,
    version: Version,
    bytes: u64,
    /// Time before which the copy is not deleted.
    until: Instant,
    /// Number of the copy's last use. The least recently used copies are deleted first.
    used: u64,
}

#[derive(Clone, Debug)]
struct Waiter {
    ticket: Ticket,
    until: Instant,
    /// The value that the client has seen, if it waits for a different one. `None` accepts any value.
    seen: Option<Seen>,
}

/// The value that a waiting client has seen: its stamp, or `Other` if the cache does not know the stamp.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Stamp(Stamp),
    Other,
}

#[derive(Debug, Default)]
struct Entry {
    copy: Option<Copy>,
    /// The copy equals the node's value, and this node is subscribed to the next change.
    good: bool,
    /// The copy is out of date, and is deleted at the end of its grace period.
    invalid: bool,
    /// The request in flight, and whether a client waits for the value.
    fetch: Option<(Fetch, bool)>,
    /// Invalidations that came during the request.
    invalidations: Vec<Option<Stamp>>,
    /// Whether the subscription may have been lost during the request.
    unconfirmed: bool,
    waiters: Vec<Waiter>,
    /// The last response was that the name has no value, and the node will report its next value.
    subscribed: bool,
    /// Time at which a failed request is repeated.
    again: Option<Instant>,
    /// The stamp and the local version of the copy or, without a copy, of the last copy.
    last: Option<(Stamp, Version)>,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.copy.is_none() && self.fetch.is_none() && self.waiters.is_empty()
    }
}

/// The stamp and the freshness of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The stamp of the copied value.
    pub stamp: Stamp,
    /// True if the node may hold a later value.
    pub stale: bool,
}

/// The copies of all remote names, and the requests for them.
#[derive(Debug)]
pub struct Cache {
    bytes_max: u64,
    names_max: usize,
    entries: HashMap<RemoteName, Entry>,
    /// Names by node, so that the work at a node's connection or loss is proportional to that node's names.
    of_node: HashMap<NodeName, BTreeSet<RemoteName>>,
    alive: HashMap<NodeName, Epoch>,
    revalidation: Revalidation,
    fetches: HashMap<Fetch, RemoteName>,
    /// Deadlines of waiters, grace periods and retries, with their names.
    due: BTreeSet<(Instant, RemoteName)>,
    bytes: u64,
    uses: u64,
    numbers: u64,
}

impl Cache {
    /// Makes an empty cache for at most `bytes_max` bytes of copies, and `names_max` names.
    pub fn new(bytes_max: u64, names_max: usize) -> Self {
        Self {
            bytes_max,
            names_max: names_max.max(1),
            entries: HashMap::new(),
            of_node: HashMap::new(),
            alive: HashMap::new(),
            revalidation: Revalidation::default(),
            fetches: HashMap::new(),
            due: BTreeSet::new(),
            bytes: 0,
            uses: 0,
            numbers: 0,
        }
    }

    /// Returns the number of names, and the bytes of all copies.
    pub fn size(&self) -> (usize, u64) {
        (self.entries.len(), self.bytes)
    }

    /// Returns the maximum size of a copy.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the local version of a name's copy.
    pub fn version(&self, name: &RemoteName) -> Option<Version> {
        Some(self.entries.get(name)?.copy?.version)
    }

    /// Returns true if this gateway published this local version as the last copy of the name.
    pub fn is_ours(&self, name: &RemoteName, version: Version) -> bool {
        self.entries.get(name).is_some_and(|e| e.last.is_some_and(|(_, ours)| ours == version))
    }

    /// Returns the stamp and the freshness of a name's copy.
    pub fn placed(&self, name: &RemoteName) -> Option<Placed> {
        let entry = self.entries.get(name)?;
        let stale = !entry.good;
        entry.copy.map(|copy| Placed { stamp: copy.stamp, stale })
    }

    /// Handles a client's request for the newest value.
    pub fn on_get(&mut self, name: &RemoteName, ticket: Ticket, until: Instant, now: Instant) -> Vec<Effect> {
        self.on_asked(name, Waiter { ticket, until, seen: None }, now)
    }

    /// Handles a client's request to wait for a value other than the local version `seen`.
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
            // While the node is lost, a client that accepts any value gets the stale copy. A client that waits for a
            // new value continues to wait, because the node may return before the timeout.
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

    /// Requests the value from the node if a client waits for a value that no subscription will report.
    fn want(&mut self, name: &RemoteName, out: &mut Vec<Effect>) {
        let alive = self.alive.contains_key(&name.node);
        let Some(entry) = self.entries.get_mut(name) else { return };
        // If the copy is valid, the clients that accept any value have got responses, and the others wait for the
        // invalidation.
        let covered = entry.good || (entry.subscribed && entry.waiters.iter().all(|w| w.seen.is_some()));
        if entry.waiters.is_empty() || covered || !alive || entry.again.is_some() {
            return;
        }
        match &mut entry.fetch {
            // A revalidation may be in flight. Its response must now contain the value.
            Some((_, wanted)) => *wanted = true,
            None => self.ask(name, true, out),
        }
    }

    fn ask(&mut self, name: &RemoteName, wanted: bool, out: &mut Vec<Effect>) {
        self.numbers += 1;
        let fetch = self.numbers;
        let Some(entry) = self.entries.get_mut(name) else { return };
        (entry.fetch, entry.subscribed, entry.again) = (Some((fetch, wanted)), false, None);
        entry.invalidations.clear();
        entry.unconfirmed = false;
        if !wanted {
            self.revalidation.on_asked(fetch);
        }
        self.fetches.insert(fetch, name.clone());
        let have = entry.copy.map(|copy| copy.stamp);
        out.push(Effect::Ask { name: name.clone(), have, wanted, fetch });
    }

    /// Ends a request. Returns `None` if the number is unknown.
    fn end(&mut self, fetch: Fetch) -> Option<RemoteName> {
        self.revalidation.on_end(fetch);
        let name = self.fetches.remove(&fetch)?;
        self.entries.get_mut(&name)?.fetch.take()?;
        Some(name)
    }

    /// Returns true if a client waits for the value in this response. Otherwise the caller calls [`Cache::on_other`].
    pub fn is_wanted(&self, fetch: Fetch) -> bool {
        let entry = self.fetches.get(&fetch).and_then(|name| self.entries.get(name));
        entry.is_some_and(|e| e.fetch.is_some_and(|(_, wanted)| wanted) && !e.waiters.is_empty())
    }

    /// Handles a value that this gateway has fetched, and published as this local version.
    pub fn on_value(&mut self, fetch: Fetch, stamp: Stamp, version: Version, bytes: u64, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.uses += 1;
        let used = self.uses;
        let Some(entry) = self.entries.get_mut(&name) else { return out };
        let before = entry.copy.replace(Copy { stamp, version, bytes, until: now + GRACE, used });
        entry.last = Some((stamp, version));
        self.bytes = self.bytes - before.map_or(0, |copy| copy.bytes) + bytes;
        entry.invalid = false;
        self.settle(&name, now, &mut out);
        self.evict(Some(&name), now, &mut out);
        self.ask_next(&mut out);
        out
    }

    /// Handles the response that the node still holds the copied value.
    pub fn on_unchanged(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        if let Some(entry) = self.entries.get_mut(&name) {
            if let Some(copy) = &mut entry.copy {
                copy.until = copy.until.max(now + GRACE);
                entry.invalid = false;
                self.settle(&name, now, &mut out);
            } else {
                // A client has deleted the copy during the request.
                entry.good = false;
                self.want(&name, &mut out);
            }
        }
        self.ask_next(&mut out);
        out
    }

    /// Responds to the waiting clients, after a response has confirmed the copy or delivered a new one.
    fn settle(&mut self, name: &RemoteName, now: Instant, out: &mut Vec<Effect>) {
        let alive = self.alive.get(&name.node).copied();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(copy) = entry.copy else { return };
        // An invalidation that arrived during the request makes the copy invalid, unless it reports a value that is not
        // later than the copy.
        let later = entry.invalidations.drain(..).any(|stamp| makes_bad(stamp, copy.stamp));
        let bad = later || alive.is_some_and(|epoch| epoch != copy.stamp.epoch);
        // A node that was lost during the request has dropped this node's subscription.
        let unconfirmed = std::mem::take(&mut entry.unconfirmed);
        entry.good = !bad && !unconfirmed && alive.is_some();
        entry.subscribed = false;
        let (stale, good) = (alive.is_none(), entry.good);
        entry.waiters.retain(|waiter| {
            let satisfied = !matches!(waiter.seen, Some(Seen::Stamp(stamp)) if stamp == copy.stamp);
            if satisfied {
                out.push(Effect::Answer(waiter.ticket, Verdict::Here { stale }));
            }
            !satisfied
        });
        if good {
            self.revalidation.expect(name, now);
        }
        if bad {
            self.invalidate(name, now, out);
        } else if unconfirmed {
            self.revalidation.push(name.clone());
        }
    }

    /// Handles an invalid copy. Requests the value again if a client waits. Otherwise deletes the copy.
    fn invalidate(&mut self, name: &RemoteName, now: Instant, out: &mut Vec<Effect>) {
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
            entry.invalid = true;
            self.due.insert((copy.until, name.clone()));
        }
    }

    fn delete(&mut self, name: &RemoteName, out: &mut Vec<Effect>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(copy) = entry.copy.take() else { return };
        (entry.good, entry.invalid) = (false, false);
        self.bytes -= copy.bytes;
        out.push(Effect::Delete(name.clone()));
    }

    /// Handles the response that the node's value differs from the copy, if no client waits for the value.
    pub fn on_other(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.invalidate(&name, now, &mut out);
        self.ask_next(&mut out);
        out
    }

    /// Handles the response that the node has no such name.
    pub fn on_nothing(&mut self, fetch: Fetch, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        let Some(name) = self.end(fetch) else { return out };
        self.delete(&name, &mut out);
        if let Some(entry) = self.entries.get_mut(&name) {
            let told = entry.invalidations.drain(..).count() > 0 || std::mem::take(&mut entry.unconfirmed);
            entry.subscribed = !told && self.alive.contains_key(&name.node);
            let subscribed = entry.subscribed;
            entry.waiters.retain(|waiter| {
                if waiter.seen.is_none() {
                    out.push(Effect::Answer(waiter.ticket, Verdict::Nothing));
                }
                waiter.seen.is_some()
            });
            if subscribed {
                self.revalidation.expect(&name, now);
            }
            self.want(&name, &mut out);
        }
        self.ask_next(&mut out);
        out
    }

    /// Handles the failure of a request.
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
            entry.invalidations.clear();
            entry.waiters.retain(|waiter| {
                let over = waiter.seen.is_none() || refused;
                if over {
                    out.push(Effect::Answer(waiter.ticket, verdict.clone()));
                }
                !over
            });
            if refused {
                self.invalidate(&name, now, &mut out);
            } else if !entry.waiters.is_empty() || entry.copy.is_some() {
                // The node may be lost although this gateway has not detected it yet. So the copy stays, and the
                // request is repeated.
                entry.again = Some(now + AGAIN);
                self.due.insert((now + AGAIN, name.clone()));
            }
        }
        self.ask_next(&mut out);
        out
    }

    /// Handles a node that has become reachable. Revalidates its copies, and requests the values for which clients
    /// wait.
    pub fn on_node_up(&mut self, node: &NodeName, epoch: Epoch) -> Vec<Effect> {
        let mut out = Vec::new();
        let before = self.alive.insert(node.clone(), epoch);
        if before != Some(epoch) {
            self.revalidation.on_epoch(node, epoch);
        }
        self.revalidate(node, None, &mut out);
        let names: Vec<RemoteName> = self.of_node.get(node).into_iter().flatten().cloned().collect();
        for name in names {
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.again = None;
            }
            self.want(&name, &mut out);
        }
        out
    }

    /// Handles a node that has become unreachable. Its copies stay, but count as stale.
    pub fn on_node_down(&mut self, node: &NodeName) {
        self.alive.remove(node);
        for name in self.of_node.get(node).into_iter().flatten() {
            if let Some(entry) = self.entries.get_mut(name) {
                (entry.good, entry.invalid, entry.subscribed) = (false, false, false);
                if entry.fetch.is_some() {
                    entry.unconfirmed = true;
                }
            }
        }
    }

    /// Notes that a client has deleted the copy from the local directory, or overwritten it.
    pub fn on_lost(&mut self, name: &RemoteName) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if let Some(copy) = entry.copy.take() {
            (entry.good, entry.invalid) = (false, false);
            self.bytes -= copy.bytes;
        }
    }

    /// Invalidates a copy because a client of this machine has put a value on the node.
    pub fn on_put(&mut self, name: &RemoteName, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        self.on_invalidation(name, None, now, &mut out);
        // The copy needs no grace period, because no client can have requested it since the put.
        if let Some(entry) = self.entries.get(name)
            && entry.invalid
        {
            self.delete(name, &mut out);
        }
        out
    }

    /// Handles deadlines that have passed: timeouts of clients, grace periods, retries, and silent nodes.
    pub fn on_tick(&mut self, now: Instant) -> Vec<Effect> {
        let mut out = Vec::new();
        if self.due().is_none_or(|due| due > now) {
            return out;
        }
        self.check_silence(now, &mut out);
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
                    self.revalidation.push(name.clone());
                    self.ask_next(&mut out);
                } else {
                    self.want(&name, &mut out);
                }
            }
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let left = entry.invalid && entry.fetch.is_none() && entry.waiters.is_empty();
            if let Some(copy) = entry.copy.filter(|_| left) {
                if copy.until <= now {
                    self.delete(&name, &mut out);
                } else {
                    self.due.insert((copy.until, name));
                }
            }
        }
        self.evict(None, now, &mut out);
        if cfg!(debug_assertions) {
            self.check();
        }
        out
    }

    /// Returns the time of the next deadline.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at).into_iter().chain(self.revalidation.due()).min()
    }

    fn entry(&mut self, name: &RemoteName) -> &mut Entry {
        if !self.entries.contains_key(name) {
            self.of_node.entry(name.node.clone()).or_default().insert(name.clone());
        }
        self.entries.entry(name.clone()).or_default()
    }
}

/// Returns true unless the invalidation reports a value that is not later than the copy `have`. Stamps of two epochs
/// cannot be compared, and so make the copy invalid.
fn makes_bad(stamp: Option<Stamp>, have: Stamp) -> bool {
    stamp.is_none_or(|stamp| stamp.is_after(have) != Some(false))
}

#[cfg(test)]
mod tests;
