//! What one look came to: an observation, and what follows from it and the one before.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tensorlend::Stat;
use tensorlend::observe::{Observation, SlotState, StreamSeen};

use crate::events::Event;
use crate::history::Point;
use hyper::body::Bytes;

/// All namespaces, at one time. Shared by all who ask.
#[derive(Default)]
pub struct Look {
    /// Which look it is, from 1 on; 0: none was taken yet.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// By name.
    pub namespaces: Vec<Arc<Namespace>>,
    /// The daemon's figures; `None`: it does not answer.
    pub stat: Option<Arc<Stat>>,
    /// What happened, the latest last.
    pub events: Arc<Vec<Event>>,
    /// The piece that viewers get, made when the first of them wants it.
    pub live: OnceLock<Bytes>,
}

/// A namespace.
#[derive(Default)]
pub struct Namespace {
    pub seen: Observation,
    /// Why it cannot be looked at; then `seen` is the last that was seen.
    pub error: Option<String>,
    /// Bytes by state.
    pub bytes: States,
    /// Messages a second, by stream id.
    pub rates: HashMap<u64, f64>,
    /// Messages that subscribers missed since this server began, by stream id.
    pub lost: HashMap<u64, u64>,
    /// What was, the oldest first.
    pub history: Arc<Vec<Point>>,
}

/// Bytes of slots by state.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct States {
    pub live: u64,
    pub leased: u64,
    pub retired: u64,
}

impl States {
    pub fn of(seen: &Observation) -> Self {
        let sum = |state| seen.segments.iter().map(|segment| segment.bytes_of(state)).sum();
        Self { live: sum(SlotState::Live), leased: sum(SlotState::Leased), retired: sum(SlotState::Retired) }
    }
}

impl Look {
    /// The namespace of this name, or the first.
    pub fn namespace(&self, name: Option<&str>) -> Option<&Arc<Namespace>> {
        match name {
            Some(name) => self.namespaces.iter().find(|ns| ns.seen.namespace == name),
            None => self.namespaces.first(),
        }
    }
}

impl Namespace {
    /// Bytes of segments by user.
    pub fn bytes_by_uid(&self) -> BTreeMap<u32, u64> {
        let mut sums = BTreeMap::new();
        for client in &self.seen.clients {
            *sums.entry(client.uid).or_default() += client.bytes;
        }
        sums
    }
}

/// What has to be kept from look to look to tell rates and losses.
#[derive(Default)]
pub struct Meters {
    /// By stream: messages sent, and when that was seen.
    sent: HashMap<u64, (u64, u64)>,
    rates: HashMap<u64, f64>,
    /// By stream, subscriber and cursor: messages it had missed.
    missed: HashMap<(u64, u16, u16), u64>,
    lost: HashMap<u64, u64>,
}

impl Meters {
    /// Takes a look in. Returns messages a second and messages missed, by stream id.
    pub fn read(&mut self, at_ns: u64, streams: &[StreamSeen]) -> (HashMap<u64, f64>, HashMap<u64, u64>) {
        let mut missed = HashMap::new();
        for stream in streams {
            if let Some(sent) = stream.sent {
                let (before, then_ns) = self.sent.insert(stream.id, (sent, at_ns)).unwrap_or((sent, at_ns));
                let seconds = at_ns.saturating_sub(then_ns) as f64 / 1e9;
                let rate = if seconds > 0.0 { sent.saturating_sub(before) as f64 / seconds } else { 0.0 };
                self.rates.insert(stream.id, rate);
            }
            let lost = self.lost.entry(stream.id).or_default();
            for subscriber in &stream.subscribers {
                let key = (stream.id, subscriber.catalogue, subscriber.cursor);
                // Whoever is new here, or began anew, has missed all that it says.
                let before = self.missed.get(&key).copied().filter(|&before| before <= subscriber.lost).unwrap_or(0);
                *lost = lost.saturating_add(subscriber.lost - before);
                missed.insert(key, subscriber.lost);
            }
        }
        self.missed = missed;
        let is_there = |id: &u64| streams.iter().any(|stream| stream.id == *id);
        self.sent.retain(|id, _| is_there(id));
        self.rates.retain(|id, _| is_there(id));
        self.lost.retain(|id, _| is_there(id));
        (self.rates.clone(), self.lost.clone())
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::Policy;
    use tensorlend::observe::SubscriberSeen;

    fn stream(sent: u64, lost: &[u64]) -> StreamSeen {
        let subscriber =
            |(at, &lost): (usize, &u64)| SubscriberSeen { catalogue: at as u16, cursor: 0, lag: None, lost };
        StreamSeen {
            name: "camera".into(),
            index: 0,
            id: 7,
            producer: 1,
            capacity: 4,
            policy: Policy::Block,
            sent: Some(sent),
            held: 0,
            is_closed: false,
            subscribers: lost.iter().enumerate().map(subscriber).collect(),
        }
    }

    #[test]
    fn rates_and_losses_follow_from_two_looks() {
        let mut meters = Meters::default();
        let (rates, lost) = meters.read(0, &[stream(100, &[5])]);
        assert_eq!((rates[&7], lost[&7]), (0.0, 5));
        let (rates, lost) = meters.read(2_000_000_000, &[stream(160, &[6, 1])]);
        assert_eq!((rates[&7], lost[&7]), (30.0, 7));
        // One went, the other began anew: what was lost stays lost.
        let (_, lost) = meters.read(3_000_000_000, &[stream(160, &[2])]);
        assert_eq!(lost[&7], 9);
        let (rates, lost) = meters.read(4_000_000_000, &[]);
        assert!(rates.is_empty() && lost.is_empty());
    }
}
