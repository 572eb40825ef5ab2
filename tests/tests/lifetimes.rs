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
