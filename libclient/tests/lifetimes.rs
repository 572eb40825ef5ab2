//! Names with lifetimes, through the public API, with an embedded daemon.

use std::time::Duration;
use tensorlend::{Client, DType, Error, Lifetime, Version};
use tensorlend_daemon::Embedded;

const TIMEOUT: Option<Duration> = Some(Duration::from_mins(5));

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).label("test").connect().expect("a client connects")
}

fn short() -> Lifetime {
    Lifetime::ttl(Duration::from_millis(20))
}

fn long() -> Lifetime {
    Lifetime::ttl(Duration::from_hours(1))
}

/// Waits until a name has ended.
fn gone(client: &Client, name: &str) {
    while client.exists(name).unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_name_ends_after_its_time_and_its_memory_comes_back() {
    let broker = broker();
    let (producer, reader) = (client(&broker), client(&broker));
    producer.put_for("goal", &[7u8; 4096], short()).unwrap();
    let lease = reader.get("goal").ok();
    gone(&reader, "goal");
    assert!(matches!(reader.get("goal"), Err(Error::NotFound(_))));
    if let Some(lease) = lease {
        assert_eq!(lease.as_slice::<u8>().unwrap(), [7; 4096], "who read it goes on reading");
    }
    assert_eq!(reader.stat().unwrap().names_expired, 1);
    // New values of this size reuse the memory of ended ones.
    for _ in 0..100 {
        producer.put_for("goal", &vec![7u8; 1 << 20], short()).unwrap();
        gone(&reader, "goal");
    }
    assert!(producer.memory().segment_bytes <= 64 << 20, "{:?}", producer.memory());
}

#[test]
fn what_is_put_over_it_lives_on() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for writer in [&a, &b] {
        for name in ["x", "y"] {
            a.put_for(name, &[1u8], long()).unwrap();
            assert!(b.info(name).unwrap().lifetime.ttl.unwrap() > Duration::from_mins(30));
        }
        writer.put("x", &[2u8]).unwrap();
        assert_eq!(b.info("x").unwrap().lifetime, Lifetime::default());
        // A short lifetime replaces a long one: the new value's lifetime counts.
        writer.put_for("y", &[3u8], short()).unwrap();
        gone(&b, "y");
        assert_eq!(a.get("x").unwrap().as_slice::<u8>().unwrap(), [2]);
        assert!(a.delete("x").unwrap());
    }
    // A put without a lifetime makes it an ordinary name, which is overwritten without the daemon.
    a.put_for("z", &[1u8], long()).unwrap();
    a.put("z", &[2u8]).unwrap();
    let requests = b.stat().unwrap().requests;
    for i in 0..10u8 {
        a.put("z", &[i]).unwrap();
    }
    assert_eq!(b.stat().unwrap().requests, requests + 1, "only this question was asked");
}

#[test]
fn a_new_life_counts_from_its_own_beginning() {
    let broker = broker();
    let a = client(&broker);
    let first = a.put_for("beat", &[0u8], Lifetime::ttl(Duration::from_mins(10))).unwrap();
    let second = a.put_for("beat", &[1u8], long()).unwrap();
    assert_ne!(first, second);
    assert!(a.info("beat").unwrap().lifetime.ttl.unwrap() > Duration::from_mins(30));
    assert!(a.delete("beat").unwrap());
    assert!(!a.exists("beat").unwrap());
    assert_eq!(a.stat().unwrap().names_expired, 0);
}

#[test]
fn ephemeral_names_go_with_their_producer_and_others_stay() {
    let broker = broker();
    let (producer, reader) = (client(&broker), client(&broker));
    let frame = producer.dataset().add("depth", producer.create(DType::F32, &[4, 4]).unwrap()).unwrap();
    frame.publish_for("frame", Lifetime::EPHEMERAL).unwrap();
    producer.put_for("pose", &[1u8], Lifetime::EPHEMERAL).unwrap();
    producer.put_for("taken", &[1u8], Lifetime::EPHEMERAL).unwrap();
    producer.put_for("mine", &[1u8], Lifetime::EPHEMERAL).unwrap();
    producer.put("kept", &[1u8]).unwrap();
    producer.put("mine", &[2u8]).unwrap();
    reader.put("taken", &[2u8]).unwrap();
    assert!(reader.info("pose").unwrap().lifetime.ephemeral);
    assert!(!reader.info("taken").unwrap().lifetime.ephemeral);
    let lease = reader.get("pose").unwrap();
    drop(producer);
    gone(&reader, "pose");
    gone(&reader, "frame");
    assert_eq!(lease.as_slice::<u8>().unwrap(), [1]);
    for (name, value) in [("kept", 1u8), ("taken", 2), ("mine", 2)] {
        assert_eq!(reader.get(name).unwrap().as_slice::<u8>().unwrap(), [value], "{name}");
    }
    assert_eq!(reader.stat().unwrap().names_ephemeral_gone, 2);
}

#[test]
fn a_rename_takes_the_rest_of_the_life_along() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    a.put_for("from", &[1u8], Lifetime { ephemeral: true, ..long() }).unwrap();
    a.rename("from", "to").unwrap();
    let left = b.info("to").unwrap().lifetime;
    assert!(left.ephemeral && left.ttl.unwrap() > Duration::from_mins(30), "{left:?}");
    assert!(!b.exists("from").unwrap());
    drop(a);
    gone(&b, "to");
}

#[test]
fn waiters_learn_of_names_that_end_by_themselves() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let waiter = std::thread::spawn(move || b.wait_newer("beat", Version::NONE, TIMEOUT).map(|lease| lease.bytes()[0]));
    a.put_for("beat", &[9u8], long()).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), 9);
}

#[test]
fn no_time_at_all_is_refused() {
    let broker = broker();
    let a = client(&broker);
    let refused = a.put_for("x", &[1u8], Lifetime::ttl(Duration::ZERO));
    assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    assert_eq!(a.memory().slot_bytes, 0, "the draft's memory is back");
    a.put_for("x", &[1u8], Lifetime::ttl(Duration::MAX)).unwrap();
    assert!(a.exists("x").unwrap());
}
