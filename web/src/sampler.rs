//! The sampling thread: it takes one sample for all viewers.

use crate::Connect;
use crate::events::Log;
use crate::history::{History, Point};
use crate::pulse::Pulse;
use crate::view::{Last, Look, Meters, Namespace, States, now_ms};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tensorlend::observe::Observer;
use tensorlend::{Client, Error};
use tokio::sync::watch;

/// Time that a session has to reconnect to a restarted daemon before the sampler replaces it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A namespace, and the session that observes it.
struct Watched {
    connect: Connect,
    client: Client,
    observer: Observer,
    meters: Meters,
    history: History,
    last: Arc<Namespace>,
}

/// The state of the sampling thread.
pub struct Sampler {
    watched: Vec<Watched>,
    pulse: Option<Arc<Pulse>>,
    log: Log,
    number: u64,
    interval: Duration,
    /// Time since which the daemon has not responded. A session that the daemon has forgotten stays mapped, and shows
    /// no changes.
    away: Option<Instant>,
}

impl Sampler {
    /// Joins the namespaces.
    pub fn new(namespaces: Vec<Connect>, interval: Duration) -> Result<Self, Error> {
        let watched = namespaces.into_iter().map(Watched::new).collect::<Result<Vec<_>, _>>()?;
        // One daemon serves all namespaces: its metrics cover all of them.
        let pulse = watched.first().map(|first| Arc::new(Pulse::new(first.client.clone())));
        Ok(Self { watched, pulse, log: Log::default(), number: 0, interval, away: None })
    }

    /// Returns the function that joins each namespace, by the namespace's name.
    pub fn namespaces(&self) -> Vec<(String, Connect)> {
        let named = |watched: &Watched| (watched.client.namespace().to_owned(), watched.connect.clone());
        self.watched.iter().map(named).collect()
    }

    /// Takes a sample.
    pub fn look(&mut self) -> Look {
        self.number += 1;
        let at_ms = now_ms();
        self.log.begin();
        let Last { stat, answered_ms } = self.daemon();
        self.away = if stat.is_some() { None } else { self.away.or_else(|| Some(Instant::now())) };
        self.log.daemon(at_ms, stat.as_deref());
        for watched in &mut self.watched {
            watched.look(at_ms, &mut self.log);
        }
        Look {
            number: self.number,
            at_ms,
            namespaces: self.watched.iter().map(|watched| watched.last.clone()).collect(),
            stat,
            answered_ms,
            interval: self.interval,
            events: self.log.all(),
            live: OnceLock::new(),
        }
    }

    fn daemon(&self) -> Last {
        self.pulse.as_ref().map(|pulse| pulse.last()).unwrap_or_default()
    }

    /// Starts to check whether the daemon responds.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start_pulse(&self, tell: &watch::Sender<Arc<Look>>) -> std::io::Result<()> {
        self.pulse.as_ref().map_or(Ok(()), |pulse| pulse.start(tell.clone(), self.interval))
    }

    /// Takes samples until there are no receivers.
    pub fn run(mut self, tell: &watch::Sender<Arc<Look>>) {
        let mut next = Instant::now();
        while !tell.is_closed() {
            self.reconnect();
            let look = self.look();
            // The daemon may have stopped responding during the sample.
            tell.send_modify(|last| *last = Arc::new(look.with(self.daemon())));
            // A slow sample is followed by a pause of at least half an interval.
            next = (next + self.interval).max(Instant::now() + self.interval / 2);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Opens new sessions where a sample failed, and everywhere if the daemon has not responded for [`PATIENCE`].
    fn reconnect(&mut self) {
        let is_away = self.away.is_some_and(|since| since.elapsed() >= PATIENCE);
        for (at, watched) in self.watched.iter_mut().enumerate() {
            if !is_away && watched.last.error.is_none() {
                continue;
            }
            if let Ok(client) = (watched.connect)() {
                if let (0, Some(pulse)) = (at, &self.pulse) {
                    pulse.set_client(client.clone());
                }
                watched.observer = client.observer();
                watched.client = client;
            }
        }
    }
}

impl Watched {
    fn new(connect: Connect) -> Result<Self, Error> {
        let client = connect()?;
        let observer = client.observer();
        let mut last = Namespace::default();
        client.namespace().clone_into(&mut last.seen.namespace);
        let (meters, history) = (Meters::default(), History::default());
        Ok(Self { connect, client, observer, meters, history, last: Arc::new(last) })
    }

    fn look(&mut self, at_ms: u64, log: &mut Log) {
        let seen = match self.observer.observe() {
            Ok(seen) => seen,
            Err(error) => {
                self.last = Arc::new(Namespace {
                    seen: self.last.seen.clone(),
                    error: Some(error.to_string()),
                    bytes: self.last.bytes,
                    history: self.last.history.clone(),
                    ..Namespace::default()
                });
                return;
            }
        };
        log.namespace(at_ms, &seen);
        let (rates, lost) = self.meters.read(seen.at_ns, &seen.streams);
        let bytes = States::of(&seen);
        let mut now = Namespace { seen, error: None, bytes, rates, lost, history: Arc::default() };
        let uids = now.bytes_by_uid();
        now.history = self.history.add(Point::of(at_ms, &now.seen, bytes, uids));
        self.last = Arc::new(now);
    }
}
