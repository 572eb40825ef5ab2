//! Tests of `tensorlend doctor` with a daemon and without one.

use std::process::Command;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use serde_json::{Value, json};

use crate::bench::{Bench, Done, Running, program};

/// The report's entries for one check, as (state, finding, remedy). Panics if there is none.
fn said<'a>(report: &'a Value, check: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let checks = report["checks"].as_array().unwrap();
    let of = checks.iter().filter(|it| it["check"] == check);
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let said: Vec<_> = of.map(|it| (text(&it["state"]), text(&it["found"]), text(&it["fix"]))).collect();
    assert!(!said.is_empty(), "nothing of {check}: {report:#}");
    said
}

fn run(command: &mut Command) -> Done {
    Running::start(command.env_remove("LD_LIBRARY_PATH")).done()
}

fn report(done: &Done) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {}{}", done.out, done.err))
}

#[test]
fn without_a_daemon_it_says_how_to_start_one() {
    let done = run(&mut program(&["--socket", "/nonexistent/socket", "doctor", "--json"]));
    let found = report(&done);
    let (state, what, fix) = said(&found, "socket")[0];
    assert_eq!((state, what), ("failure", "/nonexistent/socket: is not there"));
    assert!(fix.contains("tensorlendd --daemonize") && fix.contains("TENSORLEND_SOCKET"), "{fix}");
    for check in ["kernel", "memfd", "file leases", "memfd_noexec", "pidfd", "open files", "CUDA"] {
        assert_eq!(said(&found, check)[0].0, "ok", "{found:#}");
    }
    let text = run(&mut program(&["--socket", "/nonexistent/socket", "doctor"]));
    assert!(text.out.contains("FAILURE  socket") && text.out.contains("-> start the daemon"), "{}", text.out);
    let error: Value = serde_json::from_str(&done.err).unwrap();
    assert_eq!((&error["error"], &error["status"], done.status), (&json!("1 check failed"), &json!(3), 3));
    assert_eq!(text.fails(3), "1 check failed");
}

#[test]
fn each_place_is_named_and_what_is_wrong_with_it() {
    let bench = Bench::new();
    bench.write("file", "");
    let at = |path: &str| {
        let found = report(&bench.run(&["--socket", path, "doctor", "--json"]));
        let (state, what, _) = said(&found, "socket")[0];
        assert_eq!(state, "failure");
        what.to_owned()
    };
    assert!(at(bench.path("file").to_str().unwrap()).ends_with("file: is no socket"));
    // The socket of a daemon that has ended.
    let socket = bench.path("left");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let left = at(socket.to_str().unwrap());
    assert!(left.contains("no process listens"), "{left}");
    // The default place of the socket.
    std::fs::create_dir(bench.path("run")).unwrap();
    let default = |autostart: &str| {
        let mut command = program(&["doctor", "--json"]);
        report(&run(command.env("XDG_RUNTIME_DIR", bench.path("run")).env("TENSORLEND_AUTOSTART", autostart)))
    };
    let found = default("0");
    assert!(said(&found, "socket")[0].1.contains("run/tensorlend.sock: is not there"), "{found:#}");
    let found = default("");
    let (state, what, _) = said(&found, "socket")[0];
    assert!(state == "ok" && what.contains("the first client starts") && what.contains("tensorlendd"), "{found:#}");
}

#[test]
fn with_a_daemon_all_is_well() {
    let bench = Bench::with(|config| config.pool.bytes_max = Some(tensorlend_daemon::Bytes(64 << 20)));
    let done = run(&mut bench.command(&["doctor", "--json"]));
    let found = report(&done);
    let version = tensorlend::build();
    assert!(said(&found, "versions")[0].1.contains(&format!("daemon and client are {version}")), "{found:#}");
    assert!(said(&found, "daemon")[0].1.contains(&format!("process {}", std::process::id())), "{found:#}");
    assert!(said(&found, "memory")[0].1.contains("of 64.0 MiB at most"), "{found:#}");
    assert!(said(&found, "descriptor store")[0].1.contains("has no fd store"), "{found:#}");
    let failures = found["checks"].as_array().unwrap().iter().filter(|it| it["state"] == "failure").count();
    assert_eq!((failures, done.status, done.err.as_str()), (0, 0, ""), "{found:#}");
    let text = bench.ok(&["doctor"]);
    assert!(text.starts_with("ok       kernel"), "{text}");
}

#[test]
fn the_fd_store_of_the_configuration_is_found() {
    let bench = Bench::new();
    let store = bench.path("store.sock");
    bench.write("stored.toml", &format!("fd_store = {store:?}\n"));
    let check = || {
        let found = report(&bench.run(&["doctor", "--json", "--config", "stored.toml"]));
        let (state, what, fix) = said(&found, "descriptor store")[0];
        [state, what, fix].map(str::to_owned)
    };
    let [state, what, fix] = check();
    assert!(state == "warning" && what.contains("store.sock") && what.contains("does not run"), "{what}");
    assert!(fix.contains("tensorlendd --fd-store"), "{fix}");
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&store).unwrap()).unwrap();
    // A killed process leaves its socket's file.
    let [state, what, _] = check();
    assert!(state == "warning" && what.contains("does not run"), "{what}");
    listen(&listener, 1).unwrap();
    let [state, what, _] = check();
    assert!(state == "ok" && what.contains("runs") && what.contains("store.sock"), "{what}");
}

#[test]
fn a_full_pool_is_a_warning() {
    let bench = Bench::with(|config| config.pool.bytes_max = Some(tensorlend_daemon::Bytes(4 << 20)));
    let client = bench.client();
    client.put("most of it", &vec![0u8; 4 << 20]).unwrap();
    let found = report(&bench.run(&["doctor", "--json"]));
    let (state, what, fix) = said(&found, "pool")[0];
    assert_eq!(state, "warning");
    assert!(what.contains("4.0 MiB of 4.0 MiB") && fix.contains("tensorlend top"), "{what} {fix}");
}

#[test]
fn a_configuration_is_compared_with_the_machine() {
    let bench = Bench::new();
    bench.write("good.toml", "[pool]\nhuge_pages = \"never\"\n");
    let found = report(&bench.run(&["doctor", "--json", "--config", "good.toml"]));
    assert_eq!(said(&found, "huge pages")[0], ("ok", "the configuration uses none", ""));
    bench.write("bad.toml", "[pool]\nhuge = 1\n");
    let done = bench.run(&["doctor", "--json", "--config", "bad.toml"]);
    assert_eq!((said(&report(&done), "configuration")[0].0, done.status), ("failure", 1));
    // Without a configuration, `doctor` reports the machine's state and compares it with nothing.
    assert_eq!(said(&report(&bench.run(&["doctor", "--json"])), "huge pages")[0].0, "ok");
}
