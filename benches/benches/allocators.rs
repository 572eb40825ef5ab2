//! The study of device allocators: five patterns of allocation, each by many threads, with the study's work on the
//! columns; in one process and in several at once. In host memory everywhere; on a device if there is one (feature
//! `cuda`).

#[cfg(feature = "cuda")]
#[path = "allocators/on_device.rs"]
mod on_device;

use serde::{Deserialize, Serialize};
use std::path::Path;
use tensorlend::Client;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns};
use tensorlend_benches::study::host::HostSource;
use tensorlend_benches::study::{Scenario, run};
use tensorlend_benches::table::{Table, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};

/// Numbers of simultaneous clients.
const PROCESSES: [usize; 3] = [1, 2, 8];

fn main() {
    if let Some(role) = Role::mine() {
        #[cfg(feature = "cuda")]
        if role.name == on_device::ROLE {
            return on_device::work(role);
        }
        return work_on_host(role);
    }
    let mut report = Report::begin("allocators");
    // TENSORLEND_STUDY=host or device selects one part.
    let wanted = std::env::var("TENSORLEND_STUDY").unwrap_or_default();
    if wanted != "device" {
        on_host(&mut report);
    }
    #[cfg(feature = "cuda")]
    if wanted != "host" {
        on_device::measure(&mut report);
    }
    report.end();
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("a client connects")
}

#[derive(Serialize, Deserialize)]
struct Order {
    source: usize,
    scenario: usize,
    part: u64,
    runs: u32,
    start_ns: u64,
}

/// Executes orders; the first run of each order allocates the memory and is not reported.
fn work_on_host(mut role: Role) {
    let client = connect(Path::new(&role.args[0]));
    while let Some(order) = role.order::<Order>() {
        let (source, scenario) = (HostSource::ALL[order.source], Scenario::ALL[order.scenario]);
        let mut lanes = source.lanes(&client, scenario, order.part);
        run(scenario, order.part, &mut lanes);
        wait_until(order.start_ns);
        let samples: Vec<f64> = (0..order.runs).map(|_| run(scenario, order.part, &mut lanes)).collect();
        role.answer(&samples);
    }
}

fn on_host(report: &mut Report) {
    // Host columns of the study's lengths would need gigabytes per process: uses shorter ones, but as many.
    let part = if report.quick { 64 } else { 8 };
    let broker = broker(part);
    let mut head = vec!["scenario", "processes"];
    head.extend(HostSource::ALL.map(HostSource::label));
    head.extend(["tensorlend / floor", "heap / floor"]);
    let title = format!("Host memory, columns of 1/{part} of the study's rows: median (least .. most) of a whole run");
    let mut table = Table::new(title, &head);
    let mut all = Vec::new();
    for processes in PROCESSES {
        if report.quick && processes > 2 {
            continue;
        }
        let socket = broker.socket().display().to_string();
        let start = || Worker::start("allocators", std::slice::from_ref(&socket));
        let mut workers: Vec<Worker> = (0..processes).map(|_| start()).collect();
        for (at, scenario) in Scenario::ALL.into_iter().enumerate() {
            let mut taken: [Samples; 4] = Default::default();
            for _ in 0..if report.quick { 1 } else { 3 } {
                for (source, samples) in taken.iter_mut().enumerate() {
                    let start_ns = now_ns() + 3_000_000;
                    let runs = if report.quick { 1 } else { 3 };
                    let order = Order { source, scenario: at, part, runs, start_ns };
                    for answer in ask_all::<Vec<f64>>(&mut workers, &order) {
                        samples.extend(answer);
                    }
                }
            }
            let found: [Summary; 4] = taken.map(|s| s.summary());
            let [floor, heap, .., ours] = found.map(|s| s.p50);
            let mut cells = vec![scenario.label().to_owned(), processes.to_string()];
            cells.extend(found.iter().map(spread));
            cells.extend([times(ours / floor), times(heap / floor)]);
            table.row(cells);
            all.push(samples(scenario, processes, part, &found));
            println!("{} with {processes}: {} beside {}", scenario.label(), nanos(ours), nanos(floor));
        }
    }
    report.table("host", &table);
    report.value("host_samples", all);
}

/// Returns the results of one row for the file.
fn samples(scenario: Scenario, processes: usize, part: u64, found: &[Summary]) -> serde_json::Value {
    serde_json::json!({ "scenario": scenario.label(), "processes": processes, "part": part, "ns": found })
}

/// Starts a daemon with room for the maximum of eight processes.
fn broker(part: u64) -> Embedded {
    let most = Scenario::ALL.into_iter().map(|scenario| scenario.bytes_max(part)).max().expect("there are scenarios");
    let mut config = Config::default();
    config.pool.bytes_max = Some(Bytes((most * 8 * 2).next_multiple_of(1 << 20).max(1 << 30)));
    embedded_with(&config).expect("a broker starts")
}
