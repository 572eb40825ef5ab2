//! Descriptors that a service manager handed to this process at its start.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes an inherited descriptor over, close-on-exec from now on; `None` if there is none with this number.
///
/// The caller sees to it, since a number says nothing about its owner, that
/// 1. the service manager named this number as one that it passed on;
/// 2. the process has closed nothing and taken nothing of what was passed on: called once for each number, at the start.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: not -1, compared above. Nobody closes it while it is borrowed, which is for the two calls below: by 2 it has
    // no other owner. Should it not be open after all, they fail with EBADF and touch nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed).ok()?;
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: open, as both calls have shown; owned by nobody else: by 1 it was made for this process, by 2 it is taken
    // here for the first time. A descriptor is closed with close(), which is what OwnedFd does.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
