//! Questions that the driver's manual leaves open, answered by this machine's device in a table.
//!
//! A separate process with a time limit asks each question: one that hangs, loses its context or is killed on purpose
//! does not stop the others. `tensorlend-gpu-facts NAME...` runs only those steps; `--list` names them.

mod deaths;
mod family;
mod memory;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tensorlend_benches::gpu::{about, first_device};

/// The steps, with their time limits on a real device in seconds.
const STEPS: [(&str, fn(), u64); 13] = [
    ("device", memory::device, 30),
    ("contexts", memory::contexts, 40),
    ("times", memory::times, 60),
    ("zeroed", memory::zeroed, 60),
    ("read-only", deaths::read_only, 30),
    ("orphan", deaths::orphan, 40),
    ("large pool", memory::large_pool, 40),
    ("killed exporter", deaths::killed_exporter, 40),
    ("order", deaths::order, 40),
    ("import twice", deaths::imported_twice, 30),
    ("killed while it works", deaths::killed_while_it_works, 90),
    ("killed before its event", deaths::killed_before_its_event, 40),
    ("word", deaths::released_by_the_host, 20),
];

/// A child's output line: `FACT`, question, answer.
const MARK: &str = "FACT\t";

pub fn fact(question: &str, answer: impl std::fmt::Display) {
    println!("{MARK}{question}\t{}", answer.to_string().replace(['\n', '\t', '|'], " "));
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["--list"] => {
            for (name, ..) in STEPS {
                println!("{name}");
            }
            ExitCode::SUCCESS
        }
        ["__step", name] => {
            family::dies_with_its_parent();
            let step = STEPS.iter().find(|(known, ..)| known == name).expect("a step");
            (step.1)();
            ExitCode::SUCCESS
        }
        ["__child", role, rest @ ..] => {
            family::dies_with_its_parent();
            if !(memory::child(role, rest) || deaths::child(role, rest)) {
                eprintln!("there is no role {role}");
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        wanted => ask(wanted),
    }
}

fn ask(wanted: &[&str]) -> ExitCode {
    if let Some(unknown) = wanted.iter().find(|name| !STEPS.iter().any(|(known, ..)| known == *name)) {
        eprintln!("there is no step {unknown:?}: see --list");
        return ExitCode::FAILURE;
    }
    // This process creates no context and allocates nothing.
    let device = match first_device() {
        Ok(device) => device,
        Err(why) => {
            println!("No facts: {why}");
            return ExitCode::FAILURE;
        }
    };
    println!("# What the driver does\n\n{}.\n", about(&device));
    println!("| step | question | answer |\n|---|---|---|");
    let mut failed = 0;
    for (name, _, limit_s) in STEPS {
        if !wanted.is_empty() && !wanted.contains(&name) {
            continue;
        }
        let begin = Instant::now();
        let end = step(name, Duration::from_secs(limit_s));
        let took = begin.elapsed().as_secs_f64();
        match end {
            Ok(()) => println!("| {name} | | done in {took:.1} s |"),
            Err(why) => {
                failed += 1;
                println!("| {name} | | **{why}**, after {took:.1} s |");
            }
        }
    }
    // A real device may give any answer, which is printed above. The fake device must answer everything.
    if failed > 0 && device.is_fake() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs one step, and prints its answers as they come.
fn step(name: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["__step", name]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| format!("it cannot be started: {e}"))?;
    let out = BufReader::new(child.stdout.take().expect("it has a pipe"));
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if say.send(line).is_err() {
                return;
            }
        }
    });
    let until = Instant::now() + limit;
    let ended = loop {
        match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => match line.strip_prefix(MARK).and_then(|fact| fact.split_once('\t')) {
                Some((question, answer)) => println!("| {name} | {question} | {answer} |"),
                None => eprintln!("{name}: {line}"),
            },
            Err(mpsc::RecvTimeoutError::Disconnected) => break true,
            Err(mpsc::RecvTimeoutError::Timeout) => break false,
        }
    };
    // A process whose work on the device cannot be ended cannot be waited for either.
    let status = ended.then(|| patiently(&mut child)).flatten();
    family::end_group(&child);
    match status {
        _ if !ended => Err(format!("no answer within {} s", limit.as_secs())),
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("it ended with {status}")),
        None => Err("it closed its output and did not end".into()),
    }
}

fn patiently(child: &mut std::process::Child) -> Option<std::process::ExitStatus> {
    for _ in 0..200 {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    None
}
