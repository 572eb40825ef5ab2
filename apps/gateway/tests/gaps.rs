//! Streams between two gateways of which one is killed or stopped, or that cannot reach each other for a while: a
//! subscriber receives or counts every message.
#![cfg(feature = "zenoh")]

mod node;

use node::{Node, send, two};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend::{Client, Error, Policy, Stream, Subscription};
use tensorlend_tests::{eventually, free_address};

/// Messages before and after each fault, and the number of faults in each test.
const SOME: u64 = 150;
const FAULTS: usize = 2;

/// Connections between two nodes, which a test can cut.
struct Cable {
    address: String,
    is_cut: Arc<AtomicBool>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    fn to(far: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_cut, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let cable = Self { address, is_cut: is_cut.clone(), ends: ends.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(far) else { continue };
                let mut ends = ends.lock().unwrap();
                if is_cut.load(Ordering::Relaxed) {
                    continue;
                }
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || carry(from, to));
                }
                ends.extend([near, far]);
            }
        });
        cable
    }

    fn cut(&self) {
        let mut ends = self.ends.lock().unwrap();
        self.is_cut.store(true, Ordering::Relaxed);
        for end in ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::Relaxed);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The messages that a subscriber has received, as its thread counts them.
#[derive(Default)]
struct Seen {
    /// The number of the last message, plus 1.
    next: AtomicU64,
    received: AtomicU64,
}

/// Receives until the message with the number `last`. Checks each message's count of lost messages. A stream that ends
/// fails the test.
fn receive(frames: &mut Subscription, seen: &Seen, last: impl Fn() -> Option<u64>) {
    loop {
        let next = seen.next.load(Ordering::Relaxed);
        if last().is_some_and(|last| next > last) {
            return;
        }
        match frames.recv_timeout(Duration::from_millis(200)) {
            Ok(message) => {
                let number = message.tensor().unwrap().as_slice::<u64>().unwrap()[0];
                assert!(number >= next, "{number} comes after {next} was expected");
                assert_eq!(message.lost(), number - next, "before {number}");
                seen.received.fetch_add(1, Ordering::Relaxed);
                seen.next.store(number + 1, Ordering::Relaxed);
            }
            // The gateway is away for long on a busy machine.
            Err(Error::Remote { .. } | Error::Timeout { .. }) => {}
            Err(error) => panic!("after {next} messages: {error}"),
        }
    }
}

/// Reports the end of a thread, also by a failure.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends and receives numbers while `fault` happens a few times. Sending continues during the fault if the fault waits
/// for the counter of sent messages.
fn through(policy: Policy, a: Client, b: &Client, mut fault: impl FnMut(&AtomicU64)) {
    let cam = a.stream("cam").capacity(8).policy(policy).open().unwrap();
    let mut frames = b.subscribe("a/cam").unwrap();
    let (sent, seen, is_over) = (AtomicU64::new(0), Seen::default(), AtomicBool::new(false));
    let is_received = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sent, seen, is_over, is_received, a) = (&sent, &seen, &is_over, &is_received, &a);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                send(&cam, a, sent.load(Ordering::Relaxed));
                sent.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
            // The stream stays open until the subscriber has its last message.
            eventually("the last message", || is_received.load(Ordering::Relaxed));
            drop(cam);
        });
        scope.spawn(|| {
            let _at_end = AtEnd(is_received);
            let last = || is_over.load(Ordering::Acquire).then(|| sent.load(Ordering::Relaxed).saturating_sub(1));
            receive(&mut frames, seen, last);
        });
        let more = || {
            let until = seen.received.load(Ordering::Relaxed) + SOME;
            eventually("more messages", || {
                is_received.load(Ordering::Relaxed) || seen.received.load(Ordering::Relaxed) >= until
            });
        };
        for _ in 0..FAULTS {
            more();
            fault(sent);
            more();
        }
        is_over.store(true, Ordering::Release);
    });
    let (sent, received) = (sent.load(Ordering::Relaxed), seen.received.load(Ordering::Relaxed));
    eprintln!("sent {sent}, received {received}, lost {}", frames.lost());
    assert_eq!(received + frames.lost(), sent, "received {received}, lost {}", frames.lost());
}

/// Waits until the producer has sent some messages more.
fn some_more(sent: &AtomicU64) {
    let until = sent.load(Ordering::Relaxed) + SOME;
    eventually("the producer goes on", || sent.load(Ordering::Relaxed) >= until);
}

#[test]
fn a_partition_loses_no_message_uncounted() {
    let far = free_address();
    let cable = Cable::to(far);
    let a = Node::new("a", &format!("listen = [\"tcp/{far}\"]"), None);
    let b = Node::new("b", &format!("listen = []\nconnect = [\"tcp/{}\"]", cable.address), None);
    a.sees("b", true);
    b.sees("a", true);
    // Under this policy, the producer waits until the link of the other node has timed out.
    through(Policy::Block, a.client.clone(), &b.client, |sent| {
        cable.cut();
        b.sees("a", false);
        some_more(sent);
        cable.mend();
        b.sees("a", true);
    });
}

#[test]
fn a_gateway_that_sends_loses_no_message_uncounted_when_it_is_killed_or_stopped() {
    for by in [Signal::KILL, Signal::TERM] {
        let (mut a, b) = two();
        through(Policy::Block, a.client.clone(), &b.client, |sent| {
            a.end(by);
            some_more(sent);
            a.start();
        });
    }
}

#[test]
fn a_gateway_that_receives_loses_no_message_uncounted_when_it_is_killed_or_stopped() {
    for by in [Signal::KILL, Signal::TERM] {
        let (a, mut b) = two();
        let here = b.client.clone();
        through(Policy::Block, a.client.clone(), &here, |sent| {
            b.end(by);
            if by == Signal::TERM {
                // Its link is closed, so nothing holds up the producer.
                some_more(sent);
            }
            b.start();
        });
    }
}

/// A loop over the stream, as programs write it.
fn numbers(frames: Subscription) -> Result<Vec<u64>, Error> {
    frames.map(|message| Ok(message?.tensor()?.as_slice::<u64>()?[0])).collect()
}

fn capacity_8(client: &Client) -> Stream {
    client.stream("cam").capacity(8).open().unwrap()
}

#[test]
fn a_loop_over_a_stream_ends_with_the_stream_and_not_with_a_gateway() {
    let (a, mut b) = two();
    let cam = capacity_8(&a.client);
    let mut frames = b.client.subscribe("a/cam").unwrap();
    for n in 0..8 {
        send(&cam, &a.client, n);
        frames.recv().unwrap();
    }
    b.end(Signal::KILL);
    eventually("the daemon notices", || b.client.remote().nodes().unwrap().is_empty());
    let later = std::thread::scope(|scope| {
        let received = scope.spawn(|| numbers(frames));
        b.start();
        eventually("the next link", || received.is_finished() || b.stat("streams_received") == Some(1));
        // The link of the former gateway is closed.
        eventually("its other end", || a.stat("streams_sent") == Some(1));
        (8..16).for_each(|n| send(&cam, &a.client, n));
        drop(cam);
        received.join().unwrap().unwrap()
    });
    assert!(later.iter().copied().eq(8..16), "{later:?}");
    // No gateway comes back.
    let cam = a.client.stream("other").open().unwrap();
    let mut frames = b.client.subscribe("a/other").unwrap();
    send(&cam, &a.client, 0);
    frames.recv().unwrap();
    b.end(Signal::KILL);
    let error = numbers(frames).unwrap_err();
    assert_eq!(error.code(), "TL-0705", "{error}");
    assert!(error.to_string().contains("a/other") && error.to_string().contains("gateway"), "{error}");
}

#[test]
fn what_is_lost_before_the_first_message_and_before_the_end_is_counted() {
    let (mut a, mut b) = two();
    let cam = capacity_8(&a.client);
    let mut frames = b.client.subscribe("a/cam").unwrap();
    // The ring keeps 8 of these. No message has reached this machine before.
    a.end(Signal::TERM);
    (0..20).for_each(|n| send(&cam, &a.client, n));
    a.start();
    let message = frames.recv().unwrap();
    assert_eq!((message.lost(), message.tensor().unwrap().as_slice::<u64>().unwrap()), (12, [12].as_slice()));
    (13..20).for_each(|n| assert_eq!(frames.recv().unwrap().tensor().unwrap().as_slice::<u64>().unwrap(), [n]));
    // The stream ends while its gateway is away, and the next one finds no stream.
    b.end(Signal::KILL);
    drop(cam);
    assert!(a.client.delete_stream("cam").unwrap());
    b.start();
    let ended = frames.find_map(Result::err);
    assert!(ended.is_none(), "{ended:?}");
}
