//! The end of a wait.

use std::time::{Duration, Instant};
use tensorlend::{Error, Timeout};

/// The time at which a request gives up.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// `None`: never.
    until: Option<(Instant, Duration)>,
}

impl Deadline {
    pub fn new(timeout: impl Into<Timeout>) -> Self {
        Self { until: timeout.into().remaining().map(|timeout| (Instant::now(), timeout)) }
    }

    /// Returns the remaining time; `None`: the wait has no end.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()))
    }

    /// Returns the remaining time, or `slice` if that is shorter.
    pub fn at_most(&self, slice: Duration) -> Duration {
        self.left().map_or(slice, |left| left.min(slice))
    }

    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Returns the error of a wait for `what` that took the whole time.
    pub fn error(&self, what: String) -> Error {
        Error::Timeout { what, waited: self.until.map_or(Duration::ZERO, |(_, timeout)| timeout) }
    }
}
