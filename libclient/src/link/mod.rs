//! The part of a session that its leases keep alive.

pub mod descriptors;
mod lookup;
pub mod shards;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::segment::lendings::Lendings;
use shards::Shards;
use std::sync::Arc;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::wire::Welcome;
use tensorlend_layout::word::Word;
use tensorlend_os::fork;

/// What keeps a session alive: as long as somebody holds it, the daemon knows this client, and its leases count. Leases
/// hold it when all else of the session is gone.
pub struct Link {
    pub control: Control,
    pub welcome: Welcome,
    pub directory: Directory,
    pub shards: Arc<Shards>,
    /// Device memory that it was lent, its own and others'.
    pub lendings: Arc<Lendings>,
    forks: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // By now nothing of a device is mapped under this session: what was is told before the connection ends, so that
        // the daemon need not wait for the process to end.
        if !self.is_forked() {
            self.lendings.close(&self.control);
        }
    }
}

impl Link {
    /// Of a session that the daemon has welcomed.
    pub fn new(control: Control, welcome: Welcome, directory: Directory, shards: Arc<Shards>) -> Self {
        Self { control, welcome, directory, shards, lendings: Arc::default(), forks: fork::generation() }
    }

    /// Refuses to serve a forked child.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// Whether the daemon still counts this session's leases and cursors. What it was asked after must have been read.
    #[inline]
    pub fn is_member(&self) -> bool {
        // The directory that is mapped may be one that nobody writes any more.
        !self.control.is_dead() && self.directory.members[usize::from(self.me())].member.peek() == self.welcome.member
    }

    /// This client's catalogue number.
    #[inline]
    pub fn me(&self) -> u16 {
        self.welcome.catalogue
    }

    /// The word of a home in the directory.
    #[inline]
    pub fn home(&self, entry: u32) -> Option<&Word> {
        self.directory.names.get(entry as usize).map(|e| &e.home)
    }
}
