//! `tensorlend stop`: ends the user's daemon.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use tensorlend::Stat;
use tensorlend_os::socket_file::{Lock, Purpose};
use tensorlend_os::user_folder;

use crate::doctor::service::Service;
use crate::failure::Failure;
use crate::options::Connection;
use crate::output;
use crate::text::bytes_text;

/// Time in which a daemon ends after its signal.
const END_MAX: Duration = Duration::from_secs(30);

/// End the user's daemon, and its names.
///
/// Does nothing if no daemon runs. The daemon of a service is left to its service manager. If the daemon's configuration
/// names an fd store, that store keeps the names.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend stop\n")]
pub struct StopArgs {}

/// A process that listens on a socket.
struct Process {
    pid: u32,
    fd: OwnedFd,
    words: Vec<String>,
}

pub fn run(at: &Connection) -> Result<(), Failure> {
    let path = match at.socket() {
        Some(path) => path.to_owned(),
        None => user_folder::socket().map_err(|why| Failure::NoDaemon(why.to_string()))?,
    };
    // A client that finds no daemon waits for this lock, so it starts none with the fd store that is about to end. In
    // the folder of another user, clients start none.
    let _lock = Lock::take(&path, Purpose::Start);
    let Some(daemon) = Process::at(&path, at.daemon_timeout())? else {
        // The fd store of a daemon that was killed keeps its socket open. A daemon may also have its socket from a process that
        // has ended.
        if let Ok(stat) = at.client("stop", None).socket(&path).stat() {
            let text = format!(
                "the daemon (process {}) has its socket from a process that has ended: end it by `kill {0}`",
                stat.pid
            );
            return Err(Failure::Other(text.into()));
        }
        let store = if end_store(&path, at.daemon_timeout())? {
            "; ended its fd store, with the names that it kept"
        } else {
            ""
        };
        return output::line(format_args!("no daemon runs at {}{store}", path.display()));
    };
    daemon.check_is_daemon(&path)?;
    // A daemon that hangs, or one of another version, gives no metrics.
    let stat = at.client("stop", None).socket(&path).stat().ok();
    daemon.check_listens_itself(stat.as_ref(), &path)?;
    daemon.end()?;
    let had_store = end_store(&path, at.daemon_timeout())?;
    let names = stat.as_ref().map_or_else(String::new, |stat| names(stat, had_store));
    // Without this command.
    let clients = match stat.map_or(0, |stat| stat.clients.saturating_sub(1)) {
        0 => String::new(),
        1 => "; 1 client must connect again".to_owned(),
        several => format!("; {several} clients must connect again"),
    };
    output::line(format_args!("ended tensorlendd (process {}){names}{clients}", daemon.pid))
}
/// Ends the fd store that the daemon at this socket has started for itself. Returns true if there was one.
fn end_store(socket: &Path, timeout: Duration) -> Result<bool, Failure> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".store");
    let Some(store) = Process::at(&PathBuf::from(path), timeout)? else { return Ok(false) };
    // A user's own store has no such option.
    let is_daemons = store.words.iter().any(|word| word == "--fd-store-idle");
    if is_daemons {
        store.end()?;
    }
    Ok(is_daemons)
}

/// Describes the names of the daemon.
fn names(stat: &Stat, had_store: bool) -> String {
    let is_stored = stat.health.as_ref().is_some_and(|health| health.fd_store.is_some()) && !had_store;
    match stat.names {
        0 => String::new(),
        count => {
            let (s, size) = (if count == 1 { "" } else { "s" }, bytes_text(stat.bytes_in_use));
            let end = if is_stored { "which its fd store keeps" } else { "which end with it" };
            format!(": {count} name{s} ({size}), {end}")
        }
    }
}

impl Process {
    /// Returns the process that listens on a socket. `None` if none does.
    fn at(path: &Path, timeout: Duration) -> Result<Option<Self>, Failure> {
        let failed = |error: io::Error| Failure::NoDaemon(format!("{}: {error}", path.display()));
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .and_then(|socket| set_socket_timeout(&socket, Timeout::Send, Some(timeout)).map(|()| socket))
            .map_err(|error| failed(error.into()))?;
        match SocketAddrUnix::new(path).and_then(|address| rustix::net::connect(&socket, &address)) {
            // A full backlog: the process hangs, and its credentials are not known.
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            connected => connected.map_err(|error| failed(error.into()))?,
        }
        let peer = getsockopt(&socket, PeerCredentials).map_err(|error| failed(error.into()))?;
        if ![0, peer.uid()].contains(&geteuid().as_raw()) {
            let whose = format!("the daemon at {} belongs to user {}, who can end it", path.display(), peer.uid());
            return Err(Failure::Other(whose.into()));
        }
        let Some(pid) = Pid::from_raw(peer.pid()) else {
            let what = format!("the daemon at {} runs in another container: end it there", path.display());
            return Err(Failure::Other(what.into()));
        };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            opened => opened.map_err(|error| failed(error.into()))?,
        };
        let pid = peer.pid().unsigned_abs();
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(failed)?;
        // Another process may have got the number of one that has ended. A zombie has no command line.
        if std::fs::metadata(format!("/proc/{pid}")).map_err(failed)?.uid() != peer.uid() || line.is_empty() {
            return Ok(None);
        }
        let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Ok(Some(Self { pid, fd, words }))
    }

    /// Returns an error for a process that is no daemon of this user alone: a service's, a service manager, which listens
    /// before it starts the daemon, or a program with a daemon inside.
    fn check_is_daemon(&self, path: &Path) -> Result<(), Failure> {
        let Self { pid, words, .. } = self;
        if let Some(service) = Service::of(*pid) {
            let user = if service.is_users { "--user " } else { "" };
            let text = format!(
                "the daemon (process {pid}) belongs to the service {0}: end it by `systemctl {user}stop {0} tensorlendd.socket`",
                service.name
            );
            return Err(Failure::Other(text.into()));
        }
        let is_named = |path: &Path| path.file_name().is_some_and(|name| name == "tensorlendd");
        let is_program = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| is_named(&exe))
            || words.first().is_some_and(|word| is_named(Path::new(word)));
        // The package of Python: `python -P -m tensorlend._programs`.
        let mut options = words.iter().skip(1).skip_while(|word| word.starts_with('-') && *word != "-m");
        let is_module = options.next().is_some_and(|word| word == "-m")
            && options.next().is_some_and(|word| word == "tensorlend._programs");
        if is_program || is_module {
            return Ok(());
        }
        let text = format!(
            "process {pid} ({}) listens at {}, and is no tensorlendd: end a service by `systemctl stop tensorlendd.socket \
             tensorlendd.service` (with --user for a user's), and a program that contains the daemon by its own means",
            words.first().map_or("?", String::as_str),
            path.display()
        );
        Err(Failure::Other(text.into()))
    }

    /// Returns an error if the daemon has its socket from this process, and is another one.
    fn check_listens_itself(&self, stat: Option<&Stat>, path: &Path) -> Result<(), Failure> {
        match stat.map(|stat| stat.pid).filter(|&pid| pid != self.pid) {
            None => Ok(()),
            Some(pid) => {
                let text =
                    format!("process {} listened at {} for the daemon (process {pid})", self.pid, path.display());
                Err(Failure::Other(format!("{text}: end the daemon by the means of what started it").into()))
            }
        }
    }

    /// Ends the process in order, and waits until it has ended.
    fn end(&self) -> Result<(), Failure> {
        let pid = self.pid;
        match pidfd_send_signal(&self.fd, Signal::TERM) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(Failure::Other(format!("process {pid} cannot be ended: {error}").into())),
        }
        let end = std::time::Instant::now() + END_MAX;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], left.as_ref()) {
                Err(Errno::INTR) => {}
                Ok(0) => {
                    let what =
                        format!("tensorlendd (process {pid}) has not ended in {END_MAX:?}: end it by `kill -9 {pid}`");
                    return Err(Failure::Other(what.into()));
                }
                Ok(_) => return Ok(()),
                Err(error) => return Err(Failure::Other(io::Error::from(error).into())),
            }
        }
    }
}
