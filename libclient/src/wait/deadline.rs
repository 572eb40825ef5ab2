//! Deadlines of waits.

use crate::error::Error;
use crate::wait::Timeout;
use std::time::{Duration, Instant};

/// Longest sleep between two polls. It limits the delay that a hostile member causes if it does not ring its bell.
pub const NAP_MAX: Duration = Duration::from_millis(100);

/// The end of a wait.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// The start of the wait and its whole length. `None`: the wait has no end, and does not read the clock, because
    /// that read would cost as much as the rest of a send.
    until: Option<(Instant, Duration)>,
}

impl Deadline {
    /// Starts a wait now.
    #[inline]
    pub fn new(timeout: impl Into<Timeout>) -> Self {
        Self { until: timeout.into().remaining().map(|timeout| (Instant::now(), timeout)) }
    }

    /// Returns the length of the next sleep. Returns `None` after the deadline.
    pub fn nap(&self) -> Option<Duration> {
        let Some((start, timeout)) = self.until else { return Some(NAP_MAX) };
        let left = timeout.checked_sub(start.elapsed())?;
        (!left.is_zero()).then(|| left.min(NAP_MAX))
    }

    /// Returns the time left. Returns `None` for a wait without an end.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()))
    }

    /// Returns the time left, or `slice` if `slice` is shorter.
    pub fn left_at_most(&self, slice: Duration) -> Duration {
        self.left().map_or(slice, |left| left.min(slice))
    }

    /// Returns a deadline that is at most `slice` from now.
    pub fn at_most(&self, slice: Duration) -> Self {
        Self::new(Some(self.left_at_most(slice)))
    }

    /// Returns whether no time is left.
    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Returns the error of a wait for `what` that took its whole time.
    pub fn error(&self, what: String) -> Error {
        Error::Timeout { what, waited: self.until.map_or(Duration::ZERO, |(_, timeout)| timeout) }
    }
}

/// Returns the text for a wait that ended before a process published the name.
pub fn not_published(name: &str) -> String {
    format!("{name:?}: no process has published it (see `tensorlend ls`)")
}
