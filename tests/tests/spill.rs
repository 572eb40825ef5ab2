//! Segments that go to files when memory is short, with real processes.

use rustix::process::Signal;
use std::os::unix::fs::MetadataExt;
use tempfile::TempDir;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Agent, Daemon, eventually};

const MB: u64 = 1 << 20;
const POOL_MB: u64 = 64;

/// A folder for what does not fit, and the configuration of a daemon with little memory.
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

/// Puts so many MiB under each name, from a process that is gone afterwards. Returns the checksum.
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

/// What a daemon has on the disk, by its descriptors: of files that have no name.
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
fn a_gibibyte_passes_through_a_small_pool() {
    for mode in ["user", "system"] {
        let (folder, daemon) = daemon(mode, "");
        let count = 1024 / 16;
        let sums: Vec<String> = (0..count).map(|i| leave(&daemon, &format!("t{i}"), 16, i).unwrap()).collect();
        let stat = daemon.client().stat().unwrap();
        assert!(stat.pool_bytes <= POOL_MB * MB, "{stat:?}");
        assert!(stat.bytes_spilled >= (1024 - POOL_MB) * MB, "{stat:?}");
        assert_eq!(stat.names, count);
        assert!(on_disk(&daemon) >= stat.bytes_spilled);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files without names");

        // In one process, and each in one of its own.
        let mut reader = daemon.agent();
        for (i, expected) in sums.iter().enumerate() {
            assert_eq!(&sum(&mut reader, &format!("t{i}")), expected, "t{i}, {mode}");
        }
        // It keeps mapped what it has read last, as long as it needs no memory itself.
        reader.exit();
        for i in [0, 31, 63] {
            assert_eq!(sum(&mut daemon.agent(), &format!("t{i}")), sums[i]);
        }
        // What is leased stays.
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
    // Nobody can be spilled who lives.
    let (_folder, daemon) = self::daemon("user", "");
    let mut producer = daemon.agent();
    while producer.ask(&format!("put t{left} {} 1", 16 * MB)).is_ok() {
        left += 1;
        assert!(left < 32);
    }
    assert_eq!(daemon.client().stat().unwrap().bytes_spilled, 0);
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
fn a_directory_that_takes_no_file_is_a_wrong_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[spill]\ndirectory = \"/nowhere/at/all\"\n").unwrap();
    let mut command = std::process::Command::new(tensorlend_tests::binary("tensorlendd"));
    command.arg("--config").arg(&config).arg("--socket").arg(folder.path().join("socket"));
    let output = tensorlend_tests::run(&mut command);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("spill.directory") && said.contains("/nowhere/at/all"), "{said}");
}

fn agent_of(service: &Service) -> Agent {
    let mut agent = Agent::start();
    agent.ok(&format!("connect {}", service.socket().display()));
    agent
}

/// What a killed daemon had in files, the next one has, and the one after it: with a keeper, in both modes.
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
            // It has been heard of: a session that was not acknowledged is none to the next daemon.
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
        // It has mapped what it read last, as much as the pool has.
        reader.exit();
        // Killed while segments come and go, and with them what is kept.
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

/// A daemon without `[spill]` reads what one before it has spilled, and spills nothing.
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
    assert_eq!(client.stat().unwrap().refusals, 0);
    assert_eq!(sum(&mut daemon.agent(), "t1"), expected);
}
