//! A client's connection in the system layer, and the bans of users whose sockets are slow.

use super::lanes::{Lane, Lanes};
use crate::core::Lending;
use crate::core::owners::Owners;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, shutdown};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::wire::{QueueRequest, Refusal, Reply, Request, decode, encode};
use tensorlend_os::clock::duration_ns;
use tensorlend_os::fork::Unshared;
use tensorlend_os::packet::{self, Packet};
use tensorlend_os::toll::Toll;

/// The descriptors of a reply, with the kind of each.
type Descriptors = Vec<(OwnedFd, Lending)>;

/// The events with which epoll reports the exit of a process. They are edge-triggered. So epoll
/// does not report the exit again while its token waits in the queue of a user.
pub const EXIT: EventFlags = EventFlags::IN.union(EventFlags::ET);

#[derive(Debug)]
pub struct Connection {
    pub fd: Unshared,
    pub uid: u32,
    /// The CPU time of the loop's calls on the socket. A client can slow these calls down with
    /// epoll watches on its end.
    pub toll: Toll,
    /// The events that epoll waits for now.
    pub interest: EventFlags,
    /// Whether the last packet has no reply yet. Until then, the loop reads no further packet of the connection.
    pub busy: bool,
    /// Events of the socket that are queued, because the user has used up its share of the event loop's turn. `None`
    /// if no event is queued.
    pub queued: Option<EventFlags>,
    /// Whether an event of the wakeup eventfd is queued, because the user has used up its share of the event loop's
    /// turn.
    pub wakeup_queued: bool,
    /// The pidfd of the process that connected. The exit of this process ends the session, even if a forked child has
    /// the socket open.
    pub process: Option<OwnedFd>,
    /// The wakeup eventfd, to which the client writes after announcing names. The daemon never
    /// reads the eventfd: epoll reports each write. The client has a duplicate, and nothing that it
    /// does with the duplicate affects other clients.
    pub wakeup: Option<OwnedFd>,
    stuck: Option<(Vec<u8>, Descriptors)>,
    /// Whether the last reply had descriptors.
    lent: bool,
}

impl Connection {
    /// Creates a connection from which the loop can read.
    pub fn new(fd: OwnedFd, uid: u32, process: Option<OwnedFd>) -> Self {
        Self {
            fd: Unshared::new(fd),
            uid,
            toll: Toll::default(),
            interest: EventFlags::IN,
            busy: false,
            queued: None,
            wakeup_queued: false,
            process,
            wakeup: None,
            stuck: None,
            lent: false,
        }
    }

    /// Receives the next packet and its descriptors.
    pub fn receive(&mut self) -> rustix::io::Result<Packet> {
        let fd = &self.fd;
        self.toll.run(|| packet::receive(fd, RecvFlags::DONTWAIT))
    }

    /// Returns true if the pending reply has descriptors.
    pub fn lends(&self) -> bool {
        self.stuck.as_ref().is_some_and(|(_, descriptors)| !descriptors.is_empty())
    }

    /// Returns true if the client has not received the last reply, and the reply has descriptors. The kernel counts them as in
    /// flight, and limits their number for all clients together.
    pub fn has_unread_descriptors(&self) -> bool {
        self.lent && packet::has_unread(self.fd.as_fd())
    }

    /// Returns the events that epoll must wait for. Epoll reports a hang-up in any case. While the
    /// connection is queued, the interest is edge-triggered, so epoll reports a hang-up only once.
    pub fn wanted(&self) -> EventFlags {
        if self.queued.is_some() {
            return EventFlags::ET;
        }
        match (&self.stuck, self.busy) {
            (Some(_), _) => EventFlags::OUT,
            (None, false) => EventFlags::IN,
            (None, true) => EventFlags::empty(),
        }
    }

    /// Sends a reply. If the socket does not accept it now, the reply stays pending.
    pub fn send(&mut self, reply: &Reply, descriptors: Descriptors, lanes: &Lanes) -> rustix::io::Result<()> {
        if let Some((_, unsent)) = self.stuck.replace((encode(reply), descriptors)) {
            close(unsent, lanes.of(self.uid), lanes);
        }
        self.flush(lanes)
    }

    /// Refuses the request that has arrived and has no reply, because the daemon is stopping. From now on the client's
    /// sends fail. So the client knows that the daemon does not carry out its request, and repeats the request at the next
    /// daemon.
    pub fn say_goodbye(&mut self, lanes: &Lanes) {
        // The kernel keeps the packets that have arrived.
        let _ = shutdown(&self.fd, Shutdown::Read);
        // A correct client has at most one request. The toll bounds the time for which any other client delays the
        // daemon.
        while !self.busy
            && !self.toll.is_excessive()
            && let Ok(packet) = self.receive()
        {
            lanes.close_descriptors(lanes.of(self.uid), packet.descriptors);
            if packet.bytes.is_empty() {
                break;
            }
            self.busy = !matches!(decode(&packet.bytes), Some(Request::Ack | Request::Queue(QueueRequest::Stop)));
        }
        // A pending reply belongs to a request that the daemon has carried out.
        if self.busy && self.stuck.is_none() {
            let _ = self.send(&Reply::Refused(Refusal::Stopping), vec![], lanes);
        }
    }

    /// Sends the pending reply, if the socket accepts it now.
    pub fn flush(&mut self, lanes: &Lanes) -> rustix::io::Result<()> {
        let Some((bytes, descriptors)) = &self.stuck else { return Ok(()) };
        let borrowed: Vec<_> = descriptors.iter().map(|(fd, _)| fd.as_fd()).collect();
        let send = || packet::send(&self.fd, bytes, &borrowed, SendFlags::DONTWAIT);
        // The kernel's collector of Unix sockets in flight delays a message with a socket in it. Any user can keep the
        // collector busy, so this time is not the receiver's. A receiver with too many watches costs as much elsewhere.
        let has_sockets = descriptors.iter().any(|(_, how)| matches!(how, Lending::Wake | Lending::Woken));
        match if has_sockets { send() } else { self.toll.run(send) } {
            Ok(()) => {
                if let Some((_, descriptors)) = self.stuck.take() {
                    self.lent = !descriptors.is_empty();
                    close(descriptors, lanes.of(self.uid), lanes);
                }
                self.busy = false;
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Closes the descriptors of a reply. A lane closes the ends of wake pairs and descriptors of devices, because a client or
/// the driver can delay their last close.
///
/// The loop closes descriptors of the daemon's own memory at once. While a writable descriptor is
/// open, the memory is not quiescent, even if its client has returned it.
fn close(mut descriptors: Descriptors, lane: Lane, lanes: &Lanes) {
    let is_foreign =
        |(_, how): &mut (OwnedFd, Lending)| matches!(how, Lending::Wake | Lending::Woken | Lending::Device);
    lanes.close_descriptors(lane, descriptors.extract_if(.., is_foreign).map(|(fd, _)| fd).collect());
}

/// Maximum number of ended connections of a user whose clients have not received their last reply.
const UNREAD_MAX: usize = 64;

/// Sockets of ended connections with descriptors that their clients have not received, by owner. The descriptors stay in
/// flight until the client receives them or closes its end.
#[derive(Default)]
pub struct Unread(BTreeMap<Lane, Vec<OwnedFd>>);

impl Unread {
    /// Adds the socket of a connection that ends. Closes the sockets whose clients have received the descriptors or have ended.
    pub fn add(&mut self, lane: Lane, connection: &Connection, lanes: &Lanes) {
        if !connection.has_unread_descriptors() {
            return;
        }
        for (&lane, sockets) in &mut self.0 {
            lanes.close_descriptors(lane, sockets.extract_if(.., |fd| !packet::has_unread(fd.as_fd())).collect());
        }
        self.0.retain(|_, sockets| !sockets.is_empty());
        if let Ok(fd) = connection.fd.as_fd().try_clone_to_owned() {
            self.0.entry(lane).or_default().push(fd);
        }
    }

    /// Returns true if this user has too many such sockets.
    pub fn is_full(&self, lane: Lane) -> bool {
        let unread = |sockets: &Vec<OwnedFd>| sockets.iter().filter(|fd| packet::has_unread(fd.as_fd())).count();
        self.0.get(&lane).is_some_and(|sockets| sockets.len() >= UNREAD_MAX && unread(sockets) >= UNREAD_MAX)
    }

    /// Closes all sockets, at the end of the daemon.
    pub fn close(&mut self, lanes: &Lanes) {
        for (lane, sockets) in std::mem::take(&mut self.0) {
            lanes.close(lane, sockets);
        }
    }
}

/// A connection to close. A lane drops it, and also sends the last message, because the send may take long.
pub struct Farewell {
    /// The connection's socket.
    fd: Unshared,
    /// The last message to the peer, if there is one.
    word: Option<Refusal>,
    /// Other values to drop in the lane.
    _rest: Option<Box<dyn Send>>,
}

impl Farewell {
    /// Prepares the close of a connection.
    pub fn to(connection: Connection, word: Option<Refusal>) -> Self {
        let Connection { fd, process, wakeup, stuck, .. } = connection;
        Self { fd, word, _rest: Some(Box::new((process, wakeup, stuck))) }
    }

    /// Prepares the close of a socket that never became a connection.
    pub fn to_stranger(fd: OwnedFd, word: Refusal) -> Self {
        Self { fd: Unshared::new(fd), word: Some(word), _rest: None }
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if let Some(word) = self.word.take() {
            let _ = packet::send(&self.fd, &encode(&Reply::Refused(word)), &[], SendFlags::DONTWAIT);
        }
        // The socket is shut down first. So the peer notices the end even if the close of the
        // unread messages blocks, because they may contain any descriptors.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

/// Divisor for the loop's time on a user's slow calls. A ban lasts PART times as long as the calls
/// took, so such calls take at most 1/PART of the time.
const PART: u32 = 256;
/// Minimum and maximum duration of a user's ban.
const BAN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(10));

/// Minimum cost of an ended connection from which the cost counts towards a ban of its user.
const NOTED: Duration = Duration::from_millis(2);
/// Total cost of a user's ended connections within [`SUM_NS`] above which the user is banned.
const SUM_MAX: Duration = Duration::from_millis(100);
const SUM_NS: u64 = 60_000_000_000;

/// Cost below which an excessive cost (see [`Toll`]) came from several slow calls. A higher cost
/// may come from one call.
const ONE_CALL: Duration = Duration::from_millis(100);
/// Time after a forgiven cost or a ban in which the daemon does not forgive the same user again.
/// The time is twice the longest ban. So a user who is always forgiven gets no larger part of the
/// loop's time than a user who is always banned.
const FORGIVEN_NS: u64 = 2 * duration_ns(BAN.1);

/// The users that are banned because of the costs of their sockets, and the costs that are still
/// below a ban. All uids of an owner count as one user: see [`Owners`].
#[derive(Debug, Default)]
pub struct Bans {
    owners: Arc<Owners>,
    /// The end of each ban, in nanoseconds of the loop's clock.
    until_ns: BTreeMap<u32, u64>,
    /// For each user, the start of the current sum, and the sum of the costs of ended connections
    /// whose cost was not excessive.
    costs: BTreeMap<u32, (u64, Duration)>,
    /// Users that are not forgiven now. Each has the time of the last forgiveness or ban, and the
    /// forgiven cost, which the next ban includes.
    forgiven: BTreeMap<u32, (u64, Duration)>,
}

impl Bans {
    /// Replaces the assignment of uids to owners.
    pub fn set_owners(&mut self, owners: Arc<Owners>) {
        self.owners = owners;
    }

    /// Returns true if an excessive cost is forgiven. This is so if the cost may come from one
    /// call, and the user was not forgiven or banned within [`FORGIVEN_NS`].
    ///
    /// Some virtual machines do not report stolen time. There, a pause of the machine counts as CPU
    /// time of the interrupted call. getrusage(2) does not distinguish the two either, because the
    /// kernel scales the times that it reports to the same CPU time. The user's next excessive
    /// cost, on any connection, is not forgiven.
    pub fn forgives(&mut self, uid: u32, toll: &Toll, now_ns: u64) -> bool {
        self.forgiven.retain(|_, (since_ns, _)| now_ns - *since_ns < FORGIVEN_NS);
        let owner = self.owners.of(uid);
        if toll.cost() <= ONE_CALL || self.forgiven.contains_key(&owner) {
            return false;
        }
        self.forgiven.insert(owner, (now_ns, toll.cost()));
        true
    }

    /// Counts the cost of a connection that ends. A client could otherwise end each connection
    /// before its cost is excessive. Returns true if the user is now banned.
    pub fn note_end(&mut self, uid: u32, toll: &Toll, now_ns: u64) -> bool {
        let owner = self.owners.of(uid);
        if toll.is_excessive() {
            if self.forgives(uid, toll, now_ns) {
                return false;
            }
            let (_, before) = self.forgiven.insert(owner, (now_ns, Duration::ZERO)).unwrap_or_default();
            self.add(owner, before + toll.cost(), now_ns);
            return true;
        }
        if toll.cost() < NOTED {
            return false;
        }
        self.costs.retain(|_, (since_ns, _)| now_ns - *since_ns < SUM_NS);
        let (_, cost) = self.costs.entry(owner).or_insert((now_ns, Duration::ZERO));
        *cost += toll.cost();
        if *cost <= SUM_MAX {
            return false;
        }
        let cost = *cost;
        self.costs.remove(&owner);
        self.add(owner, cost, now_ns);
        true
    }

    fn add(&mut self, owner: u32, cost: Duration, now_ns: u64) {
        self.until_ns.retain(|_, until_ns| *until_ns > now_ns);
        let ban = (cost * PART).clamp(BAN.0, BAN.1);
        let until_ns = self.until_ns.entry(owner).or_insert(now_ns);
        // The bans for simultaneous connections add up, to at most the longest ban.
        *until_ns = (*until_ns + duration_ns(ban)).min(now_ns + duration_ns(BAN.1));
    }

    /// Returns the end of the ban on `uid`, if the user is banned now.
    pub fn until_ns(&self, uid: u32, now_ns: u64) -> Option<u64> {
        self.until_ns.get(&self.owners.of(uid)).copied().filter(|&until_ns| until_ns > now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lanes;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use tensorlend_os::memfd;

    #[test]
    fn memory_that_was_lent_and_dropped_is_quiescent_while_its_lane_is_busy() {
        let lanes = lanes::tests::lanes();
        let stuck = lanes::tests::block(&lanes, lanes.of(0), 64);
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut connection = Connection::new(ours, 0, None);
        let memory = memfd::create("segment", 4096).unwrap();
        let writable = memfd::reopen(memory.as_fd(), memfd::Access::Write).unwrap();
        connection.send(&Reply::Done, vec![(writable, Lending::Write)], &lanes).unwrap();
        let received = packet::receive(&theirs, RecvFlags::DONTWAIT).unwrap();
        assert!(!memfd::is_quiescent(memory.as_fd()).unwrap());
        drop(received);
        assert!(memfd::is_quiescent(memory.as_fd()).unwrap());
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
        // Several slow calls are not forgiven: a pause of the machine slows down one call.
        let mut bans = Bans::default();
        let several = toll(&[Duration::from_millis(15); 2]);
        assert!(bans.note_end(9, &several, 100) && bans.until_ns(9, 100).is_some());
    }

    /// A range of subordinate uids has 65,536 of them.
    #[test]
    fn all_uids_of_a_range_are_forgiven_and_banned_as_their_owner() {
        let mut bans = Bans::default();
        bans.set_owners(Arc::new(Owners::new([(100_000, 65_536, Some(1000))])));
        let slow = toll(&[Duration::from_millis(110)]);
        assert!(bans.forgives(100_001, &slow, 100));
        assert!(!bans.forgives(100_002, &slow, 100) && !bans.forgives(1000, &slow, 100), "another uid of this owner");
        assert!(bans.note_end(100_003, &slow, 100));
        let until_ns = bans.until_ns(100_004, 100).expect("the whole range is banned");
        assert!(until_ns >= 100 + 2 * 256 * 110_000_000, "with the forgiven cost: {until_ns}");
        assert_eq!((bans.until_ns(1000, 100), bans.until_ns(1001, 100)), (Some(until_ns), None));
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
