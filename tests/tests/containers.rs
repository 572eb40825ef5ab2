//! Clients, and a daemon, in containers that share only the control socket.

use std::path::{Path, PathBuf};
use tensorlend_tests::container::{Engine, skip_without_containers};
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{Agent, Daemon, eventually};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;
const CONFIG: &str = "mode = \"system\"\n[pool]\nsegment_bytes = \"8MiB\"\n[namespace.lab]\nwriters = [\"64002\", \"64003\"]\n\
                      names_max = 512\nmembers_max = 16\n";

struct Host {
    engine: Engine,
    programs: Programs,
    daemon: Daemon,
}

impl Host {
    /// Starts a daemon outside the containers.
    fn start() -> Self {
        let programs = Programs::copy(&["tensorlendd", "tensorlend-agent"]);
        let daemon = Daemon::start_as(CONFIG, |_| as_user(DAEMON, &programs.path("tensorlendd")));
        Self { engine: Engine::new(), programs, daemon }
    }

    /// Starts an agent in a container of this user, which contains two files: the program and the socket.
    fn agent(&self, uid: u32, name: &str, namespace: &str) -> Agent {
        let (program, socket) = (self.programs.path("tensorlend-agent"), self.daemon.socket());
        let mut agent = Agent::start_as(|_| self.engine.rootless(uid, name, &[&program, &socket], &program));
        agent.ok(&format!("connect {} {namespace}", socket.display()));
        agent
    }

    /// Returns the pid of this user's last connection as the daemon sees it.
    fn process(&self, uid: u32) -> String {
        let (log, field) = (self.daemon.log(), format!("uid={uid}"));
        let line = log.lines().rfind(|line| line.contains(" joined namespace ") && line.contains(&field));
        let line = line.unwrap_or_else(|| panic!("nobody joined with {field}:\n{log}"));
        line.split_whitespace().find_map(|word| word.strip_prefix("pid=")).expect("its number").to_owned()
    }
}

#[test]
fn containers_that_share_the_socket_alone_exchange_tensors() {
    if skip_without_containers() {
        return;
    }
    let host = Host::start();
    let (mut alice, mut bob) = (host.agent(ALICE, "alice", "lab"), host.agent(BOB, "bob", "lab"));
    // Names in both directions: tensors within a segment, and one with its own segment.
    for bytes in [1000, 3_000_000, 20_000_000] {
        let sum = alice.ok(&format!("put x {bytes} 1"));
        assert!(bob.ok("sum x").ends_with(&sum));
        let sum = bob.ok(&format!("put x {bytes} 2"));
        assert!(alice.ok("sum x").ends_with(&sum));
    }
    // A stream whose sleeping reader is woken from another container.
    alice.ok("stream frames 8");
    bob.ok("subscribe frames");
    for number in 0..20 {
        bob.tell("receive frames");
        alice.ok(&format!("send frames {number}"));
        assert!(bob.answer().unwrap().ends_with(&format!(" 0 {number}")));
    }
    // The containers shared no namespace of the kernel.
    for uid in [ALICE, BOB] {
        let process = PathBuf::from(format!("/proc/{}", host.process(uid)));
        for space in ["user", "pid", "ipc", "mnt", "net", "uts"] {
            let of = |process: &Path| std::fs::read_link(process.join("ns").join(space)).unwrap();
            assert_ne!(of(&process), of(Path::new("/proc/self")), "{space}");
        }
        assert!(process.join("root/dev/null").exists() && !process.join("root/dev/shm").exists());
    }
}

#[test]
fn who_is_root_in_a_container_is_its_user_outside() {
    if skip_without_containers() {
        return;
    }
    let host = Host::start();
    let (mut alice, mut bob) = (host.agent(ALICE, "alice", ""), host.agent(BOB, "bob", ""));
    let mine = alice.ok("put diary 1000 1");
    assert_eq!(bob.ok("exists diary"), "false");
    // The same user without a container, and in another container.
    let program = host.programs.path("tensorlend-agent");
    let mut outside = Agent::start_as(|_| as_user(ALICE, &program));
    outside.ok(&format!("connect {}", host.daemon.socket().display()));
    assert!(outside.ok("sum diary").ends_with(&mine));
    assert!(host.agent(ALICE, "another", "").ok("sum diary").ends_with(&mine));
}

#[test]
fn the_end_of_a_container_is_the_end_of_its_client() {
    if skip_without_containers() {
        return;
    }
    let host = Host::start();
    let (mut alice, mut bob) = (host.agent(ALICE, "alice", "lab"), host.agent(BOB, "bob", "lab"));
    let sum = alice.ok("put kept 100000 1");
    alice.ok("put-for passing - true");
    assert_eq!(bob.ok("exists passing"), "true");
    alice.kill();
    eventually("the end of what ends with its producer", || bob.ok("exists passing") == "false");
    assert!(bob.ok("sum kept").ends_with(&sum), "what was published lives on");
}

#[test]
fn users_whom_the_daemon_cannot_tell_apart_are_sent_away() {
    if skip_without_containers() {
        return;
    }
    let (engine, programs) = (Engine::new(), Programs::copy(&["tensorlendd", "tensorlend-agent"]));
    // Its user namespace has one user; all others appear as uid 65534.
    let daemon = Daemon::start_in("mode = \"system\"\n", |folder| {
        let program = programs.path("tensorlendd");
        engine.rootless(DAEMON, "daemon", &[&program, folder], &program)
    });
    let program = programs.path("tensorlend-agent");
    for uid in [ALICE, BOB] {
        let mut agent = Agent::start_as(|_| as_user(uid, &program));
        let refused = agent.ask(&format!("connect {}", daemon.socket().display())).unwrap_err();
        assert!(refused.contains("not mapped in the daemon's user namespace"), "{refused}");
    }
    let mut own = Agent::start_as(|_| as_user(DAEMON, &program));
    own.ok(&format!("connect {}", daemon.socket().display()));
    own.ok("put x 1000 1");
}

#[test]
fn a_daemon_in_a_container_serves_others() {
    if skip_without_containers() {
        return;
    }
    let (engine, programs) = (Engine::new(), Programs::copy(&["tensorlendd", "tensorlend-agent"]));
    // An engine would mount this folder as a volume into all containers.
    let daemon = Daemon::start_in(CONFIG, |folder| {
        let program = programs.path("tensorlendd");
        engine.rootful(DAEMON, "daemon", &[&program, folder], &program)
    });
    let host = Host { engine, programs, daemon };
    let (mut alice, mut bob) = (host.agent(ALICE, "alice", "lab"), host.agent(BOB, "bob", "lab"));
    // A process outside the daemon's pid namespace has no pid there.
    assert_eq!((host.process(ALICE).as_str(), host.process(BOB).as_str()), ("0", "0"));
    let sum = alice.ok("put x 20000000 1");
    assert!(bob.ok("sum x").ends_with(&sum));
    alice.ok("put-for passing - true");
    alice.kill();
    eventually("the end of what ends with its producer", || bob.ok("exists passing") == "false");
    assert!(bob.ok("sum x").ends_with(&sum));
}

/// Uid 0 of a rootless container is an ordinary user outside. This user's other processes could reopen memory that a
/// daemon in system mode lends.
#[test]
fn a_daemon_in_a_rootless_container_is_in_user_mode_by_itself() {
    if skip_without_containers() {
        return;
    }
    let (engine, programs) = (Engine::new(), Programs::copy(&["tensorlendd", "tensorlend-agent"]));
    let daemon = Daemon::start_in("", |folder| {
        let program = programs.path("tensorlendd");
        engine.rootless(DAEMON, "daemon", &[&program, folder], &program)
    });
    assert!(daemon.log().contains("runs in User mode"), "{}", daemon.log());
    let program = programs.path("tensorlend-agent");
    let mut own = Agent::start_as(|_| as_user(DAEMON, &program));
    own.ok(&format!("connect {}", daemon.socket().display()));
    let sum = own.ok("put x 100000 1");
    assert!(own.ok("sum x").ends_with(&sum));
}

/// An image's `USER 999` is a system user to the daemon. Clients of other containers may have the same uid.
#[test]
fn a_daemon_that_chose_system_mode_refuses_clients_of_its_own_uid() {
    const SHARED: u32 = 999;
    if skip_without_containers() {
        return;
    }
    let (engine, programs) = (Engine::new(), Programs::copy(&["tensorlendd", "tensorlend-agent"]));
    let program = programs.path("tensorlend-agent");
    let mut number = 0;
    let mut connect = |config: &str, uid: u32| {
        number += 1;
        let daemon = Daemon::start_in(config, |folder| {
            let program = programs.path("tensorlendd");
            engine.rootful(SHARED, &format!("daemon{number}"), &[&program, folder], &program)
        });
        let (socket, name) = (daemon.socket(), format!("client{number}"));
        let mut agent = Agent::start_as(|_| engine.rootful(uid, &name, &[&program, &socket], &program));
        let joined = agent.ask(&format!("connect {}", socket.display()));
        (joined, daemon.log())
    };
    let (refused, log) = connect("", SHARED);
    assert!(log.contains("runs in System mode"), "{log}");
    let refused = refused.unwrap_err();
    assert!(refused.contains("mode = \"user\"") && refused.contains("mode = \"system\""), "{refused}");
    assert_eq!(connect("", ALICE).0, Ok(format!("uid:{ALICE}")));
    for mode in ["user", "system"] {
        assert_eq!(connect(&format!("mode = \"{mode}\"\n"), SHARED).0, Ok(format!("uid:{SHARED}")), "{mode}");
    }
}
