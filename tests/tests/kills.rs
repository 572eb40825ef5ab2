//! Processes killed at random moments, and one that is stopped.

use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;
use tensorlend::{Error, Policy};
use tensorlend_tests::filled::{filled, put, value};
use tensorlend_tests::{Agent, Daemon, PROGRAM_PATIENCE, binary, budget, run_within, signal};

#[test]
fn random_kills_leave_the_daemon_as_it_was() {
    let kills = budget("300", "2000");
    let output = run_within(PROGRAM_PATIENCE, Command::new(binary("tensorlend-soak")).args(["--kills", kills]));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

/// Processes of two nodes with gateways are killed and stopped. The soak fails if a message is missing that no count
/// includes, comes twice, or is wrong.
#[test]
fn kills_across_gateways_leave_no_uncounted_gap_and_no_wrong_or_older_value() {
    let seconds = budget("10", "300");
    let output = run_within(PROGRAM_PATIENCE, Command::new(binary("tensorlend-soak")).args(["--gateways", seconds]));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

#[test]
fn what_a_client_has_mapped_of_those_who_are_gone_is_unmapped() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("tensorlend-leases") || line.contains("tensorlend-catalogue")).count()
    };
    let mut counts = Vec::new();
    for part in 0..3 {
        for number in 0..60u64 {
            let guest = daemon.client();
            // Publishing a new name reads the announcements of all clients.
            put(&client, &format!("{part}/{number}"), 1).unwrap();
            // Replacing a value often reclaims slots, which reads the lease tables of all clients.
            for value in 1..100 {
                put(&client, "name", value).unwrap();
            }
            drop(guest);
        }
        counts.push(mapped());
    }
    // Sheets of some departed clients may still be mapped, but not those of all.
    assert!(counts[2] < 120, "{counts:?} sheets mapped after 60, 120 and 180 clients");
}

/// Capacity of the rings: full as soon as a subscriber lags by two messages.
const CAPACITY: u32 = 2;

#[test]
fn a_stopped_subscriber_holds_up_what_asked_to_wait_for_it_and_nothing_else() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let socket = daemon.socket().display().to_string();
    let mut sleeper = Agent::start();
    sleeper.ok(&format!("connect {socket}"));
    let mut others = Agent::worker(["bystander", &socket]);
    let open = |name: &str, policy| client.stream(name).capacity(CAPACITY).policy(policy).open().unwrap();
    let waits = open("waits", Policy::Block);
    let drops = open("drops", Policy::DropOldest);
    let fails = open("fails", Policy::Error);
    for name in ["waits", "drops", "fails"] {
        sleeper.ok(&format!("subscribe {name}"));
    }
    let draft = |number| filled(&client, number).unwrap();
    // Each subscriber receives the first message.
    for stream in [&waits, &drops, &fails] {
        stream.send(draft(1)).unwrap();
    }
    for name in ["waits", "drops", "fails"] {
        assert_eq!(sleeper.ok(&format!("receive {name}")), "0 0 1");
    }
    put(&client, "held", 1).unwrap();
    sleeper.ok("hold held");

    signal(sleeper.pid(), Signal::STOP);
    // Fill the rings. Then the blocking stream waits, ...
    for number in 2..4 {
        waits.send(draft(number)).unwrap();
        fails.send(draft(number)).unwrap();
    }
    let late = waits.send_timeout(draft(9), Duration::from_millis(200)).unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert!(waits.try_send(draft(9)).is_err());
    // ... the stream with policy error fails, ...
    assert!(matches!(fails.send(draft(9)), Err(Error::StreamFull(_))));
    // ... and everything else continues: the dropping stream, names, other clients, and new ones.
    for number in 2..100 {
        drops.send(draft(number)).unwrap();
        put(&client, "held", number).unwrap();
    }
    let whole = |said: String| said.rsplit_once(' ').and_then(|(_, whole)| whole.parse::<u64>().ok()).unwrap();
    let before = whole(others.ok("turns"));
    tensorlend_tests::eventually("the others' turns", || whole(others.ok("turns")) > before + 50);
    let newcomer = daemon.client();
    put(&newcomer, "newcomer", 7).unwrap();
    assert_eq!(value(&client.get("newcomer").unwrap()), Ok(7));
    assert_eq!(newcomer.subscribe("drops").unwrap().recv().unwrap().sequence(), 98);

    // The blocked send continues as soon as the sleeper does, and the blocking stream lost nothing.
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| waits.send(draft(4)));
        signal(sleeper.pid(), Signal::CONT);
        for number in 1..3 {
            assert_eq!(sleeper.ok("receive waits"), format!("{number} 0 {}", number + 1));
        }
        sending.join().unwrap().unwrap()
    });
    assert_eq!(sent, 3);
    assert_eq!(sleeper.ok("receive waits"), "3 0 4");
    assert_eq!(sleeper.ok("receive fails"), "1 0 2");
    // 99 were sent, and the ring holds the last two; the subscriber had received the first.
    assert_eq!(sleeper.ok("receive drops"), "97 96 98");
    // The sleeper's lease has preserved the old value.
    assert_eq!(sleeper.ok("value held"), "1");
    assert_eq!(others.ok("end"), "ended");
    assert!(others.wait().success());
}
