//! Memory cgroups and their charges: the tables of `docs/containers.md`.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use tensorlend_tests::charged::{Group, skip_without_groups};
use tensorlend_tests::{Agent, Daemon, eventually, skip_without};

const MIB: u64 = 1 << 20;
const TENSOR: u64 = 64 * MIB;
/// A configuration in which clients pay for their segments.
const CLIENTS_PAY: &str = "[pool]\nsegment_bytes = \"8MiB\"\nbytes_max = \"1GiB\"\nsheet_bytes_max = \"512MiB\"\n\
                           [namespace_default]\ncharge = \"client\"\n";

/// A daemon in its own group, and clients in others.
struct Groups {
    daemon: Daemon,
    // Dropped after the daemon, which must have ended before its group can be removed.
    daemons: Group,
}

impl Groups {
    fn start(name: &str, config: &str) -> Self {
        Self::start_in(Group::new(&format!("{name}-daemon")), config)
    }

    fn start_in(daemons: Group, config: &str) -> Self {
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

#[test]
fn a_client_is_charged_for_its_segments_where_the_configuration_says_so() {
    if skip_without_groups() {
        return;
    }
    for mode in ["user", "system"] {
        let [writers, readers] = ["pays-writer", "pays-reader"].map(|name| Group::new(&format!("{name}-{mode}")));
        let all = Groups::start(&format!("pays-{mode}"), &format!("mode = \"{mode}\"\n{CLIENTS_PAY}"));
        let (mut writer, mut reader) = (all.join(&writers), all.join(&readers));
        let sum = writer.ok(&format!("put x {TENSOR} 1"));
        let small = writer.ok("put small 1000 2");
        eventually("a charge for what the writer fills", || writers.shared() >= TENSOR);
        assert!(reader.ok("sum x").ends_with(&sum) && reader.ok("sum small").ends_with(&small));
        assert!(all.shared() < TENSOR / 4, "the daemon: {} bytes of shared memory in {mode} mode", all.shared());
        assert!(readers.shared() < MIB, "the reader: {} bytes of shared memory", readers.shared());
        // The charge lasts as long as the tensor, and longer than the client.
        writer.exit();
        assert!(reader.ok("sum x").ends_with(&sum));
        assert!(writers.shared() >= TENSOR, "{mode}: {} bytes", writers.shared());
        assert_eq!(reader.ok("delete x"), "true");
        // In user mode the memory lasts as long as a reader has it mapped.
        reader.exit();
        eventually("the end of the charge", || writers.shared() < TENSOR / 4);
        // The next client of the same user pays itself: no segment is lent again.
        let mut next = all.join(&readers);
        let sum = next.ok(&format!("put y {TENSOR} 3"));
        eventually("a charge for the next writer", || readers.shared() >= TENSOR);
        assert!(writers.shared() < TENSOR / 4 && all.shared() < TENSOR / 4, "{mode}");
        assert!(next.ok("sum y").ends_with(&sum));
        next.exit();
    }
}

/// A namespace may differ from the others.
#[test]
fn each_namespace_has_its_own_payer() {
    if skip_without_groups() {
        return;
    }
    let writers = Group::new("lab-writer");
    let config = "[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
                  [namespace.lab]\nwriters = [\"0\"]\ncharge = \"client\"\n";
    let all = Groups::start("lab", config);
    let mut own = all.join(&writers);
    own.ok(&format!("put x {TENSOR} 1"));
    eventually("a charge for the daemon", || all.shared() >= TENSOR);
    assert!(writers.shared() < MIB);
    let mut lab = Agent::start_as(|program| writers.command(program));
    lab.ok(&format!("connect {} lab", all.daemon.socket().display()));
    lab.ok(&format!("put x {TENSOR} 1"));
    eventually("a charge for the writer", || writers.shared() >= TENSOR);
    assert!(all.shared() < TENSOR * 3 / 2, "the daemon: {} bytes of shared memory", all.shared());
    own.exit();
    lab.exit();
}

#[test]
fn a_client_whose_group_is_full_gets_an_error_and_goes_on() {
    if skip_without_groups() {
        return;
    }
    let small = Group::limited("full-small", 128 * MIB);
    let large = Group::new("full-large");
    let all = Groups::start("full", CLIENTS_PAY);
    let (mut poor, mut rich) = (all.join(&small), all.join(&large));
    let sum = poor.ok(&format!("put x {TENSOR} 1"));
    for _ in 0..3 {
        let error = poor.ask(&format!("put y {TENSOR} 2")).unwrap_err();
        assert!(error.contains("the cgroup of this process") && error.contains(" left"), "{error}");
    }
    // The refused segments were returned, and neither the client nor its group has lost memory.
    assert!(poor.ok("sum x").ends_with(&sum) && rich.ok("sum x").ends_with(&sum));
    poor.ok("put small 1000 3");
    let others = rich.ok(&format!("put z {} 4", 2 * TENSOR));
    assert!(poor.ok("sum z").ends_with(&others), "a tensor of another group");
    assert_eq!(poor.ok("delete x"), "true");
    let sum = poor.ok(&format!("put y {TENSOR} 2"));
    assert!(rich.ok("sum y").ends_with(&sum));
    assert_eq!(small.kills(), 0);
    poor.exit();
    rich.exit();
}

/// A library that does not check, or that cannot read the limits of its group, leaves the decision to the kernel.
#[test]
fn a_client_that_fills_more_than_its_group_allows_is_killed_alone() {
    if skip_without_groups() || skip_without("unshare") {
        return;
    }
    let small = Group::limited("killed-small", 64 * MIB);
    let large = Group::new("killed-large");
    let mut all = Groups::start("killed", CLIENTS_PAY);
    let mut other = all.join(&large);
    let sum = other.ok(&format!("put x {TENSOR} 1"));
    let script = "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\"";
    let mut blind = Agent::start_as(|program| {
        let mut command = small.command(Path::new("unshare"));
        command.args(["--mount", "--propagation=private", "sh", "-ec", script]).arg(program);
        command
    });
    blind.ok(&format!("connect {}", all.daemon.socket().display()));
    blind.tell(&format!("put y {} 2", 4 * TENSOR));
    let ended = blind.wait();
    assert_eq!((ended.signal(), small.kills() > 0), (Some(9), true), "{ended:?}");
    // The daemon and the other client continue, and the memory returns.
    assert!(other.ok("sum x").ends_with(&sum));
    eventually("the end of the charge", || small.shared() < MIB);
    let watcher = all.daemon.client();
    eventually("the return to the pool", || watcher.stat().unwrap().bytes_in_use <= TENSOR + 32 * MIB);
    drop(watcher);
    other.ok(&format!("put y {TENSOR} 3"));
    assert!(all.daemon.is_running());
    other.exit();
}

/// The limit of the daemon's group must hold names, lease tables and rings. It need not hold the tensors.
#[test]
fn a_daemon_whose_group_is_full_refuses_and_lives() {
    if skip_without_groups() {
        return;
    }
    let clients = Group::new("refuses-clients");
    let mut all = Groups::start_in(Group::limited("refuses-daemon", 128 * MIB), CLIENTS_PAY);
    let (mut writer, mut reader) = (all.join(&clients), all.join(&clients));
    let sum = writer.ok(&format!("put x {} 1", 4 * TENSOR));
    let refused = (0..200).find_map(|number| writer.ask(&format!("stream s{number} 65536")).err());
    let refused = refused.expect("200 rings of some MiB exceed 128 MiB");
    assert!(
        refused.contains("the machine, or the daemon's cgroup, has") && refused.contains("bytes left"),
        "{refused}"
    );
    assert!(reader.ok("sum x").ends_with(&sum) && writer.ok("sum x").ends_with(&sum));
    // The tensors have their own groups, so they still grow.
    let sum = writer.ok(&format!("put y {TENSOR} 2"));
    assert!(reader.ok("sum y").ends_with(&sum));
    assert_eq!((all.daemons.kills(), all.daemon.is_running()), (0, true));
    writer.exit();
    reader.exit();
}

/// Puts the pages of a segment into the queues of sockets that nobody reads, without a copy.
fn splice_away(segment: &std::os::fd::OwnedFd, bytes: u64) -> Vec<[std::os::unix::net::UnixStream; 2]> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let mut queues = Vec::new();
    let mut at = 0;
    while at < bytes {
        let (from, to) = std::os::unix::net::UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        while at < bytes && rustix::fs::sendfile(&from, segment, Some(&mut at), 1 << 20).is_ok_and(|sent| sent > 0) {}
        queues.push([from, to]);
        assert!(queues.len() < 2000, "the queues take too little");
    }
    queues
}

#[test]
fn pages_that_a_client_keeps_in_a_queue_are_logged_with_its_uid() {
    if skip_without_groups() || skip_without("setpriv") {
        return;
    }
    const MALLORY: u32 = 64_003;
    let config = "mode = \"system\"\n[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 0\nidle_bytes_max = 0\n";
    let all = Groups::start("queued", config);
    let hand = tensorlend_tests::users::acting_as(MALLORY, || {
        tensorlend_tests::hand::Hand::join(&all.daemon.socket(), None).unwrap()
    });
    let log = || all.daemon.log();
    let expected = format!("uid={MALLORY}");
    let has_logged = || log().lines().any(|line| line.contains("returned pages") && line.contains(&expected));
    let take = |keeps: bool| {
        let lent = hand.segment(128 * MIB, 4, |lent| Ok((lent.base, lent.segment.try_clone()?)));
        let (base, segment) = lent.unwrap();
        let mut queues = splice_away(&segment, 128 * MIB);
        if !keeps {
            queues.clear();
        }
        drop(segment);
        hand.ask(&tensorlend_layout::wire::Request::ReturnSegment { base }).unwrap();
        queues
    };
    // Returned memory that nobody keeps is not logged.
    take(false);
    eventually("the memory is free", || all.shared() < 32 * MIB);
    assert!(!has_logged(), "{}", log());
    let queues = take(true);
    eventually("the memory is free", || all.shared() < 32 * MIB);
    // The daemon compares once a second, after it has freed memory.
    eventually("a line in the log", || {
        take_and_return(&hand);
        has_logged()
    });
    drop(queues);
}

/// Takes and returns a short segment.
fn take_and_return(hand: &tensorlend_tests::hand::Hand) {
    std::thread::sleep(std::time::Duration::from_millis(200));
    let base = hand.segment(MIB, 4, |lent| Ok(lent.base)).unwrap();
    hand.ask(&tensorlend_layout::wire::Request::ReturnSegment { base }).unwrap();
}
