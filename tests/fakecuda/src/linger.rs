//! A device that continues after its process has died (`FAKECUDA_LINGER_MS`).
//!
//! For each piece of work in a stream, the driver clones a helper process. The helper has the same shared mappings and
//! a copy of all other memory. It closes all descriptors, so that waits for the end of the original process still work,
//! and exits when the piece is done. If the process dies first, the helpers do their pieces in the streams' order,
//! which a word in shared memory per stream maintains, until the time has passed.

use crate::pages::Shared;
use crate::settings;
use crate::stream::{Piece, Stream};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of a stream, for the helpers.
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
        // SAFETY: works like fork, but with signal 0 at the child's end, so that the program's own waits for its
        // children do not find it. Without CLONE_VM the child runs on a copy of the memory, at the same stack
        // addresses. The child must not allocate or lock, because another thread may have held any lock. The following
        // code makes system calls, accesses atomics in shared memory and runs the piece, which for work of the card is
        // loops over memory.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) } as libc::pid_t;
        if pid != 0 {
            return (pid > 0).then_some(pid);
        }
        // SAFETY: system calls in a process with one thread. It ends with _exit, so it never returns to the caller's
        // frames.
        unsafe {
            libc::setsid();
            libc::close_range(0, u32::MAX, 0);
            while libc::getppid() == parent {
                if self.is(number) {
                    libc::_exit(0);
                }
                libc::usleep(500);
            }
            // The process may have done the piece and died since this helper's last check.
            if self.is(number) {
                libc::_exit(0);
            }
            // A helper always ends, even if it waits for another process or for a lock that was held at the clone.
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

/// Reaps the helper of a finished piece.
pub fn dismiss(helper: Option<libc::pid_t>) {
    if let Some(pid) = helper {
        // SAFETY: a child of this process that only this library knows, and that exits without a signal.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WCLONE) };
    }
}
