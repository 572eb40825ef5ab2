//! Steps of the protocol that a test can leave out, to show that it would notice. Only in builds with the feature
//! `broken-for-tests`, and only if the variable `TENSORLEND_BROKEN` names the step.

use std::sync::OnceLock;

/// The omitted step, as `TENSORLEND_BROKEN` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// No step is omitted, but a reader waits for a long time between its first check and its lease: a correct protocol stays
    /// correct.
    Slow,
    /// As `Slow`, and a reader does not check again after it has stored its lease.
    SecondRead,
    /// An owner reuses a replaced slot without scanning the leases.
    Scan,
    /// A new name is announced without checking the claims, announcements and publications of others.
    Claim,
}

/// Returns the step that this process leaves out.
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

/// A delay between a reader's first check and its lease.
pub fn dawdle() {
    if matches!(broken(), Some(Broken::Slow | Broken::SecondRead)) {
        for _ in 0..4 {
            std::thread::yield_now();
        }
    }
}
