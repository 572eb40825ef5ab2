//! The layout of a session. The client offers its own layout, and then that of an older daemon.

use super::socket::{ask_on, open};
use super::{Answer, Connection, Control};
use crate::error::{Error, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::OwnedFd;
use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{Hello, PROTOCOL_OLDEST, PROTOCOL_VERSION, Refusal, Request};

impl Control {
    /// Opens a session: sends the hello with this client's own layout. If the daemon is older, connects again and sends
    /// the daemon's layout. Returns the answer and the session's layout.
    pub fn hello(&self, hello: Hello) -> Result<(Answer<'_>, Layout)> {
        const DOING: &str = "connect";
        let ask = |layout| {
            let answer = self.ask(&Request::Hello(hello.clone().in_layout(layout)), DOING, "")?;
            Ok((answer, layout))
        };
        let first = ask(Layout::CURRENT);
        let Some(older) = first.as_ref().err().and_then(common_layout) else { return first };
        let socket = open(&self.path, self.timeout).map_err(|_| Error::Disconnected { doing: DOING, asked: false })?;
        *self.locked(DOING)? = Connection::new(socket);
        ask(older)
    }

    /// Returns the error of a call after the end of the session: the refusal of a daemon of another version, or else
    /// `other`.
    #[cold]
    pub fn ended(&self, doing: &str, other: Error) -> Error {
        match self.refusal.get() {
            Some(refusal) => Error::Refused { doing: doing.to_owned(), refusal: refusal.clone() },
            None => other,
        }
    }

    /// Returns the refusal of a daemon of another version, which has responded to the request to continue the session
    /// with an error. A daemon that does not understand this request understands a hello, and refuses one without a
    /// protocol version.
    pub(super) fn other_version(&self, error: Error) -> Option<Refusal> {
        match error {
            Error::Refused { refusal: refusal @ (Refusal::Layout { .. } | Refusal::Protocol { .. }), .. } => {
                return Some(refusal);
            }
            Error::Refused { refusal: Refusal::Violation(_), .. } | Error::Protocol { .. } => {}
            _ => return None,
        }
        let nobody = Hello { protocol_min: 0, protocol_max: 0, ..Hello::new(None, "") };
        let refused = ask_on(&self.open_again().ok()?, &Request::Hello(nobody), "connect").err()?;
        match refused {
            Error::Refused { refusal: Refusal::Protocol { daemon, .. }, .. }
                if !(PROTOCOL_OLDEST..=PROTOCOL_VERSION).contains(&daemon) =>
            {
                let (client_min, client_max) = (PROTOCOL_OLDEST, PROTOCOL_VERSION);
                Some(Refusal::Protocol { daemon, client_min, client_max })
            }
            Error::Refused { refusal: refusal @ Refusal::Layout { .. }, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Connects again to a daemon that has closed the connection with a refusal.
    pub(super) fn open_again(&self) -> rustix::io::Result<OwnedFd> {
        let socket = open(&self.path, self.timeout)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(self.timeout))?;
        Ok(socket)
    }
}

/// Returns the layout of an older daemon that has refused this client's own layout, if this client supports it.
pub fn common_layout(refused: &Error) -> Option<Layout> {
    let Error::Refused { refusal: Refusal::Layout { daemon_version, daemon_hash, .. }, .. } = refused else {
        return None;
    };
    let older = Layout { version: *daemon_version, hash: *daemon_hash };
    (older != Layout::CURRENT && older.is_known()).then_some(older)
}

#[cfg(test)]
mod tests {
    use super::super::{Resume, Sockets};
    use super::*;
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    };
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tensorlend_layout::wire::{Reply, encode};
    use tensorlend_os::packet;

    /// A process that has no memory to map the first two directories.
    struct Short(AtomicU32);

    impl Resume for Short {
        fn resume(&self, _: &OwnedFd, _: Layout) -> Result<()> {
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Err(Error::System { doing: "test", cause: std::io::ErrorKind::OutOfMemory.into() }),
                _ => Ok(()),
            }
        }

        fn settle(&self) {}

        fn give_up(&self, _: &Reply, _: &[OwnedFd]) {}
    }

    #[test]
    fn a_session_without_memory_for_the_next_directory_asks_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 4).unwrap();
        let daemon = std::thread::spawn(move || {
            // The first daemon ends without a response. The third attempt to continue at the next one succeeds.
            (0..3).for_each(|_| drop(accept(&listener).unwrap()));
            let client = accept(&listener).unwrap();
            packet::receive(&client, RecvFlags::empty()).unwrap();
            packet::send(&client, &encode(&Reply::Done), &[], SendFlags::empty()).unwrap();
        });
        let control = Control::connect(&Sockets::named(vec![path]), Duration::from_mins(1)).unwrap();
        control.set_resume(Box::new(Short(AtomicU32::new(0))));
        assert!(matches!(control.call(&Request::Ping, "test", ""), Ok(Reply::Done)));
        daemon.join().unwrap();
    }
}
