//! Samples, which consist of an observation, the daemon's metrics, and values derived from
//! successive samples.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tensorlend::observe::{self, ClientSeen, Sampled};
use tensorlend::{Client, ClientBuilder, Error, Stat};

use crate::member::MemberId;
use crate::text::client_text;

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
    /// The leases of the observed namespace or of a client.
    pub leases: Option<Held>,
    pub client: Option<MemberId>,
    /// Values of `bytes` in the latest samples, the oldest first.
    pub history: Vec<u64>,
}

/// Leases: their bytes, their number, and the age of the oldest one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub bytes: u64,
    pub count: u64,
    pub age_max: Option<Duration>,
    /// True if the oldest lease is older than `age_max`.
    pub is_older: bool,
}

impl Held {
    pub fn by(client: &ClientSeen) -> Self {
        let ClientSeen { leased_bytes: bytes, leases: count, lease_age_max: age_max, is_lease_older: is_older, .. } =
            *client;
        Self { bytes, count, age_max, is_older }
    }

    fn in_namespace(sampled: &Sampled) -> Self {
        let (seen, oldest) = (&sampled.seen, sampled.seen.leases.first());
        Self {
            bytes: sampled.states.leased,
            count: seen.lease_count(),
            age_max: oldest.map(|lease| lease.age),
            is_older: oldest.is_some_and(|lease| lease.is_older),
        }
    }
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

/// Returns all consumers of memory: the pool, the devices and the observed namespace, then the holders of leases, who may
/// be the cause of a leak, and then the others.
fn uses(sampled: &Sampled, stat: Option<&Stat>) -> Vec<Use> {
    let seen = &sampled.seen;
    let one = |kind, who: String, bytes, most: u64| Use {
        kind,
        who,
        bytes,
        most: Some(most).filter(|&most| most != u64::MAX),
        ..Use::default()
    };
    let mut all = Vec::new();
    if let Some(stat) = stat {
        all.push(one("pool", "host memory".into(), stat.pool_bytes, stat.pool_bytes_max));
        for it in &stat.devices {
            all.push(one("device", format!("{} {}", it.offer.name, it.offer.uuid), it.bytes, it.bytes_max));
        }
    }
    let (namespaces, uids) = stat.map_or((&[][..], &[][..]), |stat| (&stat.namespaces, &stat.uids));
    let (observed, others): (Vec<_>, Vec<_>) = namespaces.iter().partition(|it| it.name == seen.namespace);
    if !seen.namespace.is_empty() {
        let (bytes, most) = observed.first().map_or((seen.bytes_lent, seen.bytes_max), |it| (it.bytes, it.bytes_max));
        let namespace = one("namespace", seen.namespace.clone(), bytes, most);
        all.push(Use { leases: Some(Held::in_namespace(sampled)), ..namespace });
    }
    let client = |it: &ClientSeen| {
        let command = it.command.as_ref().map(|command| format!(": {command}")).unwrap_or_default();
        let who = client_text(Some(it)) + &command;
        let client = one("client", who, it.bytes, u64::MAX);
        Use { leases: Some(Held::by(it)), client: Some(MemberId::of(it)), ..client }
    };
    all.extend(seen.lease_holders().into_iter().map(client));
    all.extend(others.into_iter().map(|it| one("namespace", it.name.clone(), it.bytes, it.bytes_max)));
    all.extend(uids.iter().map(|it| one("user", it.uid.to_string(), it.bytes, it.bytes_max)));
    all.extend(seen.clients.iter().filter(|it| it.bytes > 0 && it.leases == 0).map(client));
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
                let mut uses = uses(&Sampled::default(), stat.as_ref());
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
                let mut uses = uses(&sampled, stat.as_ref());
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
    use tensorlend::observe::{ClientNo, Observation, States};
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
        let holder = ClientSeen {
            number: ClientNo::new(4),
            epoch: 1,
            pid: 9,
            label: "viewer".into(),
            leases: 2,
            leased_bytes: 6,
            lease_age_max: Some(Duration::from_mins(1)),
            ..ClientSeen::default()
        };
        let clients = vec![client, idle, holder];
        let seen = Observation { namespace: "lab".into(), clients, ..Observation::default() };
        let mut sampled = Sampled { states: States::of(&seen), seen, ..Sampled::default() };
        let mut stat = Stat { pool_bytes: 64, pool_bytes_max: 128, ..Stat::default() };
        stat.namespaces =
            vec![NamespaceUse { name: "lab".into(), bytes: 10, bytes_max: u64::MAX, ..Default::default() }];
        stat.uids = vec![UidUse { uid: 5, bytes: 10, bytes_max: 100, ..UidUse::default() }];
        let mut history = History::default();
        let mut all = uses(&sampled, Some(&stat));
        history.take_in(&mut all);
        let told: Vec<_> = all.iter().map(|one| (one.kind, one.who.as_str(), one.bytes, one.most)).collect();
        assert_eq!(
            told,
            [
                ("pool", "host memory", 64, Some(128)),
                ("namespace", "lab", 10, None),
                ("client", "9 viewer", 0, None),
                ("user", "5", 10, Some(100)),
                ("client", "7 x", 10, None)
            ]
        );
        assert_eq!(all[2].leases.map(|held| (held.bytes, held.count, held.is_older)), Some((6, 2, false)));
        sampled.seen.clients[0].bytes = 30;
        sampled.seen.clients[0].command = Some("python".into());
        let mut all = uses(&sampled, None);
        history.take_in(&mut all);
        assert_eq!(all[2].history, [10, 30], "its command became known, and it is the same client");
        assert_eq!((all[0].kind, all[0].who.as_str()), ("namespace", "lab"));
        let mut none = Vec::new();
        history.take_in(&mut none);
        let mut all = uses(&sampled, None);
        history.take_in(&mut all);
        assert_eq!(all[2].history, [30]);
    }
}
