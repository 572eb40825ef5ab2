//! A daemon in the background.
//!
//! `tensorlendd --daemonize` starts a second process `tensorlendd --detached`, waits until this process listens, and exits.
//! The second process has a session of its own and none of the first one's files, so that neither a closed terminal nor a
//! Ctrl-C ends it, and no process waits for the end of a file that it has inherited. Its standard output leads to the first
//! process until it listens or has failed.

use crate::DaemonError;
use crate::config::{Config, ModeChoice};
use crate::sys::limits;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend_os::program;

/// Default of `idle_exit_s`.
const IDLE_EXIT_S: u32 = 600;

/// Bytes of a log from which the next daemon begins a new one.
const LOG_BYTES_MAX: u64 = 4 << 20;

const READY: &str = "ready\n";

/// True in the second process until it listens.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// Changes a configuration to that of a daemon in the background, which serves one user.
pub fn defaults(config: &mut Config) {
    config.idle_exit_s = config.idle_exit_s.or(Some(IDLE_EXIT_S));
    config.mode = ModeChoice::User;
}

/// Separates the second process from its parent, at its start.
pub fn detach() {
    AWAITED.store(true, Ordering::Relaxed);
    let _ = tensorlend_os::inherited::close_all();
    tensorlend_os::inherited::reset();
}

/// Reports to the first process that the daemon listens.
pub fn ready() {
    answer(READY);
}

/// Reports to the first process that the daemon does not run.
pub fn failed(error: &DaemonError) {
    answer(&error.to_string());
}

fn answer(text: &str) {
    if AWAITED.swap(false, Ordering::Relaxed) {
        tensorlend_layout::crash_point!("background: about to report");
        let mut stdout = io::stdout();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        let nowhere = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let _ = nowhere.and_then(rustix::stdio::dup2_stdout);
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |error| DaemonError::System { what, error }
}

/// Starts the second process with these arguments, and waits until it listens.
pub fn start(mut config: Config, arguments: &[OsString]) -> Result<(), DaemonError> {
    defaults(&mut config);
    let socket = absolute(&limits::socket_path(&config, limits::mode(config.mode))?)?;
    let log = program::daemon_log(&socket);
    let file = open_log(&log).map_err(system("opening the daemon's log"))?;
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let command = program::daemon().ok_or_else(missing).map_err(system("finding tensorlendd"))?;
    let mut daemon = Command::new(&command[0]);
    daemon.args(&command[1..]).arg("--detached").arg("--socket").arg(&socket).args(arguments);
    daemon.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut daemon = daemon.spawn().map_err(system("starting tensorlendd"))?;
    tensorlend_layout::crash_point!("background: started");
    let mut text = Vec::new();
    if let Some(mut answer) = daemon.stdout.take() {
        answer.read_to_end(&mut text).map_err(system("reading from tensorlendd"))?;
    }
    match &*String::from_utf8_lossy(&text) {
        READY => Ok(()),
        "" => Err(DaemonError::NotStarted { why: "it ended before it listened".into(), log }),
        why => Err(DaemonError::NotStarted { why: why.trim_end().to_owned(), log }),
    }
}

/// Opens a daemon's log, to append to it. Empties a long one.
fn open_log(path: &Path) -> io::Result<std::fs::File> {
    let flags =
        OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() || found.nlink() != 1 {
        return Err(io::Error::other(format!("{} is no file of this user alone: remove it", path.display())));
    }
    if found.len() > LOG_BYTES_MAX {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Returns the absolute form of a path, because the second process runs in the root folder.
pub fn absolute(path: &Path) -> Result<PathBuf, DaemonError> {
    std::path::absolute(path).map_err(system("finding the working folder"))
}
