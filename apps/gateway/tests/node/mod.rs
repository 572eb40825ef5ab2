//! Nodes: each a daemon and the gateway's program, connected over this machine's loopback.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tensorlend::remote::SERVICE;
use tensorlend::{Client, Draft, Stream};
use tensorlend_daemon::Embedded;
use tensorlend_tests::{eventually, free_address, signal};

/// A timeout that only a failure reaches.
pub const LONG: Option<Duration> = Some(Duration::from_mins(5));

/// Returns the command of the program, without the options of this process.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlend-gateway"));
    command.env_remove("TENSORLEND_SOCKET").env_remove("NOTIFY_SOCKET");
    command
}

/// A daemon (of this process unless another one is given) and its gateway.
pub struct Node {
    pub broker: Option<Embedded>,
    pub client: Client,
    pub config: PathBuf,
    folder: tempfile::TempDir,
    pub gateway: Option<Child>,
}

impl Node {
    /// Starts a daemon, unless the socket of one is given, and its gateway.
    pub fn new(name: &str, way: &str, given: Option<PathBuf>) -> Self {
        let broker = given.is_none().then(|| tensorlend_daemon::embedded().unwrap());
        let socket = broker.as_ref().map(|broker| broker.socket().to_owned()).or(given).unwrap();
        let client = Client::builder().socket(&socket).connect().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let zenoh = folder.path().join("zenoh.json5");
        std::fs::write(&zenoh, "{ scouting: { multicast: { enabled: false } } }").unwrap();
        let config = folder.path().join("gateway.toml");
        let (socket, zenoh) = (socket.display(), zenoh.display());
        let space = "[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\naccept_put = [\"inbox/*\"]\n";
        let text = format!(
            "node = \"{name}\"\nsocket = \"{socket}\"\nzenoh = \"{zenoh}\"\nanswer_timeout_ms = 60000\n{way}\n{space}"
        );
        std::fs::write(&config, text).unwrap();
        let mut node = Self { broker, client, config, folder, gateway: None };
        node.start();
        node
    }

    /// Starts the gateway, and waits for its ready notification.
    pub fn start(&mut self) {
        let manager = self.folder.path().join("notify");
        let _ = std::fs::remove_file(&manager);
        let notified = UnixDatagram::bind(&manager).unwrap();
        notified.set_read_timeout(LONG).unwrap();
        let mut command = program();
        command.arg("--config").arg(&self.config).env("NOTIFY_SOCKET", &manager);
        self.gateway = Some(command.stderr(Stdio::inherit()).spawn().unwrap());
        let mut said = [0; 1000];
        let bytes = notified.recv(&mut said).expect("the gateway gets ready");
        assert!(String::from_utf8_lossy(&said[..bytes]).contains("READY=1"));
    }

    /// Ends the gateway by a signal. Returns its exit code.
    pub fn end(&mut self, by: rustix::process::Signal) -> Option<i32> {
        let mut gateway = self.gateway.take().unwrap();
        signal(gateway.id(), by);
        gateway.wait().unwrap().code()
    }

    /// Returns a metric of the node's gateway; `None` if the gateway has not published it yet.
    pub fn stat(&self, what: &str) -> Option<u64> {
        let said = self.client.get(&format!("{SERVICE}/stat")).ok()?;
        serde_json::from_slice::<serde_json::Value>(said.bytes()).unwrap()[what].as_u64()
    }

    /// Waits until the gateway sees a node come or go.
    pub fn sees(&self, node: &str, alive: bool) {
        eventually("nodes see each other", || {
            self.client.remote().nodes().unwrap().iter().any(|other| other.node == node && other.alive == alive)
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut gateway) = self.gateway.take() {
            let _ = gateway.kill();
            let _ = gateway.wait();
        }
    }
}

/// Starts two connected nodes.
pub fn two() -> (Node, Node) {
    two_on(None)
}

/// Starts two connected nodes, the second one on the given daemon.
pub fn two_on(second: Option<PathBuf>) -> (Node, Node) {
    let address = free_address();
    let a = Node::new("a", &format!("listen = [\"tcp/{address}\"]"), None);
    let b = Node::new("b", &format!("listen = []\nconnect = [\"tcp/{address}\"]"), second);
    a.sees("b", true);
    b.sees("a", true);
    (a, b)
}

/// Sends a message of one number.
pub fn send(cam: &Stream, client: &Client, n: u64) {
    let number = || -> tensorlend::Result<Draft> {
        let mut draft = client.create(tensorlend::DType::U64, &[1])?;
        draft.as_mut_slice::<u64>()?[0] = n;
        Ok(draft)
    };
    cam.send(number().unwrap()).unwrap();
}
