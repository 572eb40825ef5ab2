//! Exhausted machines: memory, descriptors, and others. Requests for memory return an error instead of a later signal;
//! client and daemon continue.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::path::{Path, PathBuf};
use std::process::Command;
use tensorlend::{Client, DType};
use tensorlend_tests::{Agent, Daemon, PATIENCE, binary, eventually, run, skip, skip_without, skip_without_root};

const MB: u64 = 1 << 20;

fn limited(limit: &str, program: &Path) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(limit).arg(program);
    command
}

/// Publishes until memory is exhausted. Returns the number of tensors, and the error.
fn fill(client: &Client, bytes: u64) -> (u64, tensorlend::Error) {
    for number in 0.. {
        match client.create(DType::U8, &[bytes]) {
            Ok(mut draft) => {
                draft.bytes_mut().fill(number as u8);
                draft.publish(&format!("t{number}")).unwrap();
            }
            Err(error) => return (number, error),
        }
    }
    unreachable!("memory has an end")
}

/// Checks that published tensors are whole, and that freed memory can be used again.
fn still_works(client: &Client, count: u64, bytes: u64) {
    for number in 0..count {
        let lease = client.get(&format!("t{number}")).unwrap();
        assert!(lease.bytes().iter().all(|byte| *byte == number as u8), "t{number} was harmed");
    }
    client.delete("t0").unwrap();
    client.create(DType::U8, &[bytes]).unwrap();
}

/// The test's own memory cgroup, if it may create one.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

impl Group {
    fn make(bytes: u64) -> Option<Self> {
        let name = format!("tensorlend-test-{}", std::process::id());
        let places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        places.into_iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(&name);
            std::fs::create_dir(&path).ok()?;
            let group = Self { path, limit };
            std::fs::write(group.path.join(group.limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Starts a daemon in its own memory cgroup.
fn grouped(group: &Group, config: &str) -> Daemon {
    Daemon::start_as(config, |program| {
        let mut command = Command::new("sh");
        command.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(group.path.join("cgroup.procs")).arg(program);
        command
    })
}

#[test]
fn in_a_memory_cgroup_the_pool_ends_before_the_group_does() {
    const LIMIT: u64 = 128 * MB;
    let Some(group) = Group::make(LIMIT) else {
        skip("no memory cgroup can be made here");
        return;
    };
    {
        let daemon = grouped(&group, "[pool]\nsegment_bytes = \"4MiB\"\n");
        let client = daemon.client();
        let most = client.stat().unwrap().pool_bytes_max;
        assert!(most <= LIMIT / 2, "{most} bytes of a group that may have {LIMIT}");
        let (count, error) = fill(&client, 3 * MB);
        assert!(error.is_limit(), "{error}");
        assert!(count >= 15, "{count} tensors of 3 MiB in {most} bytes");
        still_works(&client, count, 3 * MB);
    }
    {
        // The configured pool exceeds the cgroup's limit. The daemon stays below the limit, beyond which the kernel
        // would kill it.
        let daemon = grouped(&group, "[pool]\nsegment_bytes = \"4MiB\"\nbytes_max = \"1GiB\"\n");
        let client = daemon.client();
        let (count, error) = fill(&client, 3 * MB);
        assert!(error.to_string().contains("bytes left"), "{error}");
        assert!(count >= 15, "{count} tensors of 3 MiB in a group of {LIMIT} bytes");
        println!("{count} tensors of 3 MiB, then: {error}");
        still_works(&client, count, 3 * MB);
    }
    eventually("the group's end", || std::fs::remove_dir(&group.path).is_ok());
}

#[test]
fn segments_above_the_limit_of_file_sizes() {
    if skip_without("prlimit") {
        return;
    }
    let config = "[pool]\nsegment_bytes = \"4MiB\"\nbytes_max = \"256MiB\"\n";
    let daemon = Daemon::start_as(config, |program| limited("--fsize=67108864", program));
    let client = daemon.client();
    for _ in 0..3 {
        let error = client.create(DType::U8, &[100 * MB]).unwrap_err();
        assert!(error.to_string().contains("no memory"), "{error}");
    }
    client.put("small", &[1u8; 1000]).unwrap();
    client.put("large", &vec![2u8; 60 << 20]).unwrap();
    assert_eq!(daemon.client().get("large").unwrap().bytes()[60 << 19], 2);
    drop(client);
}

#[test]
fn a_daemon_without_descriptors_says_so() {
    if skip_without("prlimit") {
        return;
    }
    let daemon = Daemon::start_as("", |program| limited("--nofile=64:64", program));
    let mut first = daemon.agent();
    let sum = first.ok("put x 1000 1");
    let mut agents: Vec<Agent> = Vec::new();
    let refused = (0..64).find_map(|_| {
        let mut agent = Agent::start();
        agent.tell(&format!("connect {}", daemon.socket().display()));
        let answer = agent.answer_within(PATIENCE).expect("an answer, whatever it is");
        agents.push(agent);
        answer.err()
    });
    let refused = refused.expect("64 descriptors are not enough for 64 clients");
    println!("{} clients, then: {refused}", agents.len() - 1);
    // Connected clients continue: requests that need no more descriptors succeed, others are refused.
    assert!(first.ok("sum x").ends_with(&sum));
    first.ok("ping");
    if let Err(error) = first.ask("put large 100000000 1") {
        assert!(error.contains("memory") || error.contains("files"), "{error}");
    }
    drop(agents);
    eventually("room for another", || Client::builder().socket(daemon.socket()).connect().is_ok());
    let large = first.ok("put large 100000000 2");
    assert!(first.ok("sum large").ends_with(&large));
}

#[test]
fn nothing_is_locked_in_memory() {
    if skip_without("prlimit") {
        return;
    }
    let daemon = Daemon::start_as("", |program| limited("--memlock=0:0", program));
    let mut agent = Agent::start_as(|program| limited("--memlock=0:0", program));
    agent.ok(&format!("connect {}", daemon.socket().display()));
    let sum = agent.ok("put x 10000000 1");
    assert!(agent.ok("sum x").ends_with(&sum));
}

#[test]
fn without_huge_pages_there_are_ordinary_ones() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let daemon = Daemon::start("[pool]\nhuge_pages = \"2M\"\nsegment_bytes = \"4MiB\"\nbytes_max = \"64MiB\"\n");
    let client = daemon.client();
    let (count, error) = fill(&client, 3 * MB);
    assert!(error.is_limit() && error.to_string().contains("pool.bytes_max"), "{error}");
    still_works(&client, count, 3 * MB);
    match free.map(|text| text.trim() == "0") {
        Ok(false) => skip("that their lack is told: this machine has reserved some"),
        _ => assert!(daemon.log().contains("no reserved huge pages"), "{}", daemon.log()),
    }
}

#[test]
fn a_client_without_room_for_a_mapping_says_so_and_goes_on() {
    if skip_without("prlimit") {
        return;
    }
    let daemon = Daemon::start("");
    let mut producer = daemon.agent();
    let large = producer.ok("put large 400000000 1");
    let before = daemon.client().stat().unwrap().bytes_in_use;
    let mut client = Agent::start_as(|program| limited("--as=314572800", program));
    client.ok(&format!("connect {}", daemon.socket().display()));
    let own = client.ok("put own 1000 2");
    for _ in 0..5 {
        for order in ["sum large", "put larger 410000000 3"] {
            let error = client.ask(order).unwrap_err();
            assert!(error.contains("Cannot allocate memory"), "{order}: {error}");
        }
        assert!(client.ok("sum own").ends_with(&own));
    }
    let watcher = daemon.client();
    eventually("the return of what could not be mapped", || watcher.stat().unwrap().bytes_in_use <= before + 64 * MB);
    assert!(producer.ok("sum large").ends_with(&large));
}

/// A client cannot return cells. So it keeps those that it cannot map until it can.
#[test]
fn a_client_without_room_for_cells_says_so_and_maps_them_later() {
    let daemon = Daemon::start("");
    let mut client = daemon.agent();
    client.ok("many name 4000");
    let watcher = daemon.client();
    let before = watcher.stat().unwrap().bytes_sheets;
    let pid = Pid::from_raw(client.pid().cast_signed());
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", client.pid())).unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let limit = Rlimit { current: Some(pages * 4096 + 32 * 1024), maximum: getrlimit(Resource::As).maximum };
    let unlimited = prlimit(pid, Resource::As, limit).unwrap();
    for _ in 0..3 {
        let error = client.ask("many name 5000").unwrap_err();
        assert!(error.contains("Cannot allocate memory"), "{error}");
        client.ok("ping");
    }
    prlimit(pid, Resource::As, unlimited).unwrap();
    let kept = watcher.stat().unwrap().bytes_sheets;
    client.ok("many name 5000");
    assert!(kept > before && watcher.stat().unwrap().bytes_sheets == kept, "one part of cells is lent, once");
    assert_eq!(client.ok("list"), "5000");
}

/// With this few descriptors the daemon could serve nobody. It names the limit instead of the first operation that
/// fails.
#[test]
fn a_daemon_with_next_to_no_descriptors_names_the_limit() {
    if skip_without("prlimit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for limit in [16, 32] {
        let mut command = limited(&format!("--nofile={limit}:{limit}"), &binary("tensorlendd"));
        let done = run(command.arg("--socket").arg(folder.path().join("s")));
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains("RLIMIT_NOFILE") && said.contains(&format!("{limit} open descriptors")), "{said}");
    }
}

/// A daemon without /proc could lend no memory.
#[test]
fn a_daemon_without_proc_says_so() {
    if skip_without_root() || skip_without("unshare") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", "mount -t tmpfs tmpfs /proc && exec \"$@\"", "sh"]);
    let done = run(command.arg(binary("tensorlendd")).arg("--socket").arg(folder.path().join("s")));
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("mount:") {
        return skip("nothing can be mounted here");
    }
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("mount proc on /proc"), "{said}");
}
