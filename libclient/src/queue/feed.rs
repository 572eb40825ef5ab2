//! Claims of items, several at a time, each with the confirmations of earlier ones.

use super::claim::{Claim, finish, give_back};
use super::{ASK_AGAIN, Queue, QueueItem};
use crate::control::Waited;
use crate::error::{Error, Result};
use crate::lease::items::item as lease_item;
use crate::wait::Deadline;
use std::collections::VecDeque;
use std::time::Duration;
use tensorlend_layout::wire::{CLAIM_BATCH_MAX, QueueClaim, QueueReply, QueueRequest, Reply, Request};

const DOING: &str = "take from queue";

/// The items that a consumer takes from a queue, and those that it has finished. Dropping it confirms the finished items, and
/// gives back the items that the consumer has not received.
#[doc(hidden)]
#[derive(Debug)]
pub struct Feed {
    queue: Queue,
    /// Maximum number of items that one request claims.
    prefetch: u8,
    /// Claims on finished items, which the next request confirms.
    done: Vec<QueueClaim>,
    /// Claims on items that the consumer has not received.
    ready: VecDeque<QueueClaim>,
}

/// The outcome of a request for items.
enum Outcome {
    Claimed,
    Empty,
    /// Another thread of this client uses the connection.
    Shared,
}

impl Feed {
    pub(super) fn new(queue: Queue, prefetch: u8) -> Self {
        let mut feed = Self { queue, prefetch: 1, done: Vec::new(), ready: VecDeque::new() };
        feed.set_prefetch(prefetch);
        feed
    }

    /// Sets the maximum number of items that one request claims.
    pub(super) fn set_prefetch(&mut self, items: u8) {
        self.prefetch = items.clamp(1, u8::try_from(CLAIM_BATCH_MAX).unwrap_or(u8::MAX));
    }

    /// Confirms the item of `done` with the next request, and returns the next item: one that was claimed before, or the first
    /// one that waits.
    ///
    /// # Errors
    /// As [`Queue::get`] and [`QueueItem::done`].
    pub fn next(&mut self, done: Option<Claim>, deadline: Deadline) -> Result<QueueItem> {
        match done {
            Some(claim) if claim.is_of(&self.queue.client) => self.done.push(claim.take()),
            // An item of another session of this process.
            Some(claim) => drop(claim.done()?),
            None => {}
        }
        loop {
            while let Some(granted) = self.ready.pop_front() {
                if let Some(item) = self.lease(granted)? {
                    return Ok(item);
                }
            }
            self.fill(deadline)?;
        }
    }

    /// Claims items. Waits while the queue is empty.
    fn fill(&mut self, deadline: Deadline) -> Result<()> {
        loop {
            match self.claim(deadline.left_at_most(ASK_AGAIN))? {
                Outcome::Claimed => return Ok(()),
                Outcome::Empty if deadline.is_over() => return Err(self.queue.timed_out(deadline)),
                Outcome::Empty => {}
                Outcome::Shared => {
                    let queue = self.queue.clone();
                    let asked = queue.ask_until(deadline.at_most(ASK_AGAIN), || match self.claim(Duration::ZERO)? {
                        Outcome::Claimed => Ok(Some(())),
                        Outcome::Empty | Outcome::Shared => Ok(None),
                    });
                    match asked {
                        Err(e) if e.is_timeout() && deadline.is_over() => return Err(self.queue.timed_out(deadline)),
                        // Now the claim waits in the daemon again.
                        Err(e) if e.is_timeout() => {}
                        asked => return asked,
                    }
                }
            }
        }
    }

    /// Sends the confirmations, and claims items. Waits for `wait` at most.
    fn claim(&mut self, wait: Duration) -> Result<Outcome> {
        let session = self.queue.client.session();
        session.check()?;
        let list = self.queue.name.clone();
        let (done, max) = (self.done.clone(), self.prefetch);
        let request = QueueRequest::Claim { list, done, max, wait: !wait.is_zero() };
        let waited = if wait.is_zero() {
            session.control.call(&Request::Queue(request), DOING, &self.queue.name).map(Waited::Reply)
        } else {
            session.control.call_waiting(request, wait, DOING, &self.queue.name)
        };
        if let Ok(Waited::Shared) = waited {
            return Ok(Outcome::Shared);
        }
        if waited.is_err() {
            session.control.deliver_later(&self.done);
        }
        // Unanswered confirmations assert their claims to the next daemon: see `Control::asserted`.
        for claim in self.done.drain(..) {
            session.control.claims().remove(claim);
        }
        match waited? {
            Waited::Reply(Reply::Queue(QueueReply::Claimed(claims))) => {
                tensorlend_layout::crash_point!("queue: claimed");
                self.ready.extend(claims);
                Ok(Outcome::Claimed)
            }
            Waited::Reply(Reply::Queue(QueueReply::Empty)) => Ok(Outcome::Empty),
            _ => Err(Error::Protocol { doing: DOING }),
        }
    }

    /// Leases a claimed item; `None`: it is gone.
    fn lease(&self, granted: QueueClaim) -> Result<Option<QueueItem>> {
        let client = &self.queue.client;
        let session = client.session();
        match lease_item(session, &self.queue.name, granted.item.list, granted.item.number) {
            Ok(Some(value)) => {
                let claim = Claim::new(client.clone(), granted);
                tensorlend_layout::crash_point!("queue: leased");
                Ok(Some(QueueItem { value, claim }))
            }
            // Its owner ended before the value was written, or the queue was cleared: no consumer can read it.
            Ok(None) => finish(session, granted).map(|_| None),
            Err(e @ Error::Damaged { .. }) => {
                finish(session, granted)?;
                Err(e)
            }
            Err(e) => {
                give_back(session, granted)?;
                Err(e)
            }
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let session = self.queue.client.session();
        // The claims belong to the parent of a forked child.
        if session.check().is_err() {
            return;
        }
        if self.done.is_empty() && self.ready.is_empty() {
            return;
        }
        // All of them together wait for the daemon no longer than one request does.
        session.control.deliver_later(&self.done);
        for &claim in self.done.iter().chain(&self.ready) {
            session.control.claims().remove(claim);
        }
        session.control.give_back_later(std::mem::take(&mut self.ready));
        session.control.settle_unanswered();
    }
}
