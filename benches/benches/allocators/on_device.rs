//! The study on a device.

use super::{PROCESSES, connect};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend_benches::gpu::{Card, about, driver_calls, first_device};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns};
use tensorlend_benches::study::device::{Bench, DeviceSource, Gauge};
use tensorlend_benches::study::{Scenario, run};
use tensorlend_benches::table::{Table, digits, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};
use tensorlend_layout::size::bytes_text;

pub const ROLE: &str = "device";
const SOURCES: usize = DeviceSource::ALL.len();

#[derive(Serialize, Deserialize)]
struct Order {
    source: usize,
    scenario: usize,
    part: u64,
    /// Number of timed runs, after one that allocates the memory.
    runs: u32,
    /// Instead, reports its maximum memory, and its number of driver calls.
    count: bool,
    start_ns: u64,
}

#[derive(Serialize, Deserialize, Default)]
struct Answer {
    samples: Vec<f64>,
    live_bytes: u64,
    peak_bytes: u64,
    calls: Option<u64>,
    /// The run ended early, because the device had no room for all processes. The message is in the error output.
    had_no_room: bool,
}

/// Executes orders.
pub fn work(mut role: Role) {
    let card = Card::open().expect("there is a device");
    let clients = role.args.iter().map(|socket| connect(Path::new(socket))).collect();
    let bench = Bench::new(card, clients);
    while let Some(order) = role.order::<Order>() {
        let (source, scenario) = (DeviceSource::ALL[order.source], Scenario::ALL[order.scenario]);
        let answer = if order.count {
            count(&bench, source, scenario, order.part)
        } else {
            let timed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut lanes = bench.lanes(source, scenario, order.part, None);
                run(scenario, order.part, &mut lanes);
                wait_until(order.start_ns);
                (0..order.runs).map(|_| run(scenario, order.part, &mut lanes)).collect()
            }));
            match timed {
                Ok(samples) => Answer { samples, ..Answer::default() },
                Err(_) => Answer { had_no_room: true, ..Answer::default() },
            }
        };
        if source == DeviceSource::Ordered {
            // Memory that the pool keeps would be missing elsewhere.
            bench.card.trim_pool();
        }
        role.answer(&answer);
    }
}

/// Measures the maximum memory and the driver calls of one run, with counters that would disturb the clock.
fn count(bench: &Bench, source: DeviceSource, scenario: Scenario, part: u64) -> Answer {
    let gauge = Gauge::default();
    let mut lanes = bench.lanes(source, scenario, part, Some(&gauge));
    run(scenario, part, &mut lanes);
    bench.card.pool_peak();
    let (calls, done) = (driver_calls(), AtomicBool::new(false));
    let segments = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = 0;
            // Relaxed: a flag that publishes no other data.
            while !done.load(Ordering::Relaxed) {
                most = most.max(bench.segment_bytes(source));
                std::thread::sleep(Duration::from_micros(200));
            }
            most.max(bench.segment_bytes(source))
        });
        run(scenario, part, &mut lanes);
        done.store(true, Ordering::Relaxed);
        looking.join().expect("who looks does not fail")
    });
    let calls = driver_calls().zip(calls).map(|(after, before)| after - before);
    let live_bytes = gauge.most();
    let peak_bytes = match source {
        DeviceSource::Existing => {
            let ((threads, _), (rows, live)) = (scenario.shape(), scenario.most(part));
            threads as u64 * live as u64 * rows * 8
        }
        DeviceSource::Plain => live_bytes,
        DeviceSource::Ordered => bench.card.pool_peak(),
        DeviceSource::Ours(_) => segments,
    };
    Answer { live_bytes, peak_bytes, calls, ..Answer::default() }
}

/// Starts one daemon per allocator.
fn brokers(part: u64, device: &tensorlend_cuda::Device) -> Vec<Embedded> {
    let broker = |allocator| {
        let mut config = Config::default();
        config.cuda.devices = vec!["all".into()];
        config.cuda.allocator = allocator;
        config.cuda.allow_fake = device.is_fake();
        // Most of the device: segments are not full, and the contenders use the device in turn.
        config.cuda.bytes_max = Some(Bytes(if device.is_fake() { 3 << 30 } else { device.bytes_total() / 20 * 17 }));
        config.namespace_default.segments_max = Some(65536);
        if part > 1 {
            config.cuda.segment_bytes = Some(Bytes(16 << 20));
            config.cuda.idle_bytes_max = Bytes(64 << 20);
        }
        embedded_with(&config).expect("a broker starts")
    };
    DeviceSource::OURS.into_iter().map(broker).collect()
}

/// Returns the time limit of one row's rounds.
fn row_time() -> Duration {
    let given = std::env::var("TENSORLEND_ROW_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(given.unwrap_or(8.0))
}

/// Runs the whole study; without a device it reports that.
pub fn measure(report: &mut Report) {
    let device = match first_device() {
        Ok(device) => device,
        Err(why) => return report.note(format!("Not measured on a device: {why}")),
    };
    // The fake device's kernels run on the host, and its memory is the host's.
    let part = match (device.is_fake(), report.quick) {
        (true, _) => 512,
        (false, true) => 64,
        (false, false) => 1,
    };
    report.value("device", about(&device));
    let brokers = brokers(part, &device);
    let sockets: Vec<String> = brokers.iter().map(|broker| broker.socket().display().to_string()).collect();
    let start = || Worker::start(ROLE, &sockets);

    let mut head = vec!["scenario", "processes"];
    head.extend(DeviceSource::ALL.map(DeviceSource::label));
    head.extend(["cuMemAlloc / cuMemAllocAsync", "pool / cuMemAllocAsync", "async / cuMemAllocAsync"]);
    head.extend(["arena / cuMemAllocAsync", "pool / floor", "arena / floor"]);
    let columns =
        if part == 1 { "the study's columns".to_owned() } else { format!("columns of 1/{part} of the study's") };
    let title = format!("{}, {columns}: median (least .. most) of a whole run", about(&device));
    let (mut table, mut all) = (Table::new(title, &head), Vec::new());
    let whole = Instant::now();
    for processes in PROCESSES {
        if report.quick && processes > 2 {
            continue;
        }
        let mut workers: Vec<Worker> = (0..processes).map(|_| start()).collect();
        for (at, scenario) in Scenario::ALL.into_iter().enumerate() {
            if whole.elapsed() > row_time() * 20 {
                report.note(format!("Left out, since the rest took so long: {} with {processes}", scenario.label()));
                continue;
            }
            let measured = Measured::of(&mut workers, at, part, report.quick);
            table.row(measured.cells(scenario, processes));
            all.push(super::samples(scenario, processes, part, &measured.found));
            let [_, _, ordered, pool, ..] = measured.found.map(|s| nanos(s.p50));
            println!("{} with {processes}: pool {pool}, cuMemAllocAsync {ordered}", scenario.label());
        }
    }
    report.table("device_times", &table);
    report.value("device_samples", all);
    counts(report, &mut start(), part);
}

/// The times of all contenders in one scenario.
struct Measured {
    found: [Summary; SOURCES],
    no_room: [bool; SOURCES],
}

impl Measured {
    /// Runs the scenario with each contender in turn, in as many rounds as the time permits.
    fn of(workers: &mut [Worker], scenario: usize, part: u64, is_quick: bool) -> Self {
        let (mut samples, mut no_room): ([Samples; SOURCES], [bool; SOURCES]) = Default::default();
        let (begin, mut rounds) = (Instant::now(), 0);
        let runs = if is_quick { 1 } else { 3 };
        while rounds == 0 || (!is_quick && rounds < 5 && begin.elapsed() < row_time()) {
            for (source, samples) in samples.iter_mut().enumerate() {
                // All workers start at this time. A worker whose first run takes longer starts when it is ready.
                let start_ns = now_ns() + 20_000_000;
                let order = Order { source, scenario, part, runs, count: false, start_ns };
                let answers = ask_all::<Answer>(workers, &order);
                no_room[source] |= answers.iter().any(|answer| answer.had_no_room);
                for answer in answers {
                    // A table must have a number for each contender.
                    samples.extend(if answer.had_no_room { vec![f64::NAN] } else { answer.samples });
                }
            }
            rounds += 1;
        }
        Self { found: samples.map(|s| s.summary()), no_room }
    }

    fn cells(&self, scenario: Scenario, processes: usize) -> Vec<String> {
        let [floor, plain, ordered, pool, block, arena] = self.found.map(|s| s.p50);
        let in_room = |source: usize, text: String| if self.no_room[source] { "no room".into() } else { text };
        let ratio = |(of, ns): (usize, f64), (to, base): (usize, f64)| in_room(of, in_room(to, times(ns / base)));
        let mut cells = vec![scenario.label().to_owned(), processes.to_string()];
        cells.extend(self.found.iter().enumerate().map(|(source, found)| in_room(source, spread(found))));
        cells.extend([(1, plain), (3, pool), (4, block), (5, arena)].map(|one| ratio(one, (2, ordered))));
        cells.extend([(3, pool), (5, arena)].map(|one| ratio(one, (0, floor))));
        cells
    }
}

/// Reports the bytes and calls of one process.
fn counts(report: &mut Report, worker: &mut Worker, part: u64) {
    let mut head = vec!["scenario", "live"];
    head.extend(DeviceSource::ALL.map(DeviceSource::label));
    let title = "The most device memory of one process at a time: live columns, and what was kept for them";
    let (mut peaks, mut calls, mut any) = (Table::new(title, &head), Vec::new(), false);
    for (at, scenario) in Scenario::ALL.into_iter().enumerate() {
        let order = |source| Order { source, scenario: at, part, runs: 0, count: true, start_ns: 0 };
        let answers: Vec<Answer> = (0..SOURCES).map(|source| worker.ask(&order(source))).collect();
        let plain = DeviceSource::ALL.iter().position(|source| *source == DeviceSource::Plain).expect("it is one");
        let mut cells = vec![scenario.label().to_owned(), bytes_text(answers[plain].live_bytes)];
        cells.extend(answers.iter().map(|answer| bytes_text(answer.peak_bytes)));
        peaks.row(cells);
        let (threads, operations) = scenario.shape();
        let each = |calls: u64| digits(calls as f64 / (threads * operations) as f64);
        any |= answers.iter().any(|answer| answer.calls.is_some());
        let mut cells = vec![scenario.label().to_owned()];
        cells.extend(answers.iter().map(|answer| answer.calls.map_or("?".into(), each)));
        calls.push(cells);
    }
    report.table("device_peaks", &peaks);
    if !any {
        return report
            .note("Calls of the driver: counted on the stand-in alone (FAKECUDA_LOG), which has a log of them.");
    }
    head.remove(1);
    let mut table = Table::new("Calls of the driver for one operation, once everything is warm", &head);
    for cells in calls {
        table.row(cells);
    }
    report.table("device_calls", &table);
}
