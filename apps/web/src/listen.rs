//! The addresses and sockets on which a server listens.

use crate::error::Error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use tensorlend_os::socket_file::{self, FileId, Found, Lock, Purpose};

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// An address, such as `127.0.0.1:9470`, or `unix:` followed by a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket with mode 0600.
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

/// Checks that the addresses do not show more than their viewers may see. `observes` is true if the server shows
/// namespaces that it observes without joining them.
///
/// # Errors
/// [`Error::Open`] for a port that other machines reach, without a token. [`Error::Observed`] for any other port without
/// a token, if `observes` is true: the daemon's configuration lists the users who may observe, and all
/// users of the machine reach the port.
pub fn check_access(listen: &[Listen], has_token: bool, observes: bool) -> Result<(), Error> {
    if has_token {
        return Ok(());
    }
    for listen in listen {
        match listen {
            Listen::Tcp(address) if !listen.is_local() => return Err(Error::Open(*address)),
            Listen::Tcp(address) if observes => return Err(Error::Observed(*address)),
            Listen::Tcp(_) | Listen::Unix(_) => {}
        }
    }
    Ok(())
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a Unix socket. The server removes the file when it ends.
pub struct File(PathBuf, FileId);

fn taken(why: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::AddrInUse, why.to_owned())
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = socket_file::remove(&self.0, self.1);
    }
}

impl Listen {
    /// Returns true if only this machine, or only this user, can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Opens the socket. Returns the listener, the file of a Unix socket, and the name to display.
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
                let _lock = Lock::take(path, Purpose::Bind).map_err(|error| failed(error.into()))?;
                if !socket_file::remove_stale(path).map_err(|error| failed(error.into()))? {
                    let why = match socket_file::inspect(path).map_err(|error| failed(error.into()))? {
                        Found::Other(found) => format!("there is {found}, which stays"),
                        Found::Listening | Found::Stale | Found::Nothing => "another process listens there".into(),
                    };
                    return Err(failed(taken(&why)));
                }
                let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
                let listener =
                    socket_with(family, SocketType::STREAM, flags, None).map_err(|error| failed(error.into()))?;
                let id = socket_file::bind(&listener, path, 0o600).map_err(|error| failed(error.into()))?;
                rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.into()))?;
                Ok((Listener::Unix(listener.into()), Some(File(path.clone(), id)), self.to_string()))
            }
        }
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

    #[test]
    fn ports_that_need_a_token() {
        let check = |at: &str, has_token, observes| check_access(&[at.parse().unwrap()], has_token, observes);
        for local in ["127.0.0.1:9470", "[::1]:0"] {
            assert!(check(local, false, false).is_ok() && check(local, true, true).is_ok(), "{local}");
            assert!(matches!(check(local, false, true), Err(Error::Observed(_))), "{local}");
        }
        for observes in [false, true] {
            assert!(check("unix:/run/web.sock", false, observes).is_ok());
            assert!(matches!(check("0.0.0.0:0", false, observes), Err(Error::Open(_))));
            assert!(check("0.0.0.0:0", true, observes).is_ok());
        }
    }

    /// Binding replaces a stale socket. It keeps the daemon's live socket, a regular file or a link that `--listen`
    /// names by mistake.
    #[test]
    fn only_a_stale_socket_is_replaced() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "precious").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        let daemon = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&daemon, &SocketAddrUnix::new(path("daemon")).unwrap()).unwrap();
        listen(&daemon, 1).unwrap();
        for (name, said) in [("file", "an ordinary file"), ("link", "a symbolic link"), ("daemon", "another process")] {
            let before = FileId::of(&path(name)).unwrap();
            let error = Listen::Unix(path(name)).bind().err().expect(name).to_string();
            assert!(error.contains(said), "{name}: {error}");
            assert_eq!(FileId::of(&path(name)), Ok(before), "{name}");
        }
        drop(daemon);
        let (listener, file, _) = Listen::Unix(path("daemon")).bind().unwrap();
        drop((listener, file));
        assert!(!path("daemon").exists());
    }
}
