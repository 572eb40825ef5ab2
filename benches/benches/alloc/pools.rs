//! Pools with a bound, and pools of sizes that never repeat.

use super::connect;
use tensorlend::{Client, DType, Draft};
use tensorlend_benches::ones::{fill, fill_words, heap};
use tensorlend_benches::pool::{Count, ExactPool};
use tensorlend_benches::random::Random;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, now_ns, timed};
use tensorlend_benches::table::{Table, digits, nanos};
use tensorlend_daemon::{Config, Embedded, embedded_with};

const SEED: u64 = 2026;

enum Tensor {
    Heap(Box<[u64]>),
    Draft(Draft),
}

impl Tensor {
    fn fill(&mut self, bytes: usize) {
        match self {
            Self::Heap(words) => fill_words::<u8>(words, bytes),
            Self::Draft(draft) => fill(draft.as_mut_slice::<u8>().expect("its type")),
        }
    }
}

/// A source of tensors.
trait Memory {
    /// Creates a tensor; `None` if a limit refuses it.
    fn create(&mut self, bytes: usize) -> Option<Tensor>;

    fn free(&mut self, _bytes: usize, tensor: Tensor) {
        drop(tensor);
    }
}

struct Heap;

impl Memory for Heap {
    fn create(&mut self, bytes: usize) -> Option<Tensor> {
        Some(Tensor::Heap(heap(bytes)))
    }
}

type Pool = ExactPool<Box<[u64]>>;

impl Memory for Pool {
    fn create(&mut self, bytes: usize) -> Option<Tensor> {
        Some(Tensor::Heap(self.take(bytes, heap)))
    }

    fn free(&mut self, bytes: usize, tensor: Tensor) {
        if let Tensor::Heap(words) = tensor {
            self.give(bytes, words);
        }
    }
}

impl Memory for Client {
    fn create(&mut self, bytes: usize) -> Option<Tensor> {
        match Self::create(self, DType::U8, &[bytes as u64]) {
            Ok(draft) => Some(Tensor::Draft(draft)),
            Err(e) if e.is_limit() => None,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Memory, the tensors that live in it, and the times of its steps.
struct Contender<M> {
    memory: M,
    live: Vec<(usize, Tensor)>,
    creates: Samples,
    all: Samples,
    /// The times beyond the floor of the same step.
    rest: Samples,
    refused: u64,
}

impl<M: Memory> Contender<M> {
    fn new(memory: M) -> Self {
        let [creates, all, rest] = Default::default();
        Self { memory, live: Vec::new(), creates, all, rest, refused: 0 }
    }

    /// Creates and fills a tensor. Frees the live tensor with the number `goes`, if there is one.
    fn step(&mut self, bytes: usize, goes: usize, floor_ns: f64) {
        let start = now_ns();
        let tensor = self.memory.create(bytes);
        let created = now_ns();
        match tensor {
            Some(mut tensor) => {
                tensor.fill(bytes);
                self.live.push((bytes, tensor));
                if goes < self.live.len() {
                    let (bytes, gone) = self.live.swap_remove(goes);
                    self.memory.free(bytes, gone);
                }
            }
            None => self.refused += 1,
        }
        let ns = (now_ns() - start) as f64;
        self.creates.push((created - start) as f64);
        self.all.push(ns);
        self.rest.push(ns - floor_ns);
    }

    fn forget(&mut self) {
        [self.creates, self.all, self.rest] = Default::default();
        self.refused = 0;
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|(bytes, _)| *bytes as u64).sum()
    }
}

/// Contenders that take turns: filling existing memory (the floor), the heap, a pool, and a client of a daemon.
struct Run {
    floor: Box<[u64]>,
    filled: Samples,
    heap: Option<Contender<Heap>>,
    pool: Contender<Pool>,
    ours: Contender<Client>,
    _broker: Embedded,
    /// The requests that the daemon has counted.
    requests: u64,
    levels: Levels,
}

/// Bytes in use, and the client's requests.
#[derive(Default)]
struct Levels {
    requests: u64,
    /// Steps without a request.
    hits: u64,
    live_max: u64,
    segments_max: u64,
    pool_max: u64,
    live_sum: f64,
    segments_sum: f64,
}

impl Run {
    fn new(config: &Config, pool_bytes_max: usize, size_max: usize) -> Self {
        let broker = embedded_with(config).expect("a broker starts");
        let client = connect(broker.socket());
        Self {
            floor: heap(size_max),
            filled: Samples::default(),
            heap: None,
            pool: Contender::new(Pool::new(Some(pool_bytes_max))),
            requests: client.stat().expect("figures").requests,
            ours: Contender::new(client),
            _broker: broker,
            levels: Levels::default(),
        }
    }

    /// Times a tensor of each contender, each of which then frees its live tensor with the number `goes`.
    fn step(&mut self, bytes: usize, goes: usize) {
        let floor_ns = timed(1, || fill_words::<u8>(&mut self.floor, bytes));
        self.filled.push(floor_ns);
        if let Some(heap) = &mut self.heap {
            heap.step(bytes, goes, floor_ns);
        }
        self.pool.step(bytes, goes, floor_ns);
        self.ours.step(bytes, goes, floor_ns);

        let (client, levels, live) = (&self.ours.memory, &mut self.levels, self.ours.live_bytes());
        let segments = client.memory().segment_bytes;
        levels.live_max = levels.live_max.max(live);
        levels.segments_max = levels.segments_max.max(segments);
        levels.pool_max = levels.pool_max.max(self.pool.memory.bytes() as u64 + live);
        levels.live_sum += live as f64;
        levels.segments_sum += segments as f64;
        let before = std::mem::replace(&mut self.requests, client.stat().expect("figures").requests);
        // The request for the metrics counts too.
        let requests = self.requests - before - 1;
        levels.requests += requests;
        levels.hits += u64::from(requests == 0);
    }

    /// Drops the results of the steps so far, which warmed up.
    fn forget(&mut self) {
        self.filled = Samples::default();
        self.heap.iter_mut().for_each(Contender::forget);
        self.pool.forget();
        self.ours.forget();
        self.levels = Levels::default();
        self.pool.memory.count = Count::default();
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

fn percent(part: u64, all: u32) -> String {
    format!("{:.1} %", 100.0 * part as f64 / f64::from(all))
}

/// A pool bounded to twice, once and half of the working set: the sizes of the study, in an order without a pattern.
pub fn bounded(report: &mut Report) {
    let mut sizes: Vec<usize> = super::SHAPES
        .iter()
        .flat_map(|shape| [1, 2, 4, 8].map(|width| shape.iter().product::<u64>() as usize * width))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let working_set: usize = sizes.iter().sum();
    let steps = if report.quick { 150 } else { 600 };
    let title = format!(
        "A bounded pool: {} sizes, {:.1} MB together, one tensor at a time, {steps} steps in random order",
        sizes.len(),
        working_set as f64 / 1e6
    );
    let mut head = vec!["bound", "contender", "mean", "p50", "p99", "hits"];
    head.extend(["evictions or segments asked for", "evicted or mapped at most"]);
    let mut table = Table::new(title, &head);
    for (name, bound) in [("twice", 2 * working_set), ("once", working_set), ("half", working_set / 2)] {
        let mut config = Config::default();
        config.pool.bytes_max = Some(format!("{}", bound.next_multiple_of(4096)).parse().expect("a number"));
        // Ordinary segments must fit into the bound; spare ones would count against it too.
        config.pool.segment_bytes = "8MiB".parse().expect("a number");
        config.pool.spare_segments = 0;
        let mut run = Run::new(&config, bound, *sizes.last().expect("sizes"));
        let mut random = Random::new(SEED);
        let mut step = |run: &mut Run| run.step(sizes[random.below(sizes.len() as u64) as usize], 0);
        (0..steps).for_each(|_| step(&mut run));
        run.forget();
        (0..steps).for_each(|_| step(&mut run));
        bounded_rows(&mut table, name, &run, steps);
    }
    report.table("bounded", &table);
}

fn bounded_rows(table: &mut Table, bound: &str, run: &Run, steps: u32) {
    let mut row = |contender: &str, samples: &Samples, end: [String; 3]| {
        let summary = samples.summary();
        let times = [samples.mean(), summary.p50, summary.p99].map(nanos);
        table.row([bound, contender].map(str::to_owned).into_iter().chain(times).chain(end));
    };
    row("fill only (floor)", &run.filled, ["-", "-", "-"].map(str::to_owned));
    let pool = &run.pool.memory.count;
    let evictions = format!("{}, {} of them below 1 MB", pool.evictions, pool.evicted_small);
    let end = [percent(pool.hits, steps), evictions, megabytes(pool.evicted_bytes)];
    row("heap, pool, least recently used goes", &run.pool.all, end);
    let requests = format!("{} requests, {} refused", run.levels.requests, run.ours.refused);
    let end = [percent(run.levels.hits, steps), requests, megabytes(run.levels.segments_max)];
    row("tensorlend", &run.ours.all, end);
}

/// Sizes from 8 B to 64 MB, log-uniform, all different; `window` tensors live at a time, and the next to be dropped is
/// chosen at random.
pub fn never_repeating(report: &mut Report, window: usize) {
    let (warm_up, steps) = if report.quick { (200, 300) } else { (500, 1500) };
    let mut config = Config::default();
    config.pool.bytes_max = Some("6GiB".parse().expect("a number"));
    let mut run = Run::new(&config, 512 << 20, 64 << 20);
    run.heap = Some(Contender::new(Heap));
    let mut random = Random::new(SEED);
    let mut step = |run: &mut Run| {
        let bytes = random.log_uniform(8, 64 << 20) as usize;
        let is_full = run.ours.live.len() == window;
        run.step(bytes, if is_full { random.below(window as u64) as usize } else { usize::MAX });
    };
    (0..warm_up).for_each(|_| step(&mut run));
    run.forget();
    (0..steps).for_each(|_| step(&mut run));
    assert_eq!(run.ours.refused, 0, "the limit is far away");
    let title = format!(
        "Sizes that never repeat: log-uniform 8 B to 64 MB, {window} live at a time ({} at most), {steps} steps",
        megabytes(run.levels.live_max)
    );
    report.table(&format!("never_repeating_{window}"), &never_repeating_table(title, &run, steps));
    let mean = digits(run.levels.segments_sum / run.levels.live_sum);
    report.note(format!("tensorlend, {window} live: on average its segments are {mean} times as long as what lives"));
}

fn never_repeating_table(title: String, run: &Run, steps: u32) -> Table {
    let mut head = vec!["contender", "create p50", "create p99", "all p50", "all p99", "above the floor p50", "p99"];
    head.extend(["hits", "peak", "peak / live"]);
    let mut table = Table::new(title, &head);
    let mut row = |name: &str, samples: [Option<&Samples>; 3], end: [String; 3]| {
        let times = samples.into_iter().flat_map(|samples| match samples.map(Samples::summary) {
            Some(summary) => [summary.p50, summary.p99].map(nanos),
            None => ["-", "-"].map(str::to_owned),
        });
        table.row(std::iter::once(name.to_owned()).chain(times).chain(end));
    };
    fn times<M>(contender: &Contender<M>) -> [Option<&Samples>; 3] {
        [&contender.creates, &contender.all, &contender.rest].map(Some)
    }
    let levels = &run.levels;
    let none = || ["-", "-", "-"].map(str::to_owned);
    let end =
        |hits: u64, peak: u64| [percent(hits, steps), megabytes(peak), digits(peak as f64 / levels.live_max as f64)];
    run.heap.iter().for_each(|heap| row("heap", times(heap), none()));
    let hits = run.pool.memory.count.hits;
    row("heap, pool of exact sizes, 512 MB", times(&run.pool), end(hits, levels.pool_max));
    row("tensorlend", times(&run.ours), end(levels.hits, levels.segments_max));
    row("fill only (floor)", [None, Some(&run.filled), None], none());
    table
}
