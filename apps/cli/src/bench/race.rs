//! Interleaved measurement, which runs one batch of each contender of a group in turn.

use std::fmt;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tensorlend_baselines::{BaselineError, Meter, Stat};

#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Target time of one contender's batch.
    batch: Duration,
    /// Number of batches per contender.
    rounds: usize,
}

impl Pace {
    pub const QUICK: Self = Self { batch: Duration::from_millis(4), rounds: 9 };
    pub const FULL: Self = Self { batch: Duration::from_millis(20), rounds: 31 };
}

/// A contender to measure, and its label.
pub struct Entry {
    pub label: Label,
    /// Maximum number of operations in a batch. The limit bounds the memory of prepared operations.
    pub operations_max: u64,
    pub make: Box<dyn FnOnce() -> Result<Box<dyn Meter>, BaselineError>>,
}

/// The name and the properties that identify a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub name: String,
    pub peer: &'static str,
    pub size_bytes: Option<u64>,
    /// The name of the row with which this row is compared.
    pub floor: Option<&'static str>,
}

/// Contenders that are compared with each other and therefore interleaved.
pub struct Group {
    pub doing: &'static str,
    pub entries: Vec<Entry>,
}

impl Group {
    /// Returns true if the name of at least one row contains `text`.
    pub fn is_named(&self, text: &str) -> bool {
        self.entries.iter().any(|entry| entry.label.name.contains(text))
    }
}

/// A measured row, with its samples.
#[derive(Debug, Clone)]
pub struct Raced {
    pub label: Label,
    pub stat: Stat,
}

/// A row that was not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub label: Label,
    pub reason: String,
    /// Whether the reason is that this program was built without the other library.
    pub not_built: bool,
}

impl LeftOut {
    fn new(label: Label, error: &BaselineError) -> Self {
        let not_built = matches!(error, BaselineError::NotBuilt { .. });
        Self { label, reason: error.to_string(), not_built }
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", self.label.name, self.label.peer, self.reason)
    }
}

struct Runner {
    label: Label,
    meter: Box<dyn Meter>,
    operations: u64,
    samples_ns: Vec<f64>,
}

/// Measures all groups. A contender that fails is left out with its reason, and the others
/// continue.
pub fn run(plan: Vec<Group>, pace: Pace) -> (Vec<Raced>, Vec<LeftOut>) {
    let rounds = pace.rounds as u64 + 1;
    let bar = ProgressBar::new(plan.iter().map(|group| group.entries.len() as u64 * rounds).sum());
    if let Ok(style) = indicatif::ProgressStyle::with_template("{msg} {wide_bar} {elapsed}") {
        bar.set_style(style);
    }
    let (mut raced, mut left_out) = (Vec::new(), Vec::new());
    for group in plan {
        bar.set_message(group.doing);
        race(group, pace, &bar, &mut raced, &mut left_out);
    }
    bar.finish_and_clear();
    (raced, left_out)
}

fn race(group: Group, pace: Pace, bar: &ProgressBar, raced: &mut Vec<Raced>, left_out: &mut Vec<LeftOut>) {
    let mut runners = Vec::new();
    for Entry { label, operations_max, make } in group.entries {
        bar.inc(1);
        let made = make().and_then(|mut meter| {
            let operations = calibrate(meter.as_mut(), pace.batch, operations_max)?;
            Ok((meter, operations))
        });
        match made {
            Ok((meter, operations)) => runners.push(Runner { label, meter, operations, samples_ns: Vec::new() }),
            Err(error) => left_out.push(LeftOut::new(label, &error)),
        }
    }
    for _ in 0..pace.rounds {
        runners.retain_mut(|runner| {
            bar.inc(1);
            match runner.meter.measure(runner.operations, &mut runner.samples_ns) {
                Ok(()) => true,
                Err(error) => {
                    left_out.push(LeftOut::new(runner.label.clone(), &error));
                    false
                }
            }
        });
    }
    for Runner { label, samples_ns, .. } in runners {
        raced.extend(Stat::of(&samples_ns).map(|stat| Raced { label, stat }));
    }
}

/// Returns the number of operations that fill a batch. The measurements of this function warm up
/// the contender, and are discarded.
fn calibrate(meter: &mut dyn Meter, batch: Duration, operations_max: u64) -> Result<u64, BaselineError> {
    let mut operations = 1;
    loop {
        // Use the shorter of two measurements. The first one contains page faults of the first
        // access. With its longer time, later batches would get too few operations, and start-up
        // costs would dominate them.
        let mut took = Duration::MAX;
        for _ in 0..2 {
            let start = Instant::now();
            meter.measure(operations, &mut Vec::new())?;
            took = took.min(start.elapsed());
        }
        if took >= batch / 2 || operations >= operations_max {
            return Ok(operations);
        }
        let grown = operations * (batch.as_nanos() / took.as_nanos().max(1)).clamp(2, 10) as u64;
        operations = grown.min(operations_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_baselines::repeated;

    fn entry(name: &str, make: impl FnOnce() -> Result<Box<dyn Meter>, BaselineError> + 'static) -> Entry {
        let label = Label { name: name.to_owned(), peer: "floor", size_bytes: None, floor: None };
        Entry { label, operations_max: 100, make: Box::new(make) }
    }

    #[test]
    fn one_that_fails_does_not_stop_the_others() {
        let good = || Ok(Box::new(repeated(|| Ok(()))) as Box<dyn Meter>);
        let missing = || Err(BaselineError::NotBuilt { feature: "x" });
        let mut left = 7;
        let late = move || {
            let meter = repeated(move || {
                left -= 1;
                if left == 0 { Err(BaselineError::Panicked) } else { Ok(()) }
            });
            Ok(Box::new(meter) as Box<dyn Meter>)
        };
        let entries = vec![entry("missing", missing), entry("late", late), entry("good", good)];
        let (raced, left_out) = run(vec![Group { doing: "", entries }], Pace::QUICK);
        let names: Vec<&str> = raced.iter().map(|row| row.label.name.as_str()).collect();
        assert_eq!(names, ["good"]);
        let out: Vec<_> = left_out.iter().map(|row| (row.label.name.as_str(), row.not_built)).collect();
        assert_eq!(out, [("missing", true), ("late", false)]);
    }
}
