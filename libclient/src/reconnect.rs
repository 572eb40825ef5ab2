//! Going on with a session when the daemon was replaced.
//!
//! The new daemon knows the session from what its predecessor left; the client says which it was, and gets a directory to
//! read and a descriptor to nudge with. Where the directory is another one (user mode), it is mapped in the place of the
//! old: every reference into it stays, and reads the new words from then on.

use crate::control::{Control, Mender, acknowledge_on, ask_on};
use crate::error::{Error, Result};
use crate::session::{Link, Session, lock};
use rustix::fs::fstat;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{PROTOCOL_VERSION, Reply, Request, Return};
use tensorlend_layout::{LAYOUT_HASH, LAYOUT_VERSION};
use tensorlend_os::{fork, map};

const DOING: &str = "go on after the daemon was replaced";

/// What a session needs to go on. As long as leases alone are left of it, they go on too.
struct Mending {
    link: Weak<Link>,
    session: Weak<Session>,
    /// The directory as it is mapped, and which file that is now.
    view: View,
    file: Mutex<(u64, u64)>,
}

/// Sees to it that a session goes on by itself.
pub fn watch(session: &Arc<Session>, view: View, directory: &OwnedFd) -> Result<()> {
    let file = identity(directory)?;
    let (link, weak) = (Arc::downgrade(&session.link), Arc::downgrade(session));
    let mending = Mending { link: link.clone(), session: weak, view, file: Mutex::new(file) };
    session.control.set_mender(Box::new(mending));
    Watcher::add(link);
    Ok(())
}

fn identity(fd: &OwnedFd) -> Result<(u64, u64)> {
    let stat = fstat(fd).map_err(|e| Error::System { doing: DOING, cause: e.into() })?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Mender for Mending {
    fn go_on(&self, socket: &OwnedFd) -> Result<()> {
        let link = self.link.upgrade().ok_or(Error::SessionEnded)?;
        link.check()?;
        let session = self.session.upgrade();
        let back = Return {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            layout_version: LAYOUT_VERSION,
            layout_hash: LAYOUT_HASH,
            namespace: link.welcome.namespace.clone(),
            catalogue: link.me(),
            member: link.welcome.member,
            segments: session.as_ref().and_then(|session| lock(&session.heap).bases()),
            cells: session.as_ref().map_or(u8::MAX, |session| session.cell_parts()),
        };
        let (reply, mut descriptors) = ask_on(socket, &Request::Return(back), DOING)?;
        let (Reply::Welcome(_), Some(nudge), Some(directory)) = (reply, descriptors.pop(), descriptors.pop()) else {
            return Err(Error::Protocol { doing: DOING });
        };
        let found = identity(&directory)?;
        let mut file = lock(&self.file);
        if *file != found {
            map::replace(&self.view, &directory).map_err(Error::system(DOING))?;
            *file = found;
        }
        if let Some(session) = &session {
            *lock(&session.nudge) = nudge;
        }
        acknowledge_on(socket, DOING)
    }

    fn settle(&self) {
        if let Some(session) = self.session.upgrade() {
            // It waits for who is binding a name at this moment, and that one perhaps for the return of others.
            let _ = std::thread::Builder::new().name("tensorlend-settle".into()).spawn(move || session.settle());
        }
    }
}

/// The thread that is told when a daemon hangs up: a process that only reads would not notice, and its leases must count at
/// the next daemon before that one lends memory anew.
struct Watcher {
    epoll: OwnedFd,
    forks: u64,
    /// By the number under which its socket is watched.
    links: Mutex<Vec<Weak<Link>>>,
}

/// Pause between two attempts to reach a daemon, from ... to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

impl Watcher {
    /// Watches a session. Without a thread to spare for it, the session goes on when it next asks something.
    fn add(link: Weak<Link>) {
        let mut watcher = lock(&WATCHER);
        if watcher.as_ref().is_none_or(|watcher| watcher.forks != fork::generation()) {
            *watcher = Self::start();
        }
        if let Some(watcher) = &*watcher {
            let number = {
                let mut links = lock(&watcher.links);
                let free = links.iter().position(|link| link.strong_count() == 0);
                let number = free.unwrap_or(links.len());
                if number == links.len() {
                    links.push(link.clone());
                } else {
                    links[number] = link.clone();
                }
                number
            };
            if let Some(link) = link.upgrade() {
                watcher.listen(&link.control, number);
            }
        }
    }

    fn start() -> Option<Arc<Self>> {
        use rustix::event::epoll::{CreateFlags, create};
        let epoll = create(CreateFlags::CLOEXEC).ok()?;
        let watcher = Arc::new(Self { epoll, forks: fork::generation(), links: Mutex::new(Vec::new()) });
        let its = watcher.clone();
        // It lives as long as the process: where there was one session there will be another.
        std::thread::Builder::new().name("tensorlend-watch".into()).spawn(move || its.run()).ok()?;
        Some(watcher)
    }

    /// Has a hang-up of this connection told. A socket that is closed is no longer listened to.
    fn listen(&self, control: &Control, number: usize) {
        use rustix::event::epoll::{EventData, EventFlags, add};
        let flags = EventFlags::RDHUP | EventFlags::ET;
        control.with_socket(|socket| {
            let _ = add(&self.epoll, socket.as_fd(), EventData::new_u64(number as u64), flags);
        });
    }

    fn run(&self) {
        use rustix::event::Timespec;
        use rustix::event::epoll::wait;
        let mut lost: Vec<usize> = Vec::new();
        let mut pause = PAUSE.0;
        let mut ready = Vec::with_capacity(16);
        loop {
            ready.clear();
            let timeout = (!lost.is_empty())
                .then(|| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() });
            if wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout.as_ref()).is_err() {
                continue;
            }
            if ready.is_empty() {
                pause = (pause * 2).min(PAUSE.1);
            } else {
                pause = PAUSE.0;
                lost.extend(ready.iter().map(|event| event.data.u64() as usize));
                lost.sort_unstable();
                lost.dedup();
            }
            lost.retain(|&number| !self.is_over(number));
        }
    }

    /// Looks after a session whose daemon hung up; whether there is no more to do.
    fn is_over(&self, number: usize) -> bool {
        let link = lock(&self.links).get(number).and_then(Weak::upgrade);
        let Some(link) = link else { return true };
        if link.is_forked() || !link.control.look_after() {
            return link.is_forked();
        }
        self.listen(&link.control, number);
        link.control.settle();
        true
    }
}
