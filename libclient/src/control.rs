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
use tensorlend_layout::wire::{Refusal, Reply, Request, decode, encode};
use tensorlend_os::packet::{self, Packet};

/// The connection to the daemon. One thread speaks at a time.
pub struct Control {
    line: Mutex<Line>,
    /// Where the daemon listens.
    path: PathBuf,
    /// A daemon has answered, and does not know the session.
    dead: AtomicBool,
    /// How the session goes on when the daemon has been replaced: see [`crate::reconnect`].
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
/// How long a daemon that was reached may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

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
        self.owes = false;
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
    pub fn connect(sockets: &[PathBuf]) -> Result<Self> {
        let mut last = Errno::NOENT;
        for path in sockets {
            match open(path) {
                Ok(socket) => {
                    let line = Mutex::new(Line { socket, state: State::Whole });
                    return Ok(Self {
                        line,
                        path: path.clone(),
                        dead: AtomicBool::new(false),
                        mender: OnceLock::new(),
                    });
                }
                Err(Errno::MFILE | Errno::NFILE) => return Err(Error::Descriptors { doing: "connect" }),
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
        // A thread that panicked while it spoke left the socket between question and answer: nothing good follows.
        let mut line = self.line.lock().map_err(|_: PoisonError<_>| Error::Disconnected { doing, asked: false })?;
        loop {
            if !matches!(line.state, State::Whole) {
                line = self.mend(line, doing)?;
            }
            let lost = match line.ask(request, descriptors, doing) {
                Ok(packet) => match decode::<Reply>(&packet.bytes) {
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
                        let owes = truncated || !packet.descriptors.is_empty();
                        return Ok(Answer { line, reply, descriptors: packet.descriptors, doing, owes, truncated });
                    }
                    None => return Err(Error::Protocol { doing }),
                },
                Err(lost) => lost,
            };
            line.state = State::Broken(Instant::now());
            let again = request.is_repeatable() || lost.is_certain();
            if !again || self.mender.get().is_none() {
                return Err(lost);
            }
        }
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
        let mut socket = open(&self.path)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
        let mut gone_on = mender.go_on(&socket);
        if matches!(gone_on, Err(Error::Refused { refusal: Refusal::NotFound(_), .. })) {
            // Nobody has kept anything for this daemon.
            socket = open(&self.path)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
            gone_on = mender.hand_back(&socket).and_then(|()| mender.go_on(&socket));
        }
        match gone_on {
            Ok(()) => {
                set_socket_timeout(&socket, Timeout::Recv, None)?;
                *line = Line { socket, state: State::Whole };
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

    /// Whether a question would be answered now, as far as can be known: for what is not worth waiting for the next daemon. While another
    /// thread asks, the answer is no.
    pub fn is_up(&self) -> bool {
        self.line.try_lock().is_ok_and(|line| matches!(line.state, State::Whole) && !line.is_hung_up())
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
    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>], doing: &'static str) -> Result<Packet> {
        send(&self.socket, request, descriptors, doing)?;
        tensorlend_layout::crash_point!("request: sent");
        let lost = || Error::Disconnected { doing, asked: true };
        let packet = packet::receive(&self.socket, RecvFlags::empty()).map_err(|_| lost())?;
        tensorlend_layout::crash_point!("request: answered");
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

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn send(socket: &OwnedFd, request: &Request, descriptors: &[BorrowedFd<'_>], doing: &'static str) -> Result<()> {
    packet::send(socket.as_fd(), &encode(request), descriptors, SendFlags::empty())
        .map_err(|_| Error::Disconnected { doing, asked: false })
}
