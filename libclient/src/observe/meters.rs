//! Quantities that are computed from several observations.

use super::observation::{Observation, SlotState, StreamSeen};
use std::collections::HashMap;
use tensorlend_layout::number::{ClientNo, CursorNo};

/// Bytes of slots for each state, over all segments of an observation.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::observe::States;
///
/// client.put("numbers", &[0u8; 4096])?;
/// assert_eq!(States::of(&client.observe()?), States { live: 4096, leased: 0, retired: 0 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct States {
    /// Bytes that a name, list or stream refers to, without a lease.
    pub live: u64,
    /// Bytes that a name, list or stream refers to, under lease.
    pub leased: u64,
    /// Bytes under lease to which no name, list or stream refers any more.
    pub retired: u64,
}

impl States {
    /// Adds up an observation. An [`Inspector`](super::Inspector) sees no slots. For its observations, the sums are those of
    /// the values to which names refer.
    pub fn of(seen: &Observation) -> Self {
        if seen.segments.is_empty() {
            let sum = |is_leased: bool| {
                seen.values.iter().filter(|value| (value.leases > 0) == is_leased).map(|value| value.bytes).sum()
            };
            return Self { live: sum(false), leased: sum(true), retired: 0 };
        }
        let sum = |state| seen.segments.iter().map(|segment| segment.bytes_of(state)).sum();
        Self { live: sum(SlotState::Live), leased: sum(SlotState::Leased), retired: sum(SlotState::Retired) }
    }
}

/// Keeps the state that is needed between observations to compute the rates and losses of streams.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, observe::Meters};
///
/// let camera = client.stream("camera").open()?;
/// let (mut observer, mut meters) = (client.observer(), Meters::default());
/// let first = observer.observe()?;
/// meters.read(first.at_ns, &first.streams);
/// camera.send(client.create(DType::U8, [8])?)?;
/// let second = observer.observe()?;
/// let (rates, _lost) = meters.read(second.at_ns, &second.streams);
/// assert!(rates[&second.streams[0].id] > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Pass one observation after the other, at any interval. Rates are averages over the last interval, and losses are
/// sums.
#[derive(Debug, Default)]
pub struct Meters {
    /// The number of messages sent and the time of the observation, by stream.
    sent: HashMap<u64, (u64, u64)>,
    rates: HashMap<u64, f64>,
    /// The number of messages that a subscriber had missed, by stream, subscriber and cursor.
    missed: HashMap<(u64, ClientNo, CursorNo), u64>,
    lost: HashMap<u64, u64>,
}

impl Meters {
    /// Adds an observation, made at `at_ns` nanoseconds. Returns two maps by stream id: the messages per second since
    /// the previous observation, and the messages that subscribers have missed. The latter include those before the
    /// first observation.
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
                // For a new or restarted subscriber, all losses are new.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::SubscriberSeen;
    use tensorlend_layout::number::StreamLine;
    use tensorlend_layout::wire::Policy;

    fn stream(sent: u64, lost: &[u64]) -> StreamSeen {
        let subscriber = |(at, &lost): (usize, &u64)| SubscriberSeen {
            catalogue: ClientNo::at(at).unwrap(),
            cursor: CursorNo::default(),
            lag: None,
            lost,
        };
        StreamSeen {
            name: "camera".into(),
            index: StreamLine::new(0),
            id: 7,
            producer: ClientNo::new(1),
            capacity: 4,
            policy: Policy::Block,
            sent: Some(sent),
            held: 0,
            is_closed: false,
            subscribers: lost.iter().enumerate().map(subscriber).collect(),
        }
    }

    #[test]
    fn rates_and_losses_follow_from_two_observations() {
        let mut meters = Meters::default();
        let (rates, lost) = meters.read(0, &[stream(100, &[5])]);
        assert_eq!((rates[&7], lost[&7]), (0.0, 5));
        let (rates, lost) = meters.read(2_000_000_000, &[stream(160, &[6, 1])]);
        assert_eq!((rates[&7], lost[&7]), (30.0, 7));
        // One subscriber left, the other restarted: the losses still count.
        let (_, lost) = meters.read(3_000_000_000, &[stream(160, &[2])]);
        assert_eq!(lost[&7], 9);
        let (rates, lost) = meters.read(4_000_000_000, &[]);
        assert!(rates.is_empty() && lost.is_empty());
    }
}
