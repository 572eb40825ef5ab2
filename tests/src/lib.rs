//! Shared parts of the black-box tests: a daemon, agents and command-line programs as real processes, each with a
//! deadline.

pub mod across;
pub mod background;
pub mod board;
pub mod chaos;
pub mod charged;
pub mod cold;
pub mod container;
pub mod everything;
pub mod everywhere;
pub mod filled;
pub mod hand;
pub mod harness;
pub mod history;
pub mod journal;
pub mod keeper;
pub mod location;
pub mod machine;
pub mod memory;
pub mod orders;
pub mod queued;
pub mod scenarios;
pub mod sharer;
pub mod stored;
pub mod system;
pub mod traffic;
pub mod tree;
pub mod users;
pub mod witness;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub mod manager;

/// Timeout of every wait for an event. Only a failure takes that long: no test may depend on the machine's speed.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// Timeout of a whole program whose steps have their own timeouts, such as a test that starts itself again.
pub const PROGRAM_PATIENCE: Duration = Duration::from_hours(2);

/// Returns true if `TENSORLEND_TEST=full` requests the large amounts of work.
///
/// # Panics
/// If the variable has an unknown value.
pub fn is_full() -> bool {
    match std::env::var("TENSORLEND_TEST").as_deref() {
        Ok("full") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("TENSORLEND_TEST is {other:?}, and only \"full\" has a meaning"),
    }
}

/// Selects a test's amount of work: `small` takes at most about 15 seconds on an idle machine, `full` is for long runs
/// with `TENSORLEND_TEST=full`.
pub fn budget<T>(small: T, full: T) -> T {
    if is_full() { full } else { small }
}

/// Returns the number in an environment variable, or the default.
///
/// # Panics
/// If the variable does not contain a number.
pub fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number"))
}

/// Returns the folder of cargo's binaries.
fn binaries() -> PathBuf {
    if let Some(folder) = std::env::var_os("TENSORLEND_BIN_DIR") {
        return folder.into();
    }
    let own = std::env::current_exe().expect("a program knows its own path");
    let folder = own.parent().expect("a program lies in a folder");
    // A test is in target/PROFILE/deps, a program in target/PROFILE.
    if folder.ends_with("deps") { folder.parent().expect("target/PROFILE") } else { folder }.to_owned()
}

/// Returns the path of a program of the workspace.
///
/// # Panics
/// If it has not been built: `cargo build --workspace` builds all of them.
pub fn binary(name: &str) -> PathBuf {
    let path = binaries().join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --bins` first", path.display());
    path
}

/// The build of a program. Its layout of shared memory follows from the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The build of this test.
    Current,
    /// A build with the feature `next-layout-for-tests`: as the next release would be.
    Next,
}

impl Build {
    /// Returns the path of a program of this build.
    ///
    /// # Panics
    /// If the program has not been built.
    pub fn binary(self, name: &str) -> PathBuf {
        match self {
            Self::Current => binary(name),
            Self::Next => {
                let path = next_binaries().join(name);
                assert!(path.exists(), "{} is missing: run `scripts/next` first", path.display());
                path
            }
        }
    }
}

fn next_binaries() -> PathBuf {
    std::env::var_os("TENSORLEND_NEXT_BIN_DIR").map_or_else(|| binaries().join("next"), PathBuf::from)
}

/// Returns true if this test cannot run because the programs of [`Build::Next`] are missing, and records that.
pub fn skip_without_next() -> bool {
    let is_missing = !next_binaries().join("tensorlend-agent").exists();
    if is_missing {
        skip("the programs with the next layout are missing (scripts/next builds them)");
    }
    is_missing
}

/// Runs a command to its end.
///
/// # Panics
/// If it takes longer than [`PATIENCE`]; it is killed then.
pub fn run(command: &mut Command) -> Output {
    run_within(PATIENCE, command)
}

/// As [`run`], with another timeout.
///
/// # Panics
/// If it takes longer; it is killed then.
pub fn run_within(patience: Duration, command: &mut Command) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a command starts");
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
            bytes
        })
    };
    let out = read(out.map(|p| Box::new(p) as _));
    let err = read(err.map(|p| Box::new(p) as _));
    let status = ended_within(patience, &mut child);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
        // A grandchild may still hold the pipes: prints only the output whose reader has finished.
        std::thread::sleep(Duration::from_millis(100));
        let said = [out, err].map(|pipe| if pipe.is_finished() { pipe.join().unwrap_or_default() } else { Vec::new() });
        panic!("{command:?} did not end within {patience:?}; it said:\n{}", String::from_utf8_lossy(&said.concat()));
    }
    let status = status.expect("checked above");
    Output { status, stdout: out.join().expect("reads"), stderr: err.join().expect("reads") }
}

/// Returns the exit status of a child; `None` if it still runs after the timeout.
fn ended_within(patience: Duration, child: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait().expect("a child can be waited for") {
            None if start.elapsed() > patience => return None,
            None => std::thread::sleep(Duration::from_millis(2)),
            ended => return ended,
        }
    }
}

fn finish(child: &mut Child, what: &str) -> std::process::ExitStatus {
    ended_within(PATIENCE, child).unwrap_or_else(|| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("{what} did not end within {PATIENCE:?}")
    })
}

/// Closes the input of a program, which makes it exit, and waits; kills it if it does not exit.
fn dismiss(child: &mut Child) {
    drop(child.stdin.take());
    if ended_within(PATIENCE, child).is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Polls until `ready` returns true, for [`PATIENCE`] at most.
///
/// # Panics
/// If it never does.
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come to be within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the value of `look` once it has been equal ten times in a row, with pauses in between. For levels that other
/// processes are still changing.
///
/// # Panics
/// If it does not settle.
pub fn settled<T: PartialEq>(what: &str, mut look: impl FnMut() -> T) -> T {
    let (mut last, mut same) = (look(), 0);
    eventually(what, || {
        std::thread::sleep(Duration::from_millis(20));
        let before = std::mem::replace(&mut last, look());
        same = if before == last { same + 1 } else { 0 };
        same >= 10
    });
    last
}

/// Returns a TCP address that no other process uses: the loopback network is 127/8, and this address contains the
/// process's number. A free port there is still free when the caller binds it.
///
/// # Panics
/// If it has no free port.
pub fn free_address() -> std::net::SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = (std::net::Ipv4Addr::new(127, high, middle, low), 0);
    std::net::TcpListener::bind(address).and_then(|listener| listener.local_addr()).expect("a port is free")
}

/// A daemon in its own process, killed when this value is dropped.
pub struct Daemon {
    child: Child,
    folder: TempDir,
    errors: PathBuf,
}

impl Daemon {
    /// Starts a daemon in user mode with its socket in a new folder; `config` is the text of its TOML file.
    pub fn start(config: &str) -> Self {
        Self::start_as(config, |program| Command::new(program))
    }

    /// As [`Daemon::start`], through a command that the caller builds from the program (setpriv, strace).
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_as(config: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        Self::start_in(config, |_| command(&binary("tensorlendd")))
    }

    /// As [`Daemon::start`], through a command that the caller builds from the folder of socket and configuration; the
    /// caller also names the program.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_in(config: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-test-").tempdir().expect("a temporary folder");
        // For daemons and agents that run as other users.
        open_to_all(folder.path());
        let file = folder.path().join("config.toml");
        std::fs::write(&file, config).expect("the configuration is written");
        let errors = folder.path().join("daemon.log");
        let log = std::fs::File::create(&errors).expect("the log is made");
        let mut command = command(folder.path());
        command.arg("--config").arg(&file).arg("--socket").arg(folder.path().join("socket"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the daemon starts");
        let mut daemon = Self { child, folder, errors };
        let start = Instant::now();
        // A daemon that refuses the connection has started, too.
        let is_up = |socket| {
            let met = tensorlend::Client::builder().socket(socket).connect();
            matches!(met, Ok(_) | Err(tensorlend::Error::Refused { .. }))
        };
        while !is_up(daemon.socket()) {
            let gone = daemon.child.try_wait().expect("it can be waited for");
            assert!(gone.is_none() && start.elapsed() < PATIENCE, "the daemon is not up ({gone:?}):\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it has not ended.
    ///
    /// # Panics
    /// If its state cannot be queried.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Replaces its configuration, which it reads on SIGHUP.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn configure(&self, config: &str) {
        replace(&self.folder.path().join("config.toml"), config);
    }

    /// Returns the daemon's output so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Returns a client in the test's own process.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn client(&self) -> tensorlend::Client {
        tensorlend::Client::builder().socket(self.socket()).label("test").connect().expect("the test connects")
    }

    /// Sends SIGTERM to the daemon and waits until it has ended.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        signal(self.pid(), rustix::process::Signal::TERM);
        finish(&mut self.child, "the daemon")
    }

    /// Returns a `tensorlend` command that connects to the daemon.
    pub fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("tensorlend"));
        command.arg("--socket").arg(self.socket()).args(args);
        command
    }

    /// Starts an agent that is connected to the daemon.
    pub fn agent(&self) -> Agent {
        let mut agent = Agent::start();
        agent.ok(&format!("connect {}", self.socket().display()));
        agent
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        end_store(&self.socket());
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}", self.log());
        }
    }
}

/// Returns the process id of the fd store that a daemon with this socket has started. Returns `None` if none runs. The daemon
/// must not run, because a store serves one daemon at a time.
pub fn own_store(socket: &Path) -> Option<u32> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".store");
    let probe = hand::dial(Path::new(&path)).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&probe).ok()?.pid.as_raw_nonzero().get() as u32)
}

/// Ends the fd store of a daemon that has ended, with the memory that it holds.
pub fn end_store(socket: &Path) {
    let store = own_store(socket).and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    if let Some(store) = store {
        // It may have just ended by itself.
        let _ = rustix::process::kill_process(store, rustix::process::Signal::TERM);
    }
}

/// Replaces a file by rename, so that no reader finds half of it.
///
/// # Panics
/// If the file cannot be written.
pub fn replace(path: &Path, text: &str) {
    let whole = path.with_extension("new");
    std::fs::write(&whole, text).expect("a file is written");
    std::fs::rename(&whole, path).expect("a file is replaced");
}

/// Lets every user enter a folder.
pub fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777));
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process has a number");
    rustix::process::kill_process(pid, signal).expect("the test's own child can be signalled");
}

/// A client in its own process: see `src/agent.rs` for its orders.
pub struct Agent {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Agent {
    /// Starts an agent that is not connected yet.
    pub fn start() -> Self {
        Self::start_as(|program| Command::new(program))
    }

    /// Starts an agent through a command that the caller builds from the program.
    pub fn start_as(command: impl FnOnce(&Path) -> Command) -> Self {
        Self::steer(command(&binary("tensorlend-agent")))
    }

    /// Starts a worker: see `src/worker.rs`.
    pub fn worker<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new(binary("tensorlend-worker"));
        command.args(arguments);
        Self::steer(command)
    }

    /// Starts another program that takes orders as an agent does.
    ///
    /// # Panics
    /// If it does not start.
    pub fn steer(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an agent starts");
        let orders = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, answers) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, orders, answers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order without waiting for the answer.
    ///
    /// # Panics
    /// If the agent has ended.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the agent listens");
    }

    /// Returns the next answer: the text after `ok` or `error`.
    ///
    /// # Errors
    /// The agent's error.
    ///
    /// # Panics
    /// If no answer comes.
    pub fn answer(&mut self) -> Result<String, String> {
        self.answer_within(PATIENCE).unwrap_or_else(|| {
            // Reports the pid of the hung process, or its exit status.
            panic!("agent {} does not answer; it has ended: {:?}", self.child.id(), self.child.try_wait())
        })
    }

    /// As [`Agent::answer`]; `None` if no answer comes.
    pub fn answer_within(&mut self, patience: Duration) -> Option<Result<String, String>> {
        let line = self.answers.recv_timeout(patience).ok()?;
        Some(match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", text) => Ok(text.to_owned()),
            (_, text) => Err(text.to_owned()),
        })
    }

    /// Gives an order and waits for its answer.
    ///
    /// # Errors
    /// The agent's error.
    pub fn ask(&mut self, order: &str) -> Result<String, String> {
        self.tell(order);
        self.answer()
    }

    /// As [`Agent::ask`], for an order that must succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn ok(&mut self, order: &str) -> String {
        self.ask(order).unwrap_or_else(|e| panic!("{order}: {e}"))
    }

    /// Waits for its end, for [`PATIENCE`] at most.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        finish(&mut self.child, "an agent")
    }

    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes the agent's input and waits until it has ended.
    pub fn exit(self) {
        let Self { mut child, orders, .. } = self;
        drop(orders);
        finish(&mut child, "an agent");
    }
}

pub use tensorlend_os::skip::skip;

/// Returns true if this test cannot run because `tool` is missing, and records that. The test then returns.
pub fn skip_without(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).exists()));
    if !found {
        let package = if matches!(tool, "setpriv" | "prlimit") { "util-linux" } else { tool };
        skip(&format!("{tool} is not installed (apt-get install {package})"));
    }
    !found
}

/// Returns true if this test cannot run because only root can switch users, and records that.
pub fn skip_without_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("needs root to become other users");
    }
    !root
}
