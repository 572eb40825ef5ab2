//! The cost of using other clients' wake descriptors. The subscriber has the other end of each descriptor, and chooses how
//! many epoll watches that end has. Each watch costs time in the process that wakes the subscriber.

use crate::link::Link;
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::word::ProcessWord;
use tensorlend_os::mutex::lock;
use tensorlend_os::thread::ClosedApart;
use tensorlend_os::toll::Toll;

/// The number of owners above which the session removes the entries of owners that have ended.
const REMEMBERED: usize = 64;

/// The owner to which a cost is charged. This is a user, but for this process's own user, it is one session.
type Whose = (u32, u64);

/// The cost of wake descriptors in this session, by owner.
#[derive(Default)]
pub struct Tolls(Mutex<HashMap<Whose, Arc<Mutex<Toll>>>>);

impl Tolls {
    /// Returns the cost of this member's wake descriptors.
    pub fn of(&self, link: &Link, number: ClientNo) -> Arc<Mutex<Toll>> {
        let members = &link.directory.members;
        let uid_of = |member: ClientNo| ProcessWord(members[member.index()].process.peek()).uid();
        let uid = uid_of(number);
        // Charge clients of this process's own user by session. Otherwise one program could prevent the wake-ups of the
        // user's other programs.
        let life = if uid == uid_of(link.me()) { members[number.index()].member.peek() } else { 0 };
        let mut tolls = lock(&self.0);
        if tolls.len() >= REMEMBERED {
            // Keep the entries of owners that have ended only if their cost was excessive.
            tolls.retain(|_, toll| Arc::strong_count(toll) > 1 || lock(toll).is_excessive());
        }
        tolls.entry((uid, life)).or_default().clone()
    }
}

/// A wake descriptor.
pub struct Waking {
    /// The last close notifies the watches of the other end. It also waits for an epoll instance in which an earlier producer
    /// watches this end.
    fd: ClosedApart,
    toll: Arc<Mutex<Toll>>,
}

impl Waking {
    /// Creates a wake descriptor that adds its cost to its owner's cost so far.
    pub fn new(fd: OwnedFd, toll: Arc<Mutex<Toll>>) -> Self {
        Self { fd: fd.into(), toll }
    }

    /// Wakes the subscriber. Returns false if the caller must not use this owner's descriptors any more.
    pub fn wake(&self) -> bool {
        let mut toll = lock(&self.toll);
        if !toll.is_excessive() {
            let fd = &self.fd;
            // DONTWAIT on this side: this call never blocks, whatever the subscriber does with its end. If the socket
            // is full, the subscriber already has enough wake-ups.
            let _ = toll.run(|| rustix::net::send(fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL));
        }
        !toll.is_excessive()
    }
}
