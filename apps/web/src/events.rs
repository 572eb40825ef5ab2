//! A log of events derived from successive samples, such as new and disconnected clients, refusals,
//! evictions and ended streams.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use tensorlend::Stat;
use tensorlend::observe::{ClientNo, ClientState, Observation};

/// Maximum number of stored events. The oldest events are dropped.
const KEPT: usize = 500;
/// Maximum number of events logged for one sample.
const SAMPLE_MAX: usize = 100;

/// A change between two successive samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Sequence number, counted from 1.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The name that the JSON API uses.
    pub kind: &'static str,
    /// The namespace; empty if the event concerns the whole daemon.
    pub namespace: String,
    /// A client's label, a stream's name, or the reason of refusals.
    pub subject: String,
    /// Number of occurrences, or of bytes.
    pub count: u64,
}

/// Clients or streams: label or name, and whether the client has ended or the stream is closed.
type Subjects<K> = HashMap<K, (String, bool)>;

/// The previous state of one namespace.
#[derive(Default)]
struct Before {
    clients: Subjects<(ClientNo, u32)>,
    streams: Subjects<u64>,
    /// Bytes of lent segments, by the owner's member number.
    lent: BTreeMap<ClientNo, u64>,
}

/// The event log, and the state of the last sample.
#[derive(Default)]
pub struct Log {
    events: VecDeque<Event>,
    number: u64,
    namespaces: HashMap<String, Before>,
    stat: Option<Stat>,
    is_away: bool,
    left: usize,
}

impl Log {
    /// Begins a new sample, with a new allowance of [`SAMPLE_MAX`] events.
    pub fn begin(&mut self) {
        self.left = SAMPLE_MAX;
    }

    fn add(&mut self, at_ms: u64, kind: &'static str, namespace: &str, subject: &str, count: u64) {
        // Log only the first events of a sample, so that a flood cannot evict all older events.
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        if self.events.len() == KEPT {
            self.events.pop_front();
        }
        self.number += 1;
        let (namespace, subject) = (namespace.to_owned(), subject.to_owned());
        self.events.push_back(Event { number: self.number, at_ms, kind, namespace, subject, count });
    }

    /// Forgets the last sample of a namespace that is no longer shown.
    pub fn forget(&mut self, namespace: &str) {
        self.namespaces.remove(namespace);
    }

    /// Logs the changes in a namespace since its previous sample.
    pub fn namespace(&mut self, at_ms: u64, seen: &Observation) {
        let now = Before::of(seen);
        let Some(before) = self.namespaces.remove(&seen.namespace) else {
            // The first sample of a namespace has no changes to report.
            self.namespaces.insert(seen.namespace.clone(), now);
            return;
        };
        let name = seen.namespace.as_str();
        self.changes(at_ms, name, &before.clients, &now.clients, ["client_joined", "client_ended"], |over| !over);
        self.changes(at_ms, name, &before.streams, &now.streams, ["stream_opened", "stream_closed"], |_| false);
        for (_, (stream, _)) in before.streams.iter().filter(|(id, _)| !now.streams.contains_key(id)) {
            self.add(at_ms, "stream_gone", name, stream, 1);
        }
        let owners: std::collections::BTreeSet<ClientNo> = before.lent.keys().chain(now.lent.keys()).copied().collect();
        for owner in owners {
            let [was, is] = [&before, &now].map(|snapshot| snapshot.lent.get(&owner).copied().unwrap_or(0));
            let label = seen.client(owner).map_or("", |c| c.label.as_str());
            if is > was {
                self.add(at_ms, "segments_lent", name, label, is - was);
            } else if was > is {
                self.add(at_ms, "segments_returned", name, label, was - is);
            }
        }
        self.namespaces.insert(seen.namespace.clone(), now);
    }

    /// Logs the new subjects, and those that are over now. `ends` tells whether a subject that has disappeared was over
    /// only now.
    fn changes<K: Eq + Hash>(
        &mut self,
        at_ms: u64,
        namespace: &str,
        before: &Subjects<K>,
        now: &Subjects<K>,
        [new, over]: [&'static str; 2],
        ends: impl Fn(bool) -> bool,
    ) {
        for (key, (subject, is_over)) in now {
            match before.get(key) {
                None => self.add(at_ms, new, namespace, subject, 1),
                Some((_, false)) if *is_over => self.add(at_ms, over, namespace, subject, 1),
                Some(_) => {}
            }
        }
        for (key, (subject, was_over)) in before {
            if ends(*was_over) && !now.contains_key(key) {
                self.add(at_ms, over, namespace, subject, 1);
            }
        }
    }

    /// Logs the changes in the daemon's metrics. `stat` is `None` if the daemon does not respond.
    pub fn daemon(&mut self, at_ms: u64, stat: Option<&Stat>) {
        let Some(stat) = stat else {
            if !std::mem::replace(&mut self.is_away, true) {
                self.add(at_ms, "daemon_away", "", "", 1);
            }
            return;
        };
        let before = self.stat.replace(stat.clone());
        let is_another = before.as_ref().is_some_and(|before| before.pid != stat.pid);
        if std::mem::replace(&mut self.is_away, false) || is_another {
            self.add(at_ms, "daemon_back", "", &stat.version, 1);
        }
        let Some(before) = before.filter(|_| !is_another) else { return };
        for ((reason, was), (_, is)) in before.refusals.by_reason().into_iter().zip(stat.refusals.by_reason()) {
            if is > was {
                self.add(at_ms, "requests_refused", "", reason, is - was);
            }
        }
        for (kind, was, is) in [
            ("sessions_revoked", before.sessions_revoked, stat.sessions_revoked),
            ("names_expired", before.names_expired, stat.names_expired),
            ("names_ephemeral_gone", before.names_ephemeral_gone, stat.names_ephemeral_gone),
        ] {
            if is > was {
                self.add(at_ms, kind, "", "", is - was);
            }
        }
    }

    /// Returns all stored events, the latest last.
    pub fn all(&self) -> Arc<Vec<Event>> {
        Arc::new(self.events.iter().cloned().collect())
    }
}

impl Before {
    fn of(seen: &Observation) -> Self {
        let client = |c: &tensorlend::observe::ClientSeen| {
            ((c.number, c.epoch), (c.label.clone(), c.state == ClientState::Ended))
        };
        let mut lent = BTreeMap::new();
        for segment in &seen.segments {
            *lent.entry(segment.owner).or_default() += segment.bytes;
        }
        Self {
            // Ignore the sessions of this process, which previews open and close.
            clients: seen.clients.iter().filter(|c| c.pid != std::process::id()).map(client).collect(),
            streams: seen.streams.iter().map(|s| (s.id, (s.name.clone(), s.is_closed))).collect(),
            lent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::Refusals;
    use tensorlend::observe::ClientSeen;

    fn with(labels: &[&str]) -> Observation {
        let client = |(at, label): (usize, &&str)| ClientSeen {
            number: ClientNo::new(at as u16),
            label: (*label).to_owned(),
            ..ClientSeen::default()
        };
        Observation { clients: labels.iter().enumerate().map(client).collect(), ..Observation::default() }
    }

    fn kinds(log: &Log) -> Vec<&'static str> {
        log.events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn who_came_and_who_went() {
        let mut log = Log::default();
        log.begin();
        log.namespace(0, &with(&["a"]));
        assert_eq!(kinds(&log), [""; 0]);
        log.namespace(1, &with(&["a", "b"]));
        log.namespace(2, &with(&["a"]));
        assert_eq!(kinds(&log), ["client_joined", "client_ended"]);
        assert_eq!(log.events[1].subject, "b");
    }

    #[test]
    fn what_the_daemon_counts() {
        let mut log = Log::default();
        log.begin();
        let stat = |pid, limit| Stat { pid, refusals: Refusals { limit, ..Refusals::default() }, ..Stat::default() };
        log.daemon(0, Some(&stat(1, 5)));
        log.daemon(1, Some(&stat(1, 8)));
        log.daemon(2, None);
        log.daemon(3, None);
        log.daemon(4, Some(&stat(2, 1)));
        assert_eq!(kinds(&log), ["requests_refused", "daemon_away", "daemon_back"]);
        assert_eq!((log.events[0].subject.as_str(), log.events[0].count), ("limit", 3));
    }

    #[test]
    fn a_flood_is_cut() {
        let mut log = Log::default();
        log.begin();
        log.namespace(0, &with(&[]));
        log.namespace(1, &with(&["x"; 1000]));
        assert_eq!(log.events.len(), SAMPLE_MAX);
    }
}
