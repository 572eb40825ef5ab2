//! Timeouts as parameters, and the deadlines of waits.

use crate::error::Error;
use std::time::{Duration, Instant};

/// The longest time that a method may wait.
///
/// Methods that wait take `impl Into<Timeout>`, so you can write:
///
/// * a [`Duration`]: at most this long; [`Duration::ZERO`] checks once and does not wait;
/// * `None`, or [`Timeout::NEVER`]: without end;
/// * an [`Instant`]: until that time, so that several calls can share one deadline.
///
/// If this time passes before the awaited event, the method returns [`Error::Timeout`](crate::Error::Timeout). The
/// error names the event and the time waited.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use std::time::{Duration, Instant};
///
/// client.put("image", &[1u8])?;
/// client.put("depth", &[2u8])?;
/// let image = client.wait_for("image", None)?;
/// let deadline = Instant::now() + Duration::from_millis(20);
/// let depth = client.wait_for("depth", deadline)?;
/// let late = client.wait_for("pose", deadline).unwrap_err();
/// assert!(late.is_timeout());
/// assert!(client.wait_for("pose", Duration::ZERO).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeout(Limit);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Limit {
    Never,
    After(Duration),
    At(Instant),
}

impl Timeout {
    /// A wait without a timeout: the method waits until its event, or an error.
    pub const NEVER: Self = Self(Limit::Never);

    /// Returns the time to wait, measured from now. Returns `None` for no end, and zero for an [`Instant`] that has
    /// passed.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use tensorlend::Timeout;
    ///
    /// assert_eq!(Timeout::from(Duration::from_secs(2)).remaining(), Some(Duration::from_secs(2)));
    /// assert_eq!(Timeout::from(Instant::now()).remaining(), Some(Duration::ZERO));
    /// assert_eq!(Timeout::NEVER.remaining(), None);
    /// ```
    #[inline]
    pub fn remaining(self) -> Option<Duration> {
        match self.0 {
            Limit::Never => None,
            Limit::After(time) => Some(time),
            Limit::At(end) => Some(end.saturating_duration_since(Instant::now())),
        }
    }
}

impl From<Duration> for Timeout {
    #[inline]
    fn from(time: Duration) -> Self {
        Self(Limit::After(time))
    }
}

impl From<Option<Duration>> for Timeout {
    #[inline]
    fn from(time: Option<Duration>) -> Self {
        Self(time.map_or(Limit::Never, Limit::After))
    }
}

impl From<Instant> for Timeout {
    #[inline]
    fn from(end: Instant) -> Self {
        Self(Limit::At(end))
    }
}

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
