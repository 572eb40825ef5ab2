//! Machine-readable forms of the daemon's log: JSON lines, and entries of systemd's journal.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;
use std::process::Command;
use tensorlend_os::packet;
use tensorlend_tests::journal::Journal;
use tensorlend_tests::manager::{Manager, SERVICE, Scope, skip_without_systemd};
use tensorlend_tests::{Daemon, binary, eventually, run, skip_without, skip_without_root};

const STRANGER: u32 = 64_012;

#[test]
fn a_log_in_json_has_a_field_for_each_value() {
    let daemon = Daemon::start_as("", |program| {
        let mut command = Command::new(program);
        command.env("TENSORLEND_LOG_FORMAT", "json");
        command
    });
    daemon.agent().exit();
    eventually("the client's end in the log", || daemon.log().matches("client ended").count() > 1);
    let log = daemon.log();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let events: Vec<Value> = lines.collect();
    let find = |message: &str| {
        let found = events.iter().rfind(|event| event["message"].as_str().is_some_and(|it| it.starts_with(message)));
        found.unwrap_or_else(|| panic!("{message} in\n{log}"))
    };
    let uid = rustix::process::getuid().as_raw();
    for (message, level) in [("client joined", "INFO"), ("client ended", "INFO")] {
        let event = find(message);
        assert_eq!(event["level"], level);
        assert_eq!(event["namespace"], format!("uid:{uid}"));
        assert_eq!(event["uid"], uid);
        assert!(event["client"].as_u64().is_some_and(|client| client > 0), "{event}");
        assert!(event["pid"].as_u64().is_some_and(|pid| pid > 0), "{event}");
        assert!(event["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    }
    assert_eq!(find("client joined")["label"], "agent");
}

#[test]
fn a_log_in_text_is_the_default_where_no_journal_is() {
    let daemon = Daemon::start("");
    let _agent = daemon.agent();
    let log = daemon.log();
    let joined = log.lines().find(|line| line.contains("label=\"agent\"")).expect("it is told");
    assert!(joined.contains(" INFO client joined namespace="), "{joined}");
    let wrong = run(Command::new(binary("tensorlendd")).args(["--log-format", "xml"]));
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn systemds_journal_gets_fields_behind_the_units_walls() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    let manager = Manager::start(Scope::System, "[Service]\nStandardError=journal");
    manager.configure("[namespace.lab]\nwriters = [\"root\", \"64012\"]\n");
    let journal = Journal::open(&manager);
    manager.ok(&["start", SERVICE]);
    let begins = journal.entry("tensorlendd ");
    assert_eq!((begins["PRIORITY"].as_str(), begins["SYSLOG_IDENTIFIER"].as_str()), ("6", "tensorlendd"));

    let mut agent = manager.agent_as(STRANGER);
    agent.ok(&format!("connect {} lab", Scope::System.socket()));
    let joined = journal.entry("client joined");
    let field = |name: &str| joined.get(name).unwrap_or_else(|| panic!("{name} in {joined:?}")).as_str();
    assert_eq!(field("TENSORLEND_NAMESPACE"), "lab");
    assert_eq!(field("TENSORLEND_UID"), STRANGER.to_string());
    assert_eq!(field("TENSORLEND_LABEL"), "agent");
    assert_eq!(field("TENSORLEND_CLIENT"), "1");
    assert!(field("TENSORLEND_PID").parse::<u32>().is_ok_and(|pid| pid > 0));
    assert_eq!(field("PRIORITY"), "6");
    agent.exit();
    assert_eq!(journal.entry("client ended")["TENSORLEND_CLIENT"], "1");

    manager.configure("[pool]\nspare_segments = 65\n");
    manager.signal("HUP");
    let refused = journal.entry("the configuration was not reloaded");
    assert_eq!(refused["PRIORITY"], "3");
    manager.configure("[pool]\nspare_segments = 2\nhuge_pages = \"advise\"\n");
    manager.ok(&["reload", SERVICE]);
    let put_off = journal.entry("pool.huge_pages: Advise instead of Never");
    assert_eq!((put_off["PRIORITY"].as_str(), put_off["TENSORLEND_OPTION"].as_str()), ("4", "pool.huge_pages"));
    assert_eq!(journal.entry("pool.spare_segments: 2")["PRIORITY"], "6");
}

/// A client that violates the protocol continuously neither fills the disk nor hides log lines of other clients.
#[test]
fn a_flood_of_violations_is_counted_and_not_written() {
    const VIOLATIONS: usize = 3000;
    let mut daemon = Daemon::start("");
    let address = SocketAddrUnix::new(daemon.socket()).unwrap();
    for _ in 0..VIOLATIONS {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &address).unwrap();
        packet::send(&socket, b"nonsense", &[], SendFlags::empty()).unwrap();
        // The daemon disconnects the client after this response.
        let _ = packet::receive(&socket, RecvFlags::empty());
    }
    let _agent = daemon.agent();
    eventually("the one who came after them", || daemon.log().contains("label=\"agent\""));
    daemon.stop();
    let log = daemon.log();
    let is_count = |line: &&str| line.contains("lines of this kind were left out");
    let written = log.lines().filter(|line| line.contains("disconnected: ") && !is_count(line)).count();
    let counted = log.lines().filter(is_count).filter(|line| line.contains("disconnected: "));
    let number = |line: &str| line.split("left_out=").nth(1)?.split_whitespace().next()?.parse::<usize>().ok();
    let counted: usize = counted.map(|line| number(line).expect("it says how many")).sum();
    assert!((100..VIOLATIONS / 2).contains(&written), "{written} lines");
    assert_eq!(written + counted, VIOLATIONS);
}

/// `mode = "auto"` cannot know whether other clients of root are the daemon's equals.
#[test]
fn a_daemon_of_root_says_what_its_mode_means() {
    if skip_without_root() {
        return;
    }
    let says = |config: &str| Daemon::start(config).log().contains("runs as root in system mode");
    let is_system = Daemon::start("").log().contains("runs in System mode");
    assert_eq!(says(""), is_system);
    assert!(!says("mode = \"system\"\n") && !says("mode = \"user\"\n"));
}
