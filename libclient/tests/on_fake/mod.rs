//! Tests on a machine without a GPU: they start themselves again with the fake driver.
#![allow(dead_code, reason = "each test uses a part")]
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_daemon::{Bytes, Config, Embedded};
use tensorlend_layout::wire::Allocator;

const TEST: &str = "TENSORLEND_TEST_ON_FAKE";
const ROLE: &str = "TENSORLEND_TEST_ROLE";
pub const MIB: u64 = 1 << 20;

/// Installs the fake driver into a folder: the library that `TENSORLEND_FAKECUDA` names, or the one that cargo has
/// built next to this test.
fn install(folder: &Path) {
    let own = std::env::current_exe().unwrap();
    let named = std::env::var_os("TENSORLEND_FAKECUDA").map(PathBuf::from);
    let built = || own.ancestors().map(|dir| dir.join("libfakecuda.so")).find(|path| path.exists());
    let library =
        named.or_else(built).expect("the stand-in is a dependency of this test: cargo build -p tensorlend-fakecuda");
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
    }
}

/// Runs `body` in a separate process, in which the fake driver is the driver. `settings`: variables of the fake driver.
pub fn on_fake(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(TEST).is_some_and(|name| name == test) {
        return body();
    }
    let machine = tempfile::tempdir().unwrap();
    install(machine.path());
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    again.env(TEST, test).env("LD_LIBRARY_PATH", machine.path()).env("FAKECUDA_DIR", machine.path());
    again.env("FAKECUDA_LOG", machine.path().join("log"));
    again.envs(settings.iter().copied());
    let done = again.status().unwrap();
    assert!(done.success(), "{test} on the stand-in: {done}");
}

/// Returns the folder of this process's simulated machine.
pub fn machine() -> PathBuf {
    std::env::var_os("FAKECUDA_DIR").expect("on the stand-in").into()
}

/// While this value lives, the streams of a process (0: of all processes) execute no work.
pub struct Gate(PathBuf);

impl Gate {
    pub fn of(pid: u32) -> Self {
        let name = if pid == 0 { "gate".to_owned() } else { format!("gate.{pid}") };
        let path = machine().join(name);
        std::fs::write(&path, "").unwrap();
        Self(path)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns how often this process has called a function of the driver.
pub fn calls(function: &str) -> usize {
    calls_of(std::process::id(), function)
}

/// Returns how often a process has called a function of the driver.
pub fn calls_of(pid: u32, function: &str) -> usize {
    let wanted = format!("{pid} {function}");
    log().lines().filter(|line| *line == wanted).count()
}

/// Returns the calls of all processes, one per line.
pub fn log() -> String {
    std::fs::read_to_string(machine().join("log")).unwrap_or_default()
}

/// Starts a daemon that lends a device's memory, in segments of 4 MiB.
pub fn broker(allocator: Allocator, bytes_max: u64) -> Embedded {
    broker_with(allocator, bytes_max, |_| ())
}

/// As [`broker`], with further changes of the configuration.
pub fn broker_with(allocator: Allocator, bytes_max: u64, change: impl FnOnce(&mut Config)) -> Embedded {
    let mut config = Config::default();
    config.cuda.devices = vec!["all".into()];
    config.cuda.allow_fake = true;
    config.cuda.allocator = allocator;
    config.cuda.bytes_max = Some(Bytes(bytes_max));
    config.cuda.segment_bytes = Some(Bytes(4 * MIB));
    change(&mut config);
    tensorlend_daemon::embedded_with(&config).unwrap()
}

pub fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().unwrap()
}

/// Another process, which executes the role that [`role`] returns.
pub struct Other(Child);

impl Other {
    pub fn start(role: &str, broker: &Embedded) -> Self {
        Self::start_with(role, broker, &[])
    }

    /// Starts a process with other settings of the fake driver.
    pub fn start_with(role: &str, broker: &Embedded, settings: &[(&str, &str)]) -> Self {
        let mut it = Command::new(std::env::current_exe().unwrap());
        it.args(["another_process", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        it.envs(settings.iter().copied());
        it.env("TENSORLEND_SOCKET", broker.socket()).stdin(Stdio::piped());
        Self(it.spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn succeeds(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the other process: {status}");
    }

    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns this process's role in a test; `None`: it is not such a process.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Waits until the test closes its end of this process's standard input.
pub fn until_released() {
    let _ = std::io::read_to_string(std::io::stdin());
}

pub fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < Duration::from_mins(5), "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}
