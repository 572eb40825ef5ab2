//! Faults that an operator must see: a full disk for spilling, a full fd store, the losses of a restart, limits of sessions
//! and descriptors, and refusals. Ordinary events cause no warning and no refusal.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tensorlend::{Client, DType, LimitKind};
use tensorlend_layout::wire::{Inspect, Inspected, PROTOCOL_OLDEST, PROTOCOL_VERSION, Refusal, Reply, Request, View};
use tensorlend_tests::hand::{ask, dial, hello};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::stored::Machine;
use tensorlend_tests::{Daemon, binary, eventually, run, skip_without, skip_without_root};

const MB: u64 = 1 << 20;

/// Runs a command of the tool. Returns whether it succeeded, and its output.
fn tool(socket: &Path, arguments: &[&str]) -> (bool, String) {
    let done = run(Command::new(binary("tensorlend")).arg("--socket").arg(socket).args(arguments));
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

fn json(socket: &Path, command: &str) -> Value {
    let done = run(Command::new(binary("tensorlend")).arg("--socket").arg(socket).args([command, "--json"]));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// Returns the state and the finding of a check of `tensorlend doctor`.
fn check(socket: &Path, name: &str) -> (String, String) {
    let report = json(socket, "doctor");
    let checks = report["checks"].as_array().expect("a list of checks");
    let check = checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{name} in {report}"));
    let text = |key: &str| check[key].as_str().expect("a text").to_owned();
    (text("state"), text("found"))
}

fn warnings(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).collect()
}

/// Publishes a tensor from a process that then exits.
fn leave(daemon: &Daemon, name: &str) -> Result<String, String> {
    let mut agent = daemon.agent();
    let published = agent.ask(&format!("put {name} {} 1", 7 * MB));
    agent.exit();
    published
}

#[test]
fn a_full_disk_for_spilling_is_reported_until_it_has_room() {
    if skip_without_root() || skip_without("unshare") || skip_without("nsenter") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().display().to_string();
    let config = format!(
        "mode = \"user\"\n[pool]\nbytes_max = \"32MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
         [spill]\ndirectory = \"{disk}\"\nbytes_max = \"1GiB\"\n"
    );
    // The disk has less room than a segment needs.
    let daemon = Daemon::start_as(&config, |program| {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o size=4m tmpfs \"$0\" && exec \"$@\"";
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, &disk]).arg(program);
        command
    });
    assert_eq!(check(&daemon.socket(), "spilling").0, "ok");
    let error = (0..32).find_map(|number| leave(&daemon, &format!("t{number}")).err()).expect("the pool is full");
    for part in ["pool.bytes_max", "cannot spill to disk", &disk, "No space left on device", "free there"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(leave(&daemon, "another").is_err());
    let log = daemon.log();
    let lines: Vec<&str> = warnings(&log).into_iter().filter(|line| line.contains("cannot spill")).collect();
    assert_eq!(lines.len(), 1, "one line, although each request tries again:\n{log}");
    assert!(lines[0].contains(&disk) && lines[0].contains("No space left on device"), "{}", lines[0]);
    let stat = json(&daemon.socket(), "stat");
    assert!(stat["spill_failures"].as_u64() > Some(1), "{stat}");
    assert!(stat["health"]["spill"]["reason"].as_str().is_some_and(|why| why.contains(&disk)), "{stat}");
    let (state, found) = check(&daemon.socket(), "spilling");
    assert!(state == "failure" && found.contains(&disk) && found.contains("No space left"), "{state}: {found}");

    let pid = daemon.pid().to_string();
    let grown = ["--mount", "--target", &pid, "mount", "-o", "remount,size=256m", &disk];
    assert!(run(Command::new("nsenter").args(grown)).status.success());
    leave(&daemon, "last").unwrap();
    assert!(daemon.log().contains("spilling works again"), "{}", daemon.log());
    assert_eq!(json(&daemon.socket(), "stat")["health"]["spill"], Value::Null);
    assert_eq!(check(&daemon.socket(), "spilling").0, "ok");
}

/// A service manager closes each descriptor beyond its limit, and does not report this.
#[test]
fn the_limit_of_a_service_managers_store_is_a_warning() {
    let limit = ("FDSTORE".to_owned(), "16".to_owned());
    let service = Service::start_with("mode = \"user\"\n", binary("tensorlendd"), Some(limit));
    assert_eq!(check(&service.socket(), "descriptor store").0, "ok");
    for number in 0..12u8 {
        let client = service.client();
        client.put(&format!("t{number}"), &vec![number; 1 << 20]).unwrap();
    }
    assert!(service.log().contains("it has room for 16 descriptors only"), "{}", service.log());
    assert!(service.kept().len() <= 16, "{:?}", service.kept());
    let (state, found) = check(&service.socket(), "descriptor store");
    assert!(state == "warning" && found.contains("room for 16"), "{state}: {found}");
    for number in 0..12 {
        service.client().delete(&format!("t{number}")).unwrap();
    }
    eventually("room in the store", || check(&service.socket(), "descriptor store").0 == "ok");
}

#[test]
fn a_full_fd_store_is_a_warning_and_the_next_daemon_names_the_losses() {
    if skip_without("prlimit") {
        return;
    }
    let mut machine = Machine::configured("user");
    let tensorlendd = machine.program();
    let mut store = Command::new("prlimit");
    store.arg("--nofile=56:56").arg(tensorlendd.get_program());
    machine.start_store_as(store);
    machine.start_daemon();
    let socket = machine.path("socket");
    assert_eq!(check(&socket, "last restart").0, "ok");
    // Each process that ends leaves a segment of its own.
    for number in 0..12 {
        let mut agent = machine.agent();
        agent.ok(&format!("put t{number} {MB} {number}"));
        agent.exit();
    }
    let (state, found) = check(&socket, "descriptor store");
    assert!(state == "warning" && found.contains("room for 24"), "{state}: {found}");
    machine.restart_daemon();
    let client = machine.client();
    let left = client.list("*").unwrap().len() as u64;
    assert!(left < 12, "the store has no room for all of them");
    let loss = client.stat().unwrap().health.expect("the daemon reports it").lost.expect("something is lost");
    assert!(loss.names > 0 && loss.bytes >= loss.names * MB && !loss.why.is_empty(), "{loss:?}");
    let lines = machine.log();
    let logged = lines.lines().filter_map(|line| line.split("names lost at the restart: ").nth(1));
    let logged: u64 = logged.filter_map(|rest| rest.split(';').next()?.parse::<u64>().ok()).sum();
    assert_eq!(logged, loss.names, "the log and the record agree");
    let (works, said) = tool(&socket, &["stat"]);
    assert!(works && said.contains(&format!("lost {} name", loss.names)), "{said}");
    let (state, found) = check(&socket, "last restart");
    assert!(state == "warning" && found.contains(&format!("lost {} name", loss.names)), "{state}: {found}");
    // The next start has lost nothing.
    for info in client.list("*").unwrap() {
        client.delete(&info.name).unwrap();
    }
    drop(client);
    eventually("room in the store", || check(&socket, "descriptor store").0 != "warning");
    machine.restart_daemon();
    assert_eq!(machine.client().stat().unwrap().health.unwrap().lost, None);
}

/// The commands for inspection, which must work for a user without a session.
fn inspects(socket: &Path) {
    for (arguments, shows) in [
        (&["ping"][..], "tensorlendd "),
        (&["stat"], "requests"),
        (&["top", "--once"], "pool"),
        (&["doctor"], "responds, but this user gets no session"),
    ] {
        let (works, said) = tool(socket, arguments);
        assert!(said.contains(shows), "{arguments:?}: {said}");
        // The doctor reports the limit as a failure.
        assert_eq!(works, arguments != ["doctor"], "{arguments:?}: {said}");
    }
}

#[test]
fn at_the_limit_of_sessions_a_user_can_still_inspect_the_daemon() {
    let daemon = Daemon::start("mode = \"user\"\n[uid]\nsessions_max = 3\n");
    let agents: Vec<_> = (0..3).map(|_| daemon.agent()).collect();
    let refused = Client::builder().socket(daemon.socket()).connect().map(drop).unwrap_err();
    assert_eq!(refused.limit_kind(), Some(LimitKind::Sessions), "{refused}");
    for _ in 0..5 {
        inspects(&daemon.socket());
    }
    assert_eq!(json(&daemon.socket(), "stat")["uids"][0]["sessions_max"], 3);
    // Such a connection gets metrics, and nothing else.
    let view = |view| Request::Inspect(Inspect { protocol_min: PROTOCOL_OLDEST, protocol_max: PROTOCOL_VERSION, view });
    let stranger = dial(&daemon.socket()).unwrap();
    for _ in 0..100 {
        let (reply, descriptors) = ask(&stranger, &view(View::Health), &[]).unwrap();
        assert!(matches!(reply, Reply::Inspected(Inspected::Health { .. })) && descriptors.is_empty(), "{reply:?}");
    }
    let (reply, _) = ask(&stranger, &hello(None), &[]).unwrap();
    assert!(matches!(reply, Reply::Refused(Refusal::Limit { kind: LimitKind::Sessions, .. })), "{reply:?}");
    let stranger = dial(&daemon.socket()).unwrap();
    let (reply, _) = ask(&stranger, &view(View::Namespaces { after: String::new() }), &[]).unwrap();
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    // A user cannot keep such connections, and cannot have more of them than sessions.
    let open: Vec<_> = (0..20).map(|_| dial(&daemon.socket()).unwrap()).collect();
    eventually("the end of connections beyond the limit", || {
        open.iter().all(|socket| ask(socket, &view(View::Health), &[]).is_err())
    });
    inspects(&daemon.socket());
    drop(agents);
}

#[test]
fn a_lack_of_descriptors_is_no_lack_of_memory() {
    if skip_without("prlimit") {
        return;
    }
    let daemon = Daemon::start_as("mode = \"user\"\n", |program| {
        let mut command = Command::new("prlimit");
        command.arg("--nofile=64:64").arg(program);
        command
    });
    let mut clients = Vec::new();
    let refused = loop {
        assert!(clients.len() < 64, "each client takes descriptors");
        match Client::builder().socket(daemon.socket()).connect() {
            Ok(client) => match client.create(DType::U8, &[MB]).and_then(|draft| draft.publish("x").map(drop)) {
                Ok(()) => clients.push(client),
                Err(error) => break error,
            },
            Err(error) => break error,
        }
    };
    assert_eq!(refused.limit_kind(), Some(LimitKind::Descriptors), "{refused}");
    assert!(refused.to_string().contains("LimitNOFILE"), "{refused}");
    assert!(!refused.to_string().contains("memory left"), "{refused}");
    let extra: Vec<_> = (0..40).filter_map(|_| Client::builder().socket(daemon.socket()).connect().ok()).collect();
    inspects(&daemon.socket());
    drop((clients, extra));
    let again =
        || Client::builder().socket(daemon.socket()).connect().and_then(|it| it.put("again", &[1u8; 8]).map(drop));
    eventually("descriptors of sessions that have ended", || again().is_ok());
}

#[test]
fn what_succeeds_is_no_refusal_and_a_refused_put_is_one() {
    let daemon = Daemon::start("mode = \"user\"\n[pool]\nbytes_max = \"16MiB\"\nsegment_bytes = \"8MiB\"\n");
    let client = daemon.client();
    for number in 0..50u64 {
        let mut writer = daemon.agent();
        writer.ok(&format!("put pair {} {number}", MB / 4));
        daemon.client().get("pair").unwrap();
        writer.exit();
    }
    let (reader, mut words) = (daemon.client(), vec![0u8; 6 << 20]);
    for number in 0..20u8 {
        words.fill(number);
        client.put("large", &words).unwrap();
        assert_eq!(reader.get("large").unwrap().bytes()[0], number);
    }
    assert_eq!(client.stat().unwrap().refusals, tensorlend::Refusals::default(), "{}", daemon.log());
    let _held = reader.get("large").unwrap();
    for refused in 1..=3 {
        let error = client.create(DType::U8, &[14 * MB]).unwrap_err();
        assert!(error.is_limit(), "{error}");
        let counted = client.stat().unwrap().refusals;
        assert_eq!((counted.limit, counted.total()), (refused, refused), "{}", daemon.log());
        assert_eq!(daemon.log().matches(" refused client ").count() as u64, refused, "{}", daemon.log());
    }
}

#[test]
fn an_ordinary_restart_warns_of_nothing() {
    for has_store in [true, false] {
        let mut machine = if has_store { Machine::start("user") } else { Machine::with_own_store("user") };
        if !has_store {
            machine.start_daemon();
        }
        let mut agents: Vec<_> = (0..8).map(|_| machine.agent()).collect();
        for (number, agent) in agents.iter_mut().enumerate() {
            agent.ok(&format!("put t{number} {MB} {number}"));
        }
        let before = machine.log().len();
        machine.restart_daemon();
        for (number, agent) in agents.iter_mut().enumerate() {
            for other in 0..8 {
                agent.ok(&format!("sum t{other}"));
            }
            agent.ok(&format!("put t{number} {MB} {}", number + 1));
        }
        let log = machine.log();
        let since = warnings(&log[before..]);
        // A test that runs as root uses user mode on purpose.
        let since: Vec<_> = since.into_iter().filter(|line| !line.contains("runs as root")).collect();
        assert!(since.is_empty(), "with a store of its own: {}\n{}", !has_store, since.join("\n"));
        assert_eq!(machine.client().stat().unwrap().refusals.total(), 0, "{log}");
    }
}
