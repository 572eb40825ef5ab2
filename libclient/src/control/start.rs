//! The start of the user's daemon by the first client.
//!
//! A client that finds no daemon at the default sockets runs `tensorlendd --daemonize`, which returns when the daemon listens.
//! Of several clients, the one with the lock of the socket's folder does so; the others wait for the daemon or for the lock.
//! The kernel drops the lock when its holder dies, and the next client then tries. So a client, the process that it runs,
//! and the daemon may be killed at any step.

use super::Budget;
use super::socket::{is_readable, open_own};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tensorlend_os::program;
use tensorlend_os::socket_file::{Lock, Purpose};
use tensorlend_os::user_folder::is_trusted;

/// Interval at which a client that waits for another one's daemon looks for it.
const INTERVAL: Duration = Duration::from_millis(5);

/// Number of attempts to start a daemon that is killed before it listens.
const ATTEMPTS: u32 = 3;

/// Variables for the service manager of the client, its terminal's log and its allocator, which the daemon must not inherit.
const NOT_INHERITED: [&str; 11] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "FDSTORE",
    "LD_AUDIT",
    "LD_PRELOAD",
    "TENSORLEND_LOG_FORMAT",
];

/// Connects to the daemon at `path`, and starts one if none listens. Returns the reason if that fails.
pub fn connect(path: &Path, timeout: Duration) -> Result<OwnedFd, String> {
    let budget = Budget { began: Instant::now(), timeout };
    loop {
        let locked = Lock::try_take(path, Purpose::Start);
        // With the lock, no other client starts a daemon between this look and the start.
        match open_own(path, timeout) {
            Ok(socket) => return Ok(socket),
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            Err(error) => return Err(error.to_string()),
        }
        match locked {
            Ok(_lock) => {
                tensorlend_layout::crash_point!("start: locked");
                let started = start(path, budget);
                tensorlend_layout::crash_point!("start: started");
                // A daemon may listen in spite of an error, if somebody else has started it.
                return open_own(path, timeout).map_err(|error| started.err().unwrap_or_else(|| error.to_string()));
            }
            Err(Errno::WOULDBLOCK) if !budget.left().is_zero() => std::thread::sleep(INTERVAL),
            Err(Errno::WOULDBLOCK) => {
                let holder = Lock::holder(path, Purpose::Start);
                let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                return Err(format!("{holder} is still starting or stopping tensorlendd"));
            }
            Err(error) => return Err(format!("the lock of its folder cannot be taken: {error}")),
        }
    }
}

/// Runs the daemon in the background until it listens. Returns its error otherwise.
fn start(socket: &Path, budget: Budget) -> Result<(), String> {
    let command = program::daemon()
        .ok_or("tensorlendd is neither near this library nor in PATH: install it, or add its folder to PATH")?;
    let config = config().map(|file| ["--config".into(), OsString::from(file)]);
    for _ in 0..ATTEMPTS {
        let mut daemon = Command::new(&command[0]);
        daemon.args(&command[1..]).arg("--daemonize").arg("--socket").arg(socket).args(config.iter().flatten());
        for name in NOT_INHERITED {
            daemon.env_remove(name);
        }
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut daemon = daemon.spawn().map_err(|error| format!("{} cannot be run: {error}", command[0].display()))?;
        let errors = daemon.stderr.take().map(OwnedFd::from).and_then(|errors| read(&errors, budget));
        let Some(text) = errors else {
            let _ = daemon.kill();
            let _ = daemon.wait();
            let log = program::daemon_log(socket);
            return Err(format!(
                "tensorlendd (process {}) does not come to listen: see {}",
                daemon.id(),
                log.display()
            ));
        };
        // A program with a handler of its own for SIGCHLD may have taken the status. A killed process may have started the
        // daemon before.
        let status = daemon.wait();
        if status.as_ref().is_ok_and(ExitStatus::success) || (text.is_empty() && open_own(socket, INTERVAL).is_ok()) {
            report(socket);
            return Ok(());
        }
        if !text.is_empty() {
            return Err(text);
        }
        if let Some(code) = status.ok().and_then(|status| status.code()) {
            return Err(format!("{} ended with status {code}", command[0].display()));
        }
    }
    Err(format!("tensorlendd was killed {ATTEMPTS} times before it listened"))
}

/// Reads a text until all processes have closed the pipe. Returns `None` if they have not in time.
fn read(pipe: &OwnedFd, budget: Budget) -> Option<String> {
    let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
    while is_readable(&[pipe], budget.left()) {
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => return Some(String::from_utf8_lossy(&text).trim_end().to_owned()),
            Ok(bytes) => text.extend(&buffer[..bytes]),
            Err(_) => {}
        }
    }
    None
}

/// Reports the start to a user at a terminal.
fn report(socket: &Path) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let log = program::daemon_log(socket);
        let log = log.display();
        let text = format!("tensorlend: started tensorlendd, which ends when it is no longer used (log: {log})\n");
        let _ = stderr.write_all(text.as_bytes());
    }
}

/// Returns the user's configuration, `tensorlend/tensorlendd.toml` in `$XDG_CONFIG_HOME` or `~/.config`, if it exists and no
/// other user can change it.
fn config() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("tensorlend/tensorlendd.toml")).filter(|file| is_trusted(file))
}
