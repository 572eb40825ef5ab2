//! The Debian package, in a system that is thrown away: installed, upgraded, removed, purged.

use std::path::Path;
use std::process::Command;
use tensorlend_tests::manager::{SERVICE, SOCKET, skip_without_systemd, workspace};
use tensorlend_tests::system::{INSIDE, System};
use tensorlend_tests::{Agent, binary, eventually, run, skip, skip_without};

const USER: u32 = 64_012;
const CONTROL: &str = "/run/tensorlend/tensorlend.sock";

/// Makes the package of the programs that were built, under a version; `None` where cargo-deb is missing.
fn package(version: &str, out: &Path) -> Option<()> {
    let programs = binary("tensorlendd");
    let mut command = Command::new(workspace("scripts/deb"));
    command.args(["--debug", "--version", version, "--out"]).arg(out);
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

fn install(system: &System, version: &str) -> String {
    let architecture = system.ok("dpkg", &["--print-architecture"]);
    system.ok("dpkg", &["--install", &format!("{INSIDE}/tensorlend_{version}_{architecture}.deb")])
}

#[test]
fn a_package_is_installed_upgraded_and_removed() {
    if skip_without_systemd() || skip_without("dpkg-deb") || skip_without("deb-systemd-helper") {
        return;
    }
    let system = match System::start() {
        Ok(system) => system,
        Err(why) => return skip(&format!("no system of its own here: {why}")),
    };
    if package("1.0.0-1", &system.share()).and_then(|()| package("1.0.1-1", &system.share())).is_none() {
        return;
    }
    let mut copy = Command::new("install");
    assert!(run(copy.arg("--mode=0755").arg(binary("tensorlend-agent")).arg(system.share())).status.success());
    let before = system.named("tensorlend");

    install(&system, "1.0.0-1");
    assert_eq!(system.ok("systemctl", &["is-enabled", SOCKET]), "enabled");
    assert_eq!(system.ok("systemctl", &["is-active", SOCKET]), "active");
    for page in
        ["man1/tensorlend.1.gz", "man1/tensorlend-put.1.gz", "man5/tensorlendd.toml.5.gz", "man8/tensorlendd.8.gz"]
    {
        assert!(system.has(&format!("/usr/share/man/{page}")), "{page}");
    }
    // The first client starts the daemon, which is a user of its own.
    let mut producer = connected(&system);
    let first = daemon(&system);
    assert_eq!(system.ok("stat", &["--format=%U", &format!("/proc/{first}")]), "tensorlend");
    let kept = producer.ok("put kept 30000000 1");
    producer.exit();
    let mut holder = connected(&system);
    holder.ok("hold kept");
    let own = holder.ok("put own 100000 2");

    // A new version takes over what the old one lends, and clients stay.
    install(&system, "1.0.1-1");
    let second = daemon(&system);
    assert!(second != 0 && second != first);
    assert_eq!(holder.ok("held kept"), kept.split_whitespace().last().unwrap());
    assert!(connected(&system).ok("sum kept").ends_with(&kept) && connected(&system).ok("sum own").ends_with(&own));
    holder.ok("put own 100000 3");

    // A configuration that the new one could not read does not cost what the old one lends.
    let configuration = "/etc/tensorlend/tensorlendd.toml";
    let write = |text: &str| system.ok("sh", &["-c", &format!("echo '{text}' >>{configuration}")]);
    write("[nonsense]");
    install(&system, "1.0.1-1");
    assert_eq!(daemon(&system), second);
    assert!(connected(&system).ok("sum kept").ends_with(&kept));
    // And what the administrator wrote is not overwritten.
    assert!(system.ok("cat", &[configuration]).contains("[nonsense]"));

    system.ok("dpkg", &["--remove", "tensorlend"]);
    eventually("the end of the daemon", || daemon(&system) == 0);
    assert!(!system.has(CONTROL) && !system.has("/usr/bin/tensorlendd") && system.has(configuration));
    assert!(system.agent_as(USER).ask(&format!("connect {CONTROL}")).is_err(), "nobody listens");
    assert_eq!(holder.ok("held kept"), kept.split_whitespace().last().unwrap(), "who holds memory keeps it");

    system.ok("dpkg", &["--purge", "tensorlend"]);
    assert_eq!(system.named("tensorlend"), before);
    assert!(system.ok("getent", &["passwd", "tensorlend"]).contains("tensorlend broker"), "its user stays");
    holder.exit();
}
