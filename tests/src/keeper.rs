//! The service manager's part in a restart: it stores the daemon's descriptors and passes them to the next daemon, like
//! systemd's file descriptor store (sd_notify(3), sd_listen_fds(3)).
#![allow(unsafe_code)]

use crate::{PATIENCE, binary, eventually, open_to_all};
use rustix::fs::{Gid, MemfdFlags, Mode, Uid};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io::Seek;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tempfile::TempDir;
use tensorlend::Client;

type Kept = Arc<Mutex<Vec<(String, OwnedFd)>>>;

/// A daemon that can be killed and started again, with an fd store.
pub struct Service {
    folder: TempDir,
    config: String,
    program: PathBuf,
    /// A variable of the first daemon's environment only.
    first: Option<(String, String)>,
    child: Option<Child>,
    kept: Kept,
    stop: Arc<AtomicBool>,
    /// Whether the store has stopped to read.
    deaf: Arc<AtomicBool>,
    /// Number of the last marker of [`Service::catch_up`] that the store has read.
    heard: Arc<AtomicU64>,
}

impl Service {
    /// Starts a service; `config` is the text of its TOML file.
    ///
    /// # Panics
    /// If the service does not start.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, binary("tensorlendd"), None)
    }

    /// As [`Service::start`], with another program; `first` is a variable of the first daemon's environment.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(config: &str, program: PathBuf, first: Option<(String, String)>) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-test-").tempdir().expect("a temporary folder");
        open_to_all(folder.path());
        let flags = SocketFlags::CLOEXEC;
        let inbox = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("a socket");
        let address = SocketAddrUnix::new(folder.path().join("notify")).expect("a short path");
        rustix::net::bind(&inbox, &address).expect("it can be bound");
        rustix::net::sockopt::set_socket_timeout(
            &inbox,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_millis(50)),
        )
        .expect("a timeout");
        let (kept, stop) = (Kept::default(), Arc::new(AtomicBool::new(false)));
        let heard = Arc::new(AtomicU64::new(0));
        let deaf = Arc::new(AtomicBool::new(false));
        let (theirs, stopped, hears, deafened) = (kept.clone(), stop.clone(), heard.clone(), deaf.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if deafened.load(Ordering::Relaxed) {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                } else {
                    listen(&inbox, &theirs, &hears);
                }
            }
        });
        let mut it = Self { folder, config: config.to_owned(), program, first, child: None, kept, stop, deaf, heard };
        it.start_again();
        it
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Returns a client in the test's own process.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn client(&self) -> Client {
        Client::builder().socket(self.socket()).label("test").connect().expect("the test connects")
    }

    /// Returns the daemon's pid.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Returns true if the daemon runs.
    ///
    /// # Panics
    /// If its state cannot be queried.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("it can be waited for").is_none())
    }

    /// Returns the names of the stored descriptors.
    ///
    /// # Panics
    /// If the store's thread has panicked.
    pub fn kept(&self) -> Vec<String> {
        self.kept.lock().expect("the keeper lives").iter().map(|(name, _)| name.clone()).collect()
    }

    /// Kills the daemon with this signal and waits for its end.
    pub fn end(&mut self, signal: rustix::process::Signal) {
        if let Some(mut child) = self.child.take() {
            // The child may have ended by itself.
            if matches!(child.try_wait(), Ok(None)) {
                crate::signal(child.id(), signal);
            }
            let _ = child.wait();
        }
    }

    /// Kills the daemon and starts another one.
    pub fn restart(&mut self) {
        self.end(rustix::process::Signal::KILL);
        self.start_again();
    }

    /// Starts a daemon with the stored descriptors.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_again(&mut self) {
        self.spawn(&[]);
        let start = Instant::now();
        while Client::builder().socket(self.socket()).connect().is_err() {
            assert!(self.is_running() && start.elapsed() < PATIENCE, "the daemon is not up:\n{}", self.log());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Starts a daemon with the stored descriptors, and waits until it has ended. The daemon is killed when it begins its
    /// message of this number to the store. Needs strace.
    ///
    /// # Panics
    /// If the daemon does not start, or does not end.
    pub fn start_and_kill_at(&mut self, message: u32) {
        let inject = format!("inject=sendmsg:signal=KILL:when={message}");
        // With -D the daemon is the child of this process, and strace is not.
        self.spawn(&["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=sendmsg", "-e", &inject]);
        eventually("the end of the daemon", || !self.is_running());
        self.child = None;
    }

    /// Starts a daemon with the stored descriptors and a variable in its environment, by which it is killed, and waits until
    /// it has ended.
    ///
    /// # Panics
    /// If the daemon does not start, or does not end.
    pub fn start_and_kill_by(&mut self, variable: (String, String)) {
        self.first = Some(variable);
        self.spawn(&[]);
        eventually("the end of the daemon", || !self.is_running());
        self.child = None;
    }

    /// Starts a daemon with the stored descriptors, by a command that runs it.
    fn spawn(&mut self, by: &[&str]) {
        let file = self.folder.path().join("config.toml");
        std::fs::write(&file, &self.config).expect("the configuration is written");
        let log =
            std::fs::File::options().create(true).append(true).open(self.folder.path().join("log")).expect("a log");
        self.catch_up();
        let kept = self.kept.lock().expect("the keeper lives");
        // Above the numbers that the copies get in the child.
        let copies: Vec<OwnedFd> =
            kept.iter().map(|(_, fd)| fcntl_dupfd_cloexec(fd, 3 + kept.len() as i32).expect("a copy")).collect();
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        let mut command = Command::new("sh");
        // The shell's pid becomes the daemon's by exec.
        command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).args(by).arg(&self.program);
        command.envs(self.first.take());
        command.arg("--config").arg(file).arg("--socket").arg(self.socket());
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let numbers: Vec<i32> = copies.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: between fork and exec the closure calls only dup2, which is async-signal-safe; the numbers are open
        // copies, all above their targets.
        unsafe {
            command.pre_exec(move || {
                for (to, &from) in (3..).zip(&numbers) {
                    if libc::dup2(from, to) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        drop(kept);
        self.child = Some(command.spawn().expect("the daemon starts"));
    }

    /// Replaces the configuration for the next daemon.
    pub fn configure(&mut self, config: &str) {
        config.clone_into(&mut self.config);
    }

    /// Makes the store stop reading, and fills its queue.
    ///
    /// # Panics
    /// If its socket no longer exists.
    pub fn deafen(&self) {
        self.deaf.store(true, Ordering::Relaxed);
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.set_nonblocking(true).expect("a socket can be nonblocking");
        // The thread may read some messages before it stops.
        let start = Instant::now();
        while start.elapsed() < std::time::Duration::from_millis(200) {
            if sender.send_to(b"X=1", self.folder.path().join("notify")).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    /// Makes the store read again.
    pub fn hear_again(&self) {
        self.deaf.store(false, Ordering::Relaxed);
    }

    /// Returns the output of the daemons so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Waits until the store has read all messages, as a manager does before it starts another daemon.
    fn catch_up(&self) {
        let number = self.heard.load(Ordering::Relaxed) + 1;
        let sent = UnixDatagram::unbound()
            .and_then(|it| it.send_to(format!("{MARK}{number}").as_bytes(), self.folder.path().join("notify")));
        sent.expect("the keeper lives");
        eventually("the keeper", || self.heard.load(Ordering::Relaxed) == number);
    }

    /// Closes all stored descriptors.
    ///
    /// # Panics
    /// If the store's thread has panicked.
    pub fn lose(&self) {
        // A message of the killed daemon that the store has not read yet would store its descriptor afterwards.
        self.catch_up();
        self.kept.lock().expect("the keeper lives").clear();
    }

    /// Makes the store's memfds again, as a new kernel does after a live update: with the same bytes and length, and with
    /// another name, owner, mode and inode. With `seals`, the new files have the seals of the old ones. Otherwise they have
    /// none and accept none, as with Linux 6.19. All other descriptors are lost. The daemon must have ended.
    ///
    /// # Panics
    /// If a file cannot be copied.
    pub fn live_update(&self, seals: bool) {
        self.catch_up();
        let mut kept = self.kept.lock().expect("the keeper lives");
        kept.retain(|(_, fd)| link(fd).starts_with("/memfd:"));
        for (_, fd) in kept.iter_mut() {
            let flags = if seals { MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING } else { MemfdFlags::CLOEXEC };
            let fresh = File::from(rustix::fs::memfd_create("", flags).expect("a memfd"));
            let mut from = File::from(fd.try_clone().expect("a copy"));
            from.rewind().expect("it has a position");
            std::io::copy(&mut from, &mut &fresh).expect("it is copied");
            rustix::fs::fchmod(&fresh, Mode::from_raw_mode(0o777)).expect("it has a mode");
            rustix::fs::fchown(&fresh, Some(Uid::from_raw(12_345)), Some(Gid::from_raw(12_345)))
                .expect("it has an owner");
            if seals {
                let seals = rustix::fs::fcntl_get_seals(&*fd).expect("it has seals");
                rustix::fs::fcntl_add_seals(&fresh, seals).expect("the seals are set");
            }
            *fd = fresh.into();
        }
    }

    /// Returns the stored descriptors with their names.
    ///
    /// # Panics
    /// If the store's thread has panicked.
    pub fn stored(&self) -> Vec<(String, OwnedFd)> {
        self.catch_up();
        let kept = self.kept.lock().expect("the keeper lives");
        kept.iter().map(|(name, fd)| (name.clone(), fd.try_clone().expect("a copy"))).collect()
    }

    /// Waits until the store has this many descriptors.
    pub fn wait_kept(&self, count: usize) {
        eventually("what is kept", || self.kept().len() == count);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end(rustix::process::Signal::KILL);
        self.stop.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            eprintln!("--- the daemons' log\n{}", self.log());
        }
    }
}

/// Returns the path that the kernel shows for a descriptor.
///
/// # Panics
/// If /proc is not mounted.
pub fn link(fd: &OwnedFd) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("/proc is mounted");
    path.to_string_lossy().into_owned()
}

/// Prefix of the test's own messages to its store.
const MARK: &str = "TEST=";

fn listen(inbox: &OwnedFd, kept: &Kept, heard: &AtomicU64) {
    let Ok(packet) = tensorlend_os::packet::receive(inbox, RecvFlags::empty()) else { return };
    let text = String::from_utf8_lossy(&packet.bytes).into_owned();
    if let Some(number) = text.strip_prefix(MARK).and_then(|number| number.parse().ok()) {
        heard.store(number, Ordering::Relaxed);
        return;
    }
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
    let (Some(name), mut kept) = (name, kept.lock().expect("the test lives")) else { return };
    if text.lines().any(|line| line == "FDSTORE=1") {
        kept.extend(packet.descriptors.into_iter().map(|fd| (name.to_owned(), fd)));
    } else if text.lines().any(|line| line == "FDSTOREREMOVE=1") {
        kept.retain(|(other, _)| other != name);
    }
}
