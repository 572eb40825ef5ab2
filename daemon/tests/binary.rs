//! `tensorlendd` as a process: its command line, its socket, its end.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tensorlend_layout::wire::{Refusal, Reply, Request, decode, encode};
use tensorlend_os::packet;
use tensorlend_os::socket_file::{Lock, Purpose};

fn tensorlendd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlendd"));
    command.env_remove("XDG_RUNTIME_DIR").env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = tensorlendd().args(arguments).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn seqpacket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn reach(path: &Path) -> OwnedFd {
    let address = SocketAddrUnix::new(path).unwrap();
    let start = Instant::now();
    loop {
        let socket = seqpacket();
        match connect(&socket, &address) {
            Ok(()) => return socket,
            Err(e) => assert!(start.elapsed() < Duration::from_mins(5), "{}: {e}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(path: &Path) {
    let socket = reach(path);
    packet::send(&socket, &encode(&Request::Ping), &[], rustix::net::SendFlags::empty()).unwrap();
    let answer = packet::receive(&socket, rustix::net::RecvFlags::empty()).unwrap();
    assert!(matches!(decode(&answer.bytes), Some(Reply::Refused(Refusal::Violation(_)))));
}

fn stop(mut child: Child, signal: rustix::process::Signal) -> (Option<i32>, String) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, signal).unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_mins(5) {
            child.kill().unwrap();
            panic!("it did not stop");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.code(), said)
}

#[test]
fn the_configuration_is_printed_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tensorlendd.toml");
    let path = file.to_str().unwrap();
    let (code, printed, _) = run(&["--print-config"]);
    assert_eq!(code, Some(0));
    std::fs::write(&file, printed).unwrap();
    let socket = folder.path().join("s");
    let check = ["--check-config", "--socket", socket.to_str().unwrap(), "--config", path];
    assert_eq!(run(&check).0, Some(0));
    for (text, word) in [
        ("[pool]\nbytes = 1", "bytes_max"),
        ("[spill]\ndirectory = \"/no/such/directory\"", "/no/such/directory"),
        ("mode = \"other\"", "system"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (code, _, error) = run(&check);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.contains(word), "{error}");
    }
    // A daemon would run with this: its users may be created later.
    std::fs::write(&file, "[namespace.lab]\nreaders = [\"no-such-user\"]").unwrap();
    let (code, said, error) = run(&check);
    assert!(code == Some(0) && format!("{said}{error}").contains("no-such-user"), "{said}{error}");
    // A daemon would not run with this: a check does the same as a start.
    for place in [folder.path().join("missing/s"), file.clone()] {
        let place = place.to_str().unwrap();
        let (checked, started) = (run(&["--check-config", "--socket", place]), run(&["--socket", place]));
        assert_eq!((checked.0, started.0), (Some(1), Some(1)), "{place}: {} {}", checked.2, started.2);
        assert!(checked.2.contains(place) && started.2.contains(place), "{} {}", checked.2, started.2);
    }
    assert_eq!(run(&["--config", "/no/such/file"]).0, Some(2));
}

/// `--reload` accepts exactly the configurations that `--check-config` accepts.
#[test]
fn a_reload_refuses_what_the_check_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, file) = (folder.path().join("s"), folder.path().join("tensorlendd.toml"));
    let (socket, path) = (socket.to_str().unwrap(), file.to_str().unwrap());
    std::fs::write(&file, "").unwrap();
    let daemon = tensorlendd().args(["--socket", socket, "--config", path]).spawn().unwrap();
    is_alive(Path::new(socket));
    let pid = daemon.id().to_string();
    for (text, status) in [
        ("[spill]\ndirectory = \"/no/such/directory\"", 2),
        ("[pool]\nbytes = 1", 2),
        ("[pool]\nbytes_max = \"1MiB\"\nsegment_bytes = \"2MiB\"", 2),
        ("[namespace.lab]\nreaders = [\"no-such-user\"]", 0),
        ("[pool]\nspare_segments = 3", 0),
    ] {
        std::fs::write(&file, text).unwrap();
        for how in [vec!["--check-config"], vec!["--reload", &pid]] {
            let (code, _, error) = run(&[&how[..], &["--socket", socket, "--config", path]].concat());
            assert_eq!(code, Some(status), "{how:?} {text}: {error}");
            assert_eq!(error.contains("no-such-user"), text.contains("no-such-user"), "{how:?}: {error}");
        }
    }
    let (code, log) = stop(daemon, rustix::process::Signal::TERM);
    assert_eq!(code, Some(0));
    // A fault of one feature keeps no other option from the daemon.
    assert_eq!(log.matches("configuration reloaded").count(), 3, "{log}");
}

#[test]
fn it_serves_until_it_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let socket = path.to_str().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let daemon = tensorlendd().args(["--socket", socket]).spawn().unwrap();
        is_alive(&path);
        let (code, _, error) = run(&["--socket", socket]);
        assert_eq!(code, Some(1));
        assert!(error.contains("another daemon"), "{error}");
        let (code, log) = stop(daemon, signal);
        assert_eq!(code, Some(0), "{log}");
        assert!(!path.exists(), "{log}");
    }
    let killed = tensorlendd().args(["--socket", socket]).spawn().unwrap();
    is_alive(&path);
    stop(killed, rustix::process::Signal::KILL);
    assert!(path.exists());
    let next = tensorlendd().args(["--socket", socket]).spawn().unwrap();
    is_alive(&path);
    assert_eq!(stop(next, rustix::process::Signal::TERM).0, Some(0));
}

/// `--socket` may name a wrong path: the file there remains unchanged, and the error describes it.
#[test]
fn a_file_at_the_path_of_the_socket_survives() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("file"), "precious").unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::os::unix::fs::symlink("file", path("link")).unwrap();
    for (name, found) in [("file", "an ordinary file"), ("folder", "a directory"), ("link", "a symbolic link")] {
        let (code, _, error) = run(&["--socket", path(name).to_str().unwrap()]);
        assert_eq!(code, Some(1), "{name}: {error}");
        assert!(error.contains(found) && error.contains(name), "{name}: {error}");
    }
    assert_eq!(std::fs::read(path("file")).unwrap(), b"precious");
    assert_eq!(std::fs::read_link(path("link")).unwrap(), Path::new("file"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

/// A service manager, as a service sees it.
struct Manager {
    folder: tempfile::TempDir,
    told: std::os::unix::net::UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let told = std::os::unix::net::UnixDatagram::bind(folder.path().join("notify")).unwrap();
        told.set_read_timeout(Some(Duration::from_mins(5))).unwrap();
        Self { folder, told }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("s")
    }

    /// Starts a daemon with a listening socket.
    fn start(&self, watchdog: &[(&str, &str)]) -> Child {
        let listener = seqpacket();
        bind(&listener, &SocketAddrUnix::new(self.socket()).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        // The socket arrives as standard input; the shell gives it the number that the protocol requires.
        let script = format!("exec 3<&0 </dev/null; export LISTEN_PID=$$; exec {}", env!("CARGO_BIN_EXE_tensorlendd"));
        Command::new("/bin/sh")
            .args(["-c", &script])
            .env("LISTEN_FDS", "1")
            .env("NOTIFY_SOCKET", self.folder.path().join("notify"))
            .envs(watchdog.iter().copied())
            .stdin(Stdio::from(listener))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Returns the next notification.
    fn hears(&self) -> String {
        let mut said = [0; 256];
        let length = self.told.recv(&mut said).unwrap();
        String::from_utf8(said[..length].to_vec()).unwrap()
    }
}

#[test]
fn it_takes_over_a_service_managers_socket_and_reports_to_it() {
    let manager = Manager::new();
    let path = manager.socket();
    // A watchdog for another process is ignored.
    let daemon = manager.start(&[("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")]);
    let ready = manager.hears();
    assert!(ready.starts_with("READY=1\nSTATUS=tensorlendd "), "{ready}");
    is_alive(&path);
    let (code, log) = stop(daemon, rustix::process::Signal::TERM);
    assert_eq!(code, Some(0), "{log}");
    let stopping = manager.hears();
    assert!(stopping.starts_with("STOPPING=1"), "{stopping}");
    assert!(path.exists(), "the socket is the service manager's");
}

#[test]
fn an_idle_daemon_reports_to_a_watchdog() {
    let manager = Manager::new();
    let daemon = manager.start(&[("WATCHDOG_USEC", "100000")]);
    assert!(manager.hears().starts_with("READY=1"));
    for _ in 0..5 {
        assert_eq!(manager.hears(), "WATCHDOG=1");
    }
    // From here on nobody receives its notifications, and it does not block.
    is_alive(&manager.socket());
    let (code, log) = stop(daemon, rustix::process::Signal::TERM);
    assert_eq!(code, Some(0), "{log}");
}

/// The lines of a running process's log.
struct Log(Receiver<String>);

impl Log {
    fn of(child: &mut Child) -> Self {
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self(receiver)
    }

    /// Waits for a line with this text.
    fn until(&self, text: &str) -> String {
        loop {
            match self.0.recv_timeout(Duration::from_mins(5)) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line has {text:?}: {error}"),
            }
        }
    }
}

fn kill(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_removed_socket_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("s");
    let mut daemon = tensorlendd().args(["--socket", path.to_str().unwrap()]).spawn().unwrap();
    let log = Log::of(&mut daemon);
    is_alive(&path);
    let early = reach(&path);
    for way in 0..3 {
        match way {
            0 => std::fs::remove_file(&path).unwrap(),
            1 => std::fs::rename(&path, folder.path().join("away")).unwrap(),
            _ => {
                // Another file replaces the socket, and goes.
                let file = inner.join("file");
                std::fs::write(&file, "precious").unwrap();
                std::fs::rename(&file, &path).unwrap();
                let line = log.until("cannot create the socket again");
                assert!(line.contains(path.to_str().unwrap()) && line.contains("an ordinary file"), "{line}");
                assert_eq!(std::fs::read(&path).unwrap(), b"precious");
                // The daemon tries again by itself.
                std::fs::remove_file(&path).unwrap();
            }
        }
        let line = log.until("created the socket again");
        assert!(line.contains(" ERROR ") && line.contains(path.to_str().unwrap()), "{line}");
        is_alive(&path);
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap()) & 0o777, socket_mode());
        let (code, _, error) = run(&["--socket", path.to_str().unwrap()]);
        assert!(code == Some(1) && error.contains("another daemon"), "{error}");
    }
    // The daemon cannot create the socket without its folder.
    std::fs::rename(&inner, folder.path().join("outer")).unwrap();
    kill(&daemon, rustix::process::Signal::HUP);
    log.until("cannot create the socket again");
    std::fs::create_dir(&inner).unwrap();
    kill(&daemon, rustix::process::Signal::HUP);
    log.until("created the socket again");
    is_alive(&path);
    // The daemon does not wait for another process that holds the lock of the folder.
    let lock = Lock::take(&path, Purpose::Bind).unwrap();
    let before = sleeps(&daemon);
    std::fs::remove_file(&path).unwrap();
    log.until("cannot create the socket again");
    let sleeps = sleeps(&daemon) - before;
    assert!(sleeps < 100, "{sleeps} sleeps");
    drop(lock);
    log.until("created the socket again");
    is_alive(&path);
    // The first connections still work.
    packet::send(&early, &encode(&Request::Ping), &[], rustix::net::SendFlags::empty()).unwrap();
    assert!(!packet::receive(&early, rustix::net::RecvFlags::empty()).unwrap().bytes.is_empty());
    kill(&daemon, rustix::process::Signal::TERM);
    log.until("tensorlendd stops");
    assert!(daemon.wait().unwrap().success());
    assert!(!path.exists());
}

/// Returns how often the daemon's loop has slept: each wait in the kernel is a voluntary context switch.
fn sleeps(daemon: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{0}/task/{0}/status", daemon.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// Each client can change the times of the socket's file.
#[test]
fn changes_of_the_sockets_file_do_not_keep_the_daemon_busy() {
    const CHANGES: u64 = 2000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let mut daemon = tensorlendd().args(["--socket", path.to_str().unwrap()]).spawn().unwrap();
    let log = Log::of(&mut daemon);
    is_alive(&path);
    let before = sleeps(&daemon);
    for _ in 0..CHANGES {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let sleeps = sleeps(&daemon) - before;
    assert!(sleeps < CHANGES / 4, "{sleeps} times");
    // The daemon still notices that the file is missing.
    std::fs::remove_file(&path).unwrap();
    log.until("created the socket again");
    is_alive(&path);
    kill(&daemon, rustix::process::Signal::TERM);
    log.until("tensorlendd stops");
    assert!(daemon.wait().unwrap().success());
}

/// Returns the default permissions of the socket: root's daemon runs in system mode.
fn socket_mode() -> u32 {
    if rustix::process::getuid().is_root() { 0o666 } else { 0o600 }
}

#[test]
fn a_removed_socket_of_a_service_manager_is_reported() {
    let manager = Manager::new();
    let mut daemon = manager.start(&[]);
    let log = Log::of(&mut daemon);
    is_alive(&manager.socket());
    std::fs::remove_file(manager.socket()).unwrap();
    let line = log.until("cannot create the socket again");
    assert!(line.contains(manager.socket().to_str().unwrap()) && line.contains("tensorlendd.socket"), "{line}");
    kill(&daemon, rustix::process::Signal::TERM);
    log.until("tensorlendd stops");
    assert!(daemon.wait().unwrap().success());
}
