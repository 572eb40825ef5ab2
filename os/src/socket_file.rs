//! The file of a Unix socket: what lies at its path, and how a stale one is replaced or removed.
//!
//! A path comes from a command line or a configuration, so it may be wrong. Nothing here unlinks, replaces or follows
//! anything but a socket of this user on which nobody accepts connections.

use rustix::fs::{CWD, FileType, RenameFlags, lstat, renameat_with, unlink};
use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::Path;

/// The contents of a path at which a socket shall be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no file.
    Nothing,
    /// A socket of this user, on which nobody accepts connections.
    Stale,
    /// A socket on which a process listens.
    Listening,
    /// Anything else, in words: it must stay.
    Other(String),
}

/// One file: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl FileId {
    /// The file at `path`, without following a symbolic link.
    pub fn of(path: &Path) -> Result<Self> {
        let stat = lstat(path)?;
        Ok(Self(stat.st_dev, stat.st_ino))
    }
}

/// Looks at `path` without changing it. A socket is tried with a connection of its own.
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
        // EAGAIN is a full backlog, EPROTOTYPE a listener of another type: somebody is there.
        Ok(()) | Err(_) => Ok(Found::Listening),
    }
}

/// Puts the socket `new` where a stale one is, in one step; `false`: something else lies there by now, and stays.
///
/// The two are exchanged and the old one is looked at again: another process may have put its own there since.
pub fn replace_stale(path: &Path, new: &Path) -> Result<bool> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        // A file system that cannot exchange files.
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

/// Removes a stale socket; `false`: there is something else, which stays.
pub fn remove_stale(path: &Path) -> Result<bool> {
    match inspect(path)? {
        Found::Nothing => Ok(true),
        Found::Stale => unlink(path).map(|()| true),
        Found::Listening | Found::Other(_) => Ok(false),
    }
}

/// Removes `path` if it is still this file: another process may have put its own there.
pub fn remove(path: &Path, id: FileId) -> Result<()> {
    if FileId::of(path) == Ok(id) {
        unlink(path)?;
    }
    Ok(())
}
