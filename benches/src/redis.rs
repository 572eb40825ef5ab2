//! The benchmark's own Redis server: on a Unix socket, without persistence, with an allocator that keeps freed memory.

use crate::resp::Connection;
use crate::worker::{self, Role};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The role of the process that becomes the server. It dies with the benchmark: the death signal survives the exec.
pub const ROLE: &str = "redis-server";

#[derive(Debug)]
pub struct Redis {
    server: Child,
    socket: PathBuf,
    _folder: TempDir,
}

/// Options of every server: no persistence, and no background work.
const OPTIONS: [&str; 16] = [
    "--save",
    "",
    "--appendonly",
    "no",
    "--activedefrag",
    "no",
    "--loglevel",
    "warning",
    "--jemalloc-bg-thread",
    "no",
    "--daemonize",
    "no",
    "--client-output-buffer-limit",
    "normal 0 0 0",
    "--maxmemory",
    "0",
];

impl Redis {
    /// Starts a server, on `cores` if the slice is not empty. Returns `None` if this machine has no redis-server.
    pub fn start(cores: &[usize]) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let (folder, socket) = socket_path();
        let mut args = vec![folder.path().display().to_string(), socket.display().to_string()];
        args.extend(cores.iter().map(ToString::to_string));
        let server = worker::command(ROLE, &args)
            // The server keeps freed memory: returned pages would fault again with the next value. Debian's server
            // reads the first variable, a server with a bundled allocator the second.
            .env("MALLOC_CONF", KEEP)
            .env("JE_MALLOC_CONF", KEEP)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a server starts");
        let redis = Self { server, socket, _folder: folder };
        for _ in 0..500 {
            if Connection::open(&redis.socket).is_ok() {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server did not come up within 5 s");
    }

    /// Starts a server on another host, by a command that runs `redis-server` there. The server listens on that host's
    /// address and on a Unix socket; this function returns before that. Returns `None` if this machine has no
    /// redis-server.
    pub fn start_by(mut command: Command, address: SocketAddr) -> Option<Self> {
        if !is_there() {
            return None;
        }
        let (folder, socket) = socket_path();
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        command.args(OPTIONS).args(["--bind", &ip, "--port", &port, "--protected-mode", "no"]);
        command.arg("--dir").arg(folder.path()).arg("--unixsocket").arg(&socket);
        command.env("MALLOC_CONF", KEEP).env("JE_MALLOC_CONF", KEEP);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a server starts");
        Some(Self { server, socket, _folder: folder })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

fn is_there() -> bool {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

fn socket_path() -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("tensorlend-bench").tempdir_in("/tmp").expect("a folder can be made");
    let socket = folder.path().join("redis.sock");
    (folder, socket)
}

const KEEP: &str = "dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0";

/// The role's work: becomes the server.
pub fn become_server(role: &Role) -> ! {
    let [folder, socket, cores @ ..] = &role.args[..] else { panic!("a server has a folder and a socket") };
    let cores: Vec<usize> = cores.iter().filter_map(|core| core.parse().ok()).collect();
    if !cores.is_empty() {
        crate::placement::pin(&cores);
    }
    let error = Command::new("redis-server")
        .args(OPTIONS)
        .args(["--port", "0", "--dir", folder, "--unixsocket", socket])
        .exec();
    panic!("redis-server cannot be started: {error}")
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
