//! Taking a packet from somebody who may be hostile.

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use tensorlend_layout::wire::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use tensorlend_os::packet::Packet;

/// The most descriptors that the kernel lets into one packet.
const SCM_MAX_FD: usize = 253;

/// As [`tensorlend_os::packet::receive`], but with room for every descriptor that can come: those that found no room would
/// be closed by the kernel on this thread, which is for the closer to do.
pub fn receive(socket: impl AsFd) -> rustix::io::Result<Packet> {
    let mut bytes = vec![0; PACKET_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
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
