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
    /// The user's own socket, if it is one of the paths.
    pub(super) own: Option<PathBuf>,
    /// Whether the client starts a daemon there if none listens at any of the paths. Otherwise the reason why not.
    pub(super) starts: Result<(), &'static str>,
    /// The reason why this user has no socket.
    pub(super) missing: Option<NoFolder>,
}

impl Sockets {
    /// Returns these sockets, at which the client starts no daemon.
    pub fn named(paths: Vec<PathBuf>) -> Self {
        let why = "programs start none at a socket that they or TENSORLEND_SOCKET name, but `tensorlendd --daemonize --socket PATH` \
                   does";
        Self { paths, own: None, starts: Err(why), missing: None }
    }

    /// Returns the same sockets, at which the client starts no daemon.
    pub fn without_start(self) -> Self {
        Self { starts: self.starts.and(Err("only commands and programs that publish or wait start one")), ..self }
    }
}

impl Default for Sockets {
    fn default() -> Self {
        if let Some(path) = std::env::var_os("TENSORLEND_SOCKET").filter(|path| !path.is_empty()) {
            return Self::named(vec![path.into()]);
        }
        let (own, missing) = match user_folder::socket() {
            Ok(path) => (Some(path), None),
            Err(why) => (None, Some(why)),
        };
        let paths = own.clone().into_iter().chain([PathBuf::from("/run/tensorlend/tensorlend.sock")]).collect();
        Self { paths, own, starts: program::may_start(), missing }
    }
}
