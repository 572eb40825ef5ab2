//! Clients that send false device data to the daemon and to their readers.

use std::process::Command;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{LendingId, Reply, Request};
use tensorlend_tests::hand::Hand;
use tensorlend_tests::location::Location;
use tensorlend_tests::machine::{config, on_machine, placed};
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{Agent, Daemon, binary, budget, eventually, skip_without, skip_without_root};

const MB: u64 = 1 << 20;

fn honest_goes_on(daemon: &Daemon) {
    let (a, b) = (daemon.client(), daemon.client());
    let location = Location::named("cuda", &a);
    location.put(&a, "honest", 1, MB).unwrap();
    assert!(location.get(&b, "honest").unwrap().is(1));
    a.delete("honest").unwrap();
}

#[test]
fn lies_to_the_daemon_change_nothing_for_others() {
    on_machine("lies_to_the_daemon_change_nothing_for_others", |machine| {
        let daemon = machine.daemon(&config("pool", "quarantine_ms = 50\nidle_bytes_max = 0\n"));
        let watcher = daemon.client();
        let location = Location::named("cuda", &watcher);
        let owner = daemon.client();
        location.put(&owner, "x", 1, MB).unwrap();
        let reader = daemon.client();
        let held = location.get(&reader, "x").unwrap();
        let lent = location.lent_bytes(&watcher).unwrap();
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        let uuid = hand.welcome.devices[0].uuid;

        // Report lendings that this client never had, that never existed, and that other clients have.
        let (owner_word, since) = (hand.owner_word_of("x").unwrap(), hand.directory.segments[0].since_ns.read());
        let all_of = |since_ns| -> Vec<LendingId> {
            let of = move |catalogue| {
                (0..4).map(move |base| LendingId { owner: catalogue, base: SlotNo::new(base * 256), since_ns })
            };
            [owner_word.owner(), hand.welcome.client, ClientNo::new(0), ClientNo::new(7), ClientNo::new(u16::MAX)]
                .into_iter()
                .flat_map(of)
                .collect()
        };
        for lendings in [all_of(since), all_of(0), all_of(u64::MAX), Vec::new()] {
            let (reply, _) = hand.ask(&Request::Unmapped { lendings: lendings.clone() }).unwrap();
            assert_eq!(reply, Reply::Done);
            for last in [false, true, true] {
                let (reply, _) = hand.ask(&Request::Mapped { lendings: lendings.clone(), last }).unwrap();
                assert!(matches!(reply, Reply::Done | Reply::Refused(_)), "{reply:?}");
            }
        }
        // More lendings than a message may name: the daemon refuses or disconnects, and frees nothing.
        let many = vec![LendingId { owner: owner_word.owner(), base: SlotNo::new(0), since_ns: since }; 2000];
        let long = hand.ask(&Request::Unmapped { lendings: many });
        println!("2000 lendings: {:?}", long.map(|(reply, _)| reply));
        assert!(held.is(1) && held.validate() && location.lent_bytes(&watcher).unwrap() == lent);

        // Invalid segment sizes.
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        let wishes = [
            (uuid, u64::MAX, 4),
            (uuid, u64::MAX - 4096, 4),
            (uuid, 1 << 62, 4),
            (uuid, 1 << 40, 4),
            (uuid, 0, 255),
            (uuid, 1, 64),
            (uuid, 1, 32),
            (uuid, 1, 21),
            (tensorlend::Uuid([0; 16]), 1, 4),
            (tensorlend::Uuid([0xFF; 16]), 1, 4),
        ];
        for (uuid, bytes, slots_log2) in wishes {
            let (reply, descriptors) = hand.ask(&Request::DeviceSegment { uuid, bytes, slots_log2 }).unwrap();
            let Reply::Refused(refusal) = reply else { panic!("{bytes} bytes, 2^{slots_log2} slots: {reply:?}") };
            assert!(descriptors.is_empty());
            println!("{bytes} bytes, 2^{slots_log2} slots: {refusal}");
        }
        let (reply, _) =
            hand.ask(&Request::SegmentOf { owner: ClientNo::new(u16::MAX), slot: SlotNo::new(u32::MAX) }).unwrap();
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        let (reply, _) = hand.ask(&Request::ReturnSegment { base: SlotNo::new(owner_word.cell().get()) }).unwrap();
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        assert_eq!(location.lent_bytes(&watcher).unwrap(), lent);

        // A client that reports an unmapping without returning the segment; then the reverse.
        let wish = Request::DeviceSegment { uuid, bytes: 1, slots_log2: 4 };
        let (Reply::DeviceSegment(mine), _) = hand.ask(&wish).unwrap() else { panic!("nothing is lent") };
        let lendings = vec![mine.lending];
        for _ in 0..3 {
            assert_eq!(hand.ask(&Request::Unmapped { lendings: lendings.clone() }).unwrap().0, Reply::Done);
        }
        assert_eq!(location.lent_bytes(&watcher).unwrap(), lent + mine.bytes, "it is its owner's still");
        let base = mine.lending.base;
        assert_eq!(hand.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Done);
        eventually("its return", || location.lent_bytes(&watcher).unwrap() == lent);
        assert!(matches!(hand.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Refused(_)));
        drop(hand);
        drop(held);
        honest_goes_on(&daemon);
        owner.delete("x").unwrap();
        drop((owner, reader));
        // The hostile process is alive, but holds nothing.
        eventually("the return of all", || location.lent_bytes(&watcher).unwrap() == 0);
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    });
}

#[test]
fn many_requests_cost_the_daemon_nothing() {
    on_machine("many_requests_cost_the_daemon_nothing", |machine| {
        let requests: u64 = budget(20_000, 200_000);
        let daemon = machine.daemon(&config("pool", "quarantine_ms = 50\n"));
        let memory = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        let uuid = hand.welcome.devices[0].uuid;
        honest_goes_on(&daemon);
        let catalogue = hand.welcome.client;
        let ask = |number: u64| {
            let lending = LendingId {
                owner: ClientNo::new(number as u16),
                base: SlotNo::new((number as u32) << 4),
                since_ns: number,
            };
            let request = match number % 8 {
                0..3 => Request::Unmapped { lendings: vec![lending; 8] },
                3..6 => Request::Mapped { lendings: vec![lending; 8], last: number % 16 == 3 },
                6 => Request::DeviceSegment { uuid, bytes: 1 << 50, slots_log2: 4 },
                _ => Request::SegmentOf { owner: catalogue, slot: SlotNo::new(number as u32) },
            };
            let (reply, _) = hand.ask(&request).unwrap();
            assert!(matches!(reply, Reply::Done | Reply::Refused(_)), "{reply:?}");
        };
        // Warms up the memory that the daemon needs to respond.
        (0..requests / 10).for_each(ask);
        let before = memory();
        (0..requests).for_each(ask);
        let after = memory();
        println!("{requests} requests: {before} KiB before, {after} KiB after");
        // Leaks less than 100 bytes per request.
        let slack = ((requests * 100) >> 10).max(1 << 10);
        assert!(after < before + slack, "{requests} requests: {before} KiB before, {after} KiB after");
        honest_goes_on(&daemon);
        drop(hand);
        let watcher = daemon.client();
        let location = Location::named("cuda", &watcher);
        eventually("the return of all", || location.lent_bytes(&watcher).unwrap() == 0);
    });
}

/// Falsifies the words of a slot record one by one. A reader gets an error, or reads within its producer's segment; it
/// never crashes, and its driver never gets an address outside.
fn twisted(daemon: &Daemon, location: &str) {
    let mut liar = Agent::steer(Command::new(binary("tensorlend-attacker")));
    let mut reader = placed(&daemon.socket(), location);
    liar.ok(&format!("publish-marked {} {location} twisted", daemon.socket().display()));
    let truth = reader.ok("sum twisted");
    // Device codes: a device in a host segment and the reverse, other kinds, other numbers; and invalid ones.
    let codes =
        [1u64 << 24, 2 << 24, 2 << 24 | 7 << 16, 2 << 24 | 0xFF << 16, 3 << 24, 4 << 24, 10 << 24, 0xFF << 24, 0];
    let mut damaged = 0;
    for word in 0..16 {
        let was: u64 = liar.ok(&format!("twist {word} 0")).parse().unwrap();
        let mut lies = vec![
            0,
            u64::MAX,
            was + 1,
            was.wrapping_sub(1),
            was ^ 1 << 63,
            was << 20,
            1 << 40,
            64,
            4 << 20,
            (4 << 20) - 64,
        ];
        if word == 1 {
            lies.extend(codes.iter().map(|code| was & !(0xFFFF << 16) | code));
            // Flags and dimensions: strided, extended, early, two of them, many.
            lies.extend([1 << 8, 1 << 9, 1 << 11, 3 << 9, 7 << 8, 0xF00].map(|flags| was | flags));
            lies.extend([0, 1, 4, 5, 16, 17, 255].map(|ndim| was & !0xFF | ndim));
        }
        for lie in lies {
            liar.ok(&format!("twist {word} {lie}"));
            for order in ["sum twisted", "hold twisted", "held twisted", "release twisted"] {
                if let Err(error) = reader.ask(order) {
                    damaged += 1;
                    assert!(!error.contains("CUDA_ERROR"), "{location}: word {word} says {lie:#x}: {order}: {error}");
                }
                assert!(reader.ended().is_none(), "{location}: word {word} says {lie:#x}: the reader died");
            }
        }
        liar.ok(&format!("twist {word} {was}"));
        assert_eq!(reader.ok("sum twisted"), truth, "{location}: after word {word}");
    }
    println!("{location}: {damaged} reads failed");
    assert!(damaged > 60, "{damaged}");
    liar.kill();
}

#[test]
fn records_that_lie_are_damaged_and_kill_nobody() {
    on_machine("records_that_lie_are_damaged_and_kill_nobody", |machine| {
        for allocator in ["pool", "async"] {
            let daemon = machine.daemon(&config(allocator, ""));
            for location in ["cuda", "host"] {
                twisted(&daemon, location);
            }
            honest_goes_on(&daemon);
        }
    });
}

/// A client gets no device memory of another user's namespace, whatever it requests.
#[test]
fn a_stranger_is_lent_no_device_memory() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    on_machine("a_stranger_is_lent_no_device_memory", |machine| {
        const MALLORY: u32 = 64_203;
        let daemon = machine.daemon(&format!("mode = \"system\"\n{}", config("pool", "")));
        let owner = daemon.client();
        let location = Location::named("cuda", &owner);
        location.put(&owner, "diary", 1, MB).unwrap();
        let programs = Programs::copy(&["tensorlend-attacker"]);
        let program = programs.path("tensorlend-attacker");
        let mut mallory = Agent::steer(as_user(MALLORY, &program));
        mallory.ok(&format!("join {}", daemon.socket().display()));
        assert_eq!(mallory.ok("pry uid:0"), "0");
        // The same requests succeed for a permitted user.
        let mut accomplice = Agent::steer(Command::new(program));
        accomplice.ok(&format!("join {}", daemon.socket().display()));
        assert_ne!(accomplice.ok("pry uid:0"), "0");
        assert!(location.get(&owner, "diary").unwrap().is(1));
    });
}
