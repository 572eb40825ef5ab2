//! Names with a deadline, and ephemeral names, which end with their owner's session.
//!
//! The authoritative data is the word `life` of the directory's entries, which only the daemon
//! writes. This module contains an index of these words, which avoids searches. [`Lifetimes::of`]
//! builds the index from the directory.

use super::Bindings;
use crate::core::chores::{PAUSE_NS, REMOVAL};
use crate::core::clock::Timer;
use crate::core::context::Context;
use crate::core::counters::Counter;
use crate::core::env::Env;
use crate::core::parts::Parts;
use std::collections::{BTreeSet, VecDeque};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::number::{ClientNo, EntryNo};
use tensorlend_layout::word::{LifeWord, OwnerWord};

/// Maximum number of names that one turn ends. The daemon serves other requests between turns.
const TURN_MAX: usize = 512;

/// The index of names with a deadline and of ephemeral names.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// Deadline and entry of each name with a deadline, in ascending order.
    due: BTreeSet<(u64, EntryNo)>,
    /// Owner and entry of each ephemeral name.
    ephemeral: BTreeSet<(ClientNo, EntryNo)>,
    /// Owners whose sessions have ended and that still have ephemeral names.
    gone: VecDeque<ClientNo>,
    /// Time of the timer that was set last.
    armed_ns: Option<u64>,
}

impl Lifetimes {
    /// Returns the index of a directory's live names.
    pub fn of(d: &Directory) -> Self {
        let mut it = Self::default();
        for (entry, line) in d.entries() {
            let owner_word = OwnerWord(line.owner_word.peek());
            if owner_word.is_live() {
                it.begin(entry, owner_word, LifeWord(line.life.peek()));
            }
        }
        it
    }

    /// Checks that the directory confirms each entry of the index.
    ///
    /// # Panics
    /// Panics if the directory does not confirm an entry.
    pub fn check(&self, d: &Directory) {
        for &(deadline, entry) in &self.due {
            let life = LifeWord(d.names[entry.index()].life.peek());
            assert_eq!(life.deadline_ns(), Some(deadline), "the deadline of entry {entry}");
        }
        for &(owner, entry) in &self.ephemeral {
            let line = &d.names[entry.index()];
            assert!(LifeWord(line.life.peek()).is_ephemeral(), "entry {entry} is ephemeral");
            assert_eq!(OwnerWord(line.owner_word.peek()).owner(), owner, "the owner of entry {entry}");
        }
    }

    /// Records that the lifetime of an entry begins, with this owner word.
    pub fn begin(&mut self, entry: EntryNo, owner_word: OwnerWord, life: LifeWord) {
        if let Some(deadline) = life.deadline_ns() {
            self.due.insert((deadline, entry));
        }
        if life.is_ephemeral() {
            self.ephemeral.insert((owner_word.owner(), entry));
        }
    }

    fn remove(&mut self, entry: EntryNo, owner_word: OwnerWord, life: LifeWord) {
        if let Some(deadline) = life.deadline_ns() {
            self.due.remove(&(deadline, entry));
        }
        if life.is_ephemeral() {
            self.ephemeral.remove(&(owner_word.owner(), entry));
        }
    }

    /// Records that the lifetime of an entry ends. `before` is the owner word that the entry had while the name was live.
    /// Returns the lifetime.
    pub fn end(&mut self, context: &Context, entry: EntryNo, before: OwnerWord) -> LifeWord {
        let life = context.directory.life(entry);
        self.remove(entry, before, life);
        life
    }

    fn next_due(&self, now_ns: u64) -> Option<EntryNo> {
        self.due.first().filter(|(at, _)| *at <= now_ns).map(|&(_, entry)| entry)
    }

    /// Returns the next ephemeral name of an owner whose session has ended.
    fn next_gone(&mut self) -> Option<EntryNo> {
        while let Some(&owner) = self.gone.front() {
            if let Some(&(_, entry)) = self.ephemeral.range((owner, EntryNo::default())..=(owner, EntryNo::MAX)).next()
            {
                return Some(entry);
            }
            self.gone.pop_front();
        }
        None
    }

    /// Returns the time of the next work. This is now, or the first deadline.
    fn wanted_ns(&self, now_ns: u64) -> Option<u64> {
        if self.gone.is_empty() { self.due.first().map(|&(at, _)| at) } else { Some(now_ns) }
    }
}

impl Bindings {
    /// Ends a client's ephemeral names at the end of the client's session.
    pub fn end_ephemeral(&mut self, parts: &mut Parts<'_>, number: ClientNo) {
        if self.lifetimes.ephemeral.range((number, EntryNo::default())..=(number, EntryNo::MAX)).next().is_some() {
            self.lifetimes.gone.push_back(number);
            self.end_lives(parts);
        }
    }

    /// Ends names that are due. One turn ends a bounded number of names.
    pub fn end_lives(&mut self, parts: &mut Parts<'_>) {
        for _ in 0..TURN_MAX {
            if !parts.env.chores.spend(0) {
                return;
            }
            let (entry, why) = if let Some(entry) = self.lifetimes.next_due(parts.env.clock.now_ns()) {
                parts.env.counters.count(Counter::NamesExpired);
                (entry, "its time to live is over")
            } else if let Some(entry) = self.lifetimes.next_gone() {
                parts.env.counters.count(Counter::NamesEphemeralGone);
                (entry, "it was ephemeral and its producer's session has ended")
            } else {
                return;
            };
            let key = parts.context.directory.key(&parts.context.directory.names[entry.index()]).unwrap_or_default();
            tracing::info!(namespace = parts.context.ledger.name(), name = %String::from_utf8_lossy(&key), "name ended: {why}");
            parts.env.chores.spend(REMOVAL);
            self.remove(parts, entry, true);
        }
    }

    /// Handles the timer of the lifetimes.
    pub fn lifetimes_due(&mut self, parts: &mut Parts<'_>, at: u64) {
        if self.lifetimes.armed_ns.is_some_and(|armed| armed <= at) {
            self.lifetimes.armed_ns = None;
        }
        self.end_lives(parts);
    }

    /// Sets the timer for the next end of a name.
    pub fn arm_lifetimes(&mut self, env: &mut Env, context: &Context) {
        let Some(at) = self.lifetimes.wanted_ns(env.clock.now_ns()) else { return };
        if self.lifetimes.armed_ns.is_none_or(|armed| armed > at) {
            // If more names are due than one turn can end, the daemon serves other requests during
            // this pause.
            let pause_ns = if at <= env.clock.now_ns() { PAUSE_NS } else { at - env.clock.now_ns() };
            self.lifetimes.armed_ns = Some(env.clock.now_ns() + pause_ns);
            env.clock.set_timer(pause_ns, Timer::Lifetimes(context.ledger.id()));
        }
    }
}
