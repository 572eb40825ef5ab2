//! File leases (fcntl(2), `F_SETLEASE`): the kernel's own answer whether another process has a file open or mapped.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `F_SETSIG` of fcntl(2). The crate libc does not define it on every target.
const F_SETSIG: libc::c_int = 10;

/// Sets a lease of this kind, or `F_UNLCK`. Returns false if another descriptor or mapping of the file forbids it.
///
/// If a process opens the file during the lease, the kernel signals this process. The default signal SIGIO would end this
/// process; SIGURG is ignored unless it has a handler.
pub(crate) fn set(fd: &OwnedFd, kind: libc::c_int) -> rustix::io::Result<bool> {
    let fd = fd.as_raw_fd();
    // SAFETY: fcntl with F_SETSIG and F_SETLEASE takes an int and accesses no memory of this process. Neither rustix nor
    // nix has these calls.
    let is_set =
        unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0 && libc::fcntl(fd, libc::F_SETLEASE, kind) == 0 };
    if is_set {
        return Ok(true);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::AGAIN | Errno::BUSY) | None => Ok(false),
        Some(error) => Err(error),
    }
}

/// A write lease on a file, until it is dropped. Only the file's owner, and a process with `CAP_LEASE`, can take one.
#[derive(Debug)]
pub struct WriteLease(OwnedFd);

impl WriteLease {
    /// Takes the lease. Returns `None` if the file has another descriptor or a mapping, in any process and in any
    /// namespace. The kernel does not count descriptors with `O_PATH`.
    ///
    /// # Errors
    /// The error of fcntl(2), such as `EACCES` for another user's file.
    pub fn take(fd: OwnedFd) -> rustix::io::Result<Option<Self>> {
        Ok(set(&fd, libc::F_WRLCK)?.then_some(Self(fd)))
    }

    /// Returns true if no process has tried to open or to truncate the file during the lease. Such a process waits
    /// until the lease is dropped, or fails if it does not block.
    pub fn is_whole(&self) -> bool {
        // SAFETY: fcntl with F_GETLEASE takes no further argument and accesses no memory of this process.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_GETLEASE) == libc::F_WRLCK }
    }
}

impl AsFd for WriteLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{Access, create, reopen, reopen_at_once};

    #[test]
    fn a_lease_is_whole_until_a_process_opens_the_file() {
        let fd = create("test", 4096).unwrap();
        let open = || reopen(fd.as_fd(), Access::Read).unwrap();
        let other = open();
        assert!(WriteLease::take(open()).unwrap().is_none());
        drop(other);
        let lease = WriteLease::take(open()).unwrap().unwrap();
        assert!(lease.is_whole());
        assert_eq!(reopen_at_once(fd.as_fd(), Access::Read).unwrap_err(), Errno::AGAIN);
        assert!(!lease.is_whole());
    }
}
