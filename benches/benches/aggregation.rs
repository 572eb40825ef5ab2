//! Data aggregation: producers append datasets of four tensors to a list; the consumer polls the list's length, then gets
//! all datasets, then deletes the list. tensorlend, Redis, and `.npy` files on tmpfs.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend::{Client, Value};
use tensorlend_benches::datasets::{self, TENSORS, sum};
use tensorlend_benches::npy;
use tensorlend_benches::redis::{self, Redis};
use tensorlend_benches::report::Report;
use tensorlend_benches::resp::Connection;
use tensorlend_benches::stats::{Samples, Summary, now_ns, repeats, timed};
use tensorlend_benches::table::{Table, bytes, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all};

/// Number of datasets, and bytes of each tensor.
const CASES: [(usize, usize); 6] = [(32, 1024), (128, 1024), (512, 1024), (1024, 1024), (4096, 1024), (32, 1 << 20)];
const PRODUCERS: usize = 2;
/// Number of requests sent to Redis before the first reply is read.
const PIPELINE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Contender {
    Ours,
    /// All datasets requested in batches, before the replies are read.
    Redis,
    /// One request and its reply for each dataset.
    RedisOneByOne,
    Files,
}

impl Contender {
    const ALL: [Self; 4] = [Self::Ours, Self::Redis, Self::RedisOneByOne, Self::Files];

    fn label(self) -> &'static str {
        match self {
            Self::Ours => "tensorlend",
            Self::Redis => "Redis, pipelined",
            Self::RedisOneByOne => "Redis, one by one",
            Self::Files => ".npy on tmpfs",
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Order {
    /// Append this many datasets; returns the nanoseconds of each.
    Append { contender: Contender, datasets: usize, bytes: usize },
    /// Poll the list's length until it has this value; returns the nanoseconds of one poll.
    Poll { contender: Contender, datasets: usize },
    /// Get all, then delete the list; returns [`Collected`].
    Collect { contender: Contender, datasets: usize, bytes: usize },
}

#[derive(Serialize, Deserialize)]
struct Collected {
    /// Time until every tensor is readable.
    get_ns: f64,
    /// Time until every byte has been read as well, and the leases are released.
    read_ns: f64,
    delete_ns: f64,
    sum: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Places {
    broker: PathBuf,
    redis: Option<PathBuf>,
    files: PathBuf,
}

fn main() {
    if let Some(role) = Role::mine() {
        if role.name == redis::ROLE {
            redis::become_server(&role);
        }
        return work(role);
    }
    let mut report = Report::begin("aggregation");
    let broker = tensorlend_daemon::embedded().expect("a broker starts");
    let server = Redis::start(&[]);
    if server.is_none() {
        report.note(
            "skipped: Redis, since there is no redis-server on this machine (Debian: apt-get install redis-server)",
        );
    }
    let folder = tempfile::Builder::new().prefix("tensorlend-bench").tempdir_in("/dev/shm").expect("there is a tmpfs");
    let places = Places {
        broker: broker.socket().to_owned(),
        redis: server.as_ref().map(|s| s.socket().to_owned()),
        files: folder.path().to_owned(),
    };
    let places = serde_json::to_string(&places).expect("plain values");
    let start = |number: usize| Worker::start("client", &[places.clone(), number.to_string()]);
    let mut producers: Vec<Worker> = (0..PRODUCERS).map(start).collect();
    let mut consumer = start(PRODUCERS);
    let contenders: Vec<Contender> = Contender::ALL
        .into_iter()
        .filter(|c| server.is_some() || matches!(c, Contender::Ours | Contender::Files))
        .collect();
    let cases: &[(usize, usize)] = if report.quick { &[CASES[0], CASES[2]] } else { &CASES };
    let found: Vec<Vec<Found>> =
        cases.iter().map(|&case| measure(&report, case, &contenders, &mut producers, &mut consumer)).collect();
    tables(&mut report, cases, &contenders, &found);
    report.end();
}

/// The results of one contender and one case.
struct Found {
    append: Summary,
    poll: Summary,
    get: Summary,
    read: Summary,
    delete: Summary,
}

type Part = (&'static str, fn(&Found) -> Summary);

fn measure(
    report: &Report,
    (datasets, bytes): (usize, usize),
    contenders: &[Contender],
    producers: &mut [Worker],
    consumer: &mut Worker,
) -> Vec<Found> {
    let rounds = if report.quick { 3 } else { 9 };
    let mut samples: Vec<[Samples; 5]> = vec![Default::default(); contenders.len()];
    for round in 0..=rounds {
        let mut sums = Vec::new();
        for (&contender, samples) in contenders.iter().zip(&mut samples) {
            // The consumer polls while they append.
            consumer.tell(&Order::Poll { contender, datasets });
            let append = Order::Append { contender, datasets: datasets / PRODUCERS, bytes };
            let appended: Vec<Vec<f64>> = ask_all(producers, &append);
            let poll: f64 = consumer.answer();
            let collected: Collected = consumer.ask(&Order::Collect { contender, datasets, bytes });
            sums.push(collected.sum);
            // The first round warms up.
            if round > 0 {
                samples[0].extend(appended.into_iter().flatten());
                let figures = [poll, collected.get_ns, collected.read_ns, collected.delete_ns];
                for (samples, ns) in samples[1..].iter_mut().zip(figures) {
                    samples.push(ns);
                }
            }
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "the contenders collected different tensors: {sums:?}");
    }
    let found = samples.into_iter().map(|all| all.map(|s| s.summary()));
    found.map(|[append, poll, get, read, delete]| Found { append, poll, get, read, delete }).collect()
}

fn tables(report: &mut Report, cases: &[(usize, usize)], contenders: &[Contender], found: &[Vec<Found>]) {
    let parts: [Part; 5] = [
        ("get all: until every tensor can be read", |f| f.get),
        ("get all, read every byte, let go", |f| f.read),
        ("poll the length, once all are there", |f| f.poll),
        ("append one dataset", |f| f.append),
        ("delete the list", |f| f.delete),
    ];
    let mut head = vec!["datasets"];
    head.extend(contenders.iter().map(|c| c.label()));
    head.extend(contenders[1..].iter().map(|c| c.label()));
    for part in &mut head[contenders.len() + 1..] {
        *part = match *part {
            "Redis, pipelined" => "Redis, pipelined / tensorlend",
            "Redis, one by one" => "Redis, one by one / tensorlend",
            _ => ".npy / tensorlend",
        };
    }
    for (name, of) in parts {
        let mut table = Table::new(format!("{name}: median (least .. most)"), &head);
        for ((datasets, size), row) in cases.iter().zip(found) {
            let mut cells = vec![format!("{datasets} x 4 x {}", bytes(*size as u64))];
            cells.extend(row.iter().map(|f| spread(&of(f))));
            cells.extend(row[1..].iter().map(|f| times(of(f).p50 / of(&row[0]).p50)));
            table.row(cells);
        }
        report.table(name, &table);
        let all = cases.iter().zip(found).map(|((datasets, size), row)| {
            let named: serde_json::Map<_, _> =
                contenders.iter().zip(row).map(|(c, f)| (c.label().to_owned(), serde_json::json!(of(f)))).collect();
            serde_json::json!({ "datasets": datasets, "tensor_bytes": size, "ns": named })
        });
        report.value(&format!("{name}, samples"), all.collect::<Vec<_>>());
    }
    for ((datasets, size), row) in cases.iter().zip(found) {
        let each = row[0].get.p50 / *datasets as f64;
        println!("tensorlend, {datasets} x 4 x {}: {} for each dataset", bytes(*size as u64), nanos(each));
    }
}

/// The resources of a process.
struct Hands {
    number: usize,
    client: Client,
    redis: Option<Connection>,
    files: PathBuf,
    /// The target of data from Redis and from files.
    memory: Vec<f32>,
    appended: usize,
}

const LIST: &str = "datasets";

fn work(mut role: Role) {
    let places: Places = serde_json::from_str(&role.args[0]).expect("plain values");
    let mut hands = Hands {
        number: role.args[1].parse().expect("a number"),
        client: Client::builder().socket(&places.broker).connect().expect("a client connects"),
        redis: places.redis.as_ref().map(|socket| Connection::open(socket).expect("the server listens")),
        files: places.files,
        memory: Vec::new(),
        appended: 0,
    };
    while let Some(order) = role.order::<Order>() {
        match order {
            Order::Append { contender, datasets, bytes } => {
                let arrays: Vec<Vec<f32>> = (0..4).map(|t| vec![t as f32 + 1.0; bytes / 4]).collect();
                let each = (0..datasets).map(|_| timed(1, || hands.append(contender, &arrays)));
                role.answer(&each.collect::<Vec<_>>());
            }
            Order::Poll { contender, datasets } => {
                while hands.length(contender) != datasets {
                    // Leaves the cores to the producers.
                    std::thread::sleep(Duration::from_micros(200));
                }
                let count = repeats(20_000.0, || _ = std::hint::black_box(hands.length(contender)));
                role.answer(&timed(count, || _ = std::hint::black_box(hands.length(contender))));
            }
            Order::Collect { contender, datasets, bytes } => {
                // Memory that is allocated already, as in a consumer's loop.
                hands.memory.resize(datasets * bytes, 0.0);
                hands.memory.fill(0.0);
                let collected = hands.collect(contender, datasets, bytes / 4);
                role.answer(&collected);
            }
        }
    }
}

impl Hands {
    fn append(&mut self, contender: Contender, arrays: &[Vec<f32>]) {
        self.appended += 1;
        match contender {
            Contender::Ours => {
                datasets::append(&self.client, LIST, arrays).expect("append");
            }
            Contender::Redis | Contender::RedisOneByOne => {
                let key = format!("{{{LIST}}}/{}/{}", self.number, self.appended);
                let redis = self.redis.as_mut().expect("asked only if there is one");
                redis.append(LIST, &key, arrays).expect("appended");
            }
            Contender::Files => {
                let hidden = self.files.join(format!("{}-hidden", self.number));
                std::fs::create_dir(&hidden).expect("a folder");
                for (name, array) in TENSORS.into_iter().zip(arrays) {
                    npy::write(&hidden.join(name), array).expect("a file");
                }
                // Renamed, so that it appears whole or not at all.
                let list = self.files.join(LIST);
                std::fs::create_dir_all(&list).expect("a folder");
                std::fs::rename(&hidden, list.join(format!("{}-{}", self.number, self.appended))).expect("a name");
            }
        }
    }

    fn length(&mut self, contender: Contender) -> usize {
        match contender {
            Contender::Ours => self.client.length(LIST) as usize,
            Contender::Redis | Contender::RedisOneByOne => {
                let redis = self.redis.as_mut().expect("asked only if there is one");
                redis.length(LIST).expect("a length") as usize
            }
            Contender::Files => npy::count(&self.files.join(LIST)),
        }
    }

    fn collect(&mut self, contender: Contender, datasets: usize, elements: usize) -> Collected {
        let start = now_ns();
        if contender == Contender::Ours {
            let values: Vec<Value> = self.client.get_all(LIST).expect("the list");
            let got = now_ns();
            let tensors = values.iter().flat_map(|value| value.as_dataset().expect("a dataset").iter());
            let total = tensors.map(|(_, tensor)| sum(tensor.as_slice().expect("float32"))).fold(0, u64::wrapping_add);
            assert_eq!(values.len(), datasets);
            drop(values);
            let read = now_ns();
            let deleted = timed(1, || assert!(self.client.clear(LIST).expect("clear")));
            return Collected {
                get_ns: (got - start) as f64,
                read_ns: (read - start) as f64,
                delete_ns: deleted,
                sum: total,
            };
        }
        let mut memory = std::mem::take(&mut self.memory);
        let memory_used = &mut memory[..datasets * 4 * elements];
        let keys = match contender {
            Contender::Files => self.collect_files(memory_used, elements),
            Contender::Redis => self.collect_redis(memory_used, elements, PIPELINE),
            _ => self.collect_redis(memory_used, elements, 1),
        };
        let keys = keys.expect("all datasets");
        let got = now_ns();
        let total = memory_used.chunks(elements).map(sum).fold(0, u64::wrapping_add);
        let read = now_ns();
        assert_eq!(keys.len(), datasets);
        self.memory = memory;
        let deleted = timed(1, || match contender {
            Contender::Files => std::fs::remove_dir_all(self.files.join(LIST)).expect("the list goes"),
            _ => self.delete_redis(&keys).expect("the list goes"),
        });
        Collected { get_ns: (got - start) as f64, read_ns: (read - start) as f64, delete_ns: deleted, sum: total }
    }

    fn collect_redis(&mut self, memory: &mut [f32], elements: usize, batch: usize) -> io::Result<Vec<Vec<u8>>> {
        self.redis.as_mut().expect("asked only if there is one").collect(LIST, memory, elements, batch)
    }

    fn delete_redis(&mut self, keys: &[Vec<u8>]) -> io::Result<()> {
        let redis = self.redis.as_mut().expect("asked only if there is one");
        let mut parts: Vec<&[u8]> = vec![b"DEL", LIST.as_bytes()];
        parts.extend(keys.iter().map(Vec::as_slice));
        redis.send(&parts)?;
        assert_eq!(redis.number()?, keys.len() as u64 + 1);
        Ok(())
    }

    fn collect_files(&self, memory: &mut [f32], elements: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        let mut arrays = memory.chunks_mut(elements);
        for dataset in std::fs::read_dir(self.files.join(LIST))? {
            let folder: &Path = &dataset?.path();
            for name in TENSORS {
                npy::read_into(&folder.join(name), arrays.next().expect("no more than were appended"))?;
            }
            keys.push(folder.as_os_str().as_encoded_bytes().to_vec());
        }
        Ok(keys)
    }
}
