//! `tensorlend shm -- PROGRAM`: the memory of a program's processes, while it runs.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tensorlend_os::{signals, stderr};
use tensorlend_shm::{Peak, Report, Sampler, Twice};

use crate::failure::{self, Failure};
use crate::interrupt::heeded;
use crate::output;
use crate::text::{bytes_text, count, printable};

/// Duration of a run in seconds in which few comparisons take place.
const SHORT_S: f64 = 15.0;
/// The line that shares the data of a program.
const REMEDY: &str = "`dataset = tensorlend.share(dataset)`";
/// Equal bytes that are too few to share: the interpreter's and its libraries' own.
const LITTLE_BYTES: u64 = 16 << 20;

/// Runs a program, and reports its memory. Ends this process with the program's exit status.
pub fn run(program: &[OsString], interval: Duration, json: bool, file: Option<&Path>) -> Result<(), Failure> {
    let other = |error: std::io::Error| Failure::Other(error.into());
    // Before the program runs: its exit status is that of this command.
    let file = file.map(|path| std::fs::File::create(path).map_err(|error| not_written(path, &error))).transpose()?;
    // Processes whose parents have ended stay descendants of this process.
    set_child_subreaper(Some(rustix::process::getpid())).map_err(|errno| other(errno.into()))?;
    // The program inherits what this process ignores.
    signals::record(&heeded(&SIGNALS)).map_err(other)?;
    // The caller of exec(2) may have left children to this process.
    let mut sampler = Sampler::new();
    let child = match Command::new(&program[0]).args(&program[1..]).spawn() {
        Ok(child) => child,
        Err(error) => std::process::exit(not_started(&program[0], &error, json)),
    };
    let pid = Pid::from_child(&child);
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| other(errno.into()))?;
    let has_ended = |timeout: Duration| {
        let timeout = Timespec::try_from(timeout).expect("a pause is short");
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
    };
    let status = loop {
        let next = Instant::now() + sampler.pause(interval);
        while Instant::now() < next && !has_ended(next.saturating_duration_since(Instant::now())) {
            forward(pid);
        }
        if let Some(status) = reap(pid) {
            break status;
        }
        sampler.sample(&|| {
            forward(pid);
            !has_ended(Duration::ZERO)
        });
    };
    let report = sampler.report();
    let text = if json {
        output::json_text(&report).map_err(|error| Failure::Output(error.into()))? + "\n"
    } else {
        text(&printable(&program[0].to_string_lossy()), &report)
    };
    match file {
        Some(mut file) => file.write_all(text.as_bytes()).map_err(other)?,
        None => stderr::say(text.trim_end()),
    }
    stderr::flush();
    std::process::exit(exit_status(status));
}

/// Reports that a program cannot start. Returns the exit status as shells do, which no error of this command has.
fn not_started(program: &OsStr, error: &std::io::Error, json: bool) -> i32 {
    let failure = Failure::Other(format!("cannot start {}: {error}", program.display()).into());
    failure::exit(Err(failure), json);
    stderr::flush();
    if error.kind() == ErrorKind::NotFound { 127 } else { 126 }
}

fn not_written(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Other(format!("cannot write {}: {error}", path.display()).into())
}

/// Returns the exit status of the program if it has ended. Removes ended processes that have become children of this one.
fn reap(program: Pid) -> Option<WaitStatus> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == program {
            ended = Some(status);
        }
    }
    ended
}

/// Returns the status as shells report it.
fn exit_status(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

/// Signals that would end this process before the program. A terminal and users send them.
const SIGNALS: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes the signals on to the program that have arrived.
fn forward(pid: Pid) {
    for signal in SIGNALS.into_iter().filter(|signal| signals::take(*signal)) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process(pid, signal);
        }
    }
}

fn text(program: &str, report: &Report) -> String {
    let Report { seconds, samples, processes, private, largest_bytes, shared, shared_pss, twice, .. } = report;
    let processes = if *processes == 1 { "1 process".to_owned() } else { format!("{processes} processes") };
    let samples = count(*samples, "sample");
    let peak = |what: &str, peak: &Peak, note: &str| {
        let (most, mean) = (bytes_text(peak.max_bytes), bytes_text(peak.mean_bytes));
        format!("  {what:<14} peak {most:>10}, mean {mean:>10}{note}")
    };
    let pss = format!(" (each object once; PSS {})", bytes_text(shared_pss.max_bytes));
    let lines = [
        format!("tensorlend shm: {program}: {seconds:.1} s, {samples}, at most {processes} at a time"),
        peak("private bytes", private, &format!(" (largest process {})", bytes_text(*largest_bytes))),
        peak("shared bytes", shared, &pss),
        twice.map_or_else(
            || format!("  held twice     unknown: {}", report.unread()),
            |twice| twice_text(&twice, *seconds),
        ),
    ];
    lines.join("\n") + "\n"
}

/// Returns the equal bytes, and the line that shares them.
fn twice_text(twice: &Twice, seconds: f64) -> String {
    let (bytes, read) = (bytes_text(twice.bytes), bytes_text(twice.read_bytes));
    let sample = match twice.one_of {
        1 => "all of them compared".to_owned(),
        one_of => format!("a sample of 1 of {one_of} compared, ±{}", bytes_text(twice.error_bytes)),
    };
    let short = if seconds < SHORT_S { " A longer run may show more." } else { "" };
    let advice = if twice.bytes < LITTLE_BYTES {
        format!("Sharing arrays and tensors would save less than {}.", bytes_text(LITTLE_BYTES))
    } else {
        format!("Sharing would save about {bytes}: {REMEDY}.")
    };
    // Objects contain addresses, and arrays begin anywhere in a page.
    let advice =
        format!("{advice}{short} Equal lists and dicts, and arrays at other places of a page, are mostly not found.");
    format!("  held twice     peak {bytes:>10} of {read} of private pages, {sample}\n{advice}")
}
