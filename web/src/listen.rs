//! Where a server listens.

use crate::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An address: `127.0.0.1:9470`, or `unix:` and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket, for its owner alone.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("unix: needs a path behind it".into()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "give an address and a port (127.0.0.1:9470, [::1]:9470), or unix: and a path".to_owned()),
        }
    }
}

/// A socket that listens.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A Unix socket's file, which goes with the server.
pub struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listen {
    /// Whether only this machine, or this user, can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Listens; also returns what to call it.
    pub fn bind(&self) -> Result<(Listener, Option<File>, String), Error> {
        let failed = |cause| Error::Listen { at: self.to_string(), cause };
        match self {
            Self::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true)?;
                let name = format!("http://{}/", listener.local_addr()?);
                Ok((Listener::Tcp(listener), None, name))
            }
            Self::Unix(path) => {
                remove_stale(path);
                // Nobody reaches the socket between its making and its permissions: it is made under a mask.
                let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
                let listener = UnixListener::bind(path);
                rustix::process::umask(before);
                let listener = listener.map_err(failed)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                listener.set_nonblocking(true)?;
                Ok((Listener::Unix(listener), Some(File(path.clone())), self.to_string()))
            }
        }
    }
}

/// Removes a socket at which nobody listens any more.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_who_reaches_them() {
        let local = |text: &str| text.parse::<Listen>().map(|listen| listen.is_local());
        for text in ["127.0.0.1:9470", "127.8.8.8:0", "[::1]:9470", "unix:/run/web.sock"] {
            assert_eq!(local(text), Ok(true), "{text}");
        }
        assert_eq!(local("0.0.0.0:9470"), Ok(false));
        assert_eq!(local("[::]:9470"), Ok(false));
        for text in ["localhost:9470", "9470", "unix:", ""] {
            assert!(local(text).is_err(), "{text}");
        }
    }
}
