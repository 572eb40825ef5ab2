//! A device that continues after its process has died (`FAKECUDA_LINGER_MS`).
//!
//! For each piece of work that goes into a stream a helper process is cloned. It has the same shared mappings and a copy
//! of everything else, closes all descriptors (so that whoever waits for the death of the process sees it), and leaves when
//! the piece is done. If the process dies first, the helpers do their pieces in the streams' order, which they keep
//! through a word in shared memory per stream, until the time is over.

use crate::pages::Shared;
use crate::settings;
use crate::stream::{Piece, Stream};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far a stream is, for the helpers.
pub struct Mirror(Option<Shared<AtomicU64>>);

impl Mirror {
    pub fn new() -> Self {
        Self(settings::get().linger.and_then(|_| Shared::anonymous().ok()))
    }

    pub fn done(&self, number: u64) {
        if let Some(word) = &self.0 {
            word.store(number, Ordering::Release);
        }
    }

    fn is(&self, number: u64) -> bool {
        self.0.as_ref().is_none_or(|word| word.load(Ordering::Acquire) >= number)
    }

    /// Clones the helper for a piece.
    pub fn prepare(&self, number: u64, after: &[(Arc<Stream>, u64)], piece: &Piece) -> Option<libc::pid_t> {
        let linger = settings::get().linger?;
        let gates: Vec<CString> =
            settings::gates().iter().filter_map(|gate| CString::new(gate.as_os_str().as_bytes()).ok()).collect();
        let parent = std::process::id() as libc::pid_t;
        // SAFETY: a fork in all but the signal: without CLONE_VM the child runs on a copy, on the same stack addresses.
        // Signal 0 at its end, so that the program's own waits for its children do not find it. The child must not
        // allocate or lock, since another thread may have held any lock: what follows are system calls, atomics in
        // shared memory and the piece, which for work of the card is loops over memory.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
        if pid != 0 {
            return (pid > 0).then_some(pid);
        }
        // SAFETY: system calls of a process of one thread, which leaves by _exit: it returns to nobody's frames.
        unsafe {
            libc::setsid();
            libc::close_range(0, u32::MAX, 0);
            while libc::getppid() == parent {
                if self.is(number) {
                    libc::_exit(0);
                }
                libc::usleep(500);
            }
            // The process may have done the piece and died since this helper last looked.
            if self.is(number) {
                libc::_exit(0);
            }
            // Nothing keeps a helper for ever: not a wait for another process, nor a lock that was held when it was cloned.
            let mut alarm = std::mem::zeroed();
            libc::sigemptyset(&raw mut alarm);
            libc::sigaddset(&raw mut alarm, libc::SIGALRM);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, std::ptr::null_mut());
            libc::alarm(linger.as_secs() as u32 + 1);
            let mut left_ms = linger.as_millis() as u64;
            while !(self.is(number - 1)
                && after.iter().all(|(stream, number)| stream.mirror().is(*number))
                && gates.iter().all(|gate| libc::access(gate.as_ptr(), libc::F_OK) != 0))
            {
                if left_ms == 0 {
                    libc::_exit(0);
                }
                left_ms -= 1;
                libc::usleep(1000);
            }
            (piece.run)();
            self.done(number);
            libc::_exit(0);
        }
    }
}

/// Reaps the helper of a piece that is done.
pub fn dismiss(helper: Option<libc::pid_t>) {
    if let Some(pid) = helper {
        // SAFETY: a child of this process that only this library knows, and that leaves by itself.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WCLONE) };
    }
}
