//! The longest time for which one request of a client delays the requests of another, and the time that members without
//! acknowledgements cost a writer. These are measurements and not tests: run one at a time,
//! `cargo test -p tensorlend-tests --test delays NAME -- --ignored --nocapture`, with `TENSORLEND_BIN_DIR` for other programs.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{DType, Policy};
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::wire::{APPEND_MAX, NameAt, Reply, Request, VALUES_MAX, decode, encode};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_os::memfd::Access;
use tensorlend_os::packet;
use tensorlend_tests::hand::{self, Hand, dial, hello};
use tensorlend_tests::users::{Programs, acting_as, as_user};
use tensorlend_tests::{Daemon, budget, eventually, skip_without, skip_without_root};

const CONFIG: &str = "[uid]\nsessions_max = 1000\n[namespace_default]\nnames_max = 262144\nmembers_max = 1000\n";

fn ask(hand: &Hand, request: &Request) -> Reply {
    let reply = hand.ask(request).unwrap().0;
    assert!(!matches!(reply, Reply::Refused(_)), "{request:?}: {reply:?}");
    reply
}

/// Runs `attack` some times while another client pings without a pause; prints the worst and the median ping.
fn measure(daemon: &Daemon, what: &str, mut attack: impl FnMut(usize)) {
    let (over, during) = (AtomicBool::new(false), AtomicBool::new(false));
    let pings = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let hand = Hand::join(&daemon.socket(), None).unwrap();
            while !over.load(Ordering::Relaxed) {
                let (start, is_during) = (Instant::now(), during.load(Ordering::Relaxed));
                ask(&hand, &Request::Ping);
                // One that a request delays ends after that request.
                if is_during || during.load(Ordering::Relaxed) {
                    pings.lock().unwrap().push(start.elapsed());
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        for round in 0..budget(20, 50) {
            during.store(true, Ordering::Relaxed);
            attack(round);
            during.store(false, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
    });
    let mut pings = pings.into_inner().unwrap();
    pings.sort();
    let at = |part: f64| pings[((pings.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!("| {what} | {} | {:.2} | {:.2} | {:.2} |", pings.len(), at(0.5), at(0.99), at(1.0));
}

/// Fills all entries of a client's lease table with leases of slots that nobody has.
fn fill_leases(hand: &Hand) {
    hand.leases.shards_used.set(u64::MAX);
    hand.leases.high_water.iter().for_each(|high| high.set(64));
    let lease = Cell::new(1, 77).lease(hand.welcome.catalogue);
    hand.leases.entries.iter().flatten().for_each(|entry| entry.set(lease.0));
}

fn names_of(directory: &Directory, owner: u16) -> Vec<NameAt> {
    let live =
        directory.entries().map(|(entry, line)| (entry, tensorlend_layout::word::OwnerWord(line.owner_word.read())));
    let own = live.filter(|(_, owner_word)| owner_word.is_live() && owner_word.catalogue() == owner);
    own.map(|(entry, owner_word)| NameAt { entry, owner_word: owner_word.0 }).collect()
}

#[test]
#[ignore = "a measurement"]
fn what_one_request_costs_another_client() {
    let daemon = Daemon::start(CONFIG);
    let hand = Hand::join(&daemon.socket(), None).unwrap();
    let cells: Vec<u32> = (0..APPEND_MAX as u32).collect();
    let append = |list: &str| Request::ListAppend { list: list.into(), cells: cells.clone() };
    let delete = |list: &str| Request::ListDelete { list: list.into() };
    println!("| request | pings | median ms | p99 ms | worst ms |\n|---|---|---|---|---|");
    measure(&daemon, "none", |_| std::thread::sleep(Duration::from_millis(20)));
    measure(&daemon, "append of 1,024 items", |_| drop(ask(&hand, &append("l"))));
    measure(&daemon, "append of 1,024 items, deletion of the list", |_| {
        ask(&hand, &append("m"));
        ask(&hand, &delete("m"));
    });
    ask(&hand, &delete("l"));
    measure(&daemon, "notices of 1,024 cells", |_| {
        ask(&hand, &append("m"));
        ask(&hand, &delete("m"));
        std::thread::sleep(Duration::from_millis(100));
        ask(&hand, &Request::Notices);
    });
    // Chains through all slots of a segment: a name costs as many records as a dataset can have.
    let (base, slots) = hand.segment(4096, 14, |lent| Ok((lent.base, hand::map(&lent.slots, Access::Write)?))).unwrap();
    let records: &[SlotRecord] = slots.array(4096, 1 << 14).unwrap();
    for (slot, record) in (base..).zip(records) {
        record.words[0].set(1 << 24);
        record.words[2].set(if slot + 1 < base + (1 << 14) { slot + 1 } else { SLOT_NONE }.into());
    }
    for cell in 0..VALUES_MAX as u32 {
        hand.catalogue.cells[cell as usize].cell.set(Cell::new(1, base).0);
        ask(&hand, &Request::Bind { name: format!("chain{cell}"), cell });
    }
    let mut names = names_of(&hand.directory, hand.welcome.catalogue);
    names.truncate(VALUES_MAX);
    measure(&daemon, "values of 320 names with long chains", |_| {
        ask(&hand, &Request::ValuesOf { names: names.clone() });
    });
    measure(&daemon, "tidying 256 names", |round| {
        let names: Vec<(String, u32)> = (0..256).map(|cell| (format!("t{round}-{cell}"), cell + 1000)).collect();
        for (name, cell) in &names {
            ask(&hand, &Request::Bind { name: name.clone(), cell: *cell });
        }
        ask(&hand, &Request::Tidy { names });
    });
    measure(&daemon, "a segment with 2^20 slots, and its return", |_| {
        let base = hand.segment(4096, 20, |lent| Ok(lent.base)).unwrap();
        ask(&hand, &Request::ReturnSegment { base });
    });
    measure(&daemon, "a stream of 65,536 messages, and its deletion", |round| {
        let name = format!("s{round}");
        hand.stream(&name, 1 << 16).unwrap();
        ask(&hand, &Request::StreamDelete { name });
    });
    measure(&daemon, "the end of a client with 2,048 items", |round| {
        let other = Hand::join(&daemon.socket(), None).unwrap();
        let request = Request::ListAppend { list: format!("e{}", round % 4), cells: cells.clone() };
        ask(&other, &request);
        let ephemeral = Request::ListAppendEphemeral { list: format!("f{}", round % 4), cells: cells.clone() };
        ask(&other, &ephemeral);
        drop(other);
        std::thread::sleep(Duration::from_millis(50));
    });
    let many: Vec<Hand> = (0..200).map(|_| Hand::join(&daemon.socket(), None).unwrap()).collect();
    many.iter().for_each(fill_leases);
    measure(&daemon, "stat, with 200 full lease tables", |_| drop(ask(&hand, &Request::Stat)));
    measure(&daemon, "return of a segment, with 200 full lease tables", |_| {
        let base = hand.segment(4096, 0, |lent| Ok(lent.base)).unwrap();
        ask(&hand, &Request::ReturnSegment { base });
    });
    measure(&daemon, "the end of 200 clients", |round| {
        if round == 0 {
            for hand in &many {
                rustix::net::shutdown(&hand.socket, rustix::net::Shutdown::Both).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    });
}

/// Number of calls in a round.
const CALLS: usize = 3000;

/// Returns the median, the 99.9th percentile and the longest time of a round of calls.
fn round(mut call: impl FnMut()) -> [Duration; 3] {
    let mut times: Vec<Duration> = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        call();
        times.push(start.elapsed());
    }
    times.sort();
    [0.5, 0.999, 1.0].map(|part| times[((CALLS - 1) as f64 * part) as usize])
}

/// Joins clients that receive their sheets, and never acknowledge them.
fn join_mute(daemon: &Daemon, count: usize) -> Vec<OwnedFd> {
    let join = |_| {
        let socket = dial(&daemon.socket()).unwrap();
        let (reply, _sheets) = hand::ask(&socket, &hello(None), &[]).unwrap();
        assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
        socket
    };
    (0..count).map(join).collect()
}

#[test]
#[ignore = "a measurement"]
fn what_members_that_never_acknowledge_cost_a_writer() {
    const MEMBERS: [usize; 2] = [0, 40];
    let daemon = Daemon::start(CONFIG);
    let client = daemon.client();
    // Large enough that a replaced value's slot is reclaimed at once.
    let bytes = vec![1u8; 1 << 20];
    let stream = client.stream("s").capacity(8).policy(Policy::DropOldest).open().unwrap();
    let put = || {
        client.put("x", &bytes).unwrap();
    };
    let send = || {
        stream.send(client.create(DType::U8, bytes.len()).unwrap()).unwrap();
    };
    // Warms up: slots are reused.
    round(put);
    round(send);
    let mut rounds: [[Vec<[Duration; 3]>; 2]; 2] = Default::default();
    for _ in 0..budget(5, 15) {
        for (of, members) in rounds.iter_mut().zip(MEMBERS) {
            let mute = join_mute(&daemon, members);
            of[0].push(round(put));
            of[1].push(round(send));
            for socket in &mute {
                let heard = packet::receive(socket, RecvFlags::DONTWAIT).map(|packet| packet.bytes);
                assert_eq!(heard, Err(Errno::AGAIN), "the daemon disconnects no member while nobody waits for it");
            }
            drop(mute);
            eventually("the end of the members", || client.stat().unwrap().clients == 1);
        }
    }
    println!("| call | members | p50 us | p99.9 us | worst us |\n|---|---|---|---|---|");
    for (at, call) in ["put of 1 MiB", "send of 1 MiB, not written"].into_iter().enumerate() {
        for (of, members) in rounds.iter().zip(MEMBERS) {
            let [p50, p999, worst] = [0, 1, 2].map(|part| {
                let mut times: Vec<Duration> = of[at].iter().map(|round| round[part]).collect();
                times.sort();
                times[times.len() / 2].as_secs_f64() * 1e6
            });
            println!("| {call} | {members} | {p50:.1} | {p999:.1} | {worst:.1} |");
        }
    }
}

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;

/// Many sessions, and long lists.
const TWO_USERS: &str = "mode = \"system\"\n[pool]\nsheet_bytes_max = \"4GiB\"\n[uid]\nshare = false\nsessions_max = 2000\n\
                         [namespace_default]\nnames_max = 4194304\nmembers_max = 1000\n";

/// Returns the times of BOB's pings, which he sends without a pause while ALICE acts.
fn pings_during(daemon: &Daemon, act: impl FnOnce() + Send) -> Vec<Duration> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bob = scope.spawn(|| {
            acting_as(BOB, || {
                let (hand, mut pings) = (Hand::join(&daemon.socket(), None).unwrap(), Vec::new());
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    ask(&hand, &Request::Ping);
                    pings.push(start.elapsed());
                }
                pings
            })
        });
        // He has joined, and pings.
        std::thread::sleep(Duration::from_millis(200));
        acting_as(ALICE, act);
        over.store(true, Ordering::Relaxed);
        bob.join().unwrap()
    })
}

/// Sends a request to the daemon on each connection, and then waits for all replies. Returns the number of refusals: a table of
/// names that fills faster than the daemon enlarges it has too many names that collide.
fn ask_all(hands: &[Hand], request: impl Fn(usize) -> Request) -> usize {
    for (number, hand) in hands.iter().enumerate() {
        packet::send(&hand.socket, &encode(&request(number)), &[], SendFlags::empty()).unwrap();
    }
    let hear =
        |hand: &Hand| decode(&packet::receive(&hand.socket, RecvFlags::empty()).unwrap().bytes).expect("a reply");
    hands.iter().filter(|hand| matches!(hear(hand), Reply::Refused(_))).count()
}

/// Prints a line for each round, and the median of the rounds with the least and the greatest.
fn print_rounds(what: &str, rounds: Vec<Vec<Duration>>) {
    const SLOW: Duration = Duration::from_millis(10);
    let mut columns: [Vec<f64>; 4] = Default::default();
    for mut pings in rounds {
        pings.sort();
        let ms = |part: f64| pings[((pings.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let slow = pings.iter().filter(|&&ping| ping > SLOW).count() as f64 * 100.0 / pings.len() as f64;
        let line = [pings.len() as f64, slow, ms(0.99), ms(1.0)];
        println!(
            "{what}: {} pings, {:.3} % above 10 ms, p99 {:.2} ms, worst {:.2} ms",
            line[0], line[1], line[2], line[3]
        );
        columns.iter_mut().zip(line).for_each(|(column, value)| column.push(value));
    }
    let text = columns.map(|mut column| {
        column.sort_by(f64::total_cmp);
        format!("{:.2} ({:.2} to {:.2})", column[column.len() / 2], column[0], column[column.len() - 1])
    });
    println!("| {what} | {} |", text.join(" | "));
}

#[test]
#[ignore = "a measurement"]
fn what_many_connections_of_one_user_cost_another_user() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let programs = Programs::copy(&["tensorlendd"]);
    let daemon = Daemon::start_as(TWO_USERS, |_| as_user(DAEMON, &programs.path("tensorlendd")));
    let join = |count: usize| -> Vec<Hand> {
        acting_as(ALICE, || (0..count).map(|_| Hand::join(&daemon.socket(), None).unwrap()).collect())
    };
    let cells: Vec<u32> = (0..APPEND_MAX as u32).collect();
    let rounds = 0..budget(5, 15);
    let nothing = rounds.clone().map(|_| pings_during(&daemon, || std::thread::sleep(Duration::from_secs(1))));
    print_rounds("nothing", nothing.collect());
    let ends = rounds.clone().map(|_| {
        let hands = join(200);
        let each = |hand: &Hand| {
            let list = format!("of {}", hand.welcome.catalogue);
            ask(hand, &Request::ListAppendEphemeral { list, cells: cells.clone() });
        };
        hands.iter().for_each(each);
        pings_during(&daemon, || {
            for hand in &hands {
                rustix::net::shutdown(&hand.socket, rustix::net::Shutdown::Both).unwrap();
            }
            std::thread::sleep(Duration::from_millis(800));
        })
    });
    print_rounds("200 ends at once", ends.collect());
    let hands = join(400);
    let appends = rounds.map(|_| {
        let mut refused = 0;
        let pings = pings_during(&daemon, || {
            refused =
                ask_all(&hands, |number| Request::ListAppend { list: format!("l{number}"), cells: cells.clone() });
        });
        println!("{refused} of 400 refused");
        ask_all(&hands, |number| Request::ListDelete { list: format!("l{number}") });
        ask_all(&hands, |_| Request::Notices);
        std::thread::sleep(Duration::from_secs(2));
        pings
    });
    print_rounds("400 appends of 1,024 items at once", appends.collect());
}

/// A limit of memory that a few clients reach, so that their orders and returns follow each other.
const ATTACKED: &str = "mode = \"system\"\n[pool]\nbytes_max = \"2GiB\"\nsheet_bytes_max = \"2GiB\"\nsegment_bytes = \"64MiB\"\n\
                        [uid]\nshare = false\nsessions_max = 4000\n[namespace_default]\nnames_max = 4194304\nmembers_max = 1000\n";
const CAROL: u32 = 64_004;

/// Duration of an attack.
const ATTACK: Duration = Duration::from_secs(2);

/// Runs an attack of ALICE. Returns the times of BOB's pings, and of CAROL's connects.
fn others_during(daemon: &Daemon, act: impl FnOnce() + Send) -> (Vec<Duration>, Vec<Duration>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let carol = scope.spawn(|| {
            acting_as(CAROL, || {
                let mut connects = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    // The daemon may have no descriptor left.
                    if Hand::join(&daemon.socket(), None).is_ok() {
                        connects.push(start.elapsed());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                connects
            })
        });
        let pings = pings_during(daemon, act);
        over.store(true, Ordering::Relaxed);
        (pings, carol.join().unwrap())
    })
}

/// Grows the cells of a client, while other threads write into each new part before it is acknowledged.
fn write_before_acknowledging(daemon: &Daemon, writers: usize) {
    let end = Instant::now() + ATTACK;
    let bytes = vec![1u8; 128 << 10];
    while Instant::now() < end {
        let Ok(hand) = Hand::join(&daemon.socket(), None) else { continue };
        for _ in 0..4 {
            let Ok((Reply::Cells { .. }, parts)) = hand::ask(&hand.socket, &Request::GrowCells, &[]) else { break };
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..writers {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) && rustix::io::pwrite(&parts[0], &bytes, 0).is_ok() {
                            std::hint::spin_loop();
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(20));
                hand.acknowledge().unwrap();
                // The daemon has handled the acknowledgement when it replies.
                let _ = hand::ask(&hand.socket, &Request::Ping, &[]);
                over.store(true, Ordering::Relaxed);
            });
        }
    }
}

/// Connects again and again, and leaves sockets in the daemon's queue whose close takes ten minutes.
fn send_lingering(daemon: &Daemon) {
    let end = Instant::now() + ATTACK;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peers = Vec::new();
    while Instant::now() < end {
        let evil = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peers.push(listener.accept().unwrap());
        rustix::net::sockopt::set_socket_linger(&evil, Some(Duration::from_mins(10))).unwrap();
        evil.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &evil, &[0; 4096]).is_ok() {}
        let Ok(socket) = dial(&daemon.socket()) else { continue };
        let _ = packet::send(&socket, &[1], &[std::os::fd::AsFd::as_fd(&evil)], SendFlags::DONTWAIT);
    }
}

/// Orders and returns long segments on some connections without a pause.
fn hog(daemon: &Daemon) {
    let end = Instant::now() + ATTACK;
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                // A scope's thread has the test's user, and becomes ALICE.
                acting_as(ALICE, || {
                    let Ok(hand) = Hand::join(&daemon.socket(), None) else { return };
                    while Instant::now() < end {
                        let Ok(base) = hand.segment(200 << 20, 4, |lent| Ok(lent.base)) else { continue };
                        let _ = hand.ask(&Request::ReturnSegment { base });
                    }
                });
            });
        }
    });
}

/// The program of a member that maps its directory very often.
#[test]
#[ignore = "started by the measurement"]
fn mapper() {
    let Ok(socket) = std::env::var("TENSORLEND_MAPPED") else { return };
    let hand = Hand::join(socket.as_ref(), None).unwrap();
    let mut views = Vec::new();
    while let Ok(view) = hand::map(&hand.directory_fd, Access::Read) {
        views.push(view);
        if views.len() == 60_000 {
            break;
        }
    }
    println!("\nready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
#[ignore = "a measurement"]
fn what_attacks_cost_other_users() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let programs = Programs::copy(&["tensorlendd"]);
    // Where every user can run it.
    let folder = tempfile::tempdir().unwrap();
    tensorlend_tests::open_to_all(folder.path());
    let own = folder.path().join("delays");
    std::fs::copy(std::env::current_exe().unwrap(), &own).unwrap();
    tensorlend_tests::open_to_all(&own);
    let rounds = budget(5, 15);
    println!("| attack | pings or connects | % above 10 ms | p99 ms | worst ms |\n|---|---|---|---|---|");
    let measure = |what: &str, attack: &(dyn Fn(&Daemon) + Sync)| {
        let all: Vec<_> = (0..rounds)
            .map(|_| {
                let daemon = Daemon::start_as(ATTACKED, |_| as_user(DAEMON, &programs.path("tensorlendd")));
                others_during(&daemon, || attack(&daemon))
            })
            .collect();
        let (pings, connects) = all.into_iter().unzip();
        print_rounds(&format!("{what}: pings"), pings);
        print_rounds(&format!("{what}: connects"), connects);
    };
    measure("nothing", &|_| std::thread::sleep(ATTACK));
    measure("64 writers of a sheet", &|daemon| write_before_acknowledging(daemon, 64));
    measure("400 writers of a sheet", &|daemon| write_before_acknowledging(daemon, 400));
    measure("lingering sockets", &send_lingering);
    measure("six hogs", &hog);
    measure("8 processes that map the names 60,000 times each", &|daemon| {
        let spawn = |_| {
            let mut command = as_user(ALICE, &own);
            command.args(["mapper", "--exact", "--ignored", "--nocapture"]).env("TENSORLEND_MAPPED", daemon.socket());
            let mut child = command
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("the program of this test runs");
            let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
            assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
            child
        };
        let children: Vec<_> = (0..8).map(spawn).collect();
        let hand = Hand::join(&daemon.socket(), None).unwrap();
        // The table of names grows again and again, and the daemon discards the former one.
        for number in 0..60_000u32 {
            let name = format!("a name of some length that is number {number}");
            let _ = hand.ask(&Request::Bind { name, cell: number % 4096 });
        }
        for mut child in children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    });
}
