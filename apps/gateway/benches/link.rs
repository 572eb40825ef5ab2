//! Measures bytes per second from one host to another. The contenders on one link are the gateways, a plain copy over
//! TCP, and zenoh's own put.
//!
//! ```sh
//! cargo bench -p tensorlend-gateway --bench link -- --rounds 15 --out target/gateway-link.md
//! ```
//!
//! The hosts are network namespaces on one switch of this machine. So the benchmark compares the CPU work for each
//! byte, of which a real link hides a part. It measures the contenders in turn within each round, and divides rates of
//! the same round. It needs root, and exits with a message otherwise.

#[allow(dead_code)]
#[path = "../tests/hosts/rig.rs"]
mod rig;

use bytes::Bytes;
use clap::Parser;
use rig::{Rig, peers_told, skip_without_hosts};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::DType;
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
    /// Maximum bytes of one request.
    #[arg(long, default_value_t = 1 << 20)]
    chunk: u64,
    /// Maximum bytes in flight of one value.
    #[arg(long, default_value_t = 16 << 20)]
    window: u64,
    /// A key of zenoh's configuration, and its value: KEY=JSON.
    #[arg(long)]
    zenoh: Vec<String>,
    /// Contenders: tcp, put, ask, get, cold.
    #[arg(long, value_delimiter = ',', default_values_t = ["tcp", "put", "ask", "get", "cold"].map(str::to_owned))]
    contenders: Vec<String>,
    /// File for a copy of the report.
    #[arg(long)]
    out: Option<PathBuf>,
    /// The role of a helper process, which the benchmark starts.
    #[arg(long, hide = true)]
    role: Option<String>,
    /// Address of the other host, for a helper process.
    #[arg(long, hide = true, default_value = "")]
    at: String,
    /// `cargo bench` passes this flag to every benchmark; it has no effect.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let options = Options::parse();
    match options.role.as_deref() {
        None => compare(&options),
        Some("tcp-serve") => tcp_serve(&options.at),
        Some("tcp-fetch") => tcp_fetch(&options.at),
        Some("zenoh-serve") => zenoh_serve(&options),
        Some("zenoh-fetch") => zenoh_fetch(&options),
        Some(other) => panic!("no role: {other}"),
    }
}

/// Reads orders (`WHAT BYTES`) from standard input, and writes the nanoseconds of each to standard output.
fn obey(mut fetch: impl FnMut(&str, usize) -> Duration) {
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("an order");
        let (what, bytes) = line.split_once(' ').expect("WHAT BYTES");
        println!("{}", fetch(what, bytes.parse().expect("bytes")).as_nanos());
    }
}

/// Returns the bytes to send. Each page has been written, so the kernel has allocated it.
fn payload(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at >> 12) as u8 | 1).collect()
}

/// Ends this process as soon as its parent has ended, even if the parent was killed.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

fn tcp_serve(at: &str) {
    end_with_parent();
    let listener = TcpListener::bind(at).expect("a port");
    println!("ready");
    let (mut stream, _) = listener.accept().expect("who fetches");
    stream.set_nodelay(true).expect("an option");
    let bytes = payload(256 << 20);
    let mut wanted = [0; 8];
    while stream.read_exact(&mut wanted).is_ok() {
        let wanted = u64::from_le_bytes(wanted) as usize;
        stream.write_all(&bytes[..wanted]).expect("bytes are sent");
    }
}

fn tcp_fetch(at: &str) {
    let mut stream = TcpStream::connect(at).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut out = payload(256 << 20);
    obey(|_, bytes| {
        let start = Instant::now();
        stream.write_all(&(bytes as u64).to_le_bytes()).expect("a question");
        stream.read_exact(&mut out[..bytes]).expect("the bytes");
        start.elapsed()
    });
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

/// Returns the configured zenoh options, which all contenders over zenoh use.
fn told(options: &Options) -> Vec<(String, serde_json::Value)> {
    let one = |one: &String| {
        let (key, value) = one.split_once('=').expect("KEY=JSON");
        (key.to_owned(), value.parse().expect("JSON"))
    };
    options.zenoh.iter().map(one).collect()
}

fn session(options: &Options, listen: bool) -> Zenoh {
    let mut zenoh = ZenohOptions::defaults().expect("defaults");
    zenoh.set("mode", "'peer'").expect("a mode");
    zenoh.set("scouting/multicast/enabled", "false").expect("an option");
    let endpoint = [format!("tcp/{}", options.at)];
    zenoh.set_strings("listen/endpoints", if listen { &endpoint } else { &[] }).expect("endpoints");
    zenoh.set_strings("connect/endpoints", if listen { &[] } else { &endpoint }).expect("endpoints");
    for (key, value) in told(options) {
        zenoh.set(&key, &value.to_string()).expect("a key of zenoh's");
    }
    Zenoh::open(zenoh).expect("a session")
}

fn key_of_reads() -> Key {
    Key::About { node: node("b"), kind: Kind::Name, space: "bench".into(), name: Some("x".into()) }
}

fn message(from: &str, to: &str) -> Key {
    Key::Message { from: Some(node(from)), to: node(to), link: Some(1) }
}

fn zenoh_serve(options: &Options) {
    end_with_parent();
    let session = Arc::new(session(options, true));
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
    println!("ready");
    for question in questions {
        let body = Body::of(bytes.slice(range(&question.frame.head)));
        (question.answer)(Frame { head: Bytes::new(), body });
    }
}

fn zenoh_fetch(options: &Options) {
    let session = session(options, false);
    let mut out = payload(256 << 20);
    let (came, puts) = channel();
    let came = Mutex::new(came);
    let _listens = session
        .listen(
            &message("b", "a"),
            Arc::new(move |_, frame: Frame| came.lock().expect("a lock").send(frame.body).expect("a thread")),
        )
        .expect("bytes");
    let head = |offset: usize, bytes: usize| {
        Bytes::from([(offset as u64).to_le_bytes(), (bytes as u64).to_le_bytes()].concat())
    };
    let (answered, answers) = channel();
    let ask = |offset: usize, bytes: usize| {
        let answered = answered.clone();
        let done = Box::new(move |answer| answered.send((offset, answer)).expect("a receiver"));
        session.ask(&key_of_reads(), Frame { head: head(offset, bytes), body: Body::default() }, LONG, done);
    };
    // Zenoh makes a declaration known to other nodes with a delay, so the first requests may fail.
    loop {
        ask(0, 1);
        if answers.recv().expect("an answer").1.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    loop {
        session.send(&message("a", "b"), Frame { head: head(0, 1), body: Body::default() }).expect("a wish");
        if puts.recv_timeout(Duration::from_millis(100)).is_ok() {
            break;
        }
    }
    let chunk = options.chunk as usize;
    obey(|what, bytes| {
        while puts.try_recv().is_ok() {}
        let start = Instant::now();
        if what == "put" {
            session.send(&message("a", "b"), Frame { head: head(0, bytes), body: Body::default() }).expect("a wish");
            assert!(puts.recv_timeout(LONG).expect("the bytes").copy_to(&mut out[..bytes]));
            return start.elapsed();
        }
        let (mut asked, mut there) = (0, 0);
        while there < bytes {
            while asked < bytes && asked - there < options.window as usize {
                let length = chunk.min(bytes - asked);
                ask(asked, length);
                asked += length;
            }
            let (offset, answer) = answers.recv_timeout(LONG).expect("an answer");
            let body = answer.expect("the bytes").body;
            assert!(body.copy_to(&mut out[offset..offset + body.len()]));
            there += body.len();
        }
        start.elapsed()
    });
}

/// A helper process on one of the hosts.
struct Helper {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    fn start(rig: &Rig, options: &Options, host: u8, role: &str, at: &str) -> Self {
        let mut command = rig.command(host, &std::env::current_exe().expect("this program"));
        command.args(["--role", role, "--at", at]);
        command.args(["--chunk", &options.chunk.to_string(), "--window", &options.window.to_string()]);
        options.zenoh.iter().for_each(|one| {
            command.args(["--zenoh", one]);
        });
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a helper");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut helper = Self { orders: child.stdin.take(), child, answers };
        assert_eq!(helper.line(), "ready");
        helper
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        line.trim().to_owned()
    }

    fn fetch(&mut self, what: &str, bytes: u64) -> f64 {
        writeln!(self.orders.as_mut().expect("a pipe"), "{what} {bytes}").expect("an order");
        self.line().parse::<f64>().expect("nanoseconds")
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compare(options: &Options) {
    if skip_without_hosts() {
        return;
    }
    let mut hosts = Hosts::start(options);
    let mut report = String::new();
    let _ = writeln!(report, "| bytes | {} |", options.contenders.join(" | "));
    let _ = writeln!(report, "|---|{}", "---|".repeat(options.contenders.len()));
    for &kib in &options.kib {
        let cells = cells(&mut hosts, options, kib << 10).join(" | ");
        let _ = writeln!(report, "| {kib} KiB | {cells} |");
        println!("{kib} KiB: {cells}");
    }
    println!("\n{report}");
    if let Some(out) = &options.out {
        std::fs::write(out, page(options, &report)).expect("the report");
    }
}

/// Measures values of this many bytes. Returns the rates of each contender in GB/s, and their ratios to the rate of TCP
/// in the same round.
fn cells(hosts: &mut Hosts, options: &Options, bytes: u64) -> Vec<String> {
    let mut rates = vec![Vec::new(); options.contenders.len()];
    let mut ratios = rates.clone();
    // The first two rounds allocate memory and let TCP's windows grow, so they do not count.
    for round in 0..options.rounds + 2 {
        let mut of_tcp = None;
        for (at, contender) in options.contenders.iter().enumerate() {
            let rate = bytes as f64 / hosts.fetch(contender, bytes, round);
            if contender == "tcp" {
                of_tcp = Some(rate);
            }
            if round >= 2 {
                rates[at].push(rate);
                ratios[at].extend(of_tcp.map(|tcp| rate / tcp));
            }
        }
    }
    hosts.forget();
    let all = rates.iter_mut().zip(&mut ratios);
    all.map(|(rates, ratios)| format!("{} GB/s; x {}", spread(rates), spread(ratios))).collect()
}

/// Two hosts with the processes of all contenders. Host 0 fetches from host 1. The fields end in this order.
struct Hosts {
    clients: Vec<tensorlend::Client>,
    _nodes: Vec<rig::Node>,
    tcp: Helper,
    zenoh: Helper,
    _serve: [Helper; 2],
    /// Names whose copies stay, so that the next fetch takes new memory.
    copied: Vec<String>,
    _rig: Rig,
}

impl Hosts {
    fn start(options: &Options) -> Self {
        let rig = Rig::new(2);
        let at = |port: u16| format!("{}:{port}", rig.address(1));
        let helper = |host: u8, role: &str, port: u16| Helper::start(&rig, options, host, role, &at(port));
        let (tcp_serve, tcp) = (helper(1, "tcp-serve", 7001), helper(0, "tcp-fetch", 7001));
        let (zenoh_serve, zenoh) = (helper(1, "zenoh-serve", 7002), helper(0, "zenoh-fetch", 7002));
        let config = format!(
            "chunk_bytes = {}\nwindow_bytes = {}\nwindows_bytes = {}\n[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\n",
            options.chunk,
            options.window,
            options.window * 4
        );
        let has_gateways = options.contenders.iter().any(|one| one == "get" || one == "cold");
        let nodes = if has_gateways { peers_told(&rig, 2, &config, &told(options)) } else { Vec::new() };
        Self {
            clients: nodes.iter().map(rig::Node::client).collect(),
            _nodes: nodes,
            tcp,
            zenoh,
            _serve: [tcp_serve, zenoh_serve],
            copied: Vec::new(),
            _rig: rig,
        }
    }

    /// Fetches a value as the contender does. Returns the time in nanoseconds.
    fn fetch(&mut self, contender: &str, bytes: u64, round: usize) -> f64 {
        match contender {
            "tcp" => self.tcp.fetch("tcp", bytes),
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
            other => self.zenoh.fetch(other, bytes),
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
fn get(clients: &[tensorlend::Client], what: &str, bytes: u64, round: usize) -> (String, f64) {
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

/// Formats the median, minimum and maximum of the numbers.
fn spread(numbers: &mut [f64]) -> String {
    numbers.sort_by(f64::total_cmp);
    match numbers {
        [] => "-".into(),
        all => format!("{:.2} ({:.2} to {:.2})", all[all.len() / 2], all[0], all[all.len() - 1]),
    }
}

/// Returns the report: a description of the machine, and the table.
fn page(options: &Options, table: &str) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches(['\t', ':', ' ']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let date =
        std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]).output().map(|out| out.stdout).unwrap_or_default();
    let load = read("/proc/loadavg");
    let build = if cfg!(debug_assertions) {
        " **Built without optimizations (zenoh: few): the rates of zenoh and gateway are lower than those of a release.**"
    } else {
        ""
    };
    let zenoh =
        if options.zenoh.is_empty() { String::new() } else { format!(", zenoh with `{}`", options.zenoh.join("`, `")) };
    format!(
        "# Gateway: bytes per second between two hosts\n\n\
         Made by `cargo bench -p tensorlend-gateway --bench link`, {}, on {cores} cores of {cpu}, load {} at the end. Both hosts are network \
         namespaces of this one machine, so that both sides and the link share its cores. {} rounds; chunks of {} KiB, windows of {} KiB{zenoh}.{build}\n\n\
         Each cell: median (least to most) of the rate, and of its ratio to TCP in the same round. `tcp`: a plain copy over a socket. `put`: \
         zenoh's put and subscribe of all bytes at once. `ask`: the same bytes in chunks, by zenoh's queries, without brokers. `get`: \
         `client.get` of a name of the other host, from the question to the lease. `cold`: the same, into memory that this host has never used.\n\n{table}",
        String::from_utf8_lossy(&date).trim(),
        load.split(' ').next().unwrap_or_default(),
        options.rounds,
        options.chunk >> 10,
        options.window >> 10,
    )
}
