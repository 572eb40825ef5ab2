//! Waiting without the interpreter's lock, and so that Ctrl-C ends it.

use crate::errors::{argument, raise};
use pyo3::prelude::*;
use std::time::{Duration, Instant};
use tensorlend::Error;

/// How long a wait goes on before it looks whether a signal has come.
const SLICE: Duration = Duration::from_millis(50);

/// Seconds as Python gives them; `None` for ever.
pub fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(argument(format!("a timeout of {seconds} seconds: give 0 or more, or None for no limit")));
    }
    // Longer than anybody waits is for ever.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// Waits, slice by slice, for as long as `once` returns that its slice has run out.
pub fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut once: impl FnMut(Duration) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let began = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        match py.detach(|| once(slice)) {
            Ok(done) => return Ok(done),
            Err(Error::Timeout { what, .. }) => {
                py.check_signals()?;
                // It may have been shorter than its slice.
                if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                    return Err(raise(Error::Timeout { what, waited: timeout.unwrap_or_default() }));
                }
            }
            Err(other) => return Err(raise(other)),
        }
    }
}
