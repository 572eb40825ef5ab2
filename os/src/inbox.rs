//! Datagram sockets with abstract names, to which the processes of a machine report small events.

use crate::fork::Unshared;
use crate::packet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{bind, sendto, shutdown, socket_with};
use rustix::rand::GetRandomFlags;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// Bytes of a token.
pub const TOKEN: usize = 16;

/// Random bytes that a datagram proves its right with.
pub type Token = [u8; TOKEN];

/// Returns a random token.
///
/// # Errors
/// The kernel's errors, before it has gathered randomness after the start of the machine.
pub fn token() -> io::Result<Token> {
    let mut token = [0; TOKEN];
    // The kernel returns up to 256 bytes in one piece.
    let length = rustix::rand::getrandom(&mut token, GetRandomFlags::NONBLOCK)?;
    if length == TOKEN { Ok(token) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// A socket that receives datagrams. The kernel removes its name when the process closes it or ends. A forked child does not
/// have it.
#[derive(Debug)]
pub struct Inbox(Unshared);

impl Inbox {
    /// Creates a socket with an abstract name. Every process in the same network namespace can send to it.
    ///
    /// # Errors
    /// The kernel's errors, such as `EADDRINUSE`.
    pub fn bind(name: &[u8]) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // Every process in the network namespace may send here.
        packet::refuse_descriptors(socket.as_fd())?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self(Unshared::new(socket)))
    }

    /// Sleeps until there is a datagram, or until `close` was called.
    pub fn wait(&self) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives one datagram without waiting, and returns its length. A longer datagram is cut to the length of `buffer`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no datagram.
    pub fn take(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(packet::take(&self.0, buffer)?)
    }

    /// Refuses further datagrams. The datagrams that have arrived can still be received.
    pub fn close(&self) {
        // A failure means that the socket is closed already.
        let _ = shutdown(&self.0, Shutdown::Read);
    }
}

/// Sends a datagram to the socket of this name, without waiting.
///
/// # Errors
/// `ConnectionRefused` if there is no such socket, `BrokenPipe` if it refuses datagrams, `WouldBlock` if it is full.
pub fn send(name: &[u8], datagram: &[u8]) -> io::Result<()> {
    // The socket has no state, so a forked child may use it, too.
    static SENDER: OnceLock<std::os::fd::OwnedFd> = OnceLock::new();
    let sender = if let Some(sender) = SENDER.get() {
        sender
    } else {
        let new = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        SENDER.get_or_init(|| new)
    };
    let name = SocketAddrUnix::new_abstract_name(name)?;
    sendto(sender, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn datagrams_arrive_until_the_inbox_is_closed_or_dropped() {
        let name = format!("tensorlend-os/inbox/{}", std::process::id());
        let name = name.as_bytes();
        assert_eq!(send(name, b"early").unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let inbox = Inbox::bind(name).unwrap();
        assert_eq!(Inbox::bind(name).unwrap_err().kind(), ErrorKind::AddrInUse);
        let mut buffer = [0; 4];
        assert_eq!(inbox.take(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        send(name, b"abc").unwrap();
        send(name, b"longer").unwrap();
        inbox.wait().unwrap();
        assert_eq!((inbox.take(&mut buffer).unwrap(), &buffer[..3]), (3, &b"abc"[..]));
        let full = loop {
            if let Err(error) = send(name, b"more") {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        inbox.close();
        assert_eq!(send(name, b"late").unwrap_err().kind(), ErrorKind::BrokenPipe);
        inbox.wait().unwrap();
        assert_eq!((inbox.take(&mut buffer).unwrap(), buffer), (4, *b"long"));
        while inbox.take(&mut buffer).is_ok() {}
        inbox.wait().unwrap();
        drop(inbox);
        assert_eq!(send(name, b"late").unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
