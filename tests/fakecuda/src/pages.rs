//! Unnamed files, and mappings of them. No other file calls mmap.

use crate::code::{Code, MAP_FAILED};
use crate::settings;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

pub const PAGE: u64 = 4096;

pub fn memfd(name: &str, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.set_len(bytes)?;
    Ok(file)
}

/// The processor's access to pages, from CUDA's access flags (0, 1 or 3).
fn protection(access: u32) -> libc::c_int {
    match access {
        0 => libc::PROT_NONE,
        1 => libc::PROT_READ,
        _ => libc::PROT_READ | libc::PROT_WRITE,
    }
}

/// Reserves addresses without memory. `near` is a hint.
pub fn reserve(bytes: u64, alignment: u64, near: u64) -> Result<u64, Code> {
    let room = bytes.checked_add(alignment).ok_or(MAP_FAILED)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
    let got = unsafe { libc::mmap(near as *mut _, room as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(MAP_FAILED);
    }
    let start = got as u64;
    let aligned = start.next_multiple_of(alignment.max(PAGE));
    unmap(start, aligned - start);
    unmap(aligned + bytes, start + room - aligned - bytes);
    Ok(aligned)
}

/// Maps a part of a file over addresses that this library has reserved or mapped.
pub fn map_at(file: &File, offset: u64, at: u64, bytes: u64, access: u32) -> Result<(), Code> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (place, length) = (at as *mut libc::c_void, bytes as usize);
    // SAFETY: the callers have looked up that these addresses belong to a reservation of this library. Pages mapped
    // there before belong to it, too, and the program has given up their contents.
    let got = unsafe { libc::mmap(place, length, protection(access), flags, file.as_raw_fd(), offset as i64) };
    if got == libc::MAP_FAILED {
        return Err(MAP_FAILED);
    }
    // As on hardware, a forked child cannot access device memory. A helper that continues for a dead process must.
    if settings::get().linger.is_none() {
        // SAFETY: these pages were just mapped. The call affects forked children only.
        unsafe { libc::madvise(place, length, libc::MADV_DONTFORK) };
    }
    Ok(())
}

/// Maps a part of a file wherever there is room.
pub fn map(file: &File, offset: u64, bytes: u64, alignment: u64, access: u32) -> Result<u64, Code> {
    let at = reserve(bytes, alignment, 0)?;
    map_at(file, offset, at, bytes, access).inspect_err(|_| unmap(at, bytes))?;
    Ok(at)
}

/// Removes the memory and keeps the addresses reserved.
pub fn vacate(at: u64, bytes: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: over pages that this library has mapped and whose contents the program has given up.
    unsafe { libc::mmap(at as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
}

pub fn unmap(at: u64, bytes: u64) {
    if bytes != 0 {
        // SAFETY: pages that this library has mapped or reserved and that the program has given up.
        unsafe { libc::munmap(at as *mut _, bytes as usize) };
    }
}

pub fn protect(at: u64, bytes: u64, access: u32) -> Result<(), Code> {
    // SAFETY: pages that this library has mapped. Rust code has no references into them.
    let done = unsafe { libc::mprotect(at as *mut _, bytes as usize, protection(access)) };
    if done == 0 { Ok(()) } else { Err(MAP_FAILED) }
}

/// A structure of atomics in shared memory. Zeros must be a valid value of it.
pub struct Shared<T>(NonNull<T>);

// SAFETY: a T is atomics only, and the mapping belongs to no thread.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Maps a file that is at least as long as a T, and that no process shortens.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Self::map(libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Makes a mapping that this process shares with its forked helpers.
    pub fn anonymous() -> io::Result<Self> {
        Self::map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn map(flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let got = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), access, flags, fd, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(NonNull::new(got.cast()).expect("mmap returns no null")))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with the length of a T until it is dropped, and page-aligned. Atomics may have any value.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and dropped once.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}
