//! When a wait ends.

use crate::error::Error;
use std::time::{Duration, Instant};

/// Longest sleep between two looks: a hostile member can keep a ring from arriving, and this bounds what it costs.
pub const NAP_MAX: Duration = Duration::from_millis(100);

/// When a wait gives up.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// None: never. Without one the clock is not read, which costs as much as the rest of a send.
    until: Option<(Instant, Duration)>,
}

impl Deadline {
    #[inline]
    pub fn new(timeout: Option<Duration>) -> Self {
        Self { until: timeout.map(|timeout| (Instant::now(), timeout)) }
    }

    /// How long to sleep next; `None`: time is up.
    pub fn nap(&self) -> Option<Duration> {
        let Some((start, timeout)) = self.until else { return Some(NAP_MAX) };
        let left = timeout.checked_sub(start.elapsed())?;
        (!left.is_zero()).then(|| left.min(NAP_MAX))
    }

    /// What is left; `None`: there is no end.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()))
    }

    /// The end of a part of this wait.
    pub fn at_most(&self, slice: Duration) -> Self {
        Self::new(Some(self.left().map_or(slice, |left| left.min(slice))))
    }

    pub fn error(&self, what: String) -> Error {
        Error::Timeout { what, waited: self.until.map_or(Duration::ZERO, |(_, timeout)| timeout) }
    }
}
