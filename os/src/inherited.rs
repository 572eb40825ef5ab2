//! Descriptors that a process inherits from its service manager.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes an inherited descriptor over and makes it close-on-exec; `None` if there is none with this number.
///
/// A number does not identify an owner, so the caller ensures that
/// 1. the service manager named this number as one that it passed on;
/// 2. the process has closed and taken over nothing of what it inherited: it calls this once for each number, at the start.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: not -1, compared above. Nothing closes it during the borrow, which spans the two calls below: by 2 it has no other
    // owner. If it is not open after all, they fail with EBADF and touch nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed).ok()?;
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: open, as both calls have shown; without another owner: by 1 it was made for this process, by 2 this is the first
    // take. OwnedFd closes it with close(), as a descriptor requires.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
