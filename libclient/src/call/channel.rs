//! A channel on the caller's side, while it connects and while it is open.

use super::service::{Id, Service};
use crate::client::Client;
use crate::error::Result;
use crate::stream::Stream;
use crate::stream::message::Start;
use crate::stream::subscriber::Subscription;
use std::time::{Duration, Instant};
use tensorlend_layout::DType;
use tensorlend_layout::wire::Policy;

/// A channel that the caller has asked a server to open.
pub struct Connecting {
    client: Client,
    service: Service,
    pub server: Id,
    pub since: Instant,
    id: Id,
    /// True if the responses have a descriptor for an event loop.
    pollable: bool,
    /// `None` after the channel was opened or abandoned.
    requests: Option<Stream>,
}

impl Connecting {
    /// Asks a server to open a channel.
    pub fn at(client: &Client, service: &Service, server: Id, capacity: u32, pollable: bool) -> Result<Self> {
        let id = Id::random()?;
        let requests = client.stream(&service.requests(server, id)).capacity(capacity).policy(Policy::Block).open()?;
        // From here on, dropping this value deletes the stream.
        let connecting = Self {
            client: client.clone(),
            service: service.clone(),
            server,
            since: Instant::now(),
            id,
            pollable,
            requests: Some(requests),
        };
        let mut word = client.create(DType::U64, &[1])?;
        word.as_mut_slice::<u64>()?.fill(id.0);
        client.append_ephemeral(&service.connect_list(server), word)?;
        Ok(connecting)
    }

    /// Waits until the server has opened its end.
    ///
    /// # Errors
    /// An error if the time passed. Then the caller may wait again. Otherwise, an error of the subscription.
    pub fn wait(&mut self, timeout: Duration) -> Result<Channel> {
        let name = self.service.answers(self.server, self.id);
        let answers = self.client.subscription(&name).start_at(Start::Oldest).wait(timeout);
        let answers = if self.pollable { answers.pollable() } else { answers }.open()?;
        let requests = self.requests.take().expect("a channel opens once");
        Ok(Channel { server: self.server, id: self.id, requests, answers, waiting: 0, spare_since: Instant::now() })
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let Some(requests) = self.requests.take() else { return };
        drop(requests);
        let session = self.client.session();
        // Without a daemon, deleting the stream would block. The next server of the service deletes such streams.
        if !session.is_forked() && session.control.is_up() {
            // A server that has opened the channel in the meantime sees the end of the request stream, and then deletes its
            // own reply stream.
            let _ = self.client.delete_stream(&self.service.requests(self.server, self.id));
        }
    }
}

pub struct Channel {
    pub server: Id,
    id: Id,
    pub requests: Stream,
    pub answers: Subscription,
    /// The number of the first request without a reply.
    pub waiting: u64,
    /// The time at which the caller began to use another channel instead of this one.
    pub spare_since: Instant,
}

impl Channel {
    pub fn outstanding(&self) -> u64 {
        self.requests.sent() - self.waiting
    }

    /// Returns whether the channel's server is alive.
    pub fn is_live(&self) -> Result<bool> {
        self.answers.is_live()
    }

    /// Closes the channel. All its outstanding requests are lost.
    pub fn hang_up(self, client: &Client, service: &Service) {
        let Self { server, id, requests, answers, .. } = self;
        drop((requests, answers));
        let _ = client.delete_stream(&service.requests(server, id));
        let _ = client.delete_stream(&service.answers(server, id));
    }
}
