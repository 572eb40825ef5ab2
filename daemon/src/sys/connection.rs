//! A connection in the shell: its epoll interest, and the one reply that may be pending.

use super::closer::Closer;
use crate::core::Lending;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tensorlend_layout::wire::{Refusal, Reply, encode};
use tensorlend_os::packet::{self, Packet};
use tensorlend_os::toll::Toll;

/// Descriptors of a reply, and how each is lent.
type Descriptors = Vec<(OwnedFd, Lending)>;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub fd: OwnedFd,
    /// The client's uid.
    pub uid: u32,
    /// Time that calls on its socket cost the loop: a client can slow them down by watching its end.
    pub toll: Toll,
    /// The events that epoll waits for now.
    pub interest: EventFlags,
    /// Whether its last packet has no reply yet; the loop reads no further packet until then.
    pub busy: bool,
    /// The process that connected. Its exit ends the session even if a forked child keeps the socket open.
    pub process: Option<OwnedFd>,
    /// The wakeup eventfd: the client writes to it after announcing names. The daemon never reads it: epoll reports
    /// each write. The client holds it too and may do anything with it; no other client is affected.
    pub nudge: Option<OwnedFd>,
    stuck: Option<(Vec<u8>, Descriptors)>,
}

impl Connection {
    /// Creates a connection that is ready to be read.
    pub fn new(fd: OwnedFd, uid: u32, process: Option<OwnedFd>) -> Self {
        let toll = Toll::default();
        Self { fd, uid, toll, interest: EventFlags::IN, busy: false, process, nudge: None, stuck: None }
    }

    /// Receives the next packet.
    pub fn receive(&mut self) -> rustix::io::Result<Packet> {
        let fd = &self.fd;
        self.toll.run(|| packet::receive(fd, RecvFlags::DONTWAIT))
    }

    /// Returns the events that epoll must wait for. It reports a hang-up in any case.
    pub fn wanted(&self) -> EventFlags {
        match (&self.stuck, self.busy) {
            (Some(_), _) => EventFlags::OUT,
            (None, false) => EventFlags::IN,
            (None, true) => EventFlags::empty(),
        }
    }

    /// Sends a reply, or keeps it pending until the socket accepts it.
    pub fn send(&mut self, reply: &Reply, descriptors: Descriptors, closer: &Closer) -> rustix::io::Result<()> {
        if let Some((_, unsent)) = self.stuck.replace((encode(reply), descriptors)) {
            close(unsent, closer);
        }
        self.flush(closer)
    }

    /// Sends the pending reply.
    pub fn flush(&mut self, closer: &Closer) -> rustix::io::Result<()> {
        let Some((bytes, descriptors)) = &self.stuck else { return Ok(()) };
        let borrowed: Vec<_> = descriptors.iter().map(|(fd, _)| fd.as_fd()).collect();
        let fd = &self.fd;
        match self.toll.run(|| packet::send(fd, bytes, &borrowed, SendFlags::DONTWAIT)) {
            Ok(()) => {
                if let Some((_, descriptors)) = self.stuck.take() {
                    close(descriptors, closer);
                }
                self.busy = false;
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Closes descriptors of a reply. The owner of a wake descriptor, and the driver of a device, can delay the last close: the closer
/// closes theirs. Descriptors of the daemon's own memory are closed at once: a writable one that stays open would keep the memory
/// from being quiescent after its client has returned it.
fn close(mut descriptors: Descriptors, closer: &Closer) {
    let is_foreign = |(_, how): &mut (OwnedFd, Lending)| matches!(how, Lending::Wake | Lending::Device);
    let foreign: Vec<_> = descriptors.extract_if(.., is_foreign).collect();
    if !foreign.is_empty() {
        closer.close(foreign);
    }
}

/// A connection to be closed on a closing thread: sending the last message may take long, too.
pub struct Farewell {
    /// The socket.
    fd: OwnedFd,
    /// The last message for its peer, if any.
    word: Option<Refusal>,
    /// Other values, which are dropped together with the connection.
    _rest: Option<Box<dyn Send>>,
}

impl Farewell {
    /// Closes a connection.
    pub fn to(connection: Connection, word: Option<Refusal>) -> Self {
        let Connection { fd, process, nudge, stuck, .. } = connection;
        Self { fd, word, _rest: Some(Box::new((process, nudge, stuck))) }
    }

    /// Closes a socket that was never accepted as a connection.
    pub fn to_stranger(fd: OwnedFd, word: Refusal) -> Self {
        Self { fd, word: Some(word), _rest: None }
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if let Some(word) = self.word.take() {
            let _ = packet::send(&self.fd, &encode(&Reply::Refused(word)), &[], SendFlags::DONTWAIT);
        }
        // The peer notices the end before the kernel closes its unread messages, which may contain any descriptors.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

/// A user's slow calls may cost 1/PART of the loop's time.
const PART: u32 = 256;
/// Minimum and maximum duration of a user's ban.
const BAN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(10));

/// The least cost of an ended connection that counts towards a ban of its user.
const NOTED: Duration = Duration::from_millis(2);
/// The cost of a user's ended connections within [`SUM_NS`] beyond which the user is banned.
const SUM_MAX: Duration = Duration::from_millis(100);
const SUM_NS: u64 = 60_000_000_000;

/// The cost above which one call makes a connection excessive: see [`Toll`]. With a lower cost it has made several slow calls.
const ONE_CALL: Duration = Duration::from_millis(100);
/// Time for which a user is not forgiven again: as long as two of the longest bans, so that a user who is forgiven each time gets
/// no larger part of the loop's time than one who is banned each time.
const FORGIVEN_NS: u64 = 2 * BAN.1.as_nanos() as u64;

/// The costs of users' sockets, and the users who are banned for them.
#[derive(Debug, Default)]
pub struct Bans {
    /// The end of each ban by the loop's clock.
    until_ns: BTreeMap<u32, u64>,
    /// The costs of connections that have ended and were not excessive, since a time.
    costs: BTreeMap<u32, (u64, Duration)>,
    /// The users who are not forgiven now: since when, and the forgiven cost, which their next ban counts.
    forgiven: BTreeMap<u32, (u64, Duration)>,
}

impl Bans {
    /// Forgives an excessive cost if it may be that of one call, and the user was not forgiven or banned recently. On a virtual
    /// machine without a clock of stolen time, a pause of the machine counts as CPU time of the call that it interrupts. getrusage
    /// does not tell the two apart, because the kernel scales its times to the same CPU time. The user's next excessive cost is
    /// not forgiven, on any connection.
    pub fn forgives(&mut self, uid: u32, toll: &Toll, now_ns: u64) -> bool {
        self.forgiven.retain(|_, (since_ns, _)| now_ns - *since_ns < FORGIVEN_NS);
        if toll.cost() <= ONE_CALL || self.forgiven.contains_key(&uid) {
            return false;
        }
        self.forgiven.insert(uid, (now_ns, toll.cost()));
        true
    }

    /// Counts what a connection has cost that ends, for whatever reason: a client can end it before it costs too much. Returns true
    /// if its user is banned for that.
    pub fn note_end(&mut self, uid: u32, toll: &Toll, now_ns: u64) -> bool {
        if toll.is_excessive() {
            if self.forgives(uid, toll, now_ns) {
                return false;
            }
            let (_, before) = self.forgiven.insert(uid, (now_ns, Duration::ZERO)).unwrap_or_default();
            self.add(uid, before + toll.cost(), now_ns);
            return true;
        }
        if toll.cost() < NOTED {
            return false;
        }
        self.costs.retain(|_, (since_ns, _)| now_ns - *since_ns < SUM_NS);
        let (_, cost) = self.costs.entry(uid).or_insert((now_ns, Duration::ZERO));
        *cost += toll.cost();
        if *cost <= SUM_MAX {
            return false;
        }
        let cost = *cost;
        self.costs.remove(&uid);
        self.add(uid, cost, now_ns);
        true
    }

    fn add(&mut self, uid: u32, cost: Duration, now_ns: u64) {
        self.until_ns.retain(|_, until_ns| *until_ns > now_ns);
        let ban = (cost * PART).clamp(BAN.0, BAN.1);
        let until_ns = self.until_ns.entry(uid).or_insert(now_ns);
        // Costs of simultaneous connections add up.
        *until_ns = (*until_ns + ban.as_nanos() as u64).min(now_ns + BAN.1.as_nanos() as u64);
    }

    /// Returns the end of the ban on `uid`, if it is in the future.
    pub fn until_ns(&self, uid: u32, now_ns: u64) -> Option<u64> {
        self.until_ns.get(&uid).copied().filter(|&until_ns| until_ns > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::closer;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use tensorlend_os::memfd;

    #[test]
    fn memory_that_was_lent_and_dropped_is_quiescent_while_the_closer_is_busy() {
        let closer = Closer::start().unwrap();
        let stuck = closer::tests::block(&closer, 64);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut connection = Connection::new(ours, 0, None);
        let memory = memfd::create("segment", 4096).unwrap();
        let writable = memfd::reopen(memory.as_fd(), memfd::Access::Write).unwrap();
        connection.send(&Reply::Done, vec![(writable, Lending::Write)], &closer).unwrap();
        let received = packet::receive(&theirs, RecvFlags::DONTWAIT).unwrap();
        assert!(!memfd::is_quiet(memory.as_fd()).unwrap());
        drop(received);
        assert!(memfd::is_quiet(memory.as_fd()).unwrap());
        drop(stuck);
    }

    /// Returns the cost of calls that each take this much CPU time.
    fn toll(calls: &[Duration]) -> Toll {
        let now = || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
        let mut toll = Toll::default();
        for &call in calls {
            toll.run(|| {
                let until = now() + call;
                while now() < until {}
            });
        }
        assert!(toll.is_excessive(), "{toll:?}");
        toll
    }

    /// A pause of the virtual machine looks like one slow call. A client that makes calls slow has a second one.
    #[test]
    fn one_slow_call_is_forgiven_and_counts_with_the_next() {
        let mut bans = Bans::default();
        let slow = toll(&[Duration::from_millis(110)]);
        assert!(bans.forgives(7, &slow, 100), "a pause");
        assert!(!bans.forgives(7, &slow, 100) && bans.forgives(8, &slow, 100), "each user once");
        assert_eq!(bans.until_ns(7, 100), None);
        assert!(bans.note_end(7, &slow, 100));
        let until_ns = bans.until_ns(7, 100).unwrap();
        assert!(until_ns >= 100 + 2 * 256 * 110_000_000, "both calls count: {until_ns}");
        // A user who was banned is not forgiven for a time, and then again.
        assert!(bans.note_end(7, &slow, FORGIVEN_NS) && !bans.note_end(7, &slow, 2 * FORGIVEN_NS));
        // Several slow calls are no pause.
        let mut bans = Bans::default();
        let several = toll(&[Duration::from_millis(15); 2]);
        assert!(bans.note_end(9, &several, 100) && bans.until_ns(9, 100).is_some());
    }

    #[test]
    fn a_ban_is_longer_for_who_cost_more_and_ends() {
        let mut bans = Bans::default();
        bans.add(7, Duration::ZERO, 100);
        assert_eq!(bans.until_ns(7, 100), Some(1_000_000_100));
        assert_eq!((bans.until_ns(7, 1_000_000_100), bans.until_ns(8, 100)), (None, None));
        bans.add(7, Duration::ZERO, 100);
        assert_eq!(bans.until_ns(7, 100), Some(2_000_000_100));
        for _ in 0..1000 {
            bans.add(7, Duration::ZERO, 100);
        }
        assert_eq!(bans.until_ns(7, 100), Some(600_000_000_100));
    }
}
