//! Wake pairs. A producer sends a byte to its end, and the subscriber's end becomes readable, for example in epoll.
//!
//! The daemon makes both ends. So no process can have left a message in the producers' end, or watches on it. A close of
//! the producers' end then never waits for another process. The subscriber's end cannot send, because the producers' end
//! refuses to receive. From Linux 6.16 on, neither end accepts descriptors.

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tensorlend_os::packet;

/// The two ends of a wake pair.
pub struct WakePair {
    /// The end that producers send to. The daemon lends duplicates of it.
    pub producers: OwnedFd,
    /// The end that becomes readable.
    pub subscriber: OwnedFd,
}

pub fn pair() -> io::Result<WakePair> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (producers, subscriber) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&producers, &subscriber] {
        packet::refuse_descriptors(end.as_fd())?;
    }
    shutdown(&producers, Shutdown::Read)?;
    Ok(WakePair { producers, subscriber })
}

/// Maximum number of messages that a wake descriptor of an earlier build can contain. The kernel bounds them by the
/// sender's buffer.
const MESSAGES_MAX: usize = 4096;

/// Messages in the producers' end of a pair that a previous daemon left. Dropping this value takes them out, with
/// any descriptors, whose close may block.
pub struct Leftover(OwnedFd);

impl Drop for Leftover {
    fn drop(&mut self) {
        // The end of the messages looks like an empty message.
        for _ in 0..MESSAGES_MAX {
            if packet::take(&self.0, &mut [0; 8]).is_err() {
                return;
            }
        }
    }
}

/// Prepares the producers' end of a pair that a previous daemon left: from here on, no message arrives. Returns
/// the messages that did. Returns `None` if the descriptor is not a socket.
pub fn adopt(producers: &OwnedFd) -> Option<Leftover> {
    shutdown(producers, Shutdown::Read).ok()?;
    producers.try_clone().ok().map(Leftover)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, SendFlags, recv};

    #[test]
    fn only_the_producers_end_sends_and_no_end_accepts_descriptors() {
        let WakePair { producers, subscriber } = pair().unwrap();
        rustix::net::send(&producers, &[1], SendFlags::DONTWAIT).unwrap();
        assert_eq!(recv(&subscriber, &mut [0; 2], RecvFlags::empty()).unwrap().0, 1);
        let evil = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let back = packet::send(&subscriber, &[1], &[evil.as_fd()], SendFlags::DONTWAIT);
        assert_eq!(back, Err(Errno::PIPE));
        let forth = packet::send(&producers, &[1], &[evil.as_fd()], SendFlags::DONTWAIT);
        assert_eq!(forth.is_err(), packet::refuse_descriptors(producers.as_fd()) == Ok(true));
    }

    #[test]
    fn messages_in_an_earlier_builds_wake_descriptor_are_taken_out() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // It blocks: the kernel may close a descriptor in a message some time after the message was taken out.
        let (left, right) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        packet::send(&theirs, &[], &[], SendFlags::empty()).unwrap();
        packet::send(&theirs, &[1], &[left.as_fd()], SendFlags::empty()).unwrap();
        drop(left);
        let leftover = adopt(&ours).unwrap();
        assert_eq!(packet::send(&theirs, &[1], &[right.as_fd()], SendFlags::empty()), Err(Errno::PIPE));
        rustix::net::send(&ours, &[1], SendFlags::DONTWAIT).unwrap();
        assert!(recv(&right, &mut [0; 1], RecvFlags::DONTWAIT).is_err(), "the message has the other end");
        drop(leftover);
        assert_eq!(
            recv(&right, &mut [0; 1], RecvFlags::empty()).map(|(length, _)| length),
            Ok(0),
            "another thread has closed it"
        );
        let (read, _write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert!(adopt(&read).is_none(), "it is no socket");
    }
}
