//! A daemon in this process, and its owners.

use std::sync::{Arc, Mutex};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// A daemon in this process. Dropping the last reference stops it.
#[derive(Clone)]
pub struct Broker {
    daemon: Arc<Mutex<Option<tensorlend_daemon::Embedded>>>,
    forks: u64,
}

impl Broker {
    /// Takes a running daemon.
    pub fn new(daemon: tensorlend_daemon::Embedded) -> Self {
        Self { daemon: Arc::new(Mutex::new(Some(daemon))), forks: fork::generation() }
    }

    /// Returns true until the daemon is stopped.
    pub fn is_running(&self) -> bool {
        lock(&self.daemon).is_some()
    }

    /// Stops the daemon, even if other references to it exist.
    pub fn stop(&self) {
        let daemon = lock(&self.daemon).take();
        drop(daemon);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.forks != fork::generation() {
            // A forked child has none of the daemon's threads. So leak the daemon, whose drop would
            // wait for these threads.
            std::mem::forget(Arc::clone(&self.daemon));
        }
    }
}
