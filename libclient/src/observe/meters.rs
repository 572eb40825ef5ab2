//! Quantities that are computed from several observations.

use super::observation::{Observation, SegmentSeen, StreamSeen};
use std::collections::HashMap;
use tensorlend_layout::number::{ClientNo, CursorNo};

/// Bytes of values and leases. `live`, `leased` and `free` are disjoint, and `retired` is a part of `leased`.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::observe::States;
///
/// client.put("numbers", &[0u8; 4096])?;
/// let states = States::of(&client.observe()?);
/// assert_eq!((states.live, states.leased, states.retired), (4096, 0, 0));
///
/// let lease = client.get("numbers")?;
/// client.delete("numbers")?;
/// let states = States::of(&client.observe()?);
/// assert_eq!((states.live, states.leased, states.retired), (0, 4096, 4096));
/// # drop(lease);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct States {
    /// Bytes of values to which a name, list or stream refers, without a lease.
    pub live: u64,
    /// Bytes under lease, of current values and of replaced or deleted ones.
    pub leased: u64,
    /// The part of `leased` to which no name, list or stream refers any more.
    pub retired: u64,
    /// The remaining bytes of the segments whose slots the observation has read: unused, drafts, and replaced values
    /// without a lease. `None` if it has read no slots.
    pub free: Option<u64>,
}

impl States {
    /// Adds up an observation. An [`Inspector`](super::Inspector) sees no slots. For its observations, the sums are those of
    /// the values to which names refer.
    pub fn of(seen: &Observation) -> Self {
        let mut sum = Self { free: (seen.bytes_lent == 0).then_some(0), ..Self::default() };
        for one in seen.segments.iter().map(SegmentSeen::states) {
            sum.live += one.live;
            sum.leased += one.leased;
            sum.retired += one.retired;
            sum.free = one.free.map_or(sum.free, |free| Some(sum.free.unwrap_or(0) + free));
        }
        if seen.segments.is_empty() {
            for value in &seen.values {
                *(if value.leases > 0 { &mut sum.leased } else { &mut sum.live }) += value.bytes;
            }
        }
        sum
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
                let key = (stream.id, subscriber.client, subscriber.cursor);
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
            client: ClientNo::at(at).unwrap(),
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
    fn a_stream_that_drops_the_oldest_has_no_problem() {
        let full = |policy| {
            let mut stream = StreamSeen { policy, ..stream(9, &[3]) };
            stream.subscribers[0].lag = Some(4);
            [0, 3].map(|lost| stream.problem(lost))
        };
        assert_eq!(full(Policy::DropOldest), [None, None]);
        assert_eq!(full(Policy::Block), [Some("lags"), Some("lost")]);
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
