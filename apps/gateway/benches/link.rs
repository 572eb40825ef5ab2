//! Measures bytes per second from one host to another. The contenders on one link are the gateways, a plain copy over
//! TCP, and zenoh's own put.
//!
//! ```sh
//! cargo bench -p tensorlend-gateway --bench link -- --rounds 15
//! ```
//!
//! The hosts are network namespaces on one switch of this machine. So the benchmark compares the CPU work for each
//! byte, of which a real link hides a part. It measures the contenders in turn within each round, and divides rates of
//! the same round. It needs root, and exits with a message otherwise.

#[allow(dead_code)]
#[path = "../tests/hosts/rig.rs"]
mod rig;

#[allow(dead_code)]
#[path = "e3/plain.rs"]
mod plain;

use bytes::Bytes;
use clap::Parser;
use plain::Plain;
use rig::{Rig, peers_told, skip_without_hosts};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType};
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::Samples;
use tensorlend_benches::table::Table;
use tensorlend_benches::worker::{Role, Worker};
use tensorlend_gateway::key::{Key, Kind};
use tensorlend_gateway::transport::{Body, Frame, Transport, Zenoh, ZenohOptions};
use tensorlend_gateway::wire::NodeName;

/// Timeout that no transfer of the benchmark reaches.
const LONG: Duration = Duration::from_mins(1);

#[derive(Parser)]
struct Options {
    /// Number of rounds for each size.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Sizes of the values, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024, 4096, 16384, 65536])]
    kib: Vec<u64>,
    #[command(flatten)]
    way: Way,
    /// Contenders: tcp, put, ask, get, cold.
    #[arg(long, value_delimiter = ',', default_values_t = ["tcp", "put", "ask", "get", "cold"].map(str::to_owned))]
    contenders: Vec<String>,
    /// `cargo bench` passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The options that helper processes have, too.
#[derive(Clone, clap::Args, Serialize, Deserialize)]
struct Way {
    /// Maximum bytes of one request.
    #[arg(long, default_value_t = 1 << 20)]
    chunk: u64,
    /// Maximum bytes in flight of one value.
    #[arg(long, default_value_t = 16 << 20)]
    window: u64,
    /// A key of zenoh's configuration, and its value: KEY=JSON.
    #[arg(long)]
    zenoh: Vec<String>,
}

/// An order to a helper process: the contender, and the bytes to fetch. The answer is the time in nanoseconds.
type Order = (String, usize);

fn main() {
    let Some(role) = Role::mine() else { return compare(&Options::parse()) };
    let at = |at: usize| role.args[at].parse::<SocketAddr>().expect("an address");
    let way = || serde_json::from_str::<Way>(&role.args[1]).expect("plain values");
    match role.name.as_str() {
        plain::ROLE => plain::serve(&role),
        "tcp" => tcp_fetch(at(0), role),
        "zenoh-serve" => zenoh_serve(&session(&way(), at(0), true), &role),
        "zenoh" => zenoh_fetch(&session(&way(), at(0), false), &way(), role),
        other => panic!("no role: {other}"),
    }
}

/// Executes orders.
fn obey(mut role: Role, mut fetch: impl FnMut(&str, usize) -> Duration) {
    role.answer(&());
    while let Some((what, bytes)) = role.order::<Order>() {
        role.answer(&(fetch(&what, bytes).as_nanos() as f64));
    }
}

/// Returns the bytes to send. Each page has been written, so the kernel has allocated it.
fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at >> 12) as u8 | 1).collect()
}

fn tcp_fetch(at: SocketAddr, role: Role) {
    let mut stream = loop {
        match Plain::open(at) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut out = payload(256 << 20);
    obey(role, |_, bytes| {
        let start = Instant::now();
        stream.get_into(&mut out[..bytes]).expect("the bytes");
        start.elapsed()
    });
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

/// Returns the configured zenoh options, which all contenders over zenoh use.
fn told(way: &Way) -> Vec<(String, serde_json::Value)> {
    let one = |one: &String| {
        let (key, value) = one.split_once('=').expect("KEY=JSON");
        (key.to_owned(), value.parse().expect("JSON"))
    };
    way.zenoh.iter().map(one).collect()
}

fn session(way: &Way, at: SocketAddr, listen: bool) -> Arc<Zenoh> {
    let mut zenoh = ZenohOptions::defaults().expect("defaults");
    zenoh.set("mode", "'peer'").expect("a mode");
    zenoh.set("scouting/multicast/enabled", "false").expect("an option");
    let endpoint = [format!("tcp/{at}")];
    zenoh.set_strings("listen/endpoints", if listen { &endpoint } else { &[] }).expect("endpoints");
    zenoh.set_strings("connect/endpoints", if listen { &[] } else { &endpoint }).expect("endpoints");
    for (key, value) in told(way) {
        zenoh.set(&key, &value.to_string()).expect("a key of zenoh's");
    }
    Arc::new(Zenoh::open(zenoh).expect("a session"))
}

fn key_of_reads() -> Key {
    Key::About { node: node("b"), kind: Kind::Name, space: "bench".into(), name: Some("x".into()) }
}

fn message(from: &str, to: &str) -> Key {
    Key::Message { from: Some(node(from)), to: node(to), link: Some(1) }
}

fn zenoh_serve(session: &Arc<Zenoh>, role: &Role) {
    let bytes = Bytes::from(payload(256 << 20));
    let range = |head: &Bytes| {
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes")) as usize;
        number(0)..number(0) + number(8)
    };
    // A thread of its own sends the responses, because sending may wait. The gateway does the same.
    let (asked, questions) = channel();
    let asked = Mutex::new(asked);
    let _answers = session
        .answer(
            &key_of_reads(),
            Arc::new(move |question| asked.lock().expect("a lock").send(question).expect("a thread")),
        )
        .expect("questions");
    let (wanted, puts) = channel();
    let wanted: Mutex<Sender<Frame>> = Mutex::new(wanted);
    let _listens = session
        .listen(
            &message("a", "b"),
            Arc::new(move |_, frame| wanted.lock().expect("a lock").send(frame).expect("a thread")),
        )
        .expect("wishes");
    {
        let (session, bytes) = (session.clone(), bytes.clone());
        std::thread::spawn(move || {
            for frame in puts {
                let body = Body::of(bytes.slice(range(&frame.head)));
                session.send(&message("b", "a"), Frame { head: Bytes::new(), body }).expect("bytes are sent");
            }
        });
    }
    role.answer(&());
    for question in questions {
        let body = Body::of(bytes.slice(range(&question.frame.head)));
        (question.answer)(Frame { head: Bytes::new(), body });
    }
}

fn head(offset: usize, bytes: usize) -> Bytes {
    Bytes::from([(offset as u64).to_le_bytes(), (bytes as u64).to_le_bytes()].concat())
}

/// The side that fetches over zenoh: by a message, which the other side answers with a put, and by questions.
struct Fetcher {
    session: Arc<Zenoh>,
    puts: Receiver<Body>,
    answered: Sender<(usize, Option<Body>)>,
    answers: Receiver<(usize, Option<Body>)>,
}

impl Fetcher {
    fn ask(&self, offset: usize, bytes: usize) {
        let answered = self.answered.clone();
        let done = move |answer: Result<Frame, _>| {
            answered.send((offset, answer.ok().map(|frame| frame.body))).expect("a receiver");
        };
        let frame = Frame { head: head(offset, bytes), body: Body::default() };
        self.session.ask(&key_of_reads(), frame, LONG, Box::new(done));
    }

    fn wish(&self, bytes: usize) {
        let frame = Frame { head: head(0, bytes), body: Body::default() };
        self.session.send(&message("a", "b"), frame).expect("a wish");
    }

    /// Waits until the other side answers. Zenoh makes a declaration known to other nodes with a delay, so the first
    /// requests may fail.
    fn meet(&self) {
        loop {
            self.ask(0, 1);
            if self.answers.recv().expect("an answer").1.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        loop {
            self.wish(1);
            if self.puts.recv_timeout(Duration::from_millis(100)).is_ok() {
                break;
            }
        }
    }

    fn by_put(&self, out: &mut [u8]) {
        self.wish(out.len());
        assert!(self.puts.recv_timeout(LONG).expect("the bytes").copy_to(out));
    }

    fn by_questions(&self, out: &mut [u8], way: &Way) {
        let (mut asked, mut there) = (0, 0);
        while there < out.len() {
            while asked < out.len() && asked - there < way.window as usize {
                let length = (way.chunk as usize).min(out.len() - asked);
                self.ask(asked, length);
                asked += length;
            }
            let (offset, answer) = self.answers.recv_timeout(LONG).expect("an answer");
            let body = answer.expect("the bytes");
            assert!(body.copy_to(&mut out[offset..offset + body.len()]));
            there += body.len();
        }
    }
}

fn zenoh_fetch(session: &Arc<Zenoh>, way: &Way, role: Role) {
    let mut out = payload(256 << 20);
    let (came, puts) = channel();
    let came = Mutex::new(came);
    let _listens = session
        .listen(
            &message("b", "a"),
            Arc::new(move |_, frame: Frame| came.lock().expect("a lock").send(frame.body).expect("a thread")),
        )
        .expect("bytes");
    let (answered, answers) = channel();
    let fetcher = Fetcher { session: session.clone(), puts, answered, answers };
    fetcher.meet();
    obey(role, |what, bytes| {
        while fetcher.puts.try_recv().is_ok() {}
        let start = Instant::now();
        match what {
            "put" => fetcher.by_put(&mut out[..bytes]),
            _ => fetcher.by_questions(&mut out[..bytes], way),
        }
        start.elapsed()
    });
}

fn compare(options: &Options) {
    if skip_without_hosts() {
        return;
    }
    let mut report = Report::begin("gateway-link");
    if cfg!(debug_assertions) {
        report.note(
            "built without optimizations (zenoh: few): the rates of zenoh and gateway are lower than a release's",
        );
    }
    let Way { chunk, window, zenoh } = &options.way;
    report.note(format!(
        "{} rounds; chunks of {} KiB, windows of {} KiB, zenoh with {zenoh:?}",
        options.rounds,
        chunk >> 10,
        window >> 10
    ));
    let mut hosts = Hosts::start(options);
    let mut head = vec!["bytes"];
    head.extend(options.contenders.iter().map(String::as_str));
    let title = "GB/s, and its ratio to TCP in the same round: median (least .. most)";
    let mut table = Table::new(title, &head);
    for &kib in &options.kib {
        table.row(std::iter::once(format!("{kib} KiB")).chain(cells(&mut hosts, options, kib << 10)));
    }
    report.table("link", &table);
    report.note(
        "tcp: a plain copy over a socket. put: zenoh's put and subscribe of all bytes at once. ask: the same bytes in chunks, \
         by zenoh's queries, without brokers. get: client.get of a name of the other host, from the question to the lease. \
         cold: the same, into memory that this host has never used.",
    );
    report.end();
}

/// Measures values of this many bytes. Returns a cell for each contender.
fn cells(hosts: &mut Hosts, options: &Options, bytes: u64) -> Vec<String> {
    let mut found = vec![[Samples::default(), Samples::default()]; options.contenders.len()];
    // The first two rounds allocate memory and let TCP's windows grow, so they do not count.
    for round in 0..options.rounds + 2 {
        let mut of_tcp = f64::NAN;
        for (contender, [rates, ratios]) in options.contenders.iter().zip(&mut found) {
            let rate = bytes as f64 / hosts.fetch(contender, bytes, round);
            if contender == "tcp" {
                of_tcp = rate;
            }
            if round >= 2 {
                rates.push(rate);
                ratios.push(rate / of_tcp);
            }
        }
    }
    hosts.forget();
    let spread = |samples: &Samples| {
        let summary = samples.summary();
        format!("{:.2} ({:.2} .. {:.2})", summary.p50, summary.min, summary.max)
    };
    found.iter().map(|[rates, ratios]| format!("{} GB/s; x {}", spread(rates), spread(ratios))).collect()
}

/// Two hosts with the processes of all contenders. Host 0 fetches from host 1. The fields end in this order.
struct Hosts {
    clients: Vec<Client>,
    _nodes: Vec<rig::Node>,
    tcp: Worker,
    zenoh: Worker,
    _serve: [Worker; 2],
    /// Names whose copies stay, so that the next fetch takes new memory.
    copied: Vec<String>,
    _rig: Rig,
}

impl Hosts {
    fn start(options: &Options) -> Self {
        let rig = Rig::new(2);
        let Way { chunk, window, .. } = &options.way;
        let (this, way) = (std::env::current_exe().expect("this program"), serde_json::to_string(&options.way));
        let way = way.expect("plain values");
        let start = |host: u8, role: &str, port: u16| {
            let at = SocketAddr::new(rig.address(1).into(), port).to_string();
            Worker::start_by(rig.command(host, &this), role, &[at, way.clone()])
        };
        let plain_serve = start(1, plain::ROLE, 7001);
        let mut tcp = start(0, "tcp", 7001);
        let mut zenoh_serve = start(1, "zenoh-serve", 7002);
        let mut zenoh = start(0, "zenoh", 7002);
        [&mut tcp, &mut zenoh_serve, &mut zenoh].into_iter().for_each(Worker::answer);
        let config = format!(
            "chunk_bytes = {}\nwindow_bytes = {}\nwindows_bytes = {}\n[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\n",
            chunk,
            window,
            window * 4
        );
        let has_gateways = options.contenders.iter().any(|one| one == "get" || one == "cold");
        let nodes = if has_gateways { peers_told(&rig, 2, &config, &told(&options.way)) } else { Vec::new() };
        Self {
            clients: nodes.iter().map(rig::Node::client).collect(),
            _nodes: nodes,
            tcp,
            zenoh,
            _serve: [plain_serve, zenoh_serve],
            copied: Vec::new(),
            _rig: rig,
        }
    }

    /// Fetches a value as the contender does. Returns the time in nanoseconds.
    fn fetch(&mut self, contender: &str, bytes: u64, round: usize) -> f64 {
        let order: Order = (contender.to_owned(), bytes as usize);
        match contender {
            "tcp" => self.tcp.ask(&order),
            "get" => {
                let (name, took) = get(&self.clients, "warm", bytes, round);
                self.clients[1].delete(&name).expect("its own name");
                took
            }
            "cold" => {
                let (name, took) = get(&self.clients, "cold", bytes, round);
                self.copied.push(name);
                took
            }
            _ => self.zenoh.ask(&order),
        }
    }

    /// Deletes the values whose copies have stayed.
    fn forget(&mut self) {
        for name in self.copied.drain(..) {
            self.clients[1].delete(&name).expect("its own name");
        }
    }
}

/// Fetches a value of which this host has no copy. Returns its name, and the time in nanoseconds.
fn get(clients: &[Client], what: &str, bytes: u64, round: usize) -> (String, f64) {
    let name = format!("{what}/{bytes}/{round}");
    let mut draft = clients[1].create(DType::U8, &[bytes]).expect("memory");
    draft.bytes_mut().fill(round as u8);
    draft.publish(&name).expect("a name");
    let there = format!("n1/{name}");
    let start = Instant::now();
    let lease = clients[0].get(&there).expect("what the other has");
    let took = start.elapsed().as_nanos() as f64;
    assert!(lease.nbytes() as u64 == bytes && lease.bytes().last() == Some(&(round as u8)));
    (name, took)
}
