//! The end of a daemon that nobody uses.

use super::{Listener, Shell};
use tensorlend_os::clock::boottime_ns;

/// The time without clients and names.
#[derive(Debug)]
pub struct Idle {
    after_ns: u64,
    since_ns: Option<u64>,
}

impl Shell {
    /// Makes the daemon end after so many seconds in which no client is connected and no name, stream or list exists. `None`
    /// and 0: never.
    pub fn ending_when_idle(mut self, after_s: Option<u32>) -> Self {
        let after_s = after_s.filter(|seconds| *seconds > 0);
        self.idle = after_s.map(|seconds| Idle { after_ns: u64::from(seconds) * 1_000_000_000, since_ns: None });
        self
    }

    /// Returns the time at which the daemon ends if it stays idle.
    pub(super) fn idle_due_ns(&mut self) -> Option<u64> {
        let is_idle = self.connections.is_empty() && self.core.is_empty();
        let idle = self.idle.as_mut()?;
        idle.since_ns = is_idle.then(|| idle.since_ns.unwrap_or_else(boottime_ns));
        Some(idle.since_ns? + idle.after_ns)
    }

    /// Removes the socket's file, and returns true if no client has connected until then. Otherwise creates the file again.
    pub(super) fn ends_idle(&mut self) -> bool {
        self.listener.remove_file();
        if !self.listener.has_connections() {
            tracing::info!("the daemon has had no client and no name for its idle_exit_s");
            return true;
        }
        if let Err(error) = self.bind_socket_again() {
            tracing::warn!(
                "a client connected while the idle daemon was ending, and the socket's file is missing: {error}"
            );
        }
        false
    }
}

impl Listener {
    /// Returns true if clients have connected that the daemon has not accepted.
    fn has_connections(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }
}
