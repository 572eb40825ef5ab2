//! The errors that prevent the daemon from running.

use crate::config::ConfigError;
use crate::core::Unmade;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use tensorlend_os::user_folder::NoFolder;

/// The reason why the daemon cannot run.
#[derive(thiserror::Error)]
pub enum DaemonError {
    /// The kernel is too old.
    #[error(transparent)]
    Kernel(#[from] tensorlend_os::kernel::KernelTooOld),
    /// /proc is not mounted.
    #[error("/proc/self/fd cannot be read ({0}), and tensorlendd reopens memory through it: mount proc on /proc")]
    NoProc(io::Error),
    /// The limit of open descriptors is too low.
    #[error(
        "this process may have {limit} open descriptors (RLIMIT_NOFILE), and tensorlendd needs {least} at least: raise \
         the hard limit (ulimit -Hn, LimitNOFILE= of a unit)"
    )]
    Descriptors {
        /// The limit of this process.
        limit: u64,
        /// The minimum that the daemon requires.
        least: u64,
    },
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No path for the socket is configured or known.
    #[error(
        "there is no folder for this user's socket: {0}. Start tensorlendd with --socket PATH, and set TENSORLEND_SOCKET=PATH for its clients"
    )]
    NoSocketPath(NoFolder),
    /// The daemon in the background does not run.
    #[error("the daemon in the background did not start: {why} (its log is {log:?})")]
    NotStarted {
        /// The daemon's own error.
        why: String,
        /// The path of its log.
        log: PathBuf,
    },
    /// The socket cannot be created.
    #[error("the socket {path:?} {what}: {error}")]
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// The failed step.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The socket's path leads to a file that is not a stale socket.
    #[error(
        "the socket {path:?} cannot be made: there is {found}, which tensorlendd does not replace: remove it, or name \
         another path"
    )]
    Occupied {
        /// The socket's path.
        path: PathBuf,
        /// A description of the file's kind.
        found: String,
    },
    /// Another daemon already listens on this socket.
    #[error("another daemon or fd store listens on {0:?} already: stop it, or name another path")]
    Running(PathBuf),
    /// The daemon that was ordered to reload its configuration does not respond.
    #[error(
        "process {pid} was asked to reload, but at {path:?} {what}: check that it is the daemon of this configuration"
    )]
    NoAnswer {
        /// The daemon's pid.
        pid: i32,
        /// The path of the daemon's socket.
        path: PathBuf,
        /// A description of the fault.
        what: String,
    },
    /// The daemon cannot use the descriptors that the service manager passed.
    #[error("the socket that the service manager handed over cannot be used: {0}")]
    Activation(io::Error),
    /// The process of the option `fd_store` does not respond.
    #[error(
        "the fd store {path:?} of the option fd_store does not respond ({error}): start `tensorlendd --fd-store {path}`, \
         as the daemon's user, and connect one daemon only"
    )]
    FdStore {
        /// The path of the process's socket.
        path: PathBuf,
        /// The error of the last attempt to connect.
        error: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// Name of the system call.
        what: &'static str,
        /// The system call's error.
        error: io::Error,
    },
}

/// Returns the reason why memory could not be made. Without descriptors, no memory can be made either, and another limit
/// must be raised.
pub fn unmade(error: &io::Error) -> Unmade {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => Unmade::Descriptors {
            what: "the number of the daemon's open descriptors",
            setting: "LimitNOFILE of its unit",
            limit: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
        },
        // The kernel counts the descriptors in flight on all sockets of the daemon's user, with the same limit.
        Some(Errno::TOOMANYREFS) => Unmade::Descriptors {
            what: "the number of descriptors that processes of the daemon's user have sent and no process has received",
            setting: "LimitNOFILE of its unit",
            limit: rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX),
        },
        Some(Errno::NFILE) => Unmade::Descriptors {
            what: "the number of the machine's open files",
            setting: "the sysctl fs.file-max",
            limit: std::fs::read_to_string("/proc/sys/fs/file-max")
                .ok()
                .and_then(|it| it.trim().parse().ok())
                .unwrap_or(0),
        },
        _ => Unmade::Memory(error.to_string()),
    }
}
