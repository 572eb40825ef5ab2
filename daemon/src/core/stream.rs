//! Streams. Each stream has one producer with a ring, and any number of subscribers.

use super::account::{Charge, Kind};
use super::bindings::Bindings;
use super::client::Client;
use super::context::Context;
use super::effect::{Lending, SheetPlan};
use super::env::Env;
use super::event::{ConnId, MemId};
use super::label::Label;
use super::ledger::Table;
use super::length;
use super::members::Members;
use super::orders::{Making, Order, Part};
use super::outcome::{Lent, Outcome, RequestResult, RingRequest, Task, Wait, Work};
use super::parts::Parts;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use tensorlend_layout::directory::FoundName;
use tensorlend_layout::header::Magic;
use tensorlend_layout::leases::CURSORS;
use tensorlend_layout::name::{self, stream_key};
use tensorlend_layout::number::{ClientNo, CursorNo, EntryNo, StreamLine};
use tensorlend_layout::stream::{CAPACITY_MAX, RingEntry, StreamRing};
use tensorlend_layout::wire::{LimitKind, Policy, Refusal, Reply};
use tensorlend_layout::word::Cell;

/// A stream: its index in the directory, and the id that tells it from former streams there.
#[derive(Clone, Copy, Debug)]
pub struct StreamId {
    pub line: StreamLine,
    pub id: u64,
}

/// A cursor in the lease table of a client.
#[derive(Clone, Copy, Debug)]
pub struct CursorId {
    pub number: ClientNo,
    pub cursor: CursorNo,
}

#[derive(Debug)]
struct Subscriber {
    number: ClientNo,
    cursor: CursorNo,
    wake: Option<(MemId, Charge)>,
}

/// One epoch of a stream.
#[derive(Debug)]
struct Stream {
    name: String,
    id: u64,
    producer: ClientNo,
    ring: Part,
    capacity: u32,
    policy: Policy,
    subscribers: Vec<Option<Subscriber>>,
    /// Time since which the stream has had neither a producer nor subscribers.
    idle_since_ns: Option<u64>,
}

impl Stream {
    /// Returns the response for the producer or a subscriber.
    fn reply(&self, stream: StreamLine, name: FoundName) -> Reply {
        Reply::Stream {
            stream,
            id: self.id,
            entry: name.entry,
            owner_word: name.owner_word.0,
            capacity: self.capacity,
            policy: self.policy,
        }
    }

    /// Returns true if the producer reports that the stream is closed.
    fn is_closed(&self) -> bool {
        self.ring.view.word(offset_of!(StreamRing, closed)) != Some(0)
    }

    /// Returns the first value in the entries of the stream's ring from `first` on, and the number of its entry. A value that
    /// the producer replaces at the same time may be a mixture of two.
    fn find_value(&self, first: usize) -> Option<(usize, Cell)> {
        let mut entries = [0; RUN * ENTRY_WORDS];
        (first..self.capacity as usize).step_by(RUN).find_map(|at| {
            let count = RUN.min(self.capacity as usize - at);
            let entries = &mut entries[..count * ENTRY_WORDS];
            self.ring.view.words(size_of::<StreamRing>() + at * size_of::<RingEntry>(), entries).then_some(())?;
            let entries = entries.chunks(ENTRY_WORDS);
            let cells = entries.map(|entry| Cell(entry[offset_of!(RingEntry, cell) / size_of::<u64>()]));
            let (index, value) = cells.enumerate().find(|(_, cell)| cell.is_value())?;
            Some((at + index, value))
        })
    }
}

mod inspected;
mod restore;
mod retire;
mod subscribers;

pub use restore::{RingId, Rings, Wakes};

/// Number of entries of a ring that the daemon copies at a time.
const RUN: usize = 64;
const ENTRY_WORDS: usize = size_of::<RingEntry>() / size_of::<u64>();

#[derive(Debug)]
pub struct Streams {
    by_name: BTreeMap<String, StreamLine>,
    table: BTreeMap<StreamLine, Stream>,
    free_lines: Vec<StreamLine>,
    ids: u64,
    /// Streams without a producer and subscribers: start of the idle time, id, and entry of each.
    idle: BTreeSet<(u64, u64, StreamLine)>,
    /// Time of the timer that was set last.
    armed_ns: Option<u64>,
}

impl Streams {
    /// Returns an empty set of at most `max` streams.
    pub fn new(max: u32) -> Self {
        Self {
            by_name: BTreeMap::new(),
            table: BTreeMap::new(),
            free_lines: (0..max).rev().map(StreamLine::new).collect(),
            ids: 0,
            idle: BTreeSet::new(),
            armed_ns: None,
        }
    }

    /// Checks that the names, the directory's entries and the idle streams agree.
    ///
    /// # Panics
    /// Panics if the data is inconsistent.
    pub fn check(&self, context: &Context, members: &Members) {
        let stream_entries = &context.directory.streams;
        assert_eq!(self.by_name.len(), self.table.len(), "each stream has a name");
        assert_eq!(self.table.len() + self.free_lines.len(), stream_entries.len(), "each line is free or a stream's");
        for (name, line) in &self.by_name {
            let stream = &self.table[line];
            assert_eq!(stream.name, *name);
            let stream_entry = &stream_entries[line.index()];
            assert_eq!(stream_entry.id.peek(), stream.id, "the line of stream {name:?}");
            assert_eq!(
                stream_entry.subscribers_count.peek(),
                stream.subscribers.len() as u64,
                "subscribers of {name:?}"
            );
            assert!(stream.id <= self.ids, "ids are counted up");
            stream.check_subscribers(stream_entry, members);
            let owner_word = context.directory.find_live(&stream_key(name)).map(|found| found.owner_word);
            let found = owner_word.map(|word| (word.owner(), word.stream()));
            assert_eq!(found, Some((stream.producer, *line)), "the name of stream {name:?} leads to it");
            let idle = stream.idle_since_ns.map(|since| (since, stream.id, *line));
            assert!(idle.is_none_or(|idle| self.idle.contains(&idle)), "stream {name:?} is idle");
        }
        let idle = self.table.values().filter(|stream| stream.idle_since_ns.is_some()).count();
        assert_eq!(self.idle.len(), idle, "no other stream is idle");
        for line in &self.free_lines {
            assert_eq!(stream_entries[line.index()].id.peek(), 0, "line {line} is free");
        }
    }

    /// Removes one epoch of a stream from the tables.
    fn take_out(&mut self, line: StreamLine) -> Stream {
        let stream = self.table.remove(&line).expect("it is there");
        self.by_name.remove(&stream.name);
        if let Some(since) = stream.idle_since_ns {
            self.idle.remove(&(since, stream.id, line));
        }
        stream
    }

    /// Returns the clients that subscribe to a stream, once for each subscription.
    pub fn subscribers(&self, line: StreamLine) -> impl Iterator<Item = ClientNo> + '_ {
        self.table.get(&line).into_iter().flat_map(|s| s.subscribers.iter().flatten()).map(|s| s.number)
    }

    pub fn name(&self, line: StreamLine) -> &str {
        self.table.get(&line).map_or("", |stream| &stream.name)
    }

    pub fn producers(&self) -> impl Iterator<Item = ClientNo> + '_ {
        self.table.values().map(|stream| stream.producer)
    }

    /// Returns true if no stream exists.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Records that the producer has mapped a ring. Returns the memory to seal.
    pub fn acknowledged(&mut self, line: StreamLine, id: u64) -> Option<MemId> {
        let stream = self.table.get_mut(&line).filter(|s| s.id == id)?;
        stream.ring.acked = true;
        Some(stream.ring.mem)
    }

    /// Records that a producer has mapped all its rings. Returns the memory to seal.
    pub fn acknowledged_all(&mut self, producer: ClientNo) -> Vec<MemId> {
        let its = |s: &&mut Stream| s.producer == producer;
        let mark = |s: &mut Stream| {
            s.ring.acked = true;
            s.ring.mem
        };
        self.table.values_mut().filter(its).map(mark).collect()
    }

    /// Returns true if the memory is a ring or a wake descriptor of one of these streams.
    pub fn holds(&self, mem: MemId) -> bool {
        let wakes = |s: &Stream| {
            s.subscribers.iter().flatten().any(|it| it.wake.as_ref().is_some_and(|(wake, _)| *wake == mem))
        };
        self.table.values().any(|s| s.ring.mem == mem || wakes(s))
    }

    pub fn rings(&self, producer: ClientNo) -> Vec<MemId> {
        self.table.values().filter(|s| s.producer == producer).map(|s| s.ring.mem).collect()
    }

    /// Returns the entry and id of a producer's first stream from this entry on.
    pub fn of_producer_from(&self, producer: ClientNo, line: StreamLine) -> Option<(StreamLine, u64)> {
        let mut streams = self.table.range(line..);
        streams.find_map(|(&line, stream)| (stream.producer == producer).then_some((line, stream.id)))
    }

    /// Searches a ring for a value, from this entry on. Returns the number of the entry after the
    /// value's entry, and the value. Returns the ring's length and `None` if the search finds no
    /// value.
    pub fn value_from(&self, line: StreamLine, entry: usize) -> (usize, Option<Cell>) {
        let Some(stream) = self.table.get(&line) else { return (entry, None) };
        match stream.find_value(entry) {
            Some((at, value)) => (at + 1, Some(value)),
            None => (entry.max(stream.capacity as usize), None),
        }
    }
}

impl Streams {
    /// Handles a request to become the producer of a stream.
    pub fn stream_open(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        conn: ConnId,
        ring: RingRequest,
    ) -> RequestResult {
        let RingRequest { producer: number, ref name, capacity, .. } = ring;
        name::check(name)?;
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(Refusal::Bad(format!("a stream holds 1 to {CAPACITY_MAX} messages, not {capacity}")));
        }
        self.line_for(parts, bindings, number, name)?;
        if !bindings.names_ready(parts, 1, &stream_key(name)) {
            return Ok(Outcome::Later(Wait::Names));
        }
        let capacity = capacity.next_power_of_two();
        let bytes = length::ring(capacity);
        let charge = parts.env.accounts.charge_sheet(parts.members.me(number).uid, parts.context.ledger.id(), bytes)?;
        let plan = SheetPlan { magic: Magic::Stream, owner: number, count: capacity.into(), first: 0 };
        let making = vec![parts.env.orders.sheet(&mut parts.env.effects, Order::sheet(bytes, plan, conn), charge)];
        Ok(Outcome::Working(Work { task: Task::Ring(RingRequest { capacity, ..ring }), making }))
    }

    /// Returns the stream's entry. Returns `None` if the stream is new and a free entry exists.
    /// Retires idle streams to make room.
    fn line_for(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        number: ClientNo,
        name: &str,
    ) -> Result<Option<StreamLine>, Refusal> {
        let uid = parts.members.me(number).uid;
        let known = self.by_name.get(name).copied();
        if let Some(line) = known {
            let stream = &self.table[&line];
            if stream.producer != number && Self::is_produced(parts.members, stream) {
                return Err(Refusal::StreamTaken(name.into()));
            }
            if parts.members.uid_of(stream.producer) == Some(uid) {
                return Ok(known);
            }
        }
        // A stream that another user closed counts as this user's stream from now on.
        while let Err(refusal) = parts.context.ledger.check_table_share(
            Table::Streams,
            uid,
            self.producers().map(|producer| parts.members.uid_of(producer)),
        ) {
            if !self.retire_oldest(parts, bindings, Some(uid)) {
                return Err(refusal);
            }
        }
        if known.is_some() {
            return Ok(known);
        }
        while self.free_lines.is_empty() {
            if !self.retire_oldest(parts, bindings, Some(uid)) && !self.retire_oldest(parts, bindings, None) {
                return Err(parts.context.ledger.limit(
                    LimitKind::Streams,
                    "the number of streams",
                    "streams_max",
                    parts.context.ledger.limits().streams_max,
                ));
            }
        }
        while bindings.names().room() == 0 {
            if !self.retire_oldest(parts, bindings, None) {
                return Err(parts.context.full(super::names::Full::Names));
            }
        }
        Ok(None)
    }

    /// Completes a request for a stream, after its ring has been made.
    pub fn ring_made(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        RingRequest { producer: number, name, capacity, policy }: RingRequest,
        mut work: Vec<Making>,
    ) -> RequestResult {
        let making = work.remove(0);
        let (known, name_entry) = match self.line_and_name_for(parts, bindings, number, &name) {
            Ok(found) => found,
            Err(refusal) => {
                parts.env.abandon(making);
                return Err(refusal);
            }
        };
        let line = match known {
            Some(line) => {
                let before = self.stream_clear(parts, line);
                Self::after_stream(parts, bindings, before);
                line
            }
            None => self.free_lines.pop().expect("line_for saw one"),
        };
        self.ids += 1;
        let id = self.ids;
        let stream_entry = &parts.context.directory.streams[line.index()];
        stream_entry.catalogue.put(number.into());
        stream_entry.capacity.put(capacity.into());
        stream_entry.policy.put(policy as u64);
        stream_entry.id.set(id);
        tensorlend_layout::crash_point!("daemon: stream written");
        let owner_word = bindings.set(parts.context, name_entry, |before| before.then_stream(number, line));
        tensorlend_layout::crash_point!("daemon: stream listed");
        let lend = vec![(making.mem, Lending::Write)];
        let ring = making.into_part();
        parts.env.effects.keep(ring.mem, Label::Ring { namespace: parts.context.ledger.id(), line, id });
        let (subscribers, idle_since_ns) = (Vec::new(), None);
        let stream =
            Stream { name: name.clone(), id, producer: number, ring, capacity, policy, subscribers, idle_since_ns };
        let reply = stream.reply(line, FoundName { entry: name_entry, owner_word });
        self.table.insert(line, stream);
        self.by_name.insert(name, line);
        parts.members.me(number).lent_ns = parts.env.clock.now_ns();
        parts.context.directory.announce(u64::MAX);
        Ok(Outcome::Lend(reply, lend, Lent::Ring(line, id)))
    }

    /// Returns the stream's line like [`Streams::line_for`], and the entry of its name.
    fn line_and_name_for(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        producer: ClientNo,
        name: &str,
    ) -> Result<(Option<StreamLine>, EntryNo), Refusal> {
        let known = self.line_for(parts, bindings, producer, name)?;
        let key = stream_key(name);
        if parts.context.directory.find_key(&key).is_none() {
            bindings.check_room(parts.context, parts.members, 1)?;
        }
        let entry = bindings.place(parts.context, parts.members, parts.members.uid_of(producer), &key)?;
        Ok((known, entry))
    }

    /// Ends one epoch of a stream. The stream's entry and name stay. Returns the stream's producer.
    fn stream_clear(&mut self, parts: &mut Parts<'_>, line: StreamLine) -> ClientNo {
        let mut stream = self.take_out(line);
        let stream_entry = &parts.context.directory.streams[line.index()];
        stream_entry.id.set(0);
        stream.drop_subscribers(stream_entry, parts.env, |_| true);
        parts.members.forget_loud(parts.env, parts.context, stream.producer, stream.ring.mem);
        let producer = parts.members.get(stream.producer).filter(|c| !c.is_frozen());
        match producer.map(|client| client.former_writer(stream.producer)) {
            Some(whose) => parts.env.orphan_part(whose, stream.ring),
            None => parts.env.release_part(stream.ring),
        }
        stream.producer
    }

    fn after_stream(parts: &mut Parts<'_>, bindings: &mut Bindings, producer: ClientNo) {
        if parts.members.get(producer).is_some_and(Client::is_frozen) {
            bindings.collect_soon(parts, producer);
        }
    }

    /// Returns true if a stream has a producer that has not closed it, and that is connected or may
    /// reconnect.
    fn is_produced(members: &Members, stream: &Stream) -> bool {
        !stream.is_closed() && members.get(stream.producer).is_some_and(Client::is_live)
    }

    /// Updates the idle time of a stream that may have become idle, or is used again.
    fn update_idle_time(&mut self, env: &Env, members: &Members, line: StreamLine) {
        let Some(stream) = self.table.get(&line) else { return };
        let idle = stream.subscribers.is_empty() && !Self::is_produced(members, stream);
        let stream = self.table.get_mut(&line).expect("seen above");
        match (stream.idle_since_ns, idle) {
            (None, true) => {
                stream.idle_since_ns = Some(env.clock.now_ns());
                self.idle.insert((env.clock.now_ns(), stream.id, line));
            }
            (Some(since), false) => {
                stream.idle_since_ns = None;
                self.idle.remove(&(since, stream.id, line));
            }
            _ => {}
        }
    }

    /// Handles a request to subscribe. `pollable` requests a wake pair.
    pub fn subscribe(&mut self, parts: &mut Parts<'_>, name: &str, cursor: CursorId, pollable: bool) -> RequestResult {
        let result = self.list_subscriber(parts, name, cursor, pollable);
        if let Some(&line) = self.by_name.get(name) {
            self.update_idle_time(parts.env, parts.members, line);
        }
        result
    }

    fn list_subscriber(
        &mut self,
        parts: &mut Parts<'_>,
        name: &str,
        CursorId { number, cursor }: CursorId,
        pollable: bool,
    ) -> RequestResult {
        name::check(name)?;
        if cursor.index() >= CURSORS {
            return Err(Refusal::Bad(format!("subscription {cursor} is impossible: a client has at most {CURSORS}")));
        }
        let missing = || Refusal::NotFound(format!("stream {name:?}"));
        let line = *self.by_name.get(name).ok_or_else(missing)?;
        let found = parts.context.directory.find_live(&stream_key(name)).ok_or_else(missing)?;
        let uid = parts.members[number].uid;
        let stream_entry = &parts.context.directory.streams[line.index()];
        let stream = self.table.get_mut(&line).expect("a name leads to a stream");
        if !stream.ring.acked {
            let live = parts.members.get(stream.producer).is_some_and(Client::is_live);
            return if live { Ok(Outcome::Later(Wait::ack(stream.producer))) } else { Err(missing()) };
        }
        stream.drop_subscribers(stream_entry, parts.env, |s| (s.number, s.cursor) == (number, cursor));
        let subscribers = self.subscribers(line).map(|number| parts.members.uid_of(number));
        parts.context.ledger.check_subscriber_share(self.name(line), uid, subscribers)?;
        let stream = self.table.get_mut(&line).expect("seen above");
        let at = stream.free_subscriber()?;
        let wake =
            if pollable { Some(Self::charge_wake(parts, stream.id, CursorId { number, cursor })?) } else { None };
        let mut lend = vec![(stream.ring.mem, Lending::Read)];
        if let Some((wake, _)) = wake {
            lend.push((wake, Lending::Woken));
            if parts.env.settings.is_user_mode() {
                // Without an fd store, the subscriber hands this end to the next daemon.
                lend.push((wake, Lending::Wake));
            }
        }
        let stream_entry = &parts.context.directory.streams[line.index()];
        let epoch = parts.members[number].member.epoch();
        stream.add_subscriber(stream_entry, at, epoch, Subscriber { number, cursor, wake });
        let (producer, id, reply) = (stream.producer, stream.id, stream.reply(line, found));
        parts.members.show(parts.context, producer, number);
        Ok(Outcome::Lend(reply, lend, Lent::Subscription(line, id, cursor)))
    }

    /// Charges a subscriber's wake pair, and orders it.
    fn charge_wake(
        parts: &mut Parts<'_>,
        id: u64,
        CursorId { number: client, cursor }: CursorId,
    ) -> Result<(MemId, Charge), Refusal> {
        let (uid, namespace) = (parts.members[client].uid, parts.context.ledger.id());
        let charge = parts.env.accounts.charge(Some(uid), namespace, Kind::Wake, 0)?;
        let wake = parts.env.make_wake(uid);
        parts.env.effects.keep(wake, Label::Wake { namespace, id, client, cursor });
        Ok((wake, charge))
    }

    /// Handles a request to end a subscription.
    pub fn unsubscribe(
        &mut self,
        parts: &mut Parts<'_>,
        StreamId { line, id }: StreamId,
        CursorId { number, cursor }: CursorId,
    ) -> Outcome {
        if let Some(stream) = self.table.get_mut(&line).filter(|s| s.id == id) {
            let stream_entry = &parts.context.directory.streams[line.index()];
            stream.drop_subscribers(stream_entry, parts.env, |s| (s.number, s.cursor) == (number, cursor));
            self.update_idle_time(parts.env, parts.members, line);
        }
        Outcome::Reply(Reply::Done)
    }

    /// Ends all subscriptions of a client.
    pub fn unsubscribe_all(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        for (&line, stream) in &mut self.table {
            let stream_entry = &context.directory.streams[line.index()];
            if stream.subscribers.iter().flatten().any(|s| s.number == number) {
                stream.drop_subscribers(stream_entry, env, |s| s.number == number);
            }
        }
    }

    /// Handles a producer's request for a subscriber's wake descriptor.
    pub fn wake_descriptor(
        &self,
        members: &Members,
        producer: ClientNo,
        line: StreamLine,
        whose: CursorId,
    ) -> RequestResult {
        let stream = self.table.get(&line).filter(|s| s.producer == producer);
        let Some(stream) = stream else {
            return Err(Refusal::NotFound(format!("stream number {line} of this producer")));
        };
        let is_its = |s: &&Subscriber| (s.number, s.cursor) == (whose.number, whose.cursor);
        let subscriber = stream.subscribers.iter().flatten().find(is_its);
        Ok(match (subscriber.and_then(|s| Some(s.wake.as_ref()?.0)), members.get(whose.number)) {
            (Some(wake), Some(client)) => {
                Outcome::Lend(Reply::Sheet { member: client.member.0 }, vec![(wake, Lending::Wake)], Lent::Nothing)
            }
            _ => Outcome::Reply(Reply::Done),
        })
    }

    /// Handles a request to remove a stream.
    pub fn stream_delete(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, name: &str) -> RequestResult {
        name::check(name)?;
        let Some(&line) = self.by_name.get(name) else {
            return Ok(Outcome::Reply(Reply::Deleted { existed: false }));
        };
        self.stream_remove(parts, bindings, line);
        Ok(Outcome::Reply(Reply::Deleted { existed: true }))
    }

    /// Removes a stream whose ring its producer never received.
    pub fn never_opened(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, StreamId { line, id }: StreamId) {
        if self.table.get(&line).is_some_and(|stream| stream.id == id) {
            self.stream_remove(parts, bindings, line);
        }
    }

    /// Ends a stream, its name and its entry.
    fn stream_remove(&mut self, parts: &mut Parts<'_>, bindings: &mut Bindings, line: StreamLine) {
        // The name ends first. A daemon that stops here leaves an entry without a name, and the
        // next daemon clears that entry.
        if let Some(found) = parts.context.directory.find_live(&stream_key(&self.table[&line].name)) {
            bindings.set_tombstone(parts.context, found.entry);
        }
        tensorlend_layout::crash_point!("daemon: stream buried");
        let producer = self.stream_clear(parts, line);
        tensorlend_layout::crash_point!("daemon: stream cleared");
        self.free_lines.push(line);
        Self::after_stream(parts, bindings, producer);
        parts.context.directory.announce(u64::MAX);
    }

    /// Releases all streams, at the end of the daemon.
    pub fn streams_dissolve(&mut self, parts: &mut Parts<'_>) {
        let lines: Vec<StreamLine> = self.table.keys().copied().collect();
        for line in lines {
            self.stream_clear(parts, line);
        }
    }
}
