//! Several users and one daemon in system mode: needs root, to become them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tensorlend_tests::{Agent, Daemon, binary, run, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;
const CAROL: u32 = 64_004;

fn as_user(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg(program);
    command
}

/// A daemon that is a user of its own, and programs that every user can run: what was built may lie where only root can
/// look.
struct System {
    daemon: Daemon,
    agent: PathBuf,
    _programs: TempDir,
}

impl System {
    fn start(config: &str) -> Self {
        let programs = tempfile::Builder::new().prefix("tensorlend-bin-").tempdir().unwrap();
        std::fs::set_permissions(programs.path(), Permissions::from_mode(0o755)).unwrap();
        let copy = |name| {
            let copy = programs.path().join(name);
            // By another process: what this one has open for writing, a child of another test could hold a moment
            // longer, and then it cannot be run.
            assert!(run(Command::new("install").arg("--mode=0755").arg(binary(name)).arg(&copy)).status.success());
            copy
        };
        let (daemon, agent) = (copy("tensorlendd"), copy("tensorlend-agent"));
        let daemon = Daemon::start_as(&format!("mode = \"system\"\n{config}"), |_| as_user(DAEMON, &daemon));
        Self { daemon, agent, _programs: programs }
    }

    /// An agent of this user, connected to its private namespace, or to the one that `namespace` names.
    fn join(&self, uid: u32, namespace: &str) -> Result<Agent, String> {
        let mut agent = Agent::start_as(|_| as_user(uid, &self.agent));
        agent.ask(&format!("connect {} {namespace}", self.daemon.socket().display()))?;
        Ok(agent)
    }

    fn agent(&self, uid: u32) -> Agent {
        self.join(uid, "").unwrap()
    }
}

fn cannot_run() -> bool {
    skip_without_root() || skip_without("setpriv")
}

#[test]
fn users_do_not_see_each_other() {
    if cannot_run() {
        return;
    }
    let system = System::start("");
    let (mut alice, mut bob) = (system.agent(ALICE), system.agent(BOB));
    let mine = alice.ok("put diary 100000 1");
    assert_eq!(bob.ok("exists diary"), "false");
    assert_eq!(bob.ok("list"), "0");
    let his = bob.ok("put diary 100000 2");
    assert!(alice.ok("sum diary").ends_with(&mine) && bob.ok("sum diary").ends_with(&his));
    assert_eq!(bob.ok("delete diary"), "true");
    assert!(alice.ok("sum diary").ends_with(&mine));
}

#[test]
fn a_shared_namespace_has_readers_and_writers() {
    if cannot_run() {
        return;
    }
    let system = System::start(&format!("[namespace.lab]\nwriters = [\"{ALICE}\"]\nreaders = [\"{BOB}\"]\n"));
    let join = |uid| system.join(uid, "lab");
    let (mut alice, mut bob) = (join(ALICE).unwrap(), join(BOB).unwrap());
    let sum = alice.ok("put result 100000 1");
    assert!(bob.ok("sum result").ends_with(&sum));
    assert!(bob.ask("put result 10 2").unwrap_err().contains("only read"));
    assert!(bob.ask("delete result").unwrap_err().contains("only read"));
    let refused = join(CAROL).map(|_| ()).unwrap_err();
    assert!(refused.contains("no namespace"), "{refused}");
    assert!(alice.ok("sum result").ends_with(&sum));
}

#[test]
fn segments_are_lent_again_in_system_mode() {
    if cannot_run() {
        return;
    }
    let system = System::start("");
    for seed in 0..4 {
        let mut alice = system.agent(ALICE);
        alice.ok(&format!("put x 50000000 {seed}"));
        alice.ok("delete x");
        alice.exit();
    }
    let mut alice = system.agent(ALICE);
    let sum = alice.ok("put y 50000000 9");
    assert!(alice.ok("sum y").ends_with(&sum));
}
