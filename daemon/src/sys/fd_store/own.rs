//! The fd store that a user's daemon starts for itself.
//!
//! The store is a `tensorlendd --fd-store` next to the daemon's socket. It outlives the daemon by [`IDLE_S`], in which a
//! supervisor or the user starts the next daemon. That daemon finds the store by the path of the socket.

use rustix::net::SocketAddrUnix;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use tensorlend_os::program;

/// Time after which such a store ends, if no daemon is connected to it.
const IDLE_S: u32 = 60;

/// Returns the path of the store's socket, from the path of the daemon's socket. Returns `None` if the path would be too long.
pub fn path(socket: &Path) -> Option<PathBuf> {
    // The store does not share the daemon's working directory.
    let mut path = OsString::from(std::path::absolute(socket).ok()?);
    path.push(".store");
    let path = PathBuf::from(path);
    SocketAddrUnix::new(&path).is_ok().then_some(path)
}

/// Starts a store at a path, and the next one when it has ended.
#[derive(Debug)]
pub struct Starter {
    path: PathBuf,
    /// The thread that waits for the end of the last store, so that it leaves no zombie.
    last: Option<JoinHandle<io::Result<std::process::ExitStatus>>>,
}

impl Starter {
    /// Returns a starter of stores on a socket at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path, last: None }
    }

    /// Returns true if the last store has ended.
    pub fn has_ended(&self) -> bool {
        self.last.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Starts a store, unless the last one still runs.
    ///
    /// The store is in its own process group, so that a Ctrl-C at the daemon's terminal does not end it. It has none of
    /// the daemon's open files, so a process that waits for the end of such a file waits for the daemon only.
    pub fn start(&mut self) -> io::Result<()> {
        if self.last.as_ref().is_some_and(|last| !last.is_finished()) {
            return Ok(());
        }
        let command = program::daemon().ok_or_else(|| io::Error::other("tensorlendd is not in PATH"))?;
        let mut store = Command::new(&command[0]);
        store.args(&command[1..]).arg("--fd-store").arg(&self.path).arg("--fd-store-idle").arg(IDLE_S.to_string());
        store.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // These name the daemon's service manager and its log.
        store.env_remove("NOTIFY_SOCKET").env_remove("TENSORLEND_LOG_FORMAT");
        let mut child = store.spawn()?;
        self.last = Some(std::thread::Builder::new().name("tensorlendd-store".into()).spawn(move || child.wait())?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_lies_next_to_the_daemons_socket() {
        let socket = Path::new("/run/user/1/tensorlend.sock");
        assert_eq!(path(socket).unwrap(), Path::new("/run/user/1/tensorlend.sock.store"));
        let long = PathBuf::from(format!("/{}", "x".repeat(100)));
        assert_eq!(path(&long).map(|path| path.as_os_str().len()), Some(107));
        assert_eq!(path(&long.with_extension("y")), None);
    }
}
