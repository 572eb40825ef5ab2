//! Packets with descriptors, over a `SOCK_SEQPACKET` Unix socket.
#![allow(unsafe_code)]

use crate::thread::close_apart;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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
    /// Whether the packet had further descriptors. The kernel dropped them, because this process has too many open files.
    pub lost_descriptors: bool,
}

/// The socket option with which a socket refuses descriptors, from Linux 6.16 on. `libc` does not define it yet.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Makes a Unix socket refuse messages with descriptors: their senders get `EPERM`. A socket that is accepted from a
/// listening socket inherits this. Returns false on kernels before Linux 6.16, which have no such option.
///
/// A received descriptor can be of any object. Its close may wait for another process without limit, even if the kernel
/// closes it because the message is discarded.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    set_passrights(socket, false)
}

/// Ends [`refuse_descriptors`] for one socket.
pub fn accept_descriptors(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    set_passrights(socket, true)
}

fn set_passrights(socket: BorrowedFd<'_>, passes: bool) -> rustix::io::Result<bool> {
    let value = libc::c_int::from(passes);
    let length: libc::socklen_t = libc::c_int::BITS / u8::BITS;
    // SAFETY: `value` is an int that outlives the call, and `length` is its length.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), length)
    };
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        _ if set == 0 => Ok(true),
        Some(Errno::NOPROTOOPT) | None => Ok(false),
        Some(error) => Err(error),
    }
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

/// Returns true if the peer has not received every message that was sent to it.
pub fn has_unread(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes an int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    done == 0 && bytes > 0
}

/// Receives one message without descriptors into `buffer`, without waiting, and returns its length. A longer packet is cut.
/// On a kernel without [`refuse_descriptors`], another thread closes the descriptors of the message.
pub fn take(socket: impl AsFd, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let descriptors = descriptors_of(&mut control);
    if !descriptors.is_empty() {
        close_apart(descriptors);
    }
    Ok(message.bytes)
}

/// Takes the descriptors of a received message.
fn descriptors_of(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(received) => Some(received),
        _ => None,
    });
    rights.flatten().collect()
}

/// The kernel's maximum number of descriptors in one packet.
const SCM_MAX_FD: usize = 253;

thread_local! {
    /// The buffer for the next packet. A new one for each packet would be filled with zeros, which takes as long as a system
    /// call and drives other data out of the processor's first cache.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Receives one packet, with room for the kernel's maximum number of descriptors. Without this
/// room, the kernel would close the surplus descriptors on this thread. The owner of a hostile
/// descriptor can delay its close without limit.
pub fn receive(socket: impl AsFd, flags: RecvFlags) -> rustix::io::Result<Packet> {
    // A thread that is ending has no buffer any more.
    let mut buffer = BUFFER.try_with(RefCell::take).unwrap_or_default();
    // One byte more than allowed. Otherwise the kernel would silently cut a packet that is too
    // long.
    buffer.resize(PACKET_BYTES_MAX + 1, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    let received = message.map(|message| (buffer[..message.bytes].to_vec(), message.flags));
    let _ = BUFFER.try_with(|kept| kept.replace(buffer));
    let (bytes, flags) = received?;
    let descriptors = descriptors_of(&mut control);
    let cut = flags.contains(ReturnFlags::TRUNC);
    let truncated = cut || bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX;
    let lost_descriptors = flags.contains(ReturnFlags::CTRUNC);
    Ok(Packet { bytes, descriptors, truncated, lost_descriptors })
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
