//! The daemon's reaction to a missing file of its control socket. Without the file, no client can
//! connect, although the daemon listens.

use super::socket_watch::SocketWatch;
use super::{DaemonError, LISTENER, Listener, SOCKET_FILE, Shell, system};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::AsFd;

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
