//! A log of events derived from successive samples, such as new and disconnected clients, refusals,
//! evictions and ended streams.

use std::collections::{BTreeMap, HashMap, VecDeque};
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
    pub kind: Kind,
    /// The namespace; empty if the event concerns the whole daemon.
    pub namespace: String,
    /// A client's label, a stream's name, or the reason of refusals.
    pub subject: String,
    /// Number of occurrences, or of bytes.
    pub count: u64,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ClientJoined,
    ClientEnded,
    StreamOpened,
    StreamClosed,
    StreamGone,
    SegmentsLent,
    SegmentsReturned,
    RequestsRefused,
    SessionsRevoked,
    NamesExpired,
    NamesEphemeralGone,
    DaemonAway,
    DaemonBack,
}

impl Kind {
    /// Returns the name that the JSON API uses.
    pub fn word(self) -> &'static str {
        match self {
            Self::ClientJoined => "client_joined",
            Self::ClientEnded => "client_ended",
            Self::StreamOpened => "stream_opened",
            Self::StreamClosed => "stream_closed",
            Self::StreamGone => "stream_gone",
            Self::SegmentsLent => "segments_lent",
            Self::SegmentsReturned => "segments_returned",
            Self::RequestsRefused => "requests_refused",
            Self::SessionsRevoked => "sessions_revoked",
            Self::NamesExpired => "names_expired",
            Self::NamesEphemeralGone => "names_ephemeral_gone",
            Self::DaemonAway => "daemon_away",
            Self::DaemonBack => "daemon_back",
        }
    }
}

/// The previous state of one namespace.
#[derive(Default)]
struct Before {
    clients: HashMap<(ClientNo, u32), (String, bool)>,
    streams: HashMap<u64, (String, bool)>,
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

    fn add(&mut self, at_ms: u64, kind: Kind, namespace: &str, subject: &str, count: u64) {
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
        for (key, (label, alive)) in &now.clients {
            match before.clients.get(key) {
                None => self.add(at_ms, Kind::ClientJoined, name, label, 1),
                Some((_, true)) if !alive => self.add(at_ms, Kind::ClientEnded, name, label, 1),
                Some(_) => {}
            }
        }
        for (key, (label, alive)) in &before.clients {
            if *alive && !now.clients.contains_key(key) {
                self.add(at_ms, Kind::ClientEnded, name, label, 1);
            }
        }
        for (id, (stream, closed)) in &now.streams {
            match before.streams.get(id) {
                None => self.add(at_ms, Kind::StreamOpened, name, stream, 1),
                Some((_, false)) if *closed => self.add(at_ms, Kind::StreamClosed, name, stream, 1),
                Some(_) => {}
            }
        }
        for (id, (stream, _)) in &before.streams {
            if !now.streams.contains_key(id) {
                self.add(at_ms, Kind::StreamGone, name, stream, 1);
            }
        }
        let owners: std::collections::BTreeSet<ClientNo> = before.lent.keys().chain(now.lent.keys()).copied().collect();
        for owner in owners {
            let [was, is] = [&before, &now].map(|snapshot| snapshot.lent.get(&owner).copied().unwrap_or(0));
            let label = seen
                .clients
                .iter()
                .find(|c| c.catalogue == ClientNo::new(owner.get()))
                .map_or("", |c| c.label.as_str());
            if is > was {
                self.add(at_ms, Kind::SegmentsLent, name, label, is - was);
            } else if was > is {
                self.add(at_ms, Kind::SegmentsReturned, name, label, was - is);
            }
        }
        self.namespaces.insert(seen.namespace.clone(), now);
    }

    /// Logs the changes in the daemon's metrics. `stat` is `None` if the daemon does not respond.
    pub fn daemon(&mut self, at_ms: u64, stat: Option<&Stat>) {
        let Some(stat) = stat else {
            if !std::mem::replace(&mut self.is_away, true) {
                self.add(at_ms, Kind::DaemonAway, "", "", 1);
            }
            return;
        };
        let before = self.stat.replace(stat.clone());
        let is_another = before.as_ref().is_some_and(|before| before.pid != stat.pid);
        if std::mem::replace(&mut self.is_away, false) || is_another {
            self.add(at_ms, Kind::DaemonBack, "", &stat.version, 1);
        }
        let Some(before) = before.filter(|_| !is_another) else { return };
        for ((reason, was), (_, is)) in before.refusals.by_reason().into_iter().zip(stat.refusals.by_reason()) {
            if is > was {
                self.add(at_ms, Kind::RequestsRefused, "", reason, is - was);
            }
        }
        for (kind, was, is) in [
            (Kind::SessionsRevoked, before.sessions_revoked, stat.sessions_revoked),
            (Kind::NamesExpired, before.names_expired, stat.names_expired),
            (Kind::NamesEphemeralGone, before.names_ephemeral_gone, stat.names_ephemeral_gone),
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
            ((c.catalogue, c.epoch), (c.label.clone(), c.state != ClientState::Ended))
        };
        let mut lent = BTreeMap::new();
        for segment in &seen.segments {
            *lent.entry(segment.catalogue).or_default() += segment.bytes;
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
            catalogue: ClientNo::new(at as u16),
            label: (*label).to_owned(),
            ..ClientSeen::default()
        };
        Observation { clients: labels.iter().enumerate().map(client).collect(), ..Observation::default() }
    }

    fn kinds(log: &Log) -> Vec<Kind> {
        log.events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn who_came_and_who_went() {
        let mut log = Log::default();
        log.begin();
        log.namespace(0, &with(&["a"]));
        assert_eq!(kinds(&log), []);
        log.namespace(1, &with(&["a", "b"]));
        log.namespace(2, &with(&["a"]));
        assert_eq!(kinds(&log), [Kind::ClientJoined, Kind::ClientEnded]);
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
        assert_eq!(kinds(&log), [Kind::RequestsRefused, Kind::DaemonAway, Kind::DaemonBack]);
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
