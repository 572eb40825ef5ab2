//! Replies with descriptors.
//!
//! A process may take a file lease (`F_SETLEASE`) on memory of its own uid: in user mode, on all memory that the daemon lends. Until
//! the process has ended the lease, and for `fs.lease-break-time` (45 s) at most, the kernel lets nobody open that memory. The
//! reply then waits, and the daemon serves others.

use super::connection::Connection;
use super::{NUDGE, Shell};
use crate::core::{Lending, MemId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_os::clock::boottime_ns;

/// Pause before the daemon tries again. Each further pause is twice as long.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 64_000_000;
/// Maximum number of such replies that one turn of the loop tries to send.
const TRIES_MAX: usize = 16;
/// Maximum time for which a reply waits. An administrator may have set a longer time for leases.
const WAIT_NS_MAX: u64 = 60_000_000_000;

/// A reply whose descriptors cannot be opened yet.
pub struct Unsent {
    token: u64,
    reply: Reply,
    lend: Vec<(MemId, Lending)>,
    close: bool,
    since_ns: u64,
    due_ns: u64,
    pause_ns: u64,
}

impl Shell {
    /// Sends a reply, now or when its descriptors can be opened.
    pub(super) fn send(&mut self, token: u64, reply: Reply, lend: Vec<(MemId, Lending)>, close: bool) {
        let since_ns = if lend.is_empty() { 0 } else { boottime_ns() };
        self.send_or_wait(Unsent { token, reply, lend, close, since_ns, due_ns: 0, pause_ns: PAUSE_NS });
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
        let Some(connection) = self.connections.get_mut(&it.token) else { return };
        let mut open = |&(mem, how)| match how {
            Lending::Nudge => Ok((make_nudge(&self.epoll, connection, it.token)?, how)),
            how => Ok((self.memories.lend(mem, how)?, how)),
        };
        let lent: io::Result<Vec<_>> = it.lend.iter().map(&mut open).collect();
        if matches!(&lent, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
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
            Ok(descriptors) => connection.send(&it.reply, descriptors, &self.closer).map_err(|e| e.to_string()),
            Err(error) => {
                let reason = format!("opening a descriptor: {error}");
                let refusal = Refusal::Memory { bytes: 0, reason: reason.clone() };
                let _ = connection.send(&Reply::Refused(refusal), vec![], &self.closer);
                Err(reason)
            }
        };
        tensorlend_layout::crash_point!("daemon: answered");
        if it.close {
            self.close(it.token);
        } else if let Err(reason) = sent {
            tracing::warn!("a reply could not be sent: {reason}");
            self.hung_up(it.token);
        } else {
            self.check_toll(it.token);
            self.watch(it.token);
        }
    }
}

/// Creates a connection's wakeup eventfd; returns the client's duplicate.
fn make_nudge(epoll: &OwnedFd, connection: &mut Connection, token: u64) -> io::Result<OwnedFd> {
    let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    // Edge-triggered: epoll reports each write once, and the daemon need not read.
    epoll::add(epoll, &nudge, EventData::new_u64(token | NUDGE), EventFlags::IN | EventFlags::ET)?;
    let theirs = nudge.try_clone()?;
    connection.nudge = Some(nudge);
    Ok(theirs)
}
