//! `tensorlend shm -- PROGRAM`.

use super::shm;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tensorlend_tests::sharer::EQUAL_BYTES;
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{binary, run, skip_without, skip_without_root};

/// Runs the program with two children for longer and longer, until the samples are complete. Returns the report.
fn profile(kind: &str, is_complete: impl Fn(&Value) -> bool) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let mut seconds = 0.5;
    loop {
        let worker = binary("tensorlend-worker");
        let mut command = shm(&["--json", "--output", file.to_str().unwrap(), "--"]);
        command.arg(worker).args(["sharer", "parent", kind, &format!("{seconds}")]);
        let done = run(&mut command);
        assert_eq!((done.status.code(), &done.stdout[..], &done.stderr[..]), (Some(3), &b"out\n"[..], &b"err\n"[..]));
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        if report["processes"] == 3 && is_complete(&report) {
            return report;
        }
        seconds *= 2.0;
        assert!(seconds < 600.0, "{report}");
    }
}

#[test]
fn equal_memory_of_two_children_is_held_twice() {
    const SLACK: u64 = 1 << 20;
    let wanted = EQUAL_BYTES as u64;
    // A pass before the children have filled their memory reads fewer bytes.
    let equal = profile("equal", |report| report["twice"]["read_bytes"].as_u64() > Some(2 * wanted));
    let bytes = equal["twice"]["bytes"].as_u64().unwrap();
    assert!((wanted - SLACK..wanted + SLACK).contains(&bytes), "{equal}");
    assert!(equal["private"]["max_bytes"].as_u64().unwrap() > 2 * wanted, "{equal}");
    let shared = profile("shared", |report| {
        report["shared"]["max_bytes"].as_u64() >= Some(wanted) && report["passes"].as_u64() > Some(2)
    });
    assert!(shared["twice"]["bytes"].as_u64().unwrap() < SLACK, "{shared}");
    assert!((wanted..wanted + SLACK).contains(&shared["shared"]["max_bytes"].as_u64().unwrap()), "{shared}");
}

#[test]
fn a_signal_of_the_program_becomes_the_status() {
    let done = run(&mut shm(&["--", "sh", "-c", "kill -TERM $$"]));
    assert_eq!(done.status.code(), Some(128 + 15));
    assert!(String::from_utf8(done.stderr).unwrap().starts_with("tensorlend shm: sh: "));
    assert_eq!(run(&mut shm(&["--", "/nonexistent/program"])).status.code(), Some(127));
    assert_eq!(run(&mut shm(&["--", "/dev/null"])).status.code(), Some(126));
}

#[test]
fn a_program_ignores_the_signals_that_its_caller_ignores() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" shm -- sh -c 'kill -HUP $$; echo survived'"]);
    let done = run(command.arg(binary("tensorlend")));
    assert_eq!((done.status.code(), &done.stdout[..]), (Some(0), &b"survived\n"[..]));
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    use rustix::process::{Pid, Signal, kill_process};
    for (word, signal) in [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
    ] {
        let program = format!("trap 'exit 42' {word}; echo ready; while :; do sleep 0.02; done");
        let mut command = shm(&["--", "sh", "-c", &program]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(42), "{word}");
    }
}

#[test]
fn only_processes_of_the_program_are_counted() {
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 3 >/dev/null 2>&1 & exec \"$0\" shm --json -- sleep 1"]);
    let done = run(command.arg(binary("tensorlend")));
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(report["processes"], 1, "{report}");
}

#[test]
fn a_program_that_this_user_may_not_read_is_no_short_one() {
    if skip_without("setpriv") || skip_without_root() {
        return;
    }
    let programs = Programs::copy(&["tensorlend"]);
    let program = programs.path("sleep");
    let sleep = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    // The kernel protects a process whose program its user may not read.
    assert!(run(Command::new("install").arg("--mode=0711").arg(sleep).arg(&program)).status.success());
    let mut command = as_user(64_041, &programs.path("tensorlend"));
    let done = run(command.args(["shm", "--"]).arg(program).arg("1"));
    let report = String::from_utf8(done.stderr).unwrap();
    assert!(report.contains("may not read the program's processes"), "{report}");
}
