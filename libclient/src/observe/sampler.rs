//! Successive samples of one namespace, for tools that display it.

use super::{Meters, Observation, Observer, States};
use crate::client::Client;
use crate::error::Result;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time that a session has to reconnect to a restarted daemon before [`Sampler::reconnect`] replaces it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An observation, and the values derived from it and its predecessor.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// The observation.
    pub seen: Observation,
    /// Bytes by state of their slot.
    pub states: States,
    /// Messages per second, by stream id.
    pub rates: HashMap<u64, f64>,
    /// Messages that subscribers missed, by stream id.
    pub lost: HashMap<u64, u64>,
}

/// Observes a namespace repeatedly, and replaces a session that the daemon has lost.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let socket = daemon.socket().to_owned();
/// use tensorlend::{Client, observe::Sampler};
///
/// let mut sampler = Sampler::new(move || Client::builder().socket(&socket).connect())?;
/// sampler.client().put("numbers", &[0u8; 4096])?;
/// let responds = sampler.client().stat().is_ok();
/// let sampled = sampler.sample(responds)?;
/// assert_eq!((sampled.states.live, sampled.seen.clients.len()), (4096, 1));
/// assert!(!sampler.reconnect(), "the session is in order");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sampler {
    connect: Box<dyn Fn() -> Result<Client> + Send>,
    client: Client,
    observer: Observer,
    meters: Meters,
    has_failed: bool,
    /// Time since which the daemon has not responded. A session that the daemon has forgotten stays mapped, and shows
    /// no changes.
    away: Option<Instant>,
}

impl Sampler {
    /// Joins the namespace; `connect` opens each session.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn new(connect: impl Fn() -> Result<Client> + Send + 'static) -> Result<Self> {
        let client = connect()?;
        let observer = client.observer();
        Ok(Self {
            connect: Box::new(connect),
            client,
            observer,
            meters: Meters::default(),
            has_failed: false,
            away: None,
        })
    }

    /// Returns the client of the current session.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Takes a sample. `daemon_responds` says whether the daemon has answered the caller's last request: one request
    /// can serve the samplers of several namespaces.
    ///
    /// # Errors
    /// As [`Observer::observe`].
    pub fn sample(&mut self, daemon_responds: bool) -> Result<Sampled> {
        self.away = if daemon_responds { None } else { self.away.or_else(|| Some(Instant::now())) };
        let observed = self.observer.observe();
        self.has_failed = observed.is_err();
        let seen = observed?;
        let (rates, lost) = self.meters.read(seen.at_ns, &seen.streams);
        Ok(Sampled { states: States::of(&seen), seen, rates, lost })
    }

    /// Opens a new session if the last sample failed, or if the daemon has not responded for [`TIMEOUT`]. Returns
    /// whether there is a new session. Waits as long as `connect` does.
    pub fn reconnect(&mut self) -> bool {
        if !self.has_failed && self.away.is_none_or(|since| since.elapsed() < TIMEOUT) {
            return false;
        }
        let Ok(client) = (self.connect)() else { return false };
        self.observer = client.observer();
        self.client = client;
        true
    }
}
