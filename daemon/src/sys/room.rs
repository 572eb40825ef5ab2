//! The check of free memory before the daemon allocates memory.
//!
//! If a process uses more memory than its cgroup's limit, the kernel's OOM killer kills a process.
//! The most likely one is the daemon, because lent memory is charged to it. So the daemon checks the
//! free memory before it allocates.

use std::io;
use std::sync::{Mutex, PoisonError};
use tensorlend_os::cgroup;

/// Bytes of free memory that the daemon never uses. They remain for other processes and for the
/// kernel's own overhead.
const MARGIN: u64 = 8 << 20;

/// Bytes of free memory that only administrators' sessions may use, for their sheets.
const RESERVE: u64 = 16 << 20;

/// The kind of users for whom the daemon allocates memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Ordinary users. They may not use [`RESERVE`].
    Users,
    /// Administrators. They may use [`RESERVE`].
    Administrators,
    /// Clients that allocate the pages themselves. The memory counts for the machine and not for the
    /// daemon's cgroup.
    Clients,
}

/// Returns the smallest memory limit of a process's control groups, in bytes. Returns `None` if
/// there is no limit, or if the limit cannot be read.
///
/// ```
/// let own = tensorlend_daemon::memory_limit(std::process::id());
/// assert!(own.is_none_or(|bytes| bytes > 0));
/// ```
pub fn memory_limit(pid: u32) -> Option<u64> {
    cgroup::limit_of_process(pid)
}

/// Checks that this many more bytes fit into memory. The caller then allocates them.
///
/// The function does not read the kernel's files at each call. After one reading it grants up to an
/// eighth of the free memory without a further reading.
///
/// # Errors
/// `OutOfMemory` if the bytes do not fit.
pub fn make_room(bytes: u64, claim: Claim) -> io::Result<()> {
    if claim == Claim::Clients {
        let room = cgroup::machine_room();
        return check(room, bytes, RESERVE, "the machine has");
    }
    static KNOWN: Mutex<u64> = Mutex::new(0);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if *known < bytes {
        let room = cgroup::room();
        let reserve = if claim == Claim::Users { RESERVE } else { 0 };
        check(room, bytes, reserve, "the machine, or the daemon's cgroup, has")?;
        if claim == Claim::Administrators {
            return Ok(());
        }
        *known = (room / 8).max(bytes);
    }
    *known -= bytes;
    Ok(())
}

fn check(room: u64, bytes: u64, reserve: u64, whose: &str) -> io::Result<()> {
    if room >= bytes.saturating_add(MARGIN + reserve) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("{whose} {room} bytes left")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_any_machine_has_is_refused() {
        make_room(4096, Claim::Users).unwrap();
        assert!(make_room(1 << 60, Claim::Administrators).unwrap_err().to_string().contains("bytes left"));
        make_room(4096, Claim::Administrators).unwrap();
    }
}
