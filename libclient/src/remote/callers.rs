//! The ways to the gateway: callers of its service, one for each request that is on its way.

use super::SERVICE;
use crate::call::Caller;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::sync::lock;
use crate::wait::{Deadline, NAP_MAX};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Requests of one client that are on their way at once. A wait holds a caller for as long as it lasts, and a gateway has room for
/// some 120 callers of all programs.
const AT_ONCE_MAX: usize = 8;
/// Callers that are kept for the next request.
const IDLE_MAX: usize = 1;

/// What a client keeps for its gateway. Its clones share it.
#[derive(Debug)]
pub struct Callers {
    /// How long a request may take whose caller gives no time.
    pub timeout: Duration,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Caller>,
    busy: usize,
}

/// A caller that is in use.
pub struct Taken<'c> {
    callers: &'c Callers,
    caller: Option<Caller>,
}

impl Callers {
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, state: Mutex::default(), given_back: Condvar::new() }
    }

    /// A caller for one request; waits while as many as can be are on their way.
    pub fn take(&self, client: &Client, deadline: Deadline) -> Result<Taken<'_>> {
        let mut state = lock(&self.state);
        while state.busy >= AT_ONCE_MAX {
            let Some(nap) = deadline.nap() else {
                return Err(deadline.error(format!("one of the {AT_ONCE_MAX} ways of this client to its gateway")));
            };
            state = self.given_back.wait_timeout(state, nap.min(NAP_MAX)).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.busy += 1;
        let idle = state.idle.pop();
        drop(state);
        // Gives its place back, whatever comes.
        let mut taken = Taken { callers: self, caller: idle };
        if taken.caller.is_none() {
            // Of a client that has no callers: else these would keep themselves alive.
            taken.caller = Some(client.without_callers().caller(SERVICE).capacity(1).open()?);
        }
        Ok(taken)
    }
}

impl Taken<'_> {
    pub fn caller(&mut self) -> Result<&mut Caller> {
        self.caller.as_mut().ok_or(Error::Protocol { doing: "ask the gateway" })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let spare = {
            let mut state = lock(&self.callers.state);
            state.busy -= 1;
            if state.idle.len() < IDLE_MAX {
                state.idle.extend(self.caller.take());
            }
            self.caller.take()
        };
        self.callers.given_back.notify_one();
        // Hangs up, which asks the daemon: without the lock.
        drop(spare);
    }
}
