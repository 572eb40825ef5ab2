//! The file of a Unix socket: its state, and the replacement or removal of a stale socket.
//!
//! A path comes from a command line or a configuration, so it may be wrong. This module unlinks or
//! replaces a socket only if the socket belongs to this user and no process accepts connections on
//! it. The module follows no symbolic links.

use crate::fork::{self, Unshared};
use rustix::fs::{
    CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, chmod, fchmod, flock, fstat, lstat, major, minor, open,
    renameat_with, unlink,
};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout of [`Lock::take`].
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// The contents of a path at which a daemon wants to create a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No file exists at the path.
    Nothing,
    /// A socket of this user, on which no process accepts connections.
    Stale,
    /// A socket on which a process listens.
    Listening,
    /// Any other file, described as text. The caller must not replace the file.
    Other(String),
}

/// The identity of one file: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// Identifies the file at `path`, without following a symbolic link.
    pub fn of(path: &Path) -> Result<Self> {
        let stat = lstat(path)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

/// The purpose of a [`Lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To create or replace the file of a socket.
    Bind,
    /// To start a daemon.
    Start,
}

/// The right of one process to do something in the directory of a socket. Only one process of a user has the right for a
/// [`Purpose`] at a time.
///
/// A socket that is bound and does not listen yet looks stale. So without the lock, daemons that
/// start at the same time would replace each other's sockets. The lock is an advisory lock on a
/// file that exists only while a process holds the lock. A killed process leaves an empty file,
/// which the next process takes over.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// A child of a fork must not hold the lock after the death of this process.
    file: Unshared,
}

impl Lock {
    /// Takes the lock of the socket's directory. `EWOULDBLOCK`: another process held the lock for 5
    /// s. `EPERM`: the lock's file belongs to another user or is not empty.
    pub fn take(socket: &Path, purpose: Purpose) -> Result<Self> {
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match Self::try_take(socket, purpose) {
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(LOCK_INTERVAL),
                done => return done,
            }
        }
    }

    /// Takes the lock as [`Self::take`] does, without waiting. `EWOULDBLOCK`: another process holds the lock.
    pub fn try_take(socket: &Path, purpose: Purpose) -> Result<Self> {
        let (path, uid) = (Self::path(socket, purpose), rustix::process::geteuid().as_raw());
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        let stat = fstat(&file)?;
        let is_lock = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0;
        if !is_lock || stat.st_uid != uid {
            return Err(Errno::PERM);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // Only a holder of the lock removes the file. So the lock is valid if the path still leads to this file.
        if FileId::of(&path) == Ok(FileId(stat.st_dev, stat.st_ino)) {
            fork::watch();
            Ok(Self { path, file: Unshared::new(file) })
        } else {
            Err(Errno::WOULDBLOCK)
        }
    }

    /// Returns the process that holds the lock, if the kernel reports one.
    pub fn holder(socket: &Path, purpose: Purpose) -> Option<u32> {
        let stat = lstat(&Self::path(socket, purpose)).ok()?;
        let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        // Format: proc_locks(5), such as "1: FLOCK  ADVISORY  WRITE 5 08:01:7864448 0 EOF".
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let pid = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", pid, at, ..] = words[..] else { return None };
            (at == file).then(|| pid.parse().ok()).flatten()
        };
        locks.lines().find_map(pid)
    }

    fn path(socket: &Path, purpose: Purpose) -> PathBuf {
        // A directory such as /tmp may contain sockets of several users. Each user has a lock of
        // its own.
        let uid = rustix::process::geteuid().as_raw();
        let suffix = match purpose {
            Purpose::Bind => "",
            Purpose::Start => "-start",
        };
        socket.with_file_name(format!(".tensorlend-{uid}{suffix}.lock"))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = unlink(&self.path);
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

/// Binds a socket to a new file with these permissions, and returns the file's identity. The file has no other
/// permissions at any moment.
pub fn bind(socket: impl AsFd, path: &Path, mode: u32) -> Result<FileId> {
    let address = SocketAddrUnix::new(path)?;
    // The kernel gives the file the socket's permissions, without those of the umask.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &address)?;
    // Another process may replace the file at any moment. This descriptor leads to one file, and not to the target of a
    // link.
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&file)?;
    let id = FileId(stat.st_dev, stat.st_ino);
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    if stat.st_mode & 0o777 != mode {
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        chmod(file, Mode::from_raw_mode(mode)).inspect_err(|_| {
            let _ = remove(path, id);
        })?;
    }
    Ok(id)
}

/// Inspects `path` without changing it. Connects to a socket to test whether a process listens.
pub fn inspect(path: &Path) -> Result<Found> {
    let stat = match lstat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(error) => return Err(error),
    };
    let other = |what: &str| Ok(Found::Other(what.to_owned()));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => {}
        FileType::RegularFile => return other("an ordinary file"),
        FileType::Directory => return other("a directory"),
        FileType::Symlink => return other("a symbolic link"),
        FileType::Fifo => return other("a named pipe"),
        FileType::CharacterDevice | FileType::BlockDevice => return other("a device"),
        FileType::Unknown => return other("a file of unknown type"),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) if stat.st_uid == rustix::process::geteuid().as_raw() => Ok(Found::Stale),
        Err(Errno::CONNREFUSED) => Ok(Found::Other(format!("a socket of another user (uid {})", stat.st_uid))),
        Err(Errno::NOENT) => Ok(Found::Nothing),
        Err(Errno::ACCESS | Errno::PERM) => other("a socket to which this user may not connect"),
        // EAGAIN means a full backlog, EPROTOTYPE a listener of another socket type. In both cases
        // a process listens.
        Ok(()) | Err(_) => Ok(Found::Listening),
    }
}

/// Replaces a stale socket by the socket `new` in one step. Returns `false` if another file has
/// replaced the stale socket. That file stays.
///
/// The function exchanges the two files, and then inspects the file that was at `path`. A process
/// that does not take the [`Lock`] may have replaced the stale socket before the exchange.
pub fn replace_stale(_: &Lock, path: &Path, new: &Path) -> Result<bool> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        // The file system does not support the exchange of two files.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if inspect(path)? != Found::Stale {
                return Ok(false);
            }
            rustix::fs::rename(new, path)?;
            return Ok(true);
        }
        Err(error) => return Err(error),
    }
    if inspect(new)? == Found::Stale {
        unlink(new)?;
        return Ok(true);
    }
    renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE)?;
    Ok(false)
}

/// Removes a stale socket. Returns `false` if the path contains another file. That file stays.
pub fn remove_stale(path: &Path) -> Result<bool> {
    match inspect(path)? {
        Found::Nothing => Ok(true),
        Found::Stale => unlink(path).map(|()| true),
        Found::Listening | Found::Other(_) => Ok(false),
    }
}

/// Removes `path` if it still leads to this file. Another process may have replaced the file.
pub fn remove(path: &Path, id: FileId) -> Result<()> {
    if FileId::of(path) == Ok(id) {
        unlink(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        assert_eq!(Lock::holder(&socket, Purpose::Start), None);
        let _bind = Lock::take(&socket, Purpose::Bind).unwrap();
        let lock = Lock::take(&socket, Purpose::Start).unwrap();
        assert_eq!(Lock::holder(&socket, Purpose::Start), Some(std::process::id()));
        drop(lock);
        assert_eq!(Lock::holder(&socket, Purpose::Start), None);
    }
}
