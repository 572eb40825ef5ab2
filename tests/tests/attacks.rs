//! The time for which a hostile user delays other users, the time of a restart meanwhile, and what remains afterwards.
//! These are measurements and not tests: run one at a time,
//! `cargo test -p tensorlend-tests --test attacks NAME -- --ignored --nocapture`, with `TENSORLEND_BIN_DIR` for other programs,
//! `TENSORLEND_ATTACK` for one attack by its number, and `TENSORLEND_ATTACK_SECONDS` for another time.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::{APPEND_MAX, Reply, Request, decode, encode};
use tensorlend_os::memfd::Access;
use tensorlend_os::packet;
use tensorlend_tests::hand::{self, Hand, dial, hello};
use tensorlend_tests::memory::Footprint;
use tensorlend_tests::stored::Machine;
use tensorlend_tests::users::{Programs, acting_as, as_user};
use tensorlend_tests::{Daemon, PATIENCE, budget, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;

/// Many sessions, and long lists.
const TWO_USERS: &str = "mode = \"system\"\n[pool]\nsheet_bytes_max = \"4GiB\"\n[uid]\nshare = false\nsessions_max = 2000\n\
                         [namespace_default]\nnames_max = 4194304\nmembers_max = 1000\n";

/// Sends a request to the daemon on each connection, and then waits for all replies. Returns the number of refusals: if
/// the table of names fills faster than the daemon enlarges it, too many of its names collide.
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
    let cells: Vec<CellNo> = (0..APPEND_MAX).filter_map(CellNo::at).collect();
    let rounds = 0..budget(5, 15);
    let nothing =
        rounds.clone().map(|_| others_during(&daemon.socket(), || std::thread::sleep(Duration::from_secs(1))).0);
    print_rounds("nothing", nothing.collect());
    let ends = rounds.clone().map(|_| {
        let hands = join(200);
        let each = |hand: &Hand| {
            let list = format!("of {}", hand.welcome.client);
            hand.ask(&Request::ListAppendEphemeral { list, cells: cells.clone() }).unwrap();
        };
        hands.iter().for_each(each);
        others_during(&daemon.socket(), || {
            for hand in &hands {
                rustix::net::shutdown(&hand.socket, rustix::net::Shutdown::Both).unwrap();
            }
            std::thread::sleep(Duration::from_millis(800));
        })
        .0
    });
    print_rounds("200 ends at once", ends.collect());
    let hands = join(400);
    let appends = rounds.map(|_| {
        let mut refused = 0;
        let (pings, _) = others_during(&daemon.socket(), || {
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

const CAROL: u32 = 64_004;

/// A limit of memory that a few clients reach, so that their orders and returns follow each other.
const ATTACKED: &str = "mode = \"system\"\n[pool]\nbytes_max = \"2GiB\"\nsheet_bytes_max = \"2GiB\"\nsegment_bytes = \"64MiB\"\n\
                        [namespace_default]\nnames_max = 262144\nmembers_max = 1000\n";

/// Duration of an attack in the table of single attacks.
const ATTACK: Duration = Duration::from_secs(2);

/// Number of mappings of a sheet. The kernel permits 65,530 for each process.
const MAPPINGS: usize = 60_000;

/// An attack on the daemon at this socket. It ends after its time.
type Attack = fn(&Path, Instant);

/// The attacks that run in a process of their own, by name.
const ATTACKS: &[(&str, Attack)] = &[
    ("64 writers of a sheet", |socket, end| write_before_acknowledging(socket, end, 64)),
    ("400 writers of a sheet", |socket, end| write_before_acknowledging(socket, end, 400)),
    ("lingering sockets", send_lingering),
    ("six hogs", hog),
    ("a sheet that is mapped 60,000 times and punched", punch),
    ("names that are mapped 60,000 times and grow", map_names),
    ("100 threads that connect", connect),
    ("Unix sockets in flight", keep_in_flight),
];

/// Grows the cells of a client, while other threads write into each new part before it is acknowledged.
fn write_before_acknowledging(socket: &Path, end: Instant, writers: usize) {
    let bytes = vec![1u8; 128 << 10];
    while Instant::now() < end {
        let Ok(hand) = Hand::join(socket, None) else { continue };
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
                let _ = hand.acknowledge();
                // The daemon has handled the acknowledgement when it replies.
                let _ = hand::ask(&hand.socket, &Request::Ping, &[]);
                over.store(true, Ordering::Relaxed);
            });
        }
    }
}

/// Connects again and again, and leaves sockets in the daemon's queue whose close takes ten minutes.
fn send_lingering(socket: &Path, end: Instant) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peers = Vec::new();
    while Instant::now() < end {
        let Ok(evil) = std::net::TcpStream::connect(listener.local_addr().unwrap()) else { continue };
        peers.push(listener.accept());
        rustix::net::sockopt::set_socket_linger(&evil, Some(Duration::from_mins(10))).unwrap();
        evil.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &evil, &[0; 4096]).is_ok() {}
        let Ok(socket) = dial(socket) else { continue };
        let _ = packet::send(&socket, &[1], &[evil.as_fd()], SendFlags::DONTWAIT);
    }
}

/// Orders and returns long segments on some connections without a pause.
fn hog(socket: &Path, end: Instant) {
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let Ok(hand) = Hand::join(socket, None) else { continue };
                    while Instant::now() < end {
                        let Ok(base) = hand.segment(200 << 20, 4, |lent| Ok(lent.base)) else { break };
                        let _ = hand.ask(&Request::ReturnSegment { base });
                    }
                }
            });
        }
    });
}

/// Calls `act` with a session, the descriptor of its catalogue, and a newly bound name each time. Opens another session
/// if the session ends.
fn bind_names(socket: &Path, end: Instant, prepare: impl Fn(&OwnedFd, &AtomicBool) + Sync) {
    while Instant::now() < end {
        let Ok(connection) = dial(socket) else { continue };
        let Ok((Reply::Welcome(_), sheets)) = hand::ask(&connection, &hello(None), &[]) else { continue };
        let _ = packet::send(&connection, &encode(&Request::Ack), &[], SendFlags::empty());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| prepare(&sheets[1], &over));
            for number in 0..u32::MAX {
                let name = format!("a name of some length that is number {}", number % 60_000);
                let bound = hand::ask(
                    &connection,
                    &Request::Bind { name: name.clone(), cell: CellNo::new(number % 4096) },
                    &[],
                );
                // At first each name is deleted again, so that the daemon grants announcements.
                let request = if number < 100 { Request::Delete { name } } else { Request::Ping };
                if bound.and_then(|_| hand::ask(&connection, &request, &[])).is_err() || Instant::now() > end {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

fn mappings(fd: &OwnedFd, access: Access) -> Vec<tensorlend_layout::raw::View> {
    (0..MAPPINGS).map_while(|_| hand::map(fd, access).ok()).collect()
}

/// Maps its catalogue very often, and punches holes into it without a pause, while the daemon reads it.
fn punch(socket: &Path, end: Instant) {
    bind_names(socket, end, |catalogue, over| {
        // The views end with the process: an end of each would take long.
        let views = std::mem::ManuallyDrop::new(mappings(catalogue, Access::Write));
        let is_over = || over.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            // The other thread brings the page back into the mappings, so that the next punch removes it from all.
            scope.spawn(|| {
                views
                    .iter()
                    .cycle()
                    .step_by(7919)
                    .take_while(|_| !is_over())
                    .for_each(|view| assert!(view.word(8).is_some()));
            });
            while !is_over() {
                let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(catalogue, flags, 0, 4096);
            }
        });
    });
}

/// Maps the table of names very often while it grows.
fn map_names(socket: &Path, end: Instant) {
    let Ok(reader) = Hand::join(socket, None) else { return };
    let _views = std::mem::ManuallyDrop::new(mappings(&reader.directory_fd, Access::Read));
    bind_names(socket, end, |_, _| ());
}

fn connect(socket: &Path, end: Instant) {
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let _ = dial(socket);
                }
            });
        }
    });
}

/// Keeps the kernel's collector of Unix sockets busy.
fn keep_in_flight(_: &Path, end: Instant) {
    while Instant::now() < end {
        let mut held: Option<OwnedFd> = None;
        for _ in 0..15_000 {
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let Ok((one, other)) = pair else { break };
            if let Some(before) = held.take() {
                let _ = packet::send(&one, &[1], &[before.as_fd()], SendFlags::DONTWAIT);
            }
            held = Some(other);
        }
    }
}

const SOCKET: &str = "TENSORLEND_ATTACKED";
const SECONDS: &str = "TENSORLEND_ATTACK_SECONDS";
const NUMBER: &str = "TENSORLEND_ATTACK";

/// The program of an attacker.
#[test]
#[ignore = "started by the measurements"]
fn attacker() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let value = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    println!("\nready");
    let end = Instant::now() + Duration::from_secs(value(SECONDS) as u64);
    ATTACKS[value(NUMBER)].1(Path::new(&socket), end);
    // The end of a session that is stuck may take long.
    std::process::exit(0);
}

/// A copy of this program that every user can run, and a control group for its processes. On a machine with systemd,
/// users' processes have a group next to the daemon's, so many threads get no more processor time than a few.
struct Attacker {
    folder: tempfile::TempDir,
    group: Option<PathBuf>,
}

impl Attacker {
    fn copy() -> Self {
        let folder = tempfile::tempdir().unwrap();
        tensorlend_tests::open_to_all(folder.path());
        let own = folder.path().join("attacks");
        std::fs::copy(std::env::current_exe().unwrap(), &own).unwrap();
        tensorlend_tests::open_to_all(&own);
        let group = format!("/sys/fs/cgroup/cpu/tensorlend-test-{}", std::process::id());
        let group = std::fs::create_dir(&group).map(|()| group.into()).ok();
        if group.is_none() {
            println!("No control group can be made: each thread of an attacker gets as much time as the daemon.");
        }
        Self { folder, group }
    }

    fn start(&self, socket: &Path, attack: usize, time: Duration) -> Running {
        let mut command = as_user(ALICE, &self.folder.path().join("attacks"));
        command.args(["attacker", "--exact", "--ignored", "--nocapture"]).env(SOCKET, socket);
        command.env(NUMBER, attack.to_string()).env(SECONDS, time.as_secs().to_string());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        if let Some(group) = &self.group {
            std::fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
        Running(child)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            let _ = std::fs::remove_dir(group);
        }
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the times of BOB's pings and of CAROL's connects, while `act` runs. Both start again if the daemon restarts.
fn others_during(socket: &Path, act: impl FnOnce()) -> (Vec<Duration>, Vec<Duration>) {
    let over = AtomicBool::new(false);
    let (pings, connects) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let refused: Mutex<BTreeMap<String, u32>> = Mutex::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            acting_as(BOB, || {
                let mut hand = None;
                while !over.load(Ordering::Relaxed) {
                    let Some(joined) = hand.take().or_else(|| Hand::join(socket, None).ok()) else { continue };
                    let start = Instant::now();
                    if joined.ask(&Request::Ping).is_ok() {
                        pings.lock().unwrap().push(start.elapsed());
                        hand = Some(joined);
                    }
                }
            });
        });
        scope.spawn(|| {
            acting_as(CAROL, || {
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    match Hand::join(socket, None) {
                        Ok(_) => connects.lock().unwrap().push(start.elapsed()),
                        Err(error) => *refused.lock().unwrap().entry(error.to_string()).or_default() += 1,
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        });
        // They have joined.
        std::thread::sleep(Duration::from_millis(200));
        pings.lock().unwrap().clear();
        connects.lock().unwrap().clear();
        act();
        over.store(true, Ordering::Relaxed);
    });
    for (why, count) in refused.into_inner().unwrap() {
        println!("{count} connects failed: {why}");
    }
    (pings.into_inner().unwrap(), connects.into_inner().unwrap())
}

#[test]
#[ignore = "a measurement"]
fn what_each_attack_costs_other_users() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let (programs, attacker) = (Programs::copy(&["tensorlendd"]), Attacker::copy());
    println!("| attack | pings or connects | % above 10 ms | p99 ms | worst ms |\n|---|---|---|---|---|");
    let only = std::env::var(NUMBER).ok().map(|number| number.parse().unwrap());
    for attack in [None].into_iter().chain((0..ATTACKS.len()).map(Some)).filter(|&it| only.is_none() || it == only) {
        let all: Vec<_> = (0..budget(5, 15))
            .map(|_| {
                let daemon = Daemon::start_as(ATTACKED, |_| as_user(DAEMON, &programs.path("tensorlendd")));
                others_during(&daemon.socket(), || {
                    let _running = attack.map(|attack| attacker.start(&daemon.socket(), attack, ATTACK * 5));
                    std::thread::sleep(if attack.is_some() { ATTACK * 2 } else { ATTACK });
                })
            })
            .collect();
        let (pings, connects) = all.into_iter().unzip();
        let name = attack.map_or("nothing", |attack| ATTACKS[attack].0);
        print_rounds(&format!("{name}: pings"), pings);
        print_rounds(&format!("{name}: connects"), connects);
    }
}

/// A daemon with an fd store.
fn machine() -> Machine {
    let mut machine = Machine::configured("system");
    let store = machine.path("store");
    std::fs::write(machine.path("config.toml"), format!("fd_store = \"{}\"\n{ATTACKED}", store.display())).unwrap();
    machine.start_store();
    machine.start_daemon();
    machine
}

fn held(machine: &Machine) -> Option<Footprint> {
    Footprint::of(machine.daemon.as_ref()?.id())
}

/// Each attack in a process of its own for a minute, all at the same time, with two restarts of the daemon, and then the same
/// attacks on another daemon of the same machine: these cost processor time and nothing else.
#[test]
#[ignore = "a measurement"]
fn what_all_attacks_at_once_cost_other_users() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let attacker = Attacker::copy();
    let time = Duration::from_secs(std::env::var(SECONDS).map_or(60, |text| text.parse().unwrap()));
    let (mut attacked, other) = (machine(), machine());
    println!("| attacks on | pings or connects | % above 10 ms | p99 ms | worst ms |\n|---|---|---|---|---|");
    for is_attacked in [true, false] {
        let target: PathBuf = if is_attacked { attacked.path("socket") } else { other.path("socket") };
        let socket = attacked.path("socket");
        let before = held(&attacked).unwrap();
        let mut restarts = Vec::new();
        let (pings, connects) = others_during(&socket, || {
            let start = Instant::now();
            let running: Vec<_> = (0..ATTACKS.len()).map(|attack| attacker.start(&target, attack, time)).collect();
            for part in 1..=2 {
                std::thread::sleep((time * part / 3).saturating_sub(start.elapsed()));
                let killed = Instant::now();
                attacked.restart_daemon();
                restarts.push(killed.elapsed());
            }
            std::thread::sleep(time.saturating_sub(start.elapsed()));
            drop(running);
        });
        let ended = Instant::now();
        let back = |now: &Footprint| {
            now.descriptors <= before.descriptors + 4 && now.shared_bytes <= before.shared_bytes + (4 << 20)
        };
        while !held(&attacked).is_some_and(|now| back(&now)) && ended.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let name = if is_attacked { "this daemon" } else { "another daemon" };
        print_rounds(&format!("{name}: pings"), vec![pings]);
        print_rounds(&format!("{name}: connects"), vec![connects]);
        println!(
            "{name}: restarts {restarts:?}; before {before:?}; {:?} after the end {:?}",
            ended.elapsed(),
            held(&attacked)
        );
    }
}
