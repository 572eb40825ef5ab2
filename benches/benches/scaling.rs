//! The cost of one operation as other quantities grow: clients, names, subscribers, segments. In CPU time of the
//! process that performs it, so that results with more processes than cores are comparable.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use tensorlend::{Client, DType, Policy, Stream, Subscription};
use tensorlend_benches::Words;
use tensorlend_benches::random::Random;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, cpu_ns, cpu_timed, now_ns};
use tensorlend_benches::table::{Table, nanos, spread, times};
use tensorlend_benches::worker::{Role, Worker, ask_all};
use tensorlend_daemon::{Config, Embedded, embedded_with};

/// Number of operations of one sample: reading the CPU clock is a system call.
const BATCH: u32 = 500;
/// The contents of overwritten and read values.
const SMALL: [u8; 64] = [7; 64];
/// Number of messages between two rounds of reading; the ring holds twice as many.
const BURST: u32 = 2048;
const STREAM: &str = "stream";

#[derive(Clone, Serialize, Deserialize)]
enum Order {
    /// Publish these names with `bytes` each.
    Publish {
        prefix: String,
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// Get names with these numbers, in turn.
    Get {
        prefix: String,
        numbers: Vec<u64>,
        samples: u32,
    },
    /// Overwrite names with these numbers, in turn.
    Overwrite {
        prefix: String,
        numbers: Vec<u64>,
        samples: u32,
    },
    /// Overwrite one name with tensors of varying lengths.
    OverwriteVarying {
        samples: u32,
    },
    /// The minimum work of a get or a publication.
    Floor {
        samples: u32,
    },
    Open,
    Subscribe,
    /// Send as many messages as fit.
    Send,
    /// Receive the messages that were sent.
    Receive,
    SendOne,
    /// Sleep until there is a message.
    ReceiveOne,
    /// Look numbers up in a private table with this many names.
    Lookup {
        names: u64,
        numbers: Vec<u64>,
        samples: u32,
    },
}

fn main() {
    if let Some(role) = Role::mine() {
        return work(role);
    }
    let mut report = Report::begin("scaling");
    report.note(format!(
        "Processor time of each operation, {} bytes: median (least .. most); in brackets, times the first row.",
        SMALL.len()
    ));
    let counts: &[usize] = if report.quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 16, 32, 64] };
    clients(&mut report, counts);
    let names: &[u64] = if report.quick { &[10, 1000, 10_000] } else { &[10, 1000, 100_000, 1_000_000] };
    many_names(&mut report, names);
    subscribers(&mut report, counts);
    let segments: &[u64] = if report.quick { &[1, 64] } else { &[1, 16, 128, 1024] };
    many_segments(&mut report, segments);
    report.end();
}

fn start(broker: &Embedded) -> Worker {
    Worker::start("client", &[broker.socket().display().to_string()])
}

/// One column: its name, and a summary for each row.
type Column = (&'static str, Vec<Summary>);

fn table(report: &mut Report, key: &'static str, title: &str, what: &str, counts: &[f64], columns: &[Column]) {
    let mut head = vec![what];
    head.extend(columns.iter().map(|(name, _)| *name));
    let mut table = Table::new(title, &head);
    for (at, count) in counts.iter().enumerate() {
        let cell = |(_, all): &Column| format!("{} [{}]", spread(&all[at]), times(all[at].p50 / all[0].p50));
        table.row(std::iter::once(count.to_string()).chain(columns.iter().map(cell)));
    }
    report.table(key, &table);
    let named: serde_json::Map<_, _> =
        columns.iter().map(|(name, all)| ((*name).to_owned(), serde_json::json!(all))).collect();
    report.value(&format!("{key}_samples"), serde_json::json!({ "counts": counts, "ns": named }));
}

fn summary(answers: Vec<Vec<f64>>) -> Summary {
    let mut samples = Samples::default();
    samples.extend(answers.into_iter().flatten());
    samples.summary()
}

fn get(prefix: &str, numbers: Vec<u64>, samples: u32) -> Order {
    Order::Get { prefix: prefix.into(), numbers, samples }
}

fn overwrite(prefix: &str, numbers: Vec<u64>, samples: u32) -> Order {
    Order::Overwrite { prefix: prefix.into(), numbers, samples }
}

fn clients(report: &mut Report, counts: &[usize]) {
    let broker = embedded_with(&Config::default()).expect("a broker starts");
    let mut workers: Vec<Worker> = Vec::new();
    let samples = if report.quick { 10 } else { 40 };
    let mut columns: [Column; 5] = [
        ("floor: store, fence, look", Vec::new()),
        ("get, one client at work", Vec::new()),
        ("get, all at work", Vec::new()),
        ("overwrite, one client at work", Vec::new()),
        ("overwrite, all at work", Vec::new()),
    ];
    for &count in counts {
        while workers.len() < count {
            let mut worker = start(&broker);
            let prefix = format!("client/{}/", workers.len());
            worker.ask::<Vec<f64>>(&Order::Publish { prefix, from: 0, to: 1, bytes: SMALL.len() });
            workers.push(worker);
        }
        let shared = get("client/0/", vec![0], samples);
        let own = |number: usize| overwrite(&format!("client/{number}/"), vec![0], samples);
        columns[0].1.push(summary(vec![workers[0].ask(&Order::Floor { samples })]));
        columns[1].1.push(summary(vec![workers[count - 1].ask(&shared)]));
        columns[2].1.push(summary(ask_all(&mut workers, &shared)));
        columns[3].1.push(summary(vec![workers[count - 1].ask(&own(count - 1))]));
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.tell(&own(number));
        }
        columns[4].1.push(summary(workers.iter_mut().map(Worker::answer).collect()));
    }
    let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
    table(report, "clients", "Client processes in the namespace", "clients", &counts, &columns);
}

fn many_names(report: &mut Report, counts: &[u64]) {
    let mut config = Config::default();
    config.namespace_default.names_max = Some(1 << 21);
    let broker = embedded_with(&config).expect("a broker starts");
    let (mut owner, mut reader) = (start(&broker), start(&broker));
    let samples = if report.quick { 10 } else { 60 };
    let mut columns: [Column; 6] = [
        ("publish a new name (wall time)", Vec::new()),
        ("get, the same 10", Vec::new()),
        ("get, any", Vec::new()),
        ("overwrite, the same 10", Vec::new()),
        ("overwrite, any", Vec::new()),
        ("floor of any: a HashMap of one process", Vec::new()),
    ];
    let mut random = Random::new(1);
    let mut owned = 0;
    for &count in counts {
        let order = Order::Publish { prefix: "n/".into(), from: owned, to: count, bytes: SMALL.len() };
        columns[0].1.push(summary(vec![owner.ask(&order)]));
        owned = count;
        let same: Vec<u64> = (0..10).map(|i| i * count / 10).collect();
        // More names than the caches hold the paths to.
        let any: Vec<u64> = (0..60_000).map(|_| random.below(count)).collect();
        let lookup = Order::Lookup { names: count, numbers: any.clone(), samples };
        columns[5].1.push(summary(vec![reader.ask(&lookup)]));
        for (at, numbers) in [same, any].into_iter().enumerate() {
            columns[1 + at].1.push(summary(vec![reader.ask(&get("n/", numbers.clone(), samples))]));
            columns[3 + at].1.push(summary(vec![owner.ask(&overwrite("n/", numbers, samples))]));
        }
    }
    let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
    table(report, "names", "Names in the namespace, all of one client", "names", &counts, &columns);
}

fn subscribers(report: &mut Report, counts: &[usize]) {
    let broker = embedded_with(&Config::default()).expect("a broker starts");
    let mut producer = start(&broker);
    producer.ask::<Vec<f64>>(&Order::Open);
    let mut readers: Vec<Worker> = Vec::new();
    let mut columns: [Column; 3] = [
        ("create and send", Vec::new()),
        ("receive (each subscriber)", Vec::new()),
        ("create and send, all asleep", Vec::new()),
    ];
    let bursts = if report.quick { 6 } else { 25 };
    for &count in counts {
        while readers.len() < count {
            let mut reader = start(&broker);
            reader.ask::<Vec<f64>>(&Order::Subscribe);
            readers.push(reader);
        }
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for burst in 0..bursts {
            let send: Vec<f64> = producer.ask(&Order::Send);
            let receive: Vec<Vec<f64>> = ask_all(&mut readers, &Order::Receive);
            // The first ones warm up.
            if burst > 1 {
                sent.push(send);
                received.extend(receive);
            }
        }
        columns[0].1.push(summary(sent));
        columns[1].1.push(summary(received));
        let mut woken = Vec::new();
        for _ in 0..bursts {
            for reader in &mut readers {
                reader.tell(&Order::ReceiveOne);
            }
            // Sleep until the readers have stopped spinning and are blocked.
            std::thread::sleep(Duration::from_millis(20));
            woken.push(producer.ask(&Order::SendOne));
            for reader in &mut readers {
                reader.answer::<Vec<f64>>();
            }
        }
        columns[2].1.push(summary(woken));
    }
    let all = &columns[0].1;
    let (first, last) = (all[0].p50, all[all.len() - 1].p50);
    let added = (last - first) / (counts[counts.len() - 1] - counts[0]) as f64;
    let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
    table(
        report,
        "subscribers",
        "Subscribers of one stream, each in a process of its own",
        "subscribers",
        &counts,
        &columns,
    );
    report.note(format!("Each further subscriber adds {} to a send.", nanos(added)));
}

fn many_segments(report: &mut Report, counts: &[u64]) {
    let mut config = Config::default();
    config.pool.segment_bytes = "64KiB".parse().expect("a number");
    let broker = embedded_with(&config).expect("a broker starts");
    let (mut owner, mut reader) = (start(&broker), start(&broker));
    let samples = if report.quick { 10 } else { 60 };
    let mut columns: [Column; 4] = [
        ("publish in a new segment (wall time)", Vec::new()),
        ("get, any", Vec::new()),
        ("overwrite, one length", Vec::new()),
        ("overwrite, lengths that vary", Vec::new()),
    ];
    let mut owned = 0;
    owner.ask::<Vec<f64>>(&Order::Publish { prefix: "small/".into(), from: 0, to: 1, bytes: SMALL.len() });
    let mut random = Random::new(1);
    for &count in counts {
        // Two values of this length do not fit into one segment.
        let order = Order::Publish { prefix: "s/".into(), from: owned, to: count, bytes: 40 << 10 };
        columns[0].1.push(summary(vec![owner.ask(&order)]));
        owned = count;
        let any: Vec<u64> = (0..10_000).map(|_| random.below(count)).collect();
        columns[1].1.push(summary(vec![reader.ask(&get("s/", any, samples))]));
        columns[2].1.push(summary(vec![owner.ask(&overwrite("small/", vec![0], samples))]));
        columns[3].1.push(summary(vec![owner.ask(&Order::OverwriteVarying { samples })]));
    }
    let counts: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
    table(report, "segments", "Segments of one client, 64 KB each", "segments", &counts, &columns);
}

fn work(mut role: Role) {
    let client = Client::builder().socket(Path::new(&role.args[0])).connect().expect("a client connects");
    let mut hand = Hand { client, stream: None, subscription: None };
    while let Some(order) = role.order::<Order>() {
        role.answer(&hand.obey(order));
    }
}

/// A worker's client, with the stream that it sends and its subscription.
struct Hand {
    client: Client,
    stream: Option<Stream>,
    subscription: Option<Subscription>,
}

impl Hand {
    /// Executes an order; returns its samples.
    fn obey(&mut self, order: Order) -> Vec<f64> {
        let client = &self.client;
        match order {
            Order::Publish { prefix, from, to, bytes } => own(client, &prefix, from..to, bytes),
            Order::Get { prefix, numbers, samples } => in_turn(&prefix, &numbers, samples, |name| {
                drop(std::hint::black_box(client.get(name).expect("get")));
            }),
            Order::Overwrite { prefix, numbers, samples } => in_turn(&prefix, &numbers, samples, |name| {
                client.put(name, &SMALL).expect("put");
            }),
            Order::OverwriteVarying { samples } => {
                let mut length = 0;
                in_turn("small/", &[0], samples, |name| {
                    // Lengths of 1 to 61 cache lines; a length repeats only after all others.
                    length = (length + 17) % 61;
                    let draft = client.create(DType::U8, &[64 * length + 64]).expect("a slot");
                    draft.publish(name).expect("publish");
                })
            }
            Order::Floor { samples } => {
                let words = Words::default();
                in_turn("", &[0], samples, |_| _ = std::hint::black_box(words.store_fence_look()))
            }
            Order::Lookup { names, numbers, samples } => {
                let table: HashMap<String, u64> = (0..names).map(|number| (format!("n/{number}"), number)).collect();
                in_turn("n/", &numbers, samples, |name| _ = std::hint::black_box(table.get(name)))
            }
            Order::Open => {
                let open = client.stream(STREAM).capacity(2 * BURST).policy(Policy::Block).open();
                self.stream = Some(open.expect("a stream"));
                Vec::new()
            }
            Order::Subscribe => {
                self.subscription = Some(client.subscribe(STREAM).expect("the stream"));
                Vec::new()
            }
            Order::Send => self.send(BURST),
            Order::SendOne => self.send(1),
            Order::Receive => self.receive(BURST),
            Order::ReceiveOne => {
                self.receive(1);
                Vec::new()
            }
        }
    }

    /// Sends messages; returns the CPU time of each.
    fn send(&self, count: u32) -> Vec<f64> {
        let stream = self.stream.as_ref().expect("opened");
        vec![cpu_timed(count, || {
            let draft = self.client.create(DType::U8, &[SMALL.len() as u64]).expect("a slot");
            stream.send(draft).expect("send");
        })]
    }

    /// Receives messages; returns the CPU time of each.
    fn receive(&mut self, count: u32) -> Vec<f64> {
        let subscription = self.subscription.as_mut().expect("subscribed");
        vec![cpu_timed(count, || drop(subscription.recv().expect("a message")))]
    }
}

/// Publishes new names; returns the nanoseconds of each, or of a sample if they are many.
fn own(client: &Client, prefix: &str, numbers: std::ops::Range<u64>, bytes: usize) -> Vec<f64> {
    let bytes = vec![7_u8; bytes];
    let every = ((numbers.end - numbers.start) / 10_000).max(1);
    let mut found = Vec::new();
    for number in numbers {
        let start = now_ns();
        client.put(&format!("{prefix}{number}"), &bytes).expect("put");
        if number % every == 0 {
            found.push((now_ns() - start) as f64);
        }
    }
    found
}

/// Performs `work` with each of the names in turn; returns the CPU time per operation, one sample per batch.
fn in_turn(prefix: &str, numbers: &[u64], samples: u32, mut work: impl FnMut(&str)) -> Vec<f64> {
    let names: Vec<String> = numbers.iter().map(|number| format!("{prefix}{number}")).collect();
    let mut names = names.iter().cycle();
    let mut found = Vec::new();
    // The first tenth warms up.
    for sample in 0..samples + samples / 10 {
        let start = cpu_ns();
        for _ in 0..BATCH {
            work(names.next().expect("a cycle"));
        }
        if sample >= samples / 10 {
            found.push((cpu_ns() - start) as f64 / f64::from(BATCH));
        }
    }
    found
}
