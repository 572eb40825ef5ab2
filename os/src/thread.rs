//! Threads of this library inside programs that the library does not know.
#![allow(unsafe_code)]

use crate::fork;
use crate::mutex::lock;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::thread::{Builder, JoinHandle};

/// Signals that the kernel sends to a thread for its own faults. A thread must not block them. A blocked fault would
/// end the process without a message from the handler that reports crashes.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Starts a thread that takes no signals from the program. The kernel then delivers such signals to
/// the program's own threads. Those may wait for signals, be interrupted by them, or have handlers
/// that rely on a certain stack. Threads that the new thread starts take no signals either.
///
/// # Errors
/// The errors of [`Builder::spawn`].
pub fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    // A thread inherits its creator's signal mask, so the new thread starts with these signals
    // blocked.
    let _blocked = Blocked::new();
    Builder::new().name(name.to_owned()).spawn(body)
}

/// Returns true if two threads, of any processes, have the same table of descriptors, or if the kernel does not tell.
pub fn shares_descriptors(a: u32, b: u32) -> bool {
    /// `KCMP_FILES` of the kernel's include/uapi/linux/kcmp.h.
    const KCMP_FILES: libc::c_long = 2;
    // SAFETY: kcmp takes numbers and accesses no memory of this process.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, libc::c_long::from(a), libc::c_long::from(b), KCMP_FILES, 0, 0) };
    order <= 0
}

/// Maximum number of threads of [`close_apart`]. If all of them are blocked, further values wait.
const CLOSING_MAX: usize = 16;

/// The values that wait to be dropped, and the threads that drop them.
struct Closing {
    /// The process's number of forks. A forked child has none of the threads.
    generation: u64,
    queue: VecDeque<Box<dyn Send>>,
    threads: usize,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { generation: 0, queue: VecDeque::new(), threads: 0 });

/// Drops a value on another thread. The value contains descriptors that other processes have, or have made. The last
/// close of such a descriptor can block without limit, and takes time for each of its watchers.
///
/// If other processes block all closing threads, or no thread can start, the value stays until a later call.
pub fn close_apart(thing: impl Send + 'static) {
    let mut closing = lock(&CLOSING);
    let generation = fork::generation();
    if closing.generation != generation {
        // The parent drops its own copies of the waiting values. Dropping the child's could block here.
        std::mem::forget(std::mem::take(&mut closing.queue));
        (closing.generation, closing.threads) = (generation, 0);
    }
    closing.queue.push_back(Box::new(thing));
    if closing.threads < CLOSING_MAX {
        // Even if other threads run: they may be blocked.
        closing.threads += 1;
        drop(closing);
        if spawn("tensorlend-close", drop_waiting).is_err() {
            lock(&CLOSING).threads -= 1;
        }
    }
}

/// Drops the waiting values, and ends.
fn drop_waiting() {
    loop {
        let mut closing = lock(&CLOSING);
        let Some(thing) = closing.queue.pop_front() else {
            closing.threads -= 1;
            return;
        };
        drop(closing);
        drop(thing);
    }
}

/// A descriptor that [`close_apart`] closes. In a forked child, the descriptor of the parent stays open: another thread of
/// the parent may have been in [`close_apart`] at the time of the fork.
#[derive(Debug)]
pub struct ClosedApart {
    /// `None` only during the drop.
    fd: Option<OwnedFd>,
    generation: u64,
}

impl From<OwnedFd> for ClosedApart {
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), generation: fork::generation() }
    }
}

impl AsFd for ClosedApart {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is taken by the drop only").as_fd()
    }
}

impl AsRawFd for ClosedApart {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for ClosedApart {
    fn drop(&mut self) {
        let fd = self.fd.take();
        if self.generation == fork::generation() {
            close_apart(fd);
        } else {
            std::mem::forget(fd);
        }
    }
}

/// A guard that blocks signals on this thread until it is dropped.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset writes the whole set. The other calls read that set, and write the
        // former mask into another set. None of the calls fails for signals that exist.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(all.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the call reads a mask that `new` has filled: the former mask of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_blocks_delays_neither_its_caller_nor_other_closes() {
        struct Blocks(std::sync::mpsc::Receiver<()>);
        impl Drop for Blocks {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        let blocked: Vec<_> = (0..4)
            .map(|_| {
                let (release, wait) = std::sync::mpsc::channel();
                close_apart(Blocks(wait));
                release
            })
            .collect();
        // More at once than there are threads.
        let pairs: Vec<_> = (0..4 * CLOSING_MAX)
            .map(|_| {
                let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                drop(ClosedApart::from(OwnedFd::from(theirs)));
                ours
            })
            .collect();
        for ours in pairs {
            assert_eq!(std::io::Read::read(&mut &ours, &mut [0]).unwrap(), 0, "the other end is closed");
        }
        drop(blocked);
    }

    /// Returns which of these signals this thread blocks.
    fn blocked(signals: &[libc::c_int]) -> Vec<bool> {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: the call sets no new mask. It writes the present mask into a set, which the lines below read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr());
            signals.iter().map(|&signal| libc::sigismember(mask.as_ptr(), signal) == 1).collect()
        }
    }

    #[test]
    fn it_takes_no_signals_and_the_starter_still_does() {
        let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGCHLD, libc::SIGUSR1, libc::SIGPROF];
        assert_eq!(blocked(&signals), [false; 6]);
        let (there, below, faults) = spawn("started", move || {
            let below = std::thread::spawn(move || blocked(&signals)).join().unwrap();
            (blocked(&signals), below, blocked(&FAULTS))
        })
        .unwrap()
        .join()
        .unwrap();
        assert_eq!((there, below), (vec![true; 6], vec![true; 6]));
        assert_eq!(faults, [false; 7]);
        assert_eq!(blocked(&signals), [false; 6]);
    }
}
