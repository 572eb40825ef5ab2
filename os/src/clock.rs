//! Clocks that all processes of a machine share, and times as the words and messages of tensorlend have them: a `u64` of
//! nanoseconds or milliseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// Returns the time since the machine started, suspended time included.
pub fn boottime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Returns the time since the machine started, without suspended time.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Returns a duration in nanoseconds. `u64::MAX`, which is 584 years, stands for a longer one.
///
/// ```
/// use std::time::Duration;
/// use tensorlend_os::clock::duration_ns;
///
/// assert_eq!(duration_ns(Duration::new(2, 5)), 2_000_000_005);
/// assert_eq!((duration_ns(Duration::from_nanos(u64::MAX)), duration_ns(Duration::MAX)), (u64::MAX, u64::MAX));
/// ```
pub const fn duration_ns(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos() as u64)
}

/// Returns a duration in milliseconds. `u64::MAX` stands for a longer one.
pub const fn duration_ms(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1000).saturating_add(duration.subsec_millis() as u64)
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
