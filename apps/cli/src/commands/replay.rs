//! `tensorlend replay`: replays an allocation log.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorlend::{Client, DType, Draft};
use tensorlend_daemon::{Bytes, Config};

use crate::failure::Failure;
use crate::files::FileError;
use crate::options::{Connection, Json};
use crate::output::{self, Table};
use crate::text::{bytes_text, count};

const EXAMPLES: &str = "\
Examples:
  TENSORLEND_ALLOC_LOG=log.csv program            writes log.4711-0.csv, one file for each client
  tensorlend replay log.4711-0.csv                against a daemon of its own
  tensorlend replay log.4711-0.csv --pool 256MiB  would it do with so much?
";

/// Replay an allocation log and measure it.
///
/// Allocates and frees as in the log, in its order, on one thread and at full speed. An allocation hits if it fits into
/// the client's segments, and misses if the daemon must lend another segment.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The log, as a client writes it: thread,time_ns,action,slot,generation,bytes.
    log: PathBuf,
    /// Use the daemon that is running instead of an embedded one.
    #[arg(long)]
    connect: bool,
    /// Size of the embedded daemon's pool, such as 256MiB; default: half of the memory.
    #[arg(long, value_name = "BYTES", conflicts_with = "connect")]
    pool: Option<Bytes>,
    #[command(flatten)]
    json: Json,
}

impl ReplayArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let script = Script::read(&self.log)?;
        let report = if self.connect {
            Report::new(&script, play(&script, &at.open("replay")?)?)
        } else {
            let mut config = Config::default();
            if let Some(pool) = self.pool {
                config.pool.bytes_max = Some(pool);
                // Limit a segment to the pool's size, rounded down to whole pages.
                let most = Bytes((pool.0 / 4096).max(1) * 4096);
                config.pool.segment_bytes = config.pool.segment_bytes.min(most);
                // Reserve no spare segments, so that the log may use the whole pool.
                config.pool.spare_segments = 0;
            }
            let broker = tensorlend_daemon::embedded_with(&config).map_err(|e| Failure::Other(Box::new(e)))?;
            let client = Client::builder().socket(broker.socket()).label("tensorlend replay").connect()?;
            Report::new(&script, play(&script, &client)?)
        };
        if script.lost > 0 {
            output::note(&format!("the log lacks {}: its disk was too slow", count(script.lost, "event")));
        }
        if self.json.on { output::json(&report) } else { output::text_block(&report.text()) }
    }
}

/// Columns of a log that the replay reads.
const COLUMNS: [&str; 4] = ["action", "slot", "generation", "bytes"];

/// The columns of a log row that the replay reads.
#[derive(Deserialize)]
struct Row<'r> {
    action: &'r str,
    slot: u32,
    generation: u64,
    bytes: u64,
}

/// A step of the replay. An index selects an entry of a table of live drafts. A later step reuses a freed
/// entry.
enum Step {
    Allocate { index: usize, bytes: u64 },
    Free { index: usize },
}

/// The steps of a parsed log, and their totals.
#[derive(Default)]
struct Script {
    steps: Vec<Step>,
    /// Maximum number of live allocations at one time.
    places: usize,
    bytes: u64,
    bytes_peak: u64,
    /// Number of allocations that had failed in the logged program. The replay skips them.
    failures: u64,
    /// Number of frees of slots that were allocated before the log began.
    frees_before: u64,
    lost: u64,
}

impl Script {
    fn read(path: &Path) -> Result<Self, FileError> {
        let fail = |source| FileError::Io { path: path.to_owned(), doing: "read", source, remedy: "check the path" };
        let damaged = |what: String| FileError::Damaged {
            path: path.to_owned(),
            what,
            remedy: "give a log that a client has written and closed",
        };
        let told = |e: csv::Error| match e.into_kind() {
            csv::ErrorKind::Io(source) => fail(source),
            csv::ErrorKind::Deserialize { pos, err } => {
                damaged(format!("line {}: {err}", pos.map_or(0, |pos| pos.line())))
            }
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                let line = pos.map_or(0, |pos| pos.line());
                damaged(format!("line {line} has {len} fields instead of {expected_len}"))
            }
            other => damaged(format!("{other:?}")),
        };
        let mut reader = csv::Reader::from_reader(File::open(path).map_err(fail)?);
        let head = reader.headers().map_err(told)?.clone();
        if let Some(column) = COLUMNS.iter().find(|&column| !head.iter().any(|found| found == *column)) {
            return Err(damaged(format!("its first line names no column {column:?}")));
        }
        let (mut script, mut live, mut free) = (Self::default(), HashMap::new(), Vec::new());
        let mut record = csv::StringRecord::new();
        while reader.read_record(&mut record).map_err(told)? {
            let row: Row<'_> = record.deserialize(Some(&head)).map_err(told)?;
            let life = (row.slot, row.generation);
            let line = record.position().map_or(0, csv::Position::line);
            match row.action {
                "allocate" => {
                    let index = free.pop().unwrap_or_else(|| {
                        script.places += 1;
                        script.places - 1
                    });
                    if live.insert(life, (index, row.bytes)).is_some() {
                        return Err(damaged(format!("line {line} allocates slot {} once more", row.slot)));
                    }
                    let sum = script.bytes.checked_add(row.bytes);
                    script.bytes = sum.ok_or_else(|| damaged(format!("line {line}: too many bytes")))?;
                    script.bytes_peak = script.bytes_peak.max(script.bytes);
                    script.steps.push(Step::Allocate { index, bytes: row.bytes });
                }
                "free" => match live.remove(&life) {
                    Some((index, bytes)) => {
                        script.bytes -= bytes;
                        free.push(index);
                        script.steps.push(Step::Free { index });
                    }
                    None => script.frees_before += 1,
                },
                "allocate failure" => script.failures += 1,
                "lost" => script.lost = script.lost.saturating_add(row.bytes),
                other => return Err(damaged(format!("line {line}: there is no action {other:?}"))),
            }
        }
        Ok(script)
    }
}

/// The measurements of a replay. Times are in nanoseconds.
#[derive(Default)]
struct Played {
    allocate_ns: Vec<u32>,
    free_ns: Vec<u32>,
    hits: u64,
    failures: u64,
    slot_bytes_peak: u64,
    segment_bytes_peak: u64,
}

fn play(script: &Script, client: &Client) -> Result<Played, Failure> {
    let mut played = Played::default();
    let mut drafts: Vec<Option<Draft>> = Vec::new();
    drafts.resize_with(script.places, || None);
    let mut before = client.memory();
    for step in &script.steps {
        match *step {
            Step::Allocate { index, bytes } => {
                let start = Instant::now();
                let made = client.create(DType::U8, &[bytes]);
                let took = start.elapsed();
                match made {
                    Ok(draft) => drafts[index] = Some(draft),
                    Err(e) if e.is_limit() => {
                        played.failures += 1;
                        continue;
                    }
                    Err(e) => return Err(Failure::from(e).context(format!("cannot allocate {bytes} bytes"))),
                }
                played.allocate_ns.push(nanoseconds(took));
                let now = client.memory();
                played.hits += u64::from(now.segment_bytes == before.segment_bytes);
                played.slot_bytes_peak = played.slot_bytes_peak.max(now.slot_bytes);
                played.segment_bytes_peak = played.segment_bytes_peak.max(now.segment_bytes);
                before = now;
            }
            Step::Free { index } => {
                // The place is empty if the allocation has failed in this replay.
                let Some(draft) = drafts[index].take() else { continue };
                let start = Instant::now();
                drop(draft);
                played.free_ns.push(nanoseconds(start.elapsed()));
                before = client.memory();
            }
        }
    }
    Ok(played)
}

fn nanoseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// Times of one kind of step in nanoseconds. Each time includes two readings of the clock.
#[derive(Serialize)]
struct Times {
    count: u64,
    total_ns: u64,
    median_ns: u32,
    p99_ns: u32,
    max_ns: u32,
}

impl Times {
    fn new(mut times: Vec<u32>) -> Self {
        times.sort_unstable();
        // Compute the percentile by the nearest-rank method.
        let rank = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or(0);
        Self {
            count: times.len() as u64,
            total_ns: times.iter().map(|&ns| u64::from(ns)).sum(),
            median_ns: rank(50),
            p99_ns: rank(99),
            max_ns: rank(100),
        }
    }

    fn text(&self) -> String {
        let total = Duration::from_nanos(self.total_ns);
        format!(
            "{} in {total:.3?}: median {} ns, p99 {} ns, max {} ns",
            self.count, self.median_ns, self.p99_ns, self.max_ns
        )
    }
}

#[derive(Serialize)]
struct Report {
    allocate: Times,
    free: Times,
    /// Cost of reading the clock twice.
    clock: Times,
    hits: u64,
    misses: u64,
    /// Fraction from 0 to 1; null if the log allocated nothing.
    hit_rate: Option<f64>,
    failures: u64,
    log_bytes_peak: u64,
    slot_bytes_peak: u64,
    segment_bytes_peak: u64,
    log_outstanding_bytes: u64,
    log_failures: u64,
    log_frees_before: u64,
    log_lost: u64,
}

impl Report {
    fn new(script: &Script, played: Played) -> Self {
        let clock = (0..1000).map(|_| nanoseconds(Instant::now().elapsed())).collect();
        let allocate = Times::new(played.allocate_ns);
        Self {
            hits: played.hits,
            misses: allocate.count - played.hits,
            hit_rate: (allocate.count > 0).then(|| played.hits as f64 / allocate.count as f64),
            allocate,
            free: Times::new(played.free_ns),
            clock: Times::new(clock),
            failures: played.failures,
            log_bytes_peak: script.bytes_peak,
            slot_bytes_peak: played.slot_bytes_peak,
            segment_bytes_peak: played.segment_bytes_peak,
            log_outstanding_bytes: script.bytes,
            log_failures: script.failures,
            log_frees_before: script.frees_before,
            log_lost: script.lost,
        }
    }

    fn text(&self) -> String {
        let bytes = |bytes: u64| format!("{bytes} bytes ({})", bytes_text(bytes));
        let mut table = Table::new(&["allocations", &self.allocate.text()]);
        let mut row = |what: &str, text: String| table.row([what.to_owned(), text]);
        row("frees", self.free.text());
        row("clock", format!("median {} ns, part of each", self.clock.median_ns));
        let rate = self.hit_rate.map_or_else(|| "none".to_owned(), |rate| format!("{:.2} %", rate * 100.0));
        row("hit rate", format!("{rate}: {}, {}", count(self.hits, "hit"), missed(self.misses)));
        row("failures", format!("{} here, {} in the log", self.failures, self.log_failures));
        row("peak in use", format!("{}; in the log {}", bytes(self.slot_bytes_peak), bytes(self.log_bytes_peak)));
        row("peak lent", bytes(self.segment_bytes_peak));
        row("never freed", bytes(self.log_outstanding_bytes));
        table.text()
    }
}

fn missed(number: u64) -> String {
    if number == 1 { "1 miss".to_owned() } else { format!("{number} misses") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let times = Times::new((1..=200).rev().collect());
        assert_eq!((times.count, times.median_ns, times.p99_ns, times.max_ns), (200, 100, 198, 200));
        let one = Times::new(vec![7]);
        assert_eq!((one.median_ns, one.p99_ns, one.max_ns, one.total_ns), (7, 7, 7, 7));
        let none = Times::new(Vec::new());
        assert_eq!((none.count, none.median_ns, none.max_ns), (0, 0, 0));
    }
}
