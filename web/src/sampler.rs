//! The thread that looks: once for all who ask.

use crate::Connect;
use crate::events::Log;
use crate::history::{History, Point};
use crate::pulse::{Last, Pulse};
use crate::view::{Look, Meters, Namespace, States, now_ms};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tensorlend::observe::Observer;
use tensorlend::{Client, Error};
use tokio::sync::watch;

/// How long a session is left to go on by itself after the daemon was replaced.
const PATIENCE: Duration = Duration::from_secs(5);

/// One namespace, as it is looked at.
struct Watched {
    connect: Connect,
    client: Client,
    observer: Observer,
    meters: Meters,
    history: History,
    last: Arc<Namespace>,
}

/// What the thread keeps.
pub struct Sampler {
    watched: Vec<Watched>,
    pulse: Option<Arc<Pulse>>,
    log: Log,
    number: u64,
    interval: Duration,
    /// Since when the daemon has not answered. A session that it does not know any more stays mapped, and says nothing new.
    away: Option<Instant>,
}

impl Sampler {
    /// Joins the namespaces.
    pub fn new(namespaces: Vec<Connect>, interval: Duration) -> Result<Self, Error> {
        let watched = namespaces.into_iter().map(Watched::new).collect::<Result<Vec<_>, _>>()?;
        // One daemon has all namespaces: its metrics are of all of them.
        let pulse = watched.first().map(|first| Arc::new(Pulse::new(first.client.clone())));
        Ok(Self { watched, pulse, log: Log::default(), number: 0, interval, away: None })
    }

    /// How to join each namespace, by its name.
    pub fn namespaces(&self) -> Vec<(String, Connect)> {
        let named = |watched: &Watched| (watched.client.namespace().to_owned(), watched.connect.clone());
        self.watched.iter().map(named).collect()
    }

    /// One look.
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

    /// Begins to ask whether the daemon answers.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start_pulse(&self, tell: &watch::Sender<Arc<Look>>) -> std::io::Result<()> {
        self.pulse.as_ref().map_or(Ok(()), |pulse| pulse.start(tell.clone(), self.interval))
    }

    /// Looks until nobody is there to tell.
    pub fn run(mut self, tell: &watch::Sender<Arc<Look>>) {
        let mut next = Instant::now();
        while !tell.is_closed() {
            self.reconnect();
            let look = self.look();
            // The daemon may have stopped answering while the look was taken.
            tell.send_modify(|last| *last = Arc::new(look.with(self.daemon())));
            // A look that took long is followed by a pause as long as any.
            next = (next + self.interval).max(Instant::now() + self.interval / 2);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Joins anew where a look failed, or no daemon has answered for long.
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
