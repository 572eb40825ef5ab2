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
