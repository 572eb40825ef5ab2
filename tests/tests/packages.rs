//! The Debian package in a disposable system: installed, upgraded, removed, purged.

use std::path::Path;
use std::process::Command;
use tensorlend_tests::manager::{SERVICE, SOCKET, skip_without_systemd, workspace};
use tensorlend_tests::system::{INSIDE, System};
use tensorlend_tests::{Agent, binary, eventually, run, skip, skip_without};

const USER: u32 = 64_012;
const CONTROL: &str = "/run/tensorlend/tensorlend.sock";

/// Builds a package of the built programs with a version; `None` if cargo-deb is missing.
fn package(which: &[&str], version: &str, out: &Path) -> Option<()> {
    // Tests in several processes share one folder. Closing this file's descriptor releases the lock.
    let one_at_once = std::fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages.lock")).unwrap();
    one_at_once.lock().unwrap();
    let programs = binary("tensorlendd");
    let mut command = Command::new(workspace("scripts/deb"));
    command.args(which).args(["--debug", "--version", version, "--out"]).arg(out);
    let made = run(command.arg("--programs").arg(programs.parent().unwrap()));
    if made.status.code() == Some(3) {
        skip("cargo-deb is not installed (cargo install cargo-deb --locked --no-default-features)");
        return None;
    }
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(())
}

fn connected(system: &System) -> Agent {
    let mut agent = system.agent_as(USER);
    agent.ok(&format!("connect {CONTROL}"));
    agent
}

fn daemon(system: &System) -> u32 {
    system.ok("systemctl", &["show", "--value", "--property", "MainPID", SERVICE]).parse().unwrap()
}

fn install(system: &System, name: &str, version: &str) -> String {
    let architecture = system.ok("dpkg", &["--print-architecture"]);
    system.ok("dpkg", &["--install", &format!("{INSIDE}/{name}_{version}_{architecture}.deb")])
}

/// Returns a disposable system, if one can be created.
fn a_system() -> Option<System> {
    if skip_without_systemd() || skip_without("dpkg-deb") || skip_without("deb-systemd-helper") {
        return None;
    }
    System::start().map_err(|why| skip(&format!("no system of its own here: {why}"))).ok()
}

#[test]
fn a_package_is_installed_upgraded_and_removed() {
    let Some(system) = a_system() else { return };
    if package(&[], "1.0.0-1", &system.share()).and_then(|()| package(&[], "1.0.1-1", &system.share())).is_none() {
        return;
    }
    let mut copy = Command::new("install");
    assert!(run(copy.arg("--mode=0755").arg(binary("tensorlend-agent")).arg(system.share())).status.success());
    let before = system.named("tensorlend");

    install(&system, "tensorlend", "1.0.0-1");
    assert_eq!(system.ok("systemctl", &["is-enabled", SOCKET]), "enabled");
    assert_eq!(system.ok("systemctl", &["is-active", SOCKET]), "active");
    for page in
        ["man1/tensorlend.1.gz", "man1/tensorlend-put.1.gz", "man5/tensorlendd.toml.5.gz", "man8/tensorlendd.8.gz"]
    {
        assert!(system.has(&format!("/usr/share/man/{page}")), "{page}");
    }
    // The first client starts the daemon, which runs as its own user.
    let mut producer = connected(&system);
    let first = daemon(&system);
    assert_eq!(system.ok("stat", &["--format=%U", &format!("/proc/{first}")]), "tensorlend");
    let kept = producer.ok("put kept 30000000 1");
    producer.exit();
    let mut holder = connected(&system);
    holder.ok("hold kept");
    let own = holder.ok("put own 100000 2");

    // The new version takes over the old one's memory, and clients stay connected.
    install(&system, "tensorlend", "1.0.1-1");
    let second = daemon(&system);
    assert!(second != 0 && second != first);
    assert_eq!(holder.ok("held kept"), kept.split_whitespace().last().unwrap());
    assert!(connected(&system).ok("sum kept").ends_with(&kept) && connected(&system).ok("sum own").ends_with(&own));
    holder.ok("put own 100000 3");

    // The dashboard is off until an administrator has written its token, which only root can read.
    let web = "tensorlend-web.service";
    assert_eq!(system.ok("sh", &["-c", &format!("systemctl is-active {web} || true")]), "inactive");
    let token = "a-token-that-is-long-enough";
    system.ok("sh", &["-c", &format!("umask 077; echo {token} >/etc/tensorlend/web.token; systemctl start {web}")]);
    let get = |authorization: &str| {
        let request = format!(
            "GET /metrics HTTP/1.1\\r\\nHost: 127.0.0.1:9470\\r\\n{authorization}Connection: close\\r\\n\\r\\n"
        );
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/9470 && printf '{request}' >&3 && cat <&3");
        String::from_utf8_lossy(&run(system.command("bash").args(["-c", &script])).stdout).into_owned()
    };
    eventually("a dashboard that demands its token", || get("").starts_with("HTTP/1.1 401 "));
    eventually("metrics", || get(&format!("Authorization: Bearer {token}\\r\\n")).contains("\ntensorlend_up 1\n"));
    let pid = system.ok("systemctl", &["show", "--value", "--property", "MainPID", web]);
    assert_eq!(system.ok("stat", &["--format=%U", &format!("/proc/{pid}")]), "tensorlend-web");

    // The new version rejects the configuration; the old daemon keeps running, with its memory.
    let configuration = "/etc/tensorlend/tensorlendd.toml";
    let write = |text: &str| system.ok("sh", &["-c", &format!("echo '{text}' >>{configuration}")]);
    write("[nonsense]");
    install(&system, "tensorlend", "1.0.1-1");
    assert_eq!(daemon(&system), second);
    assert!(connected(&system).ok("sum kept").ends_with(&kept));
    // The upgrade does not overwrite the administrator's file.
    assert!(system.ok("cat", &[configuration]).contains("[nonsense]"));

    system.ok("dpkg", &["--remove", "tensorlend"]);
    eventually("the end of the daemon", || daemon(&system) == 0);
    assert!(!system.has(CONTROL) && !system.has("/usr/bin/tensorlendd") && system.has(configuration));
    assert!(get("").is_empty(), "the dashboard has stopped");
    system.ok("rm", &["/etc/tensorlend/web.token"]);
    assert!(system.agent_as(USER).ask(&format!("connect {CONTROL}")).is_err(), "nobody listens");
    assert_eq!(holder.ok("held kept"), kept.split_whitespace().last().unwrap(), "who holds memory keeps it");

    system.ok("dpkg", &["--purge", "tensorlend"]);
    assert_eq!(system.named("tensorlend"), before);
    assert!(system.ok("getent", &["passwd", "tensorlend"]).contains("tensorlend daemon"), "its user stays");
    holder.exit();
}

/// The gateway runs as its own user and is an ordinary client of the daemon; runners belong to users.
#[test]
fn gateway_and_runner_are_packages_of_their_own() {
    const GATEWAY: &str = "tensorlend-gateway.service";
    let Some(system) = a_system() else { return };
    let share = system.share();
    let made = [&[][..], &["--gateway"], &["--runner"]].map(|which| package(which, "1.0.0-1", &share));
    if made.iter().any(Option::is_none) {
        return;
    }
    let before = system.named("tensorlend");
    for name in ["tensorlend", "tensorlend-gateway", "tensorlend-runner"] {
        install(&system, name, "1.0.0-1");
    }
    let active = || run(system.command("systemctl").args(["is-active", "--quiet", GATEWAY])).status.success();
    assert!(!active(), "nobody has said yet what may leave the machine");
    assert!(system.ok("tensorlend-runner", &["--version"]).starts_with("tensorlend-runner "));
    assert!(system.has("/usr/lib/systemd/user/tensorlend-runner.service"));

    system.ok("sh", &["-c", "echo 'node = \"here\"' >>/etc/tensorlend/gateway.toml"]);
    system.ok("systemctl", &["start", GATEWAY]);
    let pid = || system.ok("systemctl", &["show", "--value", "--property", "MainPID", GATEWAY]);
    let first = pid();
    assert_eq!(system.ok("stat", &["--format=%U", &format!("/proc/{first}")]), "tensorlend-gateway");
    // The gateway's user exists in the system while it does not run.
    system.ok("systemctl", &["stop", GATEWAY]);
    system.ok("id", &["tensorlend-gateway"]);
    system.ok("systemctl", &["start", GATEWAY]);
    let first = pid();
    // The gateway has connected to the daemon, which its first client started.
    let said = system.ok("journalctl", &["--no-pager", "--output=json", "--unit", SERVICE]);
    assert!(said.contains("\"tensorlend-gateway\""), "{said}");
    // The upgrade keeps the administrator's file, and restarts a running gateway.
    install(&system, "tensorlend-gateway", "1.0.0-1");
    assert!(active() && pid() != first);
    assert!(system.ok("cat", &["/etc/tensorlend/gateway.toml"]).contains("\"here\""));

    for name in ["tensorlend-gateway", "tensorlend-runner", "tensorlend"] {
        system.ok("dpkg", &["--purge", name]);
        assert!(!active());
    }
    assert_eq!(system.named("tensorlend"), before);
}
