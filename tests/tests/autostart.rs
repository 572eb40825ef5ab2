//! The user's daemon, which the first client starts.

use rustix::process::Signal;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tensorlend::{Client, DType, Error};
use tensorlend_tests::background::{DATA, Home, end_daemons};
use tensorlend_tests::container::{Engine, skip_without_containers};
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{binary, budget, eventually, run, signal, skip, skip_without_root};

/// Returns true if this machine has a system's daemon, which all clients would use, and records that.
fn skip_with_system() -> bool {
    let is_there = Path::new("/run/tensorlend/tensorlend.sock").exists();
    if is_there {
        skip("this machine has a system's daemon, so that clients start none");
    }
    is_there
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// Returns the number of daemons that have listened.
fn started(home: &Home) -> usize {
    home.log().matches(" runs in User mode").count()
}

#[test]
fn clients_that_race_start_one_daemon() {
    if skip_with_system() {
        return;
    }
    for _ in 0..budget(2, 20) {
        let home = Home::new("");
        let put = |number: u32| {
            let mut command = home.cli(&["put", &format!("n/{number}"), DATA]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let clients: Vec<_> = (0..50).map(put).collect();
        for client in clients {
            assert_done(&client.wait_with_output().unwrap());
        }
        assert_eq!((home.names().len(), home.daemons().len(), started(&home)), (50, 1, 1), "{}", home.log());
        let locks = std::fs::read_dir(home.socket().parent().unwrap()).unwrap();
        let left: Vec<_> =
            locks.map(|it| it.unwrap().file_name()).filter(|it| text(it.as_encoded_bytes()).contains("lock")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// `run` returns when all ends of the pipes are closed, so the daemon has none of them.
#[test]
fn the_daemon_belongs_to_no_terminal_and_holds_no_file_of_its_client() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("");
    let mut pinned = Command::new("sh");
    pinned
        .arg("-c")
        .arg("exec 7>leaked; ulimit -S -t 1000; umask 0777; exec taskset -c 0 \"$0\" put a \"$1\"")
        .arg(binary("tensorlend"))
        .arg(DATA);
    let folder = home.socket().parent().unwrap().to_owned();
    let environment: Vec<_> =
        home.cli(&[]).get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
    for (name, value) in environment {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    let output = run(pinned.current_dir(&folder).env("NOTIFY_SOCKET", "/nowhere"));
    assert_done(&output);
    assert!(output.stderr.is_empty(), "a message to a terminal only: {}", text(&output.stderr));
    let [pid] = home.daemons()[..] else { panic!("one daemon: {:?}", home.daemons()) };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!((fields[3], fields[4]), (&*pid.to_string(), "0"), "a session of its own without a terminal");
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let leaked =
        files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok()).find(|file| file.ends_with("leaked"));
    assert_eq!(leaked, None);
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let processors = |status: &str| status.lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
    assert_eq!(processors(&status), processors(&own), "it is not bound to its client's processor");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let processor_time = limits.lines().find(|line| line.starts_with("Max cpu time")).unwrap();
    assert!(!processor_time.contains("1000"), "the soft limit of its client: {processor_time}");
    let mode = std::fs::metadata(home.socket()).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn after_a_kill_the_next_client_finds_all_names() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("");
    for round in 0..budget(3, 50) {
        assert_done(&home.put(&format!("n/{round}")));
        let [pid] = home.daemons()[..] else { panic!("one daemon: {:?}", home.daemons()) };
        assert_eq!(home.names().len(), round + 1);
        signal(pid, Signal::KILL);
        eventually("the death of the daemon", || !home.daemons().contains(&pid));
    }
}

#[test]
fn an_idle_daemon_ends_and_the_next_client_starts_another() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("idle_exit_s = 1\n");
    for round in 1..=2 {
        assert_done(&home.put("a"));
        assert_eq!(started(&home), round, "a daemon with names does not end");
        assert_done(&run(&mut home.cli(&["rm", "a"])));
        eventually("the end of the idle daemon", || home.daemons().is_empty());
        assert!(!home.socket().exists());
    }
}

/// A process that can take the path, such as another user's after the removal of a folder in /tmp, must not end the daemon.
#[test]
fn a_daemon_whose_path_another_process_has_taken_keeps_its_names() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("idle_exit_s = 1\n");
    assert_done(&home.put("a"));
    let [daemon] = home.daemons()[..] else { panic!("one daemon: {:?}", home.daemons()) };
    signal(daemon, Signal::STOP);
    std::fs::remove_file(home.socket()).unwrap();
    let listener = listen(&home.socket());
    signal(daemon, Signal::CONT);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(home.daemons(), [daemon], "{}", home.log());
    drop(listener);
    std::fs::remove_file(home.socket()).unwrap();
    eventually("the daemon's own socket", || home.socket().exists());
    assert_eq!((home.daemons(), home.names()), (vec![daemon], vec!["a".to_owned()]), "{}", home.log());
}

fn listen(path: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 4).unwrap();
    socket
}

/// Each wait without a timeout ends, also where the producer or the server has ended with the daemon.
#[test]
fn waits_end_when_the_daemon_is_stopped() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("");
    assert_done(&home.put("a"));
    let connect = || Client::builder().socket(home.socket()).connect().unwrap();
    let producer = connect();
    let camera = producer.stream("camera").open().unwrap();
    let full = producer.stream("full").capacity(1).open().unwrap();
    let slow = connect();
    let _never_read = slow.subscribe("full").unwrap();
    let draft = |client: &Client| client.create(DType::U8, [4]).unwrap();
    full.send(draft(&producer)).unwrap();
    let mut idle = connect().subscribe("camera").unwrap();
    let (mut frames, names) = (connect().subscribe("camera").unwrap(), connect());
    let (server, caller) = (connect(), connect());
    std::thread::scope(|scope| {
        let waits = [
            ("recv", scope.spawn(|| frames.recv().map(drop))),
            ("send", scope.spawn(|| full.send(draft(&producer)).map(drop))),
            ("wait_for", scope.spawn(|| names.wait_for("nothing", None).map(drop))),
            ("serve", scope.spawn(|| server.serve("service").open()?.recv().map(drop))),
            ("call", scope.spawn(|| caller.caller("other").open()?.call(draft(&caller), None).map(drop))),
        ];
        std::thread::sleep(Duration::from_millis(500));
        assert!(waits.iter().all(|(_, wait)| !wait.is_finished()), "they wait");
        let output = run(&mut home.cli(&["stop"]));
        assert_done(&output);
        assert!(text(&output.stdout).contains("clients must connect again"), "{}", text(&output.stdout));
        for (what, wait) in waits {
            eventually(&format!("the end of {what}"), || wait.is_finished());
            let error = wait.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Disconnected { .. } | Error::SessionEnded), "{what}: {error}");
        }
    });
    drop(camera);
    // The next daemon does not know the session.
    assert_done(&home.put("b"));
    eventually("an error that says so", || {
        let error = idle.recv_timeout(Duration::from_millis(20)).unwrap_err();
        matches!(error, Error::SessionEnded)
    });
}

#[test]
fn stop_ends_the_daemon_and_its_names() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("");
    let stop = || {
        let output = run(&mut home.cli(&["stop"]));
        assert_done(&output);
        text(&output.stdout)
    };
    assert!(stop().starts_with("no daemon runs at "));
    assert_done(&home.put("a"));
    let [pid] = home.daemons()[..] else { panic!("one daemon: {:?}", home.daemons()) };
    assert_eq!(home.stores().len(), 1);
    let said = stop();
    assert!(said.starts_with(&format!("ended tensorlendd (process {pid}): 1 name (")), "{said}");
    assert!(said.ends_with("which end with it\n"), "{said}");
    assert_eq!((home.daemons(), home.stores(), home.socket().exists()), (vec![], vec![], false));
    assert_done(&home.put("b"));
    assert_eq!(home.names(), ["b"]);
    assert_done(&run(&mut home.cli(&["rm", "b"])));
    assert!(stop().ends_with(")\n"), "no names");
    // After a crash, the fd store still has the names.
    assert_done(&home.put("c"));
    let [pid] = home.daemons()[..] else { panic!("one daemon: {:?}", home.daemons()) };
    signal(pid, Signal::KILL);
    eventually("the death of the daemon", || home.daemons().is_empty());
    assert!(stop().ends_with("ended its fd store, with the names that it kept\n"));
    assert_eq!((home.stores(), home.put("d").status.success(), home.names()), (vec![], true, vec!["d".to_owned()]));
    stop();
    // The daemon of an explicit socket.
    let daemon = tensorlend_tests::Daemon::start("");
    let socket = daemon.socket();
    let output = run(&mut home.cli(&["--socket", socket.to_str().unwrap(), "stop"]));
    assert_done(&output);
    assert!(text(&output.stdout).contains(&format!("process {}", daemon.pid())), "{}", text(&output.stdout));
}

/// As of a service manager, which listens before it starts the daemon, or a program with a daemon inside.
#[test]
fn stop_ends_no_other_program() {
    let home = Home::new("");
    let _own = listen(&home.socket());
    let output = run(&mut home.cli(&["stop"]));
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains(&format!("process {} ", std::process::id())), "{error}");
    assert!(error.contains("systemctl stop tensorlendd.socket"), "{error}");
}

/// Clients connect at the moment at which the daemon ends.
#[test]
fn a_client_of_an_ending_daemon_is_served() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("idle_exit_s = 1\n");
    assert_done(&run(home.command(&binary("tensorlendd")).arg("--daemonize").arg("--config").arg(config(&home))));
    for _ in 0..budget(4, 100) {
        std::thread::sleep(Duration::from_secs(1));
        assert_done(&home.put("a"));
        assert_done(&run(&mut home.cli(&["rm", "a"])));
    }
}

fn config(home: &Home) -> PathBuf {
    home.socket().with_file_name("config/tensorlend/tensorlendd.toml")
}

#[test]
fn no_daemon_is_started_where_none_is_wanted() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("");
    for args in [&["ls"][..], &["stat"], &["ping"], &["top", "--once"], &["get", "x", "-o", "x.npy"]] {
        let output = run(&mut home.cli(args));
        assert!(!output.status.success(), "{args:?}: {}", text(&output.stdout));
        let error = text(&output.stderr);
        assert!(
            error.contains("only commands and programs that publish") && error.contains("tensorlendd --daemonize"),
            "{error}"
        );
    }
    run(&mut home.cli(&["doctor"]));
    let refused = |command: &mut Command| {
        let output = run(command);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    for args in [&["put", "a", DATA][..], &["ls"]] {
        let error = refused(home.cli(args).env("TENSORLEND_AUTOSTART", "0"));
        assert!(error.contains("TL-0101") && error.contains("TENSORLEND_AUTOSTART forbids it"), "{error}");
    }
    let error = refused(home.cli(&["put", "a", DATA]).env("TENSORLEND_SOCKET", home.socket()));
    assert!(error.contains("TL-0101") && error.contains("TENSORLEND_SOCKET name"), "{error}");
    assert_eq!((home.daemons(), started(&home)), (vec![], 0));
    assert!(!home.socket().exists());
}

#[test]
fn an_error_of_the_start_names_the_cause_and_the_log() {
    if skip_with_system() {
        return;
    }
    let home = Home::new("pool = 3\n");
    let output = home.put("a");
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains("TL-1102") && error.contains("tensorlendd.toml"), "{error}");
    // A file that others can change is not read.
    std::fs::set_permissions(config(&home), Permissions::from_mode(0o666)).unwrap();
    assert_done(&home.put("a"));
    let home = Home::new("spill.directory = 5\n[pool]\nbytes_max = \"1GiB\"\n");
    assert!(text(&home.put("a").stderr).contains("TL-1102"));
    std::fs::write(home.socket(), "").unwrap();
    std::fs::write(config(&home), "").unwrap();
    let error = text(&home.put("a").stderr);
    assert!(error.contains("Connection refused") || error.contains("an ordinary file"), "{error}");
    std::fs::remove_file(home.socket()).unwrap();
    assert_done(&home.put("a"));
    let output = run(home.command(&binary("tensorlendd")).args(["--daemonize"]));
    let error = text(&output.stderr);
    assert!(!output.status.success() && error.contains("already") && error.contains(".log"), "{error}");
}

/// Copies a file to where every user can read it.
fn data_for_all(programs: &Programs) -> PathBuf {
    let data = programs.path("iris.npy");
    std::fs::write(&data, std::fs::read(DATA).unwrap()).unwrap();
    std::fs::set_permissions(&data, Permissions::from_mode(0o644)).unwrap();
    data
}

/// Without `XDG_RUNTIME_DIR` and with a home folder in which no file can be created.
#[test]
fn users_without_a_login_have_daemons_of_their_own() {
    if skip_with_system() || skip_without_root() {
        return;
    }
    let programs = Programs::copy(&["tensorlend", "tensorlendd"]);
    let data = data_for_all(&programs);
    let uid = 64_000 + std::process::id() % 1000;
    let folder = PathBuf::from(format!("/tmp/tensorlend-{uid}"));
    let put = || {
        let mut command = as_user(uid, &programs.path("tensorlend"));
        command.env_remove("XDG_RUNTIME_DIR").env_remove("TENSORLEND_SOCKET").env("HOME", "/proc");
        command.env("XDG_CONFIG_HOME", "").args(["put", "a"]).arg(&data);
        run(&mut command)
    };
    // Another user has made the folder.
    std::fs::create_dir(&folder).unwrap();
    let refused = put();
    std::fs::remove_dir(&folder).unwrap();
    let error = text(&refused.stderr);
    assert!(error.contains("belongs to another user (uid 0)"), "{error}");
    let done = put();
    let log = std::fs::read_to_string(folder.join("tensorlend.sock.log")).unwrap_or_default();
    // A cleaner of temporary files removes the folder, and the daemon creates it again.
    let _ = std::fs::remove_dir_all(&folder);
    let is_back = || folder.join("tensorlend.sock").exists();
    let end = std::time::Instant::now() + tensorlend_tests::PATIENCE;
    while done.status.success() && !is_back() && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let again = put();
    let stat = std::fs::metadata(&folder);
    let is_first = !folder.join("tensorlend.sock.log").exists();
    end_daemons(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    assert_done(&done);
    assert_done(&again);
    assert!(is_first, "a second daemon writes a log");
    let stat = stat.unwrap();
    assert_eq!((stat.permissions().mode() & 0o777, stat.uid()), (0o700, uid), "{log}");
    assert!(log.contains(" runs in User mode"), "{log}");
}

#[test]
fn root_in_a_container_has_a_daemon() {
    if skip_with_system() || skip_without_containers() {
        return;
    }
    let (engine, programs) = (Engine::new(), Programs::copy(&["tensorlend", "tensorlendd"]));
    let folder = data_for_all(&programs).parent().unwrap().to_owned();
    let mut shell = engine.rootful(0, "root", &[&folder], Path::new("sh"));
    let script = "unset XDG_RUNTIME_DIR TENSORLEND_SOCKET; \"$0/tensorlend\" put a \"$0/iris.npy\" && \
                  \"$0/tensorlend\" ls && ls -d /tmp/tensorlend-0 /run/user/0 2>/dev/null";
    let output = run(shell.arg("-c").arg(script).arg(&folder).env("HOME", "/nowhere"));
    let said = text(&output.stdout);
    assert!(said.contains("\na ") && said.contains("/tmp/tensorlend-0"), "{said}{}", text(&output.stderr));
}
