//! A token that the children of a fork hold. The kernel reports when the last of these children has
//! ended or has executed another program.
//!
//! The token is a page of a memfd, which the parent maps before the fork and unmaps afterwards. The
//! children, and their own children, keep the mapping, even if they close all descriptors. The
//! kernel refuses the seal [`SealFlags::WRITE`] while a writable mapping exists (fcntl(2),
//! `F_SEAL_WRITE`).
#![allow(unsafe_code)]

use crate::memfd;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

const BYTES: usize = 4096;

/// A token for one fork.
#[derive(Debug)]
pub struct Token {
    /// `None` in the children.
    fd: Option<OwnedFd>,
    /// The address of the page, in the children and, until [`Token::keep_to_children`], in the
    /// parent.
    mapped: Option<NonNull<libc::c_void>>,
}

// SAFETY: no code reads or writes the mapped page. `keep_to_children`, which unmaps the page, has
// exclusive access.
unsafe impl Send for Token {}

impl Token {
    /// Creates a token that every child forked from now on holds.
    ///
    /// # Errors
    /// The kernel's errors: no descriptor or no memory is left.
    pub fn new() -> io::Result<Self> {
        let fd = memfd::create("tensorlend-fork", BYTES as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses free addresses, and no reference points into the page.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd: Some(fd), mapped: NonNull::new(start) })
    }

    /// Gives up the parent's own hold, after the fork.
    pub fn keep_to_children(&mut self) {
        if let Some(start) = self.mapped.take() {
            // SAFETY: `new` mapped these bytes, no reference points into them, and `take` ensures
            // that the unmapping happens once.
            let unmapped = unsafe { libc::munmap(start.as_ptr(), BYTES) };
            debug_assert_eq!(unmapped, 0, "the page is mapped until here");
        }
    }

    /// Closes the descriptor, in a child that keeps the token. The function is safe in the child of
    /// a process with several threads.
    pub fn close(&mut self) {
        self.fd = None;
    }

    /// Returns true if no process holds the token any more. Once the result is true, it stays true.
    /// The result is always false after [`Token::close`].
    pub fn is_free(&self) -> bool {
        self.fd.as_ref().is_some_and(|fd| rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_token_is_held_until_the_last_descendant_ends() {
        let mut token = Token::new().unwrap();
        assert!(!token.is_free());
        let (mut reader, writer) = io::pipe().unwrap();
        // SAFETY: the child makes system calls only, until `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the grandchild, too, only makes system calls, and `pid` is a local variable.
            unsafe {
                if libc::fork() == 0 {
                    let pid = libc::getpid();
                    libc::write(writer.as_raw_fd(), (&raw const pid).cast(), size_of_val(&pid));
                    libc::close_range(3, libc::c_uint::MAX, 0);
                    loop {
                        libc::pause();
                    }
                }
                libc::_exit(0);
            }
        }
        token.keep_to_children();
        drop(writer);
        let mut status = 0;
        // SAFETY: waits for the child created above; `status` is a local variable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        let mut pid = Vec::new();
        // The pipe ends when the grandchild has closed all its descriptors.
        reader.read_to_end(&mut pid).unwrap();
        assert!(!token.is_free(), "the grandchild has the page mapped");
        // SAFETY: ends the grandchild, which reported its number.
        unsafe { libc::kill(libc::pid_t::from_ne_bytes(pid.try_into().unwrap()), libc::SIGKILL) };
        while !token.is_free() {
            std::thread::yield_now();
        }
        assert!(token.is_free(), "it stays free");
    }
}
