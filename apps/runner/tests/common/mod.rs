//! Shared parts of the tests: a daemon, runners as real processes, and tiny models, built from ONNX's own messages.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod models;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::{Client, Draft, Element};
use tensorlend_daemon::Embedded;

/// The longest that any step may take.
pub const LONG: Option<Duration> = Some(Duration::from_mins(5));

pub fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

pub fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).label("test").connect().expect("a client connects")
}

/// Returns ONNX Runtime's library: the one that `ORT_DYLIB_PATH` names, or that of the Python package `onnxruntime`. Without
/// both, reports that the test is skipped.
pub fn onnxruntime() -> Option<PathBuf> {
    const FIND: &str = "import glob, importlib.util as u; s = u.find_spec('onnxruntime'); \
        print(*sorted(glob.glob(s.submodule_search_locations[0] + '/capi/libonnxruntime.so*'))[:1] if s else [], end='')";
    if let Some(named) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return Some(named.into());
    }
    let python = std::env::var_os("TENSORLEND_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(python).args(["-c", FIND]).output().ok().filter(|done| !done.stdout.is_empty());
    let Some(found) = found else {
        tensorlend_tests::skip(
            "ONNX Runtime is missing: name its library in ORT_DYLIB_PATH, or pip install onnxruntime",
        );
        return None;
    };
    Some(String::from_utf8(found.stdout).expect("a path in UTF-8").into())
}

/// A runner in a process of its own, killed with this value.
pub struct Runner {
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Runner {
    pub fn start(broker: &Embedded, options: &[&str]) -> Self {
        Self::start_with(broker, options, &[])
    }

    pub fn start_with(broker: &Embedded, options: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_in(broker.socket(), options, environment, None)
    }

    /// Starts it in this folder.
    pub fn start_in(socket: &Path, options: &[&str], environment: &[(&str, &str)], folder: Option<&Path>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlend-runner"));
        command.arg("--socket").arg(socket).args(options).env_remove("ORT_DYLIB_PATH");
        command.envs(environment.iter().copied());
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the runner starts");
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, said) = (child.stderr.take().expect("piped"), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        Self { child, log }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it has started and that have not ended.
    pub fn workers(&self) -> Vec<u32> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        children
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_none()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the runner's log\n{}", self.log.lock().unwrap());
        }
    }
}

/// Looks until `ready`.
pub fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(Some(start.elapsed()) < LONG, "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn draft<T: Element>(client: &Client, shape: &[u64], elements: &[T]) -> Draft {
    let mut draft = client.create(T::DTYPE, shape).unwrap();
    draft.as_mut_slice::<T>().unwrap().copy_from_slice(elements);
    draft
}

pub fn put<T: Element>(client: &Client, name: &str, shape: &[u64], elements: &[T]) {
    draft(client, shape, elements).publish(name).unwrap();
}
