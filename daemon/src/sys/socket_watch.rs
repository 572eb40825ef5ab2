//! A watch on the file of the control socket. The kernel reports changes of this one file by inotify,
//! so other files in the folder do not wake the daemon.
//!
//! Any client may change the file's times, and only a check distinguishes such a change from a removal. So after a
//! report, the watch sleeps for [`PAUSE_NS`], and clients cannot keep the daemon busy.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, Result};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Minimum pause between two checks of the file.
const PAUSE_NS: u64 = 1_000_000_000;

/// Maximum pause between two attempts to create a missing file.
const PAUSE_NS_MAX: u64 = 60_000_000_000;

/// Changes after which the file may be missing. The kernel reports a removal as a change of
/// attributes, because the number of the file's names changes.
const CHANGES: WatchFlags =
    WatchFlags::ATTRIB.union(WatchFlags::MOVE_SELF).union(WatchFlags::DELETE_SELF).union(WatchFlags::DONT_FOLLOW);

/// Each report disarms the watch.
const EVENTS: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// An inotify instance that watches the file, and the time of the next check.
pub struct SocketWatch {
    inotify: OwnedFd,
    token: u64,
    /// The time of the next check. `None` while the watch is armed.
    due_ns: Option<u64>,
    pause_ns: u64,
    /// The error of the last attempt to create the file, until the file exists.
    error: Option<String>,
}

impl SocketWatch {
    /// Creates an instance that watches nothing yet. `epoll` reports its changes with this token.
    pub fn new(epoll: &OwnedFd, token: u64) -> Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        epoll::add(epoll, &inotify, EventData::new_u64(token), EVENTS)?;
        Ok(Self { inotify, token, due_ns: None, pause_ns: PAUSE_NS, error: None })
    }

    pub fn watch(&self, file: &Path) -> Result<()> {
        inotify::add_watch(&self.inotify, file, CHANGES).map(drop)
    }

    /// Returns the time of the next check, or `None` if the watch reports when a check is necessary.
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Takes the reported changes. The check of the file comes afterwards, so that later changes are reported.
    pub fn clear(&self) {
        let mut buffer = [0u8; 4096];
        while !matches!(rustix::io::read(&self.inotify, &mut buffer), Ok(0) | Err(Errno::AGAIN)) {}
    }

    /// Notes that the file exists. Arms the watch if the pause is over, and begins a pause otherwise.
    pub fn found(&mut self, epoll: &OwnedFd, now_ns: u64) -> Result<()> {
        (self.pause_ns, self.error) = (PAUSE_NS, None);
        match self.due_ns {
            Some(due_ns) if due_ns <= now_ns => {
                self.due_ns = None;
                epoll::modify(epoll, &self.inotify, EventData::new_u64(self.token), EVENTS)?;
            }
            Some(_) => {}
            None => self.due_ns = Some(now_ns + PAUSE_NS),
        }
        Ok(())
    }

    /// Notes that the file has been created, and begins a pause. The file may have been removed before the watch on it
    /// began, which the check after the pause finds.
    pub fn created(&mut self, now_ns: u64) {
        (self.pause_ns, self.error, self.due_ns) = (PAUSE_NS, None, Some(now_ns + PAUSE_NS));
    }

    /// Notes that the file cannot be created, and when to try again. Returns true if the last attempt had another
    /// result.
    pub fn failed(&mut self, error: &str, now_ns: u64) -> bool {
        self.due_ns = Some(now_ns + self.pause_ns);
        self.pause_ns = PAUSE_NS_MAX.min(2 * self.pause_ns);
        let is_new = self.error.as_deref() != Some(error);
        self.error = Some(error.to_owned());
        is_new
    }
}
