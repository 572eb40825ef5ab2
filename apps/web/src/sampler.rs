//! The sampling thread, which takes each sample once for all viewers.

use crate::events::Log;
use crate::history::{History, Point};
use crate::process::Process;
use crate::pulse::Pulse;
use crate::services::Services;
use crate::view::{DaemonAddress, Last, Namespace, Snapshot, now_ms};
use crate::{Connect, Later, Source};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tensorlend::observe;
use tensorlend::{Error, Stat};
use tokio::sync::watch;

/// Maximum number of namespaces. Each one has a connection of its own, a quarter of the default maximum of a user.
const NAMESPACES: usize = 64;
/// Maximum number of namespaces in the daemon's metrics. A longer list is incomplete.
const LISTED: usize = 128;
/// Number of samples for which the server still shows a namespace that has ended.
const ENDED: u64 = 60;
/// Pause after a connection to a new namespace has failed, for example because the user has too many sessions.
const DISCOVER_PAUSE: Duration = Duration::from_secs(30);

/// A namespace, and the session that observes it.
struct Watched {
    /// The function that opens a session for a preview. `None` for an observer of all namespaces,
    /// which sees no values.
    connect: Option<Connect>,
    sampler: observe::Sampler,
    history: History,
    last: Arc<Namespace>,
    /// The last sample before the daemon no longer listed the namespace.
    ended: Option<u64>,
}

pub struct Sampler {
    watched: Vec<Watched>,
    later: Option<Later>,
    discover_after: Instant,
    pulse: Option<Arc<Pulse>>,
    log: Log,
    number: u64,
    interval: Duration,
    address: Arc<DaemonAddress>,
}

impl Sampler {
    /// Joins the namespaces, and creates their sampler.
    pub fn new(
        namespaces: Vec<Source>,
        later: Option<Later>,
        interval: Duration,
        socket: String,
    ) -> Result<Self, Error> {
        let watched = namespaces.into_iter().map(Watched::new).collect::<Result<Vec<_>, _>>()?;
        // One connection suffices, because one daemon serves all namespaces, and its metrics cover
        // all of them.
        let pulse = watched.first().map(|first| Arc::new(Pulse::new(first.sampler.asker())));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let address = Arc::new(DaemonAddress { host, socket });
        let discover_after = Instant::now();
        Ok(Self { watched, later, discover_after, pulse, log: Log::default(), number: 0, interval, address })
    }

    /// Returns the name of each joined namespace, with the function that joins it.
    pub fn joined(&self) -> Vec<(String, Connect)> {
        let named = |it: &Watched| Some((it.sampler.namespace().to_owned(), it.connect.clone()?));
        self.watched.iter().filter_map(named).collect()
    }

    /// Takes a sample of all namespaces.
    pub fn sample(&mut self) -> Snapshot {
        self.number += 1;
        let at_ms = now_ms();
        self.log.begin();
        let Last { stat, answered_ms } = self.daemon();
        self.log.daemon(at_ms, stat.as_deref());
        for watched in &mut self.watched {
            watched.sample(at_ms, stat.is_some(), &mut self.log);
        }
        Snapshot {
            number: self.number,
            at_ms,
            namespaces: self.watched.iter().map(|watched| watched.last.clone()).collect(),
            process: stat.as_ref().map_or_else(Process::default, |stat| Process::of(stat.pid)),
            address: self.address.clone(),
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

    /// Starts the check whether the daemon responds.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub fn start_pulse(&self, tell: &watch::Sender<Arc<Snapshot>>) -> std::io::Result<()> {
        self.pulse.as_ref().map_or(Ok(()), |pulse| pulse.start(tell.clone(), self.interval))
    }

    /// Takes samples until all receivers are dropped.
    pub fn run(mut self, tell: &watch::Sender<Arc<Snapshot>>) {
        let mut next = Instant::now();
        while !tell.is_closed() {
            self.reconnect();
            self.discover();
            let snapshot = self.sample();
            // Read the daemon's state again, because it may have changed during the sample.
            tell.send_modify(|last| *last = Arc::new(snapshot.with(self.daemon())));
            // A pause of at least half an interval follows a slow sample.
            next = (next + self.interval).max(Instant::now() + self.interval / 2);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Shows the daemon's new namespaces, and no longer shows those that have ended.
    fn discover(&mut self) {
        if let (Some(_), Some(stat)) = (&self.later, self.daemon().stat) {
            self.drop_ended(&stat);
            self.add_new(&stat);
        }
    }

    fn drop_ended(&mut self, stat: &Stat) {
        if stat.namespaces.len() >= LISTED {
            return;
        }
        // The metrics come through the first connection, so the first namespace stays.
        for watched in self.watched.iter_mut().skip(1) {
            let is_listed = stat.namespaces.iter().any(|it| it.name == watched.sampler.namespace());
            watched.ended = if is_listed { None } else { watched.ended.or(Some(self.number)) };
        }
        self.watched.retain(|watched| {
            let stays = watched.ended.is_none_or(|last| self.number - last < ENDED);
            if !stays {
                self.log.forget(watched.sampler.namespace());
            }
            stays
        });
    }

    /// Adds the namespaces that are not shown yet. After a failed connection, tries again after a pause.
    fn add_new(&mut self, stat: &Stat) {
        let Some(later) = self.later.as_ref().filter(|_| Instant::now() >= self.discover_after) else { return };
        for new in &stat.namespaces {
            let is_shown = self.watched.iter().any(|watched| watched.sampler.namespace() == new.name);
            if is_shown || self.watched.len() >= NAMESPACES {
                continue;
            }
            let Ok(watched) = Watched::new(later(&new.name)) else {
                self.discover_after = Instant::now() + DISCOVER_PAUSE;
                return;
            };
            self.watched.push(watched);
        }
    }

    /// Opens new sessions in namespaces whose sample failed. Opens new sessions in all namespaces
    /// if the daemon does not respond.
    fn reconnect(&mut self) {
        for (at, watched) in self.watched.iter_mut().enumerate() {
            if watched.sampler.reconnect()
                && let (0, Some(pulse)) = (at, &self.pulse)
            {
                pulse.set_asker(watched.sampler.asker());
            }
        }
    }
}

impl Watched {
    fn new(source: Source) -> Result<Self, Error> {
        let (connect, sampler) = match source {
            Source::Join(connect) => {
                let of_session = connect.clone();
                (Some(connect), observe::Sampler::new(move || of_session())?)
            }
            Source::Observe { connect, namespace } => {
                (None, observe::Sampler::inspecting(move || connect(), namespace)?)
            }
        };
        let mut last = Namespace::default();
        sampler.namespace().clone_into(&mut last.sampled.seen.namespace);
        Ok(Self { connect, sampler, history: History::default(), last: Arc::new(last), ended: None })
    }

    fn sample(&mut self, at_ms: u64, daemon_responds: bool, log: &mut Log) {
        let sampled = match self.sampler.sample(daemon_responds) {
            Ok(sampled) => sampled,
            Err(error) => {
                let (sampled, history) = (self.last.sampled.clone(), self.last.history.clone());
                self.last =
                    Arc::new(Namespace { sampled, history, error: Some(error.to_string()), ..Namespace::default() });
                return;
            }
        };
        log.namespace(at_ms, &sampled.seen);
        // An observer of all namespaces sees no values, so it cannot read these documents.
        let services = self.sampler.client().map(|client| Services::read(client, &sampled.seen)).unwrap_or_default();
        let mut now = Namespace { sampled, services, ..Namespace::default() };
        now.history = self.history.add(Point::of(at_ms, &now.sampled));
        self.last = Arc::new(now);
    }
}
