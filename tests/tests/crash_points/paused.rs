//! A client's thread pauses at a crash point, while another process is killed at another one.

use crate::Build;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;
use tensorlend::{Client, DType, Draft, Lease, Policy, Start};
use tensorlend_layout::crash;
use tensorlend_tests::eventually;
use tensorlend_tests::keeper::Service;

/// Name of the threads that pause.
const PAUSED: &str = "paused";
/// Words of each tensor: all have one length, so that a freed slot is filled again.
const WORDS: usize = 8;

static BARRIER: Barrier = Barrier::new(2);

/// Runs `step` on a thread that pauses at the crash point until `meanwhile` has returned.
fn pausing_at<T: Send>(point: &'static str, step: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    // The tests of this file run in processes of their own, or this point is that of all of them.
    assert_eq!(point, "subscribe: listed");
    crash::install(|number| {
        if number == const { crash::number("subscribe: listed") } && thread::current().name() == Some(PAUSED) {
            BARRIER.wait();
            BARRIER.wait();
        }
    });
    thread::scope(|scope| {
        let step = thread::Builder::new().name(PAUSED.to_owned()).spawn_scoped(scope, step).unwrap();
        BARRIER.wait();
        meanwhile();
        BARRIER.wait();
        step.join().unwrap()
    })
}

fn filled(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, [WORDS]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

/// Overwrites the client's own value often, so that freed slots are filled again.
fn overwrite(client: &Client) {
    for value in 100..400 {
        filled(client, value).publish("value").unwrap();
    }
}

fn assert_holds(lease: &Lease, value: u64, mode: &str) {
    assert_eq!(lease.as_slice::<u64>().unwrap(), [value; WORDS], "a leased message has changed, {mode}");
}

/// A new subscriber leases a message of a closed stream by the owner word. A daemon that opens the stream again is killed
/// before it changes the owner word. Until the word changes, the former producer keeps the messages.
#[test]
fn the_messages_of_a_stream_stay_until_its_owner_word_changes() {
    let Some(build) = Build::find() else { return };
    let number = build.points().iter().position(|it| it == "daemon: stream written").unwrap();
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        let folder = tempfile::tempdir().unwrap();
        let begin = folder.path().join("begin");
        let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
        let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), Some(plan));
        let connect = || {
            let client = Client::builder().socket(daemon.socket()).request_timeout(Duration::from_millis(200));
            client.connect().unwrap()
        };
        let (producer, next, reader) = (connect(), connect(), connect());
        let camera = producer.stream("camera").capacity(4).policy(Policy::Block).open().unwrap();
        for value in 1..=4 {
            camera.send(filled(&producer, value)).unwrap();
        }
        drop(camera);
        // The reader maps the producer's memory, and the producer the reader's leases, while a daemon can lend them.
        filled(&producer, 9).publish("value").unwrap();
        drop(reader.get("value").unwrap());
        overwrite(&producer);
        std::fs::write(&begin, "").unwrap();
        let subscribe = || reader.subscription("camera").start_at(Start::Oldest).open();
        let mut frames = pausing_at("subscribe: listed", subscribe, || {
            assert!(next.stream("camera").open().is_err(), "the daemon is killed before it replies");
            // Opening a stream looks for streams that have ended.
            assert!(producer.stream("other").open().is_err(), "there is no daemon");
            overwrite(&producer);
        })
        .unwrap();
        for value in 1..=4 {
            let message = frames.recv_timeout(Duration::from_secs(10)).unwrap();
            overwrite(&producer);
            assert_holds(message.tensor().unwrap(), value, mode);
        }
        drop(frames);
        eventually("the daemon's end", || !daemon.is_running());
        daemon.restart();
    }
}
