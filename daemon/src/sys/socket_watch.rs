//! A watch on the file of the control socket. The kernel reports changes of this one file by inotify,
//! so other files in the folder do not wake the daemon.

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Changes after which the file may be missing. The kernel reports a removal as a change of
/// attributes, because the number of the file's names changes.
const CHANGES: WatchFlags =
    WatchFlags::ATTRIB.union(WatchFlags::MOVE_SELF).union(WatchFlags::DELETE_SELF).union(WatchFlags::DONT_FOLLOW);

/// An inotify instance that watches the file.
pub struct SocketWatch(OwnedFd);

impl SocketWatch {
    /// Creates an instance that watches nothing yet.
    pub fn new() -> rustix::io::Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    /// Watches the file at a path.
    pub fn watch(&self, file: &Path) -> rustix::io::Result<()> {
        inotify::add_watch(&self.0, file, CHANGES).map(drop)
    }

    /// Takes the reported changes.
    pub fn clear(&self) {
        let mut buffer = [0u8; 4096];
        while !matches!(rustix::io::read(&self.0, &mut buffer), Ok(0) | Err(Errno::AGAIN)) {}
    }
}

impl AsFd for SocketWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
