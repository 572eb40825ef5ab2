//! Segments of System V shared memory.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// The owner and the past of a segment. No two segments of one id have the same, unless a program creates, uses and removes
/// them in one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// The owner.
    pub uid: u32,
    /// Bytes of the segment.
    pub size_bytes: u64,
    /// The process that created it.
    pub creator: i32,
    /// The process that attached or detached it last.
    pub last_user: i32,
    /// Seconds since 1970 of the last attachment, detachment and change.
    pub times_s: [i64; 3],
}

/// The result of [`remove_unattached`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The segment is removed.
    Removed,
    /// A process has attached it.
    Attached,
    /// Its history is another one: a process has used it, or another segment has its id now.
    Changed,
}

/// Removes a segment that no process has attached, if it still has this history.
///
/// A process that attaches the segment between the two calls keeps its memory: the kernel frees the segment after the
/// last detachment. But no other process finds the segment by its key any more. If another process removes the segment
/// between the two calls, a new segment does not get its id: the kernel counts ids up.
///
/// # Errors
/// The error of shmctl(2), such as `EPERM` for another user's segment.
pub fn remove_unattached(id: i32, history: &History) -> io::Result<Removal> {
    let mut status = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: IPC_STAT writes a whole `shmid_ds` to the address, which has room for one.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written the structure.
    let status = unsafe { status.assume_init() };
    if status.shm_nattch > 0 {
        return Ok(Removal::Attached);
    }
    let now = History {
        uid: status.shm_perm.uid,
        size_bytes: status.shm_segsz as u64,
        creator: status.shm_cpid,
        last_user: status.shm_lpid,
        times_s: [status.shm_atime, status.shm_dtime, status.shm_ctime],
    };
    if now != *history {
        return Ok(Removal::Changed);
    }
    // SAFETY: IPC_RMID ignores the address.
    match unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } {
        0 => Ok(Removal::Removed),
        _ => Err(io::Error::last_os_error()),
    }
}
