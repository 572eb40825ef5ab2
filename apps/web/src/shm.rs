//! The shared memory of the machine, for `/metrics`.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorlend_shm::Totals;

/// Minimum time between two scans.
const INTERVAL: Duration = Duration::from_secs(15);
/// Number of times its own duration for which a scan is used: scans take at most 2 % of one core.
const USES: u32 = 50;

/// The last scan, and the time until which it is used.
#[derive(Default)]
pub struct Latest(Mutex<Option<(Instant, Totals)>>);

impl Latest {
    /// Returns the sums of the last scan. Scans only if a viewer asks after the scan's time, so a server without viewers
    /// never scans.
    pub fn totals(&self) -> Totals {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        match &*latest {
            Some((until, totals)) if since < *until => totals.clone(),
            _ => {
                let totals = tensorlend_shm::machine().totals();
                let now = Instant::now();
                *latest = Some((now + INTERVAL.max((now - since) * USES), totals.clone()));
                totals
            }
        }
    }
}
