//! A tensor database on the application's machine: each client process puts a float32 array under its own key,
//! replacing the previous one, and unpacks it into allocated memory. Compares tensorlend, Redis, `.npy` files, and a
//! plain copy in the same run.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tensorlend::Client;
use tensorlend_benches::redis::{self, Redis};
use tensorlend_benches::report::Report;
use tensorlend_benches::resp::Connection;
use tensorlend_benches::stats::{Samples, Summary, now_ns, timed};
use tensorlend_benches::table::{Table, bytes, digits, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all, wait_until};
use tensorlend_benches::{npy, placement};

const SIZES: [usize; 11] =
    [1024, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_024_000, 2_048_000, 4_096_000];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Contender {
    Memcpy,
    Ours,
    Redis,
    /// Client and server on one core: neither waits for another core to wake up.
    RedisOneCore,
    Tmpfs,
    Disk,
}

impl Contender {
    const ALL: [Self; 6] = [Self::Memcpy, Self::Ours, Self::Redis, Self::RedisOneCore, Self::Tmpfs, Self::Disk];

    fn label(self) -> &'static str {
        match self {
            Self::Memcpy => "memcpy (floor)",
            Self::Ours => "tensorlend",
            Self::Redis => "Redis",
            Self::RedisOneCore => "Redis, one core",
            Self::Tmpfs => ".npy on tmpfs",
            Self::Disk => ".npy on disk",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Round {
    contender: Contender,
    bytes: usize,
    iterations: u32,
    start_ns: u64,
}

/// Nanoseconds of each put and of each unpack, and the times of the client's start and end.
#[derive(Default, Serialize, Deserialize)]
struct Times {
    begin_ns: u64,
    end_ns: u64,
    put: Vec<f64>,
    unpack: Vec<f64>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Places {
    broker: PathBuf,
    redis: Option<PathBuf>,
    redis_one_core: Option<PathBuf>,
    tmpfs: PathBuf,
    disk: PathBuf,
}

fn main() {
    if let Some(role) = Role::mine() {
        if role.name == redis::ROLE {
            redis::become_server(&role);
        }
        return work(role);
    }
    let mut report = Report::begin("throughput");
    let broker = tensorlend_daemon::embedded().expect("a broker starts");
    let cores = placement::cores();
    let servers = [Redis::start(&[]), Redis::start(&cores[..1])];
    if servers[0].is_none() {
        report.note(
            "skipped: Redis, since there is no redis-server on this machine (Debian: apt-get install redis-server)",
        );
    }
    let folder = |root: &Path| tempfile::Builder::new().prefix("tensorlend-bench").tempdir_in(root).ok();
    let on_tmpfs: Option<TempDir> = folder(Path::new("/dev/shm"));
    let on_disk = folder(&std::env::current_exe().expect("a path").with_file_name("")).expect("the build is writable");
    let places = Places {
        broker: broker.socket().to_owned(),
        redis: servers[0].as_ref().map(|s| s.socket().to_owned()),
        redis_one_core: servers[1].as_ref().map(|s| s.socket().to_owned()),
        tmpfs: on_tmpfs.as_ref().map(|f| f.path().to_owned()).unwrap_or_default(),
        disk: on_disk.path().to_owned(),
    };
    for clients in [1, 2, 8] {
        let sizes: Vec<usize> = SIZES.into_iter().step_by(if report.quick { 4 } else { 1 }).collect();
        let contenders: Vec<Contender> = Contender::ALL
            .into_iter()
            .filter(|contender| match contender {
                Contender::Redis => places.redis.is_some(),
                Contender::RedisOneCore => places.redis_one_core.is_some() && clients == 1,
                Contender::Tmpfs => on_tmpfs.is_some(),
                // Gigabytes of dirty pages would distort the next measurement.
                Contender::Disk => clients == 1,
                _ => true,
            })
            .collect();
        measure(&mut report, clients, &contenders, &sizes, &places);
    }
    report.end();
}

fn measure(report: &mut Report, clients: usize, contenders: &[Contender], sizes: &[usize], places: &Places) {
    let mut workers: Vec<Worker> = (0..clients)
        .map(|number| {
            let places = serde_json::to_string(places).expect("plain values");
            Worker::start("client", &[places, number.to_string()])
        })
        .collect();
    let mut found: Vec<Vec<[Summary; 2]>> = Vec::new();
    let mut together: Vec<Vec<Summary>> = Vec::new();
    let (rounds, iterations) = if report.quick { (2, 20) } else { (5, 20) };
    for &bytes in sizes {
        let mut samples: Vec<[Samples; 2]> = vec![Default::default(); contenders.len()];
        let mut rates: Vec<Samples> = vec![Samples::default(); contenders.len()];
        for round in 0..=rounds {
            for (at, &contender) in contenders.iter().enumerate() {
                let order = Round { contender, bytes, iterations, start_ns: now_ns() + 1_000_000 };
                let answers = ask_all::<Times>(&mut workers, &order);
                if round == 0 {
                    // Only a warm-up.
                    continue;
                }
                let end = answers.iter().map(|t| t.end_ns).max().expect("clients");
                let begin = answers.iter().map(|t| t.begin_ns).min().expect("clients");
                let moved = 2 * clients * bytes * (iterations * block(bytes)) as usize;
                rates[at].push(moved as f64 / (end - begin) as f64);
                for times in answers {
                    samples[at][0].extend(times.put);
                    samples[at][1].extend(times.unpack);
                }
            }
        }
        together.push(rates.into_iter().map(|rate| rate.summary()).collect());
        found.push(samples.into_iter().map(|both| both.map(|s| s.summary())).collect());
    }
    for (at, what) in ["put", "unpack"].into_iter().enumerate() {
        let found: Vec<Vec<Summary>> = found.iter().map(|row| row.iter().map(|both| both[at]).collect()).collect();
        tables(report, clients, what, contenders, sizes, &found);
    }
    if clients > 1 {
        rates(report, clients, contenders, sizes, &together);
    }
}

/// Returns the number of operations per sample: several for small ones, since reading the clock takes as long as one of
/// them.
fn block(bytes: usize) -> u32 {
    if bytes <= 65_536 { 10 } else { 1 }
}

fn rates(report: &mut Report, clients: usize, contenders: &[Contender], sizes: &[usize], found: &[Vec<Summary>]) {
    let mut head = vec!["bytes"];
    head.extend(contenders.iter().map(|c| c.label()));
    let title = format!("put and unpack, {clients} client processes together: median GB/s (least .. most)");
    let mut table = Table::new(title, &head);
    for (&size, row) in sizes.iter().zip(found) {
        let cell = |s: &Summary| format!("{} ({} .. {})", digits(s.p50), digits(s.min), digits(s.max));
        table.row(std::iter::once(bytes(size as u64)).chain(row.iter().map(cell)));
    }
    report.table(&format!("together_{clients}"), &table);
}

fn tables(
    report: &mut Report,
    clients: usize,
    what: &str,
    contenders: &[Contender],
    sizes: &[usize],
    found: &[Vec<Summary>],
) {
    let mut head = vec!["bytes"];
    head.extend(contenders.iter().map(|c| c.label()));
    head.extend(["Redis / tensorlend", "Redis / memcpy", "tensorlend / memcpy"]);
    let title =
        format!("{what}, {clients} client process{}: median (least .. most)", if clients == 1 { "" } else { "es" });
    let mut table = Table::new(title, &head);
    let of = |row: &[Summary], wanted: Contender| contenders.iter().position(|c| *c == wanted).map(|at| row[at].p50);
    for (&size, row) in sizes.iter().zip(found) {
        let floor = of(row, Contender::Memcpy).expect("always measured");
        let ours = of(row, Contender::Ours).expect("always measured");
        // The better of the two: Redis must not lose by the scheduler's choice.
        let redis = [Contender::Redis, Contender::RedisOneCore].into_iter().filter_map(|c| of(row, c)).reduce(f64::min);
        let over = |other: f64| redis.map_or("-".into(), |redis| times(redis / other));
        let mut cells = vec![bytes(size as u64)];
        cells.extend(row.iter().map(spread));
        cells.extend([over(ours), over(floor), times(ours / floor)]);
        table.row(cells);
    }
    report.table(&format!("{what}_{clients}"), &table);
    let all = sizes.iter().zip(found).map(|(size, row)| {
        let named: serde_json::Map<_, _> =
            contenders.iter().zip(row).map(|(c, s)| (c.label().to_owned(), serde_json::json!(s))).collect();
        serde_json::json!({ "bytes": size, "ns": named })
    });
    report.value(&format!("{what}_{clients}_samples"), all.collect::<Vec<_>>());
}

/// The resources of one client.
struct Hands {
    key: String,
    client: Client,
    redis: Option<Connection>,
    redis_one_core: Option<Connection>,
    tmpfs: PathBuf,
    disk: PathBuf,
    between: Vec<f32>,
}

fn work(mut role: Role) {
    let places: Places = serde_json::from_str(&role.args[0]).expect("plain values");
    let number = &role.args[1];
    let open = |socket: &Option<PathBuf>| socket.as_ref().map(|s| Connection::open(s).expect("the server listens"));
    let mut hands = Hands {
        key: format!("client/{number}"),
        client: Client::builder().socket(&places.broker).connect().expect("a client connects"),
        redis: open(&places.redis),
        redis_one_core: open(&places.redis_one_core),
        tmpfs: places.tmpfs.join(format!("{number}.npy")),
        disk: places.disk.join(format!("{number}.npy")),
        between: Vec::new(),
    };
    let cores = placement::cores();
    while let Some(round) = role.order::<Round>() {
        let one_core = round.contender == Contender::RedisOneCore;
        placement::pin(if one_core { &cores[..1] } else { &cores });
        let answer = hands.round(&round);
        role.answer(&answer);
    }
}

impl Hands {
    fn round(&mut self, round: &Round) -> Times {
        let mut source = vec![1.0_f32; round.bytes / 4];
        let mut target = vec![0.0_f32; round.bytes / 4];
        self.between.resize(round.bytes / 4, 0.0);
        let block = block(round.bytes);
        let mut times = Times::default();
        wait_until(round.start_ns);
        times.begin_ns = now_ns();
        for iteration in 0..round.iterations {
            source[0] = iteration as f32;
            times.put.push(timed(block, || self.put(round.contender, &source)));
            times.unpack.push(timed(block, || self.unpack(round.contender, &mut target)));
            assert!(target[0].to_bits() == source[0].to_bits(), "{:?} gave another tensor", round.contender);
        }
        times.end_ns = now_ns();
        assert!(target[1..] == source[1..], "{:?} gave another tensor", round.contender);
        times
    }

    fn put(&mut self, contender: Contender, source: &[f32]) {
        match contender {
            Contender::Memcpy => std::hint::black_box(&mut self.between).copy_from_slice(std::hint::black_box(source)),
            Contender::Ours => drop(self.client.put(&self.key, source).expect("put")),
            Contender::Redis | Contender::RedisOneCore => {
                let bytes = bytemuck::cast_slice(source);
                let server = if contender == Contender::Redis { &mut self.redis } else { &mut self.redis_one_core };
                server.as_mut().expect("asked only if there is one").set(&self.key, bytes).expect("SET");
            }
            Contender::Tmpfs => npy::write(&self.tmpfs, source).expect("a file is written"),
            Contender::Disk => npy::write(&self.disk, source).expect("a file is written"),
        }
    }

    fn unpack(&mut self, contender: Contender, target: &mut [f32]) {
        match contender {
            Contender::Memcpy => std::hint::black_box(target).copy_from_slice(std::hint::black_box(&self.between)),
            Contender::Ours => {
                self.client.get_into(&self.key, bytemuck::cast_slice_mut(target)).expect("get_into");
            }
            Contender::Redis | Contender::RedisOneCore => {
                let bytes = bytemuck::cast_slice_mut(target);
                let server = if contender == Contender::Redis { &mut self.redis } else { &mut self.redis_one_core };
                server.as_mut().expect("asked only if there is one").get_into(&self.key, bytes).expect("GET");
            }
            Contender::Tmpfs => npy::read_into(&self.tmpfs, target).expect("a file is read"),
            Contender::Disk => npy::read_into(&self.disk, target).expect("a file is read"),
        }
    }
}
