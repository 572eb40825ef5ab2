//! What one look came to: an observation, and what follows from it and the one before.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tensorlend::Stat;
use tensorlend::observe::Observation;
pub use tensorlend::observe::{Meters, States};

use crate::events::Event;
use crate::history::Point;
use crate::pulse::Last;
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
    /// When the daemon answered last, in milliseconds since 1970; 0: never.
    pub answered_ms: u64,
    /// Time between two looks.
    pub interval: Duration,
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

impl Look {
    /// The same look, with what is known of the daemon by now.
    pub fn with(&self, daemon: Last) -> Self {
        Self {
            number: self.number,
            at_ms: self.at_ms,
            namespaces: self.namespaces.clone(),
            stat: daemon.stat,
            answered_ms: daemon.answered_ms,
            interval: self.interval,
            events: self.events.clone(),
            live: OnceLock::new(),
        }
    }

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

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64)
}
