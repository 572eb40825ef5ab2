//! The control socket: made, found stale, or handed over by the service manager.

use super::{DaemonError, Heirloom};
use crate::core::label::Label;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv, shutdown,
    socket_with,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take to read its configuration: a name service may be slow.
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub fd: OwnedFd,
    /// Where it lies, if it is ours to remove.
    path: Option<PathBuf>,
    /// Whether another daemon lay there that ended without its clients.
    pub replaced: bool,
}

impl Listener {
    /// Leaves the socket where it is: the next daemon learns from it that there were clients.
    pub fn leave(&mut self) {
        self.path = None;
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl Listener {
    /// Makes the socket file. One that nobody listens on is replaced.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, DaemonError> {
        let failed = |what: &'static str| {
            move |error: Errno| DaemonError::Socket { path: path.into(), what, error: error.into() }
        };
        let address = SocketAddrUnix::new(path).map_err(failed("is no usable socket path (at most 107 bytes)"))?;
        let fd = seqpacket().map_err(failed("cannot be made"))?;
        let bound = match bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                match connect(seqpacket().map_err(failed("cannot be tried"))?, &address) {
                    Err(Errno::CONNREFUSED) => {}
                    // Full backlog, or a listener of another kind: somebody is there.
                    _ => return Err(DaemonError::Running(path.into())),
                }
                tracing::info!("replacing {}: nobody listens on it", path.display());
                // Clients that are to go on look for it meanwhile, and give up where there is no file: it is renamed over
                // the stale one.
                let beside = path.with_file_name(format!(".{}", std::process::id()));
                let address = SocketAddrUnix::new(&beside).map_err(failed("is stale, and too long to be replaced"))?;
                // Of a daemon that had this process id and was killed right here.
                let _ = rustix::fs::unlink(&beside);
                bind(&fd, &address).map_err(failed("is stale and cannot be replaced"))?;
                beside
            }
            other => other.map(|()| path.to_owned()).map_err(failed("cannot be bound"))?,
        };
        let replaced = bound != path;
        let mut listener = Self { fd, path: Some(bound.clone()), replaced };
        // Before anybody can connect.
        rustix::fs::chmod(&bound, Mode::from_raw_mode(mode)).map_err(failed("cannot be given its permissions"))?;
        listen(&listener.fd, BACKLOG).map_err(failed("cannot be listened on"))?;
        if replaced {
            rustix::fs::rename(&bound, path).map_err(failed("is stale and cannot be replaced"))?;
            listener.path = Some(path.into());
        }
        Ok(listener)
    }

    /// What the service manager hands over: the socket, if it opened one, and what another daemon left with it.
    pub fn handed_over() -> Result<(Option<Self>, Vec<Heirloom>), DaemonError> {
        let (mut listener, mut heirlooms) = (None, Vec::new());
        for (number, name) in sd_notify::listen_fds_with_names().map_err(DaemonError::Activation)? {
            let Some(fd) = tensorlend_os::inherited::take(number) else {
                return Err(DaemonError::Activation(std::io::Error::other("the descriptor is not open")));
            };
            match name.parse::<Label>() {
                Ok(label) => heirlooms.push((label, fd)),
                Err(_) if listener.is_none() => listener = Some(Self::activated(fd)?),
                Err(_) => {}
            }
        }
        Ok((listener, heirlooms))
    }

    fn activated(fd: OwnedFd) -> Result<Self, DaemonError> {
        let wrong = |why: &str| DaemonError::Activation(std::io::Error::other(why.to_owned()));
        if rustix::net::sockopt::socket_type(&fd).ok() != Some(SocketType::SEQPACKET) {
            return Err(wrong("the socket must be SOCK_SEQPACKET: ListenSequentialPacket= in the socket unit"));
        }
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| DaemonError::Activation(e.into()))?;
        Ok(Self { fd, path: None, replaced: false })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = rustix::fs::unlink(path);
        }
    }
}

/// Waits until the daemon at `path` has done what it was told before: it takes connections in after that, and hangs up on one
/// that says nothing.
pub fn await_turn(path: &Path) -> std::io::Result<()> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    shutdown(&socket, Shutdown::Write)?;
    match recv(&socket, &mut [0; 1], RecvFlags::empty()) {
        Ok(_) | Err(Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(rustix::fs::stat(&path).unwrap().st_mode & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path, 0o600), Err(DaemonError::Running(_))));
        drop(first);
        assert!(!path.exists(), "removed at the end");
        // As a killed daemon leaves it: a file that nobody listens on.
        let dead = seqpacket().unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(path.exists());
        drop(Listener::bind(&path, 0o600).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Who looks for a daemon that is to come waits where nobody listens, and gives up where there is nothing.
    #[test]
    fn there_is_a_socket_at_every_moment_of_a_replacement() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut listener = Listener::bind(&path, 0o600).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let address = SocketAddrUnix::new(&path).unwrap();
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let found = connect(seqpacket().unwrap(), &address);
                    assert_ne!(found, Err(Errno::NOENT));
                }
            });
            for _ in 0..500 {
                listener.leave();
                drop(listener);
                listener = Listener::bind(&path, 0o600).unwrap();
                assert!(listener.replaced);
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            looking.join().unwrap();
        });
    }

    #[test]
    fn a_path_that_is_too_long_is_named() {
        let error = Listener::bind(Path::new(&format!("/tmp/{}", "x".repeat(200))), 0o600).unwrap_err();
        assert!(error.to_string().contains("107"), "{error}");
    }
}
