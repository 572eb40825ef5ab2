//! A watch on the file of the control socket. Without the file, no client can connect, although the
//! daemon listens.
//!
//! The kernel reports changes of this one file by inotify, so other files in the folder do not wake
//! the daemon.

use super::{DaemonError, LISTENER, Listener, SOCKET_FILE, Shell, system};
use rustix::event::epoll::{self, EventData, EventFlags};
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
    pub fn new() -> rustix::io::Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    fn watch(&self, file: &Path) -> rustix::io::Result<()> {
        inotify::add_watch(&self.0, file, CHANGES).map(drop)
    }

    /// Takes the reported changes.
    fn clear(&self) {
        let mut buffer = [0u8; 4096];
        while !matches!(rustix::io::read(&self.0, &mut buffer), Ok(0) | Err(Errno::AGAIN)) {}
    }
}

impl AsFd for SocketWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Shell {
    /// Makes the daemon notice that the file of its socket is missing.
    pub fn watching_its_socket(mut self) -> Self {
        let watch = SocketWatch::new().and_then(|watch| {
            epoll::add(&self.epoll, &watch, EventData::new_u64(SOCKET_FILE), EventFlags::IN)?;
            Ok(watch)
        });
        match watch {
            Ok(watch) => self.socket_watch = Some(watch),
            Err(error) => tracing::warn!("the daemon will not notice if the file of its socket is removed: {error}"),
        }
        self.watch_socket();
        self
    }

    /// Watches the present file, and replaces a missing file.
    fn watch_socket(&mut self) {
        if let (Some(watch), Some(path)) = (&self.socket_watch, self.listener.path()) {
            // If the file is missing already, the call fails, and the check below finds this.
            let _ = watch.watch(path);
            self.check_socket();
        }
    }

    /// Handles a change of the socket's file.
    pub(super) fn socket_changed(&mut self) {
        if let Some(watch) = &self.socket_watch {
            watch.clear();
            self.check_socket();
        }
    }

    /// Creates the socket's file again if it is missing.
    pub(super) fn check_socket(&mut self) {
        if self.socket_watch.is_none() || self.listener.has_file() {
            return;
        }
        let Some(path) = self.listener.path() else { return };
        let path = path.display().to_string();
        match self.listener.bind_again().and_then(|listener| self.replace_listener(listener)) {
            Ok(()) => {
                tracing::error!(
                    "the file of the socket {path} was removed, and no client could connect: the daemon has created the \
                     socket again. Find out what removes files there"
                );
                self.watch_socket();
            }
            Err(error) => tracing::error!(
                "the file of the socket {path} was removed or replaced, so no client can connect, and the daemon cannot \
                 create the socket again: {error}. Correct this, and send SIGHUP to the daemon, or restart it"
            ),
        }
    }

    fn replace_listener(&mut self, listener: Listener) -> Result<(), DaemonError> {
        epoll::add(&self.epoll, &listener.fd, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        self.set_passing(listener.fd.as_fd());
        self.accept_after_ns = None;
        // Clients that connected before the removal still wait in the former socket.
        self.accept_waiting();
        let _ = epoll::delete(&self.epoll, &self.listener.fd);
        self.listener = listener;
        Ok(())
    }
}
