//! Packets with descriptors, over a `SOCK_SEQPACKET` Unix socket.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tensorlend_layout::wire::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The packet's bytes; empty if the peer has hung up.
    pub bytes: Vec<u8>,
    /// The packet's descriptors, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether the peer sent more than the protocol allows, so that bytes or descriptors were cut
    /// off.
    pub truncated: bool,
}

/// Sends one packet. Never raises SIGPIPE.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// The kernel's maximum number of descriptors in one packet.
const SCM_MAX_FD: usize = 253;

/// Receives one packet, with room for the kernel's maximum number of descriptors. Without this
/// room, the kernel would close the surplus descriptors on this thread. The owner of a hostile
/// descriptor can delay its close without limit.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> rustix::io::Result<Packet> {
    // One byte more than allowed. Otherwise the kernel would silently cut a packet that is too
    // long.
    let mut bytes = vec![0; PACKET_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    bytes.truncate(message.bytes);
    let cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let truncated = cut || bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX;
    Ok(Packet { bytes, descriptors, truncated })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn packets_keep_their_bounds_and_carry_descriptors() {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send(&a, b"one", &[a.as_fd(), b.as_fd()], SendFlags::empty()).unwrap();
        send(&a, b"two", &[], SendFlags::empty()).unwrap();
        let one = receive(&b, RecvFlags::empty()).unwrap();
        assert_eq!((one.bytes.as_slice(), one.descriptors.len(), one.truncated), (&b"one"[..], 2, false));
        assert_eq!(receive(&b, RecvFlags::empty()).unwrap().bytes, b"two");
        send(&a, &vec![1; PACKET_BYTES_MAX + 1], &[], SendFlags::empty()).unwrap();
        assert!(receive(&b, RecvFlags::empty()).unwrap().truncated);
        // The received descriptors hold the peer's end open, too.
        drop((a, one));
        assert!(receive(&b, RecvFlags::empty()).unwrap().bytes.is_empty());
    }
}
