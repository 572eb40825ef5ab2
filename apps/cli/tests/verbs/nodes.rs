//! Tests of `nodes`, `ls --all-nodes`, and names of other machines. Two brokers with a gateway each communicate over
//! the loopback interface.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorlend::{Client, DType, Stream};

use crate::bench::{Bench, repository};

/// Returns the gateway's program, in `TENSORLEND_BIN_DIR` or in the tool's folder. Without the program, records a skipped test
/// and returns `None`.
fn gateway() -> Option<PathBuf> {
    let tool = PathBuf::from(env!("CARGO_BIN_EXE_tensorlend"));
    let folder = std::env::var_os("TENSORLEND_BIN_DIR").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| tool.parent().unwrap().to_owned());
    let program = folder.join("tensorlend-gateway");
    if program.exists() {
        return Some(program);
    }
    tensorlend_os::skip::skip("tensorlend-gateway is not built (cargo build -p tensorlend-gateway)");
    None
}

/// A broker with a gateway.
struct Node {
    bench: Bench,
    gateway: Child,
}

impl Node {
    fn start(program: &PathBuf, name: &str, way: &str) -> Self {
        let bench = Bench::new();
        bench.write("zenoh.json5", "{ scouting: { multicast: { enabled: false } } }");
        let config = format!(
            "node = \"{name}\"\nsocket = \"{}\"\nzenoh = \"{}\"\nanswer_timeout_ms = 60000\n{way}\n\
             [[namespace]]\nexport = [\"sim/*\", \"cam\", \"runs\"]\nimport = [\"*\"]\n",
            bench.broker.socket().display(),
            bench.path("zenoh.json5").display()
        );
        bench.write("gateway.toml", config);
        let mut command = Command::new(program);
        command.arg("--config").arg(bench.path("gateway.toml")).env_remove("NOTIFY_SOCKET");
        let gateway = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self { bench, gateway }
    }

    fn end(&mut self) {
        let _ = self.gateway.kill();
        let _ = self.gateway.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_mins(5), "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A loopback address that no other process uses. Its host part is made of this process's id, and all of 127/8 is this
/// machine, so a port that is free now stays free until the gateway binds it.
fn address() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    TcpListener::bind((std::net::Ipv4Addr::new(127, high, middle, low), 0)).unwrap().local_addr().unwrap()
}

/// Starts two nodes, `here` and `there`, and waits until each sees the other.
fn two(program: &PathBuf) -> (Node, Node) {
    let address = address();
    let there = Node::start(program, "there", &format!("listen = [\"tcp/{address}\"]"));
    let here = Node::start(program, "here", &format!("listen = []\nconnect = [\"tcp/{address}\"]"));
    for (one, other) in [(&here, "there"), (&there, "here")] {
        sees(one, other, true);
    }
    (here, there)
}

fn sees(one: &Node, other: &str, alive: bool) {
    eventually("nodes see each other", || {
        let found = one.bench.json_line(&["nodes"]);
        found["nodes"].as_array().unwrap().iter().any(|node| node["node"] == other && node["alive"] == alive)
    });
}

/// Publishes on the other machine a tensor, a dataset, a stream and a list, and a name that its gateway does not
/// export.
fn furnish(there: &Node, client: &Client) -> Stream {
    there.bench.ok(&["put", "sim/iris", &repository("examples/data/iris.npy")]);
    there.bench.ok(&["put", "secret", &repository("examples/data/iris.npy")]);
    there.bench.ok(&["append", "runs", &repository("examples/data/iris.npy")]);
    let member = |n: u8| {
        let mut draft = client.create(DType::U8, &[2]).unwrap();
        draft.bytes_mut().fill(n);
        draft
    };
    let both = client.dataset().add("a", member(1)).unwrap().add("b", member(2)).unwrap();
    both.publish("sim/both").unwrap();
    client.stream("cam").open().unwrap()
}

fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn nodes_are_listed_and_their_names_are_read() {
    let Some(program) = gateway() else { return };
    let (here, mut there) = two(&program);
    let client = there.bench.client();
    let _cam = furnish(&there, &client);
    let bench = &here.bench;

    let nodes = bench.ok(&["nodes"]);
    assert_eq!(rows(&nodes), [vec!["NODE", "STATE"], vec!["here", "this", "machine"], vec!["there", "there"]]);
    eventually("the gateway has counted", || bench.ok(&["nodes", "-v"]).contains("nodes alive"));
    assert_eq!(bench.json_line(&["nodes", "-v"])["gateway"]["node"], "here");

    let all = bench.json_line(&["ls", "--all-nodes", "there/*"]);
    let found = all["remote"]["names"].as_array().unwrap();
    let of = |name: &str| found.iter().find(|one| one["name"] == name).unwrap_or(&Value::Null);
    assert_eq!((&of("there/sim/iris")["dtype"], &of("there/sim/iris")["shape"]), (&json!("f64"), &json!([150, 4])));
    assert_eq!(of("there/sim/iris")["cached"], false);
    assert_eq!((&of("there/sim/both")["kind"], &of("there/sim/both")["size"]), (&json!("dataset"), &json!(4)));
    assert_eq!((&of("there/cam")["kind"], &of("there/runs")["kind"]), (&json!("stream"), &json!("list")));
    assert_eq!((found.len(), &all["remote"]["silent"]), (4, &json!([])), "{found:?}");

    // No part of the value has been fetched yet.
    let info = bench.json_line(&["info", "there/sim/iris"]);
    assert_eq!((&info["node"], &info["dtype"], &info["cached"]), (&json!("there"), &json!("f64"), &json!(false)));
    let info = bench.ok(&["info", "there/sim/both"]);
    assert!(info.contains("there: it was not fetched yet") && info.contains("dataset"), "{info}");
    for hidden in ["there/secret", "there/sim/nothing", "nowhere/sim/iris"] {
        assert!(bench.fails(4, &["info", hidden]).contains(hidden));
    }
    bench.ok(&["get", "there/sim/iris", "-o", "iris.npy"]);
    there.bench.ok(&["get", "sim/iris", "-o", "iris.npy"]);
    assert_eq!(bench.read("iris.npy"), there.bench.read("iris.npy"));
    bench.ok(&["get", "there/sim/both", "-o", "both.npz"]);
    assert!(bench.read("both.npz").starts_with(b"PK"));
    let listed = bench.ok(&["ls", "--all-nodes", "there/sim/iris"]);
    assert!(rows(&listed).iter().any(|row| row.first() == Some(&"there/sim/iris") && row.last() == Some(&"current")));
    for hidden in ["there/secret", "there/sim/nothing", "nowhere/sim/iris"] {
        let error = bench.fails(4, &["get", hidden, "-o", "x.npy"]);
        assert!(error.contains(hidden), "{error}");
    }

    // After the other node has ended, its names are still listed, marked as old.
    there.end();
    sees(&here, "there", false);
    let nodes = bench.ok(&["nodes"]);
    assert!(nodes.contains("cannot be reached"), "{nodes}");
    let listed = bench.run(&["ls", "--all-nodes", "there/*"]);
    assert!(listed.err.contains("did not respond: there"), "{}", listed.err);
    assert!(listed.out.contains("LOCAL COPY") && listed.out.contains("old"), "{}", listed.out);
    bench.ok(&["get", "there/sim/iris", "-o", "again.npy"]);
    assert_eq!(bench.read("again.npy"), bench.read("iris.npy"));
    let error = bench.fails(1, &["get", "there/sim/other", "-o", "x.npy"]);
    assert!(error.contains("there") && error.contains("reached"), "{error}");
}

#[test]
fn streams_of_another_machine_are_received() {
    let Some(program) = gateway() else { return };
    let (here, there) = two(&program);
    let client = there.bench.client();
    let cam = furnish(&there, &client);
    let recv = here.bench.start(&["recv", "there/cam", "-o", "r", "--timeout", "50", "--count", "2"]);
    // The subscriber starts with the newest message at that time. The test cannot know which one that is, so it keeps
    // sending.
    let is_done = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Send a bounded number of messages, so that the thread ends even if the receiver fails.
            for n in (0..=255).cycle().take(20_000).take_while(|_| !is_done.load(Ordering::Relaxed)) {
                let mut draft = client.create(DType::U8, &[3]).unwrap();
                draft.bytes_mut().fill(n);
                cam.send(draft).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let done = recv.done();
        is_done.store(true, Ordering::Relaxed);
        done
    });
    assert_eq!((done.status, done.err.as_str()), (0, ""));
    let [first, second] = [0, 1].map(|n| {
        let file = here.bench.read(&format!("r/{n:06}.npy"));
        let bytes = &file[file.len() - 3..];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    });
    assert_eq!(second, first.wrapping_add(1));
}

#[test]
fn without_a_gateway_there_are_no_nodes() {
    let bench = Bench::new();
    let nodes = bench.run(&["nodes"]);
    assert_eq!((nodes.status, nodes.out.as_str()), (0, ""));
    assert!(nodes.err.contains("no tensorlend-gateway serves namespace"), "{}", nodes.err);
    assert_eq!(bench.json_line(&["nodes", "-v"]), json!({"nodes": []}));
    let error = bench.fails(1, &["ls", "--all-nodes"]);
    assert!(error.contains("tensorlend-gateway"), "{error}");
}
