//! Samples, which consist of an observation, the daemon's metrics, and values derived from
//! successive samples.

use std::collections::{HashMap, VecDeque};

use tensorlend::observe::{self, Observation, Sampled};
use tensorlend::{Client, ClientBuilder, Error, Stat};

use crate::member::MemberId;

/// Number of samples in a history: as many as a row of the table shows.
pub const POINTS: usize = 60;

/// A sample, and the values derived from it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub sampled: Sampled,
    /// The daemon's metrics; `None` if the daemon does not respond.
    pub stat: Option<Stat>,
    /// Memory in use by each consumer of memory.
    pub uses: Vec<Use>,
    /// The error of the last failed observation.
    pub error: Option<String>,
}

/// A consumer of memory: the pool, a device, a namespace, a uid or a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Use {
    pub kind: &'static str,
    pub who: String,
    pub bytes: u64,
    /// The limit of `bytes`, if there is one.
    pub most: Option<u64>,
    pub client: Option<MemberId>,
    /// Values of `bytes` in the latest samples, the oldest first.
    pub history: Vec<u64>,
}

impl Use {
    /// Returns the consumer's identity. It does not contain a client's command, which may change.
    pub fn id(&self) -> String {
        match self.client {
            Some(client) => format!("{} {} {}", self.kind, client.number, client.epoch),
            None => format!("{} {}", self.kind, self.who),
        }
    }
}

/// Returns all consumers of memory, the pool first.
fn uses(seen: &Observation, stat: Option<&Stat>) -> Vec<Use> {
    let mut all = Vec::new();
    let mut add = |kind, who, bytes, most, client| {
        let most = Some(most).filter(|&most| most != u64::MAX);
        all.push(Use { kind, who, bytes, most, client, history: Vec::new() });
    };
    if let Some(stat) = stat {
        add("pool", "host memory".into(), stat.pool_bytes, stat.pool_bytes_max, None);
        for it in &stat.devices {
            add("device", format!("{} {}", it.offer.name, it.offer.uuid), it.bytes, it.bytes_max, None);
        }
    }
    let (namespaces, uids) = stat.map_or((&[][..], &[][..]), |stat| (&stat.namespaces, &stat.uids));
    if !seen.namespace.is_empty() && namespaces.iter().all(|it| it.name != seen.namespace) {
        add("namespace", seen.namespace.clone(), seen.bytes_lent, seen.bytes_max, None);
    }
    for it in namespaces {
        add("namespace", it.name.clone(), it.bytes, it.bytes_max, None);
    }
    for it in uids {
        add("user", it.uid.to_string(), it.bytes, it.bytes_max, None);
    }
    for it in seen.clients.iter().filter(|client| client.bytes > 0) {
        let who = format!("{} {}", it.pid, it.command.as_ref().unwrap_or(&it.label));
        add("client", who, it.bytes, u64::MAX, Some(MemberId::of(it)));
    }
    all
}

/// The bytes of each consumer of memory in the latest samples, by its identity.
#[derive(Default)]
struct History(VecDeque<HashMap<String, u64>>);

impl History {
    /// Adds the latest sample and fills in the histories. A history begins when its consumer appears.
    fn take_in(&mut self, uses: &mut [Use]) {
        self.0.truncate(POINTS - 1);
        self.0.push_front(uses.iter().map(|it| (it.id(), it.bytes)).collect());
        for it in uses {
            let id = it.id();
            it.history = self.0.iter().map_while(|sample| sample.get(&id).copied()).collect();
            it.history.reverse();
        }
    }
}

/// The source of the samples.
enum Samples {
    Observed(Box<observe::Sampler>),
    /// Only the daemon's metrics, because a limit has refused a session. The text is the refusal.
    Metrics(ClientBuilder, String),
}

/// Takes samples, and stores the histories.
pub struct Sampler {
    samples: Samples,
    history: History,
    last: Facts,
}

impl Sampler {
    /// Joins the namespace to observe it.
    pub fn new(builder: ClientBuilder) -> Result<Self, Error> {
        let metrics = builder.clone();
        let samples = match observe::Sampler::new(move || builder.clone().connect()) {
            Ok(samples) => Samples::Observed(Box::new(samples)),
            Err(refused) if refused.is_limit() && metrics.stat().is_ok() => {
                Samples::Metrics(metrics, refused.to_string())
            }
            Err(error) => return Err(error),
        };
        Ok(Self { samples, history: History::default(), last: Facts::default() })
    }

    /// Observes a namespace without joining it.
    pub fn inspecting(builder: ClientBuilder, namespace: &str) -> Result<Self, Error> {
        let samples = observe::Sampler::inspecting(move || builder.clone().inspect(), namespace)?;
        let samples = Samples::Observed(Box::new(samples));
        Ok(Self { samples, history: History::default(), last: Facts::default() })
    }

    /// Returns the client of the current session; `None` for an observer of all namespaces, or without a session.
    pub fn client(&self) -> Option<&Client> {
        match &self.samples {
            Samples::Observed(samples) => samples.client(),
            Samples::Metrics(..) => None,
        }
    }

    /// Takes a sample. If that fails, returns the last successful sample with the error.
    pub fn sample(&mut self) -> Facts {
        let samples = match &mut self.samples {
            Samples::Observed(samples) => samples,
            Samples::Metrics(builder, refused) => {
                let (stat, error) = (builder.stat().ok(), Some(refused.clone()));
                let mut uses = uses(&Observation::default(), stat.as_ref());
                self.history.take_in(&mut uses);
                self.last = Facts { stat, uses, error, ..Facts::default() };
                return self.last.clone();
            }
        };
        let stat = samples.asker().stat().ok();
        let sampled = samples.sample(stat.is_some());
        samples.reconnect();
        match sampled {
            Ok(sampled) => {
                let mut uses = uses(&sampled.seen, stat.as_ref());
                self.history.take_in(&mut uses);
                let error = stat.is_none().then(|| "the daemon does not respond".to_owned());
                self.last = Facts { sampled, stat, uses, error };
            }
            Err(error) => self.last.error = Some(error.to_string()),
        }
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::observe::{ClientNo, ClientSeen};
    use tensorlend::{NamespaceUse, UidUse};

    #[test]
    fn everybody_who_uses_memory_is_told_with_what_they_used() {
        let client = ClientSeen {
            number: ClientNo::new(2),
            epoch: 1,
            pid: 7,
            bytes: 10,
            label: "x".into(),
            ..ClientSeen::default()
        };
        let idle = ClientSeen { number: ClientNo::new(3), epoch: 1, ..ClientSeen::default() };
        let mut seen = Observation { namespace: "lab".into(), clients: vec![client, idle], ..Observation::default() };
        let mut stat = Stat { pool_bytes: 64, pool_bytes_max: 128, ..Stat::default() };
        stat.namespaces =
            vec![NamespaceUse { name: "lab".into(), bytes: 10, bytes_max: u64::MAX, ..Default::default() }];
        stat.uids = vec![UidUse { uid: 5, bytes: 10, bytes_max: 100, ..UidUse::default() }];
        let mut history = History::default();
        let mut all = uses(&seen, Some(&stat));
        history.take_in(&mut all);
        let told: Vec<_> = all.iter().map(|one| (one.kind, one.who.as_str(), one.bytes, one.most)).collect();
        assert_eq!(
            told,
            [
                ("pool", "host memory", 64, Some(128)),
                ("namespace", "lab", 10, None),
                ("user", "5", 10, Some(100)),
                ("client", "7 x", 10, None)
            ]
        );
        seen.clients[0].bytes = 30;
        seen.clients[0].command = Some("python".into());
        let mut all = uses(&seen, None);
        history.take_in(&mut all);
        assert_eq!(all[1].history, [10, 30], "its command became known, and it is the same client");
        assert_eq!((all[0].kind, all[0].who.as_str()), ("namespace", "lab"));
        let mut none = Vec::new();
        history.take_in(&mut none);
        let mut all = uses(&seen, None);
        history.take_in(&mut all);
        assert_eq!(all[1].history, [30]);
    }
}
