//! Names with lifetimes, and leases that are revoked, with processes that are killed.

use tensorlend_tests::{Daemon, eventually};

const MB: u64 = 1 << 20;

#[test]
fn ephemeral_names_end_with_a_killed_producer_and_all_others_stay() {
    let daemon = Daemon::start("");
    let (mut producer, mut reader) = (daemon.agent(), daemon.agent());
    for i in 0..300 {
        producer.ok(&format!("put-for gone{i} - true"));
    }
    producer.ok("put-for timed 3600000 false");
    let sum = producer.ok("put kept 100000 1");
    reader.ok("hold gone7");
    producer.kill();
    eventually("the end of its ephemeral names", || reader.ok("list") == "2");
    assert_eq!(reader.ok("valid gone7"), "true", "a lease holds on");
    assert!(reader.ok("sum kept").ends_with(&sum));
    assert_eq!(reader.ok("exists timed"), "true");
    let stat = daemon.client().stat().unwrap();
    assert_eq!((stat.names_ephemeral_gone, stat.names_expired), (300, 0));
    assert!(daemon.log().contains("name ended"), "never silently");
}

#[test]
fn names_expire_while_their_producer_is_stopped() {
    let daemon = Daemon::start("");
    let (mut producer, mut reader) = (daemon.agent(), daemon.agent());
    producer.ok("put-for beat 50 false");
    producer.ok("put-for alive 3600000 false");
    tensorlend_tests::signal(producer.pid(), rustix::process::Signal::STOP);
    eventually("the end of its time", || reader.ok("exists beat") == "false");
    assert_eq!(reader.ok("exists alive"), "true");
    tensorlend_tests::signal(producer.pid(), rustix::process::Signal::CONT);
    // The producer finds its name expired, and publishes it again.
    producer.ok("put beat 10 1");
    assert_eq!(reader.ok("exists beat"), "true");
}

#[test]
fn a_stopped_reader_is_revoked_when_memory_is_short_and_learns_it() {
    let daemon = Daemon::start(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[uid]\nlease_ms_max = 300\n",
    );
    let (mut producer, mut reader, mut honest) = (daemon.agent(), daemon.agent(), daemon.agent());
    let mut put = || producer.ask(&format!("put x {} 1", 7 * MB));
    let mut kept = 0;
    while put().is_ok() {
        reader.ok("hold x");
        kept += 1;
        reader.ok(&format!("keep x kept{kept}"));
    }
    honest.ok("hold x");
    tensorlend_tests::signal(reader.pid(), rustix::process::Signal::STOP);
    eventually("its memory", || put().is_ok());
    tensorlend_tests::signal(reader.pid(), rustix::process::Signal::CONT);
    assert_eq!(reader.ok("valid kept1"), "false");
    let ended = reader.ask("hold x").unwrap_err();
    assert!(ended.contains("session"), "{ended}");
    assert_eq!(honest.ok("valid x"), "true");
    let stat = daemon.client().stat().unwrap();
    assert_eq!(stat.sessions_revoked, 1);
    assert!(daemon.log().contains("uid.lease_ms_max is 300"));
}

/// While one thread publishes under a name, with and without a lifetime, another thread of the client renames it.
#[test]
fn a_renamed_value_keeps_its_own_lifetime() {
    let daemon = Daemon::start("");
    let (client, reader) = (daemon.client(), daemon.client());
    let other = client.clone();
    let is_done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ends = is_done.clone();
    let publisher = std::thread::spawn(move || {
        let hour = tensorlend::Lifetime::ttl(std::time::Duration::from_hours(1));
        while !ends.load(std::sync::atomic::Ordering::Relaxed) {
            other.put("from", &[0u8]).unwrap();
            other.put_for("from", &[1u8], hour).unwrap();
        }
    });
    let (mut renamed, mut wrong) = ([0u32; 2], 0);
    while renamed.iter().sum::<u32>() < tensorlend_tests::budget(1000, 40_000) {
        if client.rename("from", "to").is_err() {
            continue;
        }
        let has_lifetime = reader.get("to").unwrap().bytes()[0];
        renamed[usize::from(has_lifetime)] += 1;
        wrong += u32::from(reader.info("to").unwrap().lifetime.ttl.is_some() != (has_lifetime == 1));
    }
    is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    publisher.join().unwrap();
    println!("{renamed:?} renamed, {wrong} with the lifetime of another value");
    assert!(renamed.iter().all(|&renamed| renamed > 0), "{renamed:?}");
    assert_eq!(wrong, 0, "of {renamed:?}");
}
