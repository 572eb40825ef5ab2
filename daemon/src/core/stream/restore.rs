//! The streams of a directory that another daemon wrote last.

use super::{Stream, Streams, Subscriber};
use crate::core::account::Kind;
use crate::core::account::NamespaceId;
use crate::core::bindings::Bindings;
use crate::core::env::Env;
use crate::core::event::MemId;
use crate::core::members::Members;
use crate::core::orders::Part;
use crate::core::parts::Parts;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::StreamEntry;
use tensorlend_layout::name::{self, KeyKind};
use tensorlend_layout::number::{ClientNo, CursorNo, StreamLine};
use tensorlend_layout::wire::Policy;
use tensorlend_layout::word::SubscriberWord;

/// Maximum plausible id of a stream in a directory that another daemon wrote. A larger id is false.
const IDS_MAX: u64 = u64::MAX / 4;

/// Rings by stream entry and id.
pub type Rings = BTreeMap<RingId, Part>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingId {
    /// The stream's entry in the table of streams.
    pub line: StreamLine,
    pub id: u64,
}
/// Wake descriptors by their stream's id, catalogue and cursor.
pub type Wakes = BTreeMap<(u64, ClientNo, CursorNo), MemId>;

impl Streams {
    /// Restores the streams of a directory with the rings that outlived the previous daemon. A
    /// stream without its ring ends. Returns the number of these streams, except the newest stream of all: the previous
    /// daemon may have ended while it opened that stream, before any client knew of it.
    pub fn restore_streams(
        &mut self,
        parts: &mut Parts<'_>,
        bindings: &mut Bindings,
        rings: &mut Rings,
        wakes: &mut Wakes,
    ) -> u64 {
        let (mut lost, mut newest) = (Vec::new(), 0);
        let mut streams = Streams::new(parts.context.ledger.limits().streams_max);
        for (entry, owner_word, key) in parts.context.directory.live_keys(KeyKind::Stream, Some) {
            let Some((KeyKind::Stream, name)) = name::parse(&key) else { continue };
            let (line, producer) = (owner_word.stream(), owner_word.owner());
            let stream_entry = parts
                .context
                .directory
                .streams
                .get(line.index())
                .filter(|stream_entry| stream_entry.id.peek() <= IDS_MAX);
            let id = stream_entry.map_or(0, |stream_entry| stream_entry.id.peek());
            newest = newest.max(id);
            let stream = stream_entry.filter(|_| parts.members.get(producer).is_some()).and_then(|stream_entry| {
                let capacity = stream_entry.capacity.peek().try_into().ok()?;
                let ring = rings.remove(&RingId { line, id })?;
                let policy = match stream_entry.policy.peek() {
                    1 => Policy::DropOldest,
                    2 => Policy::Error,
                    _ => Policy::Block,
                };
                let namespace = parts.context.ledger.id();
                let subscribers = Self::restore_subscribers(parts.env, parts.members, namespace, stream_entry, wakes);
                let idle_since_ns = None;
                Some(Stream { name: name.into(), id, producer, ring, capacity, policy, subscribers, idle_since_ns })
            });
            if let Some(stream) = stream {
                streams.by_name.insert(stream.name.clone(), line);
                streams.table.insert(line, stream);
            } else {
                lost.push(id);
                bindings.set_tombstone(parts.context, entry);
            }
        }
        streams.free_lines.retain(|line| !streams.table.contains_key(line));
        for &line in &streams.free_lines {
            let stream_entry = &parts.context.directory.streams[line.index()];
            stream_entry.id.set(0);
            stream_entry.subscribers.iter().for_each(|word| word.set(0));
            stream_entry.subscribers_count.set(0);
            stream_entry.subscribers_version.add(1);
        }
        // No stream gets the id of an earlier stream. Making a stream takes longer than a
        // microsecond. So the ids of former streams were at most about the current time in
        // microseconds.
        streams.ids = streams.table.values().map(|s| s.id).max().unwrap_or(0).max(parts.env.clock.now_ns() >> 10);
        *self = streams;
        self.update_idle_times(parts.env, parts.members);
        lost.iter().filter(|&&id| id != newest).count() as u64
    }

    fn restore_subscribers(
        env: &mut Env,
        members: &Members,
        namespace: NamespaceId,
        stream_entry: &StreamEntry,
        wakes: &mut Wakes,
    ) -> Vec<Option<Subscriber>> {
        let mut seen = BTreeSet::new();
        let mut subscribers: Vec<Option<Subscriber>> = Vec::new();
        for word in &stream_entry.subscribers {
            let it = SubscriberWord(word.peek());
            let whose = (it.client(), it.cursor());
            let client = members.get(it.client()).filter(|c| c.is_disconnected() && c.member.epoch() == it.epoch());
            let counts = word.peek() != 0 && client.is_some() && seen.insert(whose);
            if word.peek() != 0 && !counts {
                word.set(0);
            }
            let Some(client) = client.filter(|_| counts) else {
                subscribers.push(None);
                continue;
            };
            let wake = wakes.remove(&(stream_entry.id.peek(), whose.0, whose.1));
            let wake = wake.map(|mem| (mem, env.accounts.charge_recovered(Some(client.uid), namespace, Kind::Wake, 0)));
            subscribers.push(Some(Subscriber { number: whose.0, cursor: whose.1, wake }));
        }
        while subscribers.last().is_some_and(Option::is_none) {
            subscribers.pop();
        }
        stream_entry.subscribers_count.set(subscribers.len() as u64);
        // The previous daemon may have changed the list, and not its version.
        stream_entry.subscribers_version.add(1);
        subscribers
    }
}
