//! The memory of a program and all its descendants, sampled while it runs.

use crate::object::Object;
use crate::proc::{self, Stat};
use crate::scan;
use crate::twice::{Twice, equal_pages};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Number of times its own duration for which the sampler pauses after reading pages: 5 % of one core.
const PAUSES: u32 = 20;
/// Growth of private memory since the last reading, in parts of that memory, after which the sampler does not pause: one of 2.
const GROWTH: u64 = 2;

/// The largest and the mean value of the samples.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Peak {
    pub max_bytes: u64,
    pub mean_bytes: u64,
    #[serde(skip)]
    sum: u64,
}

impl Peak {
    fn add(&mut self, bytes: u64, samples: u64) {
        self.max_bytes = self.max_bytes.max(bytes);
        self.sum += bytes;
        self.mean_bytes = self.sum / samples;
    }
}

/// The memory of a program and its descendants, over the samples.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    pub seconds: f64,
    pub samples: u64,
    /// Maximum number of processes.
    pub processes: usize,
    /// Changed pages that only one process has mapped.
    pub private: Peak,
    /// The private pages of the largest process at this peak.
    pub largest_bytes: u64,
    /// Shared memory: each object once.
    pub shared: Peak,
    /// The processes' shares of shared memory, which they may share with other programs.
    pub shared_pss: Peak,
    /// The pass that found most; `None` if the program ended before a pass.
    pub twice: Option<Twice>,
    /// Number of passes that read pages.
    pub passes: u64,
    /// Whether a sample found only processes that this user may not read.
    #[serde(skip)]
    is_unreadable: bool,
    /// The objects at the peak of shared memory.
    pub objects: Vec<Object>,
}

impl Report {
    /// Returns the reason why no pass read the pages.
    pub fn unread(&self) -> &'static str {
        if self.is_unreadable && self.samples == 0 {
            "this user may not read the program's processes"
        } else {
            "the program ended before its pages were read"
        }
    }
}

/// Samples the descendants of this process.
pub struct Sampler {
    report: Report,
    /// Descendants of this process before the program started.
    strangers: BTreeSet<u32>,
    started: Instant,
    next_pass: Instant,
    /// Most private memory at a reading.
    read_at_bytes: u64,
    /// Duration of the last sample, without the pages.
    took: Duration,
}

impl Sampler {
    /// Begins before the program starts. Processes that are descendants of this one already are not counted.
    #[expect(clippy::new_without_default, reason = "it reads /proc")]
    pub fn new() -> Self {
        let now = Instant::now();
        let strangers = descendants(std::process::id(), &BTreeSet::new());
        Self {
            report: Report::default(),
            strangers,
            started: now,
            next_pass: now,
            read_at_bytes: 0,
            took: Duration::ZERO,
        }
    }

    /// Takes a sample. `continues` returns false as soon as the program has ended.
    pub fn sample(&mut self, continues: &dyn Fn() -> bool) {
        let since = Instant::now();
        let pids = descendants(std::process::id(), &self.strangers);
        let rollups: Vec<proc::Rollup> = pids.iter().filter_map(|pid| proc::rollup(*pid)).collect();
        // The program may have ended, or may not be readable, such as a program of another user (setuid).
        if rollups.is_empty() {
            self.report.is_unreadable |= pids.iter().any(|pid| proc::is_unreadable(*pid));
            return;
        }
        let mut scan = scan::of_processes(&pids);
        scan.objects.retain(|object| object.holders.iter().any(|holder| holder.is_mapped));
        let report = &mut self.report;
        report.samples += 1;
        report.processes = report.processes.max(rollups.len());
        let private: u64 = rollups.iter().map(|rollup| rollup.private_bytes).sum();
        if private > report.private.max_bytes {
            report.largest_bytes = rollups.iter().map(|rollup| rollup.private_bytes).max().unwrap_or(0);
        }
        report.private.add(private, report.samples);
        report.shared_pss.add(rollups.iter().map(|rollup| rollup.pss_shmem_bytes).sum(), report.samples);
        let shared = scan.totals().bytes;
        if shared > report.shared.max_bytes {
            report.objects = scan.objects;
        }
        report.shared.add(shared, report.samples);
        self.took = since.elapsed();
        // Short programs also have a reading near their peak.
        let is_peak = private > self.read_at_bytes + self.read_at_bytes / GROWTH;
        if is_peak || Instant::now() >= self.next_pass {
            self.read_at_bytes = self.read_at_bytes.max(private);
            self.read_pages(pids, continues);
        }
    }

    fn read_pages(&mut self, pids: BTreeSet<u32>, continues: &dyn Fn() -> bool) {
        let since = Instant::now();
        if let Some(twice) = equal_pages(pids, continues) {
            self.report.passes += 1;
            if self.report.twice.is_none_or(|before| twice.bytes >= before.bytes) {
                self.report.twice = Some(twice);
            }
        }
        self.next_pass = Instant::now() + since.elapsed() * PAUSES;
    }

    /// Returns the result of the samples.
    pub fn report(self) -> Report {
        Report { seconds: self.started.elapsed().as_secs_f64(), ..self.report }
    }

    /// Returns the time until the next sample: short at first, and longer if samples take long.
    pub fn pause(&self, interval: Duration) -> Duration {
        const FIRST: Duration = Duration::from_millis(50);
        interval.min(FIRST.max(self.started.elapsed() / PAUSES)).max(self.took * PAUSES)
    }
}

/// Returns the descendants of a process, without those that are or descend from strangers.
fn descendants(of: u32, strangers: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in proc::pids().unwrap_or_default() {
        if let Some(stat) = Stat::of(pid).filter(Stat::has_memory) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (BTreeSet::new(), vec![of]);
    while let Some(pid) = next.pop() {
        let children = children.remove(&pid).into_iter().flatten();
        next.extend(children.filter(|child| !strangers.contains(child) && found.insert(*child)));
    }
    found
}
