//! Processes that die while they use device memory, and the resources that they leave.

use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::location::Location;
use tensorlend_tests::machine::{Machine, config, on_machine, on_machine_with, placed};
use tensorlend_tests::{Agent, PATIENCE, binary, eventually, run, settled, skip};

const MB: u64 = 1 << 20;

/// Returns the device bytes that are lent, and the namespace's charge for them.
fn lent(client: &Client) -> (u64, u64) {
    let stat = client.stat().unwrap();
    let lent = stat.devices.iter().map(|device| device.bytes_in_use).sum();
    (lent, stat.namespaces.iter().map(|namespace| namespace.device_bytes).sum())
}

fn all_comes_back(client: &Client) {
    eventually("the return of the device's memory", || lent(client) == (0, 0));
}

#[test]
fn what_a_killed_producer_published_lives_on() {
    on_machine("what_a_killed_producer_published_lives_on", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        let watcher = daemon.client();
        let mut producer = placed(&daemon.socket(), "cuda");
        let mut reader = placed(&daemon.socket(), "cuda");
        let sum = producer.ok(&format!("put x {MB} 1"));
        let other = producer.ok(&format!("put y {MB} 2"));
        reader.ok("hold x");
        producer.kill();
        eventually("its end", || !watcher.info("x").unwrap().alive);
        // Longer than the quarantine.
        std::thread::sleep(Duration::from_millis(300));
        let mut newcomer = placed(&daemon.socket(), "cuda");
        assert_eq!(
            (newcomer.ok("sum x"), newcomer.ok("sum y"), reader.ok("held x")),
            (sum.clone(), other, sum.clone())
        );
        assert!(watcher.delete("x").unwrap() && watcher.delete("y").unwrap());
        newcomer.ok(&format!("round z {MB} 1 20"));
        assert_eq!(reader.ok("held x"), sum);
        reader.ok("release x");
        newcomer.exit();
        watcher.delete("z").unwrap();
        all_comes_back(&watcher);
    });
}

#[test]
fn a_producer_killed_with_work_under_way_in_a_draft_leaves_nothing() {
    on_machine("a_producer_killed_with_work_under_way_in_a_draft_leaves_nothing", |machine| {
        for allocator in ["pool", "arena", "async"] {
            let daemon = machine.daemon(&config(allocator, "quarantine_ms = 50\n"));
            let watcher = daemon.client();
            let mut producer = placed(&daemon.socket(), "cuda");
            let mut other = placed(&daemon.socket(), "cuda");
            let sum = other.ok(&format!("put other {MB} 3"));
            let before = lent(&watcher);
            let _gate = machine.gate(Some(producer.pid()));
            producer.ok(&format!("draft-at-work {}", 3 * MB));
            assert!(lent(&watcher) > before, "{allocator}");
            producer.kill();
            eventually("the return of the draft", || lent(&watcher) == before);
            assert_eq!(other.ok("sum other"), sum);
            Location::Host.put(&watcher, "host", 1, 100).unwrap();
            watcher.delete("other").unwrap();
            other.exit();
            all_comes_back(&watcher);
        }
    });
}

/// No slot is reused while the device still executes a dead process's reads of it.
#[test]
fn a_slot_that_a_dead_consumers_card_reads_is_not_reused() {
    const NAME: &str = "a_slot_that_a_dead_consumers_card_reads_is_not_reused";
    on_machine_with(NAME, &[("FAKECUDA_LINGER_MS", "240000")], |machine| {
        // The longer quarantines are for a machine that stalled during the shorter ones.
        let seconds = [2, 10, 60];
        let done = seconds.into_iter().any(|seconds| card_reads_on(machine, Duration::from_secs(seconds)));
        assert!(done, "within no quarantine of {seconds:?} seconds the producer could make its rounds");
    });
}

/// Returns true if the rounds were completed within the quarantine; otherwise they prove nothing.
fn card_reads_on(machine: &Machine, quarantine: Duration) -> bool {
    let daemon = machine.daemon(&config("pool", &format!("quarantine_ms = {}\n", quarantine.as_millis())));
    let watcher = daemon.client();
    let (mut producer, mut consumer) = (placed(&daemon.socket(), "cuda"), placed(&daemon.socket(), "cuda"));
    let old = producer.ok(&format!("put x {MB} 1"));
    consumer.ok(&format!("put out {MB} 99"));
    consumer.ok("hold x");
    {
        let _gate = machine.gate(Some(consumer.pid()));
        consumer.ok("copy-later x out");
        // The daemon's quarantine begins when it notices the death, which is later.
        let dying = Instant::now();
        consumer.kill();
        // The producer cycles through the four slots of a segment.
        producer.ok(&format!("round x {MB} 2 20"));
        while dying.elapsed() < quarantine / 4 {
            let leased = watcher.instruments().leased().unwrap();
            producer.ok(&format!("round x {MB} 21 25"));
            let after = dying.elapsed();
            assert!(leased >= MB || after >= quarantine, "its lease ended within {after:?}");
        }
        if dying.elapsed() >= quarantine {
            return false;
        }
    }
    // The device now executes work that the consumer queued before its death.
    let location = Location::named("cuda", &watcher);
    let mut reader = placed(&daemon.socket(), "cuda");
    eventually("the copy by the dead one's card", || reader.ok("sum out") == old);
    eventually("the end of its leases", || watcher.instruments().leased().unwrap() == 0);
    producer.ok(&format!("round x {MB} 30 60"));
    assert!(location.get(&watcher, "x").unwrap().is(60));
    producer.exit();
    reader.exit();
    watcher.delete("x").unwrap();
    watcher.delete("out").unwrap();
    all_comes_back(&watcher);
    true
}

/// A process whose connection ended keeps its leases until it exits.
#[test]
fn the_leases_of_a_process_that_hung_up_count_until_it_ends() {
    on_machine("the_leases_of_a_process_that_hung_up_count_until_it_ends", |machine| {
        let daemon = machine.daemon(&config("pool", "quarantine_ms = 50\n"));
        let watcher = daemon.client();
        let (mut producer, mut consumer) = (placed(&daemon.socket(), "cuda"), placed(&daemon.socket(), "cuda"));
        let old = producer.ok(&format!("put x {MB} 1"));
        consumer.ok("hold x");
        let connected = watcher.stat().unwrap().clients;
        assert_ne!(consumer.ok(&format!("hang-up {}", daemon.socket().display())), "0");
        eventually("its hang-up", || watcher.stat().unwrap().clients < connected);
        for _ in 0..5 {
            producer.ok(&format!("round x {MB} 2 20"));
            std::thread::sleep(Duration::from_millis(60));
            assert!(watcher.instruments().leased().unwrap() >= MB, "its lease ended before its process did");
        }
        assert_eq!(consumer.ok("held x"), old);
        consumer.kill();
        eventually("the end of its leases", || watcher.instruments().leased().unwrap() == 0);
        producer.exit();
        watcher.delete("x").unwrap();
        all_comes_back(&watcher);
    });
}

/// A tensor that was published before its work was done becomes readable when the work is done. If its producer is
/// killed before, readers get an error.
#[test]
fn what_a_killed_producer_published_early_is_unfinished() {
    on_machine("what_a_killed_producer_published_early_is_unfinished", |machine| {
        for allocator in ["pool", "arena", "async"] {
            let daemon = machine.daemon(&config(allocator, "quarantine_ms = 50\n"));
            let watcher = daemon.client();
            let (mut producer, mut reader) = (placed(&daemon.socket(), "cuda"), placed(&daemon.socket(), "cuda"));
            let gate = machine.gate(Some(producer.pid()));
            let sum = producer.ok(&format!("publish-early x {MB}"));
            reader.tell("sum x");
            assert!(reader.answer_within(Duration::from_millis(100)).is_none(), "{allocator}: it does not wait");
            drop(gate);
            assert_eq!(reader.answer().unwrap(), sum);
            let _gate = machine.gate(Some(producer.pid()));
            producer.ok(&format!("publish-early x {MB}"));
            producer.kill();
            eventually("its end", || !watcher.info("x").unwrap().alive);
            for order in ["sum x", "hold x"] {
                let error = reader.ask(order).unwrap_err();
                assert!(
                    error.contains("ended before its work on the tensor was known to be done"),
                    "{allocator}: {error}"
                );
            }
            // Another client publishes it again.
            let sum = reader.ok(&format!("put x {MB} 3"));
            assert_eq!(reader.ok("sum x"), sum);
            watcher.delete("x").unwrap();
            reader.exit();
            all_comes_back(&watcher);
        }
    });
}

/// The same for readers that are already waiting, on the host and in a stream, when the producer is killed. The driver never
/// fires the event of a killed process, so the stream must not wait for that event.
#[test]
fn who_waits_for_a_producer_that_is_killed_hears_that_it_is_unfinished() {
    on_machine("who_waits_for_a_producer_that_is_killed_hears_that_it_is_unfinished", |machine| {
        let daemon = machine.daemon(&config("pool", "quarantine_ms = 50\n"));
        let mut producer = placed(&daemon.socket(), "cuda");
        let mut readers = ["sum", "sum-in-stream"].map(|order| (order, placed(&daemon.socket(), "cuda")));
        let gate = machine.gate(Some(producer.pid()));
        let sum = producer.ok(&format!("publish-early x {MB}"));
        for (order, reader) in &mut readers {
            reader.tell(&format!("{order} x"));
            assert!(reader.answer_within(Duration::from_millis(100)).is_none(), "{order} does not wait");
        }
        drop(gate);
        for (order, reader) in &mut readers {
            assert_eq!(reader.answer().unwrap(), sum, "{order}");
        }
        let _gate = machine.gate(Some(producer.pid()));
        producer.ok(&format!("publish-early x {MB}"));
        for (order, reader) in &mut readers {
            reader.tell(&format!("{order} x"));
            assert!(reader.answer_within(Duration::from_millis(100)).is_none(), "{order} does not wait");
        }
        producer.kill();
        for (order, reader) in &mut readers {
            let error = reader.answer().expect_err("nothing was written there");
            assert!(error.contains("ended before its work on the tensor was known to be done"), "{order}: {error}");
        }
        // The readers continue.
        let mut producer = placed(&daemon.socket(), "cuda");
        let sum = producer.ok(&format!("publish-early x {MB}"));
        for (order, reader) in &mut readers {
            assert_eq!(reader.ok(&format!("{order} x")), sum, "{order}");
        }
    });
}

/// Starts a service whose daemons may lend the fake device's memory.
fn service(machine: &Machine, text: &str) -> Service {
    service_of(machine, &binary("tensorlendd"), text, None)
}

fn service_of(machine: &Machine, daemon: &Path, text: &str, first: Option<(String, String)>) -> Service {
    let program = machine.path("tensorlendd");
    let script = format!("#!/bin/sh\nexec {} --allow-fake-cuda \"$@\"\n", daemon.display());
    std::fs::write(&program, script).unwrap();
    let made = Command::new("chmod").arg("0755").arg(&program).status().unwrap();
    assert!(made.success());
    Service::start_with(text, program, first)
}

fn agent(service: &Service) -> Agent {
    placed(&service.socket(), "cuda")
}

#[test]
fn device_memory_outlives_the_daemon_with_a_keeper() {
    on_machine("device_memory_outlives_the_daemon_with_a_keeper", |machine| {
        for (mode, allocator) in [("system", "pool"), ("user", "pool"), ("system", "arena")] {
            println!("{mode}, {allocator}");
            let mut service =
                service(machine, &format!("mode = \"{mode}\"\n{}", config(allocator, "quarantine_ms = 50\n")));
            let (a, b) = (service.client(), service.client());
            let location = Location::named("cuda", &a);
            let mut dead = agent(&service);
            let sum = dead.ok(&format!("put dead {MB} 7"));
            dead.kill();
            for value in 0..5 {
                location.put(&a, &format!("n/{value}"), value, MB).unwrap();
            }
            let held = location.get(&b, "n/3").unwrap();
            eventually("the end of the dead one", || a.stat().unwrap().clients == 2);
            let before = settled("what is lent after its end", || lent(&a));
            assert!(before.0 > 0 && before.0 == before.1, "{before:?}");
            for round in 0..2 {
                service.restart();
                assert!(held.is(3) && held.validate());
                for value in 0..5 {
                    assert!(location.get(&b, &format!("n/{value}")).unwrap().is(value));
                }
                // A newcomer can read the tensors of the living and of the dead.
                let mut newcomer = agent(&service);
                assert_eq!(newcomer.ok("sum dead"), sum);
                newcomer.ok("sum n/3");
                newcomer.exit();
                // New tensors work as before.
                location.put(&a, &format!("new/{round}"), 50, 5 * MB).unwrap();
                location.put(&b, &format!("of-b/{round}"), 51, 1000).unwrap();
                assert!(location.get(&b, &format!("new/{round}")).unwrap().is(50));
                assert!(location.get(&a, &format!("of-b/{round}")).unwrap().is(51));
                let now = lent(&a);
                assert!(now.0 == now.1 && now.0 >= before.0 + 5 * MB, "{before:?}, then {now:?}");
            }
            drop(held);
            for info in a.list("*").unwrap() {
                a.delete(&info.name).unwrap();
            }
            drop((a, b));
            all_comes_back(&service.client());
        }
        assert!(!machine.calls().contains("Ctx"), "a daemon made a context");
    });
}

/// Blocks of `async` end with the daemon, and so do the sessions that had some: their clients get an error and connect
/// again.
#[test]
fn blocks_of_async_end_with_the_daemon_and_it_is_said() {
    on_machine("blocks_of_async_end_with_the_daemon_and_it_is_said", |machine| {
        let service = service(machine, &format!("mode = \"system\"\n{}", config("async", "quarantine_ms = 50\n")));
        ends_and_begins_anew(service, Service::restart);
    });
}

fn ends_and_begins_anew(mut service: Service, end: impl FnOnce(&mut Service)) {
    let (a, b, c) = (service.client(), service.client(), service.client());
    let location = Location::named("cuda", &a);
    location.put(&a, "x", 1, MB).unwrap();
    Location::Host.put(&c, "host", 2, MB).unwrap();
    let held = location.get(&b, "x").unwrap();
    end(&mut service);
    // A client without device memory continues, with everything in host memory.
    Location::Host.put(&c, "host", 3, MB).unwrap();
    assert!(Location::Host.get(&c, "host").unwrap().is(3));
    assert!(Location::Host.get(&service.client(), "host").unwrap().is(3));
    // Old tensors have either ended or are unchanged.
    let old = [location.get(&b, "x").and_then(|lease| lease.value()), held.value()];
    for seen in old {
        match seen {
            Ok(value) => assert_eq!(value, 1),
            Err(error) => {
                println!("of the old: {error}");
                assert!(error.is_disconnected() || error.is_not_found() || error.is_device(), "{error}");
            }
        }
    }
    let gone = agent(&service).ask("value x").unwrap_err();
    assert!(gone.contains("no tensor named \"x\""), "{gone}");
    let over = a.ping().unwrap_err();
    assert!(over.is_disconnected() && over.to_string().contains("connect again"), "{over}");
    let (a, d) = (service.client(), service.client());
    location.put(&a, "x", 4, MB).unwrap();
    assert!(location.get(&d, "x").unwrap().is(4));
    drop((held, b, d));
    for info in a.list("*").unwrap() {
        a.delete(&info.name).unwrap();
    }
    drop((a, c));
    all_comes_back(&service.client());
}

#[test]
fn a_producer_whose_session_is_over_hears_it_when_it_publishes() {
    on_machine("a_producer_whose_session_is_over_hears_it_when_it_publishes", |machine| {
        let mut service = service(machine, &format!("mode = \"user\"\n{}", config("pool", "quarantine_ms = 50\n")));
        let a = service.client();
        let location = Location::named("cuda", &a);
        location.put(&a, "x", 1, MB).unwrap();
        service.end(Signal::KILL);
        service.lose();
        service.start_again();
        eventually("the refusal of its return", || a.ping().is_err());
        let over = location.put(&a, "x", 2, MB).map(|_| ()).unwrap_err();
        assert!(over.is_disconnected(), "{over}");
    });
}

/// The daemon is killed between any two steps of lending device memory and taking it back.
#[test]
fn a_daemon_killed_at_any_place_is_followed_by_one_that_knows_what_is_lent() {
    let Some(build) = std::env::var_os("TENSORLEND_TEST_BUILD").map(PathBuf::from) else {
        return skip(
            "TENSORLEND_TEST_BUILD names no folder with programs that can kill themselves: scripts/test makes one",
        );
    };
    on_machine("a_daemon_killed_at_any_place_is_followed_by_one_that_knows_what_is_lent", |machine| {
        let points =
            String::from_utf8(run(Command::new(build.join("tensorlend-worker")).arg("points")).stdout).unwrap();
        let points: Vec<(usize, &str)> =
            points.lines().enumerate().filter(|(_, point)| point.starts_with("device")).collect();
        assert!(points.len() >= 4, "{points:?}");
        let text = format!("mode = \"system\"\n{}idle_bytes_max = 0\n", config("pool", "quarantine_ms = 20\n"));
        for (number, point) in points {
            println!("{point}");
            let begin = machine.path("begin");
            let _ = std::fs::remove_file(&begin);
            let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
            let mut service = service_of(machine, &build.join("tensorlendd"), &text, Some(plan));
            let a = service.client();
            let location = Location::named("cuda", &a);
            location.put(&a, "kept", 1, MB).unwrap();
            std::fs::write(&begin, "").unwrap();
            // Clients connect, get a segment and return it, until the daemon has been killed.
            let start = Instant::now();
            while service.is_running() {
                assert!(start.elapsed() < PATIENCE, "{point}: not passed");
                if let Ok(guest) = Client::builder().socket(service.socket()).connect() {
                    let _ = location.put(&guest, "passing", 2, 3 * MB);
                    let _ = guest.delete("passing");
                }
            }
            service.restart();
            let b = service.client();
            assert!(location.get(&a, "kept").unwrap().is(1), "{point}");
            assert!(location.get(&b, "kept").unwrap().is(1), "{point}");
            location.put(&a, "kept", 3, MB).unwrap();
            location.put(&b, "more", 4, 3 * MB).unwrap();
            assert!(location.get(&b, "kept").unwrap().is(3) && location.get(&a, "more").unwrap().is(4), "{point}");
            for info in a.list("*").unwrap() {
                a.delete(&info.name).unwrap();
            }
            drop((a, b));
            all_comes_back(&service.client());
        }
    });
}
