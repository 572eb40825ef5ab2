//! The sockets at which a client looks for a daemon.

use std::path::PathBuf;
use tensorlend_os::program;
use tensorlend_os::user_folder::{self, NoFolder};

/// Returns the sockets that a client tries, in this order. If `TENSORLEND_SOCKET` is set, this is its only socket.
/// Otherwise they are the user's daemon and then the system's.
///
/// ```
/// let sockets = tensorlend::default_sockets();
/// assert!(!sockets.is_empty());
/// ```
pub fn default_sockets() -> Vec<PathBuf> {
    Sockets::default().paths
}

/// The sockets that a client tries.
pub struct Sockets {
    pub(super) paths: Vec<PathBuf>,
    /// The socket at which the client starts a daemon if none listens at any of the paths.
    pub(super) start: Option<PathBuf>,
    /// The reason why this user has no socket.
    pub(super) missing: Option<NoFolder>,
}

impl Sockets {
    /// Returns these sockets, at which the client starts no daemon.
    pub fn named(paths: Vec<PathBuf>) -> Self {
        Self { paths, start: None, missing: None }
    }

    /// Returns the same sockets, at which the client starts no daemon.
    pub fn without_start(self) -> Self {
        Self { start: None, ..self }
    }
}

impl Default for Sockets {
    fn default() -> Self {
        if let Some(path) = std::env::var_os("TENSORLEND_SOCKET").filter(|path| !path.is_empty()) {
            return Self::named(vec![path.into()]);
        }
        let (start, missing) = match user_folder::socket() {
            Ok(path) => (Some(path), None),
            Err(why) => (None, Some(why)),
        };
        let paths = start.clone().into_iter().chain([PathBuf::from("/run/tensorlend/tensorlend.sock")]).collect();
        Self { paths, start: start.filter(|_| program::may_start()), missing }
    }
}
