//! Several users and one daemon in system mode: needs root, to become them.

use std::path::Path;
use std::process::Command;
use tensorlend_tests::{Agent, Daemon, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;
const CAROL: u32 = 64_004;

fn as_user(uid: u32) -> impl FnOnce(&Path) -> Command {
    move |program| {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg(program);
        command
    }
}

fn agent(daemon: &Daemon, uid: u32) -> Agent {
    let mut agent = Agent::start_as(as_user(uid));
    agent.ok(&format!("connect {}", daemon.socket().display()));
    agent
}

fn system(config: &str) -> Option<Daemon> {
    if skip_without_root() || skip_without("setpriv") {
        return None;
    }
    let program = tensorlend_tests::binary("tensorlendd");
    // Other users must be able to run what was built.
    if !Command::new("setpriv")
        .arg(format!("--reuid={BOB}"))
        .arg("--clear-groups")
        .arg(&program)
        .arg("--version")
        .output()
        .unwrap()
        .status
        .success()
    {
        eprintln!("SKIPPED: other users cannot run {}", program.display());
        return None;
    }
    Some(Daemon::start_as(&format!("mode = \"system\"\n{config}"), as_user(DAEMON)))
}

#[test]
fn users_do_not_see_each_other() {
    let Some(daemon) = system("") else { return };
    let (mut alice, mut bob) = (agent(&daemon, ALICE), agent(&daemon, BOB));
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
    let config = format!("[namespace.lab]\nwriters = [\"{ALICE}\"]\nreaders = [\"{BOB}\"]\n");
    let Some(daemon) = system(&config) else { return };
    let join = |uid| {
        let mut agent = Agent::start_as(as_user(uid));
        agent.ask(&format!("connect {} lab", daemon.socket().display())).map(|_| agent)
    };
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
    let Some(daemon) = system("") else { return };
    for seed in 0..4 {
        let mut alice = agent(&daemon, ALICE);
        alice.ok(&format!("put x 50000000 {seed}"));
        alice.ok("delete x");
        alice.exit();
    }
    let mut alice = agent(&daemon, ALICE);
    let sum = alice.ok("put y 50000000 9");
    assert!(alice.ok("sum y").ends_with(&sum));
}
