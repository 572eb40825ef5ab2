//! Continues a session after the daemon was replaced.
//!
//! The new daemon knows the session from the descriptors that the previous daemon left in the fd store. The client
//! identifies itself, and receives a read-only directory and the wakeup eventfd. If the directory is a new file (user
//! mode), the client maps the new file in place of the old one. Every reference into the directory stays valid, and
//! reads the new words from then on.

use crate::control::{Control, Resume, acknowledge_on, ask_on};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::segment::mapping::{length, sheet, typed};
use crate::session::Session;
use rustix::fs::fstat;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::{Sheet, View};
use tensorlend_layout::size;
use tensorlend_layout::stream::{Closed, StreamRing};
use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{PROTOCOL_OLDEST, PROTOCOL_VERSION, Reply, Request, Return};
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;
use tensorlend_os::{barrier, fork, map, thread};

const DOING: &str = "go on after the daemon was replaced";

/// The parts of a session that a new daemon needs to continue it. A session also continues if only its leases remain.
struct Resuming {
    link: Weak<Link>,
    session: Weak<Session>,
    /// The mapped directory, and the identity of its file.
    view: View,
    file: Mutex<FileId>,
}

/// A change of a session's connection to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connected {
    /// The daemon has ended, and no other one has responded for a second. The client continues to try.
    Lost,
    /// The session continues with another daemon.
    Again,
}

static OBSERVER: OnceLock<fn(Connected)> = OnceLock::new();

/// Sets the function that each change of a connection calls, in any thread. Later calls have no effect.
pub fn observe_connections(observer: fn(Connected)) {
    let _ = OBSERVER.set(observer);
}

fn report(change: Connected) {
    if let Some(observer) = OBSERVER.get() {
        observer(change);
    }
}

/// Makes a session continue automatically after the daemon was replaced.
pub fn watch(session: &Arc<Session>, view: View, file: FileId) {
    let (link, weak) = (Arc::downgrade(session.link()), Arc::downgrade(session));
    let resuming = Resuming { link: link.clone(), session: weak, view, file: Mutex::new(file) };
    session.control.set_resume(Box::new(resuming));
    Watcher::add(link);
}

/// The device and the inode of a file.
pub type FileId = (u64, u64);

pub fn identity(fd: &OwnedFd) -> Result<FileId> {
    let stat = fstat(fd).map_err(|e| Error::System { doing: DOING, cause: e.into() })?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Resume for Resuming {
    fn resume(&self, socket: &OwnedFd, layout: Layout) -> Result<()> {
        let link = self.link.upgrade().ok_or(Error::SessionEnded)?;
        link.check()?;
        let session = self.session.upgrade();
        let (segments, released) = match &session {
            Some(session) => session.alloc().bases(),
            None => (None, Vec::new()),
        };
        let back = Return {
            protocol_min: PROTOCOL_OLDEST,
            protocol_max: PROTOCOL_VERSION,
            layout_version: layout.version,
            layout_hash: layout.hash,
            namespace: link.welcome.namespace.clone(),
            client: link.me(),
            member: link.welcome.member,
            segments,
            released,
            cells: session.as_ref().map_or(u8::MAX, |session| session.names().cell_parts()),
            claims: session.as_ref().map_or_else(Vec::new, |session| session.control.asserted()),
        };
        let (reply, mut descriptors) = ask_on(socket, &Request::Return(back), DOING)?;
        let (Reply::Welcome(welcome), Some(wakeup), Some(directory)) = (reply, descriptors.pop(), descriptors.pop())
        else {
            return Err(Error::Protocol { doing: DOING });
        };
        tensorlend_layout::crash_point!("resume: welcomed");
        let found = identity(&directory)?;
        let mut file = lock(&self.file);
        if *file != found {
            map::replace(&self.view, &directory).map_err(Error::system(DOING))?;
            *file = found;
        }
        tensorlend_layout::crash_point!("resume: directory replaced");
        link.set_layout(layout.version);
        if let Some(session) = &session {
            session.control.set_protocol(welcome.protocol);
            session.alloc().daemon_replaced();
            session.peers().daemon_replaced();
            session.names().set_wakeup(wakeup);
        }
        acknowledge_on(socket, DOING)?;
        tensorlend_layout::crash_point!("resume: acknowledged");
        // Until the new daemon receives this report, it regards this client as a holder of all device memory.
        #[cfg(feature = "cuda")]
        link.lendings.janitor.forget_pools();
        for request in link.lendings.mapped(!welcome.devices.is_empty()) {
            ask_on(socket, &request, DOING)?;
        }
        Ok(())
    }

    fn settle(&self) {
        if let Some(session) = self.session.upgrade() {
            session.alloc().report_released_again();
            session.names().settle();
            session.watch_wanted();
        }
    }

    fn give_up(&self, lent: &Reply, descriptors: &[OwnedFd]) {
        match (lent, descriptors) {
            (Reply::Stream { .. }, [ring, ..]) => {
                // If the mapping fails, the stream stays open until this client opens it again or ends.
                let head = length(ring).and_then(|bytes| typed(sheet(ring, Access::Write, Magic::Stream, bytes)?));
                if let Ok(head) = head {
                    let head: Sheet<StreamRing> = head;
                    head.closed.set(Closed::Ended { lost: 0 }.pack());
                }
            }
            #[cfg(feature = "cuda")]
            (Reply::DeviceSegment(lent), _) => {
                if let Some(link) = self.link.upgrade() {
                    link.lendings.never_mapped(lent.lending);
                }
            }
            _ => {}
        }
    }
}

/// The thread that detects when a daemon hangs up. A process that only reads would not detect it. But its leases must be
/// known to the next daemon before that daemon lends memory again.
struct Watcher {
    epoll: OwnedFd,
    forks: u64,
    /// The watched sessions. epoll reports each session's socket by its index in this vector.
    links: Mutex<Vec<Weak<Link>>>,
}

/// Shortest and longest pause between two attempts to reach a daemon.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(160));

/// Time without a daemon after which a connection is reported as lost.
const LOST: Duration = Duration::from_secs(1);

static WATCHER: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

impl Watcher {
    /// Watches a session. If this process cannot start a thread, the session continues at its next request.
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
        // The thread lives as long as the process, because a process with one session will probably open another.
        thread::spawn("tensorlend-watch", move || its.run()).ok()?;
        Some(watcher)
    }

    /// Watches this connection for a hang-up. A closed socket is no longer watched.
    fn listen(&self, control: &Control, number: usize) {
        use rustix::event::epoll::{EventData, EventFlags, add};
        let flags = EventFlags::RDHUP | EventFlags::ET;
        control.with_socket(|socket| {
            let _ = add(&self.epoll, socket.as_fd(), EventData::new_u64(number as u64), flags);
        });
    }

    fn run(self: Arc<Self>) {
        // In this thread, because it takes milliseconds.
        barrier::register();
        let mut ready = Vec::with_capacity(16);
        loop {
            ready.clear();
            if rustix::event::epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), None).is_err() {
                continue;
            }
            for number in ready.iter().map(|event| size::index(event.data.u64())) {
                // Continue each session in a thread of its own. A daemon may need all of this process's sessions before it
                // continues one of them.
                let its = self.clone();
                // If this process cannot start a thread, the session continues at its next request.
                let _ = thread::spawn("tensorlend-return", move || its.resume_later(number));
            }
        }
    }

    /// Tries to continue a session whose daemon hung up, until it continues or is over.
    fn resume_later(&self, number: usize) {
        let (mut pause, since, mut is_reported) = (PAUSE.0, Instant::now(), false);
        loop {
            let link = lock(&self.links).get(number).and_then(Weak::upgrade);
            let Some(link) = link.filter(|link| !link.is_forked()) else { return };
            if link.control.resume_if_broken() {
                self.listen(&link.control, number);
                // The observer may use the session, and takes its time.
                if link.control.settle() {
                    report(Connected::Again);
                }
                return;
            }
            // This thread must not keep the session alive.
            drop(link);
            if !is_reported && since.elapsed() > LOST {
                is_reported = true;
                report(Connected::Lost);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
