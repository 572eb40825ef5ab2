//! Deadlines of waits.

use crate::error::Error;
use crate::wait::Timeout;
use std::time::{Duration, Instant};

/// Longest sleep between two polls: it bounds the delay that a hostile member causes by not ringing.
pub const NAP_MAX: Duration = Duration::from_millis(100);

/// The end of a wait.
#[derive(Clone, Copy)]
pub struct Deadline {
    /// `None`: no end. Then the clock is not read, which would cost as much as the rest of a send.
    until: Option<(Instant, Duration)>,
}

impl Deadline {
    #[inline]
    pub fn new(timeout: impl Into<Timeout>) -> Self {
        Self { until: timeout.into().remaining().map(|timeout| (Instant::now(), timeout)) }
    }

    /// The length of the next sleep; `None` after the deadline.
    pub fn nap(&self) -> Option<Duration> {
        let Some((start, timeout)) = self.until else { return Some(NAP_MAX) };
        let left = timeout.checked_sub(start.elapsed())?;
        (!left.is_zero()).then(|| left.min(NAP_MAX))
    }

    /// The time left; `None` without an end.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|(start, timeout)| timeout.saturating_sub(start.elapsed()))
    }

    /// A deadline after at most `slice`.
    pub fn at_most(&self, slice: Duration) -> Self {
        Self::new(Some(self.left().map_or(slice, |left| left.min(slice))))
    }

    pub fn error(&self, what: String) -> Error {
        Error::Timeout { what, waited: self.until.map_or(Duration::ZERO, |(_, timeout)| timeout) }
    }
}

/// The awaited event of a wait for a name, with the reason why it has not come.
pub fn not_published(name: &str) -> String {
    format!("{name:?}: no process has published it (see `tensorlend ls`)")
}
