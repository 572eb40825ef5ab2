//! The work of a study of device allocators (NVIDIA's RMM, by its five scenarios): many threads at once, each with its
//! own stream, allocate columns of integers, fill them, cast or add them into new ones, and free them. The contender
//! determines the memory of the columns and the place of the work.
//!
//! The study generated its numbers on the host inside the timed part; here a column is filled in place.

#[cfg(feature = "cuda")]
pub mod device;
pub mod host;

use crate::random::Random;
use std::sync::Barrier;
use std::time::Instant;

/// One thread's memory source and executor: a stream, on a device.
pub trait Lane {
    /// A block of memory, as this lane allocates it.
    type Column;

    fn allocate(&mut self, bytes: u64) -> Self::Column;
    /// Fills a column with this many 32-bit numbers.
    fn fill(&mut self, column: &mut Self::Column, rows: u64);
    /// Converts int32 to float64.
    fn cast(&mut self, from: &mut Self::Column, to: &mut Self::Column, rows: u64);
    /// Adds int32 to int32.
    fn add(&mut self, one: &mut Self::Column, other: &mut Self::Column, to: &mut Self::Column, rows: u64);
    /// Frees a column. A lane with a stream frees the column in the stream's order.
    fn free(&mut self, column: Self::Column);
    /// Waits until all work of this lane is done.
    fn finish(&mut self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Columns from small to very large, cast.
    ExtremeSizes,
    /// Many threads, cast.
    HighConcurrency,
    /// Two columns added, repeatedly.
    RapidChurn,
    /// Ten columns live at a time, freed in another order than allocated.
    Interleaved,
    /// Small columns, very often.
    SmallAndFrequent,
}

impl Scenario {
    /// All scenarios, in the study's order.
    pub const ALL: [Self; 5] =
        [Self::ExtremeSizes, Self::HighConcurrency, Self::RapidChurn, Self::Interleaved, Self::SmallAndFrequent];

    pub fn label(self) -> &'static str {
        match self {
            Self::ExtremeSizes => "1 extreme sizes",
            Self::HighConcurrency => "2 high concurrency",
            Self::RapidChurn => "3 rapid churn",
            Self::Interleaved => "4 interleaved",
            Self::SmallAndFrequent => "5 small and frequent",
        }
    }

    /// Returns the number of threads, and of operations of each.
    pub fn shape(self) -> (usize, usize) {
        match self {
            Self::ExtremeSizes => (8, 50),
            Self::HighConcurrency => (32, 30),
            Self::RapidChurn => (8, 100),
            Self::Interleaved => (16, 5 * LIVE),
            Self::SmallAndFrequent => (8, 200),
        }
    }

    /// Returns the rows of one operation's columns.
    fn rows(self, random: &mut Random, part: u64) -> u64 {
        let between = |random: &mut Random, low: u64, high: u64| low + random.below(high - low);
        let rows = match self {
            Self::ExtremeSizes => between(random, 100_000, 10_000_000),
            Self::HighConcurrency | Self::RapidChurn => 500_000,
            Self::Interleaved => between(random, 200_000, 2_000_000),
            Self::SmallAndFrequent => 50_000,
        };
        (rows / part).max(1)
    }

    /// Returns the rows of its longest column, and the number of columns that one thread has at a time.
    pub fn most(self, part: u64) -> (u64, usize) {
        let (rows, live) = match self {
            Self::ExtremeSizes => (10_000_000, 2),
            Self::HighConcurrency => (500_000, 2),
            Self::RapidChurn => (500_000, 3),
            Self::Interleaved => (2_000_000, LIVE + 1),
            Self::SmallAndFrequent => (50_000, 2),
        };
        (rows / part, live)
    }

    /// Returns the maximum bytes that all threads together have at a time.
    pub fn bytes_max(self, part: u64) -> u64 {
        let ((threads, _), (rows, live)) = (self.shape(), self.most(part));
        threads as u64 * rows * 8 * live as u64
    }
}

/// Number of columns that an interleaved round has at a time.
const LIVE: usize = 10;

/// Runs one thread's part of a scenario. `part`: columns have this part of the study's rows.
pub fn work<L: Lane>(lane: &mut L, scenario: Scenario, part: u64, seed: u64) {
    let mut random = Random::new(seed);
    let (_, operations) = scenario.shape();
    match scenario {
        Scenario::RapidChurn => {
            for _ in 0..operations {
                let rows = scenario.rows(&mut random, part);
                let [mut one, mut other, mut sum] = std::array::from_fn(|_| lane.allocate(rows * 4));
                lane.fill(&mut one, rows);
                lane.fill(&mut other, rows);
                lane.add(&mut one, &mut other, &mut sum, rows);
                for column in [one, other, sum] {
                    lane.free(column);
                }
            }
        }
        Scenario::Interleaved => {
            for _ in 0..operations / LIVE {
                let mut live: Vec<L::Column> = (0..LIVE)
                    .map(|_| {
                        let rows = scenario.rows(&mut random, part);
                        cast(lane, rows)
                    })
                    .collect();
                while !live.is_empty() {
                    let at = random.below(live.len() as u64) as usize;
                    lane.free(live.swap_remove(at));
                }
            }
        }
        _ => {
            for _ in 0..operations {
                let rows = scenario.rows(&mut random, part);
                let column = cast(lane, rows);
                lane.free(column);
            }
        }
    }
    lane.finish();
}

fn cast<L: Lane>(lane: &mut L, rows: u64) -> L::Column {
    let mut from = lane.allocate(rows * 4);
    let mut to = lane.allocate(rows * 8);
    lane.fill(&mut from, rows);
    lane.cast(&mut from, &mut to, rows);
    lane.free(from);
    to
}

/// Runs a scenario, one thread per lane, all starting together; returns the nanoseconds from the first start to the
/// last end.
pub fn run<L: Lane + Send>(scenario: Scenario, part: u64, lanes: &mut [L]) -> f64 {
    let barrier = Barrier::new(lanes.len());
    std::thread::scope(|scope| {
        let handles: Vec<_> = (1..)
            .zip(lanes)
            .map(|(seed, lane)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let begin = Instant::now();
                    work(lane, scenario, part, seed);
                    (begin, Instant::now())
                })
            })
            .collect();
        // On few cores the first thread may have ended before the last began.
        let times = handles.into_iter().map(|handle| handle.join().expect("a thread of the study ends"));
        let span = times.reduce(|(begin, end), (b, e)| (begin.min(b), end.max(e)));
        let (begin, end) = span.expect("there are threads");
        end.duration_since(begin).as_nanos() as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default, Debug)]
    struct Ledger {
        live: u64,
        most: u64,
        allocations: u64,
    }

    struct Counting<'l>(&'l Mutex<Ledger>);

    impl Lane for Counting<'_> {
        type Column = u64;

        fn allocate(&mut self, bytes: u64) -> u64 {
            let mut ledger = self.0.lock().unwrap();
            ledger.live += bytes;
            ledger.most = ledger.most.max(ledger.live);
            ledger.allocations += 1;
            bytes
        }

        fn fill(&mut self, column: &mut u64, rows: u64) {
            assert_eq!(*column, rows * 4);
        }

        fn cast(&mut self, from: &mut u64, to: &mut u64, rows: u64) {
            assert_eq!((*from, *to), (rows * 4, rows * 8));
        }

        fn add(&mut self, one: &mut u64, other: &mut u64, to: &mut u64, rows: u64) {
            assert_eq!([*one, *other, *to], [rows * 4; 3]);
        }

        fn free(&mut self, column: u64) {
            self.0.lock().unwrap().live -= column;
        }

        fn finish(&mut self) {}
    }

    #[test]
    fn every_scenario_gives_back_what_it_takes_and_takes_no_more_than_it_says() {
        for scenario in Scenario::ALL {
            let ledger = Mutex::new(Ledger::default());
            let (threads, operations) = scenario.shape();
            let mut lanes: Vec<_> = (0..threads).map(|_| Counting(&ledger)).collect();
            run(scenario, 100, &mut lanes);
            let ledger = ledger.lock().unwrap();
            let each = if scenario == Scenario::RapidChurn { 3 } else { 2 };
            assert_eq!((ledger.live, ledger.allocations), (0, (threads * operations * each) as u64), "{scenario:?}");
            assert!(ledger.most <= scenario.bytes_max(100), "{scenario:?}: {ledger:?}");
        }
    }
}
