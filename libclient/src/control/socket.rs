//! Packets on the control socket.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{Reply, Request, decode, encode};
use tensorlend_os::packet;

/// Sends a request on a socket that no other thread uses, and receives its reply.
pub fn ask_on(socket: &OwnedFd, request: &Request, doing: &'static str) -> Result<(Reply, Vec<OwnedFd>)> {
    send(socket, request, doing)?;
    let lost = || Error::Disconnected { doing, asked: true };
    let packet = packet::receive(socket, RecvFlags::empty()).map_err(|_| lost())?;
    if packet.bytes.is_empty() {
        return Err(lost());
    }
    match decode::<Reply>(&packet.bytes) {
        Some(Reply::Refused(refusal)) => Err(Error::Refused { doing: doing.to_owned(), refusal }),
        Some(reply) if !packet.lost_descriptors => Ok((reply, packet.descriptors)),
        // Treated as if no daemon had answered: the process may have free descriptors the next time.
        Some(_) => Err(lost()),
        None => Err(Error::Protocol { doing }),
    }
}

/// Acknowledges received descriptors, on a socket that no other thread uses.
pub fn acknowledge_on(socket: &OwnedFd, doing: &'static str) -> Result<()> {
    send(socket, &Request::Ack, doing)
}

/// Connects. `AGAIN`: the socket's backlog stayed full for the whole timeout.
pub fn open(path: &Path, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to a daemon of this user. `PERM`: the process that listens is another user's.
pub fn open_own(path: &Path, timeout: Duration) -> rustix::io::Result<OwnedFd> {
    let socket = open(path, timeout)?;
    let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
    let is_own = peer.is_ok_and(|peer| [0, rustix::process::geteuid().as_raw()].contains(&peer.uid()));
    if is_own { Ok(socket) } else { Err(Errno::PERM) }
}

/// Waits until one of the sockets is readable or closed at its other end. Returns false if the timeout passed.
pub fn is_readable(sockets: &[&OwnedFd], timeout: Duration) -> bool {
    let start = Instant::now();
    loop {
        let mut polled: Vec<_> = sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
        // A time that is too long for the clock has no end.
        let left = Timespec::try_from(timeout.saturating_sub(start.elapsed())).ok();
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            // An error of poll counts as readable: `receive` then returns the socket's error.
            found => return found != Ok(0),
        }
    }
}

pub fn send(socket: &OwnedFd, request: &Request, doing: &'static str) -> Result<()> {
    packet::send(socket.as_fd(), &encode(request), &[], SendFlags::empty())
        .map_err(|_| Error::Disconnected { doing, asked: false })
}
