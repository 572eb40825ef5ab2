//! The part of a session that its leases keep alive.

pub mod epoch;
pub mod forks;
mod lookup;
pub mod shards;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::segment::lendings::Lendings;
use shards::Shards;
use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::number::{ClientNo, EntryNo};
use tensorlend_layout::wire::Welcome;
use tensorlend_layout::word::{Absorbed, Member, MemberState, Word};
use tensorlend_os::fork;

/// The part of a session that the session's leases keep alive. While the `Link` exists, the daemon knows this client,
/// and the client's leases protect their values. Leases keep the `Link` after the client has dropped the rest of the
/// session.
pub struct Link {
    pub control: Control,
    pub welcome: Welcome,
    /// The version of the layout that this client and its daemon support.
    layout: AtomicU32,
    pub directory: Directory,
    pub shards: Arc<Shards>,
    /// Device memory that the daemon lent to this session: its own and other clients'.
    pub lendings: Arc<Lendings>,
    /// The session, while parts of the session besides this link exist. Leases use the session to make drafts.
    pub session: OnceLock<Weak<dyn Any + Send + Sync>>,
    forks: u64,
}

impl Drop for Link {
    fn drop(&mut self) {
        // At this point this session has no mapped device memory. This report of the unmapped segments, before the
        // connection ends, lets the daemon free the memory without waiting for the end of the process.
        if !self.is_forked() {
            self.lendings.close(&self.control);
            // Shut the socket down: a forked child may have copies of it, which would keep the connection open.
            self.control.hang_up();
        }
    }
}

impl Link {
    /// Returns the link of a session that the daemon has accepted.
    pub fn new(control: Control, welcome: Welcome, layout: u32, directory: Directory, shards: Arc<Shards>) -> Self {
        let (lendings, session, layout) = (Arc::default(), OnceLock::new(), AtomicU32::new(layout));
        Self { control, welcome, layout, directory, shards, lendings, session, forks: fork::generation() }
    }

    /// Returns [`Error::Forked`] in a forked child, and otherwise success.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns whether this process is a child of the one that opened the session.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// Returns whether this process may read under the session's leases. A process may do so if it opened the session, or if
    /// it is a child that inherited the leases.
    #[inline]
    pub fn is_readable(&self) -> bool {
        fork::is_readable(self.forks)
    }

    /// Returns whether the daemon still respects this session's leases and cursors. Call this function after the reads that
    /// the lease must protect.
    #[inline]
    pub fn is_member(&self) -> bool {
        // If the daemon was replaced, the mapped directory may no longer have a writer.
        !self.control.is_dead() && self.directory.members[usize::from(self.me())].member.peek() == self.welcome.member
    }

    /// Returns whether a member's client has not ended. After its end, the member word stays open while its leases count, for
    /// its children or its work on a device. The daemon closes the word `absorbed` of each client that ends.
    #[inline]
    pub fn is_alive(&self, number: ClientNo) -> bool {
        let entry = &self.directory.members[usize::from(number)];
        matches!(Member(entry.member.read()).state(), MemberState::Open | MemberState::Ending)
            && Absorbed(entry.absorbed.read()).state() != MemberState::Closed
    }

    /// Returns the version of the layout that this client and its daemon support. The daemon maintains no word of the
    /// directory that a later version has added.
    pub fn layout(&self) -> u32 {
        self.layout.load(Ordering::Relaxed)
    }

    /// Records the version of the layout that the new daemon supports.
    pub fn set_layout(&self, version: u32) {
        self.layout.store(version, Ordering::Relaxed);
    }

    #[inline]
    pub fn me(&self) -> ClientNo {
        self.welcome.client
    }

    #[inline]
    pub fn owner_word(&self, entry: EntryNo) -> Option<&Word> {
        self.directory.names.get(entry.index()).map(|e| &e.owner_word)
    }
}
