//! Senders of one dtype and shape, and subscribers that wait inside `borrow`, with an embedded daemon.

use std::time::Duration;
use tensorlend::{Client, DType, Error, Loan, Policy, Sender, Start, TrySendError};
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
                    let values = message.tensor().unwrap().as_slice::<u64>().unwrap();
                    assert!(values.iter().all(|&v| v == expected), "torn: {values:?}");
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
    assert!(producer.memory().slot_bytes < 4 << 20, "{:?}", producer.memory());
}

#[test]
fn a_message_has_only_its_own_properties() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = sender(&a, 4, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..40u64 {
        if round % 3 == 0 {
            // What an unsent loan was given does not come with the next one.
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
        // Every other message is read from its record, and not from the ring's entry.
        if round % 10 < 5 {
            let message = messages.borrow_timeout(LONG).unwrap();
            let tensor = message.tensor().unwrap();
            assert_eq!((message.sequence(), message.timestamp()), (round, timestamp));
            assert_eq!((tensor.shape(), tensor.metadata().len()), (&[64][..], metadata));
            assert!(tensor.as_slice::<u64>().unwrap().iter().all(|&v| v == round));
        } else {
            let message = messages.recv_timeout(LONG).unwrap();
            let tensor = message.tensor().unwrap();
            assert_eq!((message.sequence(), message.timestamp()), (round, timestamp));
            assert_eq!((tensor.shape(), tensor.metadata().len()), (&[64][..], metadata));
            assert!(tensor.as_slice::<u64>().unwrap().iter().all(|&v| v == round));
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
        assert_eq!(message.tensor().unwrap().as_slice::<u64>().unwrap()[0], number);
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
    assert_eq!(message.tensor().unwrap().as_slice::<u64>().unwrap()[0], 98);
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
        assert_eq!(message.tensor().unwrap().as_slice::<u64>().unwrap()[0], 2 * round);
        assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().shape(), [3]);
    }
    let stream = sender.into_stream();
    assert_eq!(stream.sent(), 20);
    let mut bytes = stream.sender(DType::U8, [5]).unwrap();
    assert_eq!(bytes.loan().unwrap().send().unwrap(), 20);
    assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().shape(), [5]);
}

#[test]
fn a_loan_whose_draft_was_swapped_sends_what_it_has() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let c = client(&broker);
    let mut sender = sender(&a, 8, Policy::Block);
    let mut messages = b.subscribe("s").unwrap();
    {
        // Both clients' first drafts.
        let mut theirs = c.create(DType::U64, [64]).unwrap();
        let mut loan = sender.loan().unwrap();
        std::mem::swap(&mut *loan, &mut theirs);
        assert!(matches!(loan.send(), Err(Error::Argument(_))));
    }
    for _ in 0..3 {
        let mut other = a.create(DType::U8, [3]).unwrap();
        other.bytes_mut().fill(5);
        let mut loan = fill(sender.loan().unwrap(), 1);
        std::mem::swap(&mut *loan, &mut other);
        loan.send().unwrap();
        assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().bytes(), [5; 3]);
        // The draft that was swapped out is the program's now.
        assert!(other.as_mut_slice::<u64>().unwrap().iter().all(|&v| v == 1));
        other.publish("swapped").unwrap();

        // Unsent, the other draft is dropped, and the next loan has the sender's shape again.
        let mut other = a.create(DType::U8, [3]).unwrap();
        std::mem::swap(&mut *sender.loan().unwrap(), &mut other);
        assert_eq!(sender.loan().unwrap().shape(), [64]);

        // Another client's draft is refused, even if its slot has the same number in its own client.
        let mut theirs = c.create(DType::U64, [64]).unwrap();
        let mut loan = sender.loan().unwrap();
        std::mem::swap(&mut *loan, &mut theirs);
        assert!(matches!(loan.send(), Err(Error::Argument(_))));
    }
    let loan = fill(sender.loan().unwrap(), 7);
    assert_eq!(loan.send().unwrap(), 3);
    assert_eq!(messages.borrow_timeout(LONG).unwrap().tensor().unwrap().as_slice::<u64>().unwrap()[0], 7);
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
        let values = message.tensor().unwrap().as_slice::<u64>().unwrap();
        assert!(values.iter().all(|v| v == round), "a kept message was replaced: {values:?}");
    }
    drop((kept, messages, sender));
    assert!(b.delete_stream("s").unwrap());
    // Opening a stream makes a client look for its own unreachable messages.
    drop(a.stream("other").open().unwrap());
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
    // The message before the deletion may arrive or not.
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
    // Time enough to fall asleep, before each of the three.
    std::thread::sleep(5 * SHORT);
    fill(sender.loan().unwrap(), 3).send().unwrap();
    std::thread::sleep(5 * SHORT);
    let dataset = a.dataset().add("x", a.create(DType::U8, [3]).unwrap()).unwrap();
    sender.stream().send(dataset).unwrap();
    std::thread::sleep(5 * SHORT);
    drop(sender);
    assert_eq!(borrower.join().unwrap(), (3, 1, true));
}
