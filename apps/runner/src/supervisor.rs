//! The supervisor, which runs a worker process for each model.

use crate::args::Args;
use crate::post::{News, Post};
use crate::report::Report;
use crate::worker::Trouble;
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tensorlend::{Client, Lifetime, Version};
use tensorlend_model::{Fault, Models, model_fault_name};

/// Minimum interval between two listings of the models.
const POLL: Duration = Duration::from_millis(250);
/// Divisor for the time of listings. The supervisor spends at most 1/SHARE of its time on listings.
const SHARE: u32 = 20;
/// Delay before a restart after a worker's first fault. Each further fault doubles the delay.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum delay before a restart.
const AGAIN_MAX: Duration = Duration::from_secs(30);
/// Number of successive workers that may end while they load the same version of a model. The
/// supervisor then starts no worker for the model until there is another version. Workers that
/// another process killed do not count.
const UNREAD_MAX: u32 = 3;
/// Time of service after which the supervisor forgets a worker's earlier faults.
const WELL: Duration = Duration::from_mins(1);

/// Runs the supervisor until the daemon ends its session.
///
/// # Errors
/// An error if the supervisor cannot connect, or if its session ends.
pub fn run(args: &Args) -> Result<(), Trouble> {
    let client = args.client("tensorlend-runner").connect()?;
    tracing::info!("serving models that match {:?} in namespace {}", args.model, client.namespace());
    let (sender, news) = channel();
    let mut supervisor = Supervisor { args, client, models: BTreeMap::new(), sender, numbers: 0 };
    let (mut next, mut trouble) = (Instant::now(), false);
    loop {
        if Instant::now() >= next {
            let start = Instant::now();
            match supervisor.poll() {
                Ok(()) => trouble = false,
                Err(error @ (tensorlend::Error::SessionEnded | tensorlend::Error::Argument(_))) => {
                    return Err(error.into());
                }
                Err(error) if !trouble => {
                    tracing::warn!("cannot list the models: {error}");
                    trouble = true;
                }
                Err(_) => {}
            }
            next = start + POLL.max(start.elapsed() * SHARE);
        }
        supervisor.tend();
        match news.recv_timeout(next.saturating_duration_since(Instant::now()).min(POLL)) {
            Ok(one) => supervisor.hear(one),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the supervisor has a sender"),
        }
    }
}

struct Supervisor<'s> {
    args: &'s Args,
    client: Client,
    models: BTreeMap<String, Tended>,
    sender: Sender<News>,
    numbers: u64,
}

/// The supervisor's state of one model.
struct Tended {
    /// The current version. `None` if the model was removed.
    version: Option<Version>,
    /// A version that workers could not load. The supervisor starts no worker for this version
    /// again.
    refused: Option<Version>,
    post: Option<Post>,
    /// Number of successive unexpected ends of workers.
    faults: u32,
    /// Number of successive workers that ended unexpectedly while they loaded this version. Killed
    /// workers do not count.
    unread: u32,
    /// Earliest time at which the next worker may start.
    again: Instant,
}

impl Supervisor<'_> {
    /// Lists the models of the namespace, and records new, replaced and removed models.
    fn poll(&mut self) -> tensorlend::Result<()> {
        let found = Models::new(&self.client).list(&self.args.model)?;
        let found: BTreeMap<String, Version> = found.into_iter().map(|model| (model.name, model.version)).collect();
        for (name, tended) in &mut self.models {
            if tended.version.is_some() && !found.contains_key(name) {
                tracing::info!("model {name:?} was removed");
                tended.version = None;
                let _ = self.client.delete(&model_fault_name(name));
            }
        }
        for (name, version) in found {
            let tended = self.models.entry(name).or_insert_with(|| Tended {
                version: None,
                refused: None,
                post: None,
                faults: 0,
                unread: 0,
                again: Instant::now(),
            });
            if tended.version.replace(version) != Some(version) {
                (tended.faults, tended.unread, tended.again) = (0, 0, Instant::now());
            }
        }
        Ok(())
    }

    /// Starts missing workers, and checks the running ones.
    fn tend(&mut self) {
        for (name, tended) in &mut self.models {
            if let Some(post) = &mut tended.post {
                post.watch(self.args.load_timeout);
            } else if let Some(version) = tended.version
                && tended.refused != Some(version)
                && Instant::now() >= tended.again
            {
                self.numbers += 1;
                match Post::start(name, version, self.numbers, self.sender.clone()) {
                    Ok(post) => tended.post = Some(post),
                    Err(error) => {
                        tracing::error!("model {name:?}: its worker cannot be started: {error}");
                        tended.again = Instant::now() + AGAIN_MAX;
                    }
                }
            }
        }
        self.models.retain(|_, tended| tended.version.is_some() || tended.post.is_some());
    }

    fn hear(&mut self, (number, report): News) {
        let of = |tended: &Tended| tended.post.as_ref().is_some_and(|post| post.number == number);
        let Some((name, tended)) = self.models.iter_mut().find(|(_, tended)| of(tended)) else { return };
        let Some(post) = &mut tended.post else { return };
        if let Some(report) = report {
            if let Report::Serving { engine, .. } = &report {
                tracing::info!("model {name:?} is served by process {} with {engine}", post.pid());
            }
            if let Report::Unconfined { why } = &report {
                tracing::info!("model {name:?}: process {} is not fully confined: {why}", post.pid());
            }
            post.hear(report, self.args.timeout);
        } else {
            // The fault of a removed model's worker is ignored, because no caller sends requests
            // for that model.
            let fault = Self::ended(name, tended).filter(|_| tended.version.is_some());
            if let Some(fault) = fault
                && let Err(error) = publish(&self.client, name, &fault)
            {
                tracing::warn!("a fault could not be published: {error}");
            }
        }
    }

    /// Handles the end of a worker. Returns a fault to publish, or `None`.
    fn ended(name: &str, tended: &mut Tended) -> Option<Fault> {
        let mut post = tended.post.take()?;
        let wrong = post.end();
        let fault = |why: String, refused: Option<Version>, again: Duration| {
            let then = match refused {
                Some(_) => "it is not tried again until it is replaced".to_owned(),
                None => format!("another one is started in {again:?}"),
            };
            let why = format!("{why}; {then}");
            tracing::warn!("model {name:?}: {why}");
            Some(Fault { v: 1, why, runner: std::process::id(), refused: refused.map(Version::words) })
        };
        if let Some((version, why)) = post.refused.take() {
            let version = Version::from_words(version);
            tended.refused = Some(version);
            return fault(format!("it cannot be read: {why}"), Some(version), Duration::ZERO);
        }
        let Some(wrong) = wrong else {
            // The worker detected before the supervisor that its model was replaced or removed, and
            // ended.
            tended.again = Instant::now();
            return None;
        };
        let served = post.serving.is_some();
        tended.unread = if served || wrong.from_outside { 0 } else { tended.unread + 1 };
        // A version that has made [`UNREAD_MAX`] workers end would also make the next worker end.
        if tended.unread == UNREAD_MAX {
            tended.refused = Some(post.of);
            return fault(format!("{}, as {UNREAD_MAX} did in a row", wrong.why), Some(post.of), Duration::ZERO);
        }
        tended.faults = if served && post.started.elapsed() > WELL { 1 } else { tended.faults + 1 };
        let pause = AGAIN_MAX.min(AGAIN * 2u32.saturating_pow(tended.faults - 1).min(1 << 10));
        tended.again = Instant::now() + pause;
        fault(wrong.why, None, pause)
    }
}

fn publish(client: &Client, model: &str, fault: &Fault) -> tensorlend::Result<()> {
    client.put_for(&model_fault_name(model), &fault.encode()[..], Lifetime::EPHEMERAL)?;
    Ok(())
}
