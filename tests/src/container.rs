//! Processes in separate namespaces, as a container engine starts them: see `container/container.sh`.

use crate::users::as_user;
use crate::{run, skip, skip_without_root};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const SCRIPT: &str = include_str!("container/container.sh");

/// The root folders of live containers, and the script that starts them.
pub struct Engine {
    folder: TempDir,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine {
    /// Creates an engine.
    ///
    /// # Panics
    /// If a temporary folder cannot be created.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-containers-").tempdir().expect("a temporary folder");
        crate::open_to_all(folder.path());
        std::fs::write(folder.path().join("container.sh"), SCRIPT).expect("the script is written");
        Self { folder }
    }

    /// Returns a command that runs a program in a user's own container, in which that user is uid 0. Outside of `/usr`
    /// it sees only `paths`.
    pub fn rootless(&self, uid: u32, name: &str, paths: &[&Path], program: &Path) -> Command {
        let mut command = as_user(uid, Path::new("sh"));
        self.contain(&mut command, "yes", name, paths, program);
        command
    }

    /// Returns a command that runs a program in a container with the machine's uids, as one of these users.
    pub fn rootful(&self, uid: u32, name: &str, paths: &[&Path], program: &Path) -> Command {
        let mut command = Command::new("sh");
        self.contain(&mut command, "no", name, paths, Path::new("setpriv"));
        // Keeps the death signal, which setpriv would clear with the change of user: the program must end with its
        // container.
        command.arg("--pdeathsig=keep");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg(program);
        command
    }

    fn contain(&self, command: &mut Command, rootless: &str, name: &str, paths: &[&Path], program: &Path) {
        let root = self.folder.path().join(name);
        std::fs::create_dir(&root).expect("no other container has this name");
        command.arg(self.folder.path().join("container.sh")).arg(rootless).arg(root);
        command.args(paths).arg("--").arg(program);
    }
}

/// Returns true if no containers can be created here, and records the reason. The test then returns.
pub fn skip_without_containers() -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    if skip_without_root() || ["setpriv", "unshare", "pivot_root"].iter().any(|tool| crate::skip_without(tool)) {
        return true;
    }
    let refused = REFUSED.get_or_init(|| {
        let engine = Engine::new();
        let tried = run(&mut engine.rootless(64_000, "tried", &[], Path::new("true")));
        (!tried.status.success()).then(|| String::from_utf8_lossy(&tried.stderr).trim().replace('\n', "; "))
    });
    if let Some(why) = refused {
        skip(&format!("no namespaces of its own for a user's process here: {why}"));
    }
    refused.is_some()
}
