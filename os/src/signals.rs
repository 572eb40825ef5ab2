//! Signals that a process passes on to a program that it runs.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// `SI_KERNEL` of sigaction(2): the kernel itself has sent the signal, as for the keys of a terminal. The crate libc does
/// not define it on every target.
const SI_KERNEL: libc::c_int = 0x80;

/// The signals that have arrived and that no call of [`take`] has returned.
static ARRIVED: [AtomicBool; 32] = [const { AtomicBool::new(false) }; 32];

/// Records these signals from now on. A program that this process starts does not inherit the handler.
///
/// SIGINT and SIGQUIT from the keys of a terminal are not recorded: the terminal sends them to the program, too.
///
/// # Errors
/// The error of sigaction(2), such as `EINVAL` for a signal that has no handler.
///
/// # Panics
/// If a number is not a standard signal.
pub fn record(signals: &[i32]) -> io::Result<()> {
    for &signal in signals {
        assert!((1..32).contains(&signal), "{signal} is not a standard signal");
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a `sigaction` of zero bytes is valid, and blocks no signal. The handler has the signature that
        // SA_SIGINFO requires, and is never unloaded: this is a program of its own. It only stores to an atomic.
        let done = unsafe {
            (*action.as_mut_ptr()).sa_sigaction = note as *const () as usize;
            (*action.as_mut_ptr()).sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns true if the signal has arrived since the last call.
pub fn take(signal: i32) -> bool {
    usize::try_from(signal).ok().and_then(|at| ARRIVED.get(at)).is_some_and(|flag| flag.swap(false, Ordering::Relaxed))
}

extern "C" fn note(signal: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let is_of_kernel = unsafe { (*info).si_code } == SI_KERNEL;
    if is_of_kernel && matches!(signal, libc::SIGINT | libc::SIGQUIT) {
        return;
    }
    if let Some(flag) = usize::try_from(signal).ok().and_then(|at| ARRIVED.get(at)) {
        flag.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[test]
    fn a_signal_is_taken_once() {
        record(&[libc::SIGUSR2]).unwrap();
        assert!(!take(libc::SIGUSR2));
        kill_process(getpid(), Signal::USR2).unwrap();
        let since = std::time::Instant::now();
        while !take(libc::SIGUSR2) {
            assert!(since.elapsed().as_secs() < 60, "the signal does not arrive");
        }
        assert!(!take(libc::SIGUSR2));
    }
}
