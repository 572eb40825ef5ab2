//! `tensorlend-sim`: runs schedules, and replays one.

use clap::Parser;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tensorlend_sim::{Done, Failure, Plan, explain, run};

/// Runs the daemon's core through simulated worlds, each from a seed.
#[derive(Parser)]
struct Args {
    /// Number of schedules.
    #[arg(long, env = "TENSORLEND_SIM_SCHEDULES", default_value_t = 100_000)]
    schedules: u64,
    /// The seed of the first schedule; the following numbers are the seeds of the others.
    #[arg(long, env = "TENSORLEND_SIM_SEED", default_value_t = 0)]
    seed: u64,
    /// Steps of each schedule before the faults stop.
    #[arg(long, default_value_t = 250)]
    steps: u32,
    /// Number of threads.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Print the events of each schedule, also of those that pass: for one or two schedules.
    #[arg(long, env = "TENSORLEND_SIM_TRACE")]
    trace: bool,
    /// Run no schedules, but explore every trace of small worlds: `quick`, `full`, or families with their depths and the
    /// depth up to which two daemons are killed in a row, such as `names=3/1,lists=4/2,user-streams=3/0`.
    #[cfg(feature = "crash-points")]
    #[arg(long)]
    exhaustive: Option<String>,
}

#[cfg(feature = "crash-points")]
fn explore(which: &str, threads: usize) -> ExitCode {
    for mut bounds in tensorlend_sim::explore::bounds(which) {
        let begun = Instant::now();
        bounds.threads = threads;
        match tensorlend_sim::explore::explore(bounds) {
            Ok(explored) => println!("{bounds} in {:.1} s: {explored:?}", begun.elapsed().as_secs_f64()),
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "crash-points")]
    if let Some(which) = &args.exhaustive {
        return explore(which, args.threads as usize);
    }
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let work = || {
        let mut done = Done::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= args.schedules {
                return Ok(done);
            }
            let plan = Plan { steps: args.steps, trace: args.trace, ..Plan::new(args.seed.wrapping_add(number)) };
            match run(plan) {
                Ok(more) => done += more,
                Err(failure) => {
                    next.store(args.schedules, Ordering::Relaxed);
                    return Err((explain(plan).unwrap_or(failure), number));
                }
            }
        }
    };
    let ends: Vec<Result<Done, (Failure, u64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it catches what the core does")).collect()
    });
    let mut all = Done::default();
    for end in ends {
        match end {
            Ok(done) => all += done,
            Err((failure, number)) => {
                eprintln!("{failure}");
                eprintln!(
                    "schedule {} of {}; again: tensorlend-sim --schedules 1 --steps {} --seed {}",
                    number + 1,
                    args.schedules,
                    args.steps,
                    failure.seed
                );
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{} schedules in {seconds:.1} s, no invariant broken: {all:?}", args.schedules);
    ExitCode::SUCCESS
}
