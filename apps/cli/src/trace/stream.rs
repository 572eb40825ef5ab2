//! Events of a stream.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorlend::Client;
use tensorlend::observe::{ClientNo, CursorNo, Observation, Origin, StreamSeen, ValueSeen};

use super::Tell;
use super::event::{Seen, Who};

/// The state of a stream at the last sample.
#[derive(Default)]
struct Before {
    id: u64,
    /// Number of messages that the trace has reported as sent.
    told: u64,
    is_closed: bool,
    subscribers: BTreeMap<(ClientNo, CursorNo), Subscriber>,
}

/// The state of a subscriber at the last sample.
struct Subscriber {
    who: Who,
    /// Number of messages that the subscriber has received or lost; `None` before its first
    /// message.
    next: Option<u64>,
    lost: u64,
}

/// Takes samples until the receiver has been dropped.
pub fn watch(client: &Client, name: &str, interval: Duration, tell: &Tell) {
    let mut observer = client.observer();
    let mut before: Option<Before> = None;
    loop {
        let seen = match observer.observe() {
            Ok(seen) => seen,
            Err(error) => return tell.failure(error),
        };
        let stream = seen.streams.iter().find(|stream| stream.name == name);
        let mut events = Vec::new();
        if before.as_ref().is_some_and(|before| stream.is_none_or(|stream| stream.id != before.id)) {
            before = None;
            events.push(Seen::Ended { stream: name.to_owned() });
        }
        // If the ring is not mapped yet, the next sample maps it.
        if let Some((stream, sent)) = stream.and_then(|stream| Some((stream, stream.sent?))) {
            let before = before.get_or_insert_with(|| {
                events.push(opened(&seen, stream, sent));
                Before { id: stream.id, told: sent.saturating_sub(stream.held), ..Before::default() }
            });
            tell_of(&seen, stream, sent, before, &mut events);
        }
        if !events.into_iter().all(|event| tell.event(event)) {
            return;
        }
        std::thread::sleep(interval);
    }
}

fn opened(seen: &Observation, stream: &StreamSeen, sent: u64) -> Seen {
    let (name, producer) = (stream.name.clone(), Who::of(&seen.clients, stream.producer));
    Seen::Opened { stream: name, capacity: stream.capacity, policy: stream.policy_word(), sent, producer }
}

/// Derives the events from this sample and the previous one.
fn tell_of(seen: &Observation, stream: &StreamSeen, sent: u64, before: &mut Before, events: &mut Vec<Seen>) {
    messages(seen, stream, sent, before, events);
    let name = || stream.name.clone();
    let mut there = BTreeMap::new();
    for one in &stream.subscribers {
        let key = (one.client, one.cursor);
        let who = Who::of(&seen.clients, one.client);
        let next = one.lag.map(|lag| sent.saturating_sub(lag));
        let known = before.subscribers.remove(&key);
        if known.is_none() {
            events.push(Seen::Subscribed { stream: name(), subscriber: who.clone() });
        }
        let lost_before = known.as_ref().map_or(0, |known| known.lost);
        let missed = one.lost.saturating_sub(lost_before);
        if missed > 0 {
            events.push(Seen::Lost { stream: name(), messages: missed, total: one.lost, subscriber: who.clone() });
        }
        if let (Some(next), Some(then)) = (next, known.and_then(|known| known.next)) {
            // Lost messages do not count as received.
            let messages = next.saturating_sub(then).saturating_sub(missed);
            if messages > 0 {
                let lag = one.lag.unwrap_or(0);
                events.push(Seen::Received { stream: name(), messages, lag, subscriber: who.clone() });
            }
        }
        there.insert(key, Subscriber { who, next, lost: one.lost });
    }
    for gone in std::mem::replace(&mut before.subscribers, there).into_values() {
        events.push(Seen::Unsubscribed { stream: name(), subscriber: gone.who });
    }
    if stream.is_closed && !before.is_closed {
        before.is_closed = true;
        events.push(Seen::Closed { stream: name(), sent });
    }
}

/// Reports the messages sent since the last sample. Reports each message that the ring still holds,
/// and the number of the other messages.
fn messages(seen: &Observation, stream: &StreamSeen, sent: u64, before: &mut Before, events: &mut Vec<Seen>) {
    let mut held: BTreeMap<u64, &ValueSeen> = BTreeMap::new();
    for value in &seen.values {
        if let Origin::Message { stream: of, number } = &value.origin
            && *of == stream.name
            && (before.told..sent).contains(number)
        {
            held.insert(*number, value);
        }
    }
    let passed = |first: u64, end: u64| {
        (first < end).then(|| Seen::Passed { stream: stream.name.clone(), first, last: end - 1 })
    };
    for (number, value) in held {
        events.extend(passed(before.told, number));
        before.told = number + 1;
        events.push(Seen::Sent {
            stream: stream.name.clone(),
            number,
            dtype: value.dtype.map(tensorlend::DType::name),
            shape: value.shape.clone(),
            nbytes: value.bytes,
        });
    }
    events.extend(passed(before.told, sent));
    before.told = before.told.max(sent);
}
