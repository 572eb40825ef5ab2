//! Memory cgroups and their charges: the table of `docs/containers.md`.

use tensorlend_tests::charged::{Group, skip_without_groups};
use tensorlend_tests::{Agent, Daemon, eventually};

const MIB: u64 = 1 << 20;
const TENSOR: u64 = 64 * MIB;

/// A daemon in its own group, and clients in others.
struct Groups {
    daemon: Daemon,
    // Dropped after the daemon, which must have ended before its group can be removed.
    daemons: Group,
}

impl Groups {
    fn start(name: &str, config: &str) -> Self {
        let daemons = Group::new(&format!("{name}-daemon"));
        let daemon = Daemon::start_as(config, |program| daemons.command(program));
        Self { daemon, daemons }
    }

    fn join(&self, group: &Group) -> Agent {
        let mut agent = Agent::start_as(|program| group.command(program));
        agent.ok(&format!("connect {}", self.daemon.socket().display()));
        agent
    }

    fn shared(&self) -> u64 {
        self.daemons.shared()
    }
}

#[test]
fn the_daemon_is_charged_for_what_it_lends() {
    if skip_without_groups() {
        return;
    }
    let [writers, readers] = ["lent-writer", "lent-reader"].map(Group::new);
    let all = Groups::start("lent", "[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 0\nidle_bytes_max = 0\n");
    let (mut writer, mut reader) = (all.join(&writers), all.join(&readers));
    assert!(all.shared() < TENSOR / 4);

    let sum = writer.ok(&format!("put x {TENSOR} 1"));
    assert!(reader.ok("sum x").ends_with(&sum));
    eventually("a charge for what was lent", || all.shared() >= TENSOR);
    for (group, whose) in [(&writers, "writer"), (&readers, "reader")] {
        assert!(group.shared() < MIB, "the {whose}: {} bytes of shared memory", group.shared());
        assert!(group.own() < TENSOR / 2, "the {whose}: {} bytes of its own", group.own());
    }
    // When the writer ends, only its sheets are freed. Deleting the tensor frees its charge.
    writer.exit();
    assert!(reader.ok("sum x").ends_with(&sum));
    assert!(all.shared() >= TENSOR);
    assert_eq!(reader.ok("delete x"), "true");
    eventually("less of a charge", || all.shared() < TENSOR / 4);
    reader.exit();
}

#[test]
fn the_daemon_is_charged_for_names_too() {
    if skip_without_groups() {
        return;
    }
    let [writers, readers] = ["named-writer", "named-reader"].map(Group::new);
    let all = Groups::start("named", "[pool]\nsegment_bytes = \"64MiB\"\nspare_segments = 0\n");
    let (mut writer, mut reader) = (all.join(&writers), all.join(&readers));
    let before = all.shared();
    writer.ok("many n 20000");
    reader.ok("check-many n 20000");
    // A cell, a slot record, a directory entry and a slot for each name.
    eventually("a charge for names", || all.shared() > before + 20_000 * 200);
    for (group, whose) in [(&writers, "writer"), (&readers, "reader")] {
        assert!(group.shared() < MIB, "the {whose}: {} bytes of shared memory", group.shared());
    }
    writer.exit();
    reader.exit();
}

/// Validates the measurement of the other tests: the process that first touches a shared page is charged for it.
#[test]
fn who_touches_a_page_first_is_charged_for_it() {
    if skip_without_groups() || tensorlend_tests::skip_without("python3") {
        return;
    }
    let group = Group::new("touched");
    let program = "import os, sys\nfd = os.memfd_create('x')\nos.write(fd, b'x' * (8 << 20))\nprint(flush=True)\n\
                   sys.stdin.read()";
    let mut command = group.command(std::path::Path::new("python3"));
    let mut agent = Agent::steer({
        command.args(["-c", program]);
        command
    });
    let _ = agent.answer();
    eventually("a charge", || group.shared() >= 8 * MIB);
    agent.exit();
}
