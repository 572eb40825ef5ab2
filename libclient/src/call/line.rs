//! A line, as its caller sees it: knocked for, open, hung up.

use super::service::{Id, Service};
use crate::client::Client;
use crate::error::Result;
use crate::stream::Stream;
use crate::stream::subscriber::{Start, Subscription};
use std::time::{Duration, Instant};
use tensorlend_layout::DType;
use tensorlend_layout::wire::Policy;

/// A line that its server has been told of, and has not opened yet.
pub struct Knock {
    client: Client,
    service: Service,
    pub server: Id,
    pub since: Instant,
    id: Id,
    /// Taken when it is opened, or given up.
    requests: Option<Stream>,
}

impl Knock {
    /// Knocks at a server's door.
    pub fn at(client: &Client, service: &Service, server: Id, capacity: u32) -> Result<Self> {
        let id = Id::random()?;
        let requests = client.stream(&service.requests(server, id)).capacity(capacity).policy(Policy::Block).open()?;
        // From here on the stream goes when this is dropped.
        let knock = Self {
            client: client.clone(),
            service: service.clone(),
            server,
            since: Instant::now(),
            id,
            requests: Some(requests),
        };
        let mut word = client.create(DType::U64, &[1])?;
        word.as_mut_slice::<u64>()?.fill(id.0);
        client.append_ephemeral(&service.door(server), word)?;
        Ok(knock)
    }

    /// Waits until the server has opened its end.
    ///
    /// # Errors
    /// That of a timeout; then it may be asked again.
    pub fn wait(&mut self, timeout: Duration) -> Result<Line> {
        let name = self.service.answers(self.server, self.id);
        let answers = self.client.subscription(&name).from(Start::Oldest).wait(timeout).open()?;
        let requests = self.requests.take().expect("a knock is answered once");
        Ok(Line { server: self.server, id: self.id, requests, answers, waiting: 0, spare_since: Instant::now() })
    }
}

impl Drop for Knock {
    fn drop(&mut self) {
        let Some(requests) = self.requests.take() else { return };
        drop(requests);
        let session = self.client.session();
        // Without a daemon it would be waited for; the next server sweeps such streams away.
        if !session.is_forked() && session.control.is_up() {
            // A server that has opened it meanwhile sees the one end, and removes the other.
            let _ = self.client.delete_stream(&self.service.requests(self.server, self.id));
        }
    }
}

/// One line.
pub struct Line {
    pub server: Id,
    id: Id,
    pub requests: Stream,
    pub answers: Subscription,
    /// Number of the first request that has no answer yet.
    pub waiting: u64,
    /// Since when another line is used in its place.
    pub spare_since: Instant,
}

impl Line {
    /// Requests on their way.
    pub fn outstanding(&self) -> u64 {
        self.requests.sent() - self.waiting
    }

    /// Whether its server is there.
    pub fn goes_on(&self) -> Result<bool> {
        self.answers.goes_on()
    }

    /// Ends it, with all that is on its way.
    pub fn hang_up(self, client: &Client, service: &Service) {
        let Self { server, id, requests, answers, .. } = self;
        drop((requests, answers));
        let _ = client.delete_stream(&service.requests(server, id));
        let _ = client.delete_stream(&service.answers(server, id));
    }
}
