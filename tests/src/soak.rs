//! Processes that come, work and are killed at random moments, many at once, while what the daemon holds is watched.
//!
//! `tensorlend-soak [--kills N] [--workers N] [--seed N] [--user]` prints a report in Markdown; with `--user` of a daemon in user mode. It fails if a tensor was torn or
//! lost, if a process ended otherwise than by being killed, or if the daemon holds more at the end than at the beginning.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{Client, Stat};
use tensorlend_tests::filled::{self, Random, put};
use tensorlend_tests::memory::Footprint;
use tensorlend_tests::{Agent, Daemon, binary, chaos, eventually};

/// Segments that are small and not kept for long, so that there is much to take back.
const CONFIG: &str = "[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 1\nidle_bytes_max = \"16MiB\"\n";
const KEPT: u64 = 10;
/// Times that everything comes to rest, so that what the daemon holds can be compared.
const RESTS: u64 = 5;
/// The allocator's: kept for the next time, and not given back.
const ANONYMOUS_SLACK: u64 = 4 << 20;
/// Idle segments, of which there may be more or fewer at rest: 16 MiB of them, in pieces of 512 KiB and more.
const DESCRIPTORS_SLACK: u64 = 36;
const SEGMENT: u64 = 8 << 20;

/// What the daemon holds when nobody works.
#[derive(Clone, Copy)]
struct Rest {
    kills: u64,
    footprint: Footprint,
    /// Of the process that goes on all the time.
    bystander: Footprint,
    segments: u32,
    bytes_in_use: u64,
    bytes_sheets: u64,
}

struct Soak {
    daemon: Daemon,
    watcher: Client,
    seed: u64,
    begun: AtomicU64,
    /// Killed before it had connected.
    early: AtomicU64,
}

fn option(name: &str, default: u64) -> u64 {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|a| a == name);
    at.map_or(default, |at| arguments.get(at + 1).and_then(|n| n.parse().ok()).expect("an option has a number"))
}

fn main() -> ExitCode {
    let (kills, workers, seed) = (option("--kills", 300), option("--workers", 4), option("--seed", 1));
    let mode = if std::env::args().any(|a| a == "--user") { "mode = \"user\"\n" } else { "" };
    let daemon = Daemon::start(&format!("{mode}{CONFIG}"));
    let watcher = daemon.client();
    // What a process that is gone has left: nothing of it may be lost.
    let giver = daemon.client();
    for number in 0..KEPT {
        put(&giver, &format!("kept/{number}"), 1 << 40 | number).expect("it can be published");
    }
    drop(giver);
    let soak = Soak { daemon, watcher, seed, begun: AtomicU64::new(0), early: AtomicU64::new(0) };
    let socket = soak.daemon.socket().display().to_string();
    let mut bystander = Agent::worker(["bystander", &socket]);
    bystander.ok("turns");
    let start = Instant::now();
    let mut rests = Vec::new();
    for part in 1..=RESTS {
        let until = kills * part / RESTS;
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| soak.kill_until(until));
            }
        });
        rests.push(soak.rest(until, bystander.pid()));
        eprintln!("{until} kills after {:.0} s", start.elapsed().as_secs_f64());
    }
    let turns = bystander.ok("turns").split(' ').next().unwrap_or_default().to_owned();
    bystander.ok("end");
    report(&soak, kills, workers, start.elapsed(), &turns, &rests)
}

impl Soak {
    /// Starts processes and kills them, one after the other, until so many were begun.
    fn kill_until(&self, until: u64) {
        let socket = self.daemon.socket();
        loop {
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            if number >= until {
                self.begun.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let mut random = Random(self.seed << 32 ^ number);
            let mut command = Command::new(binary("tensorlend-worker"));
            let seed = (self.seed << 24 | number).to_string();
            let mut child = command
                .arg("chaos")
                .arg(&socket)
                .arg(seed)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a worker starts");
            // One in four anywhere on its way into the namespace, the others while they work.
            if random.below(4) > 0 {
                let mut ready = [0; 6];
                let mut out = child.stdout.take().expect("piped");
                std::io::Read::read_exact(&mut out, &mut ready).expect("a worker connects");
            } else {
                self.early.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_micros(random.below(15_000)));
            let _ = child.kill();
            let status = child.wait().expect("a child can be waited for");
            assert_eq!(status.signal(), Some(9), "worker {number} ended by itself: {status}");
        }
    }

    /// Takes away what those who were killed have left, and waits until the daemon holds what the rest explains.
    fn rest(&self, kills: u64, bystander: u32) -> Rest {
        let stat = || self.watcher.stat().expect("the daemon lives");
        // The watcher, the bystander's two.
        eventually("the end of all who were killed", || stat().clients == 3);
        for name in chaos::names() {
            let _ = self.watcher.delete(&name).expect("anybody may delete");
        }
        for number in 0..4 {
            let _ = self.watcher.delete_stream(&format!("chaos/{number}")).expect("anybody may delete");
        }
        let _ = self.watcher.clear("chaos").expect("anybody may clear");
        // The one that left what is kept.
        eventually("the return of their memory", || stat().frozen == 1);
        for number in 0..KEPT {
            let lease = self.watcher.get(&format!("kept/{number}")).expect("it is kept");
            assert_eq!(filled::value(&lease), Ok(1 << 40 | number), "what was kept is as it was");
        }
        // Memory that was given up is given back by a thread of its own, a spare segment made by another.
        let look = || Footprint::of(self.daemon.pid()).expect("the daemon is ours");
        let mut footprint = look();
        eventually("the daemon's rest", || {
            std::thread::sleep(Duration::from_millis(30));
            let before = std::mem::replace(&mut footprint, look());
            before == footprint
        });
        let Stat { segments, bytes_in_use, bytes_sheets, .. } = stat();
        let bystander = Footprint::of(bystander).expect("the bystander is ours");
        Rest { kills, footprint, bystander, segments, bytes_in_use, bytes_sheets }
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn report(soak: &Soak, kills: u64, workers: u64, took: Duration, turns: &str, rests: &[Rest]) -> ExitCode {
    println!(
        "| kills | RSS (anonymous) | memfds of the daemon | mapped by a bystander | descriptors | segments | lent | sheets |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|");
    for rest in rests {
        let Footprint { anonymous_bytes, shared_bytes, descriptors, .. } = rest.footprint;
        println!(
            "| {} | {} MiB | {} MiB | {} MiB | {} | {} | {} MiB | {} MiB |",
            rest.kills,
            mib(anonymous_bytes),
            mib(shared_bytes),
            mib(rest.bystander.mapped_bytes),
            descriptors,
            rest.segments,
            mib(rest.bytes_in_use),
            mib(rest.bytes_sheets)
        );
    }
    println!(
        "\n{kills} processes killed ({} of them on their way in or soon after), {workers} at a time, in {:.0} s (seed {}); {turns} turns of \
         the bystander meanwhile. Torn tensors: 0. Tensors lost: 0.",
        soak.early.load(Ordering::Relaxed),
        took.as_secs_f64(),
        soak.seed
    );
    let (first, last) = (&rests[0], &rests[rests.len() - 1]);
    let mut flat = true;
    let mut check = |what: &str, before: u64, after: u64, slack: u64| {
        if after > before + slack {
            flat = false;
            eprintln!("{what} has grown from {before} to {after}");
        }
    };
    let (before, after) = (first.footprint, last.footprint);
    check("RSS", before.anonymous_bytes, after.anonymous_bytes, ANONYMOUS_SLACK);
    check("shared memory", before.shared_bytes, after.shared_bytes, 2 * SEGMENT);
    check("what the bystander has mapped", first.bystander.mapped_bytes, last.bystander.mapped_bytes, 2 * SEGMENT);
    check("the bystander's RSS", first.bystander.anonymous_bytes, last.bystander.anonymous_bytes, ANONYMOUS_SLACK);
    check("the number of descriptors", before.descriptors, after.descriptors, DESCRIPTORS_SLACK);
    check("the number of segments", first.segments.into(), last.segments.into(), 2);
    check("lent memory", first.bytes_in_use, last.bytes_in_use, 2 * SEGMENT);
    check("the sheets", first.bytes_sheets, last.bytes_sheets, 1 << 20);
    if flat { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
