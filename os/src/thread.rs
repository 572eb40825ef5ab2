//! Threads of this library inside programs that the library does not know.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
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
