//! `tensorlend bench`: the machine's floors and tensorlend's times, measured in one run.

mod compare;
mod copies;
mod exchange;
mod interval;
mod machine;
mod names;
mod pairs;
mod plan;
mod race;
mod report;
mod sessions;
mod setting;
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use interval::{RUNS_MAX, RUNS_MIN};
use tensorlend_baselines::{Cores, floors, pin};

use crate::again;
use crate::failure::Failure;
use crate::options::Json;
use crate::output;

/// Measure this machine's floors, and tensorlend compared with them.
///
/// Starts its own daemon unless a socket is named. Interleaves all contenders, so that a slow moment affects each of
/// them; reports medians, extremes and ratios. Stop other programs first: two processes need two cores.
///
/// With `--compare`, compares the medians of several runs with those of an earlier build. A row is faster or slower if
/// the 99 % interval of the ratio, from LOW to HIGH, does not contain 1. This needs five runs of each build.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tensorlend bench --quick
  tensorlend bench --only stream_poll
  tensorlend bench --json > bench.json
  tensorlend bench --quick --runs 5 --json > base.json
  tensorlend bench --quick --compare base.json
  tensorlend bench --compare base.json --now first.json second.json --threshold 3")]
pub struct BenchArgs {
    /// Fewer rounds and sizes: some seconds instead of a few minutes.
    #[arg(long)]
    quick: bool,
    /// Only rows whose names contain this, and the rows that are interleaved with them; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run the benchmark this many times, in a process for each run. Default: once, or 5 times with --compare.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=RUNS_MAX as i64))]
    runs: Option<u8>,
    /// Compare with the runs in these files, which --json has written. A file may contain several runs.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// Compare the runs in these files, instead of new runs.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "compare", conflicts_with_all = ["quick", "only", "runs"])]
    now: Vec<PathBuf>,
    /// With --compare, exit with status 1 if a row of tensorlend is slower by more than this.
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    threshold: f64,
    #[command(flatten)]
    json: Json,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent: &f64| percent.is_finite() && *percent >= 0.0);
    percent.ok_or_else(|| "give a percentage from 0 up, such as 2.5".to_owned())
}

/// Runs the benchmark and prints its report. `socket` is the daemon's socket, if the user named one.
pub fn run(args: &BenchArgs, socket: Option<&Path>) -> Result<(), Box<dyn Error>> {
    if !args.compare.is_empty() {
        return compare_runs(args, socket);
    }
    match args.runs {
        None => measure(args, socket),
        Some(runs) => (0..runs).try_for_each(|_| run_once(args, socket, args.json.on, Stdio::inherit()).map(|_| ())),
    }
}

/// Compares runs of files with others, or with new runs.
fn compare_runs(args: &BenchArgs, socket: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let base = compare::read(&args.compare)?;
    let mut now = compare::read(&args.now)?;
    if args.now.is_empty() {
        for _ in 0..args.runs.unwrap_or(RUNS_MIN) {
            now.extend(compare::parse(&run_once(args, socket, true, Stdio::piped())?)?);
        }
    }
    let comparison = compare::compare(&base, &now);
    if args.json.on {
        output::json(&comparison)?;
    } else {
        output::text_block(&comparison.text())?;
    }
    for note in comparison.notes(compare::is_one_machine(&base, &now)) {
        output::note(&note);
    }
    Ok(comparison.check(args.threshold)?)
}

/// Runs the benchmark once in another process, and returns what it wrote to `out`, if that is a pipe.
fn run_once(args: &BenchArgs, socket: Option<&Path>, json: bool, out: Stdio) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut command = again::program();
    command.arg("bench").args(args.quick.then_some("--quick")).args(json.then_some("--json"));
    command.args(args.only.iter().map(|text| format!("--only={text}")));
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    let done = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::inherit()).output()?;
    // The other process has reported the reason of its failure.
    if done.status.success() { Ok(done.stdout) } else { Err(format!("a run failed with {}", done.status).into()) }
}

/// Measures all rows once, and prints them.
fn measure(args: &BenchArgs, socket: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let broker = if socket.is_some() { None } else { Some(tensorlend_daemon::embedded()?) };
    let socket = match (&broker, socket) {
        (Some(broker), _) => broker.socket(),
        (None, given) => given.unwrap_or(Path::new("")),
    };
    let cores = Cores::find()?;
    if cores.are_one() {
        return Err(
            "bench needs two cores, and this process may use one: see taskset, or the container's limits".into()
        );
    }
    let (placement, line) = floors::calibrate(cores)?;
    output::note(&format!(
        "cores {} and {} are {}: a cache line takes {:.0} ns one way ({:.0} to {:.0})",
        cores.first,
        cores.second,
        placement.name(),
        line.p50_ns,
        line.min_ns,
        line.max_ns
    ));
    // Pin this thread after the daemon's thread has started. A new thread inherits the affinity, and the daemon must be
    // able to run on any core.
    pin(cores.first)?;

    let pace = if args.quick { race::Pace::QUICK } else { race::Pace::FULL };
    let mut plan = plan::plan(&setting::Setting { cores, socket: socket.to_owned(), quick: args.quick });
    for text in &args.only {
        if !plan.iter().any(|group| group.is_named(text)) {
            return Err(Failure::Usage(format!("--only {text:?} selects no row, because no row's name contains it: run the command without --only to see the names")).into());
        }
    }
    if !args.only.is_empty() {
        plan.retain(|group| args.only.iter().any(|text| group.is_named(text)));
    }
    let (raced, left_out) = race::run(plan, pace);
    let (placement_after, _) = floors::calibrate(cores)?;
    if placement_after != placement {
        output::note(&format!(
            "the cores are {} now, because the virtual machine moved them: compare each ratio of this run with the extremes of its floor",
            placement_after.name()
        ));
    }
    let report = report::Report::new(machine::Machine::here(cores), placement, &raced);
    for row in &left_out {
        if !row.not_built {
            output::note(&format!("left out: {row}"));
        }
    }
    if args.json.on {
        output::json(&report)?;
    } else {
        output::text_block(&table::text(&report, &left_out))?;
    }
    if report.results.is_empty() { Err("nothing could be measured: see what was left out".into()) } else { Ok(()) }
}

/// Runs a child process of the bench.
pub fn peer(args: &[String]) -> Result<(), Box<dyn Error>> {
    match args.split_first() {
        Some((role, rest)) if role == exchange::CONSUMER => exchange::consume(rest),
        _ => Ok(tensorlend_baselines::serve(args)?),
    }
}
