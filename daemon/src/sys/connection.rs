//! One connection, as the shell sees it: what epoll waits for, and the one reply that may be stuck.

use super::closer::Closer;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};
use tensorlend_layout::wire::{Reply, encode};
use tensorlend_os::packet;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its socket.
    pub fd: OwnedFd,
    /// What epoll waits for now.
    pub interest: EventFlags,
    /// Whether its last packet is not answered yet: nothing more is read then.
    pub busy: bool,
    /// The process that connected. Its end ends the session even where a forked child keeps the socket open.
    pub process: Option<OwnedFd>,
    /// With this the client says that it has announced something. Never read: epoll tells of each write. The client holds
    /// it too, and may do with it what it likes: it is nobody else's.
    pub nudge: Option<OwnedFd>,
    stuck: Option<(Vec<u8>, Vec<OwnedFd>)>,
}

impl Connection {
    /// A fresh connection, to be read from.
    pub fn new(fd: OwnedFd, process: Option<OwnedFd>) -> Self {
        Self { fd, interest: EventFlags::IN, busy: false, process, nudge: None, stuck: None }
    }

    /// What epoll should wait for. A hang-up is told in any case.
    pub fn wanted(&self) -> EventFlags {
        match (&self.stuck, self.busy) {
            (Some(_), _) => EventFlags::OUT,
            (None, false) => EventFlags::IN,
            (None, true) => EventFlags::empty(),
        }
    }

    /// Sends a reply, or keeps it until the socket takes it.
    pub fn send(&mut self, reply: &Reply, descriptors: Vec<OwnedFd>, closer: &Closer) -> rustix::io::Result<()> {
        if let Some((_, unsent)) = self.stuck.replace((encode(reply), descriptors)) {
            closer.close(unsent);
        }
        self.flush(closer)
    }

    /// Sends what is stuck. Its descriptors may be others' wake descriptors, which their owners have dropped since: the
    /// closer closes them.
    pub fn flush(&mut self, closer: &Closer) -> rustix::io::Result<()> {
        let Some((bytes, descriptors)) = &self.stuck else { return Ok(()) };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        match packet::send(&self.fd, bytes, &borrowed, SendFlags::DONTWAIT) {
            Ok(()) => {
                if let Some((_, descriptors)) = self.stuck.take()
                    && !descriptors.is_empty()
                {
                    closer.close(descriptors);
                }
                self.busy = false;
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
