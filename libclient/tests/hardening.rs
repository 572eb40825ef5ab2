//! Faults that hostile readers of this crate found, one test each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, Draft, Error, Start};
use tensorlend_daemon::Embedded;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn draft(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[8]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

/// Producers put, delete, take over and rename a few names, while readers check that a name never shows another name's
/// value: each value contains the name that it was put under.
#[test]
fn a_name_never_shows_another_names_value() {
    const NAMES: u64 = 6;
    let broker = broker();
    let clients = [client(&broker), client(&broker)];
    let wrong = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (client, wrong, over) = (&clients[thread as usize % 2], &wrong, &over);
            scope.spawn(move || {
                let mut state = thread + 1;
                while !over.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let number = (state >> 33) % NAMES;
                    let name = format!("n{number}");
                    match (state >> 40) % 8 {
                        0..=2 => drop(client.put(&name, &[number; 8]).unwrap()),
                        3..=4 => drop(client.delete(&name).unwrap()),
                        _ => match client.get(&name) {
                            Ok(lease) => {
                                let values = lease.as_slice::<u64>().unwrap();
                                if values.iter().any(|v| *v != number) {
                                    wrong.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                            Err(Error::NotFound(_)) => {}
                            Err(e) => panic!("{e}"),
                        },
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(4));
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
}

#[test]
fn a_cell_that_was_given_back_is_not_tidied_again() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    a.put("x", &[1u64]).unwrap();
    a.delete("x").unwrap();
    b.put("x", &[2u64]).unwrap();
    // The client learns that x was taken over: a draft of a new size needs a segment, and with it the client asks.
    drop(a.create(DType::U8, &[100 << 20]).unwrap());
    for round in 0..200u64 {
        let name = format!("y{round}");
        a.put(&name, &[round]).unwrap();
        a.delete(&name).unwrap();
        a.put("z", &[1000 + round]).unwrap();
        assert!(matches!(b.get(&name), Err(Error::NotFound(_))), "{name}");
    }
    assert_eq!(b.get("x").unwrap().as_slice::<u64>().unwrap(), [2]);
}

#[test]
fn a_draft_of_another_client_is_refused_everywhere() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").open().unwrap();
    assert!(matches!(stream.send(draft(&b, 1)), Err(Error::Argument(_))));
    assert!(matches!(a.append("l", draft(&b, 1)), Err(Error::Argument(_))));
    assert!(matches!(a.keep("k", 2).unwrap().publish(draft(&b, 1)), Err(Error::Argument(_))));
    assert!(matches!(a.dataset().add("x", draft(&b, 1)), Err(Error::Argument(_))));
}

#[test]
fn a_stream_that_was_deleted_ends_for_its_producer() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(2).open().unwrap();
    stream.send(draft(&a, 0)).unwrap();
    assert!(b.delete_stream("s").unwrap());
    // Its index in the directory is reused by another stream, with a subscriber that never reads.
    let other = b.stream("t").capacity(2).open().unwrap();
    let _lazy = b.subscribe("t").unwrap();
    for _ in 0..5 {
        assert!(matches!(stream.send(draft(&a, 1)), Err(Error::StreamEnded(_))));
    }
    drop(other);
}

#[test]
fn trying_to_send_does_not_wait_for_a_send_that_waits() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(1).open().unwrap();
    let mut messages = b.subscribe("s").unwrap();
    stream.send(draft(&a, 0)).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.send_timeout(draft(&a, 1), Duration::from_hours(1)).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        assert!(matches!(stream.try_send(draft(&a, 2)), Err(tensorlend::TrySendError::Full(_))));
        // With a fault it would wait as long as the other send: an hour.
        assert!(start.elapsed() < Duration::from_mins(5), "it waited");
        assert_eq!(messages.recv().unwrap().sequence(), 0);
        waiting.join().unwrap();
    });
}

#[test]
fn a_thread_that_once_held_many_leases_leaves_room_for_others() {
    let broker = broker();
    let client = client(&broker);
    client.put("x", &[1u8]).unwrap();
    let many: Vec<_> = (0..4000).map(|_| client.get("x").unwrap()).collect();
    drop(many);
    for _ in 0..100 {
        client.get("x").unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| drop((0..3000).map(|_| client.get("x").unwrap()).collect::<Vec<_>>()));
    });
}

#[test]
fn readers_do_not_keep_the_memory_of_producers_that_are_gone() {
    const LENGTH: usize = 3 << 20;
    let broker = broker();
    let consumer = client(&broker);
    // Counts segments of that length only: other tests of this process map others.
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let length = |line: &str| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            number(end) - number(start)
        };
        maps.lines().filter(|line| line.contains("memfd:tensorlend") && length(line) == LENGTH).count()
    };
    for round in 0..30u8 {
        let producer = client(&broker);
        producer.put("x", &vec![round; LENGTH]).unwrap();
        assert_eq!(consumer.get("x").unwrap().bytes()[0], round);
    }
    assert!((1..10).contains(&mapped()), "{} mappings", mapped());
}

#[test]
fn failed_calls_leave_the_session_whole() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    a.put("x", &[1u8; 100]).unwrap();
    for _ in 0..3 {
        assert!(b.subscribe("nothing").is_err() && b.get("nothing").is_err() && b.rename("nothing", "y").is_err());
        assert!(b.subscription("nothing").start_at(Start::Oldest).wait(Duration::from_millis(1)).open().is_err());
    }
    assert_eq!(b.get("x").unwrap().bytes(), [1; 100]);
    b.ping().unwrap();
}

#[test]
fn without_the_daemon_known_names_go_on_and_new_ones_cost_nothing() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    a.put("x", &[0u64; 1000]).unwrap();
    let mut seen = b.get("x").unwrap();
    // Maps every sheet: this many overwrites make the owner read the lease tables.
    for round in 0..200u64 {
        a.put("x", &[round; 1000]).unwrap();
    }
    // Lends memory and slot numbers for the rest of the test, mapped by both.
    for i in 0..5000 {
        a.put(&format!("ballast {i}"), &[0u8; 1 << 10]).unwrap();
        b.get(&format!("ballast {i}")).unwrap();
    }
    for i in 0..5000 {
        a.delete(&format!("ballast {i}")).unwrap();
    }
    drop(broker);
    let before = a.memory();
    // New names are announced, and found, as long as there is room for announcements; then they are refused.
    let mut announced = 0;
    for round in 0..6000u64 {
        match a.put(&format!("new {round}"), &[round]) {
            Ok(_) => {
                assert_eq!(announced, round, "room came back without the daemon");
                announced += 1;
                assert_eq!(b.get(&format!("new {round}")).unwrap().as_slice::<u64>().unwrap(), [round]);
            }
            Err(e) => assert!(e.is_disconnected(), "{e}"),
        }
        a.put("x", &[round; 1000]).unwrap();
        let now = b.get("x").unwrap();
        assert_eq!(now.as_slice::<u64>().unwrap()[999], round);
        seen = now;
    }
    assert!((1000..=4096).contains(&announced), "{announced} names were announced");
    let bound = before.slot_bytes + announced * 64 + (1 << 20);
    assert!(a.memory().slot_bytes <= bound, "{before:?} {:?}", a.memory());
    // An announced name can be overwritten, deleted and renamed as any other.
    a.put("new 7", &[77u64]).unwrap();
    assert_eq!(b.get("new 7").unwrap().as_slice::<u64>().unwrap(), [77]);
    assert!(a.delete("new 7").unwrap() && !b.exists("new 7").unwrap());
    assert!(b.list("new *").unwrap().len() as u64 == announced - 1);
    assert!(seen.validate());
    assert!(a.delete("x").unwrap() && !b.exists("x").unwrap());
}
