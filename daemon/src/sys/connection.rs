//! One connection, as the shell sees it: what epoll waits for, and the one reply that may be stuck.

use super::closer::Closer;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tensorlend_layout::wire::{Refusal, Reply, encode};
use tensorlend_os::packet::{self, Packet};
use tensorlend_os::toll::Toll;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Its socket.
    pub fd: OwnedFd,
    /// Whose it is.
    pub uid: u32,
    /// What calls on its socket cost the loop: the client chooses who watches its end.
    pub toll: Toll,
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
    pub fn new(fd: OwnedFd, uid: u32, process: Option<OwnedFd>) -> Self {
        let toll = Toll::default();
        Self { fd, uid, toll, interest: EventFlags::IN, busy: false, process, nudge: None, stuck: None }
    }

    /// The next packet.
    pub fn receive(&mut self) -> rustix::io::Result<Packet> {
        let fd = &self.fd;
        self.toll.run(|| packet::receive(fd, RecvFlags::DONTWAIT))
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
        let fd = &self.fd;
        match self.toll.run(|| packet::send(fd, bytes, &borrowed, SendFlags::DONTWAIT)) {
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

/// A connection that is about to be closed, by the closer: to tell its peer may take long, too.
pub struct Farewell {
    /// Its socket.
    fd: OwnedFd,
    /// What its peer is told, if anything.
    word: Option<Refusal>,
    /// What else is closed with it.
    _rest: Option<Box<dyn Send>>,
}

impl Farewell {
    /// Of a connection.
    pub fn to(connection: Connection, word: Option<Refusal>) -> Self {
        let Connection { fd, process, nudge, stuck, .. } = connection;
        Self { fd, word, _rest: Some(Box::new((process, nudge, stuck))) }
    }

    /// Of a socket that never became one.
    pub fn to_stranger(fd: OwnedFd, word: Refusal) -> Self {
        Self { fd, word: Some(word), _rest: None }
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if let Some(word) = self.word.take() {
            let _ = packet::send(&self.fd, &encode(&Reply::Refused(word)), &[], SendFlags::DONTWAIT);
        }
        // Its peer hears of it before what lies unread in its queue is closed, descriptors of any kind.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

/// A user may cost one part in so many of the loop's time by slow calls.
const PART: u32 = 256;
/// Shortest and longest time for which nobody of a user may connect.
const BAN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(10));

/// Users whose sockets have cost too much: until when, by the clock of the loop, they may not connect.
#[derive(Debug, Default)]
pub struct Bans(BTreeMap<u32, u64>);

impl Bans {
    /// A connection of `uid` was closed for its toll.
    pub fn add(&mut self, uid: u32, toll: &Toll, now_ns: u64) {
        self.0.retain(|_, until_ns| *until_ns > now_ns);
        let ban = (toll.cost() * PART).clamp(BAN.0, BAN.1);
        let until_ns = self.0.entry(uid).or_insert(now_ns);
        // Several connections at once cost as much as one after another.
        *until_ns = (*until_ns + ban.as_nanos() as u64).min(now_ns + BAN.1.as_nanos() as u64);
    }

    /// Until when nobody of `uid` may connect, if that is to come.
    pub fn until_ns(&self, uid: u32, now_ns: u64) -> Option<u64> {
        self.0.get(&uid).copied().filter(|&until_ns| until_ns > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_is_longer_for_who_cost_more_and_ends() {
        let mut bans = Bans::default();
        bans.add(7, &Toll::default(), 100);
        assert_eq!(bans.until_ns(7, 100), Some(1_000_000_100));
        assert_eq!((bans.until_ns(7, 1_000_000_100), bans.until_ns(8, 100)), (None, None));
        bans.add(7, &Toll::default(), 100);
        assert_eq!(bans.until_ns(7, 100), Some(2_000_000_100));
        for _ in 0..1000 {
            bans.add(7, &Toll::default(), 100);
        }
        assert_eq!(bans.until_ns(7, 100), Some(600_000_000_100));
    }
}
