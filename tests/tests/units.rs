//! The systemd units of `packaging/`: checked by systemd's tools, and run under a real manager.

use std::path::Path;
use std::process::Command;
use tensorlend_tests::manager::{
    Manager, SERVICE, SOCKET, Scope, copy_tool_unit, copy_units, skip_without_systemd, workspace,
};
use tensorlend_tests::{binary, eventually, run, skip_without};

/// Maximum exposure level of `systemd-analyze security`, in tenths: 0 is none, 100 everything.
const EXPOSURE_MAX: &str = "20";
const STRANGER: u32 = 64_011;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the lines about our units.
fn text_of_ours(said: &[u8]) -> Vec<String> {
    text(said).lines().filter(|line| line.contains("tensorlend")).map(str::to_owned).collect()
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    if skip_without("systemd-analyze") {
        return;
    }
    for (scope, flag) in [(Scope::System, "--system"), (Scope::User, "--user")] {
        let folder = tempfile::tempdir().unwrap();
        let verify = || {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", "--recursive-errors=no", flag]).env("XDG_RUNTIME_DIR", folder.path());
            let done = run(command.args([folder.path().join(SERVICE), folder.path().join(SOCKET)]));
            (done.status.success(), text(&done.stderr))
        };
        copy_units(scope, folder.path(), binary("tensorlendd").to_str().unwrap());
        let (clean, said) = verify();
        let said: Vec<&str> = said.lines().filter(|line| line.contains("tensorlend")).collect();
        assert!(clean && said.is_empty(), "{scope:?}: {said:#?}");
        // The check detects a mistake in a unit.
        let unit = folder.path().join(SERVICE);
        let wrong = std::fs::read_to_string(&unit).unwrap().replace("Restart=always", "Restart=allways");
        std::fs::write(&unit, wrong).unwrap();
        assert!(verify().1.contains("allways"), "{scope:?}");
    }
}

#[test]
fn the_systems_daemon_is_exposed_to_little() {
    if skip_without("systemd-analyze") {
        return;
    }
    let security = |unit: &Path| {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSURE_MAX}")]);
        run(command.arg(unit))
    };
    let ours = security(&workspace("packaging").join(SERVICE));
    assert!(ours.status.success(), "{}{}", text(&ours.stdout), text(&ours.stderr));
    assert!(text(&ours.stdout).contains("Overall exposure level"), "{}", text(&ours.stderr));
    // The check detects a unit without sandboxing.
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join(SERVICE);
    std::fs::write(&bare, "[Service]\nType=notify\nExecStart=/usr/bin/tensorlendd\n").unwrap();
    assert!(!security(&bare).status.success());
}

/// Units of a daemon's companions: a machine's gateway, and a user's runner.
#[test]
fn the_units_of_gateway_and_runner_are_right_and_open_little() {
    if skip_without("systemd-analyze") {
        return;
    }
    for (scope, name) in [(Scope::System, "tensorlend-gateway"), (Scope::User, "tensorlend-runner")] {
        let folder = tempfile::tempdir().unwrap();
        copy_units(scope, folder.path(), binary("tensorlendd").to_str().unwrap());
        let unit = folder.path().join(format!("{name}.service"));
        let packaged = std::fs::read_to_string(scope.packaging().join(format!("{name}.service"))).unwrap();
        let here = packaged.replace(&format!("/usr/bin/{name}"), binary(name).to_str().unwrap());
        assert_ne!(here, packaged);
        let verify = |text: &str| {
            std::fs::write(&unit, text).unwrap();
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", "--recursive-errors=no"]).env("XDG_RUNTIME_DIR", folder.path());
            let done = run(command.arg(if scope == Scope::User { "--user" } else { "--system" }).arg(&unit));
            let said = text_of_ours(&done.stderr);
            (done.status.success(), said)
        };
        assert_eq!(verify(&here), (true, vec![]));
        // The check detects a mistake in a unit.
        assert!(!verify(&here.replace("Restart=", "Restart=by-chance-")).1.is_empty());
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSURE_MAX}")]);
    let done = run(command.arg(workspace("packaging/tensorlend-gateway.service")));
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
}

/// The drop-in for CUDA opens access to the devices and to nothing else.
#[test]
fn the_drop_in_for_devices_is_right_and_opens_little() {
    if skip_without("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    copy_units(Scope::System, folder.path(), binary("tensorlendd").to_str().unwrap());
    let unit = folder.path().join(SERVICE);
    let analyze = |args: &[&str]| {
        let done = run(Command::new("systemd-analyze").args(args).arg(&unit));
        (done.status.success(), text(&done.stdout), text(&done.stderr))
    };
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let security = || analyze(&["security", "--offline=true", "--no-pager", &threshold]);
    let verify = || analyze(&["verify", "--man=no", "--recursive-errors=no", "--system"]);
    let sees = |exposure: &str| {
        let line = exposure.lines().find(|line| line.contains(" PrivateDevices=")).expect("it is counted");
        line.contains('\u{2717}')
    };
    assert!(!sees(&security().1), "no device without it");

    let drop_in = folder.path().join(format!("{SERVICE}.d"));
    std::fs::create_dir(&drop_in).unwrap();
    let packaged = workspace("packaging/tensorlendd.service.d/cuda.conf");
    std::fs::copy(packaged, drop_in.join("cuda.conf")).unwrap();
    let (clean, _, said) = verify();
    let said: Vec<&str> = said.lines().filter(|line| line.contains("tensorlend") || line.contains("cuda")).collect();
    assert!(clean && said.is_empty(), "{said:#?}");
    let (little, exposure, said) = security();
    assert!(little && sees(&exposure), "{exposure}{said}");
    assert!(exposure.contains("char-nvidia*:rw"), "{exposure}");
    // The check detects a mistake in a unit.
    let wrong = std::fs::read_to_string(drop_in.join("cuda.conf")).unwrap().replace("=closed", "=shut");
    std::fs::write(drop_in.join("cuda.conf"), wrong).unwrap();
    assert!(verify().2.contains("shut"));
}

#[test]
fn the_packaged_configuration_is_the_default_with_every_option_commented() {
    let folder = tempfile::tempdir().unwrap();
    let check = |file: &Path| {
        let mut command = Command::new(binary("tensorlendd"));
        command.arg("--check-config").arg("--socket").arg(folder.path().join("s")).arg("--config").arg(file);
        run(&mut command)
    };
    let packaged = text(&run(Command::new(binary("tensorlendd")).arg("--print-config")).stdout);
    let path = folder.path().join("packaged.toml");
    std::fs::write(&path, &packaged).unwrap();
    let checked = check(&path);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    // No option is set.
    let set = packaged.lines().find(|line| !line.is_empty() && !line.starts_with(['#', '[']));
    assert_eq!(set, None);
    // Every line is a valid option once its comment sign is removed.
    let open = folder.path().join("open.toml");
    let is_option = |line: &str| {
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    let lines = packaged.lines().map(|line| match line.strip_prefix('#') {
        Some(option) if is_option(option) || option.starts_with("[namespace.") => option,
        _ => line,
    });
    // The users and groups of an example need not exist here.
    let lines = lines.map(|line| match line.split_once(" = [") {
        Some((key @ ("readers" | "writers"), _)) => format!("{key} = [\"0\"]\n"),
        // The directory need not exist here either.
        _ => format!("{line}\n").replace("/var/lib/tensorlend", "/tmp"),
    });
    std::fs::write(&open, lines.collect::<String>()).unwrap();
    let checked = check(&open);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}

#[test]
fn a_client_starts_the_daemon_by_its_socket() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "");
    manager.ok(&["start", SOCKET]);
    assert_eq!(manager.property(SERVICE, "ActiveState"), "inactive");
    let mut producer = manager.connected();
    let sum = producer.ok("put x 100000 1");
    let mut consumer = manager.connected();
    assert!(consumer.ok("sum x").ends_with(&sum));
    // A client is served only after the daemon has reported that it is ready.
    assert_eq!(manager.property(SERVICE, "ActiveState"), "active");
    assert_eq!(manager.property(SERVICE, "NRestarts"), "0");
}

#[test]
fn it_is_started_once_it_is_ready() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "");
    manager.ok(&["start", SERVICE]);
    // The daemon sends this text with its ready notification.
    let status = manager.property(SERVICE, "StatusText");
    assert!(status.starts_with("tensorlendd ") && status.contains("User mode"), "{status}");
    let mut producer = manager.connected();
    let sum = producer.ok("put x 5000000 1");
    producer.ok("hold x");

    // The daemon stops at once although clients are connected; they keep their leases.
    let before = manager.daemon();
    manager.ok(&["stop", SERVICE]);
    assert_eq!(manager.property(SERVICE, "Result"), "success");
    assert_eq!(producer.ok("held x"), sum);
    // The socket still exists, and starts another daemon for a reconnecting client; but systemd has closed the stored
    // descriptors.
    eventually("another daemon", || manager.property(SERVICE, "ActiveState") == "active" && manager.daemon() != before);
    assert!(producer.ask("put y 1000 1").is_err());
    let mut next = manager.connected();
    next.ok("put y 1000 1");
    manager.ok(&["stop", SOCKET]);
    eventually("the daemon's end with its socket", || manager.property(SERVICE, "ActiveState") == "inactive");
    assert!(manager.agent().ask(&format!("connect {}", Scope::User.socket())).is_err());
}

#[test]
fn a_program_that_never_says_that_it_is_ready_is_not_started() {
    if skip_without_systemd() {
        return;
    }
    let manager =
        Manager::start(Scope::User, "[Service]\nExecStart=\nExecStart=/bin/sleep 1000\nTimeoutStartSec=1s\nRestart=no");
    assert!(!manager.systemctl(&["start", SERVICE]).status.success());
    assert_eq!(manager.property(SERVICE, "Result"), "timeout");
}

#[test]
fn a_daemon_that_hangs_is_started_again() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "[Service]\nWatchdogSec=6s");
    manager.ok(&["start", SERVICE]);
    let first = manager.daemon();
    let mut client = manager.connected();
    let sum = client.ok("put x 100000 1");
    client.ok("hold x");
    // A sleeping daemon still notifies the watchdog.
    let heard = || manager.property(SERVICE, "WatchdogTimestampMonotonic");
    for _ in 0..2 {
        let before = heard();
        eventually("another word to the watchdog", || heard() != before);
    }
    assert_eq!((manager.daemon(), manager.property(SERVICE, "NRestarts").as_str()), (first, "0"));

    manager.signal("STOP");
    manager.restarted(first);
    assert_eq!(manager.property(SERVICE, "NRestarts"), "1");
    assert_eq!(manager.ends(), ["watchdog"]);
    assert_eq!(client.ok("held x"), sum);
    let mut next = manager.connected();
    next.ok("put y 1000 1");
}

#[test]
fn a_killed_daemon_is_started_again() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "");
    manager.ok(&["start", SERVICE]);
    let mut client = manager.connected();
    let sum = client.ok("put x 100000 1");
    client.ok("hold x");
    let mut daemon = manager.daemon();
    // The daemon is restarted after any external signal, even SIGTERM.
    for (times, signal) in ["KILL", "ABRT", "TERM"].iter().enumerate() {
        manager.signal(signal);
        daemon = manager.restarted(daemon);
        assert_eq!(manager.property(SERVICE, "NRestarts"), (times + 1).to_string());
        assert_eq!(client.ok("held x"), sum);
        let mut next = manager.connected();
        let sum = next.ok("put y 1000 1");
        assert!(next.ok("sum y").ends_with(&sum));
    }
    assert_eq!(manager.ends(), ["signal", "signal", "success"]);
}

/// Publishes a tensor and disconnects: while no daemon runs, only the manager's descriptors keep the tensor.
fn orphan(manager: &Manager, socket: &str) -> String {
    let mut producer = manager.agent();
    producer.ok(&format!("connect {socket}"));
    let sum = producer.ok("put orphan 3000000 1");
    producer.exit();
    sum
}

fn sum_of_orphan(manager: &Manager, socket: &str) -> String {
    let mut consumer = manager.agent();
    consumer.ok(&format!("connect {socket}"));
    consumer.ok("sum orphan")
}

const CONFIGURED: &str =
    "[Service]\nExecStart=\nExecStart=/run/test/bin/tensorlendd --config /run/test/tensorlendd.toml\n";

/// Starts a daemon with an empty configuration file. Returns it with its socket, and the checksum of an orphan.
fn configured_with_orphan() -> Option<(Manager, String, String)> {
    if skip_without_systemd() {
        return None;
    }
    let manager = Manager::start(Scope::User, CONFIGURED);
    manager.configure("");
    manager.ok(&["start", SOCKET, SERVICE]);
    let socket = Scope::User.socket();
    let sum = orphan(&manager, &socket);
    Some((manager, socket, sum))
}

/// Starts the daemon with an invalid configuration. The manager retries, preserved memory stays, and the daemon serves
/// as soon as the configuration is valid.
fn outlives_a_wrong_configuration(manager: &Manager, socket: &str, sum: &str, right: &str, wrong: &str) {
    let number = |name: &str| manager.property(SERVICE, name).parse::<u32>().unwrap();
    manager.configure(wrong);
    assert!(!manager.systemctl(&["restart", SERVICE]).status.success(), "{wrong}");
    let before = number("NRestarts");
    eventually("another try", || number("NRestarts") > before + 1);
    assert_ne!(manager.property(SERVICE, "ActiveState"), "failed", "{wrong}");
    assert!(manager.kept() > 0, "{wrong}: what was kept is gone");
    manager.configure(right);
    eventually("a daemon with a right configuration", || manager.property(SERVICE, "ActiveState") == "active");
    assert!(sum_of_orphan(manager, socket).ends_with(sum), "{wrong}");
}

/// No invalid configuration loses memory that the previous daemon lent.
#[test]
fn a_wrong_configuration_costs_nothing_that_is_kept() {
    let Some((manager, socket, sum)) = configured_with_orphan() else { return };
    for wrong in ["[pool", "[pool]\nbytes_maximum = 3\n", "[uid]\nsessions_max = 0\n", "[pool]\nnuma = \"node:999\"\n"]
    {
        outlives_a_wrong_configuration(&manager, &socket, &sum, "", wrong);
    }
    let file = manager.root().join("run/test/tensorlendd.toml");
    let away = file.with_extension("away");
    std::fs::rename(&file, &away).unwrap();
    assert!(!manager.systemctl(&["restart", SERVICE]).status.success());
    std::fs::rename(&away, &file).unwrap();
    eventually("a daemon with its file", || manager.property(SERVICE, "ActiveState") == "active");
    assert!(sum_of_orphan(&manager, &socket).ends_with(&sum));
    // With these the daemon runs.
    let device = "GPU-00000000-0000-0000-0000-000000000001";
    for (odd, said) in [
        (format!("[cuda]\ndevices = [\"{device}\"]\n"), "no device memory is lent: "),
        ("[pool]\nhuge_pages = \"1G\"\nsegment_bytes = \"1GiB\"\n".to_owned(), "runs in User mode"),
        ("mode = \"system\"\n".to_owned(), "runs in System mode"),
    ] {
        manager.configure(&odd);
        manager.ok(&["restart", SERVICE]);
        assert!(sum_of_orphan(&manager, &socket).ends_with(&sum), "{odd}");
        assert!(manager.log().contains(said), "{odd}: {}", manager.log());
        let mut producer = manager.connected();
        producer.ok("put odd 100000 1");
        producer.ok("delete odd");
    }
    manager.configure("");
    manager.ok(&["restart", SERVICE]);
    assert!(sum_of_orphan(&manager, &socket).ends_with(&sum));
}

/// An option in a drop-in that the daemon does not know.
#[test]
fn a_wrong_option_costs_nothing_that_is_kept() {
    let Some((manager, socket, sum)) = configured_with_orphan() else { return };
    let drop_in = manager.root().join("run/test/units/tensorlendd.service.d/wrong.conf");
    std::fs::write(&drop_in, CONFIGURED.replace("--config", "--configuration")).unwrap();
    manager.ok(&["daemon-reload"]);
    assert!(!manager.systemctl(&["restart", SERVICE]).status.success());
    // It waits before it ends, as with a wrong configuration.
    eventually("a word about the option", || manager.property(SERVICE, "StatusText").contains("--configuration"));
    assert_ne!(manager.property(SERVICE, "ActiveState"), "failed");
    assert!(manager.kept() > 0, "what was kept is gone");
    std::fs::remove_file(&drop_in).unwrap();
    manager.ok(&["daemon-reload"]);
    eventually("a daemon with right options", || manager.property(SERVICE, "ActiveState") == "active");
    assert!(sum_of_orphan(&manager, &socket).ends_with(&sum));
}

/// If an optional feature is unavailable, the daemon runs without it and reports it.
#[test]
fn a_daemon_runs_without_what_is_missing_and_says_so() {
    let Some((manager, socket, sum)) = configured_with_orphan() else { return };
    // The test is root, and the daemon is not.
    std::fs::create_dir(manager.root().join("run/test/roots")).unwrap();
    let spill = |directory: &str| format!("[spill]\ndirectory = \"{directory}\"\n");
    for (wrong, said) in [
        (spill("/run/test/no-such-directory"), "spill.directory: no file can be made in /run/test/no-such-directory"),
        (spill("/run/test/roots"), "spill.directory: no file can be made in /run/test/roots"),
        ("[namespace.lab]\nwriters = [\"no-such-user\"]\n".to_owned(), "there is no user \"no-such-user\""),
    ] {
        manager.configure(&wrong);
        manager.ok(&["restart", SERVICE]);
        assert!(sum_of_orphan(&manager, &socket).ends_with(&sum), "{wrong}");
        let status = manager.property(SERVICE, "StatusText");
        assert!(status.contains(said), "{status}");
        assert!(manager.log().contains(said), "{}", manager.log());
        // The fault grants no other user access.
        let entered = manager.agent().ask(&format!("connect {socket} lab"));
        assert!(entered.is_err(), "{entered:?}");
    }
    // `--check-config` reports it beforehand, run as the daemon's user.
    for (wrong, fails) in [(spill("/run/test/roots"), true), (spill("/run/test"), false)] {
        manager.configure(&wrong);
        let mut check = manager.command("/run/test/bin/tensorlendd");
        check.args(["--check-config", "--config", "/run/test/tensorlendd.toml"]);
        let done = run(&mut check);
        assert_eq!(!done.status.success(), fails, "{wrong}: {}", text(&done.stderr));
    }
}

/// A daemon that creates its own socket is restarted until it can, and removes nothing else at that path.
#[test]
fn a_socket_that_cannot_be_made_costs_nothing_that_is_kept() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, CONFIGURED);
    // Without the socket unit.
    let units = manager.root().join("run/test/units");
    let unit = std::fs::read_to_string(units.join(SERVICE)).unwrap();
    std::fs::write(units.join(SERVICE), unit.replace("=tensorlendd.socket", "=")).unwrap();
    std::fs::remove_file(units.join(SOCKET)).unwrap();
    manager.ok(&["daemon-reload"]);
    let root = manager.root().join("run/test");
    std::fs::create_dir(root.join("roots")).unwrap();
    std::fs::write(root.join("file"), "precious").unwrap();
    let (socket, right) = ("/run/test/s", "socket = \"/run/test/s\"\n");
    manager.configure(right);
    manager.ok(&["start", SERVICE]);
    let sum = orphan(&manager, socket);
    let long = format!("/run/test/{}", "long".repeat(30));
    for wrong in ["/run/test/no-such-folder/s", "/run/test/roots/s", "/run/test/file", &long] {
        let wrong = format!("socket = \"{wrong}\"\n");
        manager.configure(&wrong);
        let mut check = manager.command("/run/test/bin/tensorlendd");
        check.args(["--check-config", "--config", "/run/test/tensorlendd.toml"]);
        assert!(!run(&mut check).status.success(), "{wrong}");
        outlives_a_wrong_configuration(&manager, socket, &sum, right, &wrong);
    }
    assert_eq!(std::fs::read(root.join("file")).unwrap(), b"precious");
    assert!(manager.log().contains("there is an ordinary file"), "{}", manager.log());
}

/// At a machine's start the daemon starts before its gateway: the gateway's user has its rights in a daemon that never
/// saw the gateway run.
#[test]
fn the_gateways_user_is_known_before_the_gateway_runs() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    let unit = std::fs::read_to_string(workspace("packaging/tensorlend-gateway.service")).unwrap();
    assert!(unit.contains("\nUser=tensorlend-gateway\n") && !unit.contains("\nDynamicUser="), "{unit}");
    let manager = Manager::start(Scope::System, "");
    manager.configure("[namespace.lab]\nwriters = [\"tensorlend-gateway\", \"not-yet\"]\n");
    manager.ok(&["start", SOCKET]);
    manager.ok(&["start", SERVICE]);
    let connect = format!("connect {} lab", Scope::System.socket());
    let id = run(manager.command("id").args(["-u", "tensorlend-gateway"]));
    let gateway: u32 = text(&id.stdout).trim().parse().expect("the package's user");
    assert_eq!(manager.agent_as(gateway).ok(&connect), "lab");
    assert!(manager.agent_as(STRANGER).ask(&connect).is_err(), "an entry that nobody has grants nothing");
    let status = manager.property(SERVICE, "StatusText");
    assert!(status.contains("there is no user \"not-yet\""), "{status}");
    // A user who is created later gets the configured rights after a reload.
    let passwd = manager.root().join("etc/passwd");
    let mut users = std::fs::read_to_string(&passwd).unwrap();
    users.extend([format!("not-yet:x:{STRANGER}:{STRANGER}::/:/bin/false\n")]);
    std::fs::write(&passwd, users).unwrap();
    manager.ok(&["reload", SERVICE]);
    assert_eq!(manager.agent_as(STRANGER).ok(&connect), "lab");
    let status = manager.property(SERVICE, "StatusText");
    assert!(!status.contains("not-yet"), "{status}");
}

/// Systemd sorts stored descriptors within the daemon's limit, and needs room for both the old and the new numbers;
/// their names are in one environment variable.
#[test]
fn a_restart_has_room_for_all_that_may_be_kept() {
    const VARIABLE_BYTES_MAX: u64 = 128 << 10;
    const NAME_BYTES: u64 = 30;
    if skip_without_systemd() {
        return;
    }
    for scope in [Scope::System, Scope::User] {
        let manager = Manager::start(scope, "");
        let number = |name| manager.property(SERVICE, name).parse::<u64>().unwrap();
        let kept = number("FileDescriptorStoreMax");
        assert!(kept > 0 && number("LimitNOFILESoft") >= 2 * kept + 1024, "{scope:?}: {kept}");
        assert!(kept * (NAME_BYTES + 1) + 1024 <= VARIABLE_BYTES_MAX, "{scope:?}: {kept}");
        assert_eq!(manager.kept(), 0);
    }
}

#[test]
fn the_systems_daemon_works_behind_its_walls() {
    if skip_without_systemd() || skip_without("systemd-sysusers") {
        return;
    }
    let manager = Manager::start(Scope::System, "");
    // Makes the daemon call mbind, and look up users and groups.
    let lab = format!("[namespace.lab]\nwriters = [\"{STRANGER}\"]\nreaders = [\"root\", \"@tensorlend\"]\n");
    manager.configure(&format!("[pool]\nnuma = \"interleave\"\n{lab}"));
    manager.ok(&["start", SOCKET]);
    let connect = format!("connect {}", Scope::System.socket());
    let mut root = manager.connected();
    // Memory of every kind: sheets, segments, a tensor's own segment, and segments made outside the loop.
    let mut sums = Vec::new();
    for (i, bytes) in [1, 5000, 3_000_000, 100_000_000].iter().enumerate() {
        sums.push(root.ok(&format!("put x{i} {bytes} {i}")));
    }
    let mut reader = manager.connected();
    for (i, sum) in sums.iter().enumerate() {
        assert!(reader.ok(&format!("sum x{i}")).ends_with(sum));
    }
    // Each client keeps its own uid, in the sandbox too.
    let mut stranger = manager.agent_as(STRANGER);
    assert_eq!(stranger.ok(&connect), format!("uid:{STRANGER}"));
    assert_eq!(stranger.ok("exists x0"), "false");
    stranger.ok(&format!("{connect} lab"));
    let sum = stranger.ok("put shared 1000 1");
    reader.ok(&format!("{connect} lab"));
    assert!(reader.ok("sum shared").ends_with(&sum));
    assert!(reader.ask("put mine 10 1").is_err());

    let daemon = manager.daemon();
    let of_daemon = |what: &str| {
        let read = run(manager.command("cat").arg(format!("/proc/{daemon}/{what}")));
        assert!(read.status.success(), "{}", text(&read.stderr));
        text(&read.stdout)
    };
    let status = of_daemon("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("{name} in\n{status}")).split('\t').next().unwrap().to_owned()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    let user = run(manager.command("id").args(["-u", "tensorlend"]));
    assert_eq!(field("Uid"), text(&user.stdout).trim());
    let namespace =
        |pid: &str, kind: &str| text(&run(manager.command("readlink").arg(format!("/proc/{pid}/ns/{kind}"))).stdout);
    for (kind, own) in [("mnt", true), ("net", true), ("ipc", true), ("user", false), ("pid", false)] {
        let (theirs, ours) = (namespace(&daemon.to_string(), kind), namespace("1", kind));
        assert!(theirs.contains(kind), "{theirs}");
        assert_eq!(theirs != ours, own, "{kind}: {theirs} {ours}");
    }
    // The sandbox forbade nothing that the daemon needed.
    assert!(!manager.log().contains("WARN") && !manager.log().contains("ERROR"), "{}", manager.log());

    manager.signal("KILL");
    manager.restarted(daemon);
    let mut next = manager.connected();
    let sum = next.ok("put y 1000 1");
    assert!(next.ok("sum y").ends_with(&sum));
    manager.ok(&["stop", SOCKET, SERVICE]);
    assert_eq!(manager.ends(), ["signal", "success"]);
}

/// The doctor's report on the descriptors that outlive a daemon.
#[test]
fn doctor_asks_the_manager_what_it_keeps() {
    if skip_without_systemd() {
        return;
    }
    for (store, state) in [("", "ok"), ("FileDescriptorStoreMax=2", "warning"), ("FileDescriptorStoreMax=0", "failure")]
    {
        let manager = Manager::start(Scope::User, &format!("[Service]\n{store}"));
        manager.ok(&["start", SERVICE]);
        let mut client = manager.connected();
        client.ok("put x 100000 1");
        if state != "failure" {
            eventually("descriptors that the manager keeps", || manager.kept() > 0);
        }
        let done = run(&mut manager.tool(&["doctor", "--json"]));
        let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["check"] == "descriptor store").unwrap();
        assert_eq!(check["state"], state, "{check}");
        let found = check["found"].as_str().unwrap();
        if state == "failure" {
            assert!(found.contains(SERVICE) && found.contains("no descriptor store"), "{found}");
        } else {
            let most = manager.property(SERVICE, "FileDescriptorStoreMax");
            let kept = found.strip_prefix("systemd keeps ").and_then(|it| it.split(' ').next()).unwrap();
            assert!(kept.parse::<u32>().unwrap() > 0, "{found}");
            assert!(found.ends_with(&format!(" descriptors of {SERVICE}, {most} at most")), "{found}");
        }
    }
}

/// The guarantees of `daemon/src/core/recovery/restore.rs`, with systemd's fd store: if the daemon is killed or restarted, no
/// client loses a tensor or its session.
#[test]
fn the_manager_keeps_every_tensor_through_kills_and_restarts() {
    if skip_without_systemd() {
        return;
    }
    for scope in [Scope::User, Scope::System] {
        let manager = Manager::start(scope, "");
        manager.ok(&["start", SOCKET]);
        manager.ok(&["start", SERVICE]);
        // A daemon that restores millions of names takes longer than the manager's default.
        assert_eq!(manager.property(SERVICE, "TimeoutStartUSec"), "infinity", "{scope:?}");
        let (mut lives, mut dies) = (manager.connected(), manager.connected());
        let mut sums = Vec::new();
        for number in 0..20 {
            sums.push((
                format!("of-one/{number}"),
                lives.ok(&format!("put of-one/{number} {} {number}", 5000 + number)),
            ));
            sums.push((format!("of-other/{number}"), dies.ok(&format!("put of-other/{number} 70000 {number}"))));
        }
        dies.exit();
        lives.ok("hold of-one/3");
        for round in 0..4 {
            let before = manager.daemon();
            if round % 2 == 0 {
                manager.signal("KILL");
                manager.restarted(before);
            } else {
                manager.ok(&["restart", SERVICE]);
            }
            let mut newcomer = manager.connected();
            for (name, sum) in &sums {
                assert!(newcomer.ok(&format!("sum {name}")).ends_with(sum), "{scope:?}, round {round}: {name}");
            }
            assert_eq!(lives.ok("held of-one/3"), sums[6].1);
            // The client continues as the same member: its names are its own, and others see its new values.
            let again = lives.ok(&format!("put of-one/0 5000 {}", 100 + round));
            sums[0].1.clone_from(&again);
            assert!(newcomer.ok("sum of-one/0").ends_with(&again));
        }
        eventually("descriptors that the manager keeps", || manager.kept() > 0);
    }
}

#[test]
fn the_units_that_restore_are_right_and_open_little() {
    if skip_without("systemd-analyze") {
        return;
    }
    for (scope, flag) in [(Scope::System, "--system"), (Scope::User, "--user")] {
        let folder = tempfile::tempdir().unwrap();
        copy_units(scope, folder.path(), binary("tensorlendd").to_str().unwrap());
        let program = binary("tensorlend");
        let unit = copy_tool_unit(scope, folder.path(), restoring(scope), "daemon", program.to_str().unwrap());
        let unit = folder.path().join(unit);
        let analyze = |args: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            let done = run(command.args(args).arg(&unit).env("XDG_RUNTIME_DIR", folder.path()));
            (done.status.success(), text(&done.stdout), text(&done.stderr))
        };
        let verify = || analyze(&["verify", "--man=no", "--recursive-errors=no", flag]);
        let (clean, _, said) = verify();
        let said: Vec<&str> = said.lines().filter(|line| line.contains("tensorlend")).collect();
        assert!(clean && said.is_empty(), "{scope:?}: {said:#?}");
        if scope == Scope::System {
            let threshold = format!("--threshold={EXPOSURE_MAX}");
            let (little, exposure, said) = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
            assert!(little && exposure.contains("Overall exposure level"), "{exposure}{said}");
        }
        // The check detects a mistake in a unit.
        let wrong = std::fs::read_to_string(&unit).unwrap().replace("Type=oneshot", "Type=onshot");
        std::fs::write(&unit, wrong).unwrap();
        assert!(verify().2.contains("onshot"), "{scope:?}");
    }
}

/// Saved tensors exist after the machine's start before any request; a damaged file does not prevent the others.
#[test]
fn a_machine_that_starts_has_its_names_again() {
    if skip_without_systemd() {
        return;
    }
    for (scope, user) in [(Scope::System, "daemon"), (Scope::User, "")] {
        let manager = Manager::start(scope, "");
        let restore = manager.add_tool_unit(restoring(scope), user);
        let uid = if scope == Scope::System { uid_of(user) } else { scope.uid() };
        // The very first start: no files, only a folder that only the user can enter.
        manager.ok(&["start", SOCKET, &restore]);
        let inside = manager.to_restore(user);
        let folder = manager.root().join(inside.strip_prefix("/").unwrap());
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&folder).unwrap());
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
        let agent = || {
            let mut agent = manager.agent_as(uid);
            agent.ok(&format!("connect {}", scope.socket()));
            agent
        };
        let mut producer = agent();
        let sums: Vec<String> = ["a", "b"].iter().map(|name| producer.ok(&format!("put {name} 3000000 7"))).collect();
        let save = |name: &str| {
            let file = inside.join(format!("{name}.safetensors"));
            let mut command = manager.command_as(uid, "/run/test/bin/tensorlend");
            let done = run(command.args(["--socket", &scope.socket(), "save", name, "-o"]).arg(file));
            assert!(done.status.success(), "{}", text(&done.stderr));
        };
        save("a");
        save("b");
        std::fs::write(folder.join("aa.safetensors"), "nonsense").unwrap();
        producer.exit();
        // Simulates a machine's start: all processes stop, and nothing is left.
        let start_anew = || {
            manager.systemctl(&["stop", &restore, SERVICE, SOCKET]);
            manager.ok(&["start", SOCKET]);
            manager.systemctl(&["reset-failed"]);
            manager.systemctl(&["start", &restore]).status.success()
        };
        assert!(!start_anew(), "the damaged file is told");
        assert_eq!(manager.property(&restore, "Result"), "exit-code");
        assert_eq!(manager.property(SERVICE, "ActiveState"), "active", "and the daemon runs");
        let mut consumer = agent();
        for (name, sum) in ["a", "b"].iter().zip(&sums) {
            assert!(consumer.ok(&format!("sum {name}")).ends_with(sum), "{scope:?}, {name}");
        }
        // Other users' namespaces contain none of these names.
        if scope == Scope::System {
            let mut stranger = manager.agent_as(STRANGER);
            stranger.ok(&format!("connect {}", scope.socket()));
            assert_eq!(stranger.ok("exists a"), "false");
        }
        std::fs::remove_file(folder.join("aa.safetensors")).unwrap();
        assert!(start_anew());
        // A restarted daemon does not run the restore again: names deleted since stay deleted.
        let mut consumer = agent();
        assert_eq!(consumer.ok("delete a"), "true");
        let before = manager.daemon();
        manager.signal("KILL");
        manager.restarted(before);
        let mut consumer = agent();
        assert_eq!(consumer.ok("exists a"), "false");
        assert!(consumer.ok("sum b").ends_with(&sums[1]), "{scope:?}");
    }
}

fn restoring(scope: Scope) -> &'static str {
    match scope {
        Scope::System => "tensorlend-restore@.service",
        Scope::User => "tensorlend-restore.service",
    }
}

fn uid_of(user: &str) -> u32 {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').next() == Some(user)).expect("the machine has the user");
    line.split(':').nth(2).unwrap().parse().unwrap()
}

/// The manager preserves unnamed spill files as it does memory.
#[test]
fn what_was_spilled_is_kept_by_the_manager() {
    if skip_without_systemd() {
        return;
    }
    let program = "/run/test/bin/tensorlendd --config /run/test/tensorlendd.toml";
    let manager = Manager::start(Scope::User, &format!("[Service]\nExecStart=\nExecStart={program}\n"));
    manager.configure(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
         [spill]\ndirectory = \"/run/test\"\nbytes_max = \"1GiB\"\n",
    );
    manager.ok(&["start", SOCKET]);
    let mut sums = Vec::new();
    for i in 0..8 {
        eventually("room for a tensor", || {
            let mut producer = manager.connected();
            let put = producer.ask(&format!("put t{i} 16000000 {i}"));
            sums.extend(put.as_ref().ok().cloned());
            producer.exit();
            put.is_ok()
        });
    }
    let before = manager.daemon();
    manager.signal("KILL");
    manager.restarted(before);
    let mut consumer = manager.connected();
    for (i, sum) in sums.iter().enumerate() {
        assert!(consumer.ok(&format!("sum t{i}")).ends_with(sum), "t{i}");
    }
}
