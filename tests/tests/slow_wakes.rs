//! The cost of a reader of another user that makes a producer's wakeups slow, by millions of epoll watches on the
//! socket by which the producer wakes it. This is a measurement and not a test, and needs root: run it alone, `cargo
//! test -p tensorlend-tests --test slow_wakes -- --ignored --nocapture what`.

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, Policy};
use tensorlend_layout::wire::Request;
use tensorlend_tests::hand::{self, Hand};
use tensorlend_tests::users::as_user;
use tensorlend_tests::{Daemon, budget, run, skip_without, skip_without_root};

const READER: u32 = 64_002;
const CONFIG: &str = "mode = \"system\"\n[namespace.lab]\nwriters = [\"0\"]\nreaders = [\"64002\"]\n";
/// Copies of the socket, and epoll instances that watch each.
const WATCHES: (usize, usize) = (1000, 2000);

/// Adds epoll watches to a socket. Returns the descriptors that keep them.
fn watch(socket: &OwnedFd, (copies, epolls): (usize, usize)) -> Vec<OwnedFd> {
    let mut held: Vec<OwnedFd> = (0..copies).map(|_| socket.try_clone().unwrap()).collect();
    for _ in 0..epolls {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &held[..copies] {
            epoll::add(&epoll, copy, EventData::new_u64(0), EventFlags::IN).unwrap();
        }
        held.push(epoll);
    }
    held
}

/// The program of the reader: it subscribes again and again, and asks to be woken for each message.
#[test]
#[ignore = "started by the measurement"]
fn reader() {
    let Ok(socket) = std::env::var("TENSORLEND_SLOW_WAKES") else { return };
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let is_hostile = std::env::var_os("TENSORLEND_SLOW_WAKES_HOSTILE").is_some();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    loop {
        let Ok(hand) = Hand::join(socket.as_ref(), Some("lab")) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let begun = Instant::now();
        let Ok((.., ours)) = hand.subscribe("s", 0) else { continue };
        let _watches = is_hostile.then(|| watch(&ours, WATCHES));
        // A new session each second: its costs may be forgotten.
        while begun.elapsed() < Duration::from_secs(1) {
            hand.leases.cursors[0].parked.set(2);
            while rustix::net::recv(&ours, &mut [0; 64], RecvFlags::empty()).is_ok() {}
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

struct Reader(Child, Option<ChildStdin>);

impl Reader {
    fn start(program: &std::path::Path, daemon: &Daemon, (uid, is_hostile): (u32, bool)) -> Self {
        let mut command = Command::new("prlimit");
        command.arg("--nofile=20000:20000").arg("setpriv");
        command.args(as_user(uid, program).get_args());
        command.args(["reader", "--exact", "--ignored", "--nocapture"]);
        command.env("TENSORLEND_SLOW_WAKES", daemon.socket());
        if is_hostile {
            command.env("TENSORLEND_SLOW_WAKES_HOSTILE", "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        let stdin = child.stdin.take();
        Self(child, stdin)
    }

    fn go(&mut self) {
        self.1.take().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[derive(Debug)]
struct Round {
    messages: f64,
    /// Percent of the time for which the producer's processor time went into sends of 1 ms and more.
    lost: f64,
    send_p99: f64,
    send_worst: f64,
    ping_p99: f64,
    wake_p99: f64,
    wake_worst: f64,
}

fn at(times: &mut [Duration], part: f64) -> f64 {
    times.sort();
    times.get(((times.len().max(1) - 1) as f64 * part) as usize).map_or(f64::NAN, |it| it.as_secs_f64() * 1e3)
}

/// An honest producer, its pollable subscriber, and a client that pings, for some seconds. The producer sends a message each
/// millisecond, with the time.
fn round(program: &std::path::Path, reader: Option<(u32, bool)>, seconds: u64) -> Round {
    let daemon = Daemon::start(CONFIG);
    let connect = || Client::builder().socket(daemon.socket()).namespace("lab").connect().unwrap();
    let (producer, consumer) = (connect(), connect());
    let stream = producer.stream("s").capacity(256).policy(Policy::DropOldest).open().unwrap();
    let mut messages = consumer.subscription("s").pollable().open().unwrap();
    let mut reader = reader.map(|who| Reader::start(program, &daemon, who));
    let (over, wakes, pings) = (AtomicBool::new(false), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let base = Instant::now();
    let mut sends = Vec::new();
    let (mut lost, started) = (Duration::ZERO, Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            while !over.load(Ordering::Relaxed) {
                while let Ok(Some(message)) = messages.try_recv() {
                    let sent = Duration::from_nanos(message.tensor().unwrap().as_slice::<u64>().unwrap()[0]);
                    wakes.lock().unwrap().push(base.elapsed().saturating_sub(sent));
                }
                let _ = poll(&mut [PollFd::new(&messages, PollFlags::IN)], Some(&tenth));
            }
        });
        scope.spawn(|| {
            let hand = Hand::join(&daemon.socket(), Some("lab")).unwrap();
            while !over.load(Ordering::Relaxed) {
                let start = Instant::now();
                hand::ask(&hand.socket, &Request::Ping, &[]).unwrap();
                pings.lock().unwrap().push(start.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        reader.iter_mut().for_each(Reader::go);
        while started.elapsed() < Duration::from_secs(seconds) {
            let mut message = producer.create(DType::U64, &[1]).unwrap();
            let (start, own) = (Instant::now(), thread_time());
            message.as_mut_slice::<u64>().unwrap()[0] = base.elapsed().as_nanos() as u64;
            stream.send(message).unwrap();
            let used = thread_time().saturating_sub(own);
            lost += if used >= Duration::from_millis(1) { used } else { Duration::ZERO };
            sends.push(start.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
    });
    let elapsed = started.elapsed().as_secs_f64();
    let (mut wakes, mut pings) = (wakes.into_inner().unwrap(), pings.into_inner().unwrap());
    Round {
        messages: sends.len() as f64 / elapsed,
        lost: 100.0 * lost.as_secs_f64() / elapsed,
        send_p99: at(&mut sends, 0.99),
        send_worst: at(&mut sends, 1.0),
        ping_p99: at(&mut pings, 0.99),
        wake_p99: at(&mut wakes, 0.99),
        wake_worst: at(&mut wakes, 1.0),
    }
}

#[test]
#[ignore = "a measurement"]
fn what_slow_wakes_cost_an_honest_producer() {
    if skip_without_root() || skip_without("setpriv") || skip_without("prlimit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("slow_wakes");
    let mut install = Command::new("install");
    assert!(run(install.arg("--mode=0755").arg(std::env::current_exe().unwrap()).arg(&program)).status.success());
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let kinds = [
        ("alone", None),
        ("a reader of another user", Some((READER, false))),
        ("the same, with 2,000,000 watches", Some((READER, true))),
        ("a reader of the same user, with 2,000,000 watches", Some((0, true))),
    ];
    let mut rounds: [Vec<Round>; 4] = Default::default();
    for _ in 0..budget(5, 10) {
        for (rounds, (_, reader)) in rounds.iter_mut().zip(kinds) {
            rounds.push(round(&program, reader, 9));
        }
    }
    println!("| | messages/s | lost % | send p99 ms | send worst ms | ping p99 ms | wake p99 ms | wake worst ms |");
    println!("|---|---|---|---|---|---|---|---|");
    for (rounds, (kind, _)) in rounds.iter().zip(kinds) {
        let column = |of: fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            format!("{:.3} ({:.3} to {:.3})", all[all.len() / 2], all[0], all[all.len() - 1])
        };
        let columns: [fn(&Round) -> f64; 7] = [
            |it| it.messages,
            |it| it.lost,
            |it| it.send_p99,
            |it| it.send_worst,
            |it| it.ping_p99,
            |it| it.wake_p99,
            |it| it.wake_worst,
        ];
        println!("| {kind} | {} |", columns.map(column).join(" | "));
    }
}
