//! The control socket: one question, one answer.

use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tensorlend_layout::wire::{Reply, Request, decode, encode};
use tensorlend_os::packet;

/// The connection to the daemon. One thread speaks at a time.
pub struct Control {
    socket: Mutex<OwnedFd>,
}

/// An answer whose descriptors are not acknowledged yet. While it lives, nobody else speaks.
pub struct Answer<'c> {
    socket: MutexGuard<'c, OwnedFd>,
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
            let _ = send(&self.socket, &Request::Ack, &[], self.doing);
        }
    }
}

impl Answer<'_> {
    /// Says that the descriptors have arrived and are mapped.
    pub fn acknowledge(mut self) -> Result<()> {
        self.owes = false;
        send(&self.socket, &Request::Ack, &[], self.doing)
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
                Ok(socket) => return Ok(Self { socket: Mutex::new(socket) }),
                Err(Errno::MFILE | Errno::NFILE) => return Err(Error::Descriptors { doing: "connect" }),
                Err(e) => last = e,
            }
        }
        let tried: Vec<_> = sockets.iter().map(|p| p.display().to_string()).collect();
        Err(Error::NoDaemon { tried: tried.join(" and "), cause: last.into() })
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
        let socket = self.socket.lock().map_err(|_: PoisonError<_>| Error::Disconnected { doing, asked: false })?;
        send(&socket, request, descriptors, doing)?;
        tensorlend_layout::crash_point!("request: sent");
        let lost = || Error::Disconnected { doing, asked: true };
        let packet = packet::receive(&*socket, RecvFlags::empty()).map_err(|_| lost())?;
        tensorlend_layout::crash_point!("request: answered");
        if packet.bytes.is_empty() {
            return Err(lost());
        }
        match decode::<Reply>(&packet.bytes) {
            Some(Reply::Refused(refusal)) => {
                let doing = if subject.is_empty() { doing.to_owned() } else { format!("{doing} {subject:?}") };
                Err(Error::Refused { doing, refusal })
            }
            Some(reply) => {
                // Truncated: this process is out of descriptors, and some of those sent are lost. What was lent is lent
                // all the same: whoever asks for the descriptors learns that they are missing, and gives it back.
                let truncated = packet.truncated;
                let owes = truncated || !packet.descriptors.is_empty();
                Ok(Answer { socket, reply, descriptors: packet.descriptors, doing, owes, truncated })
            }
            None => Err(Error::Protocol { doing }),
        }
    }

    /// Asks something that is answered without descriptors.
    pub fn call(&self, request: &Request, doing: &'static str, subject: &str) -> Result<Reply> {
        self.ask(request, &[], doing, subject).map(|answer| answer.reply.clone())
    }
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
