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

/// A tensor of bytes.
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

/// Creates a tensor, fills it, frees it. Returns false if a limit refuses it.
fn once(memory: &mut impl Memory, bytes: usize) -> bool {
    let Some(mut tensor) = memory.create(bytes) else { return false };
    tensor.fill(bytes);
    memory.free(bytes, tensor);
    true
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
    let evictions = ["evictions or segments asked for", "evicted or mapped at most"];
    let mut head = vec!["bound", "contender", "mean", "p50", "p99", "hits"];
    head.extend(evictions);
    let mut table = Table::new(title, &head);
    for (name, bound) in [("twice", 2 * working_set), ("once", working_set), ("half", working_set / 2)] {
        let mut run = Bounded::new(bound, *sizes.last().expect("sizes"));
        let mut random = Random::new(SEED);
        let mut step = |run: &mut Bounded| run.step(sizes[random.below(sizes.len() as u64) as usize]);
        (0..steps).for_each(|_| step(&mut run));
        run.forget();
        (0..steps).for_each(|_| step(&mut run));
        for cells in run.rows(steps) {
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    report.table("bounded", &table);
}

/// A run under one bound: filling existing memory (the floor), a pool with the bound, and a client of a daemon with the
/// bound.
struct Bounded {
    floor: Box<[u64]>,
    pool: Pool,
    client: Client,
    _broker: Embedded,
    samples: [Samples; 3],
    requests: Requests,
}

/// Requests of the client to the daemon.
#[derive(Default)]
struct Requests {
    /// All that the daemon has counted.
    counted: u64,
    /// Requests of the steps.
    asked: u64,
    /// Steps without a request.
    hits: u64,
    /// Tensors refused because of the bound.
    refused: u64,
    mapped_max: u64,
}

impl Bounded {
    fn new(bound: usize, size_max: usize) -> Self {
        let mut config = Config::default();
        config.pool.bytes_max = Some(format!("{}", bound.next_multiple_of(4096)).parse().expect("a number"));
        // Ordinary segments must fit into the bound; spare ones would count against it too.
        config.pool.segment_bytes = "8MiB".parse().expect("a number");
        config.pool.spare_segments = 0;
        let broker = embedded_with(&config).expect("a broker starts");
        let client = connect(broker.socket());
        let counted = client.stat().expect("figures").requests;
        Self {
            floor: heap(size_max),
            pool: Pool::new(Some(bound)),
            client,
            _broker: broker,
            samples: Default::default(),
            requests: Requests { counted, ..Requests::default() },
        }
    }

    /// Times one tensor of each contender.
    fn step(&mut self, bytes: usize) {
        let existing = timed(1, || fill_words::<u8>(&mut self.floor, bytes));
        let pooled = timed(1, || _ = once(&mut self.pool, bytes));
        let requests = &mut self.requests;
        let ours = timed(1, || requests.refused += u64::from(!once(&mut self.client, bytes)));
        self.samples.iter_mut().zip([existing, pooled, ours]).for_each(|(samples, ns)| samples.push(ns));
        let counted = self.client.stat().expect("figures").requests;
        // The request for the metrics counts too.
        let asked = counted - requests.counted - 1;
        requests.counted = counted;
        requests.asked += asked;
        requests.hits += u64::from(asked == 0);
        requests.mapped_max = requests.mapped_max.max(self.client.memory().segment_bytes);
    }

    /// Drops the results of the steps so far, which warmed up.
    fn forget(&mut self) {
        self.samples = Default::default();
        self.requests = Requests { counted: self.requests.counted, ..Requests::default() };
        self.pool.count = Count::default();
    }

    /// Returns the cells of each contender: its name, its times, its hits, its evictions.
    fn rows(&self, steps: u32) -> [Vec<String>; 3] {
        let (pool, ours) = (&self.pool.count, &self.requests);
        let ends = [
            ["-".into(), "-".into(), "-".into()],
            [
                percent(pool.hits, steps),
                format!("{}, {} of them below 1 MB", pool.evictions, pool.evicted_small),
                megabytes(pool.evicted_bytes),
            ],
            [
                percent(ours.hits, steps),
                format!("{} requests, {} refused", ours.asked, ours.refused),
                megabytes(ours.mapped_max),
            ],
        ];
        let names = ["fill only (floor)", "heap, pool, least recently used goes", "tensorlend"];
        let mut ends = names.into_iter().zip(ends);
        self.samples.each_ref().map(|samples| {
            let (name, end) = ends.next().expect("a contender");
            let summary = samples.summary();
            let times = [samples.mean(), summary.p50, summary.p99].map(nanos);
            std::iter::once(name.to_owned()).chain(times).chain(end).collect()
        })
    }
}

/// Sizes from 8 B to 64 MB, log-uniform, all different; `window` tensors live at a time, and the next to be dropped is
/// chosen at random.
pub fn never_repeating(report: &mut Report, window: usize) {
    let (warm_up, steps) = if report.quick { (200, 300) } else { (500, 1500) };
    let mut run = NeverRepeating::new();
    let mut random = Random::new(SEED);
    let mut step = |run: &mut NeverRepeating| {
        let bytes = random.log_uniform(8, 64 << 20) as usize;
        let goes = (run.heap.live.len() == window).then(|| random.below(window as u64) as usize);
        run.step(bytes, goes);
    };
    (0..warm_up).for_each(|_| step(&mut run));
    run.forget();
    (0..steps).for_each(|_| step(&mut run));
    let levels = &run.levels;
    let title = format!(
        "Sizes that never repeat: log-uniform 8 B to 64 MB, {window} live at a time ({} at most), {steps} steps",
        megabytes(levels.live_max)
    );
    let mut head = vec!["contender", "create p50", "create p99", "all p50", "all p99", "above the floor p50", "p99"];
    head.extend(["hits", "peak", "peak / live"]);
    let mut table = Table::new(title, &head);
    for cells in run.rows(steps) {
        table.row(cells);
    }
    report.table(&format!("never_repeating_{window}"), &table);
    let mean = digits(levels.segments_sum / levels.live_sum);
    report.note(format!("tensorlend, {window} live: on average its segments are {mean} times as long as what lives"));
}

/// A run with sizes that never repeat.
struct NeverRepeating {
    floor: Box<[u64]>,
    filled: Samples,
    heap: Contender<Heap>,
    pool: Contender<Pool>,
    ours: Contender<Client>,
    _broker: Embedded,
    /// The requests that the daemon has counted.
    requests: u64,
    levels: Levels,
}

/// Bytes in use, and the steps in which the client sent no request.
#[derive(Default)]
struct Levels {
    hits: u64,
    live_max: u64,
    segments_max: u64,
    pool_max: u64,
    live_sum: f64,
    segments_sum: f64,
}

impl NeverRepeating {
    fn new() -> Self {
        let mut config = Config::default();
        config.pool.bytes_max = Some("6GiB".parse().expect("a number"));
        let broker = embedded_with(&config).expect("a broker starts");
        let client = connect(broker.socket());
        Self {
            floor: heap(64 << 20),
            filled: Samples::default(),
            heap: Contender::new(Heap),
            pool: Contender::new(Pool::new(Some(512 << 20))),
            requests: client.stat().expect("figures").requests,
            ours: Contender::new(client),
            _broker: broker,
            levels: Levels::default(),
        }
    }

    /// Times a tensor of each contender; `goes` selects the live tensor that is dropped.
    fn step(&mut self, bytes: usize, goes: Option<usize>) {
        let floor_ns = timed(1, || fill_words::<u8>(&mut self.floor, bytes));
        self.filled.push(floor_ns);
        self.heap.step(bytes, goes, floor_ns);
        self.pool.step(bytes, goes, floor_ns);
        self.ours.step(bytes, goes, floor_ns);

        let (client, levels) = (&self.ours.memory, &mut self.levels);
        let live = self.ours.live.iter().map(|(bytes, _)| *bytes as u64).sum::<u64>();
        let segments = client.memory().segment_bytes;
        levels.live_max = levels.live_max.max(live);
        levels.segments_max = levels.segments_max.max(segments);
        levels.pool_max = levels.pool_max.max(self.pool.memory.bytes() as u64 + live);
        levels.live_sum += live as f64;
        levels.segments_sum += segments as f64;
        // The request for the metrics counts too.
        let requests = client.stat().expect("figures").requests;
        levels.hits += u64::from(requests - self.requests == 1);
        self.requests = requests;
    }

    /// Drops the results of the steps so far, which warmed up.
    fn forget(&mut self) {
        self.filled = Samples::default();
        self.heap.forget();
        self.pool.forget();
        self.ours.forget();
        self.levels = Levels::default();
        self.pool.memory.count = Count::default();
    }

    /// Returns the cells of each contender, the floor last.
    fn rows(&self, steps: u32) -> [Vec<String>; 4] {
        let levels = &self.levels;
        let over = |bytes: u64| digits(bytes as f64 / levels.live_max as f64);
        let of = |peak: u64, hits: u64| [percent(hits, steps), megabytes(peak), over(peak)];
        let none = || std::array::from_fn(|_| "-".to_owned());
        let filled = self.filled.summary();
        let mut floor = vec!["fill only (floor)".into(), "-".into(), "-".into(), nanos(filled.p50), nanos(filled.p99)];
        floor.extend(std::iter::repeat_n("-".to_owned(), 5));
        [
            self.heap.row("heap", none()),
            self.pool.row("heap, pool of exact sizes, 512 MB", of(levels.pool_max, self.pool.memory.count.hits)),
            self.ours.row("tensorlend", of(levels.segments_max, levels.hits)),
            floor,
        ]
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
}

impl<M: Memory> Contender<M> {
    fn new(memory: M) -> Self {
        let [creates, all, rest] = Default::default();
        Self { memory, live: Vec::new(), creates, all, rest }
    }

    fn step(&mut self, bytes: usize, goes: Option<usize>, floor_ns: f64) {
        let start = now_ns();
        let mut tensor = self.memory.create(bytes).expect("a slot");
        let created = now_ns();
        tensor.fill(bytes);
        if let Some(goes) = goes {
            let (bytes, gone) = self.live.swap_remove(goes);
            self.memory.free(bytes, gone);
        }
        let end = now_ns();
        self.live.push((bytes, tensor));
        self.creates.push((created - start) as f64);
        self.all.push((end - start) as f64);
        self.rest.push((end - start) as f64 - floor_ns);
    }

    fn forget(&mut self) {
        [self.creates, self.all, self.rest] = Default::default();
    }

    fn row(&self, name: &str, end: [String; 3]) -> Vec<String> {
        let times = [&self.creates, &self.all, &self.rest].map(Samples::summary);
        let times = times.into_iter().flat_map(|summary| [summary.p50, summary.p99]).map(nanos);
        std::iter::once(name.to_owned()).chain(times).chain(end).collect()
    }
}
