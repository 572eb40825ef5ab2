//! Senders of one dtype and shape, and subscribers that wait inside `borrow`, with an embedded daemon.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorlend::{Client, DType, Error, Loan, Policy, Sender, Start, Subscription, Tensor, TrySendError};
use tensorlend_daemon::Embedded;

const LONG: Duration = Duration::from_mins(5);
const SHORT: Duration = Duration::from_millis(10);

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn sender(client: &Client, capacity: u32, policy: Policy) -> Sender {
    let stream = client.stream("s").capacity(capacity).policy(policy).open().expect("the stream opens");
    stream.sender(DType::U64, [64]).expect("a sender")
}

fn fill(mut loan: Loan<'_>, value: u64) -> Loan<'_> {
    loan.as_mut_slice::<u64>().unwrap().fill(value);
    loan
}

/// Checks that every element is `value`.
#[track_caller]
fn check(tensor: &Tensor, value: u64) {
    let values = tensor.as_slice::<u64>().unwrap();
    assert!(values.iter().all(|&v| v == value), "torn or replaced, not {value}: {values:?}");
}

#[test]
fn every_borrower_gets_every_loan_in_order() {
    let broker = broker();
    let producer = client(&broker);
    let mut sender = sender(&producer, 4, Policy::Block);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let consumer = client(&broker);
            let mut messages = consumer.subscription("s").start_at(Start::Oldest).open().unwrap();
            scope.spawn(move || {
                for expected in 0..2000 {
                    let message = messages.borrow().unwrap();
                    assert_eq!((message.sequence(), message.lost()), (expected, 0));
                    check(message.tensor().unwrap(), expected);
                }
                assert!(matches!(messages.borrow(), Err(Error::StreamEnded(_))));
                drop(consumer);
            });
        }
        sender.stream().wait_subscribers(3, LONG).unwrap();
        for number in 0..2000 {
            assert_eq!(fill(sender.loan().unwrap(), number).send().unwrap(), number);
        }
        drop(sender);
    });
    // Only the ring's messages are in use, and slots that wait for the next scan of the leases.
    assert!(producer.memory().slot_bytes < 200 * 512, "{:?}", producer.memory());
}

#[test]
fn a_message_has_only_its_own_properties() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..40u64 {
        if round % 3 == 0 {
            // The next loan has no metadata or timestamp of an unsent one.
            let mut unsent = sender.loan().unwrap();
            unsent.set_timestamp(99);
            unsent.set_metadata(b"unsent").unwrap();
        }
        let mut loan = fill(sender.loan().unwrap(), round);
        assert_eq!((loan.dtype(), loan.shape()), (DType::U64, &[64][..]));
        match round % 5 {
            1 => _ = loan.set_timestamp(round),
            3 => _ = loan.set_metadata(&[7; 20]).unwrap().set_timestamp(round),
            4 => _ = loan.set_metadata(&[7; 500]).unwrap(),
            _ => {}
        }
        assert_eq!(loan.send().unwrap(), round);
        let (timestamp, metadata) = [(0, 0), (round, 0), (0, 0), (round, 20), (0, 500)][round as usize % 5];
        // Each way to receive continues where the other stopped.
        let whole = |sequence, stamp, tensor: &Tensor| {
            assert_eq!((sequence, stamp), (round, timestamp));
            assert_eq!((tensor.shape(), tensor.metadata().len()), (&[64][..], metadata));
            check(tensor, round);
        };
        if round % 10 < 5 {
            let message = messages.borrow_timeout(LONG).unwrap();
            whole(message.sequence(), message.timestamp(), message.tensor().unwrap());
        } else {
            let message = messages.recv_timeout(LONG).unwrap();
            whole(message.sequence(), message.timestamp(), message.tensor().unwrap());
        }
    }
}

#[test]
fn any_shape_is_sent() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for shape in [&[][..], &[0], &[3, 0, 2], &[5], &[2, 3, 4, 5], &[2, 1, 2, 1, 2, 3]] {
        let mut sender = a.stream("s").open().unwrap().sender(DType::U32, shape).unwrap();
        let mut messages = b.subscribe("s").unwrap();
        for round in 0..20u32 {
            let mut loan = sender.loan().unwrap();
            loan.as_mut_slice::<u32>().unwrap().fill(round);
            loan.send().unwrap();
            let message = messages.borrow_timeout(LONG).unwrap();
            let tensor = message.tensor().unwrap();
            assert_eq!(tensor.shape(), shape);
            assert!(tensor.as_slice::<u32>().unwrap().iter().all(|&v| v == round));
        }
    }
    let stream = a.stream("s").open().unwrap();
    assert!(stream.sender(DType::U32, [1u64 << 62, 4]).is_err());
    let stream = a.stream("s").open().unwrap();
    assert!(stream.sender(DType::U32, [1u64; 17]).is_err());
}

#[test]
fn a_full_stream_blocks_fails_or_drops() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));

    let mut blocks = sender(&a, 2, Policy::Block);
    let mut slow = b.subscribe("s").unwrap();
    for number in 0..2 {
        fill(blocks.loan().unwrap(), number).send().unwrap();
    }
    assert!(fill(blocks.loan().unwrap(), 9).send_timeout(SHORT).unwrap_err().is_timeout());
    let Err(TrySendError::Full(back)) = fill(blocks.loan().unwrap(), 2).try_send() else { panic!("there was room") };
    drop(slow.borrow_timeout(LONG).unwrap());
    assert_eq!(back.send().unwrap(), 2);
    let waits = std::thread::spawn(move || {
        let sent = fill(blocks.loan().unwrap(), 3).send();
        (blocks, sent)
    });
    for number in 1..4 {
        let message = slow.borrow_timeout(LONG).unwrap();
        check(message.tensor().unwrap(), number);
    }
    let (blocks, sent) = waits.join().unwrap();
    assert_eq!(sent.unwrap(), 3);
    drop(blocks);

    let mut fails = sender(&a, 1, Policy::Error);
    let mut slow = b.subscribe("s").unwrap();
    fill(fails.loan().unwrap(), 0).send().unwrap();
    assert!(matches!(fill(fails.loan().unwrap(), 1).send(), Err(Error::StreamFull(_))));
    drop(slow.borrow_timeout(LONG).unwrap());
    assert_eq!(fill(fails.loan().unwrap(), 1).send().unwrap(), 1);
    drop((fails, slow));

    let mut drops = sender(&a, 2, Policy::DropOldest);
    let mut slow = b.subscribe("s").unwrap();
    fill(drops.loan().unwrap(), 0).send().unwrap();
    drop(slow.borrow_timeout(LONG).unwrap());
    for number in 1..100 {
        fill(drops.loan().unwrap(), number).send().unwrap();
    }
    let message = slow.borrow_timeout(LONG).unwrap();
    assert_eq!((message.sequence(), message.lost()), (98, 97));
    check(message.tensor().unwrap(), 98);
}

#[test]
fn loans_and_other_messages_share_the_numbers_of_their_stream() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 8, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..10u64 {
        assert_eq!(fill(sender.loan().unwrap(), 2 * round).send().unwrap(), 2 * round);
        let other = a.create(DType::U8, [3]).unwrap();
        assert_eq!(sender.stream().send(other).unwrap(), 2 * round + 1);
        let message = messages.recv_timeout(LONG).unwrap();
        check(message.tensor().unwrap(), 2 * round);
        assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().shape(), [3]);
    }
    let stream = sender.into_stream();
    assert_eq!(stream.sent(), 20);
    let mut bytes = stream.sender(DType::U8, [5]).unwrap();
    assert_eq!(bytes.loan().unwrap().send().unwrap(), 20);
    assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().shape(), [5]);
}

#[test]
fn a_summary_that_a_size_does_not_fit_is_read_from_the_record() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    // A tensor without bytes, and one with a size above 32 bits.
    let mut sender = a.stream("s").open().unwrap().sender(DType::U32, [1u64 << 32, 0]).unwrap();
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..20u64 {
        let mut loan = sender.loan().unwrap();
        if round % 3 == 1 {
            loan.set_timestamp(round);
        }
        loan.send().unwrap();
        let message = messages.borrow_timeout(LONG).unwrap();
        assert_eq!(message.tensor().unwrap().shape(), [1 << 32, 0]);
        assert_eq!(message.timestamp(), if round % 3 == 1 { round } else { 0 });
    }
}

#[test]
fn subscribers_that_join_a_full_stream_miss_nothing_from_then_on() {
    let broker = broker();
    let producer = client(&broker);
    let mut sender = sender(&producer, 2, Policy::Block);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let joiners: Vec<_> = (0..3)
            .map(|_| {
                let (broker, done) = (&broker, &done);
                scope.spawn(move || {
                    let consumer = client(broker);
                    for round in 0..40 {
                        let start = [Start::Oldest, Start::Newest, Start::Next][round % 3];
                        let mut messages = consumer.subscription("s").start_at(start).open().unwrap();
                        let mut expected = None;
                        for _ in 0..50 {
                            let message = messages.borrow_timeout(LONG).unwrap();
                            assert_eq!(expected.unwrap_or(message.sequence()), message.sequence());
                            check(message.tensor().unwrap(), message.sequence());
                            expected = Some(message.sequence() + 1);
                        }
                        assert_eq!(messages.lost(), 0);
                    }
                    done.store(true, Ordering::Relaxed);
                })
            })
            .collect();
        let mut number = 0;
        while !joiners.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            // Without a subscriber, a stream is never full.
            if sender.stream().subscribers() > 0 || done.load(Ordering::Relaxed) {
                assert_eq!(fill(sender.loan().unwrap(), number).send().unwrap(), number);
                number += 1;
            }
        }
    });
}

/// The messages that a borrower has received.
#[derive(Default)]
struct Borrows {
    /// The number after the last message.
    next: u64,
    lost: u64,
    received: u64,
}

/// Borrows all messages of a stream that drops, and checks that each is whole and has the timestamp of its number.
fn borrow_all(mut messages: Subscription, timestamp: fn(u64) -> u64) -> Borrows {
    let mut borrows = Borrows::default();
    loop {
        let message = match messages.borrow() {
            Ok(message) => message,
            Err(Error::StreamEnded(_)) => return borrows,
            Err(e) => panic!("{e}"),
        };
        check(message.tensor().unwrap(), message.sequence());
        assert_eq!(message.timestamp(), timestamp(message.sequence()));
        assert!(message.validate());
        // Messages that the stream dropped before the first one do not count as lost.
        assert!(borrows.next == 0 || message.sequence() == borrows.next + message.lost());
        borrows.lost += message.lost();
        borrows.received += 1;
        borrows.next = message.sequence() + 1;
    }
}

#[test]
fn a_borrower_of_a_stream_that_drops_sees_whole_messages() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 2, Policy::DropOldest);
    let messages = b.subscribe("s").unwrap();
    let borrower = std::thread::spawn(move || borrow_all(messages, |_| 0));
    sender.stream().wait_subscribers(1, LONG).unwrap();
    for number in 0..20_000 {
        fill(sender.loan().unwrap(), number).send().unwrap();
    }
    drop(sender);
    let Borrows { next, lost, .. } = borrower.join().unwrap();
    assert!(next == 20_000 && lost < 20_000, "{lost} lost before {next}");
}

/// The subscriber copies the bytes of small messages from entries that the producer replaces meanwhile.
#[test]
fn small_messages_of_a_stream_that_drops_are_whole() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(1).policy(Policy::DropOldest).open().unwrap();
    let mut sender = stream.sender(DType::U64, [4]).unwrap();
    let messages = b.subscribe("s").unwrap();
    let borrower = std::thread::spawn(move || borrow_all(messages, |number| number + 1));
    sender.stream().wait_subscribers(1, LONG).unwrap();
    for number in 0..200_000 {
        let mut loan = fill(sender.loan().unwrap(), number);
        loan.set_timestamp(number + 1);
        loan.send().unwrap();
    }
    drop(sender);
    let Borrows { next, received, .. } = borrower.join().unwrap();
    assert!(next == 200_000 && received > 1, "{received} received before {next}");
}

#[test]
fn a_borrower_follows_a_stream_that_is_opened_again() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let first = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    drop(first);
    for round in 0..20 {
        let mut again = sender(&a, 4, Policy::Block);
        let borrower = std::thread::spawn(move || {
            let sequence = messages.borrow().unwrap().sequence();
            (messages, sequence)
        });
        again.stream().wait_subscribers(1, LONG).unwrap();
        if round % 2 == 0 {
            std::thread::sleep(SHORT);
        }
        fill(again.loan().unwrap(), round).send().unwrap();
        let (back, sequence) = borrower.join().unwrap();
        assert_eq!(sequence, 0);
        messages = back;
    }
}

#[test]
fn the_memory_of_a_sender_comes_back() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    let mut kept = Vec::new();
    for round in 0..500 {
        fill(sender.loan().unwrap(), round).send().unwrap();
        let message = messages.recv_timeout(LONG).unwrap();
        if round % 50 == 0 {
            kept.push((round, message));
        }
    }
    for (round, message) in &kept {
        check(message.tensor().unwrap(), *round);
    }
    drop((kept, messages, sender));
    assert!(b.delete_stream("s").unwrap());
    // Opening a stream makes a client look for its own unreachable messages, and a draft for free memory.
    for _ in 0..100 {
        drop(a.stream("other").open().unwrap());
        a.put("x", &[0u64; 64]).unwrap();
    }
    assert!(a.delete("x").unwrap());
    let kept = a.memory().slot_bytes;
    assert!(kept < 512 * 100, "{kept} bytes are in use: the stream's have not come back");
    drop((a, b));
    let last = client(&broker);
    let start = std::time::Instant::now();
    while last.stat().unwrap().bytes_in_use > 0 {
        assert!(start.elapsed() < LONG, "{:?}", last.stat().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_deleted_stream_ends_for_its_sender_and_its_borrowers() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    assert!(messages.borrow_timeout(SHORT).unwrap_err().is_timeout());
    fill(sender.loan().unwrap(), 0).send().unwrap();
    assert!(b.delete_stream("s").unwrap());
    assert!(matches!(fill(sender.loan().unwrap(), 1).send(), Err(Error::StreamEnded(_))));
    // The message sent before the deletion may or may not arrive.
    while messages.borrow_timeout(LONG).is_ok() {}
    assert!(matches!(messages.borrow_timeout(LONG), Err(Error::StreamEnded(_))));
}

#[test]
fn a_borrower_sleeps_until_a_message_or_the_end_comes() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    let borrower = std::thread::spawn(move || {
        let first = messages.borrow().map(|message| message.tensor().unwrap().as_slice::<u64>().unwrap()[0]);
        let dataset = messages.borrow().map(|message| message.dataset().unwrap().len());
        let ended = matches!(messages.borrow(), Err(Error::StreamEnded(_)));
        (first.unwrap(), dataset.unwrap(), ended)
    });
    // Each pause is long enough for the subscriber to fall asleep.
    std::thread::sleep(5 * SHORT);
    fill(sender.loan().unwrap(), 3).send().unwrap();
    std::thread::sleep(5 * SHORT);
    let dataset = a.dataset().add("x", a.create(DType::U8, [3]).unwrap()).unwrap();
    sender.stream().send(dataset).unwrap();
    std::thread::sleep(5 * SHORT);
    drop(sender);
    assert_eq!(borrower.join().unwrap(), (3, 1, true));
}
