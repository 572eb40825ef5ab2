//! Comparison of two groups of runs of the benchmark.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::interval::{CONFIDENCE_PERCENT, RUNS_MAX, RUNS_MIN, Ratio};
use super::report::Report;
use super::setting::{FLOOR, OURS};
use super::table::{ratio_text, size_text, time_text};
use crate::failure::Failure;
use crate::files::FileError;
use crate::output::Table;

/// The advice for a file that cannot be read.
const REMEDY: &str = "write it with `tensorlend bench --json`";

/// One run of the benchmark, as its JSON has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Run {
    machine: Machine,
    results: Vec<Row>,
}

/// The properties of a machine without which times are not comparable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Row {
    name: String,
    peer: String,
    size_bytes: Option<u64>,
    p50_ns: f64,
}

/// The contents of a file: each JSON value is a run or a list of runs.
#[derive(Deserialize)]
#[serde(untagged)]
enum Runs {
    One(Run),
    Several(Vec<Run>),
}

/// The difference of a row between two groups of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval of the ratio lies below 1.
    Faster,
    /// The interval of the ratio lies above 1.
    Slower,
    /// The interval of the ratio contains 1.
    NoDifference,
    /// There are too few runs for an interval.
    TooFewRuns,
    /// One of the groups lacks the row.
    OneSided,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    pub name: String,
    pub peer: String,
    pub size_bytes: Option<u64>,
    /// Median of the runs' medians.
    pub base_ns: Option<f64>,
    pub now_ns: Option<f64>,
    /// The median of the quotients of each run now and each run of the base.
    pub ratio: Option<f64>,
    /// The bounds of the ratio's interval.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub verdict: Verdict,
}

/// The comparison of two groups of runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub base_runs: usize,
    pub now_runs: usize,
    pub confidence_percent: u8,
    pub rows: Vec<Compared>,
}

impl From<&Report> for Run {
    fn from(report: &Report) -> Self {
        let machine = &report.machine;
        let machine = Machine { cpu: machine.cpu.clone(), cores: machine.cores, kernel: machine.kernel.clone() };
        let row = |row: &super::report::Measured| Row {
            name: row.name.clone(),
            peer: row.peer.to_owned(),
            size_bytes: row.size_bytes,
            p50_ns: row.p50_ns,
        };
        Self { machine, results: report.results.iter().map(row).collect() }
    }
}

pub fn read(paths: &[impl AsRef<Path>]) -> Result<Vec<Run>, Failure> {
    let mut runs = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let text = fs::read(path).map_err(|source| FileError::Io {
            path: path.to_owned(),
            doing: "read",
            source,
            remedy: REMEDY,
        })?;
        runs.extend(parse(&text).map_err(|what| FileError::Damaged { path: path.to_owned(), what, remedy: REMEDY })?);
    }
    if runs.len() > usize::from(RUNS_MAX) {
        let count = runs.len();
        return Err(Failure::Usage(format!("the files have {count} runs: a comparison takes {RUNS_MAX} at most")));
    }
    Ok(runs)
}

pub fn parse(text: &[u8]) -> Result<Vec<Run>, String> {
    let mut runs = Vec::new();
    for value in serde_json::Deserializer::from_slice(text).into_iter() {
        match value.map_err(|error| error.to_string())? {
            Runs::One(run) => runs.push(run),
            Runs::Several(several) => runs.extend(several),
        }
    }
    let is_time = |row: &Row| row.p50_ns > 0.0;
    match runs.iter().flat_map(|run| &run.results).find(|row| !is_time(row)) {
        Some(row) => Err(format!("the median of {:?} is {}, which is no time", row.name, row.p50_ns)),
        None if runs.is_empty() => Err("it has no run".to_owned()),
        None => Ok(runs),
    }
}

/// Compares two groups of runs. The rows have the order of the runs now; rows that only the base has follow.
pub fn compare(base: &[Run], now: &[Run]) -> Comparison {
    let mut keys: Vec<&Row> = Vec::new();
    for row in now.iter().chain(base).flat_map(|run| &run.results) {
        if !keys.iter().any(|key| key.is_as(row)) {
            keys.push(row);
        }
    }
    Comparison {
        base_runs: base.len(),
        now_runs: now.len(),
        confidence_percent: CONFIDENCE_PERCENT,
        rows: keys.into_iter().map(|key| compared(key, &key.times(base), &key.times(now))).collect(),
    }
}

/// Returns true if all runs come from one kind of machine.
pub fn is_one_machine(base: &[Run], now: &[Run]) -> bool {
    let mut machines = base.iter().chain(now).map(|run| &run.machine);
    machines.next().is_none_or(|first| machines.all(|machine| machine == first))
}

impl Row {
    fn is_as(&self, other: &Self) -> bool {
        (&self.name, &self.peer, self.size_bytes) == (&other.name, &other.peer, other.size_bytes)
    }

    /// Returns the medians that the runs have for this row.
    fn times(&self, runs: &[Run]) -> Vec<f64> {
        runs.iter().filter_map(|run| Some(run.results.iter().find(|row| row.is_as(self))?.p50_ns)).collect()
    }
}

fn compared(key: &Row, base: &[f64], now: &[f64]) -> Compared {
    let median = |times: &[f64]| tensorlend_baselines::Stat::of(times).map(|stat| stat.p50_ns);
    let ratio = Ratio::of(base, now);
    let bounds = ratio.and_then(|ratio| ratio.bounds);
    let verdict = match (ratio, bounds) {
        (None, _) => Verdict::OneSided,
        (_, None) => Verdict::TooFewRuns,
        (_, Some((low, _))) if low > 1.0 => Verdict::Slower,
        (_, Some((_, high))) if high < 1.0 => Verdict::Faster,
        _ => Verdict::NoDifference,
    };
    let rounded = |ratio: f64| (ratio * 1e4).round() / 1e4;
    Compared {
        name: key.name.clone(),
        peer: key.peer.clone(),
        size_bytes: key.size_bytes,
        base_ns: median(base),
        now_ns: median(now),
        ratio: ratio.map(|ratio| rounded(ratio.ratio)),
        low: bounds.map(|(low, _)| rounded(low)),
        high: bounds.map(|(_, high)| rounded(high)),
        verdict,
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference",
            Self::TooFewRuns => "too few runs",
            Self::OneSided => "not in both",
        })
    }
}

impl Comparison {
    pub fn text(&self) -> String {
        let mut table = Table::new(&["NAME", "PEER", ">SIZE", ">BASE", ">NOW", ">RATIO", ">LOW", ">HIGH", "VERDICT"]);
        for row in &self.rows {
            let time = |ns: Option<f64>| ns.map_or_else(String::new, time_text);
            let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, ratio_text);
            table.row([
                row.name.clone(),
                row.peer.clone(),
                row.size_bytes.map_or_else(String::new, size_text),
                time(row.base_ns),
                time(row.now_ns),
                ratio(row.ratio),
                ratio(row.low),
                ratio(row.high),
                row.verdict.to_string(),
            ]);
        }
        table.text()
    }

    /// Returns the notes without which a reader would misread the table. `same` is the result of [`is_one_machine`].
    pub fn notes(&self, same: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if !same {
            notes.push("the runs come from different machines or kernels: compare runs of one machine".to_owned());
        }
        if self.rows.iter().any(|row| row.verdict == Verdict::TooFewRuns) {
            notes.push(format!(
                "a verdict needs {RUNS_MIN} runs of each group, and there are {} of the base and {} now: see --runs",
                self.base_runs, self.now_runs
            ));
        }
        let changed = |row: &&Compared| row.peer == FLOOR && matches!(row.verdict, Verdict::Slower | Verdict::Faster);
        let floors: Vec<String> = self.rows.iter().filter(changed).map(Compared::title).collect();
        if !floors.is_empty() {
            notes.push(format!(
                "the machine differed between the groups, since these floors do: {}: measure both groups in turns",
                floors.join(", ")
            ));
        }
        notes
    }

    /// Returns an error if rows of tensorlend are slower by more than `percent`.
    pub fn check(&self, percent: f64) -> Result<(), String> {
        let limit = 1.0 + percent / 100.0;
        let is_slow = |row: &&Compared| {
            row.peer == OURS && row.verdict == Verdict::Slower && row.ratio.is_some_and(|ratio| ratio > limit)
        };
        let slow: Vec<String> = self.rows.iter().filter(is_slow).map(Compared::title).collect();
        if slow.is_empty() {
            return Ok(());
        }
        Err(format!("slower than the base by more than {percent} %: {}", slow.join(", ")))
    }
}

impl Compared {
    fn title(&self) -> String {
        let size = self.size_bytes.map_or_else(String::new, |bytes| format!(" of {}", size_text(bytes)));
        let ratio = self.ratio.map_or_else(String::new, ratio_text);
        format!("{}{size} ({ratio})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, peer: &str, size_bytes: Option<u64>, p50_ns: f64) -> Row {
        Row { name: name.to_owned(), peer: peer.to_owned(), size_bytes, p50_ns }
    }

    fn run(results: Vec<Row>) -> Run {
        Run { machine: Machine { cpu: "A".to_owned(), cores: 2, kernel: "6".to_owned() }, results }
    }

    /// Returns six runs of one row: `ns` and up to 2.5 % more.
    fn runs(ns: f64) -> Vec<Run> {
        (0..6).map(|at| run(vec![row("get", OURS, None, ns * (1.0 + 0.005 * f64::from(at)))])).collect()
    }

    fn verdict(base: &[Run], now: &[Run]) -> Verdict {
        compare(base, now).rows[0].verdict
    }

    #[test]
    fn a_difference_larger_than_the_noise_is_found_in_its_direction() {
        assert_eq!(verdict(&runs(100.0), &runs(105.0)), Verdict::Slower);
        assert_eq!(verdict(&runs(105.0), &runs(100.0)), Verdict::Faster);
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        assert_eq!(verdict(&runs(100.0), &runs(100.0)), Verdict::NoDifference);
        assert_eq!(verdict(&runs(100.0), &runs(101.0)), Verdict::NoDifference);
    }

    #[test]
    fn a_single_fast_or_slow_run_decides_nothing() {
        let mut now = runs(100.0);
        now[3].results[0].p50_ns = 1e6;
        assert_eq!(verdict(&runs(100.0), &now), Verdict::NoDifference);
        let mut now = runs(110.0);
        now[3].results[0].p50_ns = 1.0;
        assert_eq!(verdict(&runs(100.0), &now), Verdict::NoDifference, "one run in six speaks against it");
        let mut now = [runs(110.0), runs(110.0)].concat();
        now[3].results[0].p50_ns = 1.0;
        assert_eq!(verdict(&[runs(100.0), runs(100.0)].concat(), &now), Verdict::Slower, "eleven in twelve");
    }

    #[test]
    fn without_five_runs_of_each_there_is_a_ratio_and_no_verdict() {
        let compared = compare(&runs(100.0)[..4], &runs(200.0)[..4]);
        assert_eq!((compared.rows[0].verdict, compared.rows[0].low), (Verdict::TooFewRuns, None));
        assert!((compared.rows[0].ratio.unwrap() - 2.0).abs() < 0.05);
        assert!(compared.check(1.0).is_ok() && compared.notes(true)[0].contains("--runs"));
        assert_eq!(verdict(&runs(100.0)[..5], &runs(200.0)[..5]), Verdict::Slower);
    }

    #[test]
    fn rows_are_told_apart_by_name_peer_and_size() {
        let base =
            [run(vec![row("a", OURS, Some(1), 1.0), row("a", OURS, Some(2), 2.0), row("gone", OURS, None, 3.0)])];
        let now =
            [run(vec![row("a", FLOOR, Some(1), 4.0), row("a", OURS, Some(2), 5.0), row("a", OURS, Some(1), 6.0)])];
        let compared = compare(&base, &now);
        let found: Vec<_> = compared
            .rows
            .iter()
            .map(|row| (row.name.as_str(), row.peer.as_str(), row.size_bytes, row.base_ns, row.now_ns))
            .collect();
        assert_eq!(
            found,
            [
                ("a", FLOOR, Some(1), None, Some(4.0)),
                ("a", OURS, Some(2), Some(2.0), Some(5.0)),
                ("a", OURS, Some(1), Some(1.0), Some(6.0)),
                ("gone", OURS, None, Some(3.0), None),
            ]
        );
        assert_eq!((compared.rows[0].verdict, compared.rows[3].verdict), (Verdict::OneSided, Verdict::OneSided));
    }

    #[test]
    fn only_slower_rows_of_tensorlend_beyond_the_threshold_fail() {
        let compared = compare(&runs(100.0), &runs(110.0));
        assert!(compared.check(12.0).is_ok());
        let why = compared.check(5.0).unwrap_err();
        assert_eq!(why, "slower than the base by more than 5 %: get (1.10x)");
        assert!(compare(&runs(110.0), &runs(100.0)).check(0.0).is_ok());

        let floor = |ns| {
            let mut runs = runs(ns);
            for run in &mut runs {
                FLOOR.clone_into(&mut run.results[0].peer);
            }
            runs
        };
        let compared = compare(&floor(100.0), &floor(110.0));
        assert_eq!((compared.rows[0].verdict, compared.check(5.0)), (Verdict::Slower, Ok(())));
        assert!(compared.notes(true)[0].contains("get (1.10x)"), "{:?}", compared.notes(true));
    }

    #[test]
    fn runs_come_as_objects_and_as_lists() {
        let one = r#"{"machine":{"cpu":"A","cores":2,"kernel":"6","date":"d"},"placement":"near","results":[
            {"name":"get","peer":"tensorlend","size_bytes":null,"p50_ns":2.5,"min_ns":1,"max_ns":9,"floor":null,"ratio":null}]}"#;
        let wanted = run(vec![row("get", OURS, None, 2.5)]);
        assert_eq!(parse(one.as_bytes()), Ok(vec![wanted.clone()]));
        assert_eq!(parse(format!("{one}\n[{one},{one}]").as_bytes()), Ok(vec![wanted.clone(), wanted.clone(), wanted]));
        assert_eq!(parse(b""), Err("it has no run".to_owned()));
        assert!(parse(b"{}").is_err() && parse(b"[1]").is_err());
        assert!(parse(one.replace("2.5", "0").as_bytes()).unwrap_err().contains("no time"));
    }

    #[test]
    fn runs_of_two_machines_are_noted() {
        let mut other = runs(100.0);
        assert!(is_one_machine(&runs(100.0), &other) && is_one_machine(&[], &[]));
        other[5].machine.kernel = "7".to_owned();
        assert!(!is_one_machine(&runs(100.0), &other));
        assert!(compare(&runs(1.0), &other).notes(false)[0].contains("different machines"));
    }
}
