//! `tensorlend bench`: the machine's floors and tensorlend's times, measured in one run.

mod copies;
mod exchange;
mod machine;
mod names;
mod pairs;
mod plan;
mod plot;
mod race;
mod report;
mod sessions;
mod setting;
mod table;

use std::error::Error;
use std::path::{Path, PathBuf};

use tensorlend_baselines::{Cores, floors, pin};

use crate::failure::Failure;
use crate::options::Json;
use crate::output;

/// Measure this machine's floors, and tensorlend compared with them.
///
/// Starts its own daemon unless a socket is named. Interleaves all contenders, so that a slow moment affects each of
/// them; reports medians, extremes and ratios. Stop other programs first: two processes need two cores.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tensorlend bench --quick
  tensorlend bench --only stream_poll
  tensorlend bench --json > bench.json
  tensorlend bench --plot plots")]
pub struct BenchArgs {
    /// Fewer rounds and sizes: some seconds instead of a few minutes.
    #[arg(long)]
    quick: bool,
    /// Only rows whose names contain this, and the rows that are interleaved with them; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    #[command(flatten)]
    json: Json,
    /// Also write plots into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
}

/// Runs the benchmark and prints its report. `socket` is the daemon's socket, if the user named one.
pub fn run(args: &BenchArgs, socket: Option<&Path>) -> Result<(), Box<dyn Error>> {
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
            "the cores are {} now: a virtual machine moves them; of such a run read each ratio beside its floor's extremes",
            placement_after.name()
        ));
    }
    let report = report::Report::new(machine::Machine::here(cores), placement, &raced);
    if let Some(folder) = &args.plot {
        plot::plot(&report, folder)?;
    }
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
