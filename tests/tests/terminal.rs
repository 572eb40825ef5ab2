//! Faults as the command line shows them: `tensorlend doctor` with few descriptors, another user's socket, or a device
//! that is not lent; and tensors on devices, which it does not read.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tensorlend_tests::machine::{config, folder_with, on_machine, placed, surround};
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{Daemon, run, skip_without, skip_without_root};

const OWNER: u32 = 64_031;
const STRANGER: u32 = 64_032;

/// Runs the doctor. Returns its exit status and its checks: state, subject, finding and remedy.
fn doctor(command: &mut Command) -> (Option<i32>, Vec<[String; 4]>) {
    let done = run(command.args(["doctor", "--json"]));
    let text = String::from_utf8(done.stdout).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let words =
        |check: &Value| ["state", "check", "found", "fix"].map(|key| check[key].as_str().unwrap_or("").to_owned());
    (done.status.code(), report["checks"].as_array().unwrap().iter().map(words).collect())
}

/// Returns the check of one subject.
fn said<'a>(checks: &'a [[String; 4]], what: &str) -> &'a [String; 4] {
    checks.iter().find(|check| check[1] == what).unwrap_or_else(|| panic!("nothing of {what}: {checks:#?}"))
}

#[test]
fn a_daemon_with_few_descriptors() {
    if skip_without("prlimit") {
        return;
    }
    let limited = |program: &Path| {
        let mut command = Command::new("prlimit");
        command.arg("--nofile=300:300").arg(program);
        command
    };
    let daemon = Daemon::start_as("[pool]\nbytes_max = \"64MiB\"\n", limited);
    let (status, checks) = doctor(&mut daemon.cli(&[]));
    let [state, _, found, fix] = said(&checks, "daemon's files");
    assert_eq!(state, "warning");
    assert!(found.contains("has a limit of 300 descriptors") && fix.contains("LimitNOFILE"), "{found}; {fix}");
    assert_eq!(status, Some(0), "a warning is no failure: {checks:#?}");
    // The doctor finds the configuration through the daemon's command line, if it may read that.
    let [state, _, found, _] = said(&checks, "huge pages");
    assert_eq!((state.as_str(), found.as_str()), ("ok", "the configuration uses none"), "{checks:#?}");
}

#[test]
fn a_daemon_whose_configuration_has_a_relative_path() {
    let relative = |program: &Path| {
        let mut command = Command::new("sh");
        let script = r#"program=$1 file=$3; shift 3; cd "${file%/*}"; exec "$program" --config "${file##*/}" "$@""#;
        command.args(["-c", script, "sh"]).arg(program);
        command
    };
    let daemon = Daemon::start_as("[pool]\nbytes_max = \"64MiB\"\n", relative);
    let (_, checks) = doctor(&mut daemon.cli(&[]));
    let [state, _, found, _] = said(&checks, "configuration");
    assert!(state == "ok" && Path::new(found).is_absolute(), "{state} {found}");
}

#[test]
fn a_program_with_few_descriptors() {
    if skip_without("prlimit") {
        return;
    }
    let daemon = Daemon::start("");
    let cli = daemon.cli(&[]);
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=100:100").arg(cli.get_program()).args(cli.get_args());
    let (_, checks) = doctor(&mut limited);
    let [state, _, found, fix] = said(&checks, "open files");
    assert_eq!(state, "warning");
    assert!(found.contains("100 descriptors") && fix.contains("ulimit -n"), "{found}; {fix}");
}

#[test]
fn a_socket_of_another_user() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let programs = Programs::copy(&["tensorlendd", "tensorlend"]);
    let owned = |_: &Path| as_user(OWNER, &programs.path("tensorlendd"));
    let daemon = Daemon::start_as("mode = \"user\"\n", owned);
    let as_them = |uid| {
        let mut command = as_user(uid, &programs.path("tensorlend"));
        command.arg("--socket").arg(daemon.socket());
        doctor(&mut command)
    };
    let (status, checks) = as_them(STRANGER);
    let [state, _, found, fix] = said(&checks, "socket");
    assert_eq!((status, state.as_str()), (Some(3), "failure"));
    assert!(found.contains(&format!("is user {OWNER}'s, mode 600: user {STRANGER} may not connect")), "{found}");
    assert!(fix.contains("system mode"), "{fix}");
    let (status, checks) = as_them(OWNER);
    assert_eq!((status, said(&checks, "socket")[0].as_str()), (Some(0), "ok"), "{checks:#?}");
}

#[test]
fn a_device_that_the_daemon_lends() {
    on_machine("a_device_that_the_daemon_lends", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        let (status, checks) = doctor(&mut daemon.cli(&[]));
        let (own, lent) = (said(&checks, "CUDA"), said(&checks, "daemon's CUDA"));
        assert!(own[0] == "ok" && own[2].contains("1 device") && own[2].contains("stand-in"), "{own:?}");
        assert!(lent[0] == "ok" && lent[2].contains("of 1 device"), "{lent:?}");
        assert_eq!(status, Some(0), "{checks:#?}");
    });
}

#[test]
fn a_device_that_the_daemon_does_not_lend() {
    on_machine("a_device_that_the_daemon_does_not_lend", |machine| {
        let daemon = machine.daemon("");
        let (_, checks) = doctor(&mut daemon.cli(&[]));
        let [state, _, found, fix] = said(&checks, "daemon's CUDA");
        assert_eq!(state, "warning");
        assert!(found.contains("lends none") && fix.contains("[cuda] devices"), "{found}; {fix}");
    });
}

/// A file with the driver's name that is not a library.
#[test]
fn a_driver_that_cannot_be_loaded() {
    let folder = folder_with(None);
    let daemon = Daemon::start("");
    let mut cli = daemon.cli(&[]);
    let (status, checks) = doctor(surround(&mut cli, folder.path()));
    let [state, _, found, _] = said(&checks, "CUDA");
    assert_eq!((status, state.as_str()), (Some(0), "ok"), "no GPU is no trouble: {found}");
}

#[test]
fn tensors_on_a_device_are_shown() {
    on_machine("tensors_on_a_device_are_shown", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        let mut owner = placed(&daemon.socket(), "cuda");
        owner.ok("put weights 8192 1");
        owner.ok("hold weights");
        let shown = |args: &[&str]| {
            let done = run(&mut daemon.cli(args));
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        let trace = shown(&["trace", "weights", "--count", "1", "--json"]);
        let event: Value = serde_json::from_str(&trace).unwrap();
        assert_eq!((&event["event"], &event["nbytes"]), (&"published".into(), &8192.into()), "{event}");
        assert_eq!(event["producer"]["pid"], owner.pid());
        let held = shown(&["ls", "--held-by", &owner.pid().to_string(), "--larger", "8KiB"]);
        assert_eq!(held, "", "8192 bytes are not more than so many");
        assert!(shown(&["ls", "--held-by", &owner.pid().to_string()]).contains("weights"));
        assert!(shown(&["top", "--once"]).contains("device"));
        let segments = shown(&["top", "--once", "--tab", "segments"]);
        assert!(segments.contains("device 0") && segments.contains("slots unknown"), "{segments}");
        assert!(shown(&["top", "--once", "--tab", "leases"]).contains("weights"));
    });
}
