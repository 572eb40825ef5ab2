//! The servers of a service as a caller knows them, and which of them is worth going to.

use super::load::Gauge;
use super::service::{Id, Service};
use crate::client::Client;
use crate::error::Result;
use crate::session::Session;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long what was found is believed, at least: a server that comes gets requests after so long.
const BELIEVED: Duration = Duration::from_millis(100);
/// And so many times as long as the finding took, since it looks at all names: a hundredth of a processor, where it is long.
const BELIEVED_PART: u32 = 100;
/// How long a server that did not open a line is not asked for another.
const REFUSED: Duration = Duration::from_secs(5);

/// What is known.
#[derive(Debug, Default)]
pub struct Servers {
    gauges: BTreeMap<Id, Gauge>,
    believed_until: Option<Instant>,
    /// Those that did not open a line, until when they are believed not to.
    refused: BTreeMap<Id, Instant>,
}

impl Servers {
    /// Looks which servers there are.
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

    /// Those that there are.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.gauges.keys().copied()
    }

    /// A server's load, if it tells.
    pub fn load(&self, session: &Arc<Session>, server: Id) -> Option<u64> {
        self.gauges.get(&server)?.read(session)
    }

    /// A server that a request should go to, in place of the one where its caller is, and that one's load. `shunned` has hung, and is
    /// believed again once it has answered everything.
    ///
    /// One look at one word, where a caller is alone with its server.
    pub fn better(&mut self, client: &Client, service: &Service, here: Id, shunned: Option<Id>) -> Option<(Id, u64)> {
        let session = client.session();
        let load = self.load(session, here).filter(|&load| load > 0)?;
        // Calls go on without a daemon, on the lines that there are; what is known will do until it is back.
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

    /// A server has not opened a line in time, or could not be asked.
    pub fn refuse(&mut self, server: Id) {
        let now = Instant::now();
        self.refused.retain(|_, until| *until > now);
        self.refused.insert(server, now + REFUSED);
    }
}

/// Whether who is at a server with this load should go to one with the other.
///
/// To an idle one, and where that many fewer wait that the last requests, of which the words do not tell yet, can hardly make up for it:
/// a caller keeps its place otherwise, since its server has its tensors mapped and its code in the caches.
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
        // Whatever a member has stored there.
        assert!(!is_worth_going(1, u64::MAX) && !is_worth_going(u64::MAX, u64::MAX) && is_worth_going(u64::MAX, 1));
    }
}
