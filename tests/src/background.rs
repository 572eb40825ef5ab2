//! A user's folders, in which clients start the user's daemon.

use crate::{binary, run};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use tensorlend::Client;

/// The runtime folder and the configuration of a user who has no daemon yet. The daemon that a client starts ends with
/// this value.
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// Creates the folders, with this configuration of the daemon.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-home-").tempdir().expect("a temporary folder");
        let configuration = folder.path().join("config/tensorlend");
        std::fs::create_dir_all(&configuration).expect("our own folder");
        std::fs::write(configuration.join("tensorlendd.toml"), config).expect("our own folder");
        Self { folder }
    }

    /// Returns a command that runs a program of this user.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_remove("TENSORLEND_SOCKET").env_remove("TENSORLEND_AUTOSTART").env_remove("NOTIFY_SOCKET");
        command.env("XDG_RUNTIME_DIR", self.folder.path()).env("XDG_CONFIG_HOME", self.folder.path().join("config"));
        command
    }

    /// Returns a command line of `tensorlend`.
    pub fn cli(&self, args: &[&str]) -> Command {
        let mut command = self.command(&binary("tensorlend"));
        command.args(args);
        command
    }

    /// Publishes a value under this name.
    pub fn put(&self, name: &str) -> Output {
        run(&mut self.cli(&["put", name, DATA]))
    }

    /// Returns the names that the daemon lists.
    pub fn names(&self) -> Vec<String> {
        let output = run(&mut self.cli(&["ls"]));
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.lines().skip(1).filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }

    /// Returns the path of the user's socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("tensorlend.sock")
    }

    /// Returns the log of the daemons that clients have started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(tensorlend_os::program::daemon_log(&self.socket())).unwrap_or_default()
    }

    /// Returns the pids of the daemons that run in this folder.
    pub fn daemons(&self) -> Vec<u32> {
        processes("--detached", self.folder.path())
    }

    /// Returns the pids of the fd stores of these daemons.
    pub fn stores(&self) -> Vec<u32> {
        processes("--fd-store", self.folder.path())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        end_daemons(self.folder.path());
    }
}

/// Returns the pids of programs with this option and a path in this folder.
fn processes(option: &str, folder: &Path) -> Vec<u32> {
    let folder = folder.as_os_str().as_encoded_bytes();
    let is_here = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.any(|word| word == option.as_bytes()) && words.any(|word| word.starts_with(folder))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_here).collect()
}

/// Kills the daemons that clients have started at a socket in this folder, and their fd stores.
pub fn end_daemons(folder: &Path) {
    for option in ["--detached", "--fd-store"] {
        for pid in processes(option, folder) {
            // The process may have ended by itself.
            let pid = rustix::process::Pid::from_raw(pid.cast_signed());
            let _ = pid.map(|pid| rustix::process::kill_process(pid, Signal::KILL));
        }
    }
}

/// A file of the examples.
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/iris.npy");

/// Connects at the default socket, as a worker: `start NAME`. Publishes a value under this name, and prints `ok` or the
/// error.
pub fn run_worker(arguments: &[String]) -> Option<()> {
    let [name] = arguments else { return None };
    match Client::connect().and_then(|client| client.put(name, &[1u8])) {
        Ok(_) => println!("ok"),
        Err(error) => println!("error {error}"),
    }
    Some(())
}
