//! The fixture of these tests: a broker in this process, a temporary folder, and the built `tensorlend` program.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tensorlend::Client;
use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};

/// How long any child may run. A child needs a small part of this even on a busy machine.
const DEADLINE: Duration = Duration::from_mins(5);

/// A broker and a temporary folder. Child processes run in the folder.
pub struct Bench {
    pub broker: Embedded,
    folder: TempDir,
}

/// The exit status and the output of a child that has ended.
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// Starts a broker with a changed configuration. Its segments are small, because each child that leaves a value
    /// behind
    /// takes a segment.
    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.pool.segment_bytes = Bytes(1 << 20);
        change(&mut config);
        Self { broker: embedded_with(&config).unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    pub fn client(&self) -> Client {
        Client::builder().socket(self.broker.socket()).connect().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The program with these arguments and this broker's socket, not started yet.
    pub fn command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = program(args);
        command.env("TENSORLEND_SOCKET", self.broker.socket()).current_dir(self.folder.path());
        command
    }

    pub fn start(&self, args: &[impl AsRef<OsStr>]) -> Running {
        Running::start(&mut self.command(args))
    }

    pub fn run(&self, args: &[impl AsRef<OsStr>]) -> Done {
        self.start(args).done()
    }

    /// Runs the program. Panics unless it exits with 0 and writes nothing to standard error. Returns its standard
    /// output.
    pub fn ok(&self, args: &[impl AsRef<OsStr>]) -> String {
        self.run(args).ok()
    }

    /// Runs the program with `--json` and parses each line of its output.
    pub fn json(&self, args: &[&str]) -> Vec<Value> {
        let out = self.ok(&[args, &["--json"]].concat());
        out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
    }

    /// Like [`Self::json`], for a command that prints one line.
    pub fn json_line(&self, args: &[&str]) -> Value {
        let mut lines = self.json(args);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    /// Runs the program. Panics unless it exits with `status` and prints one line of error. Returns that line without
    /// the
    /// prefix `tensorlend: error: `.
    pub fn fails(&self, status: i32, args: &[impl AsRef<OsStr>]) -> String {
        self.run(args).fails(status)
    }

    /// The published names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.client().list("*").unwrap().into_iter().map(|info| info.name).collect()
    }
}

impl Done {
    pub fn ok(self) -> String {
        assert_eq!((self.status, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    pub fn fails(self, status: i32) -> String {
        assert_eq!(self.status, status, "{}{}", self.out, self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        let Some(what) = self.err.strip_prefix("tensorlend: error: ") else { panic!("{}", self.err) };
        // The code of the error ends the line.
        let (text, code) = what.trim_end().rsplit_once(' ').expect("an error has a code");
        let number = code.strip_prefix("[TL-").and_then(|code| code.strip_suffix(']'));
        assert!(number.is_some_and(|number| number.len() == 4 && number.parse::<u16>().is_ok()), "{what}");
        text.to_owned()
    }
}

/// The program with these arguments, in an environment in which it cannot find a daemon by itself.
pub fn program(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlend"));
    command.args(args).env_remove("TENSORLEND_SOCKET").env_remove("XDG_RUNTIME_DIR").env_remove("TENSORLEND_LOG");
    command
}

/// A running child process. Dropping it kills the child.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    err: Option<JoinHandle<String>>,
    since: Instant,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines() {
                let _ = sender.send(line.unwrap());
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let err = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, lines, err: Some(err), since: Instant::now() }
    }

    fn left(&self) -> Duration {
        DEADLINE.saturating_sub(self.since.elapsed())
    }

    /// Waits for the next line of the child's output. Panics after `DEADLINE`.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(self.left()).expect("the child should have printed a line")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the child has ended. Panics after `DEADLINE`.
    pub fn has_ended(&mut self) -> bool {
        assert!(!self.left().is_zero(), "the child did not end in {DEADLINE:?}");
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the child ends. Panics after `DEADLINE`. The output lacks the lines that `line` returned before.
    pub fn done(mut self) -> Done {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(!self.left().is_zero(), "the child did not end in {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(2));
        };
        let out: Vec<String> = self.lines.iter().collect();
        let err = self.err.take().unwrap().join().unwrap();
        let out = out.into_iter().map(|line| line + "\n").collect();
        Done { status: status.code().unwrap_or(-1), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The absolute path of a file of the repository. `path` is relative to the repository's root.
pub fn repository(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    root.join(path).to_str().unwrap().to_owned()
}

/// The path of a fixture file that numpy wrote.
pub fn fixture(name: &str) -> String {
    repository(&format!("apps/cli/src/files/fixtures/{name}"))
}
