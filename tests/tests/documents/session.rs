//! Execution of one page: its blocks in order, in one folder, with the page's own daemon.

use super::built::Kit;
use super::decisions::{DECISIONS, Decision};
use super::pages::{Block, root};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tensorlend_tests::background::end_daemons;
use tensorlend_tests::binary;

/// Timeout of a block: cargo compiles in some.
const BLOCK_MAX: Duration = Duration::from_mins(5);

/// Returns the decision about a block, if there is one.
pub fn decision(block: &Block) -> Option<Decision> {
    let fits = |(page, begins, _): &&(&str, &str, Decision)| *page == block.page && *begins == block.begins();
    DECISIONS.iter().find(fits).map(|(_, _, decision)| *decision)
}

/// Returns true if a block is run in its page's session.
pub fn is_run(block: &Block) -> bool {
    block.language == "sh" && block.file().is_none() && !matches!(decision(block), Some(Decision::Understood(_)))
}

/// Returns true if a line starts a daemon in the background.
pub fn starts_daemon(line: &str) -> bool {
    let command = line.split(" #").next().unwrap_or_default().trim_end();
    let is_daemon = command.trim_start().starts_with("tensorlendd") || command.contains("-m tensorlend daemon");
    is_daemon && command.ends_with('&')
}

/// The requirements of a page's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    pub python: bool,
    pub c: bool,
    pub cargo: bool,
}

impl Needs {
    pub fn of(blocks: &[Block]) -> Self {
        let says = |word: &str| blocks.iter().filter(|block| is_run(block)).any(|block| block.text.contains(word));
        Self { python: says("python "), c: says("pkg-config") || says("cmake "), cargo: says("cargo ") }
    }
}

/// The page's folder, home directory, daemon and background processes.
pub struct Session {
    folder: TempDir,
    path: String,
    /// The leader of the process group of everything that blocks start. The group's id stays reserved until this child
    /// is waited for.
    anchor: Child,
    kit: Option<&'static Kit>,
}

impl Session {
    /// Creates a folder next to one called `tensorlend`, which is the repository; the built programs come first in the
    /// path.
    pub fn new(kit: Option<&'static Kit>, python: Option<&Path>) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-page-").tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(root(), folder.path().join("tensorlend")).expect("a link is made");
        let mut path = vec![binary("tensorlend").parent().expect("a folder").to_owned()];
        path.extend(python.and_then(Path::parent).map(PathBuf::from));
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        std::fs::create_dir(folder.path().join("page")).expect("a folder is made");
        let path = std::env::join_paths(path).expect("no colon in a folder's name").into_string().expect("text");
        let anchor = Command::new("sleep").arg("3600").process_group(0).spawn().expect("sleep starts");
        Self { folder, path, anchor, kit }
    }

    /// Writes the file that a block contains.
    pub fn write(&self, file: &str, text: &str) {
        let path = self.folder.path().join("page").join(file);
        std::fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder is made");
        std::fs::write(path, text).expect("a file is written");
    }

    /// Starts a daemon, for a page that presumes one.
    pub fn start_daemon(&self) {
        self.run("a daemon for the page", "tensorlendd &\n");
    }

    /// Returns true if the machine has this program, library or package of Python.
    pub fn has(&self, name: &str) -> bool {
        let check = format!("command -v {name} || pkg-config --exists {name} || python -c 'import {name}'");
        let mut command = Command::new("bash");
        command.args(["-c", &check]).env("PATH", &self.path).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Runs a block to its end; its background processes continue.
    ///
    /// # Panics
    /// If a command fails, or it takes longer than [`BLOCK_MAX`].
    pub fn run(&self, location: &str, text: &str) {
        let home = self.folder.path().join("page");
        let mut script = String::from("set -euo pipefail\n");
        // A daemon started by root would use the system's socket, so this function adds the user's socket. The program
        // is the last command of its line, so that `tensorlendd &` is the daemon itself.
        script
            .push_str("tensorlendd() { command tensorlendd --socket \"$XDG_RUNTIME_DIR/tensorlend.sock\" \"$@\"; }\n");
        for line in text.lines() {
            script.push_str(line);
            script.push('\n');
            // A user types the next line only after the daemon has started.
            if starts_daemon(line) {
                script.push_str("until tensorlend ping >/dev/null 2>&1; do sleep 0.02; done\n");
            }
        }
        let log = self.folder.path().join("output.log");
        let file = std::fs::File::create(&log).expect("the output has a file");
        let mut command = Command::new("bash");
        command
            .args(["-c", &script])
            .current_dir(&home)
            .process_group(self.anchor.id().cast_signed())
            .stdin(Stdio::null());
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file);
        command
            .env("HOME", &home)
            .env("PATH", &self.path)
            .env("XDG_RUNTIME_DIR", &home)
            .env_remove("TENSORLEND_SOCKET")
            .env_remove("TENSORLEND_AUTOSTART");
        self.tools(&mut command);
        let mut child = command.spawn().expect("bash starts");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break Some(status);
            }
            if start.elapsed() > BLOCK_MAX {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = std::fs::read(&log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        match status {
            Some(status) if status.success() => {}
            Some(status) => panic!("{location}: {status}\n{text}\n--- it said\n{said}"),
            None => panic!("{location}: not done after {BLOCK_MAX:?}\n{text}\n--- it said\n{said}"),
        }
    }

    /// Sets the paths that compilers need for the installation of `scripts/capi`, and cargo for finished builds.
    fn tools(&self, command: &mut Command) {
        if let Some(kit) = self.kit {
            command.env("PKG_CONFIG_PATH", kit.libraries().join("pkgconfig"));
            command.env("CMAKE_PREFIX_PATH", kit.prefix());
            command.env("LD_LIBRARY_PATH", kit.libraries());
        }
        // Cargo sets these variables for this test, and they would mislead the inner cargo. Cargo and rustup live in
        // the real home.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO" {
                command.env_remove(&*name);
            }
        }
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if std::env::var_os(name).is_none() {
                command.env(name, home.join(folder));
            }
        }
        let target = binary("tensorlend").parent().and_then(Path::parent).expect("target/PROFILE").join("documents");
        command.env("CARGO_TARGET_DIR", target).env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.anchor);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.anchor.wait();
        // A daemon that a client has started is in a session of its own.
        end_daemons(self.folder.path());
    }
}
