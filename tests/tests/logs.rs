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
    eventually("the client's end in the log", || daemon.log().matches(" left namespace ").count() > 1);
    let log = daemon.log();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let events: Vec<Value> = lines.collect();
    let find = |message: &str| {
        let found = events.iter().rfind(|event| event["message"].as_str().is_some_and(|it| it.contains(message)));
        found.unwrap_or_else(|| panic!("{message} in\n{log}"))
    };
    let uid = rustix::process::getuid().as_raw();
    for (message, level) in [("joined namespace", "INFO"), ("left namespace", "INFO")] {
        let event = find(message);
        assert_eq!(event["level"], level);
        assert_eq!(event["namespace"], format!("uid:{uid}"));
        assert_eq!(event["uid"], uid);
        assert!(event["client"].as_u64().is_some_and(|client| client > 0), "{event}");
        assert!(event["pid"].as_u64().is_some_and(|pid| pid > 0), "{event}");
        assert!(event["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
    }
    assert_eq!(find("joined namespace")["label"], "agent");
}

#[test]
fn a_log_in_text_is_the_default_where_no_journal_is() {
    let daemon = Daemon::start("");
    let _agent = daemon.agent();
    let log = daemon.log();
    let joined = log.lines().find(|line| line.contains("label=\"agent\"")).expect("it is told");
    // The sentence alone names the client.
    let pid = joined.split("pid=").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    let (uid, text) = (rustix::process::getuid().as_raw(), joined.split(" INFO ").nth(1).unwrap());
    let rest = format!(" (pid {pid}, uid {uid}, tensorlend-agen, agent) joined namespace uid:{uid} namespace=");
    assert!(text.starts_with("client ") && text.contains(&rest), "{joined}");
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
    let joined = journal.entry("client 1 (");
    let field = |name: &str| joined.get(name).unwrap_or_else(|| panic!("{name} in {joined:?}")).as_str();
    assert_eq!(field("TENSORLEND_NAMESPACE"), "lab");
    assert_eq!(field("TENSORLEND_UID"), STRANGER.to_string());
    assert_eq!(field("TENSORLEND_LABEL"), "agent");
    assert_eq!(field("TENSORLEND_CLIENT"), "1");
    assert!(field("TENSORLEND_PID").parse::<u32>().is_ok_and(|pid| pid > 0));
    assert_eq!(field("PRIORITY"), "6");
    agent.exit();
    assert_eq!(journal.entry("client 1 (")["TENSORLEND_CLIENT"], "1");

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

/// A journal that does not read stops neither clients nor the end of the daemon.
#[test]
fn a_journal_that_does_not_read_stops_nobody() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    // Of each kind of line, the daemon writes 200 at once. A journal's socket has room for some ten entries.
    const CLIENTS: usize = 150;
    let manager = Manager::start(Scope::System, "[Service]\nStandardError=journal");
    manager.configure("[namespace.lab]\nwriters = [\"root\"]\n");
    let journal = Journal::open(&manager);
    manager.ok(&["start", SERVICE]);
    let mut agent = manager.agent();
    for _ in 0..CLIENTS {
        agent.ok(&format!("connect {} lab", Scope::System.socket()));
    }
    // The journal reads again, and finds all entries.
    let mut joined = 0;
    while joined < CLIENTS {
        joined += usize::from(journal.entry("client ")["MESSAGE"].contains("joined namespace lab"));
    }
    for _ in 0..CLIENTS / 2 {
        agent.ok(&format!("connect {} lab", Scope::System.socket()));
    }
    manager.ok(&["stop", SERVICE]);
    assert_eq!(manager.property(SERVICE, "Result"), "success");
}

/// The log names the client of a refusal and the reason. A client that repeats a refused request hides no lines of others.
#[test]
fn the_first_refusals_of_a_client_are_in_the_log() {
    let daemon = Daemon::start("");
    let join = |label| tensorlend::Client::builder().socket(daemon.socket()).label(label).connect().unwrap();
    let (client, other) = (join("greedy"), join("modest"));
    for _ in 0..10 {
        client.create(tensorlend::DType::U8, [1u64 << 50]).unwrap_err();
    }
    other.create(tensorlend::DType::U8, [1u64 << 50]).unwrap_err();
    let lines = |label: &str| {
        let who = format!("{label}) of namespace");
        let log = daemon.log();
        let of = |line: &&str| line.contains("refused client ") && line.contains(&who);
        log.lines().filter(of).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the other's refusal in the log", || !lines("modest").is_empty());
    let greedy = lines("greedy");
    assert_eq!(greedy.len(), 3, "{greedy:#?}");
    assert!(greedy[0].contains(" INFO refused client ") && greedy[0].contains("reason=\"limit\""), "{}", greedy[0]);
    assert!(greedy[2].contains("at the level debug"), "{}", greedy[2]);
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
    let written = log.lines().filter(|line| line.contains("disconnected a client (") && !is_count(line)).count();
    let counted = log.lines().filter(is_count).filter(|line| line.contains("disconnected a client ("));
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
