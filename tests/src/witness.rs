//! A process that continues while others die: a producer and a reader in one process, which check turn by turn that the
//! reader sees the newest value, untorn.

use crate::filled::{self, filled, put};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::{Client, DType, Error, Start};

/// The names that only this process writes.
pub const NAMES: [&str; 3] = ["bystander/0", "bystander/1", "bystander/2"];
/// Names that it and other processes take over from each other.
pub const SHARED: [&str; 2] = ["shared/0", "shared/1"];
/// The name of the stream that the process opens.
pub const STREAM: &str = "bystander";

/// `SOCKET`: the order `turns` returns the number of turns done, and how many of them were consistent; in the others an
/// operation failed because the daemon is gone. The order `end` ends the process.
///
/// # Panics
/// On a torn tensor, on one that is not the newest, and on unexpected errors.
pub fn run(arguments: &[String]) -> Option<()> {
    let [socket] = arguments else { return None };
    let (turns, whole, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(Path::new(socket), &turns, &whole, &end));
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            assert!(!working.is_finished(), "the bystander has stopped");
            let answer = format!("{} {}", turns.load(Ordering::Relaxed), whole.load(Ordering::Relaxed));
            if line == "end" {
                break;
            }
            if writeln!(std::io::stdout(), "ok {answer}").is_err() {
                break;
            }
        }
        end.store(true, Ordering::Relaxed);
        working.join().expect("the bystander fares well");
    });
    println!("ok ended");
    Some(())
}

fn work(socket: &Path, turns: &AtomicU64, whole_turns: &AtomicU64, end: &AtomicBool) {
    let connect = || Client::builder().socket(socket).label("bystander").connect().expect("the daemon is there");
    let (writer, reader) = (connect(), connect());
    let camera = writer.stream(STREAM).capacity(4).open().expect("the stream is ours");
    let mut frames = reader.subscription(STREAM).start_at(Start::Oldest).open().expect("the stream is there");
    let whole = |lease: &tensorlend::Lease| filled::value(lease).unwrap_or_else(|torn| panic!("{torn}"));
    // Reserves memory for a time without a daemon, when no slot can be reused, and lets the reader map it.
    let reserve: Result<Vec<_>, _> = (0..2000).map(|_| writer.create(DType::U8, &[4096])).collect();
    for draft in reserve.expect("there is memory") {
        draft.publish(NAMES[0]).expect("our own name");
        reader.get(NAMES[0]).expect("it was published");
    }
    let (mut sent, mut newest) = (0, [0; NAMES.len()]);
    // Prints once: the cause of a failed turn usually lasts.
    let complained = AtomicBool::new(false);
    let held_up = |what: &str, turn: u64, e: &Error| {
        if !complained.swap(true, Ordering::Relaxed) {
            eprintln!("bystander, turn {turn}: {what}: {e} ({:?})", writer.memory());
        }
        false
    };
    while !end.load(Ordering::Relaxed) {
        let turn = turns.load(Ordering::Relaxed) + 1;
        let mut whole_turn = true;
        // Operations on its own names continue whichever process has ended, even the daemon.
        for (name, newest) in NAMES.into_iter().zip(&mut newest) {
            match put(&writer, name, turn) {
                Ok(_) => *newest = turn,
                // Without the daemon, the producer reuses slots only if it can read all members' leases. The table of a
                // member that joined just before the daemon's end may not be mapped; then memory is exhausted at some
                // point.
                Err(e) if e.is_disconnected() => whole_turn = held_up(name, turn, &e),
                Err(e) => panic!("our own name: {e}"),
            }
            match reader.get(name) {
                Ok(lease) => assert_eq!(whole(&lease), *newest, "{name} is not the newest"),
                // The value is in a segment that was lent just before the daemon's end.
                Err(e) if e.is_disconnected() => whole_turn = held_up("get", turn, &e),
                Err(e) => panic!("an established name: {e}"),
            }
        }
        match filled(&writer, turn).and_then(|draft| camera.send_timeout(draft, Duration::from_millis(50))) {
            Ok(_) => sent += 1,
            // Without the daemon, the producer cannot see how far a new subscriber has read. Or the subscriber was
            // killed a moment ago.
            Err(Error::Timeout { .. }) => {}
            Err(e) if e.is_disconnected() => whole_turn = held_up("send", turn, &e),
            Err(e) => panic!("our own stream: {e}"),
        }
        while frames.position() < sent {
            match frames.try_recv() {
                Ok(message) => {
                    whole(message.expect("what was sent is there").tensor().expect("a tensor"));
                }
                Err(e) if e.is_disconnected() => {
                    whole_turn = held_up("receive", turn, &e);
                    break;
                }
                Err(e) => panic!("our own stream: {e}"),
            }
        }
        // Names that other processes take over.
        for name in SHARED {
            match put(&writer, name, turn) {
                Ok(_) => {}
                Err(e) if e.is_disconnected() => {}
                Err(e) => panic!("{name}: {e}"),
            }
            match reader.get(name) {
                Ok(lease) => {
                    whole(&lease);
                }
                Err(e) if e.is_not_found() || e.is_disconnected() => {}
                Err(e) => panic!("{name}: {e}"),
            }
        }
        turns.store(turn, Ordering::Relaxed);
        whole_turns.fetch_add(whole_turn.into(), Ordering::Relaxed);
        if turn > 50 {
            // Leaves a processor to the victims, which must reach their crash points.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
