//! Requests that end claims and that no daemon has answered.

use super::{Budget, Connection, Control, send};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::sync::Mutex;
use tensorlend_layout::wire::{CLAIMS_MAX, QueueClaim, QueueRequest, Reply, Request};
use tensorlend_os::mutex::lock;

/// Requests that end claims and that no daemon has answered, at most [`CLAIMS_MAX`]. A thread that holds the connection may
/// lock them.
#[derive(Default)]
pub struct Unanswered(Mutex<VecDeque<Request>>);

impl Unanswered {
    fn push(&self, request: Request) {
        let mut requests = lock(&self.0);
        // A daemon grants a client no more claims, so the oldest request concerns a claim of a former daemon.
        if requests.len() == CLAIMS_MAX {
            requests.pop_front();
        }
        requests.push_back(request);
    }

    fn first(&self) -> Option<Request> {
        lock(&self.0).front().cloned()
    }

    /// Notes that a daemon has answered a request.
    pub fn answered(&self, answered: &Request) {
        lock(&self.0).retain(|request| request != answered);
    }

    /// Returns the claims whose confirmation no daemon has answered.
    fn unconfirmed(&self) -> Vec<QueueClaim> {
        let confirmed = |request: &Request| match request {
            Request::Queue(QueueRequest::Done(claim)) => Some(*claim),
            _ => None,
        };
        lock(&self.0).iter().filter_map(confirmed).collect()
    }
}

impl Control {
    /// As [`Control::call`], for a request that ends a claim. If no daemon answers, the request is repeated before the next
    /// one of the session, or after its reconnection. The daemon ignores a repeated request.
    pub fn deliver(&self, request: &Request, doing: &'static str) -> Result<Reply> {
        let reply = self.call(request, doing, "");
        if matches!(reply, Err(Error::Disconnected { .. } | Error::NotAnswering { .. })) {
            self.unanswered.push(request.clone());
        }
        reply
    }

    /// Returns the claims whose confirmation no daemon has answered.
    pub fn unconfirmed(&self) -> Vec<QueueClaim> {
        self.unanswered.unconfirmed()
    }

    /// Repeats the unanswered requests, on a connection without a late reply.
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

    /// Repeats the unanswered requests after a reconnection.
    pub(super) fn settle_unanswered(&self) {
        if self.unanswered.first().is_some() {
            // An error does not matter: the next request repeats them.
            let _ = self.call(&Request::Ping, "repeat requests", "");
        }
    }
}
