//! Requests that end claims or subscriptions and that have no response from any daemon.

use super::socket::send;
use super::{Budget, Connection, Control};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Mutex;
use tensorlend_layout::wire::{CLAIMS_MAX, QueueClaim, QueueRequest, Reply, Request};
use tensorlend_os::mutex::lock;

/// Requests that end claims or subscriptions and that have no response from any daemon, at most [`CLAIMS_MAX`]. A thread
/// that holds the connection may lock them.
#[derive(Default)]
pub struct Unanswered(Mutex<VecDeque<Request>>);

impl Unanswered {
    /// Repeats a request before the session's next request, until a daemon responds.
    pub fn repeat(&self, request: Request) {
        let mut requests = lock(&self.0);
        // A daemon grants a client at most this number of claims. So the oldest request concerns a claim of a former
        // daemon.
        if requests.len() == CLAIMS_MAX {
            requests.pop_front();
        }
        requests.push_back(request);
    }

    /// Gives items back with the next request.
    pub fn give_back(&self, claims: impl IntoIterator<Item = QueueClaim>) {
        for claim in claims {
            self.repeat(Request::Queue(QueueRequest::GiveBack(claim)));
        }
    }

    fn first(&self) -> Option<Request> {
        lock(&self.0).front().cloned()
    }

    /// Records that a daemon has responded to a request.
    pub fn answered(&self, answered: &Request) {
        lock(&self.0).retain(|request| request != answered);
    }

    /// Returns the claims whose confirmation has no response from any daemon.
    fn unconfirmed(&self) -> Vec<QueueClaim> {
        let confirmed = |request: &Request| match request {
            Request::Queue(QueueRequest::Done(claim)) => Some(*claim),
            _ => None,
        };
        lock(&self.0).iter().filter_map(confirmed).collect()
    }
}

impl Control {
    /// Sends a request like [`Control::call`], for a request that ends a claim or a subscription. If no daemon responds, the client repeats
    /// the request before the session's next request, or after its reconnection. The daemon ignores a repeated request.
    pub fn deliver(&self, request: &Request, doing: &'static str) -> Result<Reply> {
        let reply = self.call(request, doing, "");
        if matches!(reply, Err(Error::Disconnected { .. } | Error::NotAnswering { .. })) {
            self.unanswered.repeat(request.clone());
        }
        reply
    }

    /// Confirms claims with the next request of the session, or after its reconnection: the request that confirms them was not
    /// answered.
    pub fn deliver_later(&self, done: &[QueueClaim]) {
        for &claim in done {
            self.unanswered.repeat(Request::Queue(QueueRequest::Done(claim)));
        }
    }

    /// Gives items back with the next request of the session, or after its reconnection.
    pub fn give_back_later(&self, claims: impl IntoIterator<Item = QueueClaim>) {
        self.unanswered.give_back(claims);
    }

    /// Returns the claims that the client asserts to a new daemon: those whose confirmation no daemon has answered, then the others.
    pub fn asserted(&self) -> Vec<QueueClaim> {
        self.claims.asserted(self.unanswered.unconfirmed())
    }

    /// Repeats the requests without a response, on a connection that has no late reply.
    pub(super) fn repeat_unanswered(
        &self,
        connection: &mut Connection,
        doing: &'static str,
        budget: Budget,
    ) -> Result<()> {
        while let Some(next) = self.unanswered.first() {
            send(&connection.socket, &next, &[], doing)?;
            connection.late = Some(next.clone());
            self.take_late(connection, &next, doing, budget)?;
        }
        Ok(())
    }

    /// Repeats the requests without a response. All of them together wait for the daemon no longer than one request does.
    pub fn settle_unanswered(&self) {
        if self.unanswered.first().is_some() {
            // Ignore an error: the next request repeats them.
            let _ = self.call(&Request::Ping, "repeat requests", "");
        }
    }
}
