//! Reading any of very many names, one at a time and many at once. The floor of a single read is three dependent random
//! reads over as much memory. The floor of many is the same three reads, for 64 names side by side.
//!
//! With the variable `TENSORLEND_HUGE_PAGES`, the broker asks the kernel for transparent huge pages.
//!
//! Also the life of a name: 100,000 new names, then a new value for each, then their deletion, in turns.

use std::hint::black_box;
use tensorlend::Client;
use tensorlend_benches::random::Random;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, now_ns, thread_cpu_ns};
use tensorlend_benches::table::{Table, spread, times};
use tensorlend_daemon::{Config, HugePages, embedded_with};

/// Bytes of shared memory for each name: its place, its entry, its cell and its slot's record.
const BYTES_EACH: usize = 16 + 128 + 96 + 128;
/// Number of dependent reads of a look-up: the place, the entry, the cell.
const READS: usize = 3;
/// Number of look-ups of one sample.
const LOOKUPS: usize = 20_000;
/// Numbers of names in one call.
const BATCHES: [usize; 2] = [64, 1000];

/// Memory whose words lead to other words, in random order.
struct Chains(Vec<u32>);

impl Chains {
    /// Creates chains over this many bytes, one word in each cache line.
    fn new(bytes: usize, random: &mut Random) -> Self {
        let lines = bytes / 64;
        Self((0..lines * 16).map(|_| (random.below(lines as u64) * 16) as u32).collect())
    }

    /// Returns the beginnings of this many chains.
    fn starts(&self, count: usize, random: &mut Random) -> Vec<u32> {
        (0..count).map(|_| random.below(self.0.len() as u64 / 16) as u32 * 16).collect()
    }

    /// Follows as many chains as there are numbers, all at the same time, and returns their ends.
    fn follow(&self, at: &mut [u32]) {
        for _ in 0..READS {
            for at in &mut *at {
                *at = self.0[*at as usize];
            }
        }
    }
}

/// Returns the processor time of this thread for `work`, in nanoseconds. It excludes the time of other programs.
fn timed(mut work: impl FnMut()) -> f64 {
    let start = thread_cpu_ns();
    work();
    (thread_cpu_ns() - start) as f64
}

/// Number of names that are published and deleted in turns.
const LIVES: usize = 100_000;

fn main() {
    let mut report = Report::begin("many_names");
    if wanted("reads") {
        reads(&mut report);
    }
    if wanted("lives") {
        lives(&mut report);
    }
    report.end();
}

/// Returns whether the variable `TENSORLEND_PART` selects this part, or no part.
fn wanted(part: &str) -> bool {
    std::env::var("TENSORLEND_PART").is_ok_and(|it| it == part) || std::env::var_os("TENSORLEND_PART").is_none()
}

fn lives(report: &mut Report) {
    let count = if report.quick { LIVES / 10 } else { LIVES };
    let mut config = Config::default();
    config.namespace_default.names_max = Some(1 << 18);
    let broker = embedded_with(&config).expect("a broker starts");
    let owner = Client::builder().socket(broker.socket()).connect().expect("a client connects");
    let names: Vec<String> = (0..count).map(|number| format!("n/{number}")).collect();
    let mut random = Random::new(1);
    let mut chains = Chains::new(count * BYTES_EACH, &mut random);
    let mut samples: [[Samples; 4]; 2] = Default::default();
    for round in 0..=if report.quick { 3 } else { 15 } {
        let mut each = |at: usize, work: &mut dyn FnMut()| {
            let start = now_ns();
            let thread_ns = timed(work);
            let ns = [(now_ns() - start) as f64, thread_ns];
            // The first round allocates the memory.
            if round > 0 {
                samples.iter_mut().zip(ns).for_each(|(samples, ns)| samples[at].push(ns / count as f64));
            }
        };
        let starts = chains.starts(count, &mut random);
        let mut end = 0;
        each(0, &mut || {
            for start in &starts {
                let word = &mut chains.0[(start ^ end & 1) as usize];
                end = *word;
                *word = black_box(end);
            }
        });
        each(1, &mut || names.iter().for_each(|name| _ = owner.put(name, &[1u64; 8]).expect("put")));
        each(2, &mut || names.iter().for_each(|name| _ = owner.put(name, &[2u64; 8]).expect("put")));
        each(3, &mut || names.iter().for_each(|name| assert!(owner.delete(name).expect("delete"))));
    }
    let head = [
        "names",
        "random read and write (floor)",
        "new",
        "overwrite",
        "delete",
        "new / floor",
        "overwrite / floor",
        "delete / floor",
    ];
    let mut table = Table::new("Lives of names, each step for all names: median (least .. most)", &head);
    for (what, samples) in ["wall time", "processor time of the thread"].into_iter().zip(&samples) {
        let mut cells = vec![format!("{count}, {what}")];
        cells.extend(samples.iter().map(|samples| spread(&samples.summary())));
        cells.extend((1..4).map(|of| ratio(&samples[of], &samples[0])));
        table.row(cells);
    }
    report.table("lives", &table);
    let all = samples.map(|samples| samples.map(|samples| samples.summary()));
    report.value("lives_samples", serde_json::json!({ "names": count, "ns": all }));
}

/// Formats the ratio of two contenders in the same round: median, least and most.
fn ratio(of: &Samples, to: &Samples) -> String {
    let mut ratios = Samples::default();
    ratios.extend(of.all().zip(to.all()).map(|(of, to)| of / to));
    let ratios = ratios.summary();
    format!("{} ({} .. {})", times(ratios.p50), times(ratios.min), times(ratios.max))
}

fn reads(report: &mut Report) {
    let counts: &[usize] = if report.quick { &[1000, 60_000] } else { &[1000, 60_000, 1_000_000] };
    let mut config = Config::default();
    config.namespace_default.names_max = Some(1 << 21);
    if std::env::var_os("TENSORLEND_HUGE_PAGES").is_some() {
        config.pool.huge_pages = HugePages::Advise;
    }
    let broker = embedded_with(&config).expect("a broker starts");
    let connect = || Client::builder().socket(broker.socket()).connect().expect("a client connects");
    let (owner, reader) = (connect(), connect());
    let mut random = Random::new(1);
    let mut owned = 0;
    let mut head = vec!["names", "three reads (floor)", "64 x three reads (floor)", "exists", "get"];
    let many = BATCHES.map(|batch| format!("get_many of {batch}, each"));
    head.extend(many.iter().map(String::as_str));
    head.extend(["get / floor", "get_many of 64 / floor", "get_many of 64 / floor of 64"]);
    let mut table = Table::new("Any of so many names, of another client: median (least .. most)", &head);
    let mut all = Vec::new();
    for &count in counts {
        for number in owned..count {
            owner.put(&format!("n/{number}"), &[number as u64; 8]).expect("put");
        }
        owned = count;
        while reader.stat().expect("stat").names < count as u64 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let chains = Chains::new(count * BYTES_EACH, &mut random);
        let mut samples: [Samples; 6] = Default::default();
        for round in 0..=if report.quick { 5 } else { 25 } {
            let times = read_all(&reader, &chains, count as u64, &mut random);
            // The first round maps the memory.
            if round > 0 {
                samples.iter_mut().zip(times).for_each(|(samples, ns)| samples.push(ns / LOOKUPS as f64));
            }
        }
        let mut cells = vec![count.to_string()];
        cells.extend(samples.iter().map(|samples| spread(&samples.summary())));
        cells.extend([(3, 0), (4, 0), (4, 1)].map(|(of, to)| ratio(&samples[of], &samples[to])));
        table.row(cells);
        all.push(serde_json::json!({ "names": count, "ns": samples.clone().map(|samples| samples.summary()) }));
    }
    report.table("reads", &table);
    report.value("reads_samples", all);
}

/// Reads random names once in each way. Returns the times of [`LOOKUPS`] look-ups in the order of the table.
fn read_all(reader: &Client, chains: &Chains, count: u64, random: &mut Random) -> [f64; 6] {
    // Names lie in memory in the order of their turns, so that only the look-up misses the caches.
    let names: Vec<String> = (0..LOOKUPS).map(|_| format!("n/{}", random.below(count))).collect();
    let mut starts = chains.starts(LOOKUPS, random);
    let single = timed(|| {
        // The end of a chain is part of the next start, so that the processor follows one chain at a time.
        starts.iter_mut().fold(0, |end, start| {
            *start ^= black_box(end & 1);
            chains.follow(std::slice::from_mut(start));
            *start
        });
    });
    let many = timed(|| starts.chunks_mut(64).for_each(|starts| chains.follow(starts)));
    black_box(&starts);
    let exists = timed(|| names.iter().for_each(|name| assert!(reader.exists(name).expect("exists"))));
    let get = timed(|| names.iter().for_each(|name| drop(black_box(reader.get(name).expect("get")))));
    let [few, more] = BATCHES.map(|batch| {
        timed(|| {
            for names in names.chunks(batch) {
                assert!(black_box(reader.get_many(names)).iter().all(Result::is_ok));
            }
        })
    });
    [single, many, exists, get, few, more]
}
