//! A log whose reader does not read: the programs serve, and end on SIGTERM.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use tensorlend::{Client, DType, Policy};
use tensorlend_tests::{PATIENCE, binary, eventually, open_to_all, run, signal, skip_without, skip_without_root};

/// Number of clients whose lines are more than a pipe holds (64 KiB).
const CLIENTS: usize = 400;

/// Number of refusals whose lines are more than the pipe and the daemon's queue hold.
const REFUSALS: usize = 15_000;

/// A program whose standard error is a pipe that the test holds.
struct Program {
    child: Child,
    log: Option<BufReader<std::fs::File>>,
}

impl Program {
    fn start(command: &mut Command, is_full: bool) -> Self {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        if is_full {
            fill(&writer);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        Self { child, log: Some(BufReader::new(reader.into())) }
    }

    /// Reads the log from now on.
    fn read(&mut self) -> Receiver<String> {
        let log = self.log.take().unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || log.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        receiver
    }

    fn stop(&mut self) -> ExitStatus {
        signal(self.child.id(), Signal::TERM);
        let mut status = None;
        eventually("the end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fills a pipe with empty lines.
fn fill(pipe: &OwnedFd) {
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    for bytes in [4096, 1] {
        while rustix::io::write(pipe, &vec![b'\n'; bytes]) != Err(Errno::AGAIN) {}
    }
    fcntl_setfl(pipe, flags).unwrap();
}

fn daemon(folder: &Path, config: &str, level: &str) -> Command {
    let file = folder.join("config.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(binary("tensorlendd"));
    command.arg("--config").arg(file).arg("--socket").arg(folder.join("socket")).env("TENSORLEND_LOG", level);
    command
}

/// Connects a client, as soon as the daemon listens.
fn client(folder: &Path) -> Client {
    let connect = || Client::builder().socket(folder.join("socket")).connect();
    let mut client = None;
    eventually("a connection", || {
        client = connect().ok();
        client.is_some()
    });
    client.unwrap()
}

/// Publishes a tensor with one client and reads it with another.
fn serves(folder: &Path) {
    let (producer, consumer) = (client(folder), client(folder));
    let mut draft = producer.create(DType::U8, [4u64]).unwrap();
    draft.bytes_mut().fill(7);
    draft.publish("x").unwrap();
    assert_eq!(consumer.get("x").unwrap().bytes(), [7; 4]);
    producer.delete("x").unwrap();
}

/// Returns true if the program has stored a line, and a thread writes it.
fn has_log_thread(program: &Program) -> bool {
    let tasks = PathBuf::from(format!("/proc/{}/task", program.child.id()));
    let threads = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
    threads
        .map(|it| std::fs::read_to_string(it.path().join("comm")))
        .any(|name| name.is_ok_and(|it| it == "tensorlend-log\n"))
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("tensorlend-test-").tempdir().unwrap()
}

#[test]
fn a_daemon_whose_log_nobody_reads_serves_and_ends() {
    let folder = folder();
    for is_full in [false, true] {
        let mut daemon = Program::start(&mut daemon(folder.path(), "", "info"), is_full);
        for _ in 0..CLIENTS {
            drop(client(folder.path()));
        }
        serves(folder.path());
        assert!(daemon.stop().success());
        // The pipe is full of lines, and nothing was lost before it was full.
        let mut log = String::new();
        daemon.log.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(log.len() > 60_000, "{}", log.len());
        assert_eq!(log.contains("joined namespace"), !is_full);
    }
}

#[test]
fn the_log_has_the_number_of_lines_that_its_reader_missed() {
    let folder = folder();
    let mut daemon = Program::start(&mut daemon(folder.path(), "[pool]\nbytes_max = \"64MiB\"\n", "debug"), false);
    let greedy = client(folder.path());
    for _ in 0..REFUSALS {
        assert!(greedy.create(DType::U8, [1u64 << 50]).unwrap_err().is_limit());
    }
    serves(folder.path());
    // The reader reads again.
    let lines = daemon.read();
    let next = || lines.recv_timeout(PATIENCE).expect("the log continues");
    let line = loop {
        let line = next();
        assert!(line.starts_with("20"), "a whole line: {line:?}");
        if line.contains("lines of the log were dropped") {
            break line;
        }
    };
    let number = line.split("ERROR ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
    assert!(number.parse::<usize>().unwrap() > 0 && line.contains(&format!("dropped={number}")), "{line}");
    serves(folder.path());
    assert!(daemon.stop().success());
    while !next().ends_with("tensorlendd stops") {}
}

#[test]
fn an_fd_store_whose_log_nobody_reads_stores_and_ends() {
    let folder = folder();
    let path = folder.path().join("store");
    let mut command = Command::new(binary("tensorlendd"));
    let mut store = Program::start(command.arg("--fd-store").arg(&path), true);
    let config = format!("fd_store = {path:?}\n");
    let mut first = Program::start(&mut daemon(folder.path(), &config, "info"), true);
    let holder = client(folder.path());
    let mut draft = holder.create(DType::U8, [4u64]).unwrap();
    draft.bytes_mut().fill(7);
    draft.publish("kept").unwrap();
    // The next daemon gets the tensor from the fd store.
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let mut second = Program::start(&mut daemon(folder.path(), &config, "info"), true);
    assert_eq!(client(folder.path()).get("kept").unwrap().bytes(), [7; 4]);
    assert!(second.stop().success());
    assert!(store.stop().success());
}

/// A stored line is written at the end, although no thread could be started for it.
#[test]
fn a_program_without_a_thread_for_its_log_loses_no_line() {
    if skip_without_root() || skip_without("prlimit") {
        return;
    }
    const STRANGER: u32 = 64_013;
    let folder = folder();
    open_to_all(folder.path());
    let path = folder.path().join("store");
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // The program opens its standard error again, as its own user.
    let owner = Some(rustix::fs::Uid::from_raw(STRANGER));
    rustix::fs::fchown(&writer, owner, None).unwrap();
    fill(&writer);
    // The fd store has two threads of its own, and the limit allows no third one. It does not apply to root.
    let mut command = Command::new("prlimit");
    command.arg("--nproc=2").arg(binary("tensorlendd")).arg("--fd-store").arg(&path).uid(STRANGER);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    // The log ends with the program.
    drop(command);
    let mut store = Program { child, log: Some(BufReader::new(reader.into())) };
    eventually("the store's socket", || path.exists());
    assert!(!has_log_thread(&store), "the limit allows no third thread");
    let lines = store.read();
    assert!(store.stop().success());
    assert!(lines.iter().any(|line| line.contains("stores up to")));
}

/// Lines that cannot be written, as on a full disk, are counted.
#[test]
fn the_log_has_the_number_of_lines_whose_write_failed() {
    if skip_without("prlimit") {
        return;
    }
    const FAILED: usize = 100;
    let folder = folder();
    let path = folder.path().join("log");
    let log = std::fs::File::options().create(true).append(true).open(&path).unwrap();
    let program = daemon(folder.path(), "", "debug");
    // The signal of a file that is too large would end the daemon.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    command.env("TENSORLEND_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut daemon = Program { child: command.spawn().unwrap(), log: None };
    let greedy = client(folder.path());
    serves(folder.path());
    let refused = |number: usize| {
        for _ in 0..number {
            assert!(greedy.create(DType::U8, [1u64 << 50]).unwrap_err().is_limit());
        }
    };
    let read = || std::fs::read_to_string(&path).unwrap();
    // A refusal has a second line, before the client reports that it gives up.
    let is_refusal = |line: &&str| line.contains("refused client ") && !line.contains("which expects this");
    let refusals = || read().lines().filter(is_refusal).count();
    refused(10);
    eventually("the first refusals in the log", || refusals() == 10);
    let limit = |bytes: &str| {
        let pid = daemon.child.id().to_string();
        assert!(run(Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}")])).status.success());
    };
    limit("1:unlimited");
    refused(FAILED);
    limit("unlimited:unlimited");
    refused(1);
    eventually("the report", || read().contains("lines of the log were dropped"));
    let log = read();
    let line = log.lines().find(|line| line.contains("lines of the log were dropped")).unwrap();
    let number = line.split("ERROR ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
    assert!(line.contains(&format!("dropped={number}")), "{line}");
    // The report may come before the lines of the last refusal, and the daemon's writer may have been behind when the limit ended.
    eventually("a refusal after the limit", || {
        refused(1);
        refusals() > 10
    });
    let number: usize = number.parse().unwrap();
    assert!(number > 0 && number + refusals() >= FAILED, "{number}: {}", read());
    serves(folder.path());
    assert!(daemon.stop().success());
}

/// A program that cannot start ends, too.
#[test]
fn an_error_that_nobody_reads_ends_the_program() {
    let folder = folder();
    let mut daemon = Program::start(&mut daemon(folder.path(), "[pool]\nbytes = 1\n", "info"), true);
    let mut status = None;
    eventually("the end", || {
        status = daemon.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(2));
}

/// A dashboard that waits for a namespace notes this.
#[test]
fn a_dashboard_whose_notes_nobody_reads_serves_and_ends() {
    let folder = folder();
    let mut daemon = Program::start(&mut daemon(folder.path(), "", "info"), true);
    eventually("the daemon's socket", || folder.path().join("socket").exists());
    let listen = folder.path().join("web");
    let mut command = Command::new(binary("tensorlend"));
    command.arg("--socket").arg(folder.path().join("socket")).args(["web", "--observe"]);
    command.arg(format!("--listen=unix:{}", listen.display()));
    let mut web = Program::start(&mut command, true);
    eventually("a note that is stored", || has_log_thread(&web));
    let _client = client(folder.path());
    eventually("the dashboard", || std::os::unix::net::UnixStream::connect(&listen).is_ok());
    web.stop();
    assert!(daemon.stop().success());
}

/// A command that a signal ends first writes the notes that its reader has not read yet.
#[test]
fn a_signal_loses_no_note() {
    const MESSAGES: u32 = 50;
    let folder = folder();
    let mut daemon = Program::start(&mut daemon(folder.path(), "", "info"), true);
    let client = client(folder.path());
    let stream = client.stream("s").capacity(2).policy(Policy::DropOldest).open().unwrap();
    let mut command = Command::new(binary("tensorlend"));
    command.arg("--socket").arg(folder.path().join("socket")).args(["recv", "s", "--from", "oldest", "-o"]);
    let mut recv = Program::start(command.arg(folder.path().join("messages")), true);
    // The pipe ends with the program.
    drop(command);
    let send = |number: u32| stream.send(client.create_from(&[number]).unwrap()).map(drop).unwrap();
    let has_received = |sequence: u32| folder.path().join(format!("messages/{sequence:06}.npy")).exists();
    send(0);
    eventually("the first message", || has_received(0));
    signal(recv.child.id(), Signal::STOP);
    (1..=MESSAGES).for_each(send);
    signal(recv.child.id(), Signal::CONT);
    eventually("the last message", || has_received(MESSAGES));
    signal(recv.child.id(), Signal::TERM);
    let notes = recv.read();
    let mut note = notes.iter().filter(|line| !line.is_empty());
    assert!(note.next().is_some_and(|line| line.contains("lost before message")));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&recv.child.wait().unwrap()), Some(15));
    assert!(daemon.stop().success());
}
