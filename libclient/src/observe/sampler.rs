//! Successive samples of one namespace, for tools that display it.

use super::{Inspector, Meters, Observation, Observer, States, StreamSeen, inspector};
use crate::client::Client;
use crate::control::Control;
use crate::error::Result;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::Stat;

/// Time that a session has to reconnect to a restarted daemon before [`Sampler::reconnect`] replaces it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An observation, and the values derived from this observation and the previous one.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// The observation.
    pub seen: Observation,
    /// Bytes of slots for each state.
    pub states: States,
    /// Messages per second, by stream id.
    pub rates: HashMap<u64, f64>,
    /// Messages that subscribers missed, by stream id.
    pub lost: HashMap<u64, u64>,
}

impl Sampled {
    /// Returns a stream's messages per second. Returns `None` if the stream's ring is not mapped yet.
    pub fn rate(&self, stream: &StreamSeen) -> Option<f64> {
        self.rates.get(&stream.id).copied()
    }

    /// Returns the number of a stream's messages that subscribers missed.
    pub fn lost(&self, stream: &StreamSeen) -> u64 {
        self.lost.get(&stream.id).copied().unwrap_or(0)
    }
}

/// Observes a namespace repeatedly, and replaces a session that the daemon has lost.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let socket = daemon.socket().to_owned();
/// use tensorlend::{Client, observe::Sampler};
///
/// let mut sampler = Sampler::new(move || Client::builder().socket(&socket).connect())?;
/// sampler.client().unwrap().put("numbers", &[0u8; 4096])?;
/// let responds = sampler.asker().stat().is_ok();
/// let sampled = sampler.sample(responds)?;
/// assert_eq!((sampled.states.live, sampled.seen.clients.len()), (4096, 1));
/// assert!(!sampler.reconnect(), "the session is in order");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sampler {
    source: Source,
    meters: Meters,
    has_failed: bool,
    /// The time since which the daemon has not responded. A session that the daemon has forgotten stays mapped, but
    /// shows no changes.
    away: Option<Instant>,
}

enum Source {
    /// A client of the namespace, which reads shared memory.
    Client { connect: Box<dyn Fn() -> Result<Client> + Send>, client: Client, observer: Observer },
    /// An observer of all namespaces, which asks the daemon.
    Inspector { connect: Box<dyn Fn() -> Result<Inspector> + Send>, inspector: Inspector, namespace: String },
}

/// Requests the daemon's metrics. It can do this on another thread than the sampler's.
#[derive(Clone)]
pub struct Asker(Asks);

#[derive(Clone)]
enum Asks {
    Client(Client),
    Control(Arc<Control>),
}

impl Asker {
    /// Returns the daemon's metrics.
    ///
    /// # Errors
    /// The errors of [`Client::stat`].
    pub fn stat(&self) -> Result<Stat> {
        match &self.0 {
            Asks::Client(client) => client.stat(),
            Asks::Control(control) => inspector::stat(control),
        }
    }
}

impl Sampler {
    /// Joins the namespace. `connect` opens each session.
    ///
    /// # Errors
    /// The errors of `connect`.
    pub fn new(connect: impl Fn() -> Result<Client> + Send + 'static) -> Result<Self> {
        let client = connect()?;
        let observer = client.observer();
        Ok(Self::of(Source::Client { connect: Box::new(connect), client, observer }))
    }

    /// Observes a namespace without joining it. `connect` opens each inspector.
    ///
    /// # Errors
    /// The errors of `connect`.
    pub fn inspecting(
        connect: impl Fn() -> Result<Inspector> + Send + 'static,
        namespace: impl Into<String>,
    ) -> Result<Self> {
        let inspector = connect()?;
        Ok(Self::of(Source::Inspector { connect: Box::new(connect), inspector, namespace: namespace.into() }))
    }

    fn of(source: Source) -> Self {
        Self { source, meters: Meters::default(), has_failed: false, away: None }
    }

    /// Returns the client of the current session. Returns `None` for an observer of all namespaces.
    pub fn client(&self) -> Option<&Client> {
        match &self.source {
            Source::Client { client, .. } => Some(client),
            Source::Inspector { .. } => None,
        }
    }

    /// Returns the name of the namespace.
    pub fn namespace(&self) -> &str {
        match &self.source {
            Source::Client { client, .. } => client.namespace(),
            Source::Inspector { namespace, .. } => namespace,
        }
    }

    /// Returns the present connection for requests of metrics. [`Sampler::reconnect`] replaces this connection.
    pub fn asker(&self) -> Asker {
        Asker(match &self.source {
            Source::Client { client, .. } => Asks::Client(client.clone()),
            Source::Inspector { inspector, .. } => Asks::Control(inspector.control()),
        })
    }

    /// Takes a sample. `daemon_responds` states whether the daemon has responded to the caller's last request. One
    /// request can serve the samplers of several namespaces.
    ///
    /// # Errors
    /// The errors of [`Observer::observe`].
    pub fn sample(&mut self, daemon_responds: bool) -> Result<Sampled> {
        self.away = if daemon_responds { None } else { self.away.or_else(|| Some(Instant::now())) };
        let observed = match &mut self.source {
            Source::Client { observer, .. } => observer.observe(),
            Source::Inspector { inspector, namespace, .. } => inspector.observe(namespace),
        };
        self.has_failed = observed.is_err();
        let seen = observed?;
        let (rates, lost) = self.meters.read(seen.at_ns, &seen.streams);
        Ok(Sampled { states: States::of(&seen), seen, rates, lost })
    }

    /// Opens a new session if the last sample failed, or if the daemon has not responded for [`TIMEOUT`]. Returns
    /// whether it opened one. Waits as long as `connect` waits.
    pub fn reconnect(&mut self) -> bool {
        if !self.has_failed && self.away.is_none_or(|since| since.elapsed() < TIMEOUT) {
            return false;
        }
        match &mut self.source {
            Source::Client { connect, client, observer } => {
                let Ok(next) = connect() else { return false };
                *observer = next.observer();
                *client = next;
            }
            Source::Inspector { connect, inspector, .. } => {
                let Ok(next) = connect() else { return false };
                *inspector = next;
            }
        }
        true
    }
}
