//! A machine without a service manager: `tensorlendd --fd-store` stores the daemon's descriptors.

use crate::hand::dial;
use crate::{Agent, Build, PATIENCE, open_to_all, signal};
use rustix::net::RecvFlags;
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorlend::Client;

/// An fd store and a daemon, each in a process of its own, which the test kills and starts again.
pub struct Machine {
    folder: TempDir,
    pub store: Option<Child>,
    pub daemon: Option<Child>,
    /// The build of the next daemon.
    pub build: Build,
}

impl Machine {
    /// Starts an fd store, and a daemon in this mode.
    ///
    /// # Panics
    /// If they do not start.
    pub fn start(mode: &str) -> Self {
        let mut it = Self::configured(mode);
        it.start_store();
        it.start_daemon();
        it
    }

    /// Returns a machine whose daemon uses an fd store, and on which neither runs yet.
    ///
    /// # Panics
    /// If its folder cannot be made.
    pub fn configured(mode: &str) -> Self {
        let it = Self::with_own_store(mode);
        let config = format!("mode = \"{mode}\"\nfd_store = \"{}\"\n", it.path("store").display());
        std::fs::write(it.path("config.toml"), config).expect("the configuration is written");
        it
    }

    /// Returns a machine whose daemon starts an fd store itself, in user mode. No daemon runs yet.
    ///
    /// # Panics
    /// If its folder cannot be made.
    pub fn with_own_store(mode: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-test-").tempdir().expect("a temporary folder");
        open_to_all(folder.path());
        let config = format!("mode = \"{mode}\"\n");
        std::fs::write(folder.path().join("config.toml"), config).expect("the configuration is written");
        Self { folder, store: None, daemon: None, build: Build::Current }
    }

    /// Returns the folder of sockets, configuration and log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a command that runs `tensorlendd` and appends its output to the log.
    ///
    /// # Panics
    /// If the log cannot be opened.
    pub fn program(&self) -> Command {
        let log = File::options().create(true).append(true).open(self.path("log")).expect("the log is opened");
        let mut command = Command::new(self.build.binary("tensorlendd"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    /// Returns the output of the fd store and of all daemons so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts an fd store.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_store(&mut self) {
        self.start_store_as(self.program());
    }

    /// Starts an fd store with this command, which runs `tensorlendd`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_store_as(&mut self, mut program: Command) {
        let started = program.arg("--fd-store").arg(self.path("store")).spawn();
        self.store = Some(started.expect("the fd store starts"));
    }

    /// Starts a daemon.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_daemon(&mut self) {
        let mut command = self.program();
        command.arg("--config").arg(self.path("config.toml")).arg("--socket").arg(self.path("socket"));
        let mut child = command.spawn().expect("the daemon starts");
        let start = Instant::now();
        while Client::builder().socket(self.path("socket")).connect().is_err() {
            let ended = child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none() && start.elapsed() < PATIENCE, "the daemon is not up:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.daemon = Some(child);
    }

    pub fn kill_daemon(&mut self) {
        end(&mut self.daemon, Signal::KILL);
    }

    /// Kills the daemon, and starts the next one.
    pub fn restart_daemon(&mut self) {
        self.kill_daemon();
        self.start_daemon();
    }

    /// Stops the daemon in order, as an upgrade does, and starts one of another build.
    pub fn replace_daemon(&mut self, build: Build) {
        end(&mut self.daemon, Signal::TERM);
        self.build = build;
        self.start_daemon();
    }

    /// Returns a client in the test's own process.
    ///
    /// # Panics
    /// If it cannot connect.
    pub fn client(&self) -> Client {
        Client::builder().socket(self.path("socket")).label("test").connect().expect("the test connects")
    }

    /// Starts an agent that is connected to the daemon.
    pub fn agent(&self) -> Agent {
        self.agent_of(Build::Current)
    }

    /// As [`Machine::agent`], of another build.
    pub fn agent_of(&self, build: Build) -> Agent {
        let mut agent = Agent::steer(Command::new(build.binary("tensorlend-agent")));
        agent.ok(&format!("connect {}", self.path("socket").display()));
        agent
    }

    /// Returns the names that the store sends a new connection. No daemon may run.
    ///
    /// # Panics
    /// If the store does not run.
    pub fn stored(&self) -> Vec<String> {
        let socket = dial(&self.path("store")).expect("the store listens");
        let mut names = Vec::new();
        loop {
            let packet = tensorlend_os::packet::receive(&socket, RecvFlags::empty()).expect("the store sends");
            match packet.bytes.split_first().expect("the store sends its end") {
                (b'+', name) => {
                    assert_eq!(packet.descriptors.len(), 1);
                    names.push(String::from_utf8(name.to_vec()).expect("a name is text"));
                }
                (b'.', capacity) => {
                    assert!(u32::from_le_bytes(capacity.try_into().expect("a number")) >= 100);
                    return names;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Ends a process with a signal.
///
/// # Panics
/// If it cannot be waited for.
pub fn end(child: &mut Option<Child>, by: Signal) {
    if let Some(mut child) = child.take() {
        if matches!(child.try_wait(), Ok(None)) {
            signal(child.id(), by);
        }
        child.wait().expect("a child can be waited for");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.daemon, Signal::KILL);
        end(&mut self.store, Signal::KILL);
        crate::end_store(&self.path("socket"));
        if std::thread::panicking() {
            eprintln!("--- the log of store and daemons\n{}", self.log());
        }
    }
}

/// Returns whether the fd store lacks descriptors by the last line of the daemon's log about them. The end of a client can
/// end a shortage that begins again with the next one.
pub fn lacks_descriptors(log: &str) -> bool {
    log.rfind("the fd store does not keep") > log.rfind("the fd store has all")
}
