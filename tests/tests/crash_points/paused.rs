//! A client's thread pauses at a crash point, while another process is killed at another one.

use crate::Build;
use std::cell::Cell;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;
use tensorlend::{Client, DType, Draft, Lease, Policy, Start};
use tensorlend_layout::crash;
use tensorlend_os::mutex::lock;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Daemon, eventually};

/// Words of each tensor: all have one length, so that a freed slot is filled again.
const WORDS: usize = 8;

/// The thread that pauses at its crash point, and the test. Tests of this file may share a process.
static BARRIER: Barrier = Barrier::new(2);
static ONE_TEST: Mutex<()> = Mutex::new(());

thread_local! {
    static POINT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `step` on a thread that pauses at the crash point, at its first passage, until `meanwhile` has returned.
fn pausing_at<T: Send>(point: &'static str, step: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> T {
    let _alone = lock(&ONE_TEST);
    crash::install(|number| {
        if POINT.get() == Some(number) {
            POINT.set(None);
            BARRIER.wait();
            BARRIER.wait();
        }
    });
    thread::scope(|scope| {
        let step = scope.spawn(|| {
            POINT.set(Some(crash::number(point)));
            step()
        });
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

/// A reader copies a value. Memory is short, so the daemon ends the reader's session, and the producer fills the value's slot
/// again. The reader does not publish the copy, which may have bytes of two tensors.
#[test]
fn a_copy_is_not_published_if_the_session_ends_before_it_is_made() {
    let daemon = Daemon::start(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[uid]\nlease_ms_max = 300\n",
    );
    // Without the link, the reader cannot ask the daemon whether its session has ended.
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("socket");
    std::os::unix::fs::symlink(daemon.socket(), &link).unwrap();
    let (producer, reader) = (daemon.client(), Client::builder().socket(&link).connect().unwrap());
    filled(&producer, 1).publish("value").unwrap();
    filled(&reader, 2).publish("copy").unwrap();
    let put_large = || producer.create(DType::U8, [7_u64 << 20]).and_then(|draft| draft.publish("large"));
    let mut kept = Vec::new();
    while put_large().is_ok() {
        kept.push(reader.get("large").unwrap());
    }
    let copied = pausing_at(
        "draft: memory looked for",
        || reader.copy("value", "copy"),
        || {
            std::fs::remove_file(&link).unwrap();
            eventually("the end of the reader's session", || put_large().is_ok());
            overwrite(&producer);
        },
    );
    assert!(copied.is_err(), "the copy of a value without a lease was published");
    assert!(kept.iter().all(|lease| !lease.validate()), "the session has ended");
}

/// A daemon grants a claim and is killed. A thread of the consumer has received the reply and has not used it, or has not
/// recorded it, when another thread of the client continues the session at the next daemon.
#[test]
fn a_claim_whose_reply_was_received_is_asserted_by_any_thread_that_reconnects() {
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        for (point, timeout) in [
            ("request: answered", Duration::ZERO),
            ("queue: claimed", Duration::ZERO),
            ("queue: claimed", Duration::from_secs(10)),
        ] {
            let mut daemon = Service::start(mode);
            let (producer, consumer, other) = (daemon.client(), daemon.client(), daemon.client());
            let (puts, gets) = (producer.queue("jobs").unwrap(), consumer.queue("jobs").unwrap());
            puts.put(filled(&producer, 1), None).unwrap();
            puts.put(filled(&producer, 2), None).unwrap();
            thread::scope(|scope| {
                let mut reconnected = None;
                let item = pausing_at(
                    point,
                    || gets.get(timeout),
                    || {
                        daemon.restart();
                        reconnected = Some(scope.spawn(|| consumer.ping()));
                    },
                )
                .unwrap();
                reconnected.unwrap().join().unwrap().unwrap();
                let next = other.queue("jobs").unwrap().get(Duration::from_secs(30)).unwrap();
                assert_eq!((item.number(), next.number()), (0, 1), "{point}, {mode}");
                assert!(item.done().unwrap() && next.done().unwrap(), "{point}, {mode}");
                assert_eq!((puts.waiting().unwrap(), puts.claimed().unwrap()), (0, 0), "{point}, {mode}");
            });
        }
    }
}
