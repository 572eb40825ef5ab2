//! Claims that wait in the daemon. The waiting thread does not hold the connection: another thread may end the
//! wait, and then sends its own request.

use super::socket::{is_readable, send};
use super::{Budget, Connection, Control, State, not_answering};
use crate::error::{Error, Result};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{QueueReply, QueueRequest, Refusal, Reply, Request, decode};

/// The state of the connection's waiting request.
#[derive(Default)]
pub struct Waiting {
    /// Whether another thread has ended the wait.
    stopped: bool,
}

/// The outcome of a request that waits.
pub enum Waited {
    /// The reply: after the time, that of a request that does not wait.
    Reply(Reply),
    /// Another thread of this client uses the connection: the request did not wait for the whole time, and had no effect
    /// except that it confirmed items.
    Shared,
}

type Guard<'c> = MutexGuard<'c, Connection>;

impl Control {
    /// Sends a request that waits in the daemon, and waits for its reply for at most `timeout`.
    pub fn call_waiting(
        &self,
        request: QueueRequest,
        timeout: Duration,
        doing: &'static str,
        subject: &str,
    ) -> Result<Waited> {
        let request = Request::Queue(request);
        let until = Instant::now() + timeout;
        loop {
            let mut connection = self.locked(doing)?;
            if !matches!(connection.state, State::Whole) {
                connection = self.resume(connection, doing)?;
            }
            if connection.waiting.is_some() {
                return Ok(Waited::Shared);
            }
            let lost = match self.exchange_waiting(connection, &request, until, doing) {
                Ok((Reply::Refused(refusal), _)) => {
                    return Err(Error::Refused { doing: format!("{doing} {subject:?}"), refusal });
                }
                Ok((Reply::Queue(QueueReply::Empty), true)) => return Ok(Waited::Shared),
                Ok((reply, _)) => return Ok(Waited::Reply(reply)),
                Err(error @ (Error::NotAnswering { .. } | Error::Protocol { .. })) => return Err(error),
                Err(lost) => lost,
            };
            let again = request.is_repeatable() || lost.is_certain();
            if !again || self.resume.get().is_none() {
                return Err(lost);
            }
        }
    }

    /// Returns the reply to a request that waits, and whether another thread has ended the wait.
    fn exchange_waiting(
        &self,
        mut connection: Guard<'_>,
        request: &Request,
        until: Instant,
        doing: &'static str,
    ) -> Result<(Reply, bool)> {
        let budget = Budget { began: Instant::now(), timeout: self.timeout };
        self.send_next(&mut connection, request, doing, budget).map_err(|error| broken(&mut connection, error))?;
        tensorlend_layout::crash_point!("queue: blocked");
        connection.waiting = Some(Waiting::default());
        let socket = connection.socket.clone();
        drop(connection);
        let mut arrived = is_readable(&[&socket], until.saturating_duration_since(Instant::now()));
        if !arrived {
            let mut connection = self.locked(doing)?;
            if connection.waiting.as_ref().is_some_and(|waiting| !waiting.stopped) {
                // If it fails, the daemon has hung up: the socket is readable.
                let _ = stop(&mut connection, doing);
                tensorlend_layout::crash_point!("queue: stopped");
            }
            drop(connection);
            arrived = is_readable(&[&socket], self.timeout);
        }
        let mut connection = self.locked(doing)?;
        let stopped = connection.waiting.take().is_some_and(|waiting| waiting.stopped);
        self.replied.notify_all();
        if !arrived {
            self.abandon(&mut connection, request);
            return Err(not_answering(&connection, doing, self.timeout, true));
        }
        let packet = match connection.receive(doing) {
            Ok(packet) => packet,
            Err(lost) => return Err(broken(&mut connection, lost)),
        };
        match decode::<Reply>(&packet.bytes).ok_or(Error::Protocol { doing })? {
            Reply::Refused(Refusal::Stopping) => {
                Err(broken(&mut connection, Error::Disconnected { doing, asked: true }))
            }
            reply => {
                self.claims.record(&reply);
                Ok((reply, stopped))
            }
        }
    }

    /// Returns the connection to a daemon that knows the session, without a waiting request: ends that of another thread.
    pub(super) fn ready<'c>(
        &'c self,
        mut connection: Guard<'c>,
        doing: &'static str,
        budget: Budget,
    ) -> Result<Guard<'c>> {
        loop {
            if !matches!(connection.state, State::Whole) {
                connection = self.resume(connection, doing)?;
            }
            let Some(waiting) = &mut connection.waiting else { return Ok(connection) };
            if !std::mem::replace(&mut waiting.stopped, true) {
                // If it fails, the waiting thread finds that the daemon has hung up.
                let _ = stop(&mut connection, doing);
            }
            let left = budget.timeout.saturating_sub(budget.began.elapsed());
            if left.is_zero() {
                return Err(not_answering(&connection, doing, budget.timeout, false));
            }
            let woken = self.replied.wait_timeout(connection, left);
            connection = woken.map_err(|_| Error::Disconnected { doing, asked: false })?.0;
        }
    }

    /// Does a step on a connection without a waiting request, again after each replacement of the daemon.
    pub(super) fn with_ready(
        &self,
        doing: &'static str,
        step: impl Fn(&mut Connection, Budget) -> Result<()>,
    ) -> Result<()> {
        let budget = Budget { began: Instant::now(), timeout: self.timeout };
        let mut connection = self.locked(doing)?;
        loop {
            connection = self.ready(connection, doing, budget)?;
            match step(&mut connection, budget).map_err(|error| broken(&mut connection, error)) {
                Err(Error::Disconnected { .. }) if self.resume.get().is_some() => {}
                done => return done,
            }
        }
    }

    /// Sends a request after the replies and the requests that come before it.
    pub(super) fn send_next(
        &self,
        connection: &mut Connection,
        request: &Request,
        doing: &'static str,
        budget: Budget,
    ) -> Result<()> {
        self.take_late(connection, request, doing, budget)?;
        self.repeat_unanswered(connection, doing, budget)?;
        send(&connection.socket, request, doing)
    }

    /// Locks the connection. A thread that panicked during an exchange left the socket between request and reply: it is
    /// unusable.
    pub(super) fn locked(&self, doing: &'static str) -> Result<Guard<'_>> {
        self.connection.lock().map_err(|_: PoisonError<_>| Error::Disconnected { doing, asked: false })
    }
}

/// Notes an error after which the connection cannot be used, unless the daemon may still reply.
fn broken(connection: &mut Connection, error: Error) -> Error {
    if !matches!(error, Error::NotAnswering { .. }) {
        connection.state = State::Broken(Instant::now());
    }
    error
}

fn stop(connection: &mut Connection, doing: &'static str) -> Result<()> {
    send(&connection.socket, &Request::Queue(QueueRequest::Stop), doing)
}
