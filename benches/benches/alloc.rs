//! Allocates a tensor, fills it with ones, drops it: on the heap, in shared memory, in pools of both, and in a client's
//! own slots. Then two questions that a study of pools left open: the cost of a bound on the pool, and the behaviour
//! when no size repeats. Last, the memory of many small clients.

#[path = "alloc/pools.rs"]
mod pools;

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use tensorlend::{Client, DType};
use tensorlend_benches::ones::{One, Source, Sources, fill};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns, repeats, timed};
use tensorlend_benches::table::{Table, bytes, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_daemon::{Embedded, embedded};

const SHAPES: [&[u64]; 6] = [&[1, 1200, 1920, 3], &[1, 480, 320, 3], &[160, 160], &[5, 320], &[100], &[8]];
/// Minimum duration of a sample, so that reading the clock does not matter.
const SAMPLE_NS: f64 = 20_000.0;

fn main() {
    if let Some(role) = Role::mine() {
        return work(role);
    }
    let mut report = Report::begin("alloc");
    let broker = embedded().expect("a broker starts");
    study(&mut report, &broker);
    processes(&mut report, &broker);
    drop(broker);
    pools::bounded(&mut report);
    for window in [64, 1] {
        pools::never_repeating(&mut report, window);
    }
    small_clients(&mut report);
    report.end();
}

fn connect(socket: &Path) -> Client {
    Client::builder().socket(socket).connect().expect("a client connects")
}

/// The memory of many clients with few tensors each. Each case has a broker of its own.
fn small_clients(report: &mut Report) {
    let clients = if report.quick { 4 } else { 100 };
    let title = format!("Memory of {clients} clients with tensors of their own");
    let mut table =
        Table::new(title, &["tensors of each client", "live bytes of all", "segments in use", "shared tables"]);
    for (tensors, length) in [(1, 1000), (100, 1000), (500, 1000), (10, 1 << 16), (100, 1 << 16), (6, 1_000_000)] {
        let broker = embedded().expect("a broker starts");
        let value = vec![1u8; length];
        let clients: Vec<Client> = (0..clients).map(|_| connect(broker.socket())).collect();
        for (number, client) in clients.iter().enumerate() {
            for tensor in 0..tensors {
                client.put(&format!("{number}/{tensor}"), &value).expect("a slot");
            }
        }
        let stat = clients[0].stat().expect("figures");
        let live = (clients.len() * tensors * length) as u64;
        table.row(vec![
            format!("{tensors} of {length} B"),
            bytes(live),
            bytes(stat.bytes_in_use),
            bytes(stat.bytes_sheets),
        ]);
    }
    report.table("small_clients", &table);
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
