//! `tensorlend shm -- PROGRAM`.

use super::shm;
use serde_json::Value;
use tensorlend_tests::sharer::EQUAL_BYTES;
use tensorlend_tests::{binary, run};

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
    assert_eq!(run(&mut shm(&["--", "/nonexistent/program"])).status.code(), Some(1));
}
