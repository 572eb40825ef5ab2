//! Measures the study's "standard deployment", in which the database and the application are on different machines. The
//! contenders on one link are tensorlend's gateways, Redis over TCP, and a plain copy over TCP.
//!
//! ```sh
//! cargo bench -p tensorlend-gateway --bench e3
//! ```
//!
//! The hosts are network namespaces on one switch of this machine, as in `link`. The benchmark measures the contenders
//! in turn within each round, and divides times of the same round. It needs root, and exits with a message otherwise.
//! If there is no redis-server, it omits Redis.

#[allow(dead_code)]
#[path = "../tests/hosts/rig.rs"]
mod rig;

#[path = "e3/hands.rs"]
mod hands;
#[path = "e3/plain.rs"]
mod plain;

use hands::{Collected, Contender, Order, Places, Times, work};
use rig::{Rig, peers, skip_without_hosts};
use std::net::SocketAddr;
use std::path::Path;
use tensorlend_benches::redis::Redis;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, now_ns};
use tensorlend_benches::table::{Table, bytes, digits, spread};
use tensorlend_benches::worker::{Role, Worker, ask_all};

/// Sizes in bytes of the study's float32 arrays.
const SIZES: [usize; 11] =
    [1024, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_024_000, 2_048_000, 4_096_000];
/// Number of datasets, and bytes of each of their four tensors.
const CASES: [(usize, usize); 4] = [(32, 1024), (512, 1024), (4096, 1024), (32, 1 << 20)];
const PRODUCERS: usize = 2;
/// Numbers of the application's host and of the database's host.
const APPLICATION: u8 = 0;
const DATABASE: u8 = 1;
/// Number of rounds, and calls of each contender in one round.
const ROUNDS: usize = 7;
const CALLS: u32 = 15;

fn main() {
    if let Some(role) = Role::mine() {
        return if role.name == plain::ROLE { plain::serve(&role) } else { work(role) };
    }
    if skip_without_hosts() {
        return;
    }
    let mut report = Report::begin("gateway-e3");
    if cfg!(debug_assertions) {
        report.note("built without optimizations: ours is slower than a release");
    }
    let rig = Rig::new(2);
    let nodes = peers(&rig, 2, "[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\naccept_put = [\"*\"]\n");
    let at = |port: u16| SocketAddr::new(rig.address(DATABASE).into(), port);
    let redis = Redis::start_by(rig.command(DATABASE, Path::new("redis-server")), at(7003));
    if redis.is_none() {
        report.note(
            "skipped: Redis, since there is no redis-server on this machine (Debian: apt-get install redis-server)",
        );
    }
    // Pin the server to the client's core, so that neither waits for another core to wake up.
    let mut pinned = rig.command(DATABASE, Path::new("taskset"));
    pinned.args(["-c", "0", "redis-server"]);
    let one_core = Redis::start_by(pinned, at(7004));
    let this = std::env::current_exe().expect("this program");
    let start = |host: u8, role: &str, args: &[String]| Worker::start_by(rig.command(host, &this), role, args);
    let _plain = start(DATABASE, plain::ROLE, &[at(7001).to_string()]);
    let places = |host: u8| Places {
        broker: nodes[usize::from(host)].socket(),
        plain: at(7001),
        redis: redis.as_ref().map(|_| at(7003)),
        redis_one_core: one_core.as_ref().map(|_| at(7004)),
    };
    let client = |host: u8, number: usize| {
        let places = serde_json::to_string(&places(host)).expect("plain values");
        start(host, "client", &[places, number.to_string()])
    };
    let with_redis = redis.is_some();
    for clients in [1, 8] {
        let mut workers: Vec<Worker> = (0..clients).map(|number| client(APPLICATION, number)).collect();
        let contenders = Contender::of_exchange(with_redis, clients == 1);
        let step = if report.quick || clients > 1 { 4 } else { 1 };
        let sizes: Vec<usize> = SIZES.into_iter().step_by(step).collect();
        exchange(&mut report, &contenders, &sizes, &mut workers);
    }
    let mut producers: Vec<Worker> = (0..PRODUCERS).map(|number| client(DATABASE, number)).collect();
    let mut consumer = client(APPLICATION, PRODUCERS);
    let contenders = Contender::of_lists(with_redis);
    let cases = if report.quick { &CASES[..2] } else { &CASES[..] };
    let found: Vec<Vec<Both>> =
        cases.iter().map(|&case| collect(&report, case, &contenders, &mut producers, &mut consumer)).collect();
    lists(&mut report, cases, &contenders, &found);
    report.end();
}

/// Returns the numbers of rounds and calls. With `--quick` they are small: enough to see that the benchmark works.
fn rounds(report: &Report) -> (usize, u32) {
    if report.quick { (2, 5) } else { (ROUNDS, CALLS) }
}

/// Times of one contender, and their ratios to those of the first contender and of tensorlend in the same round.
#[derive(Clone, Default)]
struct Found {
    ns: Samples,
    to_floor: Samples,
    to_ours: Samples,
}

struct Both {
    ns: Summary,
    to_floor: Summary,
    to_ours: Summary,
}

impl Found {
    fn summary(&self) -> Both {
        Both { ns: self.ns.summary(), to_floor: self.to_floor.summary(), to_ours: self.to_ours.summary() }
    }
}

/// Adds the times of each contender in one round.
fn add(found: &mut [Found], contenders: &[Contender], round: &[Samples]) {
    let medians: Vec<f64> = round.iter().map(|samples| samples.summary().p50).collect();
    let of = |wanted| contenders.iter().position(|one| *one == wanted).map(|at| medians[at]).expect("always measured");
    let (floor, ours) = (of(Contender::Plain), of(Contender::Ours));
    for ((found, samples), median) in found.iter_mut().zip(round).zip(&medians) {
        found.ns.extend(samples.all());
        found.to_floor.push(median / floor);
        found.to_ours.push(median / ours);
    }
}

/// Measures clients that each put an array and unpack it, repeatedly.
fn exchange(report: &mut Report, contenders: &[Contender], sizes: &[usize], workers: &mut [Worker]) {
    let (rounds, calls) = rounds(report);
    let mut rows: Vec<[Vec<Both>; 2]> = Vec::new();
    for &bytes in sizes {
        let mut found = [vec![Found::default(); contenders.len()], vec![Found::default(); contenders.len()]];
        for round in 0..=rounds {
            let mut times = [Vec::new(), Vec::new()];
            for &contender in contenders {
                let order = Order::Exchange { contender, bytes, calls, start_ns: now_ns() + 1_000_000 };
                let mut both = [Samples::default(), Samples::default()];
                for Times { put, unpack } in ask_all::<Times>(workers, &order) {
                    both[0].extend(put);
                    both[1].extend(unpack);
                }
                times.iter_mut().zip(both).for_each(|(all, one)| all.push(one));
            }
            // The first round allocates memory and fills caches, so it does not count.
            if round > 0 {
                found.iter_mut().zip(&times).for_each(|(found, times)| add(found, contenders, times));
            }
        }
        rows.push(found.map(|all| all.iter().map(Found::summary).collect()));
    }
    for (at, what) in ["put", "unpack"].into_iter().enumerate() {
        let name = format!("{what}, {} client process{}", workers.len(), if workers.len() == 1 { "" } else { "es" });
        let rows: Vec<(String, f64, &Vec<Both>)> =
            sizes.iter().zip(&rows).map(|(&size, both)| (bytes(size as u64), size as f64, &both[at])).collect();
        show(report, &name, "bytes", contenders, &rows);
    }
}

/// Writes a table of times and a table of ratios.
fn show(report: &mut Report, name: &str, x: &str, contenders: &[Contender], rows: &[(String, f64, &Vec<Both>)]) {
    let mut head = vec![x];
    head.extend(contenders.iter().map(|one| one.label()));
    let mut times = Table::new(format!("{name}: median (least .. most)"), &head);
    let ratio = |s: &Summary| format!("{} ({} .. {})", digits(s.p50), digits(s.min), digits(s.max));
    let mut ratios = Table::new(
        format!("{name}: times the plain copy; times tensorlend, of one round: median (least .. most)"),
        &head,
    );
    for (label, _, row) in rows {
        times.row(std::iter::once(label.clone()).chain(row.iter().map(|both| spread(&both.ns))));
        let cells = row.iter().map(|both| format!("{}; {}", ratio(&both.to_floor), ratio(&both.to_ours)));
        ratios.row(std::iter::once(label.clone()).chain(cells));
    }
    report.table(name, &times);
    report.table(&format!("{name}, ratios"), &ratios);
    let all = rows.iter().map(|(_, at, row)| {
        let named: serde_json::Map<_, _> = contenders
            .iter()
            .zip(row.iter())
            .map(|(one, both)| {
                let value =
                    serde_json::json!({ "ns": both.ns, "to_plain": both.to_floor, "to_tensorlend": both.to_ours });
                (one.label().to_owned(), value)
            })
            .collect();
        serde_json::json!({ x: at, "of": named })
    });
    report.value(&format!("{name}, samples"), all.collect::<Vec<_>>());
}

/// Measures a consumer on the application's host that polls the length of a list and then fetches all datasets.
/// Producers on the database's host append them.
fn collect(
    report: &Report,
    (datasets, bytes): (usize, usize),
    contenders: &[Contender],
    producers: &mut [Worker],
    consumer: &mut Worker,
) -> Vec<Both> {
    let rounds = rounds(report).0;
    let mut found = vec![Found::default(); contenders.len()];
    for round in 0..=rounds {
        let (mut times, mut sums) = (Vec::new(), Vec::new());
        for &contender in contenders {
            if contender.has_list() {
                let append = Order::Append { contender, datasets: datasets / PRODUCERS, bytes };
                let _: Vec<bool> = ask_all(producers, &append);
                let _: bool = consumer.ask(&Order::Poll { contender, datasets });
            }
            let collected: Collected = consumer.ask(&Order::Collect { contender, datasets, bytes });
            if contender.has_list() {
                sums.push(collected.sum);
                let _: bool = producers[0].ask(&Order::Clear { contender });
            }
            let mut one = Samples::default();
            one.push(collected.ns);
            times.push(one);
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "the contenders collected different tensors: {sums:?}");
        if round > 0 {
            add(&mut found, contenders, &times);
        }
    }
    found.iter().map(Found::summary).collect()
}

fn lists(report: &mut Report, cases: &[(usize, usize)], contenders: &[Contender], found: &[Vec<Both>]) {
    let label = |(datasets, size): (usize, usize)| format!("{datasets} x 4 x {}", bytes(size as u64));
    let rows: Vec<(String, f64, &Vec<Both>)> =
        cases.iter().zip(found).map(|(&case, row)| (label(case), case.0 as f64, row)).collect();
    show(report, "fetch all datasets of a list, read every byte", "datasets", contenders, &rows[..]);
}
