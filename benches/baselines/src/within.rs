//! A bounded wait for an event that happens soon or never.

use std::thread;
use std::time::{Duration, Instant};

/// Polls `ready` every few milliseconds until it returns true, for at most `limit`. Returns its last result.
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
