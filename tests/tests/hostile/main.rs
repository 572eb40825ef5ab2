//! The hostile matrix: separate processes carry out every attack on lent memory, against unprotected memory (where it
//! must succeed) and against tensorlend in its modes (where it must fail).
//!
//! `cargo test -p tensorlend-tests --test hostile -- --nocapture` prints the table.

mod attacks;
mod scene;
mod settings;
mod stage;

use attacks::{ATTACKS, Class, Result, table};
use scene::Scene;
use settings::{ALICE, DAEMON, MALLORY, settings};
use stage::{Stage, control};
use tensorlend_tests::{Daemon, skip, skip_without, skip_without_root};

fn is_forbidden(why: &str) -> bool {
    ["not permitted", "denied", "not implemented"].iter().any(|word| why.contains(word))
}

/// Returns true if this process has the capability with which root can trace any process; containers drop it.
fn root_may_trace() -> bool {
    const CAP_SYS_PTRACE: u64 = 1 << 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & CAP_SYS_PTRACE != 0
}

#[test]
fn a_stranger_is_lent_nothing() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let stage = Stage::new();
    let daemon = Daemon::start_as("mode = \"system\"\n", |_| stage.command("tensorlendd", Some(DAEMON)));
    let socket = daemon.socket().display().to_string();
    let mut alice = stage.agent(Some(ALICE));
    alice.ok(&format!("connect {socket}"));
    let sum = alice.ok("put diary 100000 1");
    let mut mallory = stage.attacker(Some(MALLORY));
    mallory.ok(&format!("join {socket}"));
    assert_eq!(mallory.ok(&format!("pry uid:{ALICE}")), "0");
    // The same requests succeed for a permitted user.
    let mut accomplice = stage.attacker(Some(ALICE));
    accomplice.ok(&format!("join {socket}"));
    assert_ne!(accomplice.ok(&format!("pry uid:{ALICE}")), "0");
    assert!(alice.ok("sum diary").ends_with(&sum));
}

#[test]
fn nothing_that_is_lent_can_be_turned_against_anybody() {
    let root = rustix::process::geteuid().is_root();
    if root && skip_without("setpriv") {
        return;
    }
    if !root {
        skip("system mode between users: needs root to become them");
    }
    let stage = Stage::new();
    let uid = root.then_some(ALICE);

    let mut unprotected = stage.attacker(uid);
    let socket = stage.path("unprotected");
    unprotected.ok(&format!("victim {}", socket.display()));
    let controls: Vec<Result> = ATTACKS
        .iter()
        .enumerate()
        .map(|(round, (attack, _))| control(&stage, &mut unprotected, &socket, uid, attack, round))
        .collect();
    let mut rows: Vec<Vec<Result>> = controls.iter().map(|control| vec![control.clone()]).collect();
    let mut lines = Vec::new();
    for ((attack, class), control) in ATTACKS.iter().zip(&controls) {
        match control {
            Result::Breach(_) => {}
            // Yama and some sandboxes forbid this between processes of one user; the attack then proves nothing here.
            Result::Held(why) if *class != Class::Lent && is_forbidden(why) => {
                skip(&format!("{attack}: forbidden on this machine even against the unprotected ({why})"));
            }
            Result::Impossible(why) => skip(&format!("{attack}: {why}")),
            Result::Held(why) => panic!("{attack} does not even work on what is not protected: {why}"),
        }
    }

    let settings = settings(root);
    let traces = root_may_trace();
    if root && !traces {
        skip("that root could trace anybody: this root has not the capability for it");
    }
    let (mut tried, mut breaches, mut wrong) = (0, 0, Vec::new());
    for setting in &settings {
        let mut scene = Scene::new(&stage, *setting);
        for (((attack, class), control), row) in ATTACKS.iter().zip(&controls).zip(&mut rows) {
            let result = match control {
                Result::Impossible(why) => Result::Impossible(why.clone()),
                _ => scene.try_one(attack),
            };
            let breached = matches!(result, Result::Breach(_));
            if setting.promised.contains(class) && !matches!(result, Result::Impossible(_)) {
                tried += 1;
                breaches += usize::from(breached);
                if breached {
                    wrong.push(format!("{} in {}: {result:?}", attack, setting.name));
                }
            }
            let shows = setting.shows.contains(attack) && (*class == Class::Lent || traces);
            if shows && !breached && matches!(control, Result::Breach(_)) {
                wrong.push(format!("{attack} in {} shows nothing: {result:?}", setting.name));
            }
            lines.push(format!("{}: {attack}: {result:?}", setting.name));
            row.push(result);
        }
    }
    let columns: Vec<&str> = ["unprotected"].into_iter().chain(settings.iter().map(|setting| setting.name)).collect();
    println!("{}\n\n{}", lines.join("\n"), table(&columns, &rows));
    println!("{tried} attacks tried where none may succeed, {breaches} breaches");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
