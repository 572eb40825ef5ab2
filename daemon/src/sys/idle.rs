//! The time in which nobody has used the daemon.

use tensorlend_os::clock::boottime_ns;

/// The end of a daemon that nobody uses.
#[derive(Debug)]
pub struct Idle {
    after_ns: u64,
    since_ns: Option<u64>,
}

impl Idle {
    /// `None` and 0: the daemon does not end by itself.
    pub fn new(after_s: Option<u32>) -> Option<Self> {
        let after_s = after_s.filter(|seconds| *seconds > 0)?;
        Some(Self { after_ns: u64::from(after_s) * 1_000_000_000, since_ns: None })
    }

    /// Returns the time at which the daemon ends if it stays idle. `is_idle` is true while no client is connected and no name,
    /// stream or list exists.
    pub fn due_ns(&mut self, is_idle: bool) -> Option<u64> {
        self.since_ns = is_idle.then(|| self.since_ns.unwrap_or_else(boottime_ns));
        Some(self.since_ns? + self.after_ns)
    }

    /// Begins the time again.
    pub fn postpone(&mut self) {
        self.since_ns = None;
    }
}
