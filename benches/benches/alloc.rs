//! Allocates a tensor, fills it with ones, drops it: on the heap, in shared memory, in pools of both, and in a client's
//! own slots. Then two questions that a study of pools left open: the cost of a bound on the pool, and the behaviour
//! when no size repeats. Last, the memory of many small clients.
#![allow(missing_docs)]

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;
use tensorlend::{Client, DType, Draft};
use tensorlend_benches::ones::{One, Source, Sources, fill, fill_words, heap};
use tensorlend_benches::pool::{Count, ExactPool};
use tensorlend_benches::random::Random;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns, repeats, timed};
use tensorlend_benches::table::{Table, bytes, digits, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_daemon::{Config, Embedded, embedded, embedded_with};

const SHAPES: [&[u64]; 6] = [&[1, 1200, 1920, 3], &[1, 480, 320, 3], &[160, 160], &[5, 320], &[100], &[8]];
/// Minimum duration of a sample, so that reading the clock does not matter.
const SAMPLE_NS: f64 = 20_000.0;
const SEED: u64 = 2026;

fn main() {
    if let Some(role) = Role::mine() {
        return work(role);
    }
    let mut report = Report::begin("alloc");
    let broker = embedded().expect("a broker starts");
    study(&mut report, &broker);
    processes(&mut report, &broker);
    drop(broker);
    bounded(&mut report);
    for window in [64, 1] {
        never_repeating(&mut report, window);
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

/// A pool bounded to twice, once and half of the working set: the sizes of the study, in an order without a pattern.
fn bounded(report: &mut Report) {
    let mut sizes: Vec<usize> = SHAPES
        .iter()
        .flat_map(|shape| [1, 2, 4, 8].map(|width| shape.iter().product::<u64>() as usize * width))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let working_set: usize = sizes.iter().sum();
    let steps = if report.quick { 150 } else { 600 };
    let mut table = Table::new(
        format!(
            "A bounded pool: {} sizes, {:.1} MB together, one tensor at a time, {steps} steps in random order",
            sizes.len(),
            working_set as f64 / 1e6
        ),
        &[
            "bound",
            "contender",
            "mean",
            "p50",
            "p99",
            "hits",
            "evictions or segments asked for",
            "evicted or mapped at most",
        ],
    );
    for (name, bound) in [("twice", 2 * working_set), ("once", working_set), ("half", working_set / 2)] {
        let mut config = Config::default();
        config.pool.bytes_max = Some(format!("{}", bound.next_multiple_of(4096)).parse().expect("a number"));
        // Ordinary segments must fit into the bound; spare ones would count against it too.
        config.pool.segment_bytes = "8MiB".parse().expect("a number");
        config.pool.spare_segments = 0;
        let broker = embedded_with(&config).expect("a broker starts");
        let client = connect(broker.socket());
        let mut pool: ExactPool<Box<[u64]>> = ExactPool::new(Some(bound));
        let mut floor = heap(*sizes.last().expect("sizes"));
        let mut samples: [Samples; 3] = Default::default();
        let mut totals = [0.0; 3];
        let (mut hits, mut asked, mut refused, mut mapped_max) = (0, 0, 0, 0);
        let mut random = Random::new(SEED);
        let mut before = client.stat().expect("figures").requests;
        for step in 0..2 * steps {
            if step == steps {
                // The first half warms up.
                (samples, totals) = Default::default();
                (hits, asked, refused, mapped_max) = (0, 0, 0, 0);
                pool.count = Count::default();
            }
            let bytes = sizes[random.below(sizes.len() as u64) as usize];
            let existing = timed(1, || fill_words::<u8>(&mut floor, bytes));
            let pooled = timed(1, || {
                let mut region = pool.take(bytes, heap);
                fill_words::<u8>(&mut region, bytes);
                pool.give(bytes, region);
            });
            let ours = timed(1, || match client.create(DType::U8, &[bytes as u64]) {
                Ok(mut draft) => fill(draft.as_mut_slice::<u8>().expect("its type")),
                Err(e) if e.is_limit() => refused += 1,
                Err(e) => panic!("{e}"),
            });
            for (at, ns) in [existing, pooled, ours].into_iter().enumerate() {
                samples[at].push(ns);
                totals[at] += ns / f64::from(steps);
            }
            let after = client.stat().expect("figures").requests;
            // The request for the metrics counts too.
            let requests = after - before - 1;
            (asked, hits, before) = (asked + requests, hits + u64::from(requests == 0), after);
            mapped_max = mapped_max.max(client.memory().segment_bytes);
        }
        let part = |hits: u64| format!("{:.1} %", 100.0 * hits as f64 / f64::from(steps));
        let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        let figures = [
            ("fill only (floor)", "-".into(), "-".into(), "-".into()),
            (
                "heap, pool, least recently used goes",
                part(pool.count.hits),
                format!("{}, {} of them below 1 MB", pool.count.evictions, pool.count.evicted_small),
                mb(pool.count.evicted_bytes),
            ),
            ("tensorlend", part(hits), format!("{asked} requests, {refused} refused"), mb(mapped_max)),
        ];
        for (at, (contender, hits, evictions, evicted)) in figures.into_iter().enumerate() {
            let summary = samples[at].summary();
            table.row([
                name.into(),
                contender.into(),
                nanos(totals[at]),
                nanos(summary.p50),
                nanos(summary.p99),
                hits,
                evictions,
                evicted,
            ]);
        }
    }
    report.table("bounded", &table);
}

/// Sizes from 8 B to 64 MB, log-uniform, all different; `window` tensors live at a time, and the next to be dropped is
/// chosen at random.
fn never_repeating(report: &mut Report, window: usize) {
    let (warm_up, steps) = if report.quick { (200, 300) } else { (500, 1500) };
    let mut config = Config::default();
    config.pool.bytes_max = Some("6GiB".parse().expect("a number"));
    let broker = embedded_with(&config).expect("a broker starts");
    let client = connect(broker.socket());
    let mut random = Random::new(SEED);
    let mut floor = heap(64 << 20);
    let mut pool: ExactPool<Box<[u64]>> = ExactPool::new(Some(512 << 20));
    let mut lives: [Vec<(usize, Held)>; 3] = Default::default();
    let mut samples: [Samples; 4] = Default::default();
    let mut creates: [Samples; 3] = Default::default();
    let mut rest: [Samples; 3] = Default::default();
    let (mut hits, mut live_max, mut segments_max, mut pool_max) = (0u64, 0, 0, 0);
    let mut means = (0.0, 0.0);
    let mut before = client.stat().expect("figures").requests;
    for step in 0..warm_up + steps {
        if step == warm_up {
            (samples, creates, rest) = Default::default();
            (hits, live_max, segments_max, pool_max, means) = (0, 0, 0, 0, (0.0, 0.0));
            pool.count = Count::default();
        }
        let bytes = random.log_uniform(8, 64 << 20) as usize;
        let goes = (lives[0].len() == window).then(|| random.below(window as u64) as usize);
        let existing = timed(1, || fill_words::<u8>(&mut floor, bytes));
        samples[3].push(existing);
        for at in 0..3 {
            let start = now_ns();
            let mut held = match at {
                0 => Held::Heap(heap(bytes)),
                1 => Held::Heap(pool.take(bytes, heap)),
                _ => Held::Ours(client.create(DType::U8, &[bytes as u64]).expect("a slot")),
            };
            let created = now_ns();
            match &mut held {
                Held::Heap(words) => fill_words::<u8>(words, bytes),
                Held::Ours(draft) => fill(draft.as_mut_slice::<u8>().expect("its type")),
            }
            if let Some(goes) = goes {
                match (at, lives[at].swap_remove(goes)) {
                    (1, (bytes, Held::Heap(words))) => pool.give(bytes, words),
                    (_, gone) => drop(gone),
                }
            }
            let end = now_ns();
            lives[at].push((bytes, held));
            samples[at].push((end - start) as f64);
            creates[at].push((created - start) as f64);
            rest[at].push((end - start) as f64 - existing);
        }
        let live = lives[2].iter().map(|(bytes, _)| *bytes as u64).sum::<u64>();
        live_max = live_max.max(live);
        let segments = client.memory().segment_bytes;
        segments_max = segments_max.max(segments);
        means = (means.0 + segments as f64, means.1 + live as f64);
        pool_max = pool_max.max(pool.bytes() as u64 + live);
        let after = client.stat().expect("figures").requests;
        hits += u64::from(after - before == 1);
        before = after;
    }
    let mb = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let part = |hits: u64| format!("{:.1} %", 100.0 * hits as f64 / f64::from(steps));
    let over = |bytes: u64| digits(bytes as f64 / live_max as f64);
    let mut table = Table::new(
        format!(
            "Sizes that never repeat: log-uniform 8 B to 64 MB, {window} live at a time ({} at most), {steps} steps",
            mb(live_max)
        ),
        &[
            "contender",
            "create p50",
            "create p99",
            "all p50",
            "all p99",
            "above the floor p50",
            "p99",
            "hits",
            "peak",
            "peak / live",
        ],
    );
    let figures = [
        ("heap", "-".into(), "-".into(), "-".into()),
        ("heap, pool of exact sizes, 512 MB", part(pool.count.hits), mb(pool_max), over(pool_max)),
        ("tensorlend", part(hits), mb(segments_max), over(segments_max)),
    ];
    for (at, (name, hits, peak, over)) in figures.into_iter().enumerate() {
        let (create, all, rest) = (creates[at].summary(), samples[at].summary(), rest[at].summary());
        let mut cells = vec![name.to_owned()];
        cells.extend([create.p50, create.p99, all.p50, all.p99, rest.p50, rest.p99].map(nanos));
        cells.extend([hits, peak, over]);
        table.row(cells);
    }
    let floor = samples[3].summary();
    let mut cells = vec!["fill only (floor)".to_owned(), "-".into(), "-".into(), nanos(floor.p50), nanos(floor.p99)];
    cells.extend(std::iter::repeat_n("-".to_owned(), 5));
    table.row(cells);
    report.table(&format!("never_repeating_{window}"), &table);
    let mean = digits(means.0 / means.1);
    report.note(format!("tensorlend, {window} live: on average its segments are {mean} times as long as what lives"));
}

enum Held {
    Heap(Box<[u64]>),
    Ours(Draft),
}
