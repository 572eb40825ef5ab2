//! The daemon's reaction to a missing file of its control socket. Without the file, no client can
//! connect, although the daemon listens.

use super::clients::refuse_descriptors;
use super::idle::Idle;
use super::socket_watch::SocketWatch;
use super::{DaemonError, LISTENER, Listener, SOCKET_FILE, Shell, system};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::AsFd;
use std::path::Path;
use tensorlend_os::clock::boottime_ns;
use tensorlend_os::socket_file::{Lock, Purpose};

/// Reports that the file cannot be watched.
fn warn(error: rustix::io::Errno) {
    tracing::warn!("the daemon will not notice if the file of its socket is removed: {error}");
}

impl Shell {
    /// Makes the daemon end after so many seconds in which nobody uses it.
    pub fn ending_when_idle(mut self, after_s: Option<u32>) -> Self {
        self.idle = Idle::new(after_s);
        self
    }

    /// Returns the time at which the daemon ends if it stays idle.
    pub(super) fn idle_due_ns(&mut self) -> Option<u64> {
        let is_idle = self.connections.is_empty() && self.core.is_empty();
        self.idle.as_mut()?.due_ns(is_idle)
    }

    /// Removes the socket's file, and returns true if no client has connected until then. Otherwise creates the file again.
    pub(super) fn ends_idle(&mut self) -> bool {
        // A service manager keeps its socket and starts the next daemon.
        let Some(path) = self.listener.own_path().map(Path::to_owned) else { return !self.listener.has_connections() };
        // A client that finds no file starts a daemon, but only with this lock.
        let Ok(_lock) = Lock::try_take(&path, Purpose::Start) else { return false };
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

    /// Makes the daemon notice that the file of its socket is missing.
    pub fn watching_its_socket(mut self) -> Self {
        match SocketWatch::new(&self.epoll, SOCKET_FILE) {
            Ok(watch) => self.socket_watch = Some(watch),
            Err(error) => warn(error),
        }
        self.watch_socket();
        if !self.listener.has_file() {
            self.check_socket();
        }
        self
    }

    /// Watches the present file. If the file is missing already, a check finds this.
    fn watch_socket(&self) {
        if let (Some(watch), Some(path)) = (&self.socket_watch, self.listener.path())
            && let Err(error) = watch.watch(path)
            && self.listener.has_file()
        {
            warn(error);
        }
    }

    /// Returns the time at which the socket's file must be checked.
    pub(super) fn socket_due_ns(&self) -> Option<u64> {
        self.socket_watch.as_ref().and_then(SocketWatch::due_ns)
    }

    /// Creates the socket's file again if it is missing.
    pub(super) fn check_socket(&mut self) {
        let Some(watch) = &mut self.socket_watch else { return };
        watch.clear();
        if !self.listener.has_file() {
            self.create_socket_again();
        } else if let Err(error) = watch.found(&self.epoll, boottime_ns()) {
            warn(error);
        }
    }

    fn create_socket_again(&mut self) {
        let Some(path) = self.listener.path() else { return };
        let path = path.display().to_string();
        match self.bind_socket_again() {
            Ok(()) => {
                tracing::error!(
                    "the file of the socket {path} was removed, and no client could connect: the daemon has created the \
                     socket again. Find out what removes files there"
                );
            }
            Err(error) => {
                let Some(watch) = &mut self.socket_watch else { return };
                let error = error.to_string();
                if watch.failed(&error, boottime_ns()) {
                    tracing::error!(
                        "the file of the socket {path} was removed or replaced, so no client can connect, and the daemon \
                         cannot create the socket again: {error}. Correct this: the daemon tries again within a minute, and \
                         at once on SIGHUP"
                    );
                }
            }
        }
    }

    /// Creates the missing file of the socket again.
    pub(super) fn bind_socket_again(&mut self) -> Result<(), DaemonError> {
        let listener = self.listener.bind_again()?;
        self.replace_listener(listener)?;
        if let Some(watch) = &mut self.socket_watch {
            watch.created(boottime_ns());
        }
        self.watch_socket();
        Ok(())
    }

    fn replace_listener(&mut self, listener: Listener) -> Result<(), DaemonError> {
        epoll::add(&self.epoll, &listener.fd, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        refuse_descriptors(listener.fd.as_fd());
        self.accept_after_ns = None;
        // Clients that connected before the removal still wait in the former socket.
        self.accept_waiting();
        let _ = epoll::delete(&self.epoll, &self.listener.fd);
        self.listener = listener;
        Ok(())
    }
}
