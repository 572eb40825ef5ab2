//! The system calls that tensorlend's daemon and its clients share: sealed memfds and queries about
//! them, mappings, futexes, barriers, packets with descriptors, and the check of the kernel.
//!
//! The functions are thin: most of them make one system call and return its error.

#![warn(missing_docs)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap, clippy::cast_lossless)
)]

pub mod barrier;
pub mod cgroup;
pub mod clock;
#[cfg(feature = "crash-points")]
pub mod crash;
pub mod fault;
pub mod file_lease;
pub mod fork;
pub mod futex;
pub mod inbox;
pub mod inherited;
pub mod kernel;
pub mod log_queue;
pub mod map;
pub mod memfd;
pub mod mutex;
pub mod numa;
pub mod packet;
pub mod program;
pub mod signals;
#[doc(hidden)]
pub mod skip;
pub mod socket_file;
pub mod stderr;
pub mod sysv;
pub mod thread;
pub mod token;
pub mod toll;
pub mod user_folder;
pub mod writeback;
