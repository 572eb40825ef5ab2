//! Spilling segments to files when memory is short, with real processes.

use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;
use tempfile::TempDir;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Agent, Daemon, budget, eventually};

const MB: u64 = 1 << 20;
const POOL_MB: u64 = 64;

/// Returns a spill directory, and the configuration of a daemon with little memory.
fn config(mode: &str, more: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "mode = \"{mode}\"\n[pool]\nbytes_max = \"{POOL_MB}MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
         [spill]\ndirectory = \"{}\"\nbytes_max = \"2GiB\"\n{more}",
        folder.path().display()
    );
    (folder, config)
}

fn daemon(mode: &str, more: &str) -> (TempDir, Daemon) {
    let (folder, config) = config(mode, more);
    let daemon = Daemon::start(&config);
    (folder, daemon)
}

/// Publishes a tensor of this many MiB from a process that then exits. Returns the checksum.
fn leave(daemon: &Daemon, name: &str, megabytes: u64, seed: u64) -> Result<String, String> {
    leave_by(daemon.agent(), name, megabytes, seed)
}

fn leave_by(mut producer: Agent, name: &str, megabytes: u64, seed: u64) -> Result<String, String> {
    let sum = producer.ask(&format!("put {name} {} {seed}", megabytes * MB));
    let pid = producer.pid();
    producer.exit();
    eventually("the end of a producer", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    sum
}

fn sum(reader: &mut Agent, name: &str) -> String {
    let text = reader.ok(&format!("sum {name}"));
    text.rsplit(' ').next().unwrap().to_owned()
}

/// Returns the bytes of the daemon's unnamed files on disk, from its descriptors.
fn on_disk(daemon: &Daemon) -> u64 {
    on_disk_of(daemon.pid())
}

fn on_disk_of(pid: u32) -> u64 {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let files = links.filter_map(|link| {
        let path = link.unwrap().path();
        let target = std::fs::read_link(&path).ok()?.to_string_lossy().into_owned();
        let unnamed = target.contains("(deleted)") && !target.starts_with("/memfd:");
        unnamed.then(|| std::fs::metadata(&path).map_or(0, |file| file.len().min(file.blocks() * 512)))
    });
    files.sum()
}

#[test]
fn far_more_than_the_pool_passes_through_it() {
    let all = budget(320, 1024);
    for mode in ["user", "system"] {
        let (folder, daemon) = daemon(mode, "");
        let count = all / 16;
        let sums: Vec<String> = (0..count).map(|i| leave(&daemon, &format!("t{i}"), 16, i).unwrap()).collect();
        let stat = daemon.client().stat().unwrap();
        assert!(stat.pool_bytes <= POOL_MB * MB, "{stat:?}");
        assert!(stat.bytes_spilled >= (all - POOL_MB) * MB, "{stat:?}");
        assert_eq!(stat.names, count);
        assert!(on_disk(&daemon) >= stat.bytes_spilled);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files without names");

        // Read by one process, then each by a separate process.
        let mut reader = daemon.agent();
        for (i, expected) in sums.iter().enumerate() {
            assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}");
        }
        // While the reader lives, it keeps its latest reads mapped as long as it needs no memory itself.
        reader.exit();
        for i in [0, count / 2, count - 1] {
            assert_eq!(sum(&mut daemon.agent(), &format!("t{i}")), sums[i as usize]);
        }
        // Leased tensors stay in memory.
        let mut reader = daemon.agent();
        reader.ok("hold t5");
        for i in 0..8 {
            leave(&daemon, &format!("more{i}"), 16, 100 + i).unwrap();
        }
        assert_eq!(reader.ok("held t5"), sums[5]);
        let mut other = daemon.agent();
        for i in 0..count {
            assert_eq!(other.ok(&format!("delete t{i}")), "true");
        }
        for i in 0..8 {
            assert_eq!(other.ok(&format!("delete more{i}")), "true");
        }
        reader.exit();
        let client = daemon.client();
        eventually("the end of the files", || client.stat().unwrap().bytes_spilled == 0 && on_disk(&daemon) == 0);
        assert_eq!(client.stat().unwrap().spill_failures, 0);
    }
}

#[test]
fn limits_reached_it_is_as_it_was() {
    let (_folder, daemon) = daemon("user", "uid_bytes_max = \"32MiB\"\n");
    let mut left = 0;
    let refused = loop {
        match leave(&daemon, &format!("t{left}"), 16, left) {
            Ok(_) => left += 1,
            Err(refused) => break refused,
        }
        assert!(left < 16, "the limit of a uid's files was not kept");
    };
    assert!(refused.contains("pool.bytes_max"), "{refused}");
    let stat = daemon.client().stat().unwrap();
    assert!(stat.bytes_spilled <= 32 * MB && stat.bytes_spilled >= 16 * MB, "{stat:?}");
    // The limit also holds for a live client.
    let (_folder, daemon) = self::daemon("user", "uid_bytes_max = \"32MiB\"\n");
    let mut producer = daemon.agent();
    while producer.ask(&format!("put t{left} {} 1", 16 * MB)).is_ok() {
        left += 1;
        assert!(left < 32);
    }
    let stat = daemon.client().stat().unwrap();
    assert!((16 * MB..=32 * MB).contains(&stat.bytes_spilled), "{stat:?}");
}

/// One process publishes eight times the pool, and continues to read, overwrite and delete.
#[test]
fn what_a_living_producer_has_published_is_spilled() {
    for mode in ["user", "system"] {
        let (folder, daemon) = daemon(mode, "");
        let mut producer = daemon.agent();
        let put = |producer: &mut Agent, i: u64, seed: u64| producer.ok(&format!("put t{i} {} {seed}", 16 * MB));
        let mut sums: Vec<String> = (0..32).map(|i| put(&mut producer, i, i)).collect();
        let client = daemon.client();
        let stat = client.stat().unwrap();
        assert!(stat.pool_bytes <= POOL_MB * MB && stat.bytes_spilled >= (512 - POOL_MB) * MB, "{stat:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files without names");
        // It reads its own values as any other client does.
        for i in [0, 31, 7] {
            assert_eq!(sum(&mut producer, &format!("t{i}")), sums[i as usize], "{mode}");
        }
        for i in [3, 4, 31] {
            sums[i as usize] = put(&mut producer, i, 100 + i);
        }
        for i in 8..16 {
            assert_eq!(producer.ok(&format!("delete t{i}")), "true");
        }
        eventually("room in the files", || client.stat().unwrap().bytes_spilled < (512 - POOL_MB) * MB);
        for i in (0..8).chain(16..32) {
            assert_eq!(sum(&mut daemon.agent(), &format!("t{i}")), sums[i], "t{i}, {mode}");
        }
        // The producer exits, and its values stay in their files.
        producer.exit();
        for i in (0..8).chain(16..32) {
            let mut reader = daemon.agent();
            assert_eq!(sum(&mut reader, &format!("t{i}")), sums[i], "t{i}, {mode}, later");
            assert_eq!(reader.ok(&format!("delete t{i}")), "true");
        }
        eventually("the end of the files", || client.stat().unwrap().bytes_spilled == 0 && on_disk(&daemon) == 0);
        assert_eq!(client.stat().unwrap().spill_failures, 0);
    }
}

/// Drafts and leased tensors stay in memory; small tensors are spilled with the others.
#[test]
fn what_is_being_written_or_read_stays() {
    let (_folder, daemon) = daemon("user", "");
    let producer = daemon.client();
    let fill = |draft: &mut tensorlend::Draft, byte: u8| draft.bytes_mut().fill(byte);
    let mut early: Vec<tensorlend::Draft> = Vec::new();
    let mut pinned = Vec::new();
    for i in 0..200_u8 {
        let mut draft = producer.create(tensorlend::DType::U8, &[MB]).unwrap();
        fill(&mut draft, i);
        match i % 40 {
            0 => early.push(draft),
            1 => {
                pinned.push(draft.pin().unwrap());
                draft.publish(&format!("t{i}")).unwrap();
            }
            _ => _ = draft.publish(&format!("t{i}")).unwrap(),
        }
        producer.put(&format!("small{i}"), &[i; 100]).unwrap();
    }
    let leased = producer.get("t2").unwrap();
    assert!(producer.stat().unwrap().bytes_spilled >= 64 * MB);
    for (at, mut draft) in early.drain(..).enumerate() {
        fill(&mut draft, 200 + at as u8);
        draft.publish(&format!("early{at}")).unwrap();
    }
    drop(pinned);
    for i in 200..220_u8 {
        let mut draft = producer.create(tensorlend::DType::U8, &[MB]).unwrap();
        fill(&mut draft, i);
        draft.publish(&format!("t{i}")).unwrap();
    }
    let reader = daemon.client();
    for i in (0..220_u8).filter(|i| *i >= 200 || i % 40 != 0) {
        let found = reader.get(&format!("t{i}")).unwrap();
        assert!(found.bytes().len() as u64 == MB && found.bytes().iter().all(|&byte| byte == i), "t{i}");
    }
    for i in 0..200_u8 {
        assert_eq!(reader.get(&format!("small{i}")).unwrap().bytes(), [i; 100]);
    }
    for at in 0..5_u8 {
        assert!(reader.get(&format!("early{at}")).unwrap().bytes().iter().all(|&byte| byte == 200 + at));
    }
    assert!(leased.bytes().iter().all(|&byte| byte == 2));
}

/// A live producer's daemon is killed. The fd store preserves the released segments.
#[test]
fn a_living_producer_goes_on_after_its_daemon_was_killed() {
    for mode in ["user", "system"] {
        let (_folder, config) = config(mode, "");
        let mut service = Service::start(&config);
        let mut producer = agent_of(&service);
        let put = |producer: &mut Agent, i: u64, seed: u64| producer.ok(&format!("put t{i} {} {seed}", 16 * MB));
        let mut sums: Vec<String> = (0..12).map(|i| put(&mut producer, i, i)).collect();
        let before = service.client().stat().unwrap().bytes_spilled;
        assert!(before >= (12 * 16 - POOL_MB) * MB);
        for round in 0..2 {
            service.end(Signal::KILL);
            service.start_again();
            // The client reports the released segments that are still in memory when it reconnects.
            producer.ok("ping");
            assert_eq!(service.client().stat().unwrap().bytes_spilled, before, "{mode}, round {round}");
            let mut reader = agent_of(&service);
            for (i, expected) in sums.iter().enumerate() {
                assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}, round {round}");
            }
            reader.exit();
        }
        // All values can be overwritten and deleted, and nothing is left.
        for i in 0..12 {
            sums[i as usize] = put(&mut producer, i, 200 + i);
        }
        for i in 0..12 {
            assert_eq!(sum(&mut producer, &format!("t{i}")), sums[i as usize]);
        }
        for i in 0..12 {
            assert_eq!(producer.ok(&format!("delete t{i}")), "true");
        }
        producer.exit();
        let client = service.client();
        eventually("the end of the files", || {
            let stat = client.stat().unwrap();
            (stat.bytes_spilled, stat.segments) == (0, 0) && on_disk_of(service.pid()) == 0
        });
    }
}

#[test]
fn a_killed_daemon_leaves_nothing_on_the_disk() {
    let (folder, daemon) = daemon("user", "");
    for i in 0..8 {
        leave(&daemon, &format!("t{i}"), 16, i).unwrap();
    }
    assert!(on_disk(&daemon) > 0);
    tensorlend_tests::signal(daemon.pid(), Signal::KILL);
    drop(daemon);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn without_a_directory_nothing_is_spilled_until_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[spill]\ndirectory = \"/nowhere/at/all\"\n").unwrap();
    let mut command = std::process::Command::new(tensorlend_tests::binary("tensorlendd"));
    command.arg("--check-config").arg("--config").arg(&config).arg("--socket").arg(folder.path().join("socket"));
    let output = tensorlend_tests::run(&mut command);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("spill.directory") && said.contains("/nowhere/at/all"), "{said}");

    let place = folder.path().join("made-later");
    let daemon = Daemon::start(&format!(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
         [spill]\ndirectory = \"{}\"\n",
        place.display()
    ));
    assert!(daemon.log().contains("the daemon spills nothing"), "{}", daemon.log());
    std::fs::create_dir(&place).unwrap();
    for i in 0..8 {
        leave(&daemon, &format!("t{i}"), 16, i).unwrap();
    }
    assert!(on_disk(&daemon) > 0);
}

fn agent_of(service: &Service) -> Agent {
    let mut agent = Agent::start();
    agent.ok(&format!("connect {}", service.socket().display()));
    agent
}

/// A killed daemon's spill files survive in its successor, and in the one after that: with an fd store, in both modes.
#[test]
fn what_was_spilled_outlives_a_killed_daemon() {
    for mode in ["user", "system"] {
        let (folder, config) = config(mode, "");
        let mut service = Service::start(&config);
        let count = 16;
        let sums: Vec<String> =
            (0..count).map(|i| leave_by(agent_of(&service), &format!("t{i}"), 16, i).unwrap()).collect();
        let before = service.client().stat().unwrap();
        assert!(before.bytes_spilled >= (16 * 16 - POOL_MB) * MB, "{before:?}");
        let mut living = service.client();
        for round in 0..3 {
            // A request acknowledges the session: the next daemon drops unacknowledged ones.
            living.stat().unwrap();
            match round {
                1 => {
                    service.end(Signal::TERM);
                    service.start_again();
                }
                _ => service.restart(),
            }
            let after = living.stat().unwrap();
            assert_eq!((after.names, after.bytes_spilled), (count, before.bytes_spilled), "{mode}, round {round}");
            assert!(on_disk_of(service.pid()) >= after.bytes_spilled);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files without names");
            living = service.client();
        }
        let mut reader = agent_of(&service);
        for (i, expected) in sums.iter().enumerate() {
            assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}");
        }
        // It has mapped its latest reads, up to the size of the pool.
        reader.exit();
        // Kills the daemon while segments, and their stored descriptors, come and go.
        for round in 0..6u64 {
            let mut busy = agent_of(&service);
            let names: Vec<String> = (0..count).map(|i| format!("t{}", (i * 7 + round) % count)).collect();
            for name in names.iter().take(3 + round as usize) {
                sum(&mut busy, name);
            }
            service.restart();
            busy.exit();
        }
        let mut reader = agent_of(&service);
        for (i, expected) in sums.iter().enumerate() {
            assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}, at last");
            assert_eq!(reader.ok(&format!("delete t{i}")), "true");
        }
        reader.exit();
        eventually("the end of the files", || {
            let stat = living.stat().unwrap();
            (stat.bytes_spilled, stat.segments) == (0, 0) && on_disk_of(service.pid()) == 0
        });
        assert_eq!(living.stat().unwrap().spill_failures, 0);
        drop(living);
        eventually("that nothing is kept", || service.kept().is_empty());
    }
}

/// A daemon without `[spill]` reads its predecessor's files, and spills nothing.
#[test]
fn the_next_daemon_needs_no_directory_to_read_back() {
    let (_folder, config) = config("system", "");
    let mut service = Service::start(&config);
    let sums: Vec<String> = (0..8).map(|i| leave_by(agent_of(&service), &format!("t{i}"), 16, i).unwrap()).collect();
    service.end(Signal::KILL);
    service.configure("mode = \"system\"\n[pool]\nbytes_max = \"256MiB\"\nsegment_bytes = \"8MiB\"\n");
    service.start_again();
    assert!(service.client().stat().unwrap().bytes_spilled > 0);
    let mut reader = agent_of(&service);
    for (i, expected) in sums.iter().enumerate() {
        assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}");
    }
    assert_eq!(service.client().stat().unwrap().bytes_spilled, 0);
}

#[test]
fn above_the_high_mark_nobody_is_refused_first() {
    let (_folder, daemon) = daemon("user", "high_water_percent = 50\nlow_water_percent = 25\n");
    let client = daemon.client();
    leave(&daemon, "t0", 16, 0).unwrap();
    assert_eq!(client.stat().unwrap().bytes_spilled, 0);
    let expected = leave(&daemon, "t1", 16, 1).unwrap();
    leave(&daemon, "t2", 16, 2).unwrap();
    eventually("the low mark", || client.stat().unwrap().bytes_in_use <= POOL_MB * MB / 4);
    assert_eq!(client.stat().unwrap().refusals.total(), 0);
    assert_eq!(sum(&mut daemon.agent(), "t1"), expected);
}

/// Datasets whose tensors are in several segments each: deleting them frees all these segments while their owner lives.
#[test]
fn deleting_values_leaves_no_released_segment() {
    let (_folder, daemon) = daemon("user", "");
    let producer = daemon.client();
    let tensor = |byte: u8| {
        let mut draft = producer.create(tensorlend::DType::U8, &[5 * MB]).unwrap();
        draft.bytes_mut().fill(byte);
        draft
    };
    for i in 0..10 {
        let members = producer.dataset().add("a", tensor(i)).unwrap().add("b", tensor(i)).unwrap();
        members.add("c", tensor(i)).unwrap().publish(&format!("set{i}")).unwrap();
    }
    assert!(producer.stat().unwrap().bytes_spilled >= 64 * MB);
    let reader = daemon.client();
    let held = reader.get_dataset("set3").unwrap();
    for i in 0..10 {
        assert!(producer.delete(&format!("set{i}")).unwrap());
    }
    let few = |stat: &tensorlend::Stat| stat.bytes_spilled == 0 && stat.segments <= 8;
    eventually("the end of what nobody reads", || {
        // Publishing makes the producer scan its retired slots.
        producer.put("again", &[1u8; 8]).unwrap();
        let stat = producer.stat().unwrap();
        stat.bytes_spilled <= 24 * MB
    });
    assert!(held.get("b").unwrap().bytes().iter().all(|&byte| byte == 3));
    drop(held);
    eventually("the end of all of it", || {
        drop(tensor(0));
        producer.put("again", &[1u8; 8]).unwrap();
        few(&producer.stat().unwrap())
    });
}

/// Without spilling, a full pool still has room for small tensors next to large ones, again and again.
#[test]
fn without_a_directory_nothing_changes() {
    let daemon =
        Daemon::start("mode = \"user\"\n[pool]\nbytes_max = \"16MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n");
    let producer = daemon.client();
    let large =
        |name: &str, bytes: u64| producer.create(tensorlend::DType::U8, &[bytes]).and_then(|it| it.publish(name));
    large("a", 7 * MB).unwrap();
    large("b", 7 * MB).unwrap();
    let (before, start) = (producer.stat().unwrap().refusals.total(), std::time::Instant::now());
    for i in 0..200u32 {
        producer.put(&format!("small{i}"), &[i; 100]).unwrap_or_else(|e| panic!("small{i}: {e}"));
        if i % 50 == 0 {
            // Longer than the client's pause between two attempts to release memory.
            std::thread::sleep(std::time::Duration::from_millis(150));
            assert!(large("c", 12 * MB).unwrap_err().is_limit());
        }
    }
    // The client pauses 100 ms between two requests, which bounds their rate on a machine of any speed.
    let refused = producer.stat().unwrap().refusals.total() - before;
    let pauses = start.elapsed().as_millis() as u64 / 100;
    assert!(refused < 60 + 2 * pauses, "the daemon refused {refused} requests in {pauses} pauses");
}

/// Readers that make no call keep no segment in memory that the daemon wants to spill, except those with leases.
#[test]
fn idle_readers_let_go_of_what_others_need() {
    for mode in ["user", "system"] {
        let (_folder, daemon) = daemon(mode, "");
        let sums: Vec<String> = (0..4).map(|i| leave(&daemon, &format!("t{i}"), 15, i).unwrap()).collect();
        let mut readers = [daemon.agent(), daemon.agent()];
        for reader in &mut readers {
            for (i, expected) in sums.iter().enumerate() {
                assert_eq!(&sum(reader, &format!("t{i}")), expected);
            }
        }
        readers[0].ok("hold t1");
        // The readers make no call in the meantime, and have all segments of the full pool mapped.
        for i in 4..10 {
            leave(&daemon, &format!("t{i}"), 15, i).unwrap();
        }
        assert!(daemon.client().stat().unwrap().bytes_spilled >= 6 * 15 * MB);
        assert_eq!(readers[0].ok("held t1"), sums[1], "a lease keeps its value");
        for reader in &mut readers {
            for (i, expected) in sums.iter().enumerate() {
                assert_eq!(&sum(reader, &format!("t{i}")), expected, "t{i}, {mode}");
            }
        }
    }
}

/// Owners that make no call release their published segments.
#[test]
fn idle_owners_let_go_of_what_they_published() {
    for mode in ["user", "system"] {
        let (_folder, daemon) = daemon(mode, "");
        let mut owners: Vec<(Agent, String)> = (0..4)
            .map(|i| {
                let mut owner = daemon.agent();
                let sum = owner.ok(&format!("put t{i} {} {i}", 15 * MB));
                (owner, sum)
            })
            .collect();
        for i in 4..8 {
            leave(&daemon, &format!("t{i}"), 15, i).unwrap();
        }
        let mut reader = daemon.agent();
        for (i, (owner, expected)) in owners.iter_mut().enumerate() {
            assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}");
            assert_eq!(&sum(owner, &format!("t{i}")), expected);
        }
    }
}
