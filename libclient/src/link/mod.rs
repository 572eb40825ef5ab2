//! The part of a session that its leases keep alive.

pub mod descriptors;
pub mod epoch;
pub mod forks;
mod lookup;
pub mod shards;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::segment::lendings::Lendings;
use shards::Shards;
use std::any::Any;
use std::sync::{Arc, OnceLock, Weak};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::wire::Welcome;
use tensorlend_layout::word::Word;
use tensorlend_os::fork;

/// The part of a session that keeps the session alive: while the `Link` exists, the daemon knows this client, and its leases
/// count. Leases keep the `Link` after the rest of the session is gone.
pub struct Link {
    pub control: Control,
    pub welcome: Welcome,
    pub directory: Directory,
    pub shards: Arc<Shards>,
    /// Device memory that the daemon lent to this session: its own and other clients'.
    pub lendings: Arc<Lendings>,
    /// The session, as long as more of it exists than this link: leases reach it to make drafts.
    pub session: OnceLock<Weak<dyn Any + Send + Sync>>,
    forks: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // No device memory is mapped under this session any more. Reporting the unmapped segments before the connection
        // ends spares the daemon waiting for the process to end.
        if !self.is_forked() {
            self.lendings.close(&self.control);
            // A forked child has copies of the socket, which would keep the connection open.
            self.control.hang_up();
        }
    }
}

impl Link {
    /// Returns the link of a session that the daemon has accepted.
    pub fn new(control: Control, welcome: Welcome, directory: Directory, shards: Arc<Shards>) -> Self {
        let (lendings, session) = (Arc::default(), OnceLock::new());
        Self { control, welcome, directory, shards, lendings, session, forks: fork::generation() }
    }

    /// Returns [`Error::Forked`] in a forked child.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// Returns whether this process may read under the session's leases: it opened the session, or is a child that inherited
    /// them.
    #[inline]
    pub fn is_readable(&self) -> bool {
        fork::is_readable(self.forks)
    }

    /// Returns whether the daemon still counts this session's leases and cursors. Call it after the reads that the lease must
    /// protect.
    #[inline]
    pub fn is_member(&self) -> bool {
        // After a daemon was replaced, the mapped directory may have no writer any more.
        !self.control.is_dead() && self.directory.members[usize::from(self.me())].member.peek() == self.welcome.member
    }

    /// Returns this client's catalogue number.
    #[inline]
    pub fn me(&self) -> u16 {
        self.welcome.catalogue
    }

    /// Returns the owner word of a directory entry.
    #[inline]
    pub fn owner_word(&self, entry: u32) -> Option<&Word> {
        self.directory.names.get(entry as usize).map(|e| &e.owner_word)
    }
}
