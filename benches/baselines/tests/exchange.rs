//! Real exchanges: the consumer is this test binary again, running the test named `consumer` only.

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tensorlend_baselines::{BaselineError, Kind, Session, measure, serve, timeout};

const ARGS: &str = "TENSORLEND_BASELINE_ARGS";

/// One at a time: some look at /dev/shm, and two busy pairs of processes are enough for a small machine.
static TURN: Mutex<()> = Mutex::new(());

/// Not a test but the consumer, when started as one.
#[test]
fn consumer() {
    if let Ok(args) = std::env::var(ARGS) {
        let args: Vec<String> = args.lines().map(str::to_owned).collect();
        serve(&args).unwrap();
    }
}

fn spawn(args: &[String]) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["--exact", "consumer", "--nocapture", "--quiet"])
        .env(ARGS, args.join("\n"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Returns what stays in /dev/shm. On a busy machine a session gives up its producing thread after a second, and that
/// thread then removes its segment later.
fn left_in_shm() -> Vec<String> {
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        let names = in_shm();
        if names.is_empty() || Instant::now() > end {
            return names;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn in_shm() -> Vec<String> {
    let prefix = format!("tensorlend-baseline-{}-", std::process::id());
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn all_sizes_arrive_whole() {
    let _turn = turn();
    for kind in Kind::ALL {
        for bytes in [0, 1, 1000, 1 << 10, 1 << 18, (1 << 22) + 1] {
            let timings = measure(kind, bytes, 5, &mut spawn).unwrap();
            assert!(timings.checksum_ok, "{kind} of {bytes} bytes");
            assert_eq!(timings.put_ns.len(), 5);
            for round in 0..5 {
                let parts = timings.put_ns[round] + timings.get_ns[round];
                assert!(parts <= timings.round_trip_ns[round], "{kind} of {bytes} bytes: {timings:?}");
            }
        }
    }
    assert_eq!(left_in_shm(), [""; 0]);
}

#[test]
fn sessions_can_be_interleaved() {
    let _turn = turn();
    let mut start = |kind| Session::start(kind, 4096, timeout(4096), &mut spawn).unwrap();
    let mut sessions = Kind::ALL.map(&mut start);
    for _ in 0..3 {
        for session in &mut sessions {
            assert!(session.run(10).unwrap().checksum_ok);
        }
    }
}

#[test]
fn nothing_lies_in_shm_once_it_runs() {
    let _turn = turn();
    let mut session = Session::start(Kind::Copy, 4096, timeout(4096), &mut spawn).unwrap();
    assert_eq!(left_in_shm(), [""; 0]);
    session.run(1).unwrap();
}

#[test]
fn a_consumer_that_never_comes_is_an_error() {
    let _turn = turn();
    for kind in Kind::ALL {
        let error = measure(kind, 1024, 1, &mut |_: &[String]| Command::new("false").spawn()).unwrap_err();
        let BaselineError::PeerGone { status } = error else { panic!("{error}") };
        assert_eq!(status.code(), Some(1));

        let error = measure(kind, 1024, 1, &mut |_: &[String]| Command::new("/no/such/program").spawn()).unwrap_err();
        assert!(matches!(error, BaselineError::Spawn(_)), "{error}");
    }
    assert_eq!(left_in_shm(), [""; 0]);
}

#[test]
fn a_consumer_that_says_nothing_is_an_error() {
    let _turn = turn();
    for kind in Kind::ALL {
        let sleep = &mut |_: &[String]| Command::new("sleep").arg("1000").spawn();
        let error = Session::start(kind, 1024, Duration::from_millis(200), sleep).err().unwrap();
        assert!(matches!(error, BaselineError::Stalled { .. }), "{error}");
    }
    assert_eq!(left_in_shm(), [""; 0]);
}

/// Starts a long exchange and sends the consumer `signal` in the midst of it.
fn disturbed(kind: Kind, signal: Signal, timeout: Duration) -> BaselineError {
    let bytes = 8 << 20;
    let mut pid = 0;
    let spawn = &mut |args: &[String]| spawn(args).inspect(|child| pid = child.id());
    let mut session = Session::start(kind, bytes, timeout, spawn).unwrap();
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
    });
    let error = session.run(1_000_000).unwrap_err();
    drop(session);
    killer.join().unwrap();
    error
}

#[test]
fn a_killed_consumer_is_an_error() {
    let _turn = turn();
    for kind in Kind::ALL {
        // It is noticed by itself: nobody waits that long.
        let error = disturbed(kind, Signal::KILL, Duration::from_mins(5));
        assert!(matches!(error, BaselineError::PeerGone { .. }), "{error}");
        assert!(error.to_string().contains("signal: 9"), "{error}");
    }
    assert_eq!(left_in_shm(), [""; 0]);
}

#[test]
fn a_stopped_consumer_is_an_error() {
    let _turn = turn();
    // One of each mechanism: each takes its whole timeout.
    for kind in [Kind::Serialize, Kind::RawSocket, Kind::Fresh, Kind::Copy] {
        let error = disturbed(kind, Signal::STOP, Duration::from_secs(2));
        assert!(matches!(error, BaselineError::Stalled { .. }), "{error}");
    }
    assert_eq!(left_in_shm(), [""; 0]);
}

#[test]
fn too_large_a_copy_is_refused_before_anything_is_touched() {
    let _turn = turn();
    let error = measure(Kind::Copy, 1 << 52, 1, &mut spawn).unwrap_err();
    assert!(matches!(error, BaselineError::TooSmall { .. }), "{error}");
    assert_eq!(left_in_shm(), [""; 0]);
}

#[test]
fn a_consumer_started_by_hand_says_so() {
    for args in [vec![], vec![Kind::Copy.to_string()], vec!["lend".to_owned(), "x".to_owned()]] {
        assert!(matches!(serve(&args), Err(BaselineError::Arguments(given)) if given.len() <= args.len()));
    }
}
