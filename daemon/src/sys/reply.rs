//! Replies with descriptors, which may have to wait for the end of a file lease.
//!
//! A process may take a file lease (`F_SETLEASE`) on memory of its own uid. In user mode, this is
//! all memory that the daemon lends. Until that process has ended the file lease, and for at most
//! `fs.lease-break-time` (45 s), the kernel lets no process open the memory. The reply then waits,
//! and the daemon serves other clients.
//!
//! A waiting reply holds a descriptor of the memory, because the memory's owner may return it in
//! the meantime. The requester then gets the memory as if the daemon had sent the reply just before
//! the return.

use super::connection::Connection;
use super::lanes::Lane;
use super::memory::{self, Memories};
use super::{Shell, WAKEUP};
use crate::core::{ConnId, Event, Lending, MemId, Unmade};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_os::clock::boottime_ns;

/// First and maximum pause, in nanoseconds, before the daemon tries again. Each pause is twice as
/// long as the previous one.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 64_000_000;
/// Maximum number of waiting replies that one turn of the loop tries to send.
const TRIES_MAX: usize = 16;
/// Maximum time for which a reply waits. An administrator may have set a longer
/// `fs.lease-break-time`.
const WAIT_NS_MAX: u64 = 60_000_000_000;

/// A reply whose descriptors cannot be opened yet.
pub struct Unsent {
    token: u64,
    reply: Reply,
    lend: Vec<(MemId, Lending)>,
    /// Duplicates of the memory's descriptors, if the reply has to wait.
    held: BTreeMap<MemId, OwnedFd>,
    close: bool,
    /// The lane of the client's user.
    lane: Lane,
    since_ns: u64,
    due_ns: u64,
    pause_ns: u64,
}

impl Unsent {
    fn new(token: u64, reply: Reply, lend: Vec<(MemId, Lending)>, close: bool, lane: Lane) -> Self {
        let since_ns = if lend.is_empty() { 0 } else { boottime_ns() };
        Self { token, reply, lend, held: BTreeMap::new(), close, lane, since_ns, due_ns: 0, pause_ns: PAUSE_NS }
    }

    /// Returns true if this reply will lend `mem`.
    pub fn lends(&self, mem: MemId) -> bool {
        self.lend.iter().any(|&(it, _)| it == mem)
    }

    /// Opens the descriptors to send. `wakeup` creates the wakeup eventfd. If a file lease prevents
    /// the opening, stores a duplicate of the memory's descriptor in `held`.
    fn open(
        &mut self,
        memories: &Memories,
        mut wakeup: impl FnMut() -> io::Result<OwnedFd>,
    ) -> io::Result<Vec<(OwnedFd, Lending)>> {
        let open = |&(mem, how): &(MemId, Lending)| {
            let fd = match (how, self.held.get(&mem)) {
                (Lending::Wakeup, _) => wakeup()?,
                (Lending::Read | Lending::Write, Some(held)) => memory::lend(held, how)?,
                _ => memories.lend(mem, how)?,
            };
            Ok((fd, how))
        };
        let opened: io::Result<Vec<_>> = self.lend.iter().map(open).collect();
        if is_blocked(&opened) && self.held.is_empty() {
            let opens = |it: &&(MemId, Lending)| matches!(it.1, Lending::Read | Lending::Write);
            let hold = |&(mem, _): &(MemId, Lending)| Some((mem, memories.hold(mem).ok()?));
            self.held = self.lend.iter().filter(opens).filter_map(hold).collect();
        }
        opened
    }
}

/// Returns true if the opening failed because a process has a file lease on the memory.
fn is_blocked<T>(opened: &io::Result<T>) -> bool {
    matches!(opened, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl Shell {
    /// Sends a reply now, or later when its descriptors can be opened.
    pub(super) fn send(&mut self, token: u64, reply: Reply, lend: Vec<(MemId, Lending)>, close: bool) {
        let connection = self.connections.get(&token);
        let lane = connection.map_or(Lane::Daemon, |connection| self.lanes.of(connection.uid));
        self.send_or_wait(Unsent::new(token, reply, lend, close, lane));
    }

    /// Returns the time at which the daemon must try again to send a reply.
    pub(super) fn unsent_due_ns(&self) -> Option<u64> {
        self.unsent.iter().map(|it| it.due_ns).min()
    }

    /// Tries again to send the replies that are due.
    pub(super) fn send_unsent(&mut self) {
        let now_ns = if self.unsent.is_empty() { return } else { boottime_ns() };
        let mut tries = 0;
        for it in std::mem::take(&mut self.unsent) {
            if it.due_ns <= now_ns && tries < TRIES_MAX {
                tries += 1;
                self.send_or_wait(it);
            } else {
                self.unsent.push_back(it);
            }
        }
        self.deliver_all();
    }

    fn send_or_wait(&mut self, mut it: Unsent) {
        let token = it.token;
        let Some(connection) = self.connections.get_mut(&token) else { return self.let_go(it) };
        let lent = it.open(&self.memories, || make_wakeup(&self.epoll, connection, token));
        if is_blocked(&lent) {
            let now_ns = boottime_ns();
            if now_ns - it.since_ns < WAIT_NS_MAX {
                it.due_ns = now_ns + it.pause_ns;
                it.pause_ns = (it.pause_ns * 2).min(PAUSE_NS_MAX);
                self.unsent.push_back(it);
                return;
            }
        }
        tensorlend_layout::crash_point!("daemon: descriptors opened");
        let sent = match lent {
            Ok(descriptors) => {
                for &(mem, how) in &it.lend {
                    if matches!(how, Lending::Write | Lending::Device) {
                        self.memories.lent_to(mem, it.lane);
                    }
                }
                let sent = connection.send(&it.reply, descriptors, &self.lanes);
                if sent.is_ok() {
                    self.memories.handed_out(&it.lend, &self.lanes);
                }
                sent.map_err(Into::into)
            }
            Err(error) => {
                self.ahead.close();
                self.refuse_unsent(token, "opening a descriptor", &error);
                return self.let_go(it);
            }
        };
        tensorlend_layout::crash_point!("daemon: answered");
        if it.close {
            self.close(token);
        } else if let Err(error) = sent {
            if !self.refuses_unsent(token, &error) {
                tracing::warn!("a reply could not be sent: {error}");
                self.hung_up(token);
            }
        } else {
            self.check_toll(token);
            self.watch(token);
        }
        self.let_go(it);
    }

    /// Refuses a request whose reply could not be sent, if the kernel may have refused only the reply's descriptors. Returns
    /// false if the connection is unusable.
    pub(super) fn refuses_unsent(&mut self, token: u64, error: &io::Error) -> bool {
        let is_scarce = matches!(Errno::from_io_error(error), Some(Errno::TOOMANYREFS | Errno::NOMEM | Errno::NOBUFS));
        let is_refused = is_scarce && self.connections.get(&token).is_some_and(Connection::lends);
        if is_refused {
            self.refuse_unsent(token, "sending a descriptor", error);
        }
        is_refused
    }

    /// Reports to the core that the descriptors of a reply could not be opened or sent.
    fn refuse_unsent(&mut self, token: u64, doing: &str, error: &io::Error) {
        let refusal = match super::error::unmade(error) {
            Unmade::Memory(reason) => Refusal::Memory { bytes: 0, reason: format!("{doing}: {reason}") },
            scarce @ Unmade::Descriptors { .. } => scarce.refusal(0),
        };
        self.events.push_back(Event::Unsent { conn: ConnId(token), refusal });
    }

    /// Closes the descriptors that a reply has held. If the memory was released in the meantime,
    /// this is the last close and frees the pages.
    fn let_go(&self, it: Unsent) {
        if !it.held.is_empty() {
            self.lanes.free(it.lane, it.held);
        }
    }
}

/// Creates the wakeup eventfd of a connection, and returns the duplicate for the client.
fn make_wakeup(epoll: &OwnedFd, connection: &mut Connection, token: u64) -> io::Result<OwnedFd> {
    let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // With an edge-triggered interest, epoll reports each write once. So the daemon need not read
    // the eventfd.
    epoll::add(epoll, &wakeup, EventData::new_u64(token | WAKEUP), EventFlags::IN | EventFlags::ET)?;
    let theirs = wakeup.try_clone()?;
    connection.wakeup = Some(wakeup);
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::lanes::tests::lanes;
    use std::os::fd::AsFd;
    use tensorlend_os::memfd::{self, Access};

    #[test]
    fn a_reply_that_waits_for_a_file_lease_is_sent_although_its_memory_is_released() {
        let (lanes, mut memories) = (lanes(), Memories::new(false));
        let made = memfd::create("segment", 4096).unwrap();
        rustix::io::pwrite(&made, b"bytes", 0).unwrap();
        let holder = memfd::reopen(made.as_fd(), Access::Write).unwrap();
        let mem = MemId(1);
        memories.insert(mem, made, None, Lane::Daemon);
        assert!(memfd::hold_with_lease(&holder));
        let mut it = Unsent::new(16, Reply::Done, vec![(mem, Lending::Read)], false, Lane::Daemon);
        let mut open = |memories: &Memories| it.open(memories, || Err(io::Error::other("nothing to wake")));
        assert!(is_blocked(&open(&memories)));
        memories.release(mem, &lanes);
        assert!(is_blocked(&open(&memories)), "the lease still holds");
        drop(holder);
        let lent = open(&memories).unwrap();
        let mut bytes = [0; 5];
        assert_eq!(rustix::io::pread(&lent[0].0, &mut bytes, 0), Ok(5));
        assert!(bytes == *b"bytes" || bytes == [0; 5], "the lane may have freed the pages");
    }

    #[test]
    fn memory_that_a_waiting_reply_holds_has_no_writer() {
        let mut memories = Memories::new(true);
        let made = memfd::create("segment", 4096).unwrap();
        let holder = memfd::reopen(made.as_fd(), Access::Write).unwrap();
        let mem = MemId(1);
        memories.insert(mem, made, None, Lane::Daemon);
        assert!(memfd::hold_with_lease(&holder));
        let mut it = Unsent::new(16, Reply::Done, vec![(mem, Lending::Read)], false, Lane::Daemon);
        assert!(is_blocked(&it.open(&memories, || Err(io::Error::other("nothing to wake")))));
        assert!(it.lends(mem) && it.held.contains_key(&mem));
        drop(holder);
        assert!(memories.is_quiescent(mem));
    }
}
