//! Segments that go to files when memory is short, with real processes.

use std::os::unix::fs::MetadataExt;
use tempfile::TempDir;
use tensorlend_tests::{Agent, Daemon, eventually};

const MB: u64 = 1 << 20;
const POOL_MB: u64 = 64;

/// A daemon with little memory, and a folder for what does not fit.
fn daemon(mode: &str, more: &str) -> (TempDir, Daemon) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "mode = \"{mode}\"\n[pool]\nbytes_max = \"{POOL_MB}MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n\
         [spill]\ndirectory = \"{}\"\nbytes_max = \"2GiB\"\n{more}",
        folder.path().display()
    );
    let daemon = Daemon::start(&config);
    (folder, daemon)
}

/// Puts so many MiB under each name, from a process that is gone afterwards. Returns the checksum.
fn leave(daemon: &Daemon, name: &str, megabytes: u64, seed: u64) -> Result<String, String> {
    let mut producer = daemon.agent();
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

/// What the daemon has on the disk, by its descriptors: of files that have no name.
fn on_disk(daemon: &Daemon) -> u64 {
    let links = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
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
    tensorlend_tests::signal(daemon.pid(), rustix::process::Signal::KILL);
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
