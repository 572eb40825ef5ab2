//! What a process receives from others: descriptors, rights and limits from the process that started it, and the groups of
//! the process behind a socket.
#![allow(unsafe_code)]

use rustix::fs::Mode;
use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CpuSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Takes ownership of an inherited descriptor and makes it close-on-exec. Returns `None` if this
/// number is not open.
///
/// A number does not identify an owner, so the caller ensures two conditions:
/// 1. The service manager named this number as one that it passed on.
/// 2. The process has neither closed this descriptor nor taken it over before. The process calls
///    this function once for each number, at its start.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    if number < 3 {
        return None;
    }
    // SAFETY: `number` is not -1, because it is at least 3. The descriptor has no other owner,
    // because no code has taken it over before (condition 2). So nothing closes the descriptor
    // during the borrow, which spans the two calls below. If the number is not open, both calls
    // fail with EBADF and have no effect.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = rustix::io::fcntl_getfd(borrowed).ok()?;
    rustix::io::fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: the descriptor is open, as both calls have shown. The service manager passed it to
    // this process (condition 1), and no code has taken it over before (condition 2). So the
    // descriptor has no other owner. OwnedFd closes it with close(), as a descriptor requires.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes all inherited descriptors, except the standard streams. A process calls this function at its start, before it
/// opens a descriptor of its own.
///
/// # Errors
/// The errors of `close_range(2)`: kernels before Linux 5.9 do not have it.
pub fn close_all() -> io::Result<()> {
    // SAFETY: no value of this process owns a descriptor yet, so no value loses its descriptor.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns true if the kernel gave this process more rights than its caller has: by a setuid or setgid bit, or by
/// capabilities of its file.
pub fn has_raised_rights() -> bool {
    // SAFETY: getauxval has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Gives this process the defaults that a service has, in place of those of the process that started it: a session of its own,
/// all processors, ordinary scheduling, files for this user only, and each limit as high as it may be. Each step can fail only
/// if it is unnecessary or not permitted.
pub fn reset() {
    let _ = rustix::process::setsid();
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // The kernel intersects the set with the cgroup's.
    let _ = rustix::thread::sched_setaffinity(None, &all);
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call, which reads them.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) };
    rustix::process::umask(Mode::from_raw_mode(0o077));
    for limit in [Resource::As, Resource::Cpu, Resource::Data, Resource::Fsize, Resource::Memlock, Resource::Nofile] {
        let maximum = getrlimit(limit).maximum;
        let _ = setrlimit(limit, Rlimit { current: maximum, maximum });
    }
}

/// Number of groups that fit at the first attempt.
const GROUPS: usize = 64;
/// Maximum number of groups of a process: the kernel's `NGROUPS_MAX`.
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups of the process at the other end of a Unix socket. The kernel
/// recorded the groups when that process connected. The query needs no name service, and the
/// process cannot change the recorded groups.
///
/// # Errors
/// The errors of getsockopt(2).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).map_err(io::Error::other)?;
        // SAFETY: `groups` has `bytes` bytes, which the kernel may write, and any bytes are a valid
        // `u32`. The descriptor is borrowed, so it is open. `bytes` outlives the call.
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
