//! The names of a namespace: their owners and lifetimes, the lists, and the items of lists.

mod absorb;
mod claims;
mod credit;
pub(super) mod lifetime;
mod list;
mod queue;
mod request;

use super::client::{Absorbing, Client, ClientState};
use super::clock::Timer;
use super::context::Context;
use super::effect::Effect;
use super::env::Env;
use super::event::Unmade;
use super::members::Members;
use super::names::{Full, Names};
use super::parts::Parts;
use claims::Claims;
use lifetime::Lifetimes;
use list::Lists;
pub use list::NewItems;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::name::{KeyKind, item_key};
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo};
use tensorlend_layout::wire::{QueueItem, Refusal};
use tensorlend_layout::word::{LifeWord, OwnerWord, PARKED_ANY, parked_bit};

/// A client's cell to which a name is bound, and the lifetime of the name.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    pub owner: ClientNo,
    pub cell: CellNo,
    pub life: LifeWord,
}

/// The names of a namespace. An item of a list is a name. A list is a name without a value.
#[derive(Debug)]
pub struct Bindings {
    names: Names,
    lifetimes: Lifetimes,
    lists: Lists,
    claims: Claims,
    /// Names of the queues that have changed since their waiting claims were tried.
    changed: BTreeSet<String>,
    /// Time of the next turn of absorbing.
    absorb_due_ns: Option<u64>,
    /// The last turn that absorbed announcements, and the number that it absorbed.
    absorbing: Absorbing,
    /// The reserved names that no client claims any more. Each has the time of the step that found
    /// no claim. A later claimant reads that the name is reserved, and does not announce the name.
    /// An entry counts only while its name is reserved.
    unclaimed: BTreeMap<Vec<u8>, u64>,
}

impl Bindings {
    /// Returns the bindings of this directory's names. At most `lists_max` of the names are lists.
    pub fn new(directory: &Directory, names: Names, lists_max: u32) -> Self {
        Self {
            names,
            lifetimes: Lifetimes::of(directory),
            lists: Lists::new(lists_max),
            claims: Claims::default(),
            changed: BTreeSet::new(),
            absorb_due_ns: None,
            absorbing: Absorbing::default(),
            unclaimed: BTreeMap::new(),
        }
    }

    /// Returns the table of names, for reading.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Checks that the table of names, the lifetimes, the lists and the directory agree.
    ///
    /// # Panics
    /// Panics if they disagree.
    pub fn check(&self, context: &Context, members: &Members) {
        let directory = &context.directory;
        assert_eq!(directory.head().names_live.peek(), self.names.live(), "the directory counts the names");
        assert!(self.names.live() <= context.ledger.limits().names_max.into(), "no more names than allowed");
        let owned: usize = members.iter().map(|(number, _)| self.names.owned().count(number)).sum();
        assert!(owned as u64 <= self.names.live(), "owned names live");
        for (number, _) in members.iter() {
            for entry in self.names.owned().of(number) {
                let owner_word = OwnerWord(directory.names[entry.index()].owner_word.peek());
                assert!(owner_word.is_live() && owner_word.owner() == number, "entry {entry} is a name of {number}");
            }
        }
        self.lifetimes.check(directory);
        self.lists.check(directory);
        let is_live = |item: QueueItem| directory.find_live(&item_key(item.list, item.number)).is_some();
        self.claims.check(is_live, |id| self.lists.has_id(id));
        self.lists.check_items(directory, |item| self.claims.knows(item));
    }

    /// Returns true if the namespace has no lists.
    pub fn has_no_lists(&self) -> bool {
        self.lists.is_empty()
    }

    /// Handles the allocation of memory for names, or its failure.
    pub fn arrived(&mut self, context: &Context, at: u64, made: Result<(), Unmade>) {
        self.names.arrived(&context.directory, at, made);
    }

    /// Returns the key's entry, and adds an entry if the key has none.
    pub fn place(
        &mut self,
        context: &Context,
        members: &Members,
        uid: Option<u32>,
        key: &[u8],
    ) -> Result<EntryNo, Refusal> {
        let placed = self.names.place(&context.directory, key, is_own(context, members, uid));
        placed.map_err(|full| context.full(full))
    }

    /// Stores the location of a key that has no cell: a stream or a list.
    pub fn set(&mut self, context: &Context, entry: EntryNo, next: impl Fn(OwnerWord) -> OwnerWord) -> OwnerWord {
        let after = next(OwnerWord(context.directory.names[entry.index()].owner_word.peek()));
        self.names.set(&context.directory, entry, after);
        after
    }

    /// Ends a key that has no cell.
    pub fn set_tombstone(&mut self, context: &Context, entry: EntryNo) {
        self.names.set_tombstone(&context.directory, entry);
    }

    /// Returns the number of names whose values belong to clients of `uid`.
    pub fn names_of_uid(&self, members: &Members, uid: u32) -> u64 {
        let its = members.iter().filter(|(_, c)| c.uid == uid);
        its.map(|(number, _)| self.names.owned().count(number) as u64).sum()
    }

    /// Refuses `more` names if they exceed the limit together with the names that clients announce
    /// now.
    pub fn check_room(&mut self, context: &Context, members: &Members, more: u64) -> Result<(), Refusal> {
        // This fence pairs with the fence of client P, between P's claim and P's read of the room.
        // Either daemon D sees the claim here, or P sees the smaller room.
        self.names.reserve(&context.directory, more);
        scan_fence();
        let room = self.names.room();
        let is_full = |announced: u64| room < more.saturating_add(announced);
        if is_full(Self::announced_at_most(members)) && is_full(Self::announced(members)) {
            self.names.reserve(&context.directory, 0);
            return Err(context.full(Full::Names));
        }
        Ok(())
    }

    /// Ends a turn and drops its reservations of names. A table under construction grows by one
    /// slice per turn, independent of the number of requests that wait for it.
    pub fn end_turn(&mut self, env: &mut Env, context: &Context) {
        self.names.reserve(&context.directory, 0);
        self.names.advance(&context.directory);
        for extent in self.names.take_discarded() {
            env.effects.push(Effect::Discard { mem: context.directory.mem(), at: extent.at, bytes: extent.bytes });
        }
    }

    /// Returns true if `names` new names have memory now, of which `key` is the longest. Otherwise orders the memory.
    pub fn names_ready(&mut self, parts: &mut Parts<'_>, names: u64, key: &[u8]) -> bool {
        let mut more = names.saturating_add(Self::absorbing_needs(parts.members));
        if self.names.ready(key.len()) < more && parts.members.has_announcements() {
            // Absorbed announcements need no further memory, and clients need not wake the daemon for them.
            self.absorb_turn(parts);
            more = names.saturating_add(Self::absorbing_needs(parts.members));
        }
        let ready = self.names.ready(key.len()) >= more;
        self.prepare_names(parts.env, parts.context, more);
        ready || self.names.ready(key.len()) >= more
    }

    /// Returns true if this entry of the directory has memory. A client may name any entry.
    pub fn has_memory(&self, entry: EntryNo) -> bool {
        self.names.has_memory(entry)
    }

    /// Orders memory for future names, and frees memory that contains no names.
    pub fn prepare_names(&mut self, env: &mut Env, context: &Context, more: u64) {
        for extent in self.names.order(&context.directory, more) {
            env.effects.allocate(context.directory.mem(), extent.at, extent.bytes);
        }
        if self.names.is_building() || self.names.is_discarding() {
            // The next turn continues this work, after other requests.
            env.clock.set_timer(0, Timer::Names);
        }
    }

    /// Notifies a former owner that it has lost a cell.
    pub fn notify_former_owner(&mut self, parts: &mut Parts<'_>, owner_word: OwnerWord) {
        let Some(client) = parts.members.get_mut(owner_word.owner()) else { return };
        match client.state {
            ClientState::Live(_) | ClientState::Disconnected { .. } => {
                if client.notices.insert(owner_word.cell()) {
                    parts.context.directory.entry(owner_word.owner()).notices.add(1);
                }
            }
            ClientState::Ended { .. } => {}
            ClientState::Frozen { .. } => self.collect_soon(parts, owner_word.owner()),
        }
    }

    /// Binds a key to a cell, regardless of the key's previous owner.
    pub fn take(
        &mut self,
        parts: &mut Parts<'_>,
        key: &[u8],
        binding: Binding,
    ) -> Result<(EntryNo, OwnerWord), Refusal> {
        let entry = self.place(parts.context, parts.members, parts.members.uid_of(binding.owner), key)?;
        self.unclaimed.remove(key);
        Ok((entry, self.take_entry(parts, entry, binding)))
    }

    fn take_entry(
        &mut self,
        parts: &mut Parts<'_>,
        entry: EntryNo,
        Binding { owner, cell, life }: Binding,
    ) -> OwnerWord {
        let before = OwnerWord(parts.context.directory.names[entry.index()].owner_word.peek());
        if before.is_live() && (before.owner(), before.cell()) == (owner, cell) {
            self.lifetimes.end(parts.context, entry, before);
            self.lifetimes.begin(entry, before, life);
            parts.context.directory.names[entry.index()].life.set(life.0);
            return before;
        }
        let after = before.then_live(owner, cell);
        let life_before = self.lifetimes.end(parts.context, entry, before);
        self.lifetimes.begin(entry, after, life);
        let owner_word = parts.context.directory.change_owner(entry, after, [life_before, life], || {
            tensorlend_layout::crash_point!("daemon: name about to be bound");
            self.names.set(&parts.context.directory, entry, after);
            tensorlend_layout::crash_point!("daemon: name bound");
            after
        });
        parts.context.directory.announce(PARKED_ANY);
        parts.members.surveyed(owner, cell);
        if before.is_live() {
            parts.context.directory.announce(parked_bit(before.owner()));
            self.notify_former_owner(parts, before);
            tensorlend_layout::crash_point!("daemon: former owner told");
        }
        if let Some(client) = parts.members.get_mut(owner) {
            client.notices.remove(&cell);
        }
        owner_word
    }

    /// Ends a live name.
    pub fn remove(&mut self, parts: &mut Parts<'_>, entry: EntryNo, tell: bool) {
        let owner_word = OwnerWord(parts.context.directory.names[entry.index()].owner_word.peek());
        let record = &parts.context.directory.names[entry.index()];
        let item = (KeyKind::of(record) == KeyKind::Item).then(|| parts.context.directory.key(record)).flatten();
        let item = item.and_then(|key| item_of(&key));
        tensorlend_layout::crash_point!("daemon: name about to be removed");
        // While an owner sees its name alive, it sees the lifetime too, and sends a request to the daemon.
        let life = self.lifetimes.end(parts.context, entry, owner_word);
        let tomb = owner_word.then_tomb();
        parts.context.directory.change_owner(entry, tomb, [life, LifeWord::FOREVER], || {
            self.names.set_tombstone(&parts.context.directory, entry);
        });
        parts.context.directory.announce(PARKED_ANY | parked_bit(owner_word.owner()));
        if tell {
            self.notify_former_owner(parts, owner_word);
        }
        if let Some((id, number)) = item {
            self.item_ended(parts.env, parts.context, QueueItem { list: id, number }, life.is_ephemeral());
        }
    }

    /// Schedules a survey of a frozen client's memory. A survey reads all names of the client, so
    /// it starts with a delay. Several names may move in the meantime.
    pub fn collect_soon(&mut self, parts: &mut Parts<'_>, number: ClientNo) {
        let names = self.names.owned().count(number) as u64;
        let pause_ns = if names == 0 { 0 } else { 1_000_000 + names * 500 };
        if let Some(Client { state: ClientState::Frozen { due_ns, .. }, .. }) = parts.members.get_mut(number) {
            let due = parts.env.clock.now_ns() + pause_ns;
            if due_ns.is_none_or(|at| at > due) {
                *due_ns = Some(due);
                parts.env.clock.set_timer(pause_ns, Timer::Collect(parts.context.ledger.id(), number));
            }
        }
    }

    /// Schedules surveys of the clients whose memory is retained only by leases. The caller does so
    /// after a client with such leases has ended.
    pub fn collect_held(&mut self, parts: &mut Parts<'_>) {
        let held = |c: &Client| matches!(c.state, ClientState::Frozen { lease_held: true, .. });
        let held: Vec<ClientNo> = parts.members.iter().filter(|(_, c)| held(c)).map(|(n, _)| n).collect();
        for number in held {
            self.collect_soon(parts, number);
        }
    }
}

/// Returns the list's id and the item's number from an item's key. Returns `None` for a key of
/// another kind.
fn item_of(key: &[u8]) -> Option<(u64, u64)> {
    let [1, item @ ..] = key else { return None };
    Some((u64::from_le_bytes(*item.first_chunk()?), u64::from_le_bytes(*item.last_chunk()?)))
}

/// Returns a predicate that is true for an owner word whose owner belongs to this user.
fn is_own(context: &Context, members: &Members, uid: Option<u32>) -> impl Fn(OwnerWord) -> bool {
    let own = uid.map(|uid| context.ledger.owner_of(uid));
    move |owner_word| own.is_some() && members.uid_of(owner_word.owner()).map(|uid| context.ledger.owner_of(uid)) == own
}
