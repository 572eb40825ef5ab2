//! Linearizability: the results of real processes, some of which are killed, have a sequential order for each name.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_os::clock::monotonic_ns;
use tensorlend_tests::filled::Random;
use tensorlend_tests::history::check::{Bad, check};
use tensorlend_tests::history::log::{Log, RECORD_BYTES, read};
use tensorlend_tests::history::work::{NAMES, Objects, Work, name, notes};
use tensorlend_tests::history::{Answer, Call, Event, by_name, pairs, queue};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Daemon, PATIENCE, binary, budget, number, skip};

/// Number of simultaneous processes.
const PROCESSES: u32 = 3;
/// Threads per process.
const THREADS: u32 = 2;
/// Operations per thread.
const CALLS: u32 = 120;
/// Operations per thread in a history of a queue. Fewer, because all threads share one object.
const QUEUE_CALLS: u32 = 100;
/// Operations per thread in a history of pairs. Fewer, because two names are one object.
const PAIR_CALLS: u32 = 60;
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
    Pairs(Bad<pairs::Step>),
    Queue(Bad<queue::Step>),
}

impl Wrong {
    /// Returns true if the checker could not try all orders.
    fn is_open(&self) -> bool {
        matches!(self, Self::Bad(_, Bad::TooLong) | Self::Pairs(Bad::TooLong) | Self::Queue(Bad::TooLong))
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Torn(said) => write!(f, "a process stopped: {said}"),
            Self::Bad(name, bad) => write!(f, "{name}: {bad}"),
            Self::Pairs(bad) => write!(f, "pair: {bad}"),
            Self::Queue(bad) => write!(f, "queue: {bad}"),
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

struct Test<'t> {
    socket: &'t Path,
    /// A client that is never killed.
    watcher: &'t Client,
    /// The workers' program, and the step of the library that is missing in it.
    program: &'t Path,
    broken: Option<&'t str>,
    objects: Objects,
}

impl Test<'_> {
    /// Runs a history and checks it.
    fn history(&self, round: u32, mut disturb: Disturb<'_>, figures: &mut Figures) -> Result<(), Wrong> {
        let Self { socket, watcher, program, broken, objects } = *self;
        let calls = match objects {
            Objects::Names => CALLS,
            Objects::Pairs => PAIR_CALLS,
            Objects::Queue => QUEUE_CALLS,
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut random = Random(round.into());
        let work = |writer| Work {
            socket: socket.to_owned(),
            folder: folder.path().to_owned(),
            round,
            writer,
            threads: THREADS,
            calls,
            objects,
        };
        // Writers count from 1: value 0 means none.
        let mut processes: Vec<Process> = (1..=PROCESSES).map(|writer| start(&work(writer), broken, program)).collect();
        let works: Vec<Work> = (1..=PROCESSES + KILLS).map(work).collect();
        processes.iter_mut().for_each(go);
        let (mut wrong, mut restarts) = (None, Vec::new());
        let mut finish = |process: Process| {
            let output = process.child.wait_with_output().expect("it can be waited for");
            if !output.status.success() && output.status.signal() != Some(9) {
                wrong = Some(Wrong::Torn(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
        };
        for kill in 0..KILLS {
            let mut victim = processes.remove(random.below(processes.len() as u64) as usize);
            wait_for_notes(&mut victim, folder.path(), random.below(u64::from(calls * THREADS)));
            let _ = victim.child.kill();
            finish(victim);
            figures.kills += 1;
            if let Some(disturb) = disturb.as_mut() {
                let called_ns = monotonic_ns();
                disturb();
                let answer = Some((monotonic_ns(), Answer::Done(0)));
                restarts.push(Event { call: Call::Restart, called_ns, answer });
            }
            let mut next = start(&works[(PROCESSES + kill) as usize], broken, program);
            go(&mut next);
            processes.push(next);
        }
        processes.into_iter().for_each(&mut finish);
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let writers = (1..=PROCESSES + KILLS).flat_map(|writer| (0..THREADS).map(move |thread| (writer, thread)));
        let mut threads: Vec<Vec<Event>> = writers
            .map(|(writer, thread)| read(&notes(folder.path(), writer, thread)).expect("the notes are there"))
            .collect();
        if objects == Objects::Queue {
            let drained = folder.path().join("drained");
            queue::drain(watcher, round, &mut Log::create(&drained).expect("notes can be written"));
            threads.push(read(&drained).expect("the notes are there"));
        } else {
            for number in 0..NAMES {
                watcher.delete(&name(round, number)).expect("anybody may delete");
            }
        }
        figures.histories += 1;
        figures.operations += threads.iter().map(Vec::len).sum::<usize>();
        figures.cut += threads.iter().flatten().filter(|event| event.answer.is_none()).count();
        match objects {
            Objects::Names => {}
            Objects::Pairs => {
                threads.push(restarts);
                return pairs::check(&threads).map_err(Wrong::Pairs);
            }
            Objects::Queue => return queue::check(&threads).map_err(Wrong::Queue),
        }
        for (number, operations) in by_name(&threads.concat()) {
            check(&operations).map_err(|bad| Wrong::Bad(name(round, number), bad))?;
        }
        Ok(())
    }

    /// Runs this number of histories, and more until a kill has interrupted an operation, which it does by chance.
    fn run(&self, wanted: u32) {
        let mut figures = Figures::default();
        let (mut open, mut round) = (0, 0);
        while round < wanted + open || (figures.cut == 0 && round < wanted + UNLUCKY) {
            match self.history(round, None, &mut figures) {
                Ok(()) => {}
                Err(wrong) if wrong.is_open() && open < UNLUCKY => open += 1,
                Err(wrong) => panic!("history {round}: {wrong}"),
            }
            round += 1;
        }
        println!("{figures:?}, {open} with too many orders to try");
        assert!(figures.cut > 0, "nobody was killed in the middle of a call: {figures:?}");
    }
}

/// Runs histories in which the daemon is killed and replaced twice. This number of them must be conclusive.
fn run_with_restarts(mode: &str, objects: Objects, wanted: u32) {
    let service = RefCell::new(Service::start(mode));
    let (watcher, socket) = (service.borrow().client(), service.borrow().socket());
    let program = binary("tensorlend-worker");
    let test = Test { socket: &socket, watcher: &watcher, program: &program, broken: None, objects };
    let mut figures = Figures::default();
    let (mut open, mut round) = (0, 0);
    // The number of operations that meet a dead daemon depends on the machine.
    while round < wanted + open && open < wanted + UNLUCKY {
        let mut disturb = || service.borrow_mut().restart();
        match test.history(round, Some(&mut disturb), &mut figures) {
            Ok(()) => {}
            // Too many operations have an unknown outcome, so the checker cannot try all orders.
            Err(wrong) if wrong.is_open() => open += 1,
            Err(wrong) => panic!("{mode}history {round}: {wrong}"),
        }
        round += 1;
    }
    println!("{mode}{figures:?}, {open} with too many orders to try");
    assert!(round - open >= wanted, "{mode}only {} of {round} histories say something", round - open);
}

/// Returns the number of histories: a few by default, more with `TENSORLEND_TEST=full`, any number with
/// `TENSORLEND_HISTORIES`.
fn histories(small: u32, full: u32) -> u32 {
    number("TENSORLEND_HISTORIES", budget(small, full).into()) as u32
}

/// Runs histories in which only clients are killed.
fn run_with_kills(objects: Objects, wanted: u32) {
    let daemon = Daemon::start("");
    let (socket, watcher, program) = (daemon.socket(), daemon.client(), binary("tensorlend-worker"));
    Test { socket: &socket, watcher: &watcher, program: &program, broken: None, objects }.run(wanted);
}

#[test]
fn every_history_has_an_order() {
    run_with_kills(Objects::Names, histories(25, 200));
}

#[test]
fn every_history_of_a_queue_has_an_order() {
    run_with_kills(Objects::Queue, histories(10, 200));
}

/// Kills and replaces the daemon twice in each history.
#[test]
fn every_history_has_an_order_whatever_becomes_of_the_daemon() {
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        run_with_restarts(mode, Objects::Names, histories(5, 40));
    }
}

#[test]
fn every_history_of_a_queue_has_an_order_whatever_becomes_of_the_daemon() {
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        run_with_restarts(mode, Objects::Queue, histories(3, 40));
    }
}

#[test]
fn every_history_of_lifetimes_and_renames_has_an_order() {
    run_with_kills(Objects::Pairs, histories(25, 200));
}

#[test]
fn every_history_of_lifetimes_and_renames_has_an_order_whatever_becomes_of_the_daemon() {
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        run_with_restarts(mode, Objects::Pairs, histories(5, 40));
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
    let (socket, watcher) = (daemon.socket(), daemon.client());
    let test =
        Test { socket: &socket, watcher: &watcher, program: worker, broken: Some(step), objects: Objects::Names };
    let mut figures = Figures::default();
    for round in 0..rounds {
        match test.history(round, None, &mut figures) {
            Ok(()) => {}
            // Too many orders to check: no fault found.
            Err(wrong) if wrong.is_open() => {}
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
