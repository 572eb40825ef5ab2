//! Connections to this machine's gateway: callers of its service, one for each pending request.

use crate::error::Result;
use crate::wait::{Deadline, NAP_MAX};
use std::any::Any;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tensorlend_os::mutex::lock;

/// Maximum number of pending requests of one client. A wait occupies a caller for its whole duration, and a gateway
/// serves about 120 callers of all programs together.
const AT_ONCE_MAX: usize = 8;
/// Number of idle callers that the client keeps for later requests.
const IDLE_MAX: usize = 1;

/// A client's callers of the gateway. Clones of the client share them.
pub struct Callers {
    /// Timeout of requests for which the program gives no timeout.
    pub timeout: Duration,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Default)]
struct State {
    /// Idle callers. Their type is opaque here, because `remote/` defines it.
    idle: Vec<Box<dyn Any + Send>>,
    busy: usize,
}

/// A caller in use.
pub struct Taken<'c, C: Send + 'static> {
    callers: &'c Callers,
    caller: Option<Box<C>>,
}

impl Callers {
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, state: Mutex::default(), given_back: Condvar::new() }
    }

    /// Takes a caller for one request, and opens one if none is idle. Blocks while the maximum number of requests is
    /// pending.
    pub fn take<C: Send + 'static>(
        &self,
        deadline: Deadline,
        open: impl FnOnce() -> Result<C>,
    ) -> Result<Taken<'_, C>> {
        let mut state = lock(&self.state);
        while state.busy >= AT_ONCE_MAX {
            let Some(nap) = deadline.nap() else {
                return Err(deadline.error(format!(
                    "one of this client's {AT_ONCE_MAX} connections to its gateway: other calls use them all"
                )));
            };
            state = self.given_back.wait_timeout(state, nap.min(NAP_MAX)).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.busy += 1;
        let idle = state.idle.pop();
        drop(state);
        // From here on, dropping `taken` frees the caller's place, on every path.
        let mut taken = Taken { callers: self, caller: idle.and_then(|idle| idle.downcast().ok()) };
        if taken.caller.is_none() {
            taken.caller = Some(Box::new(open()?));
        }
        Ok(taken)
    }
}

impl<C: Send + 'static> Taken<'_, C> {
    pub fn caller(&mut self) -> Option<&mut C> {
        self.caller.as_deref_mut()
    }
}

impl<C: Send + 'static> Drop for Taken<'_, C> {
    fn drop(&mut self) {
        let spare = {
            let mut state = lock(&self.callers.state);
            state.busy -= 1;
            if state.idle.len() < IDLE_MAX {
                state.idle.extend(self.caller.take().map(|caller| caller as Box<dyn Any + Send>));
            }
            self.caller.take()
        };
        self.callers.given_back.notify_one();
        // Drop the caller after releasing the lock: the drop disconnects the caller, with a request to the daemon.
        drop(spare);
    }
}
