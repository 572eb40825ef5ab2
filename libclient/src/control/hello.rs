//! The layout of a session. The client offers its own layout, and then that of an older daemon.

use super::socket::open;
use super::{Answer, Connection, Control};
use crate::error::{Error, Result};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::os::fd::OwnedFd;
use tensorlend_layout::versions::Layout;
use tensorlend_layout::wire::{Hello, Refusal, Request};

impl Control {
    /// Opens a session: sends the hello with this client's own layout. If the daemon is older, connects again and sends
    /// the daemon's layout. Returns the answer and the session's layout.
    pub fn hello(&self, hello: Hello) -> Result<(Answer<'_>, Layout)> {
        const DOING: &str = "connect";
        let ask = |layout| {
            let answer = self.ask(&Request::Hello(hello.clone().in_layout(layout)), &[], DOING, "")?;
            Ok((answer, layout))
        };
        let first = ask(Layout::CURRENT);
        let Some(older) = first.as_ref().err().and_then(common_layout) else { return first };
        let socket = open(&self.path, self.timeout).map_err(|_| Error::Disconnected { doing: DOING, asked: false })?;
        *self.locked(DOING)? = Connection::new(socket);
        ask(older)
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
