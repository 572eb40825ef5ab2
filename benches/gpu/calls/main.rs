//! The five scenarios of RMM's study of device allocators, by what they ask of the driver: allocations, frees, waits, mappings
//! and events, in one, two and eight processes; with `TENSORLEND_QUICK`, in one. Only the fake driver logs its calls, so the
//! program needs it and `FAKECUDA_LOG`.
//!
//!     tensorlend-gpu-calls [FILE]       the table on standard output, and the numbers in FILE

use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use tensorlend::{Allocator, Client};
use tensorlend_benches::gpu::{Calls, Card, calls, first_device};
use tensorlend_benches::study::device::{Bench, DeviceSource};
use tensorlend_benches::study::{Scenario, run};
use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};

/// The columns have this part of the study's rows, because the host does the device's work.
const PART: u64 = 512;
const PROCESSES: [usize; 3] = [1, 2, 8];

/// The calls of the first run, which takes the memory, and of the second one.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Runs {
    first: Calls,
    second: Calls,
}

#[derive(Serialize)]
struct Row {
    scenario: &'static str,
    processes: usize,
    memory: &'static str,
    allocations: u64,
    clients: Runs,
    daemon: Calls,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mark, source, scenario, sockets @ ..] = &arguments[..]
        && mark == "__work"
    {
        work(source.parse().expect("a number"), scenario.parse().expect("a number"), sockets);
        return ExitCode::SUCCESS;
    }
    // The log exists after the first call.
    let is_fake = first_device().is_ok_and(|device| device.is_fake());
    if !is_fake || calls().is_none() {
        println!("Calls of the driver: not counted: only the stand-in logs its calls (FAKECUDA_LOG)");
        return ExitCode::SUCCESS;
    }
    println!("\nAll processes of a row together, first run / second run; the daemon: both runs.\n");
    println!(
        "| scenario | processes | memory | columns | allocate | free | wait | map | events | daemon: allocate, free, map |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let rows = measure();
    if let Some(path) = arguments.first() {
        let text = serde_json::to_string_pretty(&rows).expect("numbers can be written");
        std::fs::write(path, text).expect("the file can be written");
    }
    ExitCode::SUCCESS
}

fn now() -> Calls {
    calls().expect("the fake driver writes a log")
}

/// A worker's process: two runs, each when its parent asks for it.
fn work(source: usize, scenario: usize, sockets: &[String]) {
    let (source, scenario) = (DeviceSource::ALL[source], Scenario::ALL[scenario]);
    let connect = |socket: &String| Client::builder().socket(socket).connect().expect("a daemon runs");
    let bench = Bench::new(Card::open().expect("there is a device"), sockets.iter().map(connect).collect());
    let mut lanes = bench.lanes(source, scenario, PART, None);
    let mut input = std::io::stdin().lines();
    let mut one = || {
        input.next();
        let before = now();
        run(scenario, PART, &mut lanes);
        let calls = now().since(before);
        println!("{}", serde_json::to_string(&calls).expect("numbers can be written"));
        calls
    };
    one();
    one();
    // The others may still use memory that this process was lent.
    input.next();
}

struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(source: usize, scenario: usize, sockets: &[String]) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.args(["__work".to_owned(), source.to_string(), scenario.to_string()]).args(sockets);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker starts");
        let out = BufReader::new(child.stdout.take().expect("it has a pipe"));
        Self { child, out }
    }

    fn go(&mut self) {
        writeln!(self.child.stdin.as_mut().expect("it has a pipe")).expect("the worker lives");
    }

    fn answer(&mut self) -> Calls {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("the worker answers");
        serde_json::from_str(&line).expect("the worker counts")
    }
}

/// Starts one daemon per allocator.
fn brokers() -> Vec<Embedded> {
    let broker = |allocator: Allocator| {
        let mut config = Config::default();
        config.cuda.devices = vec!["all".into()];
        config.cuda.allocator = allocator;
        config.cuda.allow_fake = true;
        config.cuda.bytes_max = Some(Bytes(3 << 30));
        // `arena` lends a segment to each of up to 256 streams.
        config.cuda.segment_bytes = Some(Bytes(4 << 20));
        config.namespace_default.segments_max = Some(65536);
        embedded_with(&config).expect("a broker starts")
    };
    DeviceSource::OURS.into_iter().map(broker).collect()
}

fn measure() -> Vec<Row> {
    let brokers = brokers();
    let sockets: Vec<String> = brokers.iter().map(|broker| broker.socket().display().to_string()).collect();
    let mut rows = Vec::new();
    let quick = std::env::var_os("TENSORLEND_QUICK").is_some();
    for &processes in &PROCESSES[..if quick { 1 } else { PROCESSES.len() }] {
        for (number, scenario) in Scenario::ALL.into_iter().enumerate() {
            for (source, memory) in DeviceSource::ALL.into_iter().enumerate() {
                if memory == DeviceSource::Existing {
                    continue;
                }
                // A long log takes long to read. Each call opens the file again, at its end.
                let log = std::env::var_os("FAKECUDA_LOG").expect("the fake driver writes a log");
                std::fs::File::create(log).expect("the log can be emptied");
                let before = now();
                let mut workers: Vec<Worker> =
                    (0..processes).map(|_| Worker::start(source, number, &sockets)).collect();
                let mut turn = || {
                    workers.iter_mut().for_each(Worker::go);
                    workers.iter_mut().map(Worker::answer).fold(Calls::default(), Calls::plus)
                };
                let clients = Runs { first: turn(), second: turn() };
                for mut worker in workers {
                    worker.go();
                    let ended = worker.child.wait().expect("a worker ends");
                    assert!(ended.success(), "a worker: {ended}");
                }
                let (threads, operations) = scenario.shape();
                let each = if scenario == Scenario::RapidChurn { 3 } else { 2 };
                let allocations = (processes * threads * operations * each) as u64;
                let (scenario, memory, daemon) = (scenario.label(), memory.label(), now().since(before));
                let row = Row { scenario, processes, memory, allocations, clients, daemon };
                row.print();
                rows.push(row);
            }
        }
    }
    rows
}

impl Row {
    fn print(&self) {
        let Self { scenario, processes, memory, allocations, clients: Runs { first, second }, daemon } = self;
        let pair = |of: fn(&Calls) -> u64| format!("{} / {}", of(first), of(second));
        println!(
            "| {scenario} | {processes} | {memory} | {allocations} | {} | {} | {} | {} | {} | {}, {}, {} |",
            pair(|calls| calls.allocate),
            pair(|calls| calls.free),
            pair(|calls| calls.synchronize),
            pair(|calls| calls.map),
            pair(|calls| calls.event),
            daemon.allocate,
            daemon.free,
            daemon.map,
        );
    }
}
