//! Data that a process receives from others: descriptors that a service manager passed to it at its start, and the groups of
//! the process behind a socket.
#![allow(unsafe_code)]

use rustix::io::FdFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes over an inherited descriptor and makes it close-on-exec; `None` if this number is not open.
///
/// A number does not identify an owner, so the caller ensures that
/// 1. the service manager named this number as one that it passed on;
/// 2. the process has neither closed nor taken over an inherited descriptor before: it calls this function once for each number,
///    at its start.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: `number` is not -1, compared above. Nothing closes the descriptor during the borrow, which spans the two calls
    // below: by 2 it has no other owner. If the number is not open, both calls fail with EBADF and touch nothing.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed).ok()?;
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: the descriptor is open, as both calls have shown. It has no other owner: by 1 the service manager passed it to
    // this process, and by 2 no code has taken it over before. OwnedFd closes it with close(), as a descriptor requires.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Number of groups that fit at the first attempt.
const GROUPS: usize = 64;
/// Maximum number of groups of a process: the kernel's `NGROUPS_MAX`.
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups that the process at the other end of a Unix socket had when it connected, as the kernel
/// recorded them. This needs no name service, and the process cannot change the recorded groups.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: `groups` has `bytes` bytes, which the kernel may write; any bytes are a `u32`. The descriptor is borrowed, so
        // open, and `bytes` outlives the call.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The buffer was too short, and the kernel has returned the number of groups. That number does not change, so a
        // second attempt suffices.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_groups_behind_a_socket_are_those_of_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut own: Vec<u32> = line.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
        let mut found = peer_groups(ours.as_fd()).unwrap();
        own.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, own);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_groups(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
