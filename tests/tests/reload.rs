//! Reloading the configuration while clients are connected: by `systemctl reload`, and by SIGHUP alone.

use rustix::process::Signal;
use std::process::Command;
use tensorlend_tests::manager::{Manager, SERVICE, SOCKET, Scope, skip_without_systemd, workspace};
use tensorlend_tests::{Agent, Daemon, eventually, run, signal, skip, skip_without};

const LARGE: &str = "[pool]\nbytes_max = \"256MiB\"\nsegment_bytes = \"1MiB\"\n";
const SMALL: &str = "[pool]\nbytes_max = \"40MiB\"\nsegment_bytes = \"1MiB\"\n";

/// Returns the refusal of a tensor of 30 MB.
fn refusal(agent: &mut Agent) -> String {
    agent.ask("put too-much 30000000 1").expect_err("it is above the limit")
}

#[test]
fn a_reload_keeps_clients_and_changes_limits() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    let manager = Manager::start(Scope::System, "");
    manager.configure(LARGE);
    manager.ok(&["start", SOCKET, SERVICE]);
    let (mut producer, mut consumer) = (manager.connected(), manager.connected());
    let sums: Vec<_> = (0..2).map(|i| producer.ok(&format!("put x{i} 30000000 {i}"))).collect();
    consumer.ok("hold x0");
    producer.ok("stream s 8");
    consumer.ok("subscribe s");
    let mut number = 0;
    let mut exchange = |producer: &mut Agent, consumer: &mut Agent| {
        producer.ok(&format!("send s {number}"));
        assert_eq!(consumer.ok("receive s"), format!("{number} 0 {number}"));
        number += 1;
        assert_eq!(consumer.ok("held x0"), sums[0]);
        assert!(consumer.ok("sum x1").ends_with(&sums[1]));
        let sum = producer.ok(&format!("put small 5000 {number}"));
        assert!(consumer.ok("sum small").ends_with(&sum));
    };
    exchange(&mut producer, &mut consumer);
    let daemon = manager.daemon();

    // A limit below the present use: existing memory stays, and new requests are refused.
    manager.configure(SMALL);
    manager.ok(&["reload", SERVICE]);
    exchange(&mut producer, &mut consumer);
    let said = refusal(&mut producer);
    assert!(said.contains("pool.bytes_max"), "{said}");
    assert!(manager.property(SERVICE, "StatusText").ends_with("pool.bytes_max 40 MiB"));
    let mut newcomer = manager.connected();
    assert!(newcomer.ok("sum x0").ends_with(&sums[0]));
    assert!(manager.log().contains("pool.bytes_max: 40 MiB instead of 256 MiB"), "{}", manager.log());

    // The daemon names options that need a restart, and applies the others.
    manager.configure(&LARGE.replace("1MiB", "2MiB"));
    manager.ok(&["reload", SERVICE]);
    exchange(&mut producer, &mut consumer);
    producer.ok("put enough 30000000 1");
    let status = manager.property(SERVICE, "StatusText");
    assert!(status.ends_with("pool.bytes_max 256 MiB; a restart is needed for pool.segment_bytes"), "{status}");

    // Access rights of namespaces.
    let connect = format!("connect {} lab", Scope::System.socket());
    let refused = consumer.ask(&connect).expect_err("there is no such namespace");
    manager.configure(&format!("{LARGE}[namespace.lab]\nwriters = [\"root\"]\n"));
    manager.ok(&["reload", SERVICE]);
    assert_eq!(manager.agent().ok(&connect), "lab", "before: {refused}");
    exchange(&mut producer, &mut consumer);

    assert_eq!((manager.daemon(), manager.property(SERVICE, "NRestarts").as_str()), (daemon, "0"));
    assert_eq!(manager.property(SERVICE, "ActiveState"), "active");
    assert!(manager.ends().is_empty());
}

#[test]
fn a_broken_configuration_changes_nothing() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    let manager = Manager::start(Scope::System, "");
    manager.configure(SMALL);
    manager.ok(&["start", SOCKET, SERVICE]);
    let daemon = manager.daemon();
    let mut client = manager.connected();
    let sum = client.ok("put x 30000000 1");
    client.ok("hold x");
    let status = manager.property(SERVICE, "StatusText");
    for broken in ["[pool]\nbytes_max = \"256 buckets\"\n", "[pool\n", "[namespace.lab]\nreaders = []\n"] {
        manager.configure(&format!("{broken}\n"));
        // `--reload` rejects the file before the daemon reads it,
        assert!(!manager.systemctl(&["reload", SERVICE]).status.success(), "{broken}");
        assert_eq!(manager.property(SERVICE, "StatusText"), status);
        // and so does the daemon.
        manager.signal("HUP");
        eventually("a word about the broken file", || {
            manager
                .property(SERVICE, "StatusText")
                .contains("40 MiB; the configuration was not reloaded: the configuration")
        });
        assert!(refusal(&mut client).contains("pool.bytes_max"));
        assert_eq!(client.ok("held x"), sum);
        // The next valid configuration ends the error state.
        manager.configure(SMALL);
        manager.ok(&["reload", SERVICE]);
        assert_eq!(manager.property(SERVICE, "StatusText"), status);
    }
    let log = manager.log();
    assert_eq!(log.matches("the configuration was not reloaded, and stays as it is").count(), 3, "{log}");
    assert_eq!((manager.daemon(), manager.property(SERVICE, "ActiveState").as_str()), (daemon, "active"));
}

#[test]
fn systemd_can_reload_by_itself_where_it_knows_how() {
    if skip_without_systemd() {
        return;
    }
    let version = String::from_utf8(run(Command::new("systemctl").arg("--version")).stdout).expect("it prints text");
    let number = version.split_whitespace().nth(1).and_then(|number| number.parse::<u32>().ok());
    if number.is_none_or(|number| number < 253) {
        return skip(&format!("Type=notify-reload needs systemd 253, and this is {number:?}"));
    }
    let drop_in = std::fs::read_to_string(workspace("packaging/tensorlendd.service.d/notify-reload.conf"));
    let start = "[Service]\nExecStart=\nExecStart=/run/test/bin/tensorlendd --config /run/test/tensorlendd.toml";
    let manager = Manager::start(Scope::User, &format!("{}\n{start}", drop_in.expect("it is packaged")));
    manager.configure(LARGE);
    manager.ok(&["start", SERVICE]);
    let mut client = manager.connected();
    client.ok("put x 30000000 1");
    manager.configure(SMALL);
    manager.ok(&["reload", SERVICE]);
    assert!(refusal(&mut client).contains("pool.bytes_max"));
}

#[test]
fn a_stopped_daemon_leaves_clients_what_they_have_and_they_come_to_the_next() {
    if skip_without_systemd() {
        return;
    }
    for scope in [Scope::User, Scope::System] {
        let manager = Manager::start(scope, "");
        manager.ok(&["start", SOCKET, SERVICE]);
        let mut client = manager.connected();
        let sum = client.ok("put x 100000 1");
        client.ok("hold x");
        manager.ok(&["stop", SOCKET, SERVICE]);
        assert_eq!(manager.property(SERVICE, "Result"), "success");
        assert_eq!(client.ok("held x"), sum);
        // The client gets an error with a remedy.
        let said = client.ask("ping").expect_err("nobody is there");
        assert!(said.contains("daemon"), "{scope:?}: {said}");
        assert_eq!(client.ok("held x"), sum);
        manager.ok(&["start", SOCKET]);
        client.ok(&format!("connect {}", scope.socket()));
        let again = client.ok("put y 100000 2");
        assert!(manager.connected().ok("sum y").ends_with(&again));
        assert_eq!(client.ok("held x"), sum);
    }
}

/// Without a service manager, and several times in a row.
#[test]
fn a_hangup_is_no_end() {
    let mut daemon = Daemon::start(LARGE);
    let mut client = daemon.agent();
    let sum = client.ok("put x 30000000 1");
    client.ok("hold x");
    for round in 0..5 {
        let now = if round % 2 == 0 { SMALL } else { LARGE };
        daemon.configure(now);
        // This command ends when the daemon has read the configuration.
        let folder = daemon.socket();
        let file = folder.with_file_name("config.toml");
        let mut reload = Command::new(tensorlend_tests::binary("tensorlendd"));
        reload.arg("--config").arg(file).arg("--socket").arg(&folder);
        let done = run(reload.arg("--reload").arg(daemon.pid().to_string()));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // A new client, because the other may have returned memory that it can reuse.
        let mut newcomer = daemon.agent();
        if now == SMALL {
            assert!(refusal(&mut newcomer).contains("pool.bytes_max"), "{round}");
        } else {
            newcomer.ok("put more 30000000 1");
            newcomer.ok("delete more");
        }
        newcomer.exit();
        assert_eq!(client.ok("held x"), sum);
    }
    // The daemon survives any number of simultaneous signals.
    for _ in 0..100 {
        signal(daemon.pid(), Signal::HUP);
    }
    eventually("the last configuration", || daemon.log().lines().filter(|line| line.contains("reloaded")).count() > 5);
    assert!(daemon.is_running());
    assert!(daemon.stop().success());
}
