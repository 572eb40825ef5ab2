//! The longest time for which one request of a client delays the requests of another, and the time that members without
//! acknowledgements cost a writer. These are measurements and not tests: run one at a time,
//! `cargo test -p tensorlend-tests --test delays NAME -- --ignored --nocapture`, with `TENSORLEND_BIN_DIR` for other programs.

use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{DType, Policy};
use tensorlend_layout::catalogue::SlotRecord;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::wire::{APPEND_MAX, NameAt, Reply, Request, VALUES_MAX};
use tensorlend_layout::word::{Cell, SLOT_NONE};
use tensorlend_os::memfd::Access;
use tensorlend_os::packet;
use tensorlend_tests::hand::{self, Hand, dial, hello};
use tensorlend_tests::{Daemon, budget, eventually};

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
    let lease = Cell::new(1, SlotNo::new(77)).lease(hand.welcome.client);
    hand.leases.entries.iter().flatten().for_each(|entry| entry.set(lease.0));
}

fn names_of(directory: &Directory, owner: u16) -> Vec<NameAt> {
    let live =
        directory.entries().map(|(entry, line)| (entry, tensorlend_layout::word::OwnerWord(line.owner_word.read())));
    let own = live.filter(|(_, owner_word)| owner_word.is_live() && owner_word.owner() == ClientNo::new(owner));
    own.map(|(entry, owner_word)| NameAt { entry, owner_word: owner_word.0 }).collect()
}

#[test]
#[ignore = "a measurement"]
fn what_one_request_costs_another_client() {
    let daemon = Daemon::start(CONFIG);
    let hand = Hand::join(&daemon.socket(), None).unwrap();
    let cells: Vec<CellNo> = (0..APPEND_MAX).filter_map(CellNo::at).collect();
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
    for (slot, record) in (0..).map(|at| base + at).zip(records) {
        record.words[0].set(1 << 24);
        record.words[2].set(if slot + 1 < base + (1 << 14) { slot + 1 } else { SLOT_NONE }.into());
    }
    for cell in 0..VALUES_MAX as u32 {
        hand.catalogue.cells[cell as usize].cell.set(Cell::new(1, base).0);
        ask(&hand, &Request::Bind { name: format!("chain{cell}"), cell: CellNo::new(cell) });
    }
    let mut names = names_of(&hand.directory, hand.welcome.client.get());
    names.truncate(VALUES_MAX);
    measure(&daemon, "values of 320 names with long chains", |_| {
        ask(&hand, &Request::ValuesOf { names: names.clone() });
    });
    measure(&daemon, "tidying 256 names", |round| {
        let names: Vec<_> = (0..256).map(|cell| (format!("t{round}-{cell}"), CellNo::new(cell + 1000))).collect();
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
