//! Clocks, and statistics of samples.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
pub use tensorlend_os::clock::monotonic_ns as now_ns;

/// Returns the nanoseconds of CPU time that this process has used, all threads together.
pub fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the nanoseconds of CPU time that this thread has used.
pub fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the nanoseconds for one call of `work`, over `repeats` calls in a row.
pub fn timed(repeats: u32, mut work: impl FnMut()) -> f64 {
    let start = now_ns();
    for _ in 0..repeats {
        work();
    }
    (now_ns() - start) as f64 / f64::from(repeats)
}

/// Returns CPU nanoseconds like [`timed`]. CPU time excludes other processes.
pub fn cpu_timed(repeats: u32, mut work: impl FnMut()) -> f64 {
    let start = cpu_ns();
    for _ in 0..repeats {
        work();
    }
    (cpu_ns() - start) as f64 / f64::from(repeats)
}

/// Returns how often to repeat `work` so that one sample lasts `sample_ns`, and reading the clock does not matter.
pub fn repeats(sample_ns: f64, mut work: impl FnMut()) -> u32 {
    work();
    let once = timed(1, &mut work);
    if once >= sample_ns {
        return 1;
    }
    let few = timed(8, &mut work).max(1.0);
    (sample_ns / few).ceil().clamp(1.0, 1e6) as u32
}

/// Samples of one contender, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, ns: f64) {
        self.0.push(ns);
    }

    /// Adds several samples.
    pub fn extend(&mut self, ns: impl IntoIterator<Item = f64>) {
        self.0.extend(ns);
    }

    /// Returns all samples in the order in which they were added.
    pub fn all(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Returns a summary of the samples. Panics if there are none.
    pub fn summary(&self) -> Summary {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
        Summary { p50: at(0.5), min: at(0.0), max: at(1.0), p99: at(0.99), samples: sorted.len() }
    }
}

/// Median and spread of samples.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The median.
    pub p50: f64,
    pub min: f64,
    pub max: f64,
    /// The 99th percentile.
    pub p99: f64,
    pub samples: usize,
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn the_median_lies_in_the_middle() {
        let mut samples = Samples::default();
        samples.extend([5.0, 1.0, 3.0]);
        samples.push(2.0);
        samples.push(900.0);
        let summary = samples.summary();
        assert_eq!(
            [summary.min, summary.p50, summary.max, summary.p99].map(f64::to_bits),
            [1.0, 3.0, 900.0, 900.0].map(f64::to_bits)
        );
        assert_eq!(summary.samples, 5);
    }
}
