//! A simulated machine with a CUDA device: the loader finds the fake driver of `tests/fakecuda`.
//!
//! The loader reads its paths when a process starts. So a test that needs such a machine starts its own program again
//! with the right paths, for this test alone; child processes find the same device.
#![allow(unsafe_code)]

use crate::{Agent, Daemon, PROGRAM_PATIENCE, run_within};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The folder of this process's machine.
const HERE: &str = "TENSORLEND_TEST_MACHINE";

/// Returns the path of the fake driver's library.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("a program knows its own path");
    let folder = own.parent().expect("a program lies in a folder").to_owned();
    // `cargo test` builds it among the dependencies, `cargo build` next to the programs.
    let places = [folder.clone(), folder.join("deps"), folder.join("..")];
    let found = places.iter().map(|place| place.join("libfakecuda.so")).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("libfakecuda.so is missing: run `cargo build -p tensorlend-fakecuda`"))
}

/// A simulated machine.
pub struct Machine {
    folder: PathBuf,
}

/// Runs a test in its own machine; `name` is the test's name in cargo.
///
/// # Panics
/// If the test does.
pub fn on_machine(name: &str, body: impl FnOnce(&Machine)) {
    on_machine_with(name, &[], body);
}

/// As [`on_machine`], with environment variables for the fake driver.
///
/// # Panics
/// If the test does.
pub fn on_machine_with(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&Machine)) {
    if let Some(folder) = std::env::var_os(HERE) {
        return body(&Machine { folder: folder.into() });
    }
    let folder = folder_with(Some(&library()));
    let mut again = Command::new(std::env::current_exe().expect("a program knows its own path"));
    again.args(["--exact", name, "--nocapture", "--include-ignored"]);
    surround(&mut again, folder.path()).env(HERE, folder.path()).envs(variables.iter().copied());
    // Each step of the test has its own timeout, and prints more about a failure.
    let done = run_within(PROGRAM_PATIENCE, &mut again);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success() && out.contains("1 passed"), "{name}, in a machine of its own:\n{out}{err}");
    print!("{out}");
}

/// Creates a folder for the loader: with a library under the driver's names, or with invalid files.
pub fn folder_with(library: Option<&Path>) -> TempDir {
    let folder = tempfile::Builder::new().prefix("tensorlend-machine-").tempdir().expect("a temporary folder");
    crate::open_to_all(folder.path());
    for name in ["libcuda.so", "libcuda.so.1"] {
        let path = folder.path().join(name);
        match library {
            Some(library) => std::os::unix::fs::symlink(library, path).expect("a link is made"),
            // Hides a real driver of the machine: the loader searches here first.
            None => std::fs::write(path, "no library").expect("a file is written"),
        }
    }
    folder
}

/// Makes a program search for the driver in this folder.
pub fn surround<'c>(command: &'c mut Command, folder: &Path) -> &'c mut Command {
    command.env("LD_LIBRARY_PATH", folder).env("FAKECUDA_DIR", folder)
}

/// Returns a configuration that lends all devices.
pub fn config(allocator: &str, more: &str) -> String {
    format!(
        "[cuda]\ndevices = [\"all\"]\nallocator = \"{allocator}\"\nsegment_bytes = \"4MiB\"\nbytes_max = \"256MiB\"\n{more}"
    )
}

impl Machine {
    /// Starts a daemon that lends this machine's device.
    pub fn daemon(&self, config: &str) -> Daemon {
        self.daemon_with(config, &[])
    }

    /// As [`Machine::daemon`], with variables for the daemon's driver. [`Machine::calls`] returns the calls of the
    /// driver.
    pub fn daemon_with(&self, config: &str, variables: &[(&str, &str)]) -> Daemon {
        let log = self.folder.join("calls");
        Daemon::start_as(config, |program| {
            let mut command = Command::new(program);
            command.arg("--allow-fake-cuda").env("FAKECUDA_LOG", log).envs(variables.iter().copied());
            command
        })
    }

    /// Returns the daemons' calls of the driver, one per line.
    pub fn calls(&self) -> String {
        std::fs::read_to_string(self.folder.join("calls")).unwrap_or_default()
    }

    /// Returns how often memory was freed while another live process had it.
    ///
    /// # Panics
    /// If this process is not in the machine.
    pub fn violations(&self) -> u64 {
        // SAFETY: the library is the fake driver, which this process has loaded or can load; it is never unloaded.
        let symbol = unsafe {
            let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "the stand-in is there");
            libc::dlsym(library, c"fakecuda_violations".as_ptr())
        };
        assert!(!symbol.is_null(), "what is there is the stand-in");
        // SAFETY: this is the function's type, see the fake driver's README.
        #[expect(clippy::disallowed_methods, reason = "an address becomes a function, which nothing else can do")]
        let ask: extern "C" fn() -> u64 = unsafe { std::mem::transmute(symbol) };
        ask()
    }

    /// Returns a path in this machine's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Stops all streams, of one process or of all, from executing work until the returned value is dropped.
    pub fn gate(&self, pid: Option<u32>) -> File {
        self.file(&pid.map_or("gate".to_owned(), |pid| format!("gate.{pid}")), "")
    }

    /// Makes these calls of the driver fail in all processes: see the fake driver's `FAKECUDA_FAIL`.
    pub fn fail(&self, calls: &str) -> File {
        self.file("fail", calls)
    }

    fn file(&self, name: &str, text: &str) -> File {
        let path = self.folder.join(name);
        // Renames the file into place, since programs read it concurrently.
        let whole = self.folder.join("new");
        std::fs::write(&whole, text).expect("a file is written");
        std::fs::rename(whole, &path).expect("a file is named");
        File(path)
    }
}

/// A file that controls the fake driver while this value lives.
pub struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts a client in its own process whose tensors are in `host` or `cuda` memory: see `src/placed.rs`.
pub fn placed(socket: &Path, place: &str) -> Agent {
    placed_with(socket, place, &[])
}

/// As [`placed`], with environment variables.
pub fn placed_with(socket: &Path, place: &str, variables: &[(&str, &str)]) -> Agent {
    let mut command = Command::new(crate::binary("tensorlend-placed"));
    let mut agent = Agent::steer({
        command.envs(variables.iter().copied());
        command
    });
    agent.ok(&format!("connect {} {place}", socket.display()));
    agent
}
