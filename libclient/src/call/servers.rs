//! The servers of a service that a caller knows, and the caller's choice among them.

use super::load::Gauge;
use super::service::{Id, Service};
use crate::client::Client;
use crate::error::Result;
use crate::session::Session;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum time between two reads of the list of servers. A new server gets requests after this time.
const BELIEVED: Duration = Duration::from_millis(100);
/// The caller also keeps the list for this many times the duration of the last read. Reading visits all names, so it takes
/// at most a hundredth of a processor's time.
const BELIEVED_PART: u32 = 100;
/// Time for which the caller does not ask a server again after that server did not open a channel.
const REFUSED: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Servers {
    gauges: BTreeMap<Id, Gauge>,
    believed_until: Option<Instant>,
    /// Servers that did not open a channel, with the time until which the caller skips them.
    refused: BTreeMap<Id, Instant>,
}

impl Servers {
    /// Reads the list of servers.
    pub fn find(&mut self, client: &Client, service: &Service) -> Result<()> {
        let start = Instant::now();
        let mut found = BTreeMap::new();
        for info in client.list(&service.pattern("/.server/"))?.iter().filter(|info| info.alive) {
            let Some((server, "")) = service.parse(&info.name, "/.server/") else { continue };
            let known = self.gauges.get(&server).copied();
            found.insert(server, known.unwrap_or_else(|| gauge(client, &info.name)));
        }
        self.gauges = found;
        self.believed_until = Some(start + BELIEVED.max(start.elapsed() * BELIEVED_PART));
        Ok(())
    }

    /// Returns the numbers of the known servers.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.gauges.keys().copied()
    }

    /// Returns a server's load, if it publishes one.
    pub fn load(&self, session: &Arc<Session>, server: Id) -> Option<u64> {
        self.gauges.get(&server)?.read(session)
    }

    /// Returns a better server than the caller's own (`here`), and its load. Skips `shunned`, a server that the caller
    /// abandoned, unless its load is 0, which shows that it has responded to all requests.
    ///
    /// Costs one read of one word if the caller is its server's only caller.
    pub fn better(&mut self, client: &Client, service: &Service, here: Id, shunned: Option<Id>) -> Option<(Id, u64)> {
        let session = client.session();
        let load = self.load(session, here).filter(|&load| load > 0)?;
        // Without a daemon, requests continue on open channels, and the caller uses the known list until a daemon
        // runs again.
        if self.believed_until.is_none_or(|until| until < Instant::now()) && session.control.is_up() {
            self.find(client, service).ok()?;
        }
        let now = Instant::now();
        let is_refused = |server: &Id| self.refused.get(server).is_some_and(|until| now < *until);
        let others = self.gauges.iter().filter(|(server, _)| **server != here && !is_refused(server));
        let told = others.filter_map(|(server, gauge)| Some((*server, gauge.read(session)?)));
        let least = told.filter(|&(server, load)| load == 0 || Some(server) != shunned).min_by_key(|&(_, load)| load);
        least.filter(|&(_, other)| is_worth_going(load, other))
    }

    /// Records that a server has not opened a channel in time, or that the caller could not ask it.
    pub fn refuse(&mut self, server: Id) {
        let now = Instant::now();
        self.refused.retain(|_, until| *until > now);
        self.refused.insert(server, now + REFUSED);
    }
}

/// Returns whether a caller of a server with load `here` should move to a server with load `other`.
///
/// The caller moves to an idle server, or to a server whose load is lower by at least 2. A difference of 1 may come from a
/// request that a load does not include yet. Otherwise the caller stays: its server has the caller's tensors mapped and its
/// code in the caches.
fn is_worth_going(here: u64, other: u64) -> bool {
    here > 0 && (other == 0 || other.saturating_add(1) < here)
}

fn gauge(client: &Client, name: &str) -> Gauge {
    let presence = client.get(name).ok();
    presence.and_then(|value| value.as_slice::<u32>().ok().map(Gauge::parse)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::is_worth_going;

    #[test]
    fn a_caller_keeps_its_place_unless_another_one_is_clearly_better() {
        for (here, other, goes) in
            [(0, 0, false), (1, 0, true), (1, 1, false), (2, 1, false), (3, 1, true), (1, 3, false)]
        {
            assert_eq!(is_worth_going(here, other), goes, "{here} {other}");
        }
        // A member may have stored any number.
        assert!(!is_worth_going(1, u64::MAX) && !is_worth_going(u64::MAX, u64::MAX) && is_worth_going(u64::MAX, 1));
    }
}
