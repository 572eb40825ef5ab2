//! Random work in host memory and on a device, by processes that are killed at random moments. At the end everything
//! that was lent has been returned. `TENSORLEND_SOAK_SECONDS` and `TENSORLEND_SOAK_SEED` set the duration and the seed.

use std::time::{Duration, Instant};
use tensorlend_tests::filled::Random;
use tensorlend_tests::machine::{config, on_machine, placed};
use tensorlend_tests::{Agent, Daemon, PATIENCE, budget, eventually, everywhere, number};

const WORKERS: usize = 3;

fn begin(daemon: &Daemon, seed: u64) -> Agent {
    let mut worker = placed(&daemon.socket(), "cuda");
    worker.ok(&format!("chaos {seed}"));
    worker
}

fn soak(allocator: &str) {
    on_machine(&format!("random_work_and_kills_with_{allocator}"), |machine| {
        let daemon = machine.daemon(&config(allocator, "quarantine_ms = 20\n"));
        let (first, seconds) = (number("TENSORLEND_SOAK_SEED", 1), number("TENSORLEND_SOAK_SECONDS", budget(2, 20)));
        println!("TENSORLEND_SOAK_SEED={first} TENSORLEND_SOAK_SECONDS={seconds}");
        let mut seed = first << 16;
        let mut random = Random(seed);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut next = || {
            seed += 1;
            begin(&daemon, seed)
        };
        let mut workers: Vec<Agent> = (0..WORKERS).map(|_| next()).collect();
        let mut kills = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20 + random.below(200)));
            let worker = &mut workers[random.below(WORKERS as u64) as usize];
            let ended = worker.ended();
            let early = machine.violations();
            assert!(
                ended.is_none(),
                "a worker died by itself: {ended:?}, after {kills} kills; {early} blocks freed early"
            );
            worker.kill();
            *worker = next();
            kills += 1;
        }
        for worker in &mut workers {
            let ended = worker.ended();
            assert!(ended.is_none(), "a worker died by itself: {ended:?}");
            worker.kill();
        }
        println!("{allocator}: {kills} kills");
        assert_eq!(machine.violations(), 0, "memory was freed that somebody still had");
        let watcher = daemon.client();
        eventually("the end of all", || watcher.stat().unwrap().clients == 1);
        everywhere::clear(&watcher);
        let start = Instant::now();
        loop {
            let stat = watcher.stat().unwrap();
            let device: u64 = stat.devices.iter().map(|device| device.bytes_in_use).sum();
            let left = (stat.bytes_in_use, device, stat.segments, stat.frozen, stat.names);
            if left == (0, 0, 0, 0, 0) {
                break;
            }
            // If a segment was leased at the daemon's last check, the next check follows after up to 30 seconds.
            assert!(start.elapsed() < PATIENCE, "this stays: {left:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    });
}

#[test]
fn random_work_and_kills_with_pool() {
    soak("pool");
}

#[test]
fn random_work_and_kills_with_arena() {
    soak("arena");
}

#[test]
fn random_work_and_kills_with_async() {
    soak("async");
}
