//! Links that are slow, and lose frames.

use crate::rig::{Node, Rig, Way, peers_told, skip_without_hosts};
use crate::{OPEN, fill, holds};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::remote::SERVICE;
use tensorlend::{Client, DType, Draft, Policy, Subscription};
use tensorlend_tests::eventually;

/// A timeout that only a failure reaches.
const LONG: Duration = Duration::from_mins(1);
/// As [`OPEN`], for streams that must not block their producer.
const FREE: &str = "[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\nstream_policy = \"drop-oldest\"\n";

/// One or two of a hundred packets lost, as on a bad radio link.
const LOSSY: Way = Way { loss: 0.015, delay: Duration::from_millis(2), bytes_per_s: 12_500_000 };
/// Some megabytes per second.
const NARROW: Way = Way { loss: 0.0, delay: Duration::from_millis(5), bytes_per_s: 4_000_000 };

/// Starts two nodes with such a link between them. However late their keep-alive messages are, the link is not given up.
fn two(config: &str, way: Way) -> (Rig, Vec<Node>) {
    let mut rig = Rig::new(2);
    let told = [("transport/link/tx/lease".to_owned(), serde_json::json!(60_000))];
    let nodes = peers_told(&rig, 2, config, &told);
    rig.way(1, way);
    (rig, nodes)
}

/// Asserts that frames were lost, if the relay counts them.
fn has_lost(rig: &Rig) {
    assert!(rig.lost().is_none_or(|lost| lost > 0), "nothing was lost");
}

fn stat(client: &Client, what: &str) -> u64 {
    let lease = client.wait_for(&format!("{SERVICE}/stat"), Some(LONG)).unwrap();
    let read: serde_json::Value = serde_json::from_slice(lease.bytes()).unwrap();
    read[what].as_u64().unwrap()
}

/// Publishes incompressible data.
fn noise(client: &Client, name: &str, numbers: u64) {
    let mut draft = client.create(DType::U32, &[numbers]).unwrap();
    let all = draft.as_mut_slice::<u32>().unwrap();
    all.iter_mut().enumerate().for_each(|(at, number)| *number = mixed(at));
    draft.publish(name).unwrap();
}

fn mixed(at: usize) -> u32 {
    (at as u32).wrapping_mul(2_654_435_761)
}

fn all_bytes_arrive(mebibytes: u64, way: Way) -> Option<Rig> {
    if skip_without_hosts() {
        return None;
    }
    let config = format!("checksum = true\npacking = \"zstd\"\nanswer_timeout_ms = 30000\n{OPEN}");
    let (rig, nodes) = two(&config, way);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    noise(&there, "noise", mebibytes << 18);
    let lease = here.get("n1/noise").unwrap_or_else(|error| panic!("{error}\n{}", nodes[0].log()));
    let numbers = lease.as_slice::<u32>().unwrap();
    assert_eq!(numbers.len() as u64, mebibytes << 18);
    assert!(numbers.iter().enumerate().all(|(at, &number)| number == mixed(at)));
    Some(rig)
}

#[test]
fn over_a_slow_way_all_bytes_arrive() {
    all_bytes_arrive(4, Way { loss: 0.0, delay: Duration::from_millis(50), bytes_per_s: 12_500_000 });
}

#[test]
fn over_a_slow_and_lossy_way_all_bytes_arrive() {
    if let Some(rig) = all_bytes_arrive(16, LOSSY) {
        has_lost(&rig);
    }
}

fn number(client: &Client, bytes: u64, n: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[bytes / 8]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(n);
    draft
}

/// Returns the next message's number, which all of its elements must equal.
fn next(frames: &mut Subscription) -> u64 {
    let message = frames.recv_timeout(LONG).unwrap();
    let numbers = message.tensor().unwrap().as_slice::<u64>().unwrap();
    assert!(numbers.iter().all(|n| *n == numbers[0]), "torn");
    numbers[0]
}

#[test]
fn a_stream_over_a_lossy_way_comes_in_order_and_nothing_of_it_is_missing() {
    const MESSAGES: u64 = 60;
    if skip_without_hosts() {
        return;
    }
    let (rig, nodes) = two(OPEN, LOSSY);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    let cam = there.stream("cam").capacity(8).policy(Policy::Block).open().unwrap();
    let frames = here.subscribe("n1/cam").unwrap();
    let lost = std::thread::scope(|scope| {
        // Dropped with this thread if it panics: otherwise the producer would wait for the subscriber for ever.
        let mut frames = frames;
        scope.spawn(|| (0..MESSAGES).for_each(|n| assert_eq!(cam.send(number(&there, 200 << 10, n)).unwrap(), n)));
        (0..MESSAGES).for_each(|n| assert_eq!(next(&mut frames), n));
        frames.lost()
    });
    has_lost(&rig);
    eventually("all are counted", || stat(&here, "messages_received") == MESSAGES);
    assert_eq!((lost, stat(&here, "messages_lost")), (0, 0));
}

#[test]
fn what_a_lossy_and_narrow_way_leaves_out_of_a_stream_is_counted() {
    const MESSAGES: u64 = 300;
    if skip_without_hosts() {
        return;
    }
    let (rig, nodes) = two(FREE, Way { loss: 0.01, ..NARROW });
    let (here, there) = (nodes[0].client(), nodes[1].client());
    let cam = there.stream("cam").capacity(8).policy(Policy::DropOldest).open().unwrap();
    let mut frames = here.subscribe("n1/cam").unwrap();
    // Messages before the first received one do not count as lost.
    cam.send(number(&there, 8, 0)).unwrap();
    assert_eq!(next(&mut frames), 0);
    // More than the link can carry; the producer does not wait.
    for n in 1..MESSAGES {
        cam.send(number(&there, 100 << 10, n)).unwrap();
    }
    let (mut last, mut taken) = (0, 1);
    while last != MESSAGES - 1 {
        let n = next(&mut frames);
        assert!(n > last, "{n} after {last}");
        (last, taken) = (n, taken + 1);
    }
    assert!(taken < MESSAGES);
    assert_eq!(taken + frames.lost(), MESSAGES);
    has_lost(&rig);
}

#[test]
fn a_narrow_way_carries_values_both_ways_and_holds_up_who_sends_too_much() {
    const MESSAGES: u64 = 48;
    const BYTES: u64 = 256 << 10;
    if skip_without_hosts() {
        return;
    }
    let (_rig, nodes) = two(&format!("chunk_bytes = 65536\nwindow_bytes = {}\n{OPEN}", 4 * BYTES), NARROW);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    fill(&there, "large", 6 << 20, 3);
    assert!(holds(&here, "n1/large", 6 << 20, 3), "{}", nodes[0].log());
    here.remote().put("n1/inbox/large", &vec![5_u8; 6 << 20]).unwrap();
    assert!(holds(&there, "inbox/large", 6 << 20, 5), "{}", nodes[1].log());

    // Two rings, messages in flight, and one in each of the three stages that forward it.
    const HELD: u64 = 8 + 8 + 4 + 3;
    let cam = there.stream("cam").capacity(8).policy(Policy::Block).open().unwrap();
    let frames = here.subscribe("n1/cam").unwrap();
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut frames = frames;
        scope.spawn(|| {
            for n in 0..MESSAGES {
                cam.send(number(&there, BYTES, n)).unwrap();
                // Relaxed: a counter, which is read as such.
                sent.store(n + 1, Ordering::Relaxed);
            }
        });
        for n in 0..MESSAGES {
            let ahead = sent.load(Ordering::Relaxed).saturating_sub(n);
            assert!(ahead <= HELD, "{ahead} messages are on a way that holds {HELD}");
            assert_eq!(next(&mut frames), n);
        }
    });
}
