//! Programs that run as other users.

use crate::{binary, run};
use rustix::process::Uid;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Returns a command that runs a program as this user, without any privilege of root.
pub fn as_user(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg(program);
    command
}

/// Runs `act` in a thread of another user: its connections are that user's. Needs root.
///
/// # Panics
/// If the thread cannot change its user, or panics.
pub fn acting_as<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(Some(uid), Some(uid), Some(uid)).expect("root may be anybody");
            act()
        });
        thread.join().expect("the thread has ended")
    })
}

/// Copies of programs in a folder where every user can run them: the build folder may be readable by root only.
pub struct Programs {
    folder: TempDir,
}

impl Programs {
    /// Copies these programs.
    ///
    /// # Panics
    /// If they have not been built, or cannot be copied.
    pub fn copy(names: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-bin-").tempdir().expect("a temporary folder");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our own folder");
        for name in names {
            // Another process copies the file. If this one held it open for writing, a child of another test could
            // inherit the descriptor, and the program could not be run (ETXTBSY).
            let mut install = Command::new("install");
            install.arg("--mode=0755").arg(binary(name)).arg(folder.path().join(name));
            assert!(run(&mut install).status.success(), "{name} is copied");
        }
        Self { folder }
    }

    /// Returns the path of the copy of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
