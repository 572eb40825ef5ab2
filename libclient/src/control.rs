//! The control socket: one question, one answer.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{Hello, Refusal, Reply, Request, decode, encode};
use tensorlend_os::packet::{self, Packet};

/// The connection to the daemon. One thread speaks at a time.
pub struct Control {
    line: Mutex<Line>,
    /// Where the daemon listens.
    path: PathBuf,
    /// How long the daemon may say nothing.
    timeout: Duration,
    /// A daemon has answered, and does not know the session.
    dead: AtomicBool,
    /// How the session goes on when the daemon has been replaced: see [`crate::session::reconnect`].
    mender: OnceLock<Box<dyn Mender>>,
}

/// Opens the session anew on a fresh connection.
pub trait Mender: Send + Sync {
    /// Says who we were, on a socket to a daemon that has not heard of us. On success the session goes on there.
    fn go_on(&self, socket: &OwnedFd) -> Result<()>;
    /// Gives a daemon that has lost everything what we were lent; [`Mender::go_on`] follows, on the same socket.
    fn hand_back(&self, socket: &OwnedFd) -> Result<()>;
    /// What is to be done once it goes on, while others may speak.
    fn settle(&self);
}

/// The socket, and whether anybody is at its other end.
pub struct Line {
    socket: OwnedFd,
    state: State,
    /// The last attempt to reach a daemon found no socket: a daemon that ends in good order removes it.
    removed: bool,
    /// A request that was given up before its reply came. The reply comes before any other.
    late: Option<Request>,
    /// The reply to a late request for cells, acknowledged and kept for the next such request: the daemon counts these cells as
    /// ours.
    cells: Option<Packet>,
}

/// A reply as it arrived.
struct Arrived {
    packet: Packet,
    /// The daemon has heard already that its descriptors are here.
    acknowledged: bool,
}

/// How a line is.
enum State {
    Whole,
    /// Nobody answers, since then.
    Broken(Instant),
    /// A daemon has answered, and does not know the session, for this reason.
    Dead(Option<Refusal>),
}

/// How long a question waits for a daemon to be replaced.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts to reach one.
const PAUSE: Duration = Duration::from_millis(20);

/// An answer whose descriptors are not acknowledged yet. While it lives, nobody else speaks.
pub struct Answer<'c> {
    line: MutexGuard<'c, Line>,
    /// What the daemon said; never a refusal.
    pub reply: Reply,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
    doing: &'static str,
    /// Descriptors came, and the daemon waits to hear so before it answers anything else.
    owes: bool,
    /// Some of the descriptors had no room in this process.
    truncated: bool,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        // Whatever went wrong with what came: the conversation goes on.
        if self.owes {
            let _ = send(&self.line.socket, &Request::Ack, &[], self.doing);
        }
    }
}

impl Answer<'_> {
    /// Says that the descriptors have arrived and are mapped.
    pub fn acknowledge(mut self) -> Result<()> {
        // It has heard so already of descriptors that came with a late reply.
        if !std::mem::take(&mut self.owes) {
            return Ok(());
        }
        send(&self.line.socket, &Request::Ack, &[], self.doing)
    }

    /// Takes the next descriptor.
    pub fn descriptor(&mut self) -> Result<OwnedFd> {
        if self.truncated {
            return Err(Error::Descriptors { doing: self.doing });
        }
        if self.descriptors.is_empty() {
            return Err(Error::Protocol { doing: self.doing });
        }
        Ok(self.descriptors.remove(0))
    }

    /// Whether descriptors were sent, and did or did not arrive.
    pub fn has_descriptors(&self) -> bool {
        self.owes
    }

    /// The error for an answer of the wrong kind.
    pub fn unexpected<T>(self) -> Result<T> {
        Err(Error::Protocol { doing: self.doing })
    }
}

/// Where daemons listen, in the order in which they are tried: `TENSORLEND_SOCKET` alone if it is set, else the user's
/// daemon and then the system's.
///
/// ```
/// let sockets = tensorlend::default_sockets();
/// assert!(!sockets.is_empty());
/// ```
pub fn default_sockets() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("TENSORLEND_SOCKET").filter(|p| !p.is_empty()) {
        return vec![path.into()];
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("tensorlend.sock"));
    user.into_iter().chain([PathBuf::from("/run/tensorlend/tensorlend.sock")]).collect()
}

impl Control {
    /// Connects to the first socket on which a daemon listens.
    pub fn connect(sockets: &[PathBuf], timeout: Duration) -> Result<Self> {
        let mut last = Errno::NOENT;
        for path in sockets {
            match open(path, timeout) {
                Ok(socket) => {
                    let line = Mutex::new(Line::new(socket));
                    return Ok(Self {
                        line,
                        path: path.clone(),
                        timeout,
                        dead: AtomicBool::new(false),
                        mender: OnceLock::new(),
                    });
                }
                Err(Errno::MFILE | Errno::NFILE) => return Err(Error::Descriptors { doing: "connect" }),
                // So many wait for it already that it takes no more.
                Err(Errno::AGAIN) => {
                    return Err(Error::NotAnswering { doing: "connect", pid: None, waited: timeout, asked: false });
                }
                Err(e) => last = e,
            }
        }
        let tried: Vec<_> = sockets.iter().map(|p| p.display().to_string()).collect();
        Err(Error::NoDaemon { tried: tried.join(" and "), cause: last.into() })
    }

    /// The session is there: from now on it goes on by itself when the daemon is replaced.
    pub fn set_mender(&self, mender: Box<dyn Mender>) {
        let _ = self.mender.set(mender);
    }

    /// Whether the session is over: a daemon was reached that knows nothing of it.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Calls `use_it` with the socket, to be told when the daemon hangs up.
    pub fn with_socket<R>(&self, use_it: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(line.socket.as_fd())
    }

    /// Asks, and waits for the answer. Refusals become errors; `subject` says whom it was about.
    pub fn ask(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        doing: &'static str,
        subject: &str,
    ) -> Result<Answer<'_>> {
        let began = Instant::now();
        // A thread that panicked while it spoke left the socket between question and answer: nothing good follows.
        let mut line = self.line.lock().map_err(|_: PoisonError<_>| Error::Disconnected { doing, asked: false })?;
        loop {
            if !matches!(line.state, State::Whole) {
                line = self.mend(line, doing)?;
            }
            let lost = match self.exchange(&mut line, request, descriptors, doing, began) {
                Ok(Arrived { packet, acknowledged }) => match decode::<Reply>(&packet.bytes) {
                    // Not answered, and not to be answered any more.
                    Some(Reply::Refused(Refusal::Stopping)) => Error::Disconnected { doing, asked: true },
                    Some(Reply::Refused(refusal)) => {
                        let doing = if subject.is_empty() { doing.to_owned() } else { format!("{doing} {subject:?}") };
                        return Err(Error::Refused { doing, refusal });
                    }
                    Some(reply) => {
                        // Truncated: this process is out of descriptors, and some of those sent are lost. What was lent
                        // is lent all the same: whoever asks for the descriptors learns that they are missing, and
                        // gives it back.
                        let truncated = packet.truncated;
                        let owes = !acknowledged && (truncated || !packet.descriptors.is_empty());
                        return Ok(Answer { line, reply, descriptors: packet.descriptors, doing, owes, truncated });
                    }
                    None => return Err(Error::Protocol { doing }),
                },
                // It may come yet: the session goes on.
                Err(late @ Error::NotAnswering { .. }) => return Err(late),
                Err(lost) => lost,
            };
            line.state = State::Broken(Instant::now());
            let again = request.is_repeatable() || lost.is_certain();
            if !again || self.mender.get().is_none() {
                return Err(lost);
            }
        }
    }

    /// Sends a request and waits for its reply, after the reply to one that was given up before. `began`: when the caller
    /// began to wait for the line.
    fn exchange(
        &self,
        line: &mut Line,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        doing: &'static str,
        began: Instant,
    ) -> Result<Arrived> {
        if let Some(packet) = self.take_late(line, request, doing, began)? {
            return Ok(Arrived { packet, acknowledged: false });
        }
        if matches!(request, Request::GrowCells)
            && let Some(packet) = line.cells.take()
        {
            return Ok(Arrived { packet, acknowledged: true });
        }
        send(&line.socket, request, descriptors, doing)?;
        tensorlend_layout::crash_point!("request: sent");
        if !self.replies(&line.socket) {
            line.late = Some(request.clone());
            return Err(self.not_answering(line, doing, true));
        }
        let packet = line.receive(doing)?;
        tensorlend_layout::crash_point!("request: answered");
        Ok(Arrived { packet, acknowledged: false })
    }

    /// Takes the reply to a request that was given up, if there is one. `Some`: it is as good a reply to this request.
    fn take_late(
        &self,
        line: &mut Line,
        request: &Request,
        doing: &'static str,
        began: Instant,
    ) -> Result<Option<Packet>> {
        while line.late.is_some() {
            // Threads that waited for the line behind the one that gave up do so at about the same time as it did.
            let left = self.timeout.saturating_sub(began.elapsed());
            if !is_readable(&[&line.socket], left) {
                return Err(self.not_answering(line, doing, false));
            }
            let packet = line.receive(doing).map_err(Error::certain)?;
            let late = line.late.take();
            if late.as_ref() == Some(request) && matches!(request, Request::Segment { .. } | Request::GrowCells) {
                return Ok(Some(packet));
            }
            if packet.truncated || !packet.descriptors.is_empty() {
                send(&line.socket, &Request::Ack, &[], doing)?;
            }
            match (late, decode::<Reply>(&packet.bytes)) {
                // Nobody here knows of what was lent: back with it.
                (Some(Request::Segment { .. }), Some(Reply::Segment { base, .. })) => {
                    let back = Request::ReturnSegment { base };
                    send(&line.socket, &back, &[], doing)?;
                    line.late = Some(back);
                }
                (Some(Request::GrowCells), Some(Reply::Cells { .. })) => line.cells = Some(packet),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Waits for a reply. False: in the time that there is, the daemon has neither replied nor answered a stranger. One that
    /// lives may be busy with this request for longer: it reads a file, or waits for another client.
    fn replies(&self, socket: &OwnedFd) -> bool {
        let half = self.timeout / 2;
        loop {
            if is_readable(&[socket], half) {
                return true;
            }
            let asked = Instant::now();
            let Some(stranger) = self.knock(half) else {
                return is_readable(&[socket], half.saturating_sub(asked.elapsed()));
            };
            if !is_readable(&[socket, &stranger], half.saturating_sub(asked.elapsed())) {
                return false;
            }
        }
    }

    /// Says something on a connection of its own to which a daemon that lives replies at once: it refuses it.
    fn knock(&self, timeout: Duration) -> Option<OwnedFd> {
        let socket = open(&self.path, timeout.max(Duration::from_millis(1))).ok()?;
        let nobody = Hello { protocol_min: 0, protocol_max: 0, ..Hello::new(None, "") };
        send(&socket, &Request::Hello(nobody), &[], "connect").ok()?;
        Some(socket)
    }

    fn not_answering(&self, line: &Line, doing: &'static str, asked: bool) -> Error {
        let credentials = nix::sys::socket::getsockopt(&line.socket, nix::sys::socket::sockopt::PeerCredentials);
        // 0: it is in a pid namespace that is not seen from here. 1: a service manager listened first.
        let pid = credentials.ok().and_then(|peer| u32::try_from(peer.pid()).ok()).filter(|pid| *pid > 1);
        Error::NotAnswering { doing, pid, waited: self.timeout, asked }
    }

    /// Goes on with the session at the daemon's successor. The line is anybody's while nobody answers.
    fn mend<'c>(&'c self, mut line: MutexGuard<'c, Line>, doing: &'static str) -> Result<MutexGuard<'c, Line>> {
        loop {
            let since = match &line.state {
                State::Whole => return Ok(line),
                State::Dead(Some(refusal)) => {
                    return Err(Error::Refused { doing: doing.to_owned(), refusal: refusal.clone() });
                }
                State::Dead(None) => return Err(Error::Disconnected { doing, asked: false }),
                State::Broken(since) => *since,
            };
            let reached = self.try_to_mend(&mut line);
            if matches!(line.state, State::Broken(_)) && (since.elapsed() > PATIENCE || reached == Err(Errno::NOENT)) {
                return Err(Error::Disconnected { doing, asked: false });
            }
            if matches!(line.state, State::Broken(_)) {
                drop(line);
                std::thread::sleep(PAUSE);
                line = self.line.lock().map_err(|_: PoisonError<_>| Error::Disconnected { doing, asked: false })?;
            }
        }
    }

    /// One attempt. The error says that there is nobody.
    fn try_to_mend(&self, line: &mut Line) -> rustix::io::Result<()> {
        let Some(mender) = self.mender.get() else {
            line.state = State::Dead(None);
            return Ok(());
        };
        let opened = open(&self.path, self.timeout);
        line.removed = opened.as_ref().err() == Some(&Errno::NOENT);
        let mut socket = opened?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout))?;
        let mut gone_on = mender.go_on(&socket);
        if matches!(gone_on, Err(Error::Refused { refusal: Refusal::NotFound(_), .. })) {
            // Nobody has kept anything for this daemon.
            socket = open(&self.path, self.timeout)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout))?;
            gone_on = mender.hand_back(&socket).and_then(|()| mender.go_on(&socket));
        }
        match gone_on {
            Ok(()) => {
                set_socket_timeout(&socket, Timeout::Recv, None)?;
                *line = Line::new(socket);
            }
            // It is going, too, or was not ready.
            Err(Error::Disconnected { .. } | Error::Refused { refusal: Refusal::Stopping, .. }) => {}
            Err(Error::Refused { refusal: refusal @ (Refusal::Layout { .. } | Refusal::Protocol { .. }), .. }) => {
                line.state = State::Dead(Some(refusal));
            }
            Err(_) => line.state = State::Dead(None),
        }
        if matches!(line.state, State::Dead(_)) {
            // Release: who sees it sees that nothing of ours counts any more.
            self.dead.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// To be called once the session goes on.
    pub fn settle(&self) {
        let whole = self.line.lock().is_ok_and(|line| matches!(line.state, State::Whole));
        if let Some(mender) = self.mender.get().filter(|_| whole) {
            mender.settle();
        }
    }

    /// The daemon may have hung up: sees to it that the session goes on, without being asked anything. True: it does, or
    /// never will.
    pub fn look_after(&self) -> bool {
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            // Somebody is speaking, and finds out.
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => return true,
        };
        if matches!(line.state, State::Whole) && line.is_hung_up() {
            line.state = State::Broken(Instant::now());
        }
        if matches!(line.state, State::Broken(_)) {
            let _ = self.try_to_mend(&mut line);
        }
        !matches!(line.state, State::Broken(_))
    }

    /// An error once the daemon has ended and none has taken its place: within the time that a question waits for one, or at once
    /// if the daemon has removed its socket. For waits that ask the daemon nothing. `doing` is what is waited for.
    pub fn check_daemon(&self, doing: &'static str) -> Result<()> {
        // Another thread speaks, and finds out.
        let Ok(line) = self.line.try_lock() else { return Ok(()) };
        match &line.state {
            State::Whole => Ok(()),
            State::Broken(since) if !line.removed && since.elapsed() <= PATIENCE => Ok(()),
            State::Dead(Some(refusal)) => Err(Error::Refused { doing: doing.to_owned(), refusal: refusal.clone() }),
            State::Dead(None) => Err(Error::SessionEnded),
            State::Broken(_) => Err(Error::Disconnected { doing, asked: false }),
        }
    }

    /// Whether a question would be answered now, as far as can be known: for what is not worth waiting for the next daemon. While another
    /// thread asks, the answer is no.
    pub fn is_up(&self) -> bool {
        self.line
            .try_lock()
            .is_ok_and(|line| matches!(line.state, State::Whole) && line.late.is_none() && !line.is_hung_up())
    }

    /// As [`Control::is_up`], after other threads have had their answers.
    pub fn reaches(&self) -> bool {
        self.line.lock().is_ok_and(|line| matches!(line.state, State::Whole) && !line.is_hung_up())
    }

    /// Asks something that is answered without descriptors.
    pub fn call(&self, request: &Request, doing: &'static str, subject: &str) -> Result<Reply> {
        self.ask(request, &[], doing, subject).map(|answer| answer.reply.clone())
    }
}

impl Line {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, state: State::Whole, removed: false, late: None, cells: None }
    }

    /// The packet that has arrived.
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

/// One question on a socket that is nobody else's, and its answer.
pub fn ask_on(
    socket: &OwnedFd,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
    doing: &'static str,
) -> Result<(Reply, Vec<OwnedFd>)> {
    send(socket, request, descriptors, doing)?;
    let lost = || Error::Disconnected { doing, asked: true };
    let packet = packet::receive(socket, RecvFlags::empty()).map_err(|_| lost())?;
    if packet.bytes.is_empty() {
        return Err(lost());
    }
    match decode::<Reply>(&packet.bytes) {
        Some(Reply::Refused(refusal)) => Err(Error::Refused { doing: doing.to_owned(), refusal }),
        Some(reply) if !packet.truncated => Ok((reply, packet.descriptors)),
        // As little as if nobody had answered: there may be room the next time.
        Some(_) => Err(lost()),
        None => Err(Error::Protocol { doing }),
    }
}

/// Says on such a socket that the descriptors have arrived.
pub fn acknowledge_on(socket: &OwnedFd, doing: &'static str) -> Result<()> {
    send(socket, &Request::Ack, &[], doing)
}

/// Connects. `AGAIN`: so many others wait for the daemon that it took no more for this time.
fn open(path: &Path, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Waits until there is something to receive on one of the sockets, or its other end is closed. False: there is not.
fn is_readable(sockets: &[&OwnedFd], timeout: Duration) -> bool {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut polled: Vec<_> = sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut polled, Some(&left)) {
            Err(Errno::INTR) => {}
            // An error of the socket is found by who receives from it.
            found => return found != Ok(0),
        }
    }
}

fn send(socket: &OwnedFd, request: &Request, descriptors: &[BorrowedFd<'_>], doing: &'static str) -> Result<()> {
    packet::send(socket.as_fd(), &encode(request), descriptors, SendFlags::empty())
        .map_err(|_| Error::Disconnected { doing, asked: false })
}
