//! Descriptors that a service manager handed to this process at its start.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes an inherited descriptor over, close-on-exec from now on; `None` if there is none with this number. To be called
/// once for each number, before the process opens descriptors of its own.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: borrowed for the two calls below only; a number that is no descriptor makes them fail.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed).ok()?;
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and the service manager made it for this process, which takes it here once: nobody else
    // closes it.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
