//! A process that goes on while others die: a producer and a reader in it, who find each other's values whole and the
//! newest, turn by turn.

use crate::filled::{self, filled, put};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::{Client, Error, Start};

/// Its own names.
pub const NAMES: [&str; 3] = ["bystander/0", "bystander/1", "bystander/2"];
/// Names that it and the others take from each other.
pub const SHARED: [&str; 2] = ["shared/0", "shared/1"];
/// Its stream.
pub const STREAM: &str = "bystander";

/// `SOCKET`: says `ok` when it runs; `turns` is answered with the number of turns done, `end` with its end.
///
/// # Panics
/// On a torn tensor, on one that is not the newest, and on errors that nobody may meet.
pub fn run(arguments: &[String]) -> Option<()> {
    let [socket] = arguments else { return None };
    let (turns, end) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(Path::new(socket), &turns, &end));
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            assert!(!working.is_finished(), "the bystander has stopped");
            let answer = turns.load(Ordering::Relaxed);
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

fn work(socket: &Path, turns: &AtomicU64, end: &AtomicBool) {
    let connect = || Client::builder().socket(socket).label("bystander").connect().expect("the daemon is there");
    let (writer, reader) = (connect(), connect());
    let camera = writer.stream(STREAM).capacity(4).open().expect("the stream is ours");
    let mut frames = reader.subscription(STREAM).from(Start::Oldest).open().expect("the stream is there");
    let whole = |lease: &tensorlend::Lease| filled::value(lease).unwrap_or_else(|torn| panic!("{torn}"));
    let mut sent = 0;
    while !end.load(Ordering::Relaxed) {
        let turn = turns.load(Ordering::Relaxed) + 1;
        // What nobody else touches goes on whoever is gone, the daemon too.
        for name in NAMES {
            put(&writer, name, turn).expect("our own name can be overwritten");
            let lease = reader.get(name).expect("an established name can be read");
            assert_eq!(whole(&lease), turn, "{name} is not the newest");
        }
        match camera.send_timeout(filled(&writer, turn).expect("there is memory"), Duration::from_millis(50)) {
            Ok(_) => sent += 1,
            // Somebody subscribed whose cursor cannot be seen, the daemon being gone; or he was killed just now.
            Err(Error::Timeout { .. }) => {}
            Err(e) => panic!("our own stream: {e}"),
        }
        while frames.position() < sent {
            let message = frames.try_recv().expect("our own stream").expect("what was sent is there");
            whole(message.tensor().expect("a tensor"));
        }
        // What others take from us.
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
        if turn > 50 {
            // There is no hurry, and one processor less for those who are to reach the place at which they die.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
