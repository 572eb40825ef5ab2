//! The fd store that a user's daemon starts for itself.
//!
//! The store is a `tensorlendd --fd-store` next to the daemon's socket. It outlives the daemon by [`IDLE`], in which a
//! supervisor or the user starts the next daemon. That daemon finds the store by the path of the socket.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Time after which such a store ends, if no daemon is connected to it.
pub const IDLE_S: u32 = 60;

/// Returns the path of the store's socket, from the path of the daemon's socket.
pub fn path(socket: &Path) -> PathBuf {
    let mut path = OsString::from(socket);
    path.push(".store");
    path.into()
}

/// Starts stores, one after another.
#[derive(Debug)]
pub struct Starter {
    program: PathBuf,
    last: Option<Child>,
}

impl Starter {
    /// `program` is the path of `tensorlendd`, or its name in PATH.
    pub fn new(program: PathBuf) -> Self {
        Self { program, last: None }
    }

    /// Starts a store on a socket at `path`, unless the last one still runs.
    ///
    /// The store is in a process group of its own, so that a Ctrl-C at the daemon's terminal does not end it. It does not
    /// inherit the daemon's standard streams: whoever waits for the end of one of them waits for the daemon only.
    pub fn start(&mut self, path: &Path) -> io::Result<()> {
        if let Some(last) = &mut self.last
            && last.try_wait()?.is_none()
        {
            return Ok(());
        }
        let mut store = Command::new(&self.program);
        store.arg("--fd-store").arg(path).arg("--fd-store-idle").arg(IDLE_S.to_string());
        store.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // The store reports to no service manager: this name is the daemon's.
        store.env_remove("NOTIFY_SOCKET");
        self.last = Some(store.spawn()?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_lies_next_to_the_daemons_socket() {
        assert_eq!(path(Path::new("/run/user/1/tensorlend.sock")), Path::new("/run/user/1/tensorlend.sock.store"));
    }
}
