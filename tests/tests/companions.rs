//! The units of the dashboard and of the backups: checked by systemd's tools, and run under a real manager.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use tensorlend_tests::manager::{
    Manager, SERVICE, SOCKET, Scope, copy_tool_unit, copy_units, skip_without_systemd, workspace,
};
use tensorlend_tests::{binary, eventually, run, skip_without};

/// Maximum exposure level of `systemd-analyze security`, in tenths: 0 is none, 100 everything.
const EXPOSURE_MAX: &str = "20";
const TOKEN: &str = "a-token-that-is-long-enough";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn units(scope: Scope) -> [&'static str; 4] {
    match scope {
        Scope::System => [
            "tensorlend-web.service",
            "tensorlend-restore@.service",
            "tensorlend-backup@.service",
            "tensorlend-backup@.timer",
        ],
        Scope::User => [
            "tensorlend-web.service",
            "tensorlend-restore.service",
            "tensorlend-backup.service",
            "tensorlend-backup.timer",
        ],
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if skip_without("systemd-analyze") {
        return;
    }
    for (scope, flag) in [(Scope::System, "--system"), (Scope::User, "--user")] {
        let folder = tempfile::tempdir().unwrap();
        copy_units(scope, folder.path(), binary("tensorlendd").to_str().unwrap());
        let program = binary("tensorlend");
        let names =
            units(scope).map(|unit| copy_tool_unit(scope, folder.path(), unit, "daemon", program.to_str().unwrap()));
        // The user of the dashboard exists only where the package is installed.
        let web = folder.path().join(&names[0]);
        let packaged = std::fs::read_to_string(&web).unwrap().replace("=tensorlend-web\n", "=daemon\n");
        std::fs::write(&web, &packaged).unwrap();
        let verify = || {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", "--recursive-errors=no", flag]).env("XDG_RUNTIME_DIR", folder.path());
            let done = run(command.args(names.iter().map(|name| folder.path().join(name))));
            let said = text(&done.stderr);
            (
                done.status.success(),
                said.lines().filter(|line| line.contains("tensorlend")).map(str::to_owned).collect(),
            )
        };
        assert_eq!(verify(), (true, Vec::<String>::new()), "{scope:?}");
        // The check detects a mistake in a unit.
        std::fs::write(&web, packaged.replace("Restart=always", "Restart=allways")).unwrap();
        assert!(verify().1.iter().any(|line| line.contains("allways")), "{scope:?}");
    }
}

#[test]
fn the_systems_units_are_exposed_to_little() {
    if skip_without("systemd-analyze") {
        return;
    }
    for unit in units(Scope::System).into_iter().filter(|unit| unit.ends_with(".service")) {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSURE_MAX}")]);
        let done = run(command.arg(workspace("packaging").join(unit)));
        let said = text(&done.stdout);
        assert!(done.status.success() && said.contains("Overall exposure level"), "{said}{}", text(&done.stderr));
    }
}

/// Requests a page of the dashboard; returns the status line and the rest of the response.
fn get(address: &str, path: &str, token: Option<&str>) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let authorization = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n{authorization}Connection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (status, rest) = response.split_once("\r\n").expect("a status line");
    (status.to_owned(), rest.to_owned())
}

/// The dashboard takes its token from systemd, and demands it on loopback, too. `tests/packages.rs` runs the unit of the
/// system, since credentials of another user need a service manager as process 1.
#[test]
fn the_dashboard_is_a_service_with_a_token() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "");
    let unit = manager.add_tool_unit("tensorlend-web.service", "");
    let inside = manager.root().join("run/test");
    let drop_in = inside.join("units").join(format!("{unit}.d"));
    std::fs::create_dir(&drop_in).unwrap();
    // As the manual describes, but with any free port, and without a journal.
    let options = "[Service]\nEnvironment=\"TENSORLEND_WEB_OPTIONS=--listen 127.0.0.1:0 --interval 0.1\"\n\
                   StandardOutput=append:/run/test/web.log\nStandardError=append:/run/test/web.log\n";
    std::fs::write(drop_in.join("test.conf"), options).unwrap();
    manager.ok(&["daemon-reload"]);
    manager.ok(&["start", SOCKET]);
    // Without the file the service does not start, and systemd does not try again.
    assert!(!manager.systemctl(&["start", &unit]).status.success());
    eventually("a unit that failed", || manager.property(&unit, "ActiveState") == "failed");
    assert_eq!(manager.property(&unit, "NRestarts"), "0");

    let script = format!(
        "cd /run/test && umask 077 && mkdir -p .config/tensorlend && echo {TOKEN} >.config/tensorlend/web.token"
    );
    assert!(run(manager.command("sh").args(["-c", &script])).status.success());
    manager.ok(&["start", &unit]);
    let mut address = String::new();
    eventually("a dashboard that listens", || {
        let log = std::fs::read_to_string(inside.join("web.log")).unwrap_or_default();
        assert_ne!(manager.property(&unit, "ActiveState"), "failed", "{log}");
        let line = log.lines().find_map(|line| line.strip_prefix("http://")?.strip_suffix('/'));
        address = line.unwrap_or_default().to_owned();
        !address.is_empty()
    });
    for wrong in [None, Some("another-token-of-the-same-sort")] {
        assert_eq!(get(&address, "/metrics", wrong).0, "HTTP/1.1 401 Unauthorized");
    }
    let is_up = || {
        let (status, metrics) = get(&address, "/metrics", Some(TOKEN));
        status == "HTTP/1.1 200 OK" && metrics.lines().any(|line| line == "tensorlend_up 1")
    };
    eventually("metrics of a daemon that was started by this client", is_up);
    // The dashboard survives the daemon.
    let before = manager.daemon();
    manager.signal("KILL");
    manager.restarted(before);
    eventually("metrics of the next daemon", is_up);
    assert_eq!(manager.property(&unit, "NRestarts"), "0");
}

/// A backup saves what the next boot restores. It never replaces a file whose names have not been restored.
#[test]
fn a_backup_saves_what_the_next_boot_restores() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    for (scope, user) in [(Scope::System, "daemon"), (Scope::User, "")] {
        let uid = match scope {
            Scope::System => text(&run(Command::new("id").args(["-u", user])).stdout).trim().parse().unwrap(),
            Scope::User => scope.uid(),
        };
        let manager = Manager::start(scope, "");
        let [_, restore, backup, timer] = units(scope).map(|unit| manager.add_tool_unit(unit, user));
        manager.ok(&["start", SOCKET, &timer]);
        assert_eq!(manager.property(&timer, "ActiveState"), "active");
        let next = manager.property(&timer, "NextElapseUSecRealtime");
        assert!(!next.is_empty() && next != "n/a", "the timer has a next time: {next}");
        // A user without names: no file, and no failure.
        manager.ok(&["start", &backup]);
        let inside = manager.to_restore(user);
        let file = manager.root().join(inside.strip_prefix("/").unwrap()).join("all.safetensors");
        assert!(!file.exists(), "{scope:?}");
        let agent = || {
            let mut agent = manager.agent_as(uid);
            agent.ok(&format!("connect {}", scope.socket()));
            agent
        };
        let sum = agent().ok("put a 3000000 7");
        manager.ok(&["start", &backup]);
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
        assert_eq!(mode & 0o077, 0, "{scope:?}: the file is the user's alone");

        // A machine starts, and its first backup is due before anything else ran.
        let stop_all = || manager.systemctl(&["stop", &restore, SERVICE, SOCKET]);
        stop_all();
        manager.ok(&["start", &backup]);
        assert!(agent().ok("sum a").ends_with(&sum), "{scope:?}");

        // A file that cannot be restored is not replaced.
        stop_all();
        std::fs::write(&file, "nonsense").unwrap();
        assert!(!manager.systemctl(&["start", &backup]).status.success(), "{scope:?}");
        agent().ok("put b 1000 1");
        assert!(!manager.systemctl(&["start", &backup]).status.success(), "{scope:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nonsense");
    }
}
