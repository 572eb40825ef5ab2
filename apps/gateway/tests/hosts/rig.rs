//! Hosts that are network namespaces, on one switch: each has its own link, which can be slow, lossy or cut.
//!
//! ```text
//! host 0: eth0 10.77.0.1 --veth-- port0 \
//! host 1: eth0 10.77.0.2 --veth-- port1 -- bridge, in a namespace of its own
//! ```
//!
//! If the kernel lacks a queue that loses and delays frames, such a link gets a relay between its port and the bridge.

#[path = "relay.rs"]
mod relay;

pub use relay::Way;

use relay::Relay;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tensorlend::Client;
use tensorlend_tests::{Daemon, binary, eventually, run, skip, skip_without, skip_without_root};

/// All hosts and the network between them, removed when dropped.
pub struct Rig {
    name: String,
    hosts: u8,
    relays: Vec<Relay>,
}

/// Returns true if no hosts can be created here, and reports the reason. The test then returns.
pub fn skip_without_hosts() -> bool {
    if skip_without_root() || skip_without("ip") || skip_without("tc") {
        return true;
    }
    let name = format!("tensorlend-try-{}-{:?}", std::process::id(), std::thread::current().id());
    let name = name.replace(['(', ')'], "");
    let tried = run(Command::new("ip").args(["netns", "add", &name]));
    if tried.status.success() {
        let _ = run(Command::new("ip").args(["netns", "del", &name]));
    } else {
        skip(&format!("no network namespace can be made here: {}", String::from_utf8_lossy(&tried.stderr).trim()));
    }
    !tried.status.success()
}

fn must(program: &str, arguments: &str) {
    let done = run(Command::new(program).args(arguments.split_whitespace()));
    assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Rig {
    /// Creates this many connected hosts.
    pub fn new(hosts: u8) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: a counter, which orders nothing.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let rig = Self { name: format!("tl{}-{number}", std::process::id()), hosts, relays: Vec::new() };
        let switch = rig.switch();
        must("ip", &format!("netns add {switch}"));
        must("ip", &format!("-n {switch} link add bridge type bridge"));
        must("ip", &format!("-n {switch} link set bridge up"));
        for host in 0..hosts {
            let here = rig.space(host);
            must("ip", &format!("netns add {here}"));
            must("ip", &format!("-n {here} link set lo up"));
            must("ip", &format!("-n {switch} link add port{host} type veth peer name eth0 netns {here}"));
            must("ip", &format!("-n {switch} link set port{host} master bridge"));
            must("ip", &format!("-n {switch} link set port{host} up"));
            must("ip", &format!("-n {here} addr add {}/24 dev eth0", rig.address(host)));
            must("ip", &format!("-n {here} link set eth0 up"));
            must("ip", &format!("-n {here} route add default dev eth0"));
        }
        rig
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }

    fn space(&self, host: u8) -> String {
        format!("{}-{host}", self.name)
    }

    pub fn address(&self, host: u8) -> Ipv4Addr {
        assert!(host < self.hosts, "there is no such host");
        Ipv4Addr::new(10, 77, 0, host + 1)
    }

    pub fn command(&self, host: u8, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.space(host).as_str()]).arg(program);
        command
    }

    /// Cuts a host off like a pulled cable: no peer gets a notification.
    pub fn cut(&self, host: u8) {
        must("ip", &format!("-n {} link set port{host} down", self.switch()));
    }

    /// Connects the host again.
    pub fn heal(&self, host: u8) {
        must("ip", &format!("-n {} link set port{host} up", self.switch()));
    }

    /// Sets the properties of a host's link, in each direction.
    pub fn way(&mut self, host: u8, way: Way) {
        let switch = self.switch();
        let ends = [(switch.clone(), format!("port{host}")), (self.space(host), "eth0".into())];
        for (space, device) in &ends {
            // Without segmentation offload, single packets are lost, and not as many as one copy contains.
            must("ip", &format!("-n {space} link set dev {device} gso_max_segs 1"));
        }
        if ends.iter().all(|(space, device)| netem(space, device, way)) {
            return;
        }
        let (port, near, far) = (format!("port{host}"), format!("near{host}"), format!("far{host}"));
        must("ip", &format!("-n {switch} link set {port} nomaster"));
        must("ip", &format!("-n {switch} link add {near} type veth peer name {far}"));
        must("ip", &format!("-n {switch} link set {far} master bridge"));
        must("ip", &format!("-n {switch} link set {near} up"));
        must("ip", &format!("-n {switch} link set {far} up"));
        self.relays.push(Relay::start(&switch, [&port, &near], way));
    }

    /// Returns the number of frames that relays have lost; `None` if the kernel's queue loses and counts them.
    pub fn lost(&self) -> Option<u64> {
        (!self.relays.is_empty()).then(|| self.relays.iter().map(Relay::lost).sum())
    }
}

/// Sets a device's link properties through the kernel; false if it cannot.
fn netem(space: &str, device: &str, way: Way) -> bool {
    let Way { loss, delay, bytes_per_s } = way;
    let line = format!(
        "-n {space} qdisc replace dev {device} root netem delay {}us loss {}% rate {}bit limit 1000",
        delay.as_micros(),
        loss * 100.0,
        8 * u64::from(bytes_per_s)
    );
    let done = run(Command::new("tc").args(line.split_whitespace()));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() || said.contains("qdisc kind is unknown"), "tc {line}: {said}");
    done.status.success()
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The relays' threads are in the switch's namespace.
        self.relays.clear();
        for space in (0..self.hosts).map(|host| self.space(host)).chain([self.switch()]) {
            let _ = run(Command::new("ip").args(["netns", "del", &space]));
        }
    }
}

/// A host with a daemon and a gateway.
pub struct Node {
    daemon: Daemon,
    gateway: Option<Child>,
    folder: tempfile::TempDir,
    host: u8,
}

/// Zenoh's options: keys of its configuration, and their values.
pub type Told = [(String, serde_json::Value)];

/// Returns zenoh's configuration: the lease of a link (milliseconds without a keep-alive message, which a busy machine must not
/// reach), short timeouts of connecting, and the given options.
fn zenoh_file(told: &Told) -> String {
    let mut all = serde_json::json!({
        "transport": { "link": { "tx": { "lease": 10000 } } },
        "scouting": { "multicast": { "enabled": false } },
        "connect": { "timeout_ms": -1, "exit_on_failure": false, "retry": { "period_init_ms": 100, "period_max_ms": 500 } },
        "listen": { "endpoints": [] },
    });
    for (key, value) in told {
        let place = key.split('/').fold(&mut all, |at, part| &mut at[part]);
        *place = value.clone();
    }
    all.to_string()
}

impl Node {
    /// Starts daemon and gateway of a host: `config` is the gateway's, without its socket.
    pub fn start(rig: &Rig, host: u8, config: &str, told: &Told) -> Self {
        let daemon = Daemon::start("");
        let folder = tempfile::tempdir().expect("a folder for a gateway");
        std::fs::write(folder.path().join("zenoh.json5"), zenoh_file(told)).expect("zenoh's file");
        let text = format!(
            "node = \"n{host}\"\nsocket = \"{}\"\nzenoh = \"{}\"\n{config}",
            daemon.socket().display(),
            folder.path().join("zenoh.json5").display()
        );
        std::fs::write(folder.path().join("gateway.toml"), text).expect("the gateway's file");
        let mut node = Self { daemon, gateway: None, folder, host };
        node.start_gateway(rig);
        node
    }

    /// Starts the host's gateway again.
    pub fn start_gateway(&mut self, rig: &Rig) {
        let log = std::fs::File::options().append(true).create(true).open(self.log_path()).expect("a log");
        let mut command = rig.command(self.host, &binary("tensorlend-gateway"));
        command.arg("--config").arg(self.folder.path().join("gateway.toml"));
        // Zenoh's information names the links that it opens and closes.
        command.env("TENSORLEND_LOG", "tensorlend_gateway=info,zenoh=info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.gateway = Some(command.spawn().expect("the gateway starts"));
    }

    pub fn kill_gateway(&mut self) {
        if let Some(mut gateway) = self.gateway.take() {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
    }

    pub fn client(&self) -> Client {
        self.daemon.client()
    }

    /// Returns the socket of this host's daemon, for benchmarks with client processes.
    #[allow(dead_code)]
    pub fn socket(&self) -> PathBuf {
        self.daemon.socket()
    }

    /// Returns the output of the host's gateway so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("gateway.log")
    }

    /// Waits until this node sees that another one is alive (or no longer is).
    pub fn sees(&self, client: &Client, other: u8, alive: bool) {
        let name = tensorlend::remote::node_name(&format!("n{other}"));
        let says = |alive: bool| {
            client.get(&name).is_ok_and(|document| {
                serde_json::from_slice::<serde_json::Value>(document.bytes())
                    .is_ok_and(|document| document["alive"] == alive)
            })
        };
        let start = std::time::Instant::now();
        while !says(alive) {
            if start.elapsed() > Duration::from_mins(1) {
                let mut out = std::io::stderr().lock();
                let _ = writeln!(out, "log of n{}:\n{}", self.host, self.log());
                panic!("n{} never learns that n{other} is {}", self.host, if alive { "there" } else { "gone" });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_gateway();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr().lock(), "--- log of the gateway of n{}:\n{}", self.host, self.log());
        }
    }
}

/// Starts one node per host, each of which connects to all previous ones as a peer.
pub fn peers(rig: &Rig, hosts: u8, config: &str) -> Vec<Node> {
    peers_told(rig, hosts, config, &[])
}

/// As [`peers`], with more options for zenoh.
pub fn peers_told(rig: &Rig, hosts: u8, config: &str, told: &Told) -> Vec<Node> {
    let node = |host: u8| {
        let before: Vec<String> = (0..host).map(|other| format!("\"tcp/{}:7447\"", rig.address(other))).collect();
        let own = format!(
            "mode = \"peer\"\nlisten = [\"tcp/{}:7447\"]\nconnect = [{}]\n{config}",
            rig.address(host),
            before.join(", ")
        );
        Node::start(rig, host, &own, told)
    };
    let nodes: Vec<Node> = (0..hosts).map(node).collect();
    meet(&nodes);
    nodes
}

/// Starts one node per host: the first is a router, the others are its clients.
pub fn star(rig: &Rig, hosts: u8, config: &str) -> Vec<Node> {
    let hub = format!("tcp/{}:7447", rig.address(0));
    let node = |host: u8| {
        let own = if host == 0 {
            format!("mode = \"router\"\nlisten = [\"{hub}\"]\n{config}")
        } else {
            format!("mode = \"client\"\nconnect = [\"{hub}\"]\n{config}")
        };
        Node::start(rig, host, &own, &[])
    };
    let nodes: Vec<Node> = (0..hosts).map(node).collect();
    meet(&nodes);
    nodes
}

/// Waits until all nodes see each other.
fn meet(nodes: &[Node]) {
    for node in nodes {
        let client = node.client();
        for other in nodes.iter().filter(|other| other.host != node.host) {
            node.sees(&client, other.host, true);
        }
    }
    eventually("gateways run", || nodes.iter().all(|node| node.gateway.is_some()));
}
