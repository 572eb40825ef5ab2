//! What the black-box tests share: a daemon, agents and command-line programs as real processes, each with a deadline.

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
pub mod machine;
pub mod memory;
pub mod place;
pub mod scenarios;
pub mod system;
pub mod users;
pub mod witness;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub mod manager;

/// The end of every wait for an event. Only a failure takes that long: no test may depend on how fast the machine is.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// The end of a whole program whose steps have ends of their own, such as a test that starts itself again.
pub const PROGRAM_PATIENCE: Duration = Duration::from_hours(2);

/// Whether the large amounts of work are asked for: `TENSORLEND_TEST=full`.
///
/// # Panics
/// If the variable has another value, which nobody can have meant.
pub fn is_full() -> bool {
    match std::env::var("TENSORLEND_TEST").as_deref() {
        Ok("full") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("TENSORLEND_TEST is {other:?}, and only \"full\" has a meaning"),
    }
}

/// How much a test explores: `small` takes at most some 15 seconds on an idle machine, `full` is for long runs and is
/// selected by `TENSORLEND_TEST=full`.
pub fn budget<T>(small: T, full: T) -> T {
    if is_full() { full } else { small }
}

/// A number from a variable of the environment, or else this one.
///
/// # Panics
/// If the variable holds no number.
pub fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, which is no number"))
}

/// The folder in which cargo puts binaries.
fn binaries() -> PathBuf {
    if let Some(folder) = std::env::var_os("TENSORLEND_BIN_DIR") {
        return folder.into();
    }
    let own = std::env::current_exe().expect("a program knows its own path");
    let folder = own.parent().expect("a program lies in a folder");
    // A test lies in target/PROFILE/deps, a program beside the others.
    if folder.ends_with("deps") { folder.parent().expect("target/PROFILE") } else { folder }.to_owned()
}

/// A program of the workspace.
///
/// # Panics
/// If it has not been built: `cargo build --workspace` builds all of them.
pub fn binary(name: &str) -> PathBuf {
    let path = binaries().join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --workspace --bins` first", path.display());
    path
}

/// Runs a command to its end.
///
/// # Panics
/// If it takes longer than [`PATIENCE`]; it is killed then.
pub fn run(command: &mut Command) -> Output {
    run_within(PATIENCE, command)
}

/// As [`run`], for a program that may take so long.
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
        // A grandchild may still hold the pipes: only what the readers have finished is printed.
        std::thread::sleep(Duration::from_millis(100));
        let said = [out, err].map(|pipe| if pipe.is_finished() { pipe.join().unwrap_or_default() } else { Vec::new() });
        panic!("{command:?} did not end within {patience:?}; it said:\n{}", String::from_utf8_lossy(&said.concat()));
    }
    let status = status.expect("checked above");
    Output { status, stdout: out.join().expect("reads"), stderr: err.join().expect("reads") }
}

/// How a child ended; `None`: it has not, after so long.
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

/// Closes the input of a program that ends with it, and waits for that end; kills it if it does not come.
fn dismiss(child: &mut Child) {
    drop(child.stdin.take());
    if ended_within(PATIENCE, child).is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Looks until `ready`, for [`PATIENCE`] at most.
///
/// # Panics
/// If it never is.
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come to be within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What `look` sees once it sees the same ten times in a row, with pauses in between: for a level that others are still on
/// their way to.
///
/// # Panics
/// If it changes again and again.
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

/// A TCP address that no other process uses: all of 127/8 is this machine, and this address is made of the process's number. A port
/// that is free there now is still free when the caller binds it.
///
/// # Panics
/// If no port of it is free.
pub fn free_address() -> std::net::SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = (std::net::Ipv4Addr::new(127, high, middle, low), 0);
    std::net::TcpListener::bind(address).and_then(|listener| listener.local_addr()).expect("a port is free")
}

/// A daemon in a process of its own, killed with this value.
pub struct Daemon {
    child: Child,
    folder: TempDir,
    errors: PathBuf,
}

impl Daemon {
    /// Starts one in user mode with its socket in a fresh folder; `config` is the text of its TOML file.
    pub fn start(config: &str) -> Self {
        Self::start_as(config, |program| Command::new(program))
    }

    /// As [`Daemon::start`], through a command that the caller makes of the program (setpriv, strace).
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_as(config: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        Self::start_in(config, |_| command(&binary("tensorlendd")))
    }

    /// As [`Daemon::start`], through a command that the caller makes: it is told the folder in which socket and
    /// configuration are, and names the program itself.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_in(config: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-test-").tempdir().expect("a temporary folder");
        // For daemons and agents that are other users.
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
        // One that refuses is up, too.
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

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    ///
    /// # Panics
    /// If it cannot be asked.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Replaces its configuration, which it reads on SIGHUP.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn configure(&self, config: &str) {
        std::fs::write(self.folder.path().join("config.toml"), config).expect("the configuration is written");
    }

    /// What it has said so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// A client in the test's own process.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn client(&self) -> tensorlend::Client {
        tensorlend::Client::builder().socket(self.socket()).label("test").connect().expect("the test connects")
    }

    /// Asks it to stop, and waits for its end.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        signal(self.pid(), rustix::process::Signal::TERM);
        finish(&mut self.child, "the daemon")
    }

    /// A `tensorlend` command that speaks to it.
    pub fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("tensorlend"));
        command.arg("--socket").arg(self.socket()).args(args);
        command
    }

    /// An agent that is connected to it.
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
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}", self.log());
        }
    }
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

/// A client in a process of its own: see `src/agent.rs` for what it can be told.
pub struct Agent {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Agent {
    /// Starts one; it is not connected yet.
    pub fn start() -> Self {
        Self::start_as(|program| Command::new(program))
    }

    /// Starts one through a command that the caller makes of the program.
    pub fn start_as(command: impl FnOnce(&Path) -> Command) -> Self {
        Self::steer(command(&binary("tensorlend-agent")))
    }

    /// Starts a worker: see `src/worker.rs`.
    pub fn worker<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut command = Command::new(binary("tensorlend-worker"));
        command.args(arguments);
        Self::steer(command)
    }

    /// Starts another program that is told what to do as an agent is.
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

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order without waiting for the answer.
    ///
    /// # Panics
    /// If the agent is gone.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the agent listens");
    }

    /// The next answer: what follows `ok`, or what follows `error`.
    ///
    /// # Errors
    /// The agent's error.
    ///
    /// # Panics
    /// If no answer comes.
    pub fn answer(&mut self) -> Result<String, String> {
        self.answer_within(PATIENCE).unwrap_or_else(|| {
            // The process that does not answer, or how it ended.
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

    /// As [`Agent::ask`], for what must succeed.
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

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Kills it, whatever it is doing.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Lets it end by itself.
    pub fn exit(self) {
        let Self { mut child, orders, .. } = self;
        drop(orders);
        finish(&mut child, "an agent");
    }
}

pub use tensorlend_os::skip::skip;

/// Whether this test cannot run here because `tool` is missing; says so. A test returns then.
pub fn skip_without(tool: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).exists()));
    if !found {
        let package = if matches!(tool, "setpriv" | "prlimit") { "util-linux" } else { tool };
        skip(&format!("{tool} is not installed (apt-get install {package})"));
    }
    !found
}

/// Whether this test cannot run here because only root can become other users; says so.
pub fn skip_without_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("needs root to become other users");
    }
    !root
}
