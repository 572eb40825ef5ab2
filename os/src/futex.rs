//! Sleeping on bells and waking their sleepers.

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;
use tensorlend_layout::word::Bell;

/// Sleeps until the bell rings, at most `timeout`. Returns at once if the bell's value is no longer
/// `sample`. The function may return early without a reason, and a hostile member may suppress a
/// ring. So the caller must poll again after each return, and always pass a timeout.
pub fn wait(bell: &Bell, sample: u32, timeout: Duration) {
    // Without the flag PRIVATE, because another process rings the bell. After an error the caller
    // polls again, as after a wake-up.
    let _ = futex::wait(bell.futex(), Flags::empty(), sample, Some(&timespec(timeout)));
}

/// Sleeps on several bells (at most 128) until one of them rings, with the limits of [`wait`].
pub fn wait_any(bells: &[(&Bell, u32)], timeout: Duration) {
    let waiters: Vec<Wait> = bells
        .iter()
        .map(|(bell, sample)| {
            let mut wait = Wait::new();
            wait.val = u64::from(*sample);
            wait.uaddr = WaitPtr::new(std::ptr::from_ref(bell.futex()).cast_mut().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        })
        .collect();
    let now = clock_gettime(ClockId::Monotonic);
    let until = now.checked_add(timespec(timeout)).unwrap_or(now);
    match futex::waitv(&waiters, WaitvFlags::empty(), Some(&until), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => {}
        // The kernel or a sandbox does not allow futex_waitv. A short sleep on the first bell lets
        // the caller make progress.
        Err(_) => {
            if let Some((bell, sample)) = bells.first() {
                wait(bell, *sample, timeout.min(Duration::from_millis(1)));
            }
        }
    }
}

/// Wakes all sleepers of the bell.
pub fn wake_all(bell: &Bell) {
    let _ = futex::wake(bell.futex(), Flags::empty(), i32::MAX as u32);
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
