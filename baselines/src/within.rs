//! Waits for events that come soon or never.

use std::thread;
use std::time::{Duration, Instant};

/// Polls every few milliseconds until `ready`, for at most `limit`; returns whether it became so.
pub fn within(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if ready() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
}
