//! The statistics that a worker publishes about itself.

use std::time::Duration;
use tensorlend_model::{ModelStatistics, Quantiles};

/// Number of latest measurements for the quantiles.
const KEPT: usize = 1024;
/// Maximum number of requests for which runs are counted separately. Runs with more requests count
/// as runs with this number.
const BATCHES: usize = 64;

/// The counters of a worker's requests and runs, and the measurements of their times.
#[derive(Debug, Default)]
pub struct Recorder {
    statistics: ModelStatistics,
    queue: Recent,
    run: Recent,
    changed: bool,
}

impl Recorder {
    /// Returns empty statistics of a worker with this engine.
    pub fn new(engine: String) -> Self {
        let statistics = ModelStatistics { v: 1, pid: std::process::id(), engine, ..ModelStatistics::default() };
        // `changed` is true so that the worker publishes the statistics as soon as it serves.
        Self { statistics, changed: true, ..Self::default() }
    }

    /// Counts a run. Records its duration, and its numbers of requests and rows.
    pub fn ran(&mut self, requests: usize, rows: u64, took: Duration) {
        self.changed = true;
        self.statistics.runs += 1;
        self.statistics.rows += rows;
        self.statistics.run_us_sum += took.as_secs_f64() * 1e6;
        self.run.add(took);
        let at = requests.clamp(1, BATCHES) - 1;
        if self.statistics.batches.len() <= at {
            self.statistics.batches.resize(at + 1, 0);
        }
        self.statistics.batches[at] += 1;
    }

    /// Records the time for which a request waited for its run.
    pub fn waited(&mut self, time: Duration) {
        self.queue.add(time);
    }

    /// Counts a response (`well` is true) or an error.
    pub fn said(&mut self, well: bool) {
        self.changed = true;
        if well { self.statistics.requests += 1 } else { self.statistics.failures += 1 }
    }

    /// Returns the statistics to publish. Returns `None` if they have not changed.
    pub fn news(&mut self) -> Option<ModelStatistics> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        self.statistics.queue_us = self.queue.quantiles();
        self.statistics.run_us = self.run.quantiles();
        Some(self.statistics.clone())
    }
}

/// The latest [`KEPT`] measurements of a duration.
#[derive(Debug, Default)]
struct Recent {
    micros: Vec<f64>,
    next: usize,
}

impl Recent {
    fn add(&mut self, time: Duration) {
        let micros = time.as_secs_f64() * 1e6;
        if self.micros.len() < KEPT {
            self.micros.push(micros);
        } else {
            self.micros[self.next] = micros;
            self.next = (self.next + 1) % KEPT;
        }
    }

    fn quantiles(&self) -> Quantiles {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let last = sorted.len().checked_sub(1)?;
            sorted.get((part * last as f64).round() as usize).copied()
        };
        Quantiles { p50: at(0.5).unwrap_or(0.0), p99: at(0.99).unwrap_or(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_last_measurements() {
        let mut recent = Recent::default();
        assert_eq!(recent.quantiles(), Quantiles::default());
        for micros in 0..KEPT as u64 {
            recent.add(Duration::from_micros(1_000_000 + micros));
        }
        for micros in 1..=KEPT as u64 {
            recent.add(Duration::from_micros(micros));
        }
        let Quantiles { p50, p99 } = recent.quantiles();
        assert!((p50 - 512.0).abs() <= 1.5 && (p99 - 1013.0).abs() <= 2.5, "{p50} {p99}");
    }

    #[test]
    fn runs_are_counted_by_their_requests() {
        let mut recorder = Recorder::new("e".into());
        for requests in [1, 1, 3, 1000] {
            recorder.ran(requests, 2, Duration::from_micros(5));
        }
        let news = recorder.news().unwrap();
        assert_eq!((news.runs, news.batches[0], news.batches[2], news.batches[BATCHES - 1]), (4, 2, 1, 1));
        assert_eq!(news.rows, 8);
        assert!((news.run_us_sum - 20.0).abs() < 1e-6);
        assert!(recorder.news().is_none());
    }
}
