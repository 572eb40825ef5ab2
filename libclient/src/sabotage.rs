//! Steps of the protocol that a test can have left out, to show that it would notice. Only in builds with the feature
//! `broken-for-tests`, and only where the variable `TENSORLEND_BROKEN` names the step.

use std::sync::OnceLock;

/// What is left out, as `TENSORLEND_BROKEN` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Nothing, but whoever leases takes a long time between his look and his lease: what is right stays right.
    Slow,
    /// As `Slow`, and a reader does not look again after it has stored its lease.
    SecondLook,
    /// An owner reuses what was replaced without a look at anybody's leases.
    Scan,
    /// A new name is announced without a look at what others have claimed, announced or published.
    Claim,
}

/// What this process leaves out.
pub fn broken() -> Option<Broken> {
    static BROKEN: OnceLock<Option<Broken>> = OnceLock::new();
    *BROKEN.get_or_init(|| {
        Some(match std::env::var("TENSORLEND_BROKEN").ok()?.as_str() {
            "slow" => Broken::Slow,
            "second-look" => Broken::SecondLook,
            "scan" => Broken::Scan,
            "claim" => Broken::Claim,
            other => panic!("TENSORLEND_BROKEN={other}: it is slow, second-look, scan or claim"),
        })
    })
}

/// Between a reader's first look and its lease.
pub fn dawdle() {
    if matches!(broken(), Some(Broken::Slow | Broken::SecondLook)) {
        for _ in 0..4 {
            std::thread::yield_now();
        }
    }
}
