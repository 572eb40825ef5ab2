//! Linearizability: the results of real processes, some of which are killed, have a sequential order for each name.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_tests::filled::Random;
use tensorlend_tests::history::check::{Bad, check};
use tensorlend_tests::history::log::{RECORD_BYTES, read};
use tensorlend_tests::history::work::{NAMES, Work, name, notes};
use tensorlend_tests::history::{Event, by_name};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Daemon, PATIENCE, binary, budget, number, skip};

/// Number of simultaneous processes.
const PROCESSES: u32 = 3;
/// Threads per process.
const THREADS: u32 = 2;
/// Operations per thread.
const CALLS: u32 = 120;
/// Number of processes killed in a history, each replaced by a new one.
const KILLS: u32 = 2;
/// Maximum number of extra histories if the requested ones did not meet the condition that they must show.
const UNLUCKY: u32 = 200;

/// A disturbance in the middle of a history, besides killed clients: the daemon is killed and restarted. Operations in
/// the meantime may report a lost connection; the checker treats their effect as unknown.
type Disturb<'d> = Option<&'d mut dyn FnMut()>;

#[derive(Debug, Default)]
struct Figures {
    histories: u32,
    operations: usize,
    cut: usize,
    kills: u32,
}

/// The fault of a history.
#[derive(Debug)]
enum Wrong {
    /// A process ended by itself: it saw a torn tensor.
    Torn(String),
    Bad(String, Bad),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Torn(said) => write!(f, "a process stopped: {said}"),
            Self::Bad(name, bad) => write!(f, "{name}: {bad}"),
        }
    }
}

struct Process {
    child: Child,
    writer: u32,
}

fn start(work: &Work, broken: Option<&str>, program: &Path) -> Process {
    let mut command = Command::new(program);
    command.arg("history").args(work.arguments());
    if let Some(broken) = broken {
        command.env("TENSORLEND_BROKEN", broken);
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("a worker starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a worker speaks");
    if line != "ready\n" {
        let _ = child.wait();
        let mut said = String::new();
        let _ = std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut said);
        panic!("a worker did not connect: {said}");
    }
    Process { child, writer: work.writer }
}

fn go(process: &mut Process) {
    writeln!(process.child.stdin.as_mut().expect("piped"), "go").expect("the worker listens");
}

/// Waits until a process has logged this number of records, or has ended.
fn wait_for_notes(process: &mut Process, folder: &Path, records: u64) {
    let started = Instant::now();
    let noted = || {
        let sizes = (0..THREADS).map(|thread| notes(folder, process.writer, thread));
        sizes.filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum::<u64>() / RECORD_BYTES
    };
    while noted() < records && process.child.try_wait().expect("it can be waited for").is_none() {
        assert!(started.elapsed() < PATIENCE, "a worker does not get on");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Runs a history and checks it.
fn history(
    socket: &Path,
    watcher: &Client,
    round: u32,
    (broken, program): (Option<&str>, &Path),
    mut disturb: Disturb<'_>,
    figures: &mut Figures,
) -> Result<(), Wrong> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut random = Random(round.into());
    let work = |writer| Work {
        socket: socket.to_owned(),
        folder: folder.path().to_owned(),
        round,
        writer,
        threads: THREADS,
        calls: CALLS,
    };
    // Writers count from 1: value 0 means none.
    let mut processes: Vec<Process> = (1..=PROCESSES).map(|writer| start(&work(writer), broken, program)).collect();
    let works: Vec<Work> = (1..=PROCESSES + KILLS).map(work).collect();
    processes.iter_mut().for_each(go);
    let mut wrong = None;
    let mut finish = |process: Process| {
        let output = process.child.wait_with_output().expect("it can be waited for");
        if !output.status.success() && output.status.signal() != Some(9) {
            wrong = Some(Wrong::Torn(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
    };
    for kill in 0..KILLS {
        let mut victim = processes.remove(random.below(processes.len() as u64) as usize);
        wait_for_notes(&mut victim, folder.path(), random.below(u64::from(CALLS * THREADS)));
        let _ = victim.child.kill();
        finish(victim);
        figures.kills += 1;
        if let Some(disturb) = disturb.as_mut() {
            disturb();
        }
        let mut next = start(&works[(PROCESSES + kill) as usize], broken, program);
        go(&mut next);
        processes.push(next);
    }
    processes.into_iter().for_each(&mut finish);
    let mut events: Vec<Event> = Vec::new();
    for writer in 1..=PROCESSES + KILLS {
        for thread in 0..THREADS {
            events.extend(read(&notes(folder.path(), writer, thread)).expect("the notes are there"));
        }
    }
    for number in 0..NAMES {
        watcher.delete(&name(round, number)).expect("anybody may delete");
    }
    figures.histories += 1;
    figures.operations += events.len();
    figures.cut += events.iter().filter(|event| event.answer.is_none()).count();
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    for (number, operations) in by_name(&events) {
        check(&operations).map_err(|bad| Wrong::Bad(name(round, number), bad))?;
    }
    Ok(())
}

/// Returns the number of histories: a few by default, more with `TENSORLEND_TEST=full`, any number with
/// `TENSORLEND_HISTORIES`.
fn histories(small: u32, full: u32) -> u32 {
    number("TENSORLEND_HISTORIES", budget(small, full).into()) as u32
}

#[test]
fn every_history_has_an_order() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let worker = binary("tensorlend-worker");
    let mut figures = Figures::default();
    let wanted = histories(25, 200);
    let mut round = 0;
    // A kill interrupts an operation only by chance. At least one kill must; most do.
    while round < wanted || (figures.cut == 0 && round < wanted + UNLUCKY) {
        if let Err(wrong) = history(&daemon.socket(), &watcher, round, (None, &worker), None, &mut figures) {
            panic!("history {round}: {wrong}");
        }
        round += 1;
    }
    println!("{figures:?}");
    assert!(figures.cut > 0, "nobody was killed in the middle of a call: {figures:?}");
}

/// Kills and replaces the daemon twice in each history.
#[test]
fn every_history_has_an_order_whatever_becomes_of_the_daemon() {
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        let service = RefCell::new(Service::start(mode));
        let (watcher, socket) = (service.borrow().client(), service.borrow().socket());
        let worker = binary("tensorlend-worker");
        let mut figures = Figures::default();
        let (wanted, mut open, mut round) = (histories(5, 40), 0, 0);
        // The number of operations that meet a dead daemon depends on the machine. This many histories must be
        // conclusive.
        while round < wanted + open && open < wanted + UNLUCKY {
            let mut disturb = || service.borrow_mut().restart();
            let what = history(&socket, &watcher, round, (None, &worker), Some(&mut disturb), &mut figures);
            match what {
                Ok(()) => {}
                // Too many operations have an unknown outcome, so the checker cannot try all orders.
                Err(Wrong::Bad(_, Bad::TooLong)) => open += 1,
                Err(wrong) => panic!("{mode}history {round}: {wrong}"),
            }
            round += 1;
        }
        println!("{mode}{figures:?}, {open} with too many orders to try");
        assert!(round - open >= wanted, "{mode}only {} of {round} histories say something", round - open);
    }
}

/// Returns a build whose steps can be disabled; records the reason if there is none.
fn broken_programs() -> Option<std::path::PathBuf> {
    let folder = std::env::var_os("TENSORLEND_TEST_BUILD");
    if folder.is_none() {
        skip(
            "TENSORLEND_TEST_BUILD does not name a folder with the programs of `cargo build -p tensorlend-tests -p \
             tensorlend-daemon --bins --features tensorlend-tests/broken-for-tests`, as scripts/test makes one",
        );
    }
    folder.map(|folder| Path::new(&folder).join("tensorlend-worker"))
}

/// Runs up to `rounds` histories of clients without one step, until one is wrong; returns the fault.
fn broken(step: &str, rounds: u32, worker: &Path) -> (Figures, Option<Wrong>) {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let mut figures = Figures::default();
    for round in 0..rounds {
        match history(&daemon.socket(), &watcher, round, (Some(step), worker), None, &mut figures) {
            // Too many orders to check: no fault found.
            Ok(()) | Err(Wrong::Bad(_, Bad::TooLong)) => {}
            Err(wrong) => return (figures, Some(wrong)),
        }
    }
    (figures, None)
}

fn said(wrong: Option<&Wrong>) -> String {
    wrong.map_or_else(|| "nothing was noticed".into(), ToString::to_string)
}

/// Maximum number of rounds until a broken build must fail. Most fail in one of the first ten, by chance.
const BROKEN_ROUNDS: u32 = 2000;

#[test]
fn clients_that_claim_nothing_are_caught() {
    let Some(worker) = broken_programs() else { return };
    let (figures, wrong) = broken("claim", BROKEN_ROUNDS, &worker);
    assert!(matches!(wrong, Some(Wrong::Bad(_, Bad::NotLinearizable(_)))), "{figures:?}: {}", said(wrong.as_ref()));
}

#[test]
fn owners_that_do_not_scan_for_leases_are_caught() {
    let Some(worker) = broken_programs() else { return };
    let (figures, wrong) = broken("scan", BROKEN_ROUNDS, &worker);
    println!("{figures:?}: {}", said(wrong.as_ref()));
    assert!(wrong.is_some(), "nothing was noticed: {figures:?}");
}

#[test]
fn readers_that_read_once_are_caught_and_slow_ones_are_right() {
    let Some(worker) = broken_programs() else { return };
    let (figures, wrong) = broken("second-read", BROKEN_ROUNDS, &worker);
    println!("{figures:?}: {}", said(wrong.as_ref()));
    assert!(wrong.is_some(), "nothing was noticed: {figures:?}");
    let (figures, wrong) = broken("slow", 10, &worker);
    assert!(wrong.is_none(), "{figures:?}: {}", said(wrong.as_ref()));
}
