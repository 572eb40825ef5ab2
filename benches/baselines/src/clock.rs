//! The clock that producer and consumer share.

/// Returns the nanoseconds of CLOCK_MONOTONIC, which is the same in every process of the machine.
/// Two processes cannot compare values of [`std::time::Instant`]. Reading the clock takes about 25
/// ns and no system call.
pub fn now_ns() -> u64 {
    tensorlend_os::clock::monotonic_ns()
}

#[cfg(test)]
mod tests {
    use super::now_ns;

    #[test]
    fn never_goes_back() {
        let mut last = now_ns();
        for _ in 0..1000 {
            let now = now_ns();
            assert!(now >= last);
            last = now;
        }
    }
}
