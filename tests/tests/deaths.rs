//! Processes that die, and the resources that they leave.

use rustix::process::Signal;
use std::process::Command;
use tensorlend_tests::{Daemon, eventually, run, settled, signal, skip, skip_without, skip_without_root};

const MB: u64 = 1 << 20;

#[test]
fn a_consumer_killed_while_it_reads_gives_the_slot_back() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    producer.ok(&format!("put x {} 0", 20 * MB));
    consumer.ok("hold x");
    // The held slot cannot be reused; two more fit into the segment's 64 MiB.
    producer.ok(&format!("put x {} 1", 20 * MB));
    let before = daemon.client().stat().unwrap().bytes_in_use;
    consumer.kill();
    let watcher = daemon.client();
    eventually("the end of the consumer", || watcher.stat().unwrap().clients == 2);
    for seed in 2..30 {
        producer.ok(&format!("put x {} {seed}", 20 * MB));
    }
    assert_eq!(watcher.stat().unwrap().bytes_in_use, before, "the dead consumer's slot was never reused");
}

/// A daemon in its own pid namespace sees processes outside it as pid 0 (SO_PEERCRED, unix(7)).
#[test]
fn processes_that_the_daemon_cannot_number_come_and_die_like_others() {
    if skip_without_root() || skip_without("unshare") {
        return;
    }
    let apart = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(program);
        command
    };
    if !run(&mut apart("true")).status.success() {
        return skip("no pid namespace can be made here");
    }
    let daemon = Daemon::start_as("mode = \"user\"\n", |program| apart(&program.display().to_string()));
    let watcher = daemon.client();
    let (mut producer, mut reader) = (daemon.agent(), daemon.agent());
    let sum = producer.ok("put x 5000 1");
    assert!(reader.ok("sum x").ends_with(&sum));
    assert_eq!(watcher.info("x").unwrap().pid, 0, "a number that nobody has");
    let listed = run(&mut daemon.cli(&["ls"]));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("? "), "{listed:?}");
    reader.ok("hold x");
    for mut died in [reader, producer] {
        let before = watcher.stat().unwrap().clients;
        died.kill();
        eventually("its end", || watcher.stat().unwrap().clients == before - 1);
    }
    assert!(!watcher.info("x").unwrap().alive);
    watcher.delete("x").unwrap();
    eventually("the return of its memory", || watcher.stat().unwrap().bytes_in_use == 0);
}

#[test]
fn a_producer_killed_in_the_middle_of_a_draft_leaves_nothing() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    let empty = watcher.stat().unwrap();
    let mut producer = daemon.agent();
    producer.ok(&format!("draft {}", 200 * MB));
    assert!(watcher.stat().unwrap().bytes_in_use >= 200 * MB);
    producer.kill();
    eventually("the memory's return", || watcher.stat().unwrap().bytes_in_use == empty.bytes_in_use);
    let after = watcher.stat().unwrap();
    assert_eq!((after.names, after.segments, after.frozen), (0, 0, 0));
    assert!(watcher.list("*").unwrap().is_empty());
}

#[test]
fn what_a_killed_producer_published_lives_on_and_can_be_deleted() {
    let daemon = Daemon::start("");
    let mut producer = daemon.agent();
    let sum = producer.ok(&format!("put x {} 0", 100 * MB));
    producer.ok(&format!("draft {}", 100 * MB));
    producer.kill();
    let mut consumer = daemon.agent();
    let watcher = daemon.client();
    eventually("the draft's end", || watcher.stat().unwrap().bytes_in_use < 200 * MB);
    assert!(consumer.ok("sum x").ends_with(&sum));
    consumer.ok("hold x");
    assert_eq!(consumer.ok("delete x"), "true");
    assert_eq!(consumer.ok("held x"), sum, "the lease stands after the deletion");
    assert!(watcher.stat().unwrap().bytes_in_use >= 100 * MB);
    consumer.ok("release x");
    eventually("the memory's return", || watcher.stat().unwrap().bytes_in_use == 0);
}

#[test]
fn a_stopped_consumer_keeps_its_slot_and_nobody_waits_for_it() {
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    let sum = producer.ok("put x 100000 0");
    consumer.ok("hold x");
    signal(consumer.pid(), Signal::STOP);
    for seed in 1..200 {
        producer.ok(&format!("put x 100000 {seed}"));
    }
    signal(consumer.pid(), Signal::CONT);
    assert_eq!(consumer.ok("held x"), sum);
}

#[test]
fn processes_that_come_and_go_leave_nothing() {
    let daemon = Daemon::start("");
    let watcher = daemon.client();
    for round in 0..15 {
        let mut agent = daemon.agent();
        agent.ok(&format!("put temporary {} {round}", 3 * MB));
        agent.ok("hold temporary");
        agent.ok("draft 1000");
        if round % 2 == 0 { agent.kill() } else { agent.exit() }
    }
    assert!(watcher.delete("temporary").unwrap());
    eventually("the return of everything", || {
        let stat = watcher.stat().unwrap();
        (stat.bytes_in_use, stat.segments, stat.clients, stat.frozen, stat.names) == (0, 0, 1, 0, 0)
    });
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    // A separate thread of the daemon closes them.
    eventually("the end of all descriptors but a few", || open() < 40);
}

/// Clients that come and go, and monitoring, leave the same number of descriptors after more cycles as after a few.
#[test]
fn cycles_of_clients_and_of_monitoring_leave_no_descriptor() {
    let daemon = Daemon::start("mode = \"system\"\n[pool]\nsegment_bytes = \"8MiB\"\n[streams]\ngrace_ms = 1\n");
    let mut holder = daemon.agent();
    holder.ok("put kept 1000 1");
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(tensorlend_tests::binary("tensorlend"));
        let output = run(command.arg("--socket").arg(daemon.socket()).args(arguments));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let cycle = |number: usize| {
        let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
        producer.ok("put passing 3000000 2");
        producer.ok("stream s 4");
        consumer.ok("hold passing");
        producer.ok("send s 7");
        producer.ok("many small 20");
        consumer.ok("delete passing");
        for name in 0..20 {
            consumer.ok(&format!("delete small{name}"));
        }
        for mut agent in [producer, consumer] {
            if number.is_multiple_of(2) { agent.kill() } else { agent.exit() }
        }
        for arguments in [&["stat"][..], &["ping"], &["ls"], &["top", "--once"], &["stat", "--observe"]] {
            tool(arguments);
        }
    };
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    (0..4).for_each(cycle);
    let before = settled("the descriptors", open);
    (4..16).for_each(cycle);
    let after = settled("the descriptors", open);
    assert!(after <= before, "{before} descriptors after 4 cycles, {after} after 16");
}

/// A value that returns to a former name has a version that no reader knows.
#[test]
fn a_renamed_value_that_returns_is_another_version() {
    let daemon = Daemon::start("");
    let (client, reader) = (daemon.client(), daemon.client());
    for round in 0..200u32 {
        let (a, b) = (format!("a{}", round % 7), format!("b{}", round % 5));
        let first = client.put(&a, &[round, 1]).unwrap();
        let lease = reader.get(&a).unwrap();
        assert_eq!(lease.version(), first);
        drop(lease);
        client.rename(&a, &b).unwrap();
        let mut seen = vec![first];
        match round % 3 {
            0 => seen.push(client.put(&a, &[round, 2]).unwrap()),
            1 => {
                seen.push(reader.put(&a, &[round, 2]).unwrap());
                assert!(reader.delete(&a).unwrap());
            }
            // Without a value in between, the client may forget the name and its cell.
            _ => {
                for name in 0..40 {
                    client.put(&format!("other {name}"), &[1u8]).unwrap();
                    client.delete(&format!("other {name}")).unwrap();
                }
            }
        }
        client.rename(&b, &a).unwrap();
        let back = reader.get(&a).unwrap();
        assert_eq!(back.as_slice::<u32>().unwrap(), [round, 1], "a rename replaces the value of its second name");
        assert!(!seen.contains(&back.version()), "round {round}: the first version came back");
        let newer = reader.wait_newer(&a, first, std::time::Duration::from_mins(5)).unwrap();
        assert_eq!(newer.version(), back.version());
        for name in [&a, &b] {
            let _ = client.delete(name).unwrap();
        }
    }
}

/// The same for a value whose owner has ended, which the daemon renames.
#[test]
fn a_renamed_value_of_a_dead_client_that_returns_is_another_version() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    for round in 0..20u32 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        let owner = daemon.client();
        // The owner must have bound several names before it announces one.
        for name in 0..20 {
            owner.put(&format!("{round} {name}"), &[1u8]).unwrap();
        }
        let first = owner.put(&a, &[round, 1]).unwrap();
        assert_eq!(client.get(&a).unwrap().version(), first);
        drop(owner);
        eventually("the end of the owner", || !client.info(&a).unwrap().alive);
        client.rename(&a, &b).unwrap();
        let second = client.put(&a, &[round, 2]).unwrap();
        client.rename(&b, &a).unwrap();
        let back = client.get(&a).unwrap();
        assert_eq!(back.as_slice::<u32>().unwrap(), [round, 1]);
        assert!(back.version() != first && back.version() != second, "round {round}: a version came back");
    }
}
