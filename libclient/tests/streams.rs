//! Streams, datasets and lists, through the public API, with an embedded daemon.

use std::os::fd::AsFd;
use std::time::Duration;
use tensorlend::{
    Client, DType, Draft, Error, Length, Policy, Start, Subscription, Tensor, TrySendError, Value, ValueKind,
};
use tensorlend_daemon::Embedded;

const LONG: Duration = Duration::from_mins(5);

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn draft(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[64]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

fn value(message: &tensorlend::Message) -> u64 {
    let slice = message.tensor().unwrap().as_slice::<u64>().unwrap();
    assert!(slice.iter().all(|v| *v == slice[0]), "torn");
    slice[0]
}

#[test]
fn every_subscriber_gets_every_message_in_order() {
    let broker = broker();
    let producer = client(&broker);
    let stream = producer.stream("s").capacity(4).open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let consumer = client(&broker);
            let mut messages = consumer.subscription("s").start_at(Start::Oldest).open().unwrap();
            scope.spawn(move || {
                let mut expected = 0;
                for message in &mut messages {
                    let message = message.unwrap();
                    assert_eq!((message.sequence(), message.lost(), value(&message)), (expected, 0, expected));
                    expected += 1;
                }
                assert_eq!(expected, 2000);
                drop(consumer);
            });
        }
        stream.wait_subscribers(3, LONG).unwrap();
        for number in 0..2000 {
            assert_eq!(stream.send(draft(&producer, number)).unwrap(), number);
        }
        drop(stream);
    });
    assert!(producer.memory().slot_bytes < 4 << 20, "{:?}", producer.memory());
}

#[test]
fn a_full_stream_blocks_fails_or_drops() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("block").capacity(2).policy(Policy::Block).open().unwrap();
    let mut messages = consumer.subscribe("block").unwrap();
    stream.send(draft(&producer, 0)).unwrap();
    stream.send(draft(&producer, 1)).unwrap();
    let late = stream.send_timeout(draft(&producer, 2), Duration::from_millis(20));
    assert!(late.unwrap_err().is_timeout());
    let Err(TrySendError::Full(again)) = stream.try_send(draft(&producer, 2)) else { panic!("not full") };
    assert_eq!(value(&messages.recv().unwrap()), 0);
    assert!(stream.try_send(again).is_ok());
    assert_eq!((value(&messages.recv().unwrap()), value(&messages.recv().unwrap())), (1, 2));
    assert!(messages.recv_timeout(Duration::from_millis(10)).unwrap_err().is_timeout());

    let stream = producer.stream("error").capacity(2).policy(Policy::Error).open().unwrap();
    let mut messages = consumer.subscribe("error").unwrap();
    stream.send(draft(&producer, 0)).unwrap();
    stream.send(draft(&producer, 1)).unwrap();
    assert!(matches!(stream.send(draft(&producer, 2)), Err(Error::StreamFull(_))));
    assert_eq!(value(&messages.recv().unwrap()), 0);
    stream.send(draft(&producer, 2)).unwrap();

    let stream = producer.stream("drop").capacity(4).policy(Policy::DropOldest).open().unwrap();
    let mut messages = consumer.subscribe("drop").unwrap();
    stream.send(draft(&producer, 0)).unwrap();
    let first = messages.recv().unwrap();
    for number in 1..100 {
        stream.send(draft(&producer, number)).unwrap();
    }
    let next = messages.recv().unwrap();
    assert_eq!((next.sequence(), next.lost(), value(&next)), (96, 95, 96));
    assert_eq!((value(&first), messages.lost()), (0, 95));
}

#[test]
fn messages_that_were_replaced_before_the_first_one_was_received_are_lost() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(8).policy(Policy::DropOldest).open().unwrap();
    stream.send(draft(&producer, 0)).unwrap();
    // The subscription begins with the newest message, which exists already.
    let mut messages = consumer.subscribe("s").unwrap();
    for number in 1..100 {
        stream.send(draft(&producer, number)).unwrap();
    }
    let first = messages.recv().unwrap();
    assert_eq!((first.sequence(), first.lost(), messages.lost()), (92, 92, 92));
    // Messages before the start of a subscription do not count as lost.
    let mut late = consumer.subscribe("s").unwrap();
    let last = late.recv().unwrap();
    assert_eq!((last.sequence(), last.lost(), late.lost()), (99, 0, 0));
}

#[test]
fn a_stream_has_one_producer_in_its_own_client_too() {
    let broker = broker();
    let (producer, other) = (client(&broker), client(&broker));
    let stream = producer.stream("s").open().unwrap();
    let mut messages = other.subscribe("s").unwrap();
    for second in [&producer, &other, &producer.clone()] {
        let error = second.stream("s").open().unwrap_err();
        assert_eq!(error.code(), "TL-0503");
        assert!(error.to_string().contains("produces stream \"s\" already: close the stream there"), "{error}");
    }
    stream.send(draft(&producer, 0)).unwrap();
    assert_eq!(value(&messages.recv_timeout(LONG).unwrap()), 0, "the first producer was not affected");
    drop(stream);
    let again = producer.stream("s").open().unwrap();
    again.send(draft(&producer, 1)).unwrap();
    assert_eq!(value(&messages.recv_timeout(LONG).unwrap()), 1);
    // A deleted stream has no producer, even if a handle of it is left.
    assert!(producer.delete_stream("s").unwrap());
    let anew = producer.stream("s").open().unwrap();
    assert!(matches!(again.send(draft(&producer, 2)), Err(Error::StreamEnded(_))));
    drop(again);
    assert!(producer.stream("s").open().is_err(), "the end of the old handle does not release the name");
    anew.send(draft(&producer, 3)).unwrap();
    // A stream that could not be opened leaves its name free.
    assert!(producer.stream("t").capacity(0).open().is_err());
    producer.stream("t").open().unwrap();
}

#[test]
fn a_blocked_producer_goes_on_when_the_slow_subscriber_moves_or_leaves() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").capacity(2).open().unwrap();
    let mut slow = consumer.subscribe("s").unwrap();
    let idle = consumer.subscribe("s").unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for number in 0..50 {
                stream.send_timeout(draft(&producer, number), LONG).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(30));
        drop(idle);
        for number in 0..50 {
            assert_eq!(value(&slow.recv_timeout(LONG).unwrap()), number);
        }
        sender.join().unwrap();
    });
}

#[test]
fn late_subscribers_choose_where_to_begin() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    assert!(matches!(consumer.subscribe("s"), Err(Error::NoSuch { kind: "stream", .. })));
    let stream = producer.stream("s").capacity(4).policy(Policy::DropOldest).open().unwrap();
    for number in 0..10 {
        stream.send(draft(&producer, number)).unwrap();
    }
    let begin =
        |start| consumer.subscription("s").start_at(start).open().unwrap().try_recv().unwrap().map(|m| m.sequence());
    assert_eq!(begin(Start::Oldest), Some(6));
    assert_eq!(begin(Start::Newest), Some(9));
    assert_eq!(begin(Start::Next), None);
}

#[test]
fn a_stream_outlives_its_producer_and_another_may_take_it_up() {
    let broker = broker();
    let consumer = client(&broker);
    let first = client(&broker);
    let stream = first.stream("s").capacity(4).open().unwrap();
    assert!(matches!(client(&broker).stream("s").open(), Err(Error::Refused { .. })));
    stream.send(draft(&first, 7)).unwrap();
    drop((stream, first));
    let mut messages = consumer.subscription("s").start_at(Start::Oldest).open().unwrap();
    assert_eq!(value(&messages.recv_timeout(LONG).unwrap()), 7);
    assert!(matches!(messages.recv_timeout(LONG), Err(Error::StreamEnded(_))));
    let second = client(&broker);
    let stream = second.stream("s").capacity(4).open().unwrap();
    stream.send(draft(&second, 8)).unwrap();
    assert_eq!(value(&messages.recv_timeout(LONG).unwrap()), 8);
    assert!(consumer.delete_stream("s").unwrap());
    assert!(matches!(messages.recv_timeout(LONG), Err(Error::StreamEnded(_))));
}

#[test]
fn messages_that_a_subscription_missed_while_the_stream_was_opened_again_count_as_lost() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let open = || producer.stream("s").capacity(4).policy(Policy::DropOldest).open().unwrap();
    let send = |stream: &tensorlend::Stream, count: u64| {
        for number in 0..count {
            stream.send(draft(&producer, number)).unwrap();
        }
    };
    let stream = open();
    let mut messages = consumer.subscribe("s").unwrap();
    send(&stream, 7);
    assert_eq!(messages.recv().unwrap().sequence(), 3);
    drop(stream);
    let stream = open();
    send(&stream, 6);
    let first = messages.recv().unwrap();
    // 3 of the former stream and 2 of the next one, after the 3 before the first message.
    assert_eq!((first.sequence(), first.lost(), messages.lost()), (2, 5, 8));
    // A subscription that has taken everything has lost nothing.
    while messages.try_recv().unwrap().is_some() {}
    drop(stream);
    send(&open(), 1);
    assert_eq!((messages.recv().unwrap().lost(), messages.lost()), (0, 8));
}

#[test]
fn a_subscription_can_be_polled() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("s").open().unwrap();
    let mut messages = consumer.subscription("s").pollable().open().unwrap();
    let poll = |messages: &tensorlend::Subscription, ms: i64| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let limit = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        poll(&mut [PollFd::from_borrowed_fd(messages.as_fd(), PollFlags::IN)], Some(&limit)).unwrap()
    };
    assert!(messages.try_recv().unwrap().is_none());
    assert_eq!(poll(&messages, 20), 0);
    for number in 0..100 {
        stream.send(draft(&producer, number)).unwrap();
        assert_eq!(poll(&messages, 20_000), 1, "message {number}");
        assert_eq!(value(&messages.try_recv().unwrap().unwrap()), number);
        assert!(messages.try_recv().unwrap().is_none());
        assert_eq!(poll(&messages, 0), 0);
    }
}

#[test]
fn a_message_may_be_a_dataset() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let stream = producer.stream("frames").open().unwrap();
    let mut messages = consumer.subscribe("frames").unwrap();
    for number in 0..200u64 {
        let frame = producer.dataset().add("image", draft(&producer, number)).unwrap();
        let frame = frame.add("depth", draft(&producer, number + 1)).unwrap().metadata(b"pose").unwrap();
        stream.send(frame.timestamp(number * 10)).unwrap();
        let message = messages.recv_timeout(LONG).unwrap();
        let frame = message.dataset().unwrap();
        assert_eq!((message.timestamp(), frame.metadata(), frame.len()), (number * 10, &b"pose"[..], 2));
        assert_eq!(frame.get("depth").unwrap().as_slice::<u64>().unwrap()[63], number + 1);
        assert!(matches!(message.tensor(), Err(Error::Kind { .. })));
    }
    assert!(producer.memory().slot_bytes < 4 << 20, "{:?}", producer.memory());
}

#[test]
fn datasets_are_seen_whole_or_not_at_all() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let put = |n: u64| {
        let set = producer.dataset().add("a", draft(&producer, n)).unwrap().add("b", draft(&producer, n)).unwrap();
        set.publish("set").unwrap();
    };
    put(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for _ in 0..3000 {
                let set = consumer.get_dataset("set").unwrap();
                let [a, b] = ["a", "b"].map(|name| set.get(name).unwrap().as_slice::<u64>().unwrap());
                assert_eq!(a, b);
                assert!(a.iter().all(|v| *v == a[0]));
            }
        });
        for n in 1..3000 {
            put(n);
        }
        reader.join().unwrap();
    });
    assert!(matches!(consumer.get("set"), Err(Error::Kind { found: ValueKind::Dataset, .. })));
    consumer.copy("set", "copy").unwrap();
    consumer.rename("copy", "other").unwrap();
    assert_eq!(
        producer.get_dataset("other").unwrap().iter().map(|(n, _)| n.to_owned()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    let twice = producer.dataset().add("a", draft(&producer, 1)).unwrap().add("a", draft(&producer, 1));
    assert!(matches!(twice, Err(Error::Argument(_))));
    producer.dataset().publish("empty").unwrap();
    assert!(consumer.get_dataset("empty").unwrap().is_empty());
}

#[test]
fn lists_collect_what_many_producers_append() {
    let broker = broker();
    let consumer = client(&broker);
    assert_eq!(consumer.length("results"), 0);
    assert!(matches!(consumer.get_all("results"), Err(Error::NoSuch { kind: "list", .. })));
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let broker = &broker;
            scope.spawn(move || {
                let client = client(broker);
                for item in 0..25 {
                    client.append("results", draft(&client, worker * 100 + item)).unwrap();
                }
            });
        }
        assert_eq!(consumer.wait_length("results", Length::AtLeast(100), Some(LONG)).unwrap(), 100);
    });
    // The producers have ended, but their items remain.
    let of = |value: &Value| value.as_tensor().unwrap().as_slice::<u64>().unwrap()[0];
    let mut all: Vec<u64> = consumer.get_all("results").unwrap().iter().map(of).collect();
    let first_of_worker_0: Vec<u64> = all.iter().copied().filter(|v| *v < 100).collect();
    assert!(first_of_worker_0.is_sorted(), "one producer's items keep their order");
    let middle: Vec<u64> = consumer.get_range("results", 10..20).unwrap().iter().map(of).collect();
    assert_eq!(middle, all[10..20]);
    all.sort_unstable();
    assert_eq!(all, (0..4).flat_map(|w| (0..25).map(move |i| w * 100 + i)).collect::<Vec<_>>());
    assert!(consumer.get_range("results", 200..).unwrap().is_empty());

    consumer.put("x", &[5u64; 4]).unwrap();
    consumer.append_names("results", &["x", "x"]).unwrap();
    consumer.put("x", &[6u64; 4]).unwrap();
    assert_eq!(consumer.length("results"), 102);
    assert_eq!(of(&consumer.get_range("results", 101..=101).unwrap()[0]), 5);
    assert!(matches!(consumer.append_names("results", &["nothing"]), Err(Error::NotFound(_))));

    let held = consumer.get_range("results", 0..1).unwrap();
    consumer.rename_list("results", "old results").unwrap();
    assert_eq!((consumer.length("results"), consumer.length("old results")), (0, 102));
    assert!(consumer.clear("old results").unwrap() && !consumer.clear("old results").unwrap());
    assert_eq!(consumer.length("old results"), 0);
    let _ = of(&held[0]);
    consumer.append("old results", draft(&consumer, 1)).unwrap();
    assert_eq!(consumer.get_all("old results").unwrap().len(), 1);
}

#[test]
fn a_closed_stream_can_be_opened_by_anybody_and_gives_its_memory_back() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for round in 0..20 {
        let (producer, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let stream = producer.stream("s").capacity(8).open().unwrap();
        assert!(other.stream("s").open().is_err(), "it is open");
        for number in 0..8 {
            let mut draft = producer.create(DType::U8, &[1 << 20]).unwrap();
            draft.bytes_mut()[0] = number;
            stream.send(draft).unwrap();
        }
        drop(stream);
        let mut messages = other.subscription("s").start_at(Start::Oldest).open().unwrap();
        for number in 0..8 {
            assert_eq!(messages.recv_timeout(LONG).unwrap().tensor().unwrap().bytes()[0], number);
        }
    }
    assert!(
        a.memory().segment_bytes < 40 << 20 && b.memory().segment_bytes < 40 << 20,
        "{:?} {:?}",
        a.memory(),
        b.memory()
    );
}

#[test]
fn a_name_keeps_its_last_versions() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let history = a.keep("x", 4).unwrap();
    for number in 0..50 {
        history.publish(draft(&a, number)).unwrap();
        assert_eq!(b.get("x").unwrap().as_slice::<u64>().unwrap()[0], number);
    }
    let first = |value: &Value| value.as_tensor().unwrap().as_slice::<u64>().unwrap()[0];
    let versions = b.versions("x").unwrap();
    assert_eq!(versions.iter().map(first).collect::<Vec<_>>(), [46, 47, 48, 49]);
    for number in 50..60 {
        history.publish(draft(&a, number)).unwrap();
    }
    assert_eq!(versions.iter().map(first).collect::<Vec<_>>(), [46, 47, 48, 49], "leased");
    assert!(matches!(b.versions("y"), Err(Error::NoSuch { .. })));
}

#[test]
fn borrowed_messages_are_those_that_were_sent() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(4).open().unwrap();
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..200u64 {
        match round % 5 {
            // Longer ones are in other segments, and metadata does not fit into a ring entry.
            3 => {
                let mut draft = a.create(DType::U64, &[100_000]).unwrap();
                draft.as_mut_slice::<u64>().unwrap().fill(round);
                draft.set_metadata(b"long").unwrap();
                stream.send(draft).unwrap();
            }
            4 => {
                let dataset = a.dataset().add("x", draft(&a, round)).unwrap();
                stream.send(dataset).unwrap();
            }
            _ => {
                let mut draft = a.create(DType::U64, &[2, 3]).unwrap();
                draft.as_mut_slice::<u64>().unwrap().fill(round);
                draft.set_timestamp(round + 1);
                stream.send(draft).unwrap();
            }
        }
        let message = messages.try_borrow().unwrap().expect("it was sent");
        assert_eq!((message.sequence(), message.lost()), (round, 0));
        match round % 5 {
            4 => assert!(message.tensor().is_err() && message.dataset().unwrap().len() == 1),
            kind => {
                let tensor = message.tensor().unwrap();
                assert!(tensor.as_slice::<u64>().unwrap().iter().all(|&n| n == round));
                assert_eq!(tensor.metadata(), if kind == 3 { &b"long"[..] } else { b"" });
                assert_eq!(message.timestamp(), if kind == 3 { 0 } else { round + 1 });
                assert!(message.dataset().is_err());
            }
        }
    }
    assert!(messages.try_borrow().unwrap().is_none());
    drop(stream);
    assert!(matches!(messages.try_borrow(), Err(Error::StreamEnded(_))));
}

/// Messages whose bytes are in their entries, in turns with others, so that each is next to each.
#[test]
fn small_messages_are_those_that_were_sent() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for policy in [Policy::Block, Policy::DropOldest] {
        let stream = a.stream("s").capacity(4).policy(policy).open().unwrap();
        let mut messages = b.subscribe("s").unwrap();
        let shapes: [&[usize]; 10] = [&[1], &[], &[32], &[31], &[33], &[0], &[2, 2], &[1, 3, 2, 5], &[4, 2, 4], &[64]];
        for round in 0..400u64 {
            let at = usize::try_from(round).unwrap();
            let (shape, dtype) = (shapes[at * 7 / 3 % 10], [DType::U8, DType::F32, DType::BOOL][at / 5 % 3]);
            let mut draft = a.create(dtype, shape).unwrap();
            let bytes: Vec<u8> = (0..draft.bytes_mut().len()).map(|at| (at as u64 ^ round) as u8).collect();
            draft.bytes_mut().copy_from_slice(&bytes);
            if round % 3 == 0 {
                draft.set_timestamp(round + 1);
            }
            if round % 7 == 0 {
                draft.set_metadata(b"m").unwrap();
            }
            stream.send(draft).unwrap();
            let check = |tensor: &Tensor| {
                assert_eq!((tensor.dtype(), tensor.shape(), tensor.bytes()), (dtype, shape, &bytes[..]), "{round}");
                assert_eq!(tensor.timestamp(), if round % 3 == 0 { round + 1 } else { 0 });
                assert_eq!(tensor.metadata(), if round % 7 == 0 { &b"m"[..] } else { b"" });
                assert_eq!(tensor.bytes().as_ptr().align_offset(64), 0, "aligned as all tensors are");
            };
            if round % 4 == 3 {
                check(messages.recv().unwrap().tensor().unwrap());
                continue;
            }
            let message = messages.try_borrow().unwrap().expect("it was sent");
            assert_eq!((message.sequence(), message.lost()), (round, 0));
            check(message.tensor().unwrap());
            assert!(message.validate());
        }
        assert!(messages.try_borrow().unwrap().is_none());
        a.delete_stream("s").unwrap();
    }
}

#[test]
fn a_small_message_stands_while_the_stream_goes_on() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let mut sender = a.stream("s").capacity(2).policy(Policy::DropOldest).open().unwrap();
    let mut messages = b.subscribe("s").unwrap();
    for round in 0..3 {
        let small = |value: u64| {
            let mut draft = a.create(DType::U64, &[4]).unwrap();
            draft.as_mut_slice::<u64>().unwrap().fill(value);
            draft
        };
        sender.send(small(round)).unwrap();
        let message = messages.try_borrow().unwrap().unwrap();
        assert_eq!(b.instruments().leased().unwrap(), 0, "its bytes were in the stream's entry");
        for other in 100..200 {
            sender.send(small(other)).unwrap();
        }
        assert_eq!(message.tensor().unwrap().as_slice::<u64>().unwrap(), [round; 4]);
        assert!(message.validate());
        drop(message);
        // The stream is opened again.
        drop(sender);
        sender = a.stream("s").capacity(2).policy(Policy::DropOldest).open().unwrap();
        while messages.try_borrow().unwrap().is_some() {}
    }
}

#[test]
fn a_borrowed_message_is_taken_when_it_is_let_go() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(1).open().unwrap();
    let mut messages = b.subscribe("s").unwrap();
    // The second message takes the fast path of borrowing.
    for round in 0..3 {
        stream.send(draft(&a, round)).unwrap();
        let message = messages.try_borrow().unwrap().unwrap();
        if round > 0 {
            assert!(
                matches!(stream.try_send(draft(&a, 9)), Err(tensorlend::TrySendError::Full(_))),
                "it is not taken yet"
            );
        }
        assert!(message.tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|&n| n == round));
        assert!(message.validate());
        drop(message);
        assert_eq!(b.instruments().leased().unwrap(), 0);
    }
    stream.send(draft(&a, 3)).unwrap();
    assert_eq!(messages.recv().unwrap().sequence(), 3, "both ways go on where the other stopped");
}

/// Returns a subscription that has borrowed the second of three messages of a stream that is then deleted.
fn borrowing(a: &Client, b: &Client, c: &Client) -> Subscription {
    let stream = a.stream("s").capacity(4).open().unwrap();
    let mut messages = b.subscription("s").start_at(Start::Oldest).open().unwrap();
    for round in 0..3 {
        stream.send(draft(a, round)).unwrap();
    }
    drop(messages.try_borrow().unwrap().unwrap());
    assert!(c.delete_stream("s").unwrap());
    messages
}

#[test]
fn a_borrowed_message_outlives_its_stream() {
    let broker = broker();
    let (a, b, c) = (client(&broker), client(&broker), client(&broker));
    let mut messages = borrowing(&a, &b, &c);
    let message = messages.try_borrow().unwrap().unwrap();
    for round in 10..50 {
        // Opening a stream makes a client look for its own unreachable messages.
        drop(a.stream("other").open().unwrap());
        for _ in 0..100 {
            draft(&a, round).publish("x").unwrap();
        }
    }
    assert!(message.tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|&n| n == 1), "it was reused");
    assert!(message.validate());
    drop(message);
    // The remaining messages of a deleted stream may or may not arrive.
    while matches!(messages.try_borrow(), Ok(Some(_))) {}
    assert!(matches!(messages.try_borrow(), Err(Error::StreamEnded(_))));
    for round in 0..50 {
        drop(a.stream("other").open().unwrap());
        for _ in 0..100 {
            draft(&a, round).publish("x").unwrap();
        }
    }
    let kept = a.memory().slot_bytes;
    assert!(kept < 512 * 100, "{kept} bytes are in use: the stream's have not come back");
}

#[test]
fn a_borrowed_message_outlives_its_producer() {
    let broker = broker();
    let (a, b, c) = (client(&broker), client(&broker), client(&broker));
    let mut messages = borrowing(&a, &b, &c);
    let message = messages.try_borrow().unwrap().unwrap();
    drop(a);
    eventually("the quiet of its memory", || c.stat().unwrap().frozen == 1);
    // Long enough to free memory without leases.
    std::thread::sleep(Duration::from_millis(300));
    assert!(c.stat().unwrap().segments > 0, "its memory was given back");
    assert!(message.tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|&n| n == 1), "it was reused");
    assert!(message.validate());
    drop(message);
    drop(messages);
    eventually("the memory's return", || c.stat().unwrap().bytes_in_use == 0);
}

fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !ready() {
        assert!(start.elapsed() < LONG, "{what} did not come to be");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_borrower_that_lags_learns_what_it_lost_and_its_message_stands() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let stream = a.stream("s").capacity(2).policy(Policy::DropOldest).open().unwrap();
    let mut messages = b.subscribe("s").unwrap();
    stream.send(draft(&a, 0)).unwrap();
    drop(messages.try_borrow().unwrap().unwrap());
    stream.send(draft(&a, 1)).unwrap();
    let message = messages.try_borrow().unwrap().unwrap();
    for round in 2..200 {
        stream.send(draft(&a, round)).unwrap();
    }
    assert!(
        message.tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|&n| n == 1),
        "leased, whatever the stream holds"
    );
    drop(message);
    let message = messages.try_borrow().unwrap().unwrap();
    assert_eq!((message.sequence(), message.lost()), (198, 196));
}
