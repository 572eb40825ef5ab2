//! Clocks that all processes of a machine share, in nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time since the machine started, suspended time included.
pub fn boottime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Returns the time since the machine started, without suspended time.
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
