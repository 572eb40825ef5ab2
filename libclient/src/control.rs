//! The control socket: one request, one reply.

mod claims;
mod hello;
mod late;
mod socket;
mod sockets;
mod start;
mod unanswered;
mod waiting;

use crate::error::{Error, Result};
use claims::Claims;
use hello::common_layout;
use late::Late;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
pub use socket::{acknowledge_on, ask_on};
use socket::{is_readable, open, open_own, send};
pub use sockets::{Sockets, default_sockets};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{
    Hello, PROTOCOL_OLDEST, PROTOCOL_VERSION, QueueRequest, Refusal, Reply, Request, decode, encode,
};
use tensorlend_os::packet::{self, Packet};
use unanswered::Unanswered;
pub use waiting::Waited;

/// The connection to the daemon. One thread uses it at a time.
pub struct Control {
    connection: Mutex<Connection>,
    /// Notified when the connection's waiting request has its reply.
    replied: Condvar,
    path: PathBuf,
    timeout: Duration,
    /// Whether this client starts the next daemon if its daemon was killed.
    starts: bool,
    /// True if a daemon that does not know the session has responded.
    dead: AtomicBool,
    /// The refusal of a daemon of another version. Such a daemon has ended the session.
    refusal: OnceLock<Refusal>,
    /// The version of the protocol that this client and its daemon have agreed on.
    protocol: AtomicU16,
    /// Requests of [`Control::deliver`] that have no response from any daemon.
    unanswered: Unanswered,
    /// The session's claims on items of queues. A thread that holds the connection may lock them.
    claims: Claims,
    /// The resources that late responses set free.
    late: Late,
    /// Reopens the session when the daemon has been replaced: see [`crate::session::reconnect`].
    resume: OnceLock<Box<dyn Resume>>,
}

/// Reopens the session on a new connection.
pub trait Resume: Send + Sync {
    /// Identifies this client to a new daemon on a socket, and offers a layout. On success the session continues there.
    fn resume(&self, socket: &OwnedFd, layout: Layout) -> Result<()>;
    /// Does the remaining work of a reconnection, after the session continues. Other threads may use the connection
    /// in the meantime.
    fn settle(&self);
    /// Gives up a stream or device memory that a late response lends. The caller has the connection, so this function
    /// sends no request.
    fn give_up(&self, lent: &Reply, descriptors: &[OwnedFd]);
}

/// The socket, and its state.
pub struct Connection {
    socket: Arc<OwnedFd>,
    state: State,
    /// A request about a queue whose reply the daemon sends later, to the thread that waits for it.
    waiting: Option<waiting::Waiting>,
    /// Whether the last attempt to reach a daemon found no socket file: a daemon that stops in order removes the file.
    removed: bool,
    /// Whether this client has tried to start the next daemon.
    started: bool,
    /// A request for whose reply no thread waits. Its reply arrives before any other reply.
    late: Option<Request>,
    /// Whether [`Control::tell`] has sent that request, and no thread has waited for the reply until its timeout.
    is_told: bool,
    /// Requests that undo the effect of a late response. The client sends them before any other request.
    undo: VecDeque<Request>,
    /// Segments whose return the daemon refused in a late response, by their first slots.
    unreturned: Vec<SlotNo>,
    /// The reply to a request for cells that arrived late, or whose cells could not be mapped. It is acknowledged and stored
    /// for the next such request, because the daemon counts these cells as this client's.
    cells: Option<Packet>,
}

/// A received reply.
struct Arrived {
    packet: Packet,
    /// True if the client has already acknowledged the descriptors.
    acknowledged: bool,
}

enum State {
    Whole,
    /// No daemon has responded since this time.
    Broken(Instant),
    /// A daemon that does not know the session has responded.
    Dead,
}

/// The time that a caller allows the daemon to reply.
#[derive(Clone, Copy)]
struct Budget {
    /// The time at which the caller began to wait for the connection.
    began: Instant,
    timeout: Duration,
}

impl Budget {
    fn left(self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }
}

/// The minimum time that a caller with a deadline gives the daemon.
const SHORTEST: Duration = Duration::from_secs(5);
/// Maximum time for which a request waits for a new daemon, if the request timeout is not shorter.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// A reply whose descriptors are not acknowledged yet. While it exists, no other thread can send a request.
pub struct Answer<'c> {
    connection: MutexGuard<'c, Connection>,
    /// The daemon's reply, which is never a refusal.
    pub reply: Reply,
    pub descriptors: Vec<OwnedFd>,
    doing: &'static str,
    /// True if the daemon waits for the acknowledgement of the descriptors. Until then it sends no other reply.
    owes: bool,
    /// True if some descriptors were lost, because this process has too many open files.
    lost_descriptors: bool,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // Acknowledge even after an error, so that the connection stays usable.
        if self.owes {
            let _ = send(&self.connection.socket, &Request::Ack, self.doing);
        }
    }
}

impl Answer<'_> {
    /// Acknowledges that the descriptors have arrived and their memory is mapped. A daemon that has ended needs no
    /// acknowledgement: the client reports to the next daemon what it has.
    pub fn acknowledge(mut self) -> Result<()> {
        // The client has already acknowledged the descriptors of a late reply.
        if !std::mem::take(&mut self.owes) {
            return Ok(());
        }
        match send(&self.connection.socket, &Request::Ack, self.doing) {
            Err(Error::Disconnected { .. }) => Ok(()),
            sent => sent,
        }
    }

    /// Takes the next descriptor.
    pub fn descriptor(&mut self) -> Result<OwnedFd> {
        if self.lost_descriptors {
            return Err(Error::Descriptors { doing: self.doing });
        }
        if self.descriptors.is_empty() {
            return Err(Error::Protocol { doing: self.doing });
        }
        Ok(self.descriptors.remove(0))
    }

    /// Acknowledges the cells of this reply, and leaves them to the next request for cells.
    pub fn keep_cells(mut self, cells: OwnedFd) {
        let bytes = encode(&self.reply);
        self.connection.cells =
            Some(Packet { bytes, descriptors: vec![cells], truncated: false, lost_descriptors: false });
    }

    /// Returns whether the daemon sent descriptors. They may not have arrived.
    pub fn has_descriptors(&self) -> bool {
        self.owes
    }

    /// Returns the error for a reply of the wrong kind.
    pub fn unexpected<T>(self) -> Result<T> {
        Err(Error::Protocol { doing: self.doing })
    }
}

impl Control {
    /// Connects to the first socket on which a daemon listens, or starts a daemon.
    pub fn connect(sockets: &Sockets, timeout: Duration) -> Result<Self> {
        let mut cause = std::io::Error::from(Errno::NOENT);
        let own = sockets.own.as_ref();
        let mut start = own.filter(|_| sockets.starts.is_ok());
        for path in &sockets.paths {
            let is_own = own == Some(path);
            match if is_own { open_own(path, timeout) } else { open(path, timeout) } {
                Ok(socket) => return Ok(Self::new(socket, path, timeout, is_own && sockets.starts.is_ok())),
                Err(Errno::MFILE | Errno::NFILE) => return Err(Error::Descriptors { doing: "connect" }),
                // The socket's backlog is full: too many clients are waiting for the daemon.
                Err(Errno::AGAIN) => {
                    return Err(Error::NotAnswering { doing: "connect", pid: None, waited: timeout, asked: false });
                }
                Err(error) => {
                    // The file of a system's daemon that does not run: this daemon would not have the system's names.
                    let ends = error == Errno::NOENT || (error == Errno::CONNREFUSED && is_own);
                    start = start.filter(|_| ends);
                    cause = error.into();
                }
            }
        }
        if let Some(path) = start {
            match start::connect(path, timeout) {
                Ok(socket) => return Ok(Self::new(socket, path, timeout, true)),
                Err(why) => cause = std::io::Error::other(why),
            }
        } else if let Err(why) = sockets.starts {
            cause = std::io::Error::new(cause.kind(), format!("{cause}; none was started: {why}"));
        }
        let missing = sockets.missing.iter().map(ToString::to_string);
        let tried: Vec<_> = missing.chain(sockets.paths.iter().map(|path| path.display().to_string())).collect();
        Err(Error::NoDaemon { tried: tried.join(" and "), cause })
    }

    fn new(socket: OwnedFd, path: &Path, timeout: Duration, starts: bool) -> Self {
        Self {
            connection: Mutex::new(Connection::new(socket)),
            replied: Condvar::new(),
            path: path.to_owned(),
            timeout,
            starts,
            dead: AtomicBool::new(false),
            refusal: OnceLock::new(),
            protocol: AtomicU16::new(PROTOCOL_OLDEST),
            unanswered: Unanswered::default(),
            claims: Claims::default(),
            late: Late::default(),
            resume: OnceLock::new(),
        }
    }

    /// Records that the session is open. From now on, it reopens automatically when the daemon is replaced.
    pub fn set_resume(&self, resume: Box<dyn Resume>) {
        let _ = self.resume.set(resume);
    }

    /// Returns whether the session is over, because a daemon that does not know the session has responded.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Records the version of the protocol that this client and its daemon have agreed on.
    pub fn set_protocol(&self, protocol: u16) {
        self.protocol.store(protocol, Ordering::Relaxed);
    }

    /// Returns an error if the daemon does not know a request of this version of the protocol.
    pub fn needs_protocol(&self, protocol: u16, doing: &str, subject: &str) -> Result<()> {
        let daemon = self.protocol.load(Ordering::Relaxed);
        if daemon >= protocol {
            return Ok(());
        }
        let refusal = Refusal::Protocol { daemon, client_min: protocol, client_max: PROTOCOL_VERSION };
        Err(Error::Refused { doing: format!("{doing} {subject:?}"), refusal })
    }

    /// Returns the session's claims on items of queues.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the resources that late responses have set free.
    pub fn late(&self) -> &Late {
        &self.late
    }

    /// Calls `use_it` with the socket, to watch for the daemon's hang-up.
    pub fn with_socket<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(connection.socket.as_fd())
    }

    /// Shuts the connection down, including the copies of the socket in other processes.
    pub fn hang_up(&self) {
        // Ignore an error: the daemon may have hung up.
        let _ = self.with_socket(|socket| rustix::net::shutdown(socket, rustix::net::Shutdown::Both));
    }

    /// Sends a request and waits for the reply. Refusals become errors. `subject` is the name concerned.
    pub fn ask(&self, request: &Request, doing: &'static str, subject: &str) -> Result<Answer<'_>> {
        self.ask_within(self.timeout, request, doing, subject)
    }

    fn ask_within(
        &self,
        timeout: Duration,
        request: &Request,
        doing: &'static str,
        subject: &str,
    ) -> Result<Answer<'_>> {
        let budget = Budget { began: Instant::now(), timeout };
        let mut connection = self.locked(doing)?;
        // A former daemon may have carried out an earlier attempt.
        let mut may_be_done = false;
        loop {
            connection = self.ready(connection, doing, budget).map_err(|e| e.after(may_be_done))?;
            let lost = match self.exchange(&mut connection, request, doing, budget) {
                Ok(Arrived { packet, acknowledged }) => match decode::<Reply>(&packet.bytes) {
                    // The daemon is stopping and will not carry out this request.
                    Some(Reply::Refused(Refusal::Stopping)) => Error::Disconnected { doing, asked: false },
                    Some(Reply::Refused(refusal)) => {
                        let doing = if subject.is_empty() { doing.to_owned() } else { format!("{doing} {subject:?}") };
                        return Err(Error::Refused { doing, refusal });
                    }
                    Some(reply) => {
                        self.claims.record(&reply);
                        // The daemon has lent the memory of lost descriptors nevertheless. The caller finds that they are
                        // missing, and returns the memory.
                        let lost_descriptors = packet.lost_descriptors;
                        let owes = !acknowledged && (lost_descriptors || !packet.descriptors.is_empty());
                        return Ok(Answer {
                            connection,
                            reply,
                            descriptors: packet.descriptors,
                            doing,
                            owes,
                            lost_descriptors,
                        });
                    }
                    None => return Err(Error::Protocol { doing }),
                },
                // The reply may still arrive, so the session continues.
                Err(late @ Error::NotAnswering { .. }) => return Err(late.after(may_be_done)),
                Err(lost) => lost.after(may_be_done),
            };
            connection.state = State::Broken(Instant::now());
            let again = request.is_repeatable() || lost.is_certain();
            if !again || self.resume.get().is_none() {
                return Err(lost);
            }
            may_be_done = !lost.is_certain() && !unanswered::is_delivered(request);
        }
    }

    /// Sends a request and waits for its reply. First receives the reply to a request that was abandoned.
    fn exchange(
        &self,
        connection: &mut Connection,
        request: &Request,
        doing: &'static str,
        budget: Budget,
    ) -> Result<Arrived> {
        if let Some(packet) = self.take_late(connection, request, doing, budget)? {
            return Ok(Arrived { packet, acknowledged: false });
        }
        self.repeat_unanswered(connection, doing, budget)?;
        if matches!(request, Request::GrowCells)
            && let Some(packet) = connection.cells.take()
        {
            return Ok(Arrived { packet, acknowledged: true });
        }
        send(&connection.socket, request, doing)?;
        tensorlend_layout::crash_point!("request: sent");
        if matches!(request, Request::Queue(QueueRequest::Done(_))) {
            tensorlend_layout::crash_point!("queue: confirmation sent");
        }
        if !self.replies(&connection.socket, budget.timeout / 2) {
            self.abandon(connection, request);
            return Err(not_answering(connection, doing, budget.timeout, true));
        }
        let packet = connection.receive(doing)?;
        tensorlend_layout::crash_point!("request: answered");
        Ok(Arrived { packet, acknowledged: false })
    }

    /// Waits for a reply. Returns false if, in twice the time `half`, the daemon has neither replied nor responded on a
    /// second connection. A live daemon may need longer for this request, because it reads a file or waits for another
    /// client.
    fn replies(&self, socket: &OwnedFd, half: Duration) -> bool {
        loop {
            if is_readable(&[socket], half) {
                return true;
            }
            let asked = Instant::now();
            let Some(stranger) = self.connect_again(half) else {
                return is_readable(&[socket], half.saturating_sub(asked.elapsed()));
            };
            if !is_readable(&[socket, &stranger], half.saturating_sub(asked.elapsed())) {
                return false;
            }
        }
    }

    /// Connects a second time with a request that a live daemon refuses at once.
    fn connect_again(&self, timeout: Duration) -> Option<OwnedFd> {
        let socket = open(&self.path, timeout.max(Duration::from_millis(1))).ok()?;
        let nobody = Hello { protocol_min: 0, protocol_max: 0, ..Hello::new(None, "") };
        send(&socket, &Request::Hello(nobody), "connect").ok()?;
        Some(socket)
    }

    /// Reopens the session at the new daemon. Between attempts, other threads may lock the connection.
    fn resume<'c>(
        &'c self,
        mut connection: MutexGuard<'c, Connection>,
        doing: &'static str,
    ) -> Result<MutexGuard<'c, Connection>> {
        loop {
            let since = match &connection.state {
                State::Whole => return Ok(connection),
                State::Dead => return Err(self.ended(doing, Error::Disconnected { doing, asked: false })),
                State::Broken(since) => *since,
            };
            let reached = self.try_to_resume(&mut connection);
            if matches!(connection.state, State::Broken(_))
                && (since.elapsed() > self.replacement_timeout() || reached == Err(Errno::NOENT))
            {
                return Err(Error::Disconnected { doing, asked: false });
            }
            if matches!(connection.state, State::Broken(_)) {
                drop(connection);
                std::thread::sleep(PAUSE);
                connection = self.locked(doing)?;
            }
        }
    }

    fn replacement_timeout(&self) -> Duration {
        self.timeout.min(REPLACEMENT_TIMEOUT)
    }

    /// Makes one attempt to reopen the session. An error means that no daemon responded.
    fn try_to_resume(&self, connection: &mut Connection) -> rustix::io::Result<()> {
        let Some(resume) = self.resume.get() else {
            connection.state = State::Dead;
            return Ok(());
        };
        let mut opened = open(&self.path, self.timeout);
        // A killed daemon leaves its file. One attempt for each daemon: the start may fail for a lasting reason.
        if self.starts
            && opened.as_ref().err() == Some(&Errno::CONNREFUSED)
            && !std::mem::replace(&mut connection.started, true)
        {
            opened = start::connect(&self.path, self.timeout).map_err(|_| Errno::CONNREFUSED);
        }
        connection.removed = opened.as_ref().err() == Some(&Errno::NOENT);
        let mut socket = opened?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout))?;
        let mut layout = Layout::CURRENT;
        let mut resumed = resume.resume(&socket, layout);
        if let Some(older) = resumed.as_ref().err().and_then(common_layout) {
            layout = older;
            socket = self.open_again()?;
            resumed = resume.resume(&socket, layout);
        }
        match resumed {
            Ok(()) => {
                set_socket_timeout(&socket, Timeout::Recv, None)?;
                self.not_carried_out(connection.late.take());
                *connection = Connection::new(socket);
            }
            // The daemon that responded is also stopping, or was not ready.
            Err(Error::Disconnected { .. } | Error::Refused { refusal: Refusal::Stopping, .. }) => {}
            // This process may have memory the next time.
            Err(Error::System { cause, .. }) if cause.kind() == std::io::ErrorKind::OutOfMemory => {}
            Err(error) => {
                if let Some(refusal) = self.other_version(error) {
                    let _ = self.refusal.set(refusal);
                }
                connection.state = State::Dead;
                // Release: a thread that sees the flag also sees that this session has ended.
                self.dead.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Does the remaining work of a reconnection. Returns false if the session does not continue.
    pub fn settle(&self) -> bool {
        let whole = self.connection.lock().is_ok_and(|connection| matches!(connection.state, State::Whole));
        if let Some(resume) = self.resume.get().filter(|_| whole) {
            resume.settle();
            self.settle_unanswered();
        }
        whole
    }

    /// Checks whether the daemon has hung up, and reopens the session without a request. Returns false if the caller
    /// must try again: the session is not reopened yet, or another thread uses the connection.
    pub fn resume_if_broken(&self) -> bool {
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            // Another thread is using the connection and will detect the hang-up.
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => return true,
        };
        if connection.waiting.is_some() {
            // The waiting thread will notice a hang-up, and continues the session.
            return !connection.is_hung_up();
        }
        if matches!(connection.state, State::Whole) && connection.is_hung_up() {
            connection.state = State::Broken(Instant::now());
        }
        if matches!(connection.state, State::Broken(_)) {
            let _ = self.try_to_resume(&mut connection);
        }
        !matches!(connection.state, State::Broken(_))
    }

    /// Returns an error if the daemon has ended and no other daemon has replaced it. The error comes after the time
    /// that a request waits for a new daemon, or at once if the daemon has removed its socket. Waits that send no
    /// request to the daemon call this function. `doing` describes the wait.
    pub fn check_daemon(&self, doing: &'static str) -> Result<()> {
        // Another thread is using the connection and will detect the end of the daemon.
        let Ok(connection) = self.connection.try_lock() else { return Ok(()) };
        match &connection.state {
            State::Whole => Ok(()),
            State::Broken(since) if !connection.removed && since.elapsed() <= self.replacement_timeout() => Ok(()),
            State::Dead => Err(self.ended(doing, Error::SessionEnded)),
            State::Broken(_) => Err(Error::Disconnected { doing, asked: false }),
        }
    }

    /// Returns whether the daemon would probably respond now. Returns false while another thread uses the connection. A
    /// caller that must not wait for the next daemon calls this function before its request.
    pub fn is_up(&self) -> bool {
        self.connection.try_lock().is_ok_and(|connection| {
            let responds = connection.late.is_none() || connection.is_told;
            matches!(connection.state, State::Whole) && responds && !connection.is_hung_up()
        })
    }

    /// Does the check of [`Control::is_up`], but first waits until other threads have received their replies.
    pub fn reaches(&self) -> bool {
        self.connection
            .lock()
            .is_ok_and(|connection| matches!(connection.state, State::Whole) && !connection.is_hung_up())
    }

    /// Sends a request whose reply has no descriptors.
    pub fn call(&self, request: &Request, doing: &'static str, subject: &str) -> Result<Reply> {
        self.ask(request, doing, subject).map(|answer| answer.reply.clone())
    }

    /// Sends a request like [`Control::call`], for a caller with `left` until its own deadline. The daemon gets at
    /// least [`SHORTEST`], so that a slow daemon can still respond.
    pub fn call_within(&self, left: Option<Duration>, request: &Request, doing: &'static str) -> Result<Reply> {
        let timeout = left.map_or(self.timeout, |left| left.max(SHORTEST).min(self.timeout));
        self.ask_within(timeout, request, doing, "").map(|answer| answer.reply.clone())
    }
}

fn not_answering(connection: &Connection, doing: &'static str, waited: Duration, asked: bool) -> Error {
    let credentials = nix::sys::socket::getsockopt(&connection.socket, nix::sys::socket::sockopt::PeerCredentials);
    // 0: the daemon is in a pid namespace that this process does not see. 1: a service manager created the socket.
    let pid = credentials.ok().and_then(|peer| u32::try_from(peer.pid()).ok()).filter(|pid| *pid > 1);
    Error::NotAnswering { doing, pid, waited, asked }
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(socket);
        Self {
            socket,
            state: State::Whole,
            waiting: None,
            removed: false,
            started: false,
            late: None,
            is_told: false,
            undo: VecDeque::new(),
            unreturned: Vec::new(),
            cells: None,
        }
    }

    fn receive(&self, doing: &'static str) -> Result<Packet> {
        let lost = || Error::Disconnected { doing, asked: true };
        let packet = packet::receive(&self.socket, RecvFlags::empty()).map_err(|_| lost())?;
        if packet.bytes.is_empty() { Err(lost()) } else { Ok(packet) }
    }

    fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok()
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }
}
