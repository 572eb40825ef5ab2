//! Allocates a tensor, fills it with ones, drops it: on the heap, in shared memory, in pools of both, and in a client's
//! own slots. Then two questions that a study of pools left open: the cost of a bound on the pool, and the behaviour
//! when no size repeats. Last, the memory of small clients, and of clients with many tensors.
//!
//! `TENSORLEND_PART=memory` measures only the memory.

#[path = "alloc/pools.rs"]
mod pools;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tensorlend::{Client, DType};
use tensorlend_benches::ones::{One, Source, Sources, fill};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns, repeats, timed};
use tensorlend_benches::table::{Table, bytes, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_daemon::{Config, Embedded, embedded, embedded_with};

const SHAPES: [&[u64]; 6] = [&[1, 1200, 1920, 3], &[1, 480, 320, 3], &[160, 160], &[5, 320], &[100], &[8]];
/// Minimum duration of a sample, so that reading the clock does not matter.
const SAMPLE_NS: f64 = 20_000.0;

fn main() {
    if let Some(role) = Role::mine() {
        return work(role);
    }
    let mut report = Report::begin("alloc");
    if std::env::var("TENSORLEND_PART").is_ok_and(|part| part == "memory") {
        memory(&mut report);
        return report.end();
    }
    let broker = embedded().expect("a broker starts");
    study(&mut report, &broker);
    processes(&mut report, &broker);
    drop(broker);
    pools::bounded(&mut report);
    for window in [64, 1] {
        pools::never_repeating(&mut report, window);
    }
    memory(&mut report);
    report.end();
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("a client connects")
}

/// Measures the memory of clients, as the numbers of clients, tensors of each, and bytes of each tensor. Each case has a broker
/// of its own.
fn memory(report: &mut Report) {
    let small = [(1, 1000), (100, 1000), (500, 1000), (10, 1 << 16), (100, 1 << 16), (6, 1_000_000)];
    let many = [64, 4096, 80 << 10, 256 << 10, 1 << 20].map(|length| (1, 1000, length));
    let most = [64, 4096].map(|length| (1, 100_000, length));
    let clients = if report.quick { 4 } else { 100 };
    let small = small.map(|(tensors, length)| (clients, tensors, length));
    let cases = small.into_iter().chain(many).chain(most.into_iter().filter(|_| !report.quick));
    let head = [
        "clients",
        "tensors of each",
        "live bytes of all",
        "segments in use",
        "slot records",
        "all tables",
        "requests",
    ];
    let mut table = Table::new("Memory of clients with tensors of their own", &head);
    for (clients, tensors, length) in cases {
        let mut config = Config::default();
        config.namespace_default.names_max = Some(1 << 17);
        let broker = embedded_with(&config).expect("a broker starts");
        let value = vec![1u8; length];
        let connected: Vec<Client> = (0..clients).map(|_| connect(broker.socket())).collect();
        let before = connected[0].stat().expect("figures").requests;
        for (number, client) in connected.iter().enumerate() {
            for tensor in 0..tensors {
                client.put(&format!("{number}/{tensor}"), &value).expect("a slot");
            }
        }
        let stat = connected[0].stat().expect("figures");
        table.row([
            clients.to_string(),
            format!("{tensors} of {length} B"),
            bytes((clients * tensors * length) as u64),
            bytes(stat.bytes_in_use),
            bytes(memfd_bytes("tensorlend-slots")),
            bytes(stat.bytes_sheets),
            (stat.requests - before).to_string(),
        ]);
    }
    report.table("memory", &table);
}

/// Returns the bytes of the pages that the memfds with this name have. The broker runs in this process.
fn memfd_bytes(name: &str) -> u64 {
    let link = format!("/memfd:{name} (deleted)");
    let ours = std::fs::read_dir("/proc/self/fd").expect("this process").flatten().map(|entry| entry.path());
    let files = ours.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == link.as_str()));
    let pages: BTreeMap<u64, u64> = files.flat_map(std::fs::metadata).map(|file| (file.ino(), file.blocks())).collect();
    pages.values().sum::<u64>() * 512
}

struct Row {
    shape: &'static [u64],
    dtype: DType,
    bytes: u64,
    sources: [Summary; 6],
    first: Summary,
}

fn study(report: &mut Report, broker: &Embedded) {
    let mut sources = Sources::new(connect(broker.socket()));
    let mut rows: Vec<Row> = Vec::new();
    for shape in SHAPES.iter().rev() {
        rows.push(row::<u8>(report.quick, broker, &mut sources, shape));
        if !report.quick {
            rows.push(row::<i8>(false, broker, &mut sources, shape));
            rows.push(row::<u16>(false, broker, &mut sources, shape));
            rows.push(row::<i16>(false, broker, &mut sources, shape));
            rows.push(row::<u32>(false, broker, &mut sources, shape));
            rows.push(row::<i32>(false, broker, &mut sources, shape));
        }
        rows.push(row::<f32>(report.quick, broker, &mut sources, shape));
        if !report.quick {
            rows.push(row::<u64>(false, broker, &mut sources, shape));
            rows.push(row::<i64>(false, broker, &mut sources, shape));
            rows.push(row::<f64>(false, broker, &mut sources, shape));
        }
    }
    let mut head = vec!["shape", "dtype", "size"];
    head.extend(Source::ALL.map(Source::label));
    head.extend(["tensorlend, first slot", "tensorlend / floor", "tensorlend - floor"]);
    let mut table = Table::new("Allocate, fill with ones, drop: medians", &head);
    for row in &rows {
        let [floor, .., ours] = row.sources.map(|s| s.p50);
        let mut cells = vec![format!("{:?}", row.shape), row.dtype.name().to_owned(), bytes(row.bytes)];
        cells.extend(row.sources.map(|s| nanos(s.p50)));
        cells.extend([nanos(row.first.p50), times(ours / floor), nanos(ours - floor)]);
        table.row(cells);
    }
    report.table("study", &table);
    let all = rows.iter().map(|row| {
        let named: serde_json::Map<_, _> =
            Source::ALL.iter().zip(row.sources).map(|(s, n)| (s.label().to_owned(), serde_json::json!(n))).collect();
        serde_json::json!({ "shape": row.shape, "dtype": row.dtype.name(), "bytes": row.bytes, "ns": named,
            "first_slot_ns": row.first })
    });
    report.value("study_samples", all.collect::<Vec<_>>());
}

fn row<T: One>(quick: bool, broker: &Embedded, sources: &mut Sources, shape: &'static [u64]) -> Row {
    let bytes = shape.iter().product::<u64>() * size_of::<T>() as u64;
    let mut counts = [0; 6];
    for (count, source) in counts.iter_mut().zip(Source::ALL) {
        *count = repeats(SAMPLE_NS, || sources.once::<T>(source, shape));
    }
    let rounds = match (quick, bytes) {
        (true, _) => 5,
        (_, 10_000_000..) => 9,
        (_, 1_000_000..) => 15,
        _ => 31,
    };
    let mut samples: [Samples; 6] = Default::default();
    let mut first = Samples::default();
    for round in 0..rounds {
        for (at, source) in Source::ALL.into_iter().enumerate() {
            samples[at].push(timed(counts[at], || sources.once::<T>(source, shape)));
        }
        if round < 5 {
            first.push(first_slot::<T>(broker, shape));
        }
    }
    sources.forget();
    Row { shape, dtype: T::DTYPE, bytes, sources: samples.map(|s| s.summary()), first: first.summary() }
}

/// Measures the first slot of a client without a segment, which requests one from the daemon.
fn first_slot<T: One>(broker: &Embedded, shape: &[u64]) -> f64 {
    let client = connect(broker.socket());
    // The daemon cleans up after the previous client, and prepares memory in advance, as it does between two real
    // clients.
    std::thread::sleep(Duration::from_millis(5));
    timed(1, || {
        let mut draft = client.create(T::DTYPE, shape).expect("a slot");
        fill(draft.as_mut_slice::<T>().expect("its type"));
    })
}

#[derive(Serialize, Deserialize)]
struct Round {
    source: usize,
    shape: usize,
    samples: u32,
    start_ns: u64,
}

fn work(mut role: Role) {
    let mut sources = Sources::new(connect(Path::new(&role.args[0])));
    while let Some(round) = role.order::<Round>() {
        let (source, shape) = (Source::ALL[round.source], SHAPES[round.shape]);
        let count = repeats(SAMPLE_NS, || sources.once::<f32>(source, shape));
        wait_until(round.start_ns);
        let samples: Vec<f64> =
            (0..round.samples).map(|_| timed(count, || sources.once::<f32>(source, shape))).collect();
        role.answer(&samples);
    }
}

/// Measures the same in several client processes at once, with float32.
fn processes(report: &mut Report, broker: &Embedded) {
    let wanted = [Source::Existing, Source::HeapPool, Source::Ours];
    let mut table = Table::new(
        "The same in several processes at once, float32: median (least .. most)",
        &["processes", "size", "fill only (floor)", "heap, pool", "tensorlend", "tensorlend / floor"],
    );
    for count in [1, 2, 8] {
        let socket = broker.socket().display().to_string();
        let mut workers: Vec<Worker> =
            (0..count).map(|_| Worker::start("alloc", std::slice::from_ref(&socket))).collect();
        for (shape, dims) in SHAPES.iter().enumerate().rev() {
            let mut samples: [Samples; 3] = Default::default();
            let rounds = if report.quick { 1 } else { 3 };
            for _ in 0..rounds {
                for (at, &source) in wanted.iter().enumerate() {
                    let source = Source::ALL.iter().position(|s| *s == source).expect("one of all");
                    let order = Round { source, shape, samples: 7, start_ns: now_ns() + 3_000_000 };
                    for answer in ask_all::<Vec<f64>>(&mut workers, &order) {
                        samples[at].extend(answer);
                    }
                }
            }
            let [floor, pool, ours] = samples.map(|s| s.summary());
            let size = bytes(dims.iter().product::<u64>() * 4);
            let ratio = times(ours.p50 / floor.p50);
            table.row([count.to_string(), size, spread(&floor), spread(&pool), spread(&ours), ratio]);
        }
    }
    report.table("processes", &table);
}
