//! The packets between a daemon and a `tensorlendd --fd-store`.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use tensorlend_os::packet;

/// Maximum length in bytes of a name, as in systemd's store.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a packet: the kind and a name.
pub const PACKET_BYTES: usize = 1 + NAME_BYTES_MAX;

/// The first byte of each packet on the socket.
pub mod kind {
    /// A descriptor and its name. From the daemon: the process stores the descriptor, in place of
    /// one with the same name. To the daemon: a stored descriptor.
    pub const ENTRY: u8 = b'+';
    /// From the daemon: the process removes the descriptor with this name.
    pub const REMOVE: u8 = b'-';
    /// To the daemon: the process has sent all stored descriptors. The process's capacity in
    /// descriptors follows, in four bytes, little endian.
    pub const ALL_SENT: u8 = b'.';
}

/// Maximum time that a send waits.
pub const SEND_MAX: Duration = Duration::from_secs(5);

/// Sends a packet. Waits at most [`SEND_MAX`] while too many descriptors are in flight. The socket's own timeout limits the
/// wait for a full queue.
pub fn send(connection: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
    let start = Instant::now();
    loop {
        match packet::send(connection, bytes, fd.as_slice(), SendFlags::empty()) {
            // The kernel limits the descriptors that are in flight on all sockets of this user.
            // Another attempt may succeed.
            Err(Errno::TOOMANYREFS) if start.elapsed() < SEND_MAX => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
}

/// Receives a packet of at most [`PACKET_BYTES`] bytes and at most one descriptor. The length is 0
/// at the end of the connection.
pub fn receive(
    connection: BorrowedFd<'_>,
    bytes: &mut [u8; PACKET_BYTES],
) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(connection, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fd = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut received) = part {
            fd = received.next();
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, fd))
}
