//! Kills this process at a crash point, for tests. This is the hook of
//! [`tensorlend_layout::crash`].

use rustix::process::{Signal, getpid, kill_process};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The environment variable that names the crash point: `NUMBER:PASSAGE:FILE`. The first passage
/// since the creation of the file is number 1.
pub const VARIABLE: &str = "TENSORLEND_CRASH";

struct Plan {
    point: usize,
    passage: u64,
    file: PathBuf,
    counting: AtomicBool,
    passed: AtomicU64,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

/// Reads the environment variable once. Without the variable, the process passes all crash points.
///
/// # Panics
/// If the variable is invalid. Otherwise a test would pass without having killed the process.
pub fn arm() {
    let Some(text) = std::env::var_os(VARIABLE) else { return };
    let text = text.into_string().expect("TENSORLEND_CRASH is text");
    let mut parts = text.splitn(3, ':');
    let mut part = || parts.next().expect("TENSORLEND_CRASH is NUMBER:PASSAGE:FILE");
    let point = part().parse().expect("the number of a place");
    let passage = part().parse().expect("which passage");
    let file = part().into();
    let plan = Plan { point, passage, file, counting: AtomicBool::new(false), passed: AtomicU64::new(0) };
    if PLAN.set(plan).is_ok() {
        tensorlend_layout::crash::install(pass);
    }
}

fn pass(point: usize) {
    let Some(plan) = PLAN.get().filter(|plan| plan.point == point) else { return };
    if !plan.counting.load(Ordering::Relaxed) {
        if !plan.file.exists() {
            return;
        }
        plan.counting.store(true, Ordering::Relaxed);
    }
    if plan.passed.fetch_add(1, Ordering::Relaxed) + 1 == plan.passage {
        // The signal acts like a kill from another process: no destructor runs, no buffer is
        // flushed.
        let _ = kill_process(getpid(), Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}
