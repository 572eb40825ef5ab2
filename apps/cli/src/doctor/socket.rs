//! Checks of the daemons' sockets. Each check also tries whether a daemon listens.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use tensorlend::{Client, Error, Refusal, Stat};

use tensorlend_os::socket_file::{self, Found};
use tensorlend_os::{program, user_folder};

use super::report::Report;
use crate::options::{Connection, Reached};

/// A client of the daemon that responded, and the daemon's metrics.
pub struct Answered {
    /// The client. `None` if a limit has refused a session.
    pub client: Option<Client>,
    pub stat: Stat,
}

/// Checks each socket, and connects to the first reachable daemon.
pub fn check(report: &mut Report, at: &Connection) -> Option<Answered> {
    let paths = at.socket().map_or_else(tensorlend::default_sockets, |path| vec![path.to_owned()]);
    let own = user_folder::socket();
    if at.socket().is_none()
        && let Err(why) = &own
    {
        let fix = "remove or correct this folder, or name a socket with TENSORLEND_SOCKET";
        report.fail("socket", format!("clients do not look for a daemon of this user: {why}"), fix);
    }
    let mut found = Vec::new();
    for log in paths.iter().map(|path| program::daemon_log(path)).filter(|log| log.exists()) {
        report.ok("daemon's log", log.display().to_string());
    }
    for path in &paths {
        match probe(path, at.daemon_timeout()) {
            Ok(whose) => {
                report.ok("socket", format!("{}: {whose}, and a process listens", path.display()));
                // The client library also uses the first reachable socket, in the same order.
                return connect(report, at);
            }
            Err(wrong) => found.push((path.clone(), wrong)),
        }
    }
    let is_missing = |path: &PathBuf| match socket_file::inspect(path) {
        Ok(Found::Nothing) => true,
        Ok(Found::Stale) => own.as_ref() == Ok(path),
        _ => false,
    };
    if at.socket().is_none()
        && paths.iter().all(is_missing)
        && program::may_start().is_ok()
        && let Some(command) = program::daemon()
    {
        let found = format!("no daemon runs: the first client starts {}", command[0].display());
        report.ok("socket", found);
        return None;
    }
    for (path, Wrong { found, fix }) in found {
        report.fail("socket", format!("{}: {found}", path.display()), fix);
    }
    None
}

/// The fault of a socket.
struct Wrong {
    found: String,
    fix: String,
}

/// Returns a text about the socket's owner if a process listens on the socket. Otherwise returns
/// the fault.
fn probe(path: &Path, timeout: Duration) -> Result<String, Wrong> {
    let wrong = |found: String, fix: &str| Err(Wrong { found, fix: fix.to_owned() });
    let start = "start the daemon (`tensorlendd --daemonize`, with --socket PATH for another socket than the user's; with the \
                 package: systemctl enable --now tensorlendd.socket, or with --user), or name its socket with --socket or \
                 TENSORLEND_SOCKET. Without a name, the first client starts the user's daemon, unless TENSORLEND_AUTOSTART is 0";
    let there = match path.metadata() {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return wrong("is not there".into(), start),
        Err(error) => {
            let fix = format!("allow this user to enter {}", folder(path).display());
            return Err(Wrong { found: error.to_string(), fix });
        }
    };
    if !there.file_type().is_socket() {
        return wrong("is no socket".into(), "name the daemon's socket with --socket or TENSORLEND_SOCKET");
    }
    let (uid, mode) = (there.uid(), there.permissions().mode() & 0o777);
    let whose = format!("user {uid}'s, mode {mode:o}");
    match reach(path, timeout) {
        Ok(()) => Ok(whose),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let me = geteuid().as_raw();
            let found = format!("is {whose}: user {me} may not connect");
            wrong(
                found,
                "connect as that user; to serve all users, run the daemon under a uid of its own (system mode), or set socket_mode",
            )
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            wrong(format!("is {whose}, and no process listens: the daemon has ended"), start)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let found = format!("is {whose}, and accepts no more connections: the daemon is stopped, or it hangs");
            wrong(found, "check its process (`ps -C tensorlendd -o pid,stat`: T is stopped) and its log, or restart it")
        }
        Err(error) => wrong(format!("is {whose}: {error}"), start),
    }
}

fn folder(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// Connects to the socket, and disconnects. The daemon ignores a connection that sends no hello.
fn reach(path: &Path, timeout: Duration) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(Duration::from_millis(1))))?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

fn connect(report: &mut Report, at: &Connection) -> Option<Answered> {
    let mut open = || -> Result<Answered, crate::failure::Failure> {
        Ok(match at.reach("doctor")? {
            Reached::Session(client) => {
                let stat = client.stat()?;
                Answered { client: Some(client), stat }
            }
            Reached::Metrics { stat, refused } => {
                let found = format!("process {} responds, but this user gets no session: {refused}", stat.pid);
                let fix = "end programs that have sessions (`tensorlend stat` shows each user's), or raise the limit";
                report.fail("daemon", found, fix);
                Answered { client: None, stat: *stat }
            }
        })
    };
    match open() {
        Ok(it) => {
            if let Some(client) = &it.client {
                let stat = &it.stat;
                versions(report, client, stat);
                let namespace = client.namespace();
                report.ok(
                    "daemon",
                    format!("process {}, {} mode; this user is in namespace {namespace}", stat.pid, stat.mode),
                );
            }
            Some(it)
        }
        Err(failure) => {
            let fix = match &failure {
                crate::failure::Failure::Client(Error::Refused { refusal, .. }) => match refusal {
                    Refusal::Protocol { .. } | Refusal::Layout { .. } => {
                        "upgrade the older of daemon and client, and restart the daemon"
                    }
                    Refusal::Namespace(_) => {
                        "name another namespace with --namespace, or ask the administrator to add this user to the namespace in the daemon's configuration"
                    }
                    _ => "see the daemon's log (journalctl -u tensorlendd)",
                },
                crate::failure::Failure::Client(Error::Descriptors { .. }) => "raise `ulimit -n`",
                crate::failure::Failure::Usage(_) => "give one namespace",
                _ => "check the daemon's log and process; restart the daemon: clients resume their sessions",
            };
            report.fail("daemon", failure.to_string(), fix);
            None
        }
    }
}

/// Compares the release versions. The client has compared the versions of protocol and layout when it connected.
fn versions(report: &mut Report, client: &Client, stat: &Stat) {
    let own = tensorlend::build();
    let protocol = tensorlend_layout::wire::PROTOCOL_VERSION;
    let common = format!("protocol {protocol}, layout {}", client.layout_version());
    if stat.version == own {
        report.ok("versions", format!("daemon and client are {own}; {common}"));
    } else {
        let found = format!("the daemon is {}, this client {own}; both speak {common}", stat.version);
        report.warn("versions", found, "install client and daemon of the same version at the next upgrade");
    }
}
