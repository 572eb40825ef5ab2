//! A daemon that is killed, and its successor: no client loses anything.

use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::{Client, DType, Start};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::stored::lacks_descriptors;
use tensorlend_tests::{Agent, PATIENCE, eventually, signal};

const MODES: [&str; 2] = ["mode = \"user\"\n", "mode = \"system\"\n"];
const LONG: Duration = PATIENCE;

fn filled(client: &Client, words: u64, value: u64) -> tensorlend::Draft {
    let mut draft = client.create(DType::U64, &[words]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

fn value(lease: &tensorlend::Tensor) -> u64 {
    let slice = lease.as_slice::<u64>().unwrap();
    assert!(slice.iter().all(|v| *v == slice[0]), "torn");
    slice[0]
}

/// A service manager that does not read delays one message. The daemon then stores nothing until the manager reads
/// again. After that, the manager has exactly the existing descriptors.
#[test]
fn a_service_manager_that_does_not_read_does_not_stop_the_daemon() {
    let mut service = Service::start("mode = \"user\"\n");
    let (client, gone) = (service.client(), service.client());
    filled(&gone, 3_000_000, 1).publish("gone").unwrap();
    service.deafen();
    gone.delete("gone").unwrap();
    drop(gone);
    // Each of these tensors needs memory that the daemon stores.
    for name in 0..4 {
        filled(&client, 3_000_000, name).publish(&format!("unstored/{name}")).unwrap();
    }
    assert_eq!(value(&service.client().get("unstored/3").unwrap()), 3);
    assert!(lacks_descriptors(&service.log()), "{}", service.log());
    service.hear_again();
    eventually("the missing descriptors", || !lacks_descriptors(&service.log()));
    filled(&client, 4_000_000, 9).publish("stored").unwrap();
    drop(client);
    service.restart();
    let client = service.client();
    assert_eq!(value(&client.get("stored").unwrap()), 9);
    for name in 0..4 {
        assert_eq!(value(&client.get(&format!("unstored/{name}")).unwrap()), name);
    }
    for info in client.list("*").unwrap() {
        client.delete(&info.name).unwrap();
    }
    drop(client);
    service.wait_kept(0);
}

/// The client reports names again whose report a killed daemon has not carried out, and gives their cells to no other name before.
#[test]
fn names_of_a_report_without_a_response_are_reported_to_the_next_daemon() {
    let mut service = Service::start(MODES[0]);
    let client = service.client();
    let names = |of: u64| (0..100u64).map(move |name| format!("{of}/{name}"));
    let put = |of: u64| names(of).for_each(|name| _ = client.put(&name, &[of]).unwrap());
    let delete = |of: u64| names(of).for_each(|name| assert!(client.delete(&name).unwrap()));
    for round in (0..6).step_by(2) {
        put(round);
        eventually("the names in the directory", || service.client().stat().unwrap().names >= 100);
        signal(service.pid(), Signal::STOP);
        delete(round);
        service.restart();
        put(round + 1);
        let other = service.client();
        assert!(names(round + 1).all(|name| other.get(&name).unwrap().as_slice::<u64>().unwrap() == [round + 1]));
        assert!(names(round).all(|name| !other.exists(&name).unwrap()));
        eventually("the names in the directory", || other.stat().unwrap().names >= 100);
        delete(round + 1);
        eventually("the end of the names", || client.stat().unwrap().names < 64);
    }
}

/// A client at its maximum of names may publish a name in place of deleted ones whose report a killed daemon has not carried out.
#[test]
fn names_of_a_report_without_a_response_leave_room_for_others() {
    let mut service = Service::start("mode = \"user\"\n[namespace_default]\nnames_max = 1024\n");
    let client = service.client();
    let names = || (0..1024u64).map(|name| format!("n/{name}"));
    names().for_each(|name| _ = client.put(&name, &[0u64]).unwrap());
    eventually("the names in the directory", || client.stat().unwrap().names == 1024);
    assert!(client.put("new", &[1u64]).unwrap_err().is_limit());
    signal(service.pid(), Signal::STOP);
    names().take(64).for_each(|name| assert!(client.delete(&name).unwrap()));
    service.end(Signal::KILL);
    std::thread::scope(|scope| {
        let put = scope.spawn(|| client.put("new", &[1u64]));
        service.start_again();
        put.join().unwrap().unwrap();
    });
    assert_eq!(client.stat().unwrap().names, 1024 - 64 + 1);
}

#[test]
fn names_lists_and_streams_outlive_the_daemon() {
    for mode in MODES {
        let mut service = Service::start(mode);
        let (a, b) = (service.client(), service.client());
        let mut dead = Agent::start();
        dead.ok(&format!("connect {}", service.socket().display()));
        let sum = dead.ok("put of-the-dead 3000000 7");
        dead.kill();
        for name in 0..300u64 {
            filled(&a, 100, name).publish(&format!("n/{name}")).unwrap();
        }
        a.append("list", filled(&a, 10, 1)).unwrap();
        let stream = a.stream("frames").capacity(8).open().unwrap();
        let mut frames = b.subscription("frames").start_at(Start::Oldest).open().unwrap();
        stream.send(filled(&a, 10, 5)).unwrap();
        let held = b.get("n/3").unwrap();
        eventually("the end of the dead one", || a.stat().unwrap().clients == 2);

        for round in 0..3u64 {
            service.restart();
            // Both clients continue, with their leases and names.
            assert_eq!(value(&held), 3);
            for name in 0..300 {
                assert_eq!(value(&b.get(&format!("n/{name}")).unwrap()), if name == 7 { 7 + round } else { name });
            }
            filled(&a, 100, 8 + round).publish("n/7").unwrap();
            assert_eq!(value(&b.get("n/7").unwrap()), 8 + round);
            // A name of the other client, a new name, the list, the stream.
            filled(&b, 100, 100 + round).publish(&format!("new/{round}")).unwrap();
            assert_eq!(value(&a.get(&format!("new/{round}")).unwrap()), 100 + round);
            assert_eq!(a.append("list", filled(&a, 10, 2)).unwrap(), 1 + round);
            assert_eq!(frames.recv_timeout(LONG).unwrap().sequence(), round);
            stream.send(filled(&a, 10, 5)).unwrap();
            // A new client finds everything.
            let c = service.client();
            assert_eq!(c.length("list"), 2 + round);
            let mut newcomer = Agent::start();
            newcomer.ok(&format!("connect {}", service.socket().display()));
            assert!(newcomer.ok("sum of-the-dead").ends_with(&sum));
            assert_eq!(c.list("n/*").unwrap().len(), 300);
        }
        // All memory is freed in the end.
        drop((held, stream, frames));
        assert!(a.delete_stream("frames").unwrap());
        a.clear("list").unwrap();
        clear_names(&a);
        drop((a, b));
        all_comes_back(&service);
        service.wait_kept(0);
    }
}

fn clear_names(client: &Client) {
    for entry in client.list("*").unwrap() {
        client.delete(&entry.name).unwrap();
    }
}

/// Waits until all memory is freed, without any connected client.
fn all_comes_back(service: &Service) {
    let watcher = service.client();
    eventually("the return of everything", || {
        let stat = watcher.stat().unwrap();
        (stat.bytes_in_use, stat.segments, stat.clients, stat.frozen, stat.names) == (0, 0, 1, 0, 0)
    });
}

/// Tells the other threads of a test to end when its own thread ends or panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn clients_publish_and_read_while_the_daemon_is_away_and_killed_again_and_again() {
    for mode in MODES {
        let mut service = Service::start(mode);
        let (done, written, read) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (a, b) = (service.client(), service.client());
            filled(&a, 1000, 0).publish("x").unwrap();
            let (done, written, read) = (&done, &written, &read);
            scope.spawn(move || {
                let _done = Done(done);
                let mut number = 0;
                while !done.load(Ordering::Relaxed) {
                    number += 1;
                    filled(&a, 1000, number).publish("x").unwrap();
                    filled(&a, 10, number).publish(&format!("y/{}", number % 5000)).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(move || {
                let _done = Done(done);
                let mut last = 0;
                while !done.load(Ordering::Relaxed) {
                    let now = value(&b.get("x").unwrap());
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
            // Ends both threads if this one panics.
            let _done = Done(done);
            let exchange = |rounds: u64| {
                let wanted = [written, read].map(|count| count.load(Ordering::Relaxed) + rounds);
                eventually("both going on", || {
                    assert!(!done.load(Ordering::Relaxed), "one of the two has ended");
                    written.load(Ordering::Relaxed) >= wanted[0] && read.load(Ordering::Relaxed) >= wanted[1]
                });
            };
            for round in 0..8 {
                exchange(20);
                std::thread::sleep(Duration::from_millis(7 * round));
                service.restart();
            }
            exchange(100);
        });
    }
}

#[test]
fn a_client_that_only_reads_keeps_its_leases() {
    for mode in MODES {
        let mut service = Service::start(mode);
        let (a, b) = (service.client(), service.client());
        filled(&a, 1000, 1).publish("x").unwrap();
        let held = b.get("x").unwrap();
        drop(b);
        service.restart();
        // Only leases are left of the session. It reconnects without any request.
        eventually("its return", || service.client().stat().unwrap().clients == 3);
        for number in 2..500 {
            filled(&a, 1000, number).publish("x").unwrap();
        }
        assert_eq!(value(&held), 1);
        assert!(held.validate());
    }
}

/// One client fails while no daemon runs. After that, a daemon starts, and the waiting request of another client reaches it.
#[test]
fn a_request_waits_for_a_new_daemon_no_longer_than_its_timeout() {
    for mode in MODES {
        let mut service = Service::start(mode);
        let patient = service.client();
        let brief = Client::builder().socket(service.socket());
        let brief = brief.request_timeout(Duration::from_millis(500)).connect().unwrap();
        service.end(rustix::process::Signal::KILL);
        let waits = std::thread::spawn(move || patient.ping());
        let failed = brief.ping().unwrap_err();
        assert!(matches!(failed, tensorlend::Error::Disconnected { .. }), "{failed}");
        service.start_again();
        waits.join().unwrap().unwrap();
        eventually("the session of the client that gave up", || brief.ping().is_ok());
    }
}

#[test]
fn a_session_that_nobody_knows_is_over_and_says_so() {
    let mut service = Service::start("");
    let a = service.client();
    filled(&a, 10, 1).publish("x").unwrap();
    let held = a.get("x").unwrap();
    // Only its leases are left of the session.
    drop(a);
    service.end(rustix::process::Signal::KILL);
    service.lose();
    service.start_again();
    eventually("a fresh start", || service.client().stat().unwrap().names == 0);
    assert_eq!(value(&held), 1, "what is mapped can be read");
    assert!(service.client().get("x").unwrap_err().is_not_found());
}

#[test]
fn a_daemon_that_stops_in_order_leaves_everything_too() {
    let mut service = Service::start("");
    let a = service.client();
    filled(&a, 10, 1).publish("x").unwrap();
    service.end(rustix::process::Signal::TERM);
    service.start_again();
    assert_eq!(value(&service.client().get("x").unwrap()), 1);
    filled(&a, 10, 2).publish("x").unwrap();
    assert_eq!(value(&service.client().get("x").unwrap()), 2);
}

#[test]
fn what_a_killed_daemon_had_not_told_its_clients_is_no_leak() {
    let mut service = Service::start("mode = \"system\"\n");
    let (a, b) = (service.client(), service.client());
    for name in 0..200u64 {
        filled(&a, 1000, name).publish(&format!("n/{name}")).unwrap();
    }
    eventually("their absorption", || a.stat().unwrap().names == 200);
    // Another client takes all names over; the daemon reports this when the former owner next sends a request.
    for name in 0..200u64 {
        filled(&b, 10, name).publish(&format!("n/{name}")).unwrap();
    }
    service.restart();
    let used = || {
        // Publishing scans the leases, which frees retired slots.
        filled(&a, 1000, 1).publish("own").unwrap();
        a.memory().slot_bytes
    };
    eventually("the return of what was taken over", || used() < 60 * 8000);
}
