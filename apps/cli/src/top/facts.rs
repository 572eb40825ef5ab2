//! Samples, which consist of an observation, the daemon's metrics, and values derived from
//! successive samples.

use std::collections::{HashMap, VecDeque};

use tensorlend::observe::{self, ClientNo, ClientSeen, Observation, Sampled, States};
use tensorlend::{Client, ClientBuilder, Error, Stat};

use crate::member::MemberId;

/// Number of samples in a history.
const POINTS: usize = 240;

/// A sample, and the values derived from it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub seen: Observation,
    /// The daemon's metrics; `None` if the daemon does not respond.
    pub stat: Option<Stat>,
    pub states: States,
    /// Messages per second, by stream id.
    pub rates: HashMap<u64, f64>,
    /// Number of messages that subscribers missed, by stream id.
    pub lost: HashMap<u64, u64>,
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

impl Facts {
    /// Returns the client with the member number `catalogue`.
    pub fn client(&self, catalogue: ClientNo) -> Option<&ClientSeen> {
        let at = self.seen.clients.binary_search_by_key(&catalogue, |client| client.catalogue).ok()?;
        self.seen.clients.get(at)
    }
}

/// Returns all consumers of memory, the pool first.
fn uses(seen: &Observation, stat: Option<&Stat>) -> Vec<Use> {
    let most = |bytes: u64| Some(bytes).filter(|&bytes| bytes != u64::MAX);
    let mut all = Vec::new();
    if let Some(stat) = stat {
        let pool = (stat.pool_bytes, most(stat.pool_bytes_max));
        all.push(Use { kind: "pool", who: "host memory".into(), bytes: pool.0, most: pool.1, ..Use::default() });
        for device in &stat.devices {
            let who = format!("{} {}", device.offer.name, device.offer.uuid);
            all.push(Use { kind: "device", who, bytes: device.bytes, most: most(device.bytes_max), ..Use::default() });
        }
    }
    let namespaces = stat.map_or(&[][..], |stat| &stat.namespaces);
    let is_shown = seen.namespace.is_empty() || namespaces.iter().any(|one| one.name == seen.namespace);
    if !is_shown {
        let (bytes, most) = (seen.bytes_lent, most(seen.bytes_max));
        all.push(Use { kind: "namespace", who: seen.namespace.clone(), bytes, most, ..Use::default() });
    }
    for one in namespaces {
        let (bytes, most) = (one.bytes, most(one.bytes_max));
        all.push(Use { kind: "namespace", who: one.name.clone(), bytes, most, ..Use::default() });
    }
    for one in stat.map_or(&[][..], |stat| &stat.uids) {
        let (bytes, most) = (one.bytes, most(one.bytes_max));
        all.push(Use { kind: "user", who: one.uid.to_string(), bytes, most, ..Use::default() });
    }
    for client in seen.clients.iter().filter(|client| client.bytes > 0) {
        let who = format!("{} {}", client.pid, client.command.as_ref().unwrap_or(&client.label));
        let id = Some(MemberId::of(client));
        all.push(Use { kind: "client", who, bytes: client.bytes, client: id, ..Use::default() });
    }
    all
}

/// The bytes of each consumer of memory in the latest samples.
#[derive(Default)]
struct History(HashMap<Who, VecDeque<u64>>);

/// A consumer of memory in the histories.
#[derive(PartialEq, Eq, Hash)]
struct Who {
    kind: &'static str,
    /// The user's name. Empty for clients, which `client` identifies because their command may
    /// change.
    name: String,
    client: Option<MemberId>,
}

impl History {
    /// Adds the latest sample and fills in the histories. Removes users that have disappeared.
    fn take_in(&mut self, uses: &mut [Use]) {
        let mut kept = HashMap::with_capacity(uses.len());
        for one in uses {
            let name = if one.client.is_some() { String::new() } else { one.who.clone() };
            let who = Who { kind: one.kind, name, client: one.client };
            let mut points = self.0.remove(&who).unwrap_or_default();
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back(one.bytes);
            one.history = points.iter().copied().collect();
            kept.insert(who, points);
        }
        self.0 = kept;
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
            Ok(Sampled { seen, states, rates, lost }) => {
                let mut uses = uses(&seen, stat.as_ref());
                self.history.take_in(&mut uses);
                let error = stat.is_none().then(|| "the daemon does not respond".to_owned());
                self.last = Facts { seen, stat, states, rates, lost, uses, error };
            }
            Err(error) => self.last.error = Some(error.to_string()),
        }
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::{NamespaceUse, UidUse};

    #[test]
    fn everybody_who_uses_memory_is_told_with_what_they_used() {
        let client = ClientSeen {
            catalogue: ClientNo::new(2),
            epoch: 1,
            pid: 7,
            bytes: 10,
            label: "x".into(),
            ..ClientSeen::default()
        };
        let idle = ClientSeen { catalogue: ClientNo::new(3), epoch: 1, ..ClientSeen::default() };
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
