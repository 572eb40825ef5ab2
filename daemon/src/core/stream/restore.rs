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

/// The ring of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingId {
    /// The stream's entry in the table of streams.
    pub place: StreamLine,
    /// The stream's id.
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
            let (place, producer) = (owner_word.stream(), owner_word.owner());
            let line = parts.context.directory.streams.get(place.index()).filter(|line| line.id.peek() <= IDS_MAX);
            let id = line.map_or(0, |line| line.id.peek());
            newest = newest.max(id);
            let stream = line.filter(|_| parts.members.get(producer).is_some()).and_then(|line| {
                let ring = rings.remove(&RingId { place, id })?;
                let policy = match line.policy.peek() {
                    1 => Policy::DropOldest,
                    2 => Policy::Error,
                    _ => Policy::Block,
                };
                let namespace = parts.context.ledger.id();
                let subscribers = Self::restore_subscribers(parts.env, parts.members, namespace, line, wakes);
                let capacity = line.capacity.peek() as u32;
                let idle_since_ns = None;
                Some(Stream { name: name.into(), id, producer, ring, capacity, policy, subscribers, idle_since_ns })
            });
            if let Some(stream) = stream {
                streams.by_name.insert(stream.name.clone(), place);
                streams.table.insert(place, stream);
            } else {
                lost.push(id);
                bindings.bury(parts.context, entry);
            }
        }
        streams.places.retain(|place| !streams.table.contains_key(place));
        for &place in &streams.places {
            let line = &parts.context.directory.streams[place.index()];
            line.id.set(0);
            line.subscribers.iter().for_each(|word| word.set(0));
            line.subscribers_count.set(0);
            line.subscribers_version.add(1);
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
        line: &StreamEntry,
        wakes: &mut Wakes,
    ) -> Vec<Option<Subscriber>> {
        let mut seen = BTreeSet::new();
        let mut subscribers: Vec<Option<Subscriber>> = Vec::new();
        for word in &line.subscribers {
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
            let wake = wakes.remove(&(line.id.peek(), whose.0, whose.1));
            let wake = wake.map(|mem| (mem, env.accounts.charge_recovered(Some(client.uid), namespace, Kind::Wake, 0)));
            subscribers.push(Some(Subscriber { number: whose.0, cursor: whose.1, wake }));
        }
        while subscribers.last().is_some_and(Option::is_none) {
            subscribers.pop();
        }
        line.subscribers_count.set(subscribers.len() as u64);
        // The previous daemon may have changed the list, and not its version.
        line.subscribers_version.add(1);
        subscribers
    }
}
