//! Samples, which consist of observations, and of values derived from an observation and the
//! previous one.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tensorlend::Stat;
use tensorlend::observe::{ClientSeen, ClientState, Observation, Origin, Sampled, ValueSeen, natural};
use tensorlend_os::clock::duration_ms;

use crate::events::Event;
use crate::history::Point;
use crate::process::Process;
use crate::services::Services;
use hyper::body::Bytes;

/// A sample of all namespaces at one time. All viewers share it.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Sequence number, counted from 1; 0 before the first sample.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The namespaces, in the order in which the server began to show them.
    pub namespaces: Vec<Arc<Namespace>>,
    /// The daemon's metrics; `None` if the daemon does not respond.
    pub stat: Option<Arc<Stat>>,
    /// Time of the daemon's last response, in milliseconds since 1970; 0 if it has never responded.
    pub answered_ms: u64,
    pub process: Process,
    /// This machine's name, and the daemon's socket.
    pub address: Arc<DaemonAddress>,
    /// Time between two samples.
    pub interval: Duration,
    /// The event log, the latest event last.
    pub events: Arc<Vec<Event>>,
    /// The encoded live update. It is encoded when the first viewer needs it.
    pub live: OnceLock<Bytes>,
}

/// The daemon that the server shows. Users with several pages distinguish the pages by the daemon.
#[derive(Debug, Default)]
pub struct DaemonAddress {
    /// The machine's name.
    pub host: String,
    pub socket: String,
}

/// A sample of one namespace.
#[derive(Default)]
pub struct Namespace {
    pub sampled: Sampled,
    /// The reason why the namespace cannot be observed. Then `sampled` is the last successful
    /// sample.
    pub error: Option<String>,
    /// The gateway and the runners.
    pub services: Services,
    /// The history, the oldest point first.
    pub history: Arc<Vec<Point>>,
    /// The values in the natural order of their names, by index. They are sorted when the first viewer needs them.
    pub order: OnceLock<Vec<usize>>,
}

/// The last known state of the daemon.
#[derive(Clone, Default)]
pub struct Last {
    /// The daemon's metrics; `None` if the daemon does not respond.
    pub stat: Option<Arc<Stat>>,
    /// Time of the last response, in milliseconds since 1970; 0 if there was none.
    pub answered_ms: u64,
}

impl Snapshot {
    /// Returns this sample with the daemon's latest known state.
    pub fn with(&self, daemon: Last) -> Self {
        Self { stat: daemon.stat, answered_ms: daemon.answered_ms, live: OnceLock::new(), ..self.clone() }
    }

    /// Returns the namespace with this name. Without a name, returns the first namespace.
    pub fn namespace(&self, name: Option<&str>) -> Option<&Arc<Namespace>> {
        match name {
            Some(name) => self.namespaces.iter().find(|ns| ns.sampled.seen.namespace == name),
            None => self.namespaces.first(),
        }
    }
}

impl Namespace {
    /// Returns the values of names, and those of lists and streams, in the natural order of their names.
    pub fn values(&self) -> impl Iterator<Item = &ValueSeen> {
        fn key(value: &ValueSeen) -> (&str, u64) {
            match &value.origin {
                Origin::Name(name) => (name, 0),
                Origin::Item { list: name, number } | Origin::Message { stream: name, number } => (name, *number),
            }
        }
        let values = &self.sampled.seen.values;
        let order = self.order.get_or_init(|| {
            let mut order: Vec<usize> = (0..values.len()).collect();
            order.sort_by(|&a, &b| {
                let ((a, m), (b, n)) = (key(&values[a]), key(&values[b]));
                natural(a, b).then(m.cmp(&n))
            });
            order
        });
        order.iter().map(|&at| &values[at])
    }
}

/// Returns the clients: the holders of leases first, who may be the cause of a leak, then the others by their lent bytes,
/// and clients that have ended last.
pub fn clients(seen: &Observation) -> Vec<&ClientSeen> {
    let mut clients = seen.lease_holders();
    let mut others: Vec<&ClientSeen> = seen.clients.iter().filter(|client| client.leases == 0).collect();
    others.sort_by_key(|client| (client.state == ClientState::Ended, std::cmp::Reverse(client.bytes)));
    clients.extend(others);
    clients
}

/// Returns the milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, duration_ms)
}
