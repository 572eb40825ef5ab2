//! Steps of the protocol that a test can omit, to show that the test detects a missing step. Only builds with the
//! feature `broken-for-tests` have them, and only if the variable `TENSORLEND_BROKEN` names the step.

use std::sync::OnceLock;

/// The omitted step, as `TENSORLEND_BROKEN` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Omits no step, but makes a reader wait for a long time between its first check and its lease. A correct protocol
    /// stays correct.
    Slow,
    /// Waits like `Slow`, and omits the reader's second check after it has stored its lease.
    SecondRead,
    /// Omits the scan of the leases before an owner reuses a replaced slot.
    Scan,
    /// Omits the check of other clients' claims, announcements and publications before a client announces a new name.
    Claim,
}

/// Returns the step that this process omits.
pub fn broken() -> Option<Broken> {
    static BROKEN: OnceLock<Option<Broken>> = OnceLock::new();
    *BROKEN.get_or_init(|| {
        Some(match std::env::var("TENSORLEND_BROKEN").ok()?.as_str() {
            "slow" => Broken::Slow,
            "second-read" => Broken::SecondRead,
            "scan" => Broken::Scan,
            "claim" => Broken::Claim,
            other => panic!("TENSORLEND_BROKEN={other}: it is slow, second-read, scan or claim"),
        })
    })
}

/// Waits between a reader's first check and its lease.
pub fn dawdle() {
    if matches!(broken(), Some(Broken::Slow | Broken::SecondRead)) {
        for _ in 0..4 {
            std::thread::yield_now();
        }
    }
}
