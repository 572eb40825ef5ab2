//! A fake machine, and its processes. Each process is the test binary again: it runs one test in a role, and the loader
//! finds the fake driver.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "FAKECUDA_TEST_ROLE";

/// Returns the role of this process. Returns `None` in the test itself, which loads no driver.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Prints a line for the test.
pub fn tell(text: impl std::fmt::Display) {
    println!("@{text}");
}

/// Reads a line from the test.
pub fn told() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("the test speaks");
    line.trim_end().to_owned()
}

pub fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("FAKECUDA_DIR").expect("the world's folder"))
}

/// Returns the library, which cargo builds in the folder of this binary.
fn library() -> PathBuf {
    let here = std::env::current_exe().expect("a binary");
    let deps = here.parent().expect("in a folder");
    let places = [deps.join("libfakecuda.so"), deps.parent().expect("of a target folder").join("libfakecuda.so")];
    places.into_iter().find(|place| place.exists()).expect("cargo builds the library before the tests")
}

pub struct World {
    folder: tempfile::TempDir,
    settings: Vec<(String, String)>,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::os::unix::fs::symlink(library(), folder.path().join(name)).expect("a link");
        }
        Self { folder, settings: Vec::new() }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a process that runs the test of that path in a role.
    pub fn start(&self, test: &str, role: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("a binary"));
        command.args(["--exact", test, "--nocapture"]).env(ROLE, role).env("FAKECUDA_DIR", self.path());
        command.env("LD_LIBRARY_PATH", self.path()).envs(self.settings.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Process { child, output }
    }

    /// Holds the streams of one process, or of all.
    pub fn gate(&self, process: Option<&Process>) -> PathBuf {
        let name = process.map_or("gate".to_owned(), |process| format!("gate.{}", process.child.id()));
        let gate = self.path().join(name);
        std::fs::write(&gate, "").expect("a file");
        gate
    }
}

pub struct Process {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn say(&mut self, text: impl std::fmt::Display) {
        writeln!(self.child.stdin.as_mut().expect("piped"), "{text}").expect("it listens");
    }

    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("text"), 0, "the process ended before it spoke");
            // libtest may have printed text at the start of the line.
            if let Some(at) = line.find('@') {
                return line[at + 1..].trim_end().to_owned();
            }
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("it died");
    }

    pub fn end(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        let _ = std::io::Read::read_to_string(&mut self.output, &mut rest);
        self.child.wait().expect("it ended")
    }

    /// Waits for the end of the process, and asserts that all its checks passed.
    pub fn succeeds(self) {
        assert!(self.end().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Passes the descriptor to the next process that connects.
pub fn give(name: &str, fd: impl AsFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let listener = UnixListener::bind(folder().join(name)).expect("a socket");
    let (stream, _) = listener.accept().expect("a taker");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(messages.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&stream, &[std::io::IoSlice::new(b"x")], &mut messages, SendFlags::empty()).expect("sent");
}

pub fn take(name: &str) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let deadline = Instant::now() + Duration::from_secs(20);
    let stream = loop {
        match UnixStream::connect(folder().join(name)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(&stream, &mut [std::io::IoSliceMut::new(&mut byte)], &mut messages, RecvFlags::CMSG_CLOEXEC).expect("got");
    let fds = messages.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.expect("a descriptor")
}
