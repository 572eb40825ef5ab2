//! Many processes at once connect, work and are killed at random moments, while this program watches the daemon's
//! resources.
//!
//! `tensorlend-soak --gateways SECONDS [--seed N]` instead runs two nodes with gateways: see `across/soak.rs`.
//!
//! `tensorlend-soak [--kills N] [--workers N] [--seed N] [--user]` prints a report in Markdown; `--user` selects a
//! daemon in user mode. It fails if a tensor was torn or lost, if a process ended other than by being killed, or if the
//! resources of the daemon or a bystander do not stay level over N kills.
//!
//! Daemon and bystander reach their working level of memory only during the work. So no level is compared before it is
//! reached: if a stretch of N kills ends with higher levels than it began, its end becomes the start of the next
//! stretch. A leak per kill raises the level in every stretch; if the last of [`STRETCHES`] still rises, the program
//! fails.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tensorlend::{Client, Stat};
use tensorlend_tests::filled::{self, Random, put};
use tensorlend_tests::memory::Footprint;
use tensorlend_tests::{Agent, Daemon, PATIENCE, across, binary, chaos, eventually, settled};

/// Small segments with little idle memory, so that the daemon reclaims much.
const CONFIG: &str = "[pool]\nsegment_bytes = \"8MiB\"\nspare_segments = 1\nidle_bytes_max = \"16MiB\"\n";
const KEPT: u64 = 10;
/// Number of rests in a stretch: moments without work, at which the daemon's resources are printed.
const RESTS: u64 = 4;
/// Number of stretches of `--kills` kills, in one of which all levels must hold.
const STRETCHES: u64 = 5;
/// Consistent turns of the bystander before each rest, however many kills that takes. The sizes of its tensors follow
/// from the number of the turn, and one in 16 is long: after this many turns it has memory for both.
const TURNS: u64 = 300;
/// Time that a level has to fall before the next stretch begins.
const SETTLE: Duration = Duration::from_secs(5);
/// Memory that the allocator caches for reuse.
const ANONYMOUS_SLACK: u64 = 4 << 20;
/// Descriptors of idle segments, whose number varies between rests: 16 MiB of them, in pieces of at least 512 KiB.
const DESCRIPTORS_SLACK: u64 = 36;
const SEGMENT: u64 = 8 << 20;

/// The daemon's resources at a rest.
#[derive(Clone)]
struct Rest {
    kills: u64,
    footprint: Footprint,
    /// Resources of the process that works all the time.
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
    /// Number of processes killed before they had connected.
    early: AtomicU64,
}

fn option(name: &str, default: u64) -> u64 {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|a| a == name);
    at.map_or(default, |at| arguments.get(at + 1).and_then(|n| n.parse().ok()).expect("an option has a number"))
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--gateways") {
        let is_whole = across::soak::run(option("--gateways", 60), option("--seed", 1));
        return if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (kills, workers, seed) = (option("--kills", 300), option("--workers", 4), option("--seed", 1));
    let mode = if std::env::args().any(|a| a == "--user") { "mode = \"user\"\n" } else { "" };
    let daemon = Daemon::start(&format!("{mode}{CONFIG}"));
    let watcher = daemon.client();
    // Values of a process that has ended, none of which may be lost.
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
    // Warms up: ignores memory that was lent and mapped before the first kill.
    soak.kill_with(workers, kills.div_ceil(RESTS));
    let mut rests = vec![soak.rest(&mut bystander)];
    let mut grown = Vec::new();
    for stretch in 1..=STRETCHES {
        let first = rests[rests.len() - 1].clone();
        for part in 1..=RESTS {
            let until = first.kills + kills * part / RESTS;
            soak.kill_with(workers, until);
            rests.push(soak.rest(&mut bystander));
            eprintln!("{until} kills after {:.0} s", start.elapsed().as_secs_f64());
        }
        let patience = if stretch == STRETCHES { PATIENCE } else { SETTLE };
        grown = soak.grown_since(&first, &mut rests, &mut bystander, patience);
        if grown.is_empty() {
            break;
        }
        eprintln!("after stretch {stretch} of {STRETCHES}: {}", grown.join("; "));
    }
    let turns = turns(&mut bystander).0;
    bystander.ok("end");
    report(&soak, workers, start.elapsed(), turns, &rests);
    if grown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the number of turns that the bystander has done, and how many of them were consistent.
fn turns(bystander: &mut Agent) -> (u64, u64) {
    let said = bystander.ok("turns");
    let (all, whole) = said.split_once(' ').expect("two numbers");
    (all.parse().expect("a number"), whole.parse().expect("a number"))
}

impl Soak {
    /// Kills processes with this many workers until `until` processes were started.
    fn kill_with(&self, workers: u64, until: u64) {
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.kill_until(until));
            }
        });
    }

    /// Starts processes and kills them, one after the other, until `until` were started.
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
            // Kills one in four while it may still be connecting, the others while they work.
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

    /// Deletes everything that the killed processes have left, and waits for the daemon's resting level.
    fn rest(&self, bystander: &mut Agent) -> Rest {
        let wanted = turns(bystander).1 + TURNS;
        eventually("the bystander's turns", || turns(bystander).1 >= wanted);
        let stat = || self.watcher.stat().expect("the daemon lives");
        // The watcher, and the bystander's two.
        eventually("the end of all who were killed", || stat().clients == 3);
        for name in chaos::names() {
            let _ = self.watcher.delete(&name).expect("anybody may delete");
        }
        for number in 0..4 {
            let _ = self.watcher.delete_stream(&format!("chaos/{number}")).expect("anybody may delete");
        }
        let _ = self.watcher.clear("chaos").expect("anybody may clear");
        // The ended client that owns the kept values.
        eventually("the return of their memory", || stat().frozen == 1);
        for number in 0..KEPT {
            let lease = self.watcher.get(&format!("kept/{number}")).expect("it is kept");
            assert_eq!(filled::value(&lease), Ok(1 << 40 | number), "what was kept is as it was");
        }
        self.level(bystander)
    }

    /// Returns all resources once they have stopped changing. The client frees memory on a separate thread, and the
    /// daemon prepares a spare segment on another.
    fn level(&self, bystander: &Agent) -> Rest {
        let footprint = settled("the daemon's rest", || Footprint::of(self.daemon.pid()).expect("the daemon is ours"));
        let Stat { segments, bytes_in_use, bytes_sheets, .. } = self.watcher.stat().expect("the daemon lives");
        let bystander = Footprint::of(bystander.pid()).expect("the bystander is ours");
        let kills = self.begun.load(Ordering::Relaxed);
        Rest { kills, footprint, bystander, segments, bytes_in_use, bytes_sheets }
    }

    /// Returns the levels that are higher than at `first`. Repeats the last of `rests` until none is, for `patience` at
    /// most: a thread that frees memory may not have run yet.
    fn grown_since(&self, first: &Rest, rests: &mut [Rest], bystander: &mut Agent, patience: Duration) -> Vec<String> {
        let (start, last) = (Instant::now(), rests.len() - 1);
        loop {
            let grown = rests[last].above(first);
            if grown.is_empty() || start.elapsed() > patience {
                return grown;
            }
            rests[last] = self.rest(bystander);
        }
    }
}

impl Rest {
    /// Returns the levels that exceed `first` by more than the tolerance.
    fn above(&self, first: &Self) -> Vec<String> {
        let (before, after) = (first.footprint, self.footprint);
        let (theirs, now) = (first.bystander, self.bystander);
        let levels = [
            ("the daemon's RSS", before.anonymous_bytes, after.anonymous_bytes, ANONYMOUS_SLACK),
            ("shared memory", before.shared_bytes, after.shared_bytes, 2 * SEGMENT),
            ("what the bystander has mapped", theirs.mapped_bytes, now.mapped_bytes, 2 * SEGMENT),
            ("the bystander's RSS", theirs.anonymous_bytes, now.anonymous_bytes, ANONYMOUS_SLACK),
            ("the number of descriptors", before.descriptors, after.descriptors, DESCRIPTORS_SLACK),
            ("the number of segments", first.segments.into(), self.segments.into(), 2),
            ("lent memory", first.bytes_in_use, self.bytes_in_use, 2 * SEGMENT),
            ("the sheets", first.bytes_sheets, self.bytes_sheets, 1 << 20),
        ];
        let higher = levels.into_iter().filter(|(_, before, after, slack)| after > &(before + slack));
        higher.map(|(what, before, after, _)| format!("{what} has grown from {before} to {after}")).collect()
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn report(soak: &Soak, workers: u64, took: Duration, turns: u64, rests: &[Rest]) {
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
        "\n{} processes killed ({} of them on their way in or soon after), {workers} at a time, in {:.0} s (seed {}); {turns} turns of \
         the bystander meanwhile. Torn tensors: 0. Tensors lost: 0.",
        soak.begun.load(Ordering::Relaxed),
        soak.early.load(Ordering::Relaxed),
        took.as_secs_f64(),
        soak.seed
    );
}
