//! Wake descriptors of other clients' subscriptions, and what it costs to use them: the subscriber has the other end, and chooses
//! how many watches (epoll) are on it, each of which costs its waker time.

use crate::link::Link;
use rustix::net::SendFlags;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use tensorlend_os::mutex::lock;
use tensorlend_os::toll::Toll;

/// Owners that are remembered before those that are gone are forgotten.
const REMEMBERED: usize = 64;

/// Whose cost it is: a user, and of this process's own user one session.
type Whose = (u32, u64);

/// What wake descriptors have cost this session, by whose they are.
#[derive(Default)]
pub struct Tolls(Mutex<HashMap<Whose, Arc<Mutex<Toll>>>>);

impl Tolls {
    /// Of this member.
    pub fn of(&self, link: &Link, catalogue: u16) -> Arc<Mutex<Toll>> {
        let members = &link.directory.members;
        let uid_of = |member: u16| members[usize::from(member)].process.peek() as u32;
        let uid = uid_of(catalogue);
        // Else one program could keep others of its user from being woken.
        let life = if uid == uid_of(link.me()) { members[usize::from(catalogue)].member.peek() } else { 0 };
        let mut tolls = lock(&self.0);
        if tolls.len() >= REMEMBERED {
            // Of those that are gone, only what keeps them from coming back.
            tolls.retain(|_, toll| Arc::strong_count(toll) > 1 || lock(toll).is_excessive());
        }
        tolls.entry((uid, life)).or_default().clone()
    }
}

/// A wake descriptor.
pub struct Waking {
    /// Taken when it is dropped.
    fd: Option<OwnedFd>,
    toll: Arc<Mutex<Toll>>,
}

impl Waking {
    /// A descriptor, and what its owner has cost so far.
    pub fn new(fd: OwnedFd, toll: Arc<Mutex<Toll>>) -> Self {
        Self { fd: Some(fd), toll }
    }

    /// Wakes its subscriber. False: this and all other descriptors of its owner are not to be used again.
    pub fn wake(&self) -> bool {
        let mut toll = lock(&self.toll);
        if let Some(fd) = self.fd.as_ref().filter(|_| !toll.is_excessive()) {
            // DONTWAIT on our side: whatever the subscriber does with its end, we never block. A full socket means that it has
            // been woken often enough.
            let _ = toll.run(|| rustix::net::send(fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL));
        }
        !toll.is_excessive()
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let mut toll = lock(&self.toll);
        // The last close tells the watches of the other end, too.
        if toll.is_excessive() {
            // Without a thread it is closed here.
            let _ = tensorlend_os::thread::spawn("tensorlend-close", move || drop(fd));
        } else {
            toll.run(|| drop(fd));
        }
    }
}
