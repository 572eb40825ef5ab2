//! The control socket. The daemon creates it, or the service manager passes it.

use super::{DaemonError, Stored};
use crate::core::label::Label;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, getsockname, listen, recv,
    shutdown, socket_with,
};
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend_os::fork::Unshared;
use tensorlend_os::socket_file::{self, FileId, Found, Lock, Purpose};
use tensorlend_os::user_folder;

/// Maximum time for which `--reload` waits for the daemon. The daemon's name service may be slow.
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// Maximum number of temporary names that the daemon tries for a new socket.
const BESIDE_MAX: u32 = 16;

const LOCKED: &str = "cannot be made: its folder cannot be locked";

/// Maximum number of connections that wait to be accepted.
pub const BACKLOG: i32 = 128;

/// The listening control socket.
#[derive(Debug)]
pub struct Listener {
    pub fd: Unshared,
    /// The socket's file, as long as this value is responsible for it.
    file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: FileId,
    /// The file's permissions. `None` if the service manager has created the file, and removes it.
    mode: Option<u32>,
}

impl Listener {
    /// Makes the drop of this value leave the socket file in place. The file shows the next daemon
    /// that this daemon had clients.
    pub fn leave(&mut self) {
        self.file = None;
    }

    /// Returns true if clients have connected that the daemon has not accepted.
    pub fn has_connections(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }

    /// Removes the socket's file, unless the service manager has created it. Clients no longer find the daemon.
    pub fn remove_file(&self) {
        if let Some(SocketFile { path, id, mode: Some(_) }) = &self.file {
            let _ = socket_file::remove(path, *id);
        }
    }

    /// Returns the path of the socket's file.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// Returns the path of the socket's file, if this daemon has created it.
    pub fn own_path(&self) -> Option<&Path> {
        self.file.as_ref().filter(|file| file.mode.is_some()).map(|file| &*file.path)
    }

    /// Returns true if the path leads to this socket. Without the path, this is not known, and the result is true.
    pub fn has_file(&self) -> bool {
        self.file.as_ref().is_none_or(|file| FileId::of(&file.path) == Ok(file.id))
    }

    /// Creates a socket at the path of this one, whose file is missing. Does not wait for another process that holds the
    /// lock of the directory.
    pub fn bind_again(&self) -> Result<Self, DaemonError> {
        if let Some(SocketFile { path, mode: Some(mode), .. }) = &self.file {
            let foreign = |why: user_folder::NoFolder| DaemonError::Socket {
                path: path.clone(),
                what: "cannot be created again",
                error: std::io::Error::other(why.to_string()),
            };
            user_folder::create_again(path).map_err(foreign)?;
            let lock = Lock::try_take(path, Purpose::Bind).map_err(failed(path, LOCKED))?;
            return Self::bind_locked(path, *mode, &lock);
        }
        let why = "only the service manager can create its file again: restart the socket unit (tensorlendd.socket)";
        Err(DaemonError::Activation(std::io::Error::other(why)))
    }
}

/// Converts an error of a system call on the socket at `path`.
fn failed(path: &Path, what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |error| DaemonError::Socket { path: path.into(), what, error: error.into() }
}

/// Returns an error that names the file at `path`, unless a socket may replace the file.
fn replaceable(path: &Path) -> Result<(), DaemonError> {
    match socket_file::inspect(path).map_err(failed(path, "cannot be looked at"))? {
        Found::Stale | Found::Nothing => Ok(()),
        Found::Listening => Err(DaemonError::Running(path.into())),
        Found::Other(found) => Err(DaemonError::Occupied { path: path.into(), found }),
    }
}

/// Binds the socket to a free path in the directory of `path`, and returns the bound path.
fn bind_beside(fd: &OwnedFd, path: &Path, mode: u32) -> Result<(PathBuf, FileId), DaemonError> {
    let failed = |what| failed(path, what);
    let pid = std::process::id();
    for number in 0..BESIDE_MAX {
        let name = if number == 0 { format!(".{pid}") } else { format!(".{pid}-{number}") };
        let sibling = path.with_file_name(name);
        SocketAddrUnix::new(&sibling).map_err(failed("is stale, and too long to be replaced"))?;
        // A daemon with the same process id may have been killed at this point. This removes its
        // socket.
        let _ = socket_file::remove_stale(&sibling);
        match socket_file::bind(fd, &sibling, mode) {
            Ok(id) => return Ok((sibling, id)),
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed("is stale and cannot be replaced")(error)),
        }
    }
    Err(failed("is stale and cannot be replaced")(Errno::ADDRINUSE))
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl Listener {
    /// Creates the socket file. Replaces a stale socket of this user. Any other file at `path` stays, and is an error.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, DaemonError> {
        SocketAddrUnix::new(path).map_err(failed(path, "is no usable socket path (at most 107 bytes)"))?;
        let lock = Lock::take(path, Purpose::Bind).map_err(failed(path, LOCKED))?;
        Self::bind_locked(path, mode, &lock)
    }

    /// Creates the socket file. The caller holds the lock until this socket listens. Before that, the socket looks stale
    /// to other daemons.
    fn bind_locked(path: &Path, mode: u32, lock: &Lock) -> Result<Self, DaemonError> {
        let failed = |what| failed(path, what);
        let fd = seqpacket().map_err(failed("cannot be made"))?;
        let (bound, id) = match socket_file::bind(&fd, path, mode) {
            Err(Errno::ADDRINUSE) => {
                replaceable(path)?;
                tracing::info!("replacing {}: no process listens on it", path.display());
                // A client that waits for the next daemon stops waiting if the file is missing. So
                // the new socket is bound to another path, and replaces the stale one by a rename.
                bind_beside(&fd, path, mode)?
            }
            other => other.map(|id| (path.to_owned(), id)).map_err(failed("cannot be bound"))?,
        };
        let replaced = bound != path;
        let file = SocketFile { path: bound.clone(), id, mode: Some(mode) };
        let mut listener = Self { fd: Unshared::new(fd), file: Some(file) };
        listen(&listener.fd, BACKLOG).map_err(failed("cannot be listened on"))?;
        if replaced {
            if !socket_file::replace_stale(lock, path, &bound).map_err(failed("is stale and cannot be replaced"))? {
                return Err(replaceable(path).err().unwrap_or_else(|| DaemonError::Running(path.into())));
            }
            listener.file = Some(SocketFile { path: path.into(), id, mode: Some(mode) });
        }
        Ok(listener)
    }

    /// Returns the error that [`Listener::bind`] would return, as far as the error is known without
    /// binding.
    pub fn check(path: &Path) -> Result<(), DaemonError> {
        let failed = |what| failed(path, what);
        SocketAddrUnix::new(path).map_err(failed("is no usable socket path (at most 107 bytes)"))?;
        match replaceable(path) {
            // This check accepts a running daemon: the daemon that is being configured may replace
            // it.
            Ok(()) | Err(DaemonError::Running(_)) => {}
            Err(error) => return Err(error),
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(rustix::fs::CWD, folder, access, AtFlags::EACCESS)
            .map_err(failed("cannot be made in its folder"))?;
        if !std::fs::metadata(folder).is_ok_and(|it| it.is_dir()) {
            return Err(failed("cannot be made in its folder")(Errno::NOTDIR));
        }
        Ok(())
    }

    /// Returns the service manager's descriptors: the socket, if the manager opened one, and the
    /// descriptors that another daemon stored.
    pub fn handed_over() -> Result<(Option<Self>, Vec<Stored>), DaemonError> {
        let (mut listener, mut stored) = (None, Vec::new());
        for (number, name) in sd_notify::listen_fds_with_names().map_err(DaemonError::Activation)? {
            let Some(fd) = tensorlend_os::inherited::take(number) else {
                return Err(DaemonError::Activation(std::io::Error::other("the descriptor is not open")));
            };
            match name.parse::<Label>() {
                Ok(label) => stored.push((label, fd)),
                Err(_) if listener.is_none() => listener = Some(Self::activated(fd)?),
                Err(_) => {}
            }
        }
        Ok((listener, stored))
    }

    fn activated(fd: OwnedFd) -> Result<Self, DaemonError> {
        let wrong = |why: &str| DaemonError::Activation(std::io::Error::other(why.to_owned()));
        if rustix::net::sockopt::socket_type(&fd).ok() != Some(SocketType::SEQPACKET) {
            return Err(wrong("the socket must be SOCK_SEQPACKET: ListenSequentialPacket= in the socket unit"));
        }
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| DaemonError::Activation(e.into()))?;
        let address = getsockname(&fd).ok().and_then(|address| SocketAddrUnix::try_from(address).ok());
        let path = address.and_then(|it| Some(PathBuf::from(OsStr::from_bytes(it.path()?.to_bytes()))));
        // The service manager may have another view of the file system, without this path.
        let file = path.and_then(|path| Some(SocketFile { id: FileId::of(&path).ok()?, path, mode: None }));
        Ok(Self { fd: Unshared::new(fd), file })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Waits until the daemon at `path` has handled earlier signals. This connection sends nothing, so
/// the daemon closes it. The daemon does so only after a reload in progress.
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
    use rustix::net::bind;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::bind(&path, 0o600).unwrap();
        assert_eq!(rustix::fs::stat(&path).unwrap().st_mode & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path, 0o600), Err(DaemonError::Running(_))));
        drop(first);
        assert!(!path.exists(), "removed at the end");
        // A killed daemon leaves its socket file.
        let dead = seqpacket().unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        assert!(path.exists());
        drop(Listener::bind(&path, 0o600).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Another user of the socket's folder may replace its files at any moment.
    #[test]
    fn permissions_are_those_of_the_socket_and_of_no_file_that_replaces_it() {
        const ROUNDS: usize = 20_000;
        let folder = tempfile::tempdir().unwrap();
        let (path, link, file) = (folder.path().join("s"), folder.path().join("link"), folder.path().join("file"));
        std::fs::write(&file, "precious").unwrap();
        rustix::fs::chmod(&file, rustix::fs::Mode::RUSR).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = std::os::unix::fs::symlink(&file, &link);
                    if path.exists() {
                        let _ = std::fs::rename(&link, &path);
                    }
                }
            });
            let is_changed = (0..ROUNDS).any(|_| {
                let _ = std::fs::remove_file(&path);
                drop(Listener::bind(&path, 0o666));
                rustix::fs::stat(&file).unwrap().st_mode & 0o777 != 0o400
            });
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!is_changed);
        });
    }

    /// The path comes from a command line, so any file may be there by mistake.
    #[test]
    fn only_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "precious").unwrap();
        std::fs::create_dir(path("folder")).unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        std::os::unix::fs::symlink(path("nothing"), path("dangling")).unwrap();
        for (name, found) in [
            ("file", "an ordinary file"),
            ("folder", "a directory"),
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
        ] {
            let before = FileId::of(&path(name)).unwrap();
            for said in [Listener::bind(&path(name), 0o600).err(), Listener::check(&path(name)).err()] {
                let said = said.expect(name).to_string();
                assert!(said.contains(found), "{name}: {said}");
            }
            assert_eq!(FileId::of(&path(name)), Ok(before), "{name}");
        }
        assert_eq!(std::fs::read(path("file")).unwrap(), b"precious");
        // A file under the temporary name of the new socket stays, too.
        let sibling = path(&format!(".{}", std::process::id()));
        std::fs::write(&sibling, "precious").unwrap();
        let dead = seqpacket().unwrap();
        bind(&dead, &SocketAddrUnix::new(path("s")).unwrap()).unwrap();
        drop(dead);
        Listener::bind(&path("s"), 0o600).unwrap();
        assert_eq!(std::fs::read(&sibling).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5, "and nothing is left behind");
    }

    /// A daemon whose socket file was moved away does not remove the socket of the next daemon.
    #[test]
    fn only_its_own_socket_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::bind(&path, 0o600).unwrap();
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        let second = Listener::bind(&path, 0o600).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    /// Of four daemons that start at once, one serves and the others report it.
    #[test]
    fn one_of_many_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for round in 0..200 {
            if round % 2 == 0 {
                let dead = seqpacket().unwrap();
                bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
                drop(dead);
            }
            let start = std::sync::Barrier::new(4);
            let all: Vec<_> = std::thread::scope(|scope| {
                let one = || {
                    start.wait();
                    Listener::bind(&path, 0o600)
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().map(|it| it.join().unwrap()).collect()
            });
            let (serving, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
            assert_eq!(serving.len(), 1, "{refused:?}");
            assert!(refused.iter().all(|it| matches!(it, Err(DaemonError::Running(_)))), "{refused:?}");
            connect(seqpacket().unwrap(), &SocketAddrUnix::new(&path).unwrap()).unwrap();
            drop(serving);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    /// A client that waits for a daemon retries while a stale socket exists. Without a socket, the client gives up.
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
