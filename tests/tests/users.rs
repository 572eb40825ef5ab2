//! Several users and one daemon in system mode. Needs root, to switch users.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_tests::hand::Hand;
use tensorlend_tests::{Agent, Daemon, binary, eventually, run, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;
const CAROL: u32 = 64_004;

fn as_user(uid: u32, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg(program);
    command
}

/// A daemon that runs as its own user, and copies of the programs that every user can run: the build folder may be
/// readable by root only.
struct System {
    daemon: Daemon,
    agent: PathBuf,
    _programs: TempDir,
}

impl System {
    fn start(config: &str) -> Self {
        let programs = tempfile::Builder::new().prefix("tensorlend-bin-").tempdir().unwrap();
        std::fs::set_permissions(programs.path(), Permissions::from_mode(0o755)).unwrap();
        let copy = |name| {
            let copy = programs.path().join(name);
            // Another process copies the file. If this one held it open for writing, a child of another test could
            // inherit the descriptor, and the program could not be run (ETXTBSY).
            assert!(run(Command::new("install").arg("--mode=0755").arg(binary(name)).arg(&copy)).status.success());
            copy
        };
        let (daemon, agent) = (copy("tensorlendd"), copy("tensorlend-agent"));
        let daemon = Daemon::start_as(&format!("mode = \"system\"\n{config}"), |_| as_user(DAEMON, &daemon));
        Self { daemon, agent, _programs: programs }
    }

    /// Starts an agent of this user, connected to its private namespace, or to the one that `namespace` names.
    fn join(&self, uid: u32, namespace: &str) -> Result<Agent, String> {
        let mut agent = Agent::start_as(|_| as_user(uid, &self.agent));
        agent.ask(&format!("connect {} {namespace}", self.daemon.socket().display()))?;
        Ok(agent)
    }

    fn agent(&self, uid: u32) -> Agent {
        self.join(uid, "").unwrap()
    }
}

fn cannot_run() -> bool {
    skip_without_root() || skip_without("setpriv")
}

#[test]
fn users_do_not_see_each_other() {
    if cannot_run() {
        return;
    }
    let system = System::start("");
    let (mut alice, mut bob) = (system.agent(ALICE), system.agent(BOB));
    let mine = alice.ok("put diary 100000 1");
    assert_eq!(bob.ok("exists diary"), "false");
    assert_eq!(bob.ok("list"), "0");
    let his = bob.ok("put diary 100000 2");
    assert!(alice.ok("sum diary").ends_with(&mine) && bob.ok("sum diary").ends_with(&his));
    assert_eq!(bob.ok("delete diary"), "true");
    assert!(alice.ok("sum diary").ends_with(&mine));
}

/// The kernel's groups of the process count: none of these is in /etc/group, and no user belongs to them there.
#[test]
fn a_group_is_what_the_kernel_says_of_the_process() {
    if cannot_run() {
        return;
    }
    let system = System::start("[namespace.lab]\nreaders = [\"@3000\"]\nwriters = [\"@3001\"]");
    let join = |groups: &str| {
        let mut agent = Agent::start_as(|_| {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={BOB}")).arg(format!("--regid={BOB}")).arg(groups).arg(&system.agent);
            command
        });
        agent.ask(&format!("connect {} lab", system.daemon.socket().display())).map(|_| agent)
    };
    let many: Vec<String> = (2900..3001).map(|gid: u32| gid.to_string()).collect();
    assert!(join("--clear-groups").is_err());
    assert!(join("--groups=2999").is_err());
    join("--groups=3001").unwrap().ok("put x 10 1");
    for groups in ["--groups=3000".to_owned(), format!("--groups={}", many.join(","))] {
        let mut reader = join(&groups).unwrap();
        assert_eq!(reader.ok("exists x"), "true");
        assert!(reader.ask("put y 10 1").is_err(), "a reader writes nothing");
    }
}

#[test]
fn descriptors_that_a_user_keeps_pin_no_memory_beyond_the_limit() {
    if cannot_run() {
        return;
    }
    const LIMIT: u64 = 64 << 20;
    let system = System::start("[pool]\nsegment_bytes = \"1MiB\"\nspare_segments = 0\n[uid]\nbytes_max = \"64MiB\"\n");
    let hostile = Hand::join(&system.daemon.socket(), None).unwrap();
    let mut kept = Vec::new();
    for _ in 0..12 {
        // 2^17 slots: 16 MiB of records. A returned segment counts until it has no writers.
        let mut base = None;
        eventually("a segment within the limit", || {
            base = hostile.segment(1, 17, |lent| Ok(lent.base)).ok();
            base.is_some()
        });
        let base = base.unwrap();
        let lent = hostile.segment_of(hostile.welcome.client, base).unwrap();
        kept.extend([lent.segment, lent.slots]);
        assert!(matches!(hostile.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Done));
    }
    // The daemon punches the pages of closed sheets, on a separate thread.
    let held = || kept.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512).sum::<u64>();
    eventually("memory within the limit", || held() <= LIMIT);
    let mut bob = system.agent(BOB);
    bob.ok("put x 100000 1");
}

#[test]
fn a_shared_namespace_has_readers_and_writers() {
    if cannot_run() {
        return;
    }
    let system = System::start(&format!("[namespace.lab]\nwriters = [\"{ALICE}\"]\nreaders = [\"{BOB}\"]\n"));
    let join = |uid| system.join(uid, "lab");
    let (mut alice, mut bob) = (join(ALICE).unwrap(), join(BOB).unwrap());
    let sum = alice.ok("put result 100000 1");
    assert!(bob.ok("sum result").ends_with(&sum));
    assert!(bob.ask("put result 10 2").unwrap_err().contains("but not write to it"));
    assert!(bob.ask("delete result").unwrap_err().contains("but not write to it"));
    let refused = join(CAROL).map(|_| ()).unwrap_err();
    assert!(refused.contains("no namespace"), "{refused}");
    assert!(alice.ok("sum result").ends_with(&sum));
}

#[test]
fn a_user_takes_no_more_than_a_share_of_a_shared_namespaces_tables() {
    if cannot_run() {
        return;
    }
    let lab = format!("[namespace.lab]\nwriters = [\"{ALICE}\", \"{BOB}\"]\nreaders = [\"{CAROL}\"]\n");
    let system = System::start(&format!("{lab}streams_max = 16\nmembers_max = 16\nsegments_max = 16\n"));
    let mut alice = vec![system.join(ALICE, "lab").unwrap()];
    let mut opened = 0;
    let refused = loop {
        match alice[0].ask(&format!("stream alice/{opened} 1")) {
            Ok(_) => opened += 1,
            Err(refused) => break refused,
        }
    };
    assert!(opened == 8 && refused.contains(&format!("share of uid {ALICE} in the streams")), "{opened}: {refused}");
    let refused = loop {
        match system.join(ALICE, "lab") {
            Ok(agent) => alice.push(agent),
            Err(refused) => break refused,
        }
    };
    assert!(alice.len() == 8 && refused.contains(&format!("share of uid {ALICE} in the clients")), "{refused}");
    let (mut bob, mut carol) = (system.join(BOB, "lab").unwrap(), system.join(CAROL, "lab").unwrap());
    bob.ok("stream bob 1");
    carol.ok("subscribe bob");
    // In its private namespace a user has the whole table.
    let mut home = system.agent(ALICE);
    (0..20).for_each(|number| drop(home.ok(&format!("stream home/{number} 1"))));
}

#[test]
fn segments_are_lent_again_in_system_mode() {
    if cannot_run() {
        return;
    }
    let system = System::start("");
    for seed in 0..4 {
        let mut alice = system.agent(ALICE);
        alice.ok(&format!("put x 50000000 {seed}"));
        alice.ok("delete x");
        alice.exit();
    }
    let mut alice = system.agent(ALICE);
    let sum = alice.ok("put y 50000000 9");
    assert!(alice.ok("sum y").ends_with(&sum));
}

/// At the pool's limit the daemon checks recently returned memory before it refuses a request.
#[test]
fn who_gives_back_and_asks_for_more_at_once_is_served() {
    if cannot_run() {
        return;
    }
    const MB: u64 = 1 << 20;
    let config = "[pool]\nbytes_max = \"96MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[uid]\nshare = false\n";
    let system = System::start(config);
    let mut alice = system.agent(ALICE);
    // The pool cannot hold two of these values at once.
    for round in 0..10 {
        for mb in [50, 70, 90, 60] {
            alice.ok(&format!("put x {} {round}", mb * MB));
            alice.ok("delete x");
        }
    }
}

#[test]
fn every_user_finds_a_share_of_what_is_common() {
    if cannot_run() {
        return;
    }
    const MB: u64 = 1 << 20;
    let system = System::start("[pool]\nbytes_max = \"240MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n");
    let fill = |agent: &mut Agent| {
        (0..).find_map(|i| agent.ask(&format!("put t{i} {} {i}", 7 * MB)).err().map(|error| (i, error))).unwrap()
    };
    // The first user takes its share, and the later ones still get some; nobody waits.
    let mut agents: Vec<(Agent, u64)> = Vec::new();
    for uid in [ALICE, BOB, CAROL] {
        let mut agent = system.agent(uid);
        let (tensors, error) = fill(&mut agent);
        assert!(error.contains("the share of uid") && error.contains("uid.share"), "{error}");
        agents.push((agent, tensors));
    }
    let tensors: Vec<u64> = agents.iter().map(|(_, tensors)| *tensors).collect();
    // A half, a third of the rest, a quarter of that: 120, 40 and 20 MiB in segments of 8 MiB.
    assert_eq!(tensors, [15, 5, 2]);
    // A user who leaves nothing behind makes room for the others.
    let (mut alice, _) = agents.remove(0);
    for i in 0..15 {
        alice.ok(&format!("delete t{i}"));
    }
    alice.exit();
    let bob = &mut agents[0].0;
    tensorlend_tests::eventually("what came free", || bob.ask(&format!("put more {} 1", 7 * MB)).is_ok());
}

/// A user with a range of subordinate uids gets one share with all of them, as if it had one uid.
#[test]
fn the_uids_of_a_range_have_one_share() {
    if cannot_run() {
        return;
    }
    const MB: u64 = 1 << 20;
    const FIRST: u32 = 64_100;
    // The daemon runs as another user, and reads the file.
    let ranges = tempfile::NamedTempFile::new().unwrap();
    std::fs::set_permissions(ranges.path(), Permissions::from_mode(0o644)).unwrap();
    std::fs::write(ranges.path(), format!("{ALICE}:{FIRST}:64\n")).unwrap();
    let system = System::start(&format!(
        "[pool]\nbytes_max = \"240MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\nsheet_bytes_max = \"1GiB\"\n\
         [uid]\nsubuid_file = {:?}\n[namespace_default]\nnames_max = 512\nmembers_max = 16\n",
        ranges.path()
    ));
    // Each uid in turn takes one more segment, until the daemon refuses all of them.
    let fill = |agents: &mut [Agent]| {
        let mut tensors = 0;
        loop {
            let before = tensors;
            for agent in agents.iter_mut() {
                match agent.ask(&format!("put t{tensors} {} 1", 7 * MB)) {
                    Ok(_) => tensors += 1,
                    Err(refused) => assert!(refused.contains("the share of uid"), "{refused}"),
                }
            }
            if tensors == before {
                return tensors;
            }
        }
    };
    let mut range: Vec<Agent> = (FIRST..FIRST + 12).map(|uid| system.agent(uid)).collect();
    // In segments of 8 MiB: half of the pool for the range, nothing more for its owner, a third of the rest for another user.
    assert_eq!(fill(&mut range), 15);
    assert_eq!(fill(&mut [system.agent(ALICE)]), 0);
    // If each uid of the range had a share, Bob would get nothing.
    assert_eq!(fill(&mut [system.agent(BOB)]), 5);
}

#[test]
fn a_lease_that_is_kept_from_its_owner_is_charged_to_its_holder() {
    if cannot_run() {
        return;
    }
    const MB: u64 = 1 << 20;
    let system = System::start(&format!(
        "[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[uid]\nbytes_max = \"48MiB\"\nshare = false\n\
         [namespace.lab]\nwriters = [\"{ALICE}\", \"{BOB}\"]\nnames_max = 512\nmembers_max = 16\n"
    ));
    let (mut alice, mut bob) = (system.join(ALICE, "lab").unwrap(), system.join(BOB, "lab").unwrap());
    let put = |agent: &mut Agent, name: &str| agent.ask(&format!("put {name} {} 1", 7 * MB));
    // Bob leases every value before Alice replaces it, and keeps the leases under his own names.
    let mut kept = 0;
    while put(&mut alice, "x").is_ok() {
        bob.ok("hold x");
        kept += 1;
        bob.ok(&format!("keep x kept{kept}"));
    }
    assert!(kept >= 4, "{kept}");
    // The daemon soon charges Bob instead of Alice, and Alice can continue.
    tensorlend_tests::eventually("the charge to move", || put(&mut alice, "x").is_ok());
    let (mut hers, mut his) = (0, 0);
    loop {
        // Keeps the pool short of memory: otherwise the daemon does not check what leases keep.
        while put(&mut alice, &format!("a{hers}")).is_ok() {
            hers += 1;
        }
        if let Err(refused) = put(&mut bob, &format!("b{his}")) {
            assert!(refused.contains("uid.bytes_max"), "{refused}");
            break;
        }
        his += 1;
    }
    // 48 MiB, less Alice's values that Bob keeps. Without the charge for them, Bob would get five segments.
    assert!(his <= 3, "{his} segments, and {kept} kept");
    for i in 1..=kept {
        bob.ok(&format!("release kept{i}"));
    }
    tensorlend_tests::eventually("the charge to be back", || put(&mut bob, "more").is_ok());
}

/// A single user may use half of the pool; the rest is spilled to files, although the user is connected.
#[test]
fn a_living_user_at_his_share_goes_on_into_files() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let users = System::start(&format!(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[spill]\ndirectory = \"{}\"\n\
         bytes_max = \"1GiB\"\n",
        folder.path().display()
    ));
    let mut producer = users.agent(ALICE);
    let sums: Vec<String> = (0..24).map(|i| producer.ok(&format!("put t{i} {} {i}", 4 << 20))).collect();
    for (i, expected) in sums.iter().enumerate() {
        let mut reader = users.agent(ALICE);
        assert!(reader.ok(&format!("sum t{i}")).ends_with(expected.as_str()), "t{i}");
    }
    // Another user still gets its half.
    let mut other = users.agent(BOB);
    for i in 0..5 {
        other.ok(&format!("put t{i} {} {i}", 4 << 20));
    }
    assert_eq!(producer.ok("delete t3"), "true");
}

/// Returns the ranges of segments that this process has mapped writable.
fn own_segments() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_own = |line: &&str| line.contains("memfd:tensorlend-segment") && line.contains(" rw-s ");
    maps.lines().filter(is_own).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Punches a hole into each of these segments. Returns true if the kernel allowed it.
fn punch(segments: &[String]) -> bool {
    use rustix::fs::{FallocateFlags, Mode, OFlags};
    assert!(!segments.is_empty());
    let punched = segments.iter().map(|range| {
        // Only root may open these files; MADV_REMOVE on the mapping does the same for any user.
        let fd = rustix::fs::open(format!("/proc/self/map_files/{range}"), OFlags::RDWR, Mode::empty()).unwrap();
        let length = rustix::fs::fstat(&fd).unwrap().st_size as u64;
        match rustix::fs::fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, length) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::PERM);
                false
            }
        }
    });
    punched.collect::<Vec<_>>().contains(&true)
}

/// The section on holes in SECURITY.md: in user mode the seal forbids them to the segment's own writer; in system mode
/// its readers see zeroes, and get no signal.
#[test]
fn a_writer_punches_its_own_segment_in_system_mode_only() {
    if skip_without_root() {
        return;
    }
    for (mode, may_punch) in [("user", false), ("system", true)] {
        let daemon = Daemon::start(&format!("mode = \"{mode}\"\n"));
        let before = own_segments();
        let writer = daemon.client();
        writer.put("x", &[7u8; 10_000]).unwrap();
        let own: Vec<String> = own_segments().into_iter().filter(|range| !before.contains(range)).collect();
        // The daemon seals a segment before any other client gets it.
        let mut reader = daemon.agent();
        let before = reader.ok("sum x");
        assert_eq!(punch(&own), may_punch, "{mode}");
        let after = reader.ok("sum x");
        assert_eq!(before != after, may_punch, "{mode}");
        writer.put("zeroes", &[0u8; 10_000]).unwrap();
        assert_eq!(after == reader.ok("sum zeroes"), may_punch, "{mode}");
    }
}
