//! Segments of System V shared memory.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// Removes a segment that no process has attached. Returns false if a process has.
///
/// A process that attaches the segment between the two calls keeps its memory: the kernel frees the segment after the
/// last detachment. But no other process finds the segment by its key any more.
///
/// # Errors
/// The error of shmctl(2), such as `EPERM` for another user's segment.
pub fn remove_unattached(id: i32) -> io::Result<bool> {
    let mut status = MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: IPC_STAT writes a whole `shmid_ds` to the address, which has room for one.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, status.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, so it has written the structure.
    if unsafe { status.assume_init() }.shm_nattch > 0 {
        return Ok(false);
    }
    // SAFETY: IPC_RMID ignores the address.
    match unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}
