//! An observer's view of other clients' actions.

use std::time::Duration;
use tensorlend::observe::{ClientState, Observation, Origin, SlotState};
use tensorlend::{Client, DType, Policy, Start};

fn connect(broker: &tensorlend_daemon::Embedded, label: &str) -> Client {
    Client::builder().socket(broker.socket()).label(label).connect().unwrap()
}

fn value<'o>(seen: &'o Observation, name: &str) -> Option<&'o tensorlend::observe::ValueSeen> {
    seen.values.iter().find(|value| value.origin == Origin::Name(name.to_owned()))
}

fn bytes(seen: &Observation, state: SlotState) -> u64 {
    seen.segments.iter().map(|segment| segment.bytes_of(state)).sum()
}

#[test]
fn names_slots_and_leases() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let (producer, consumer) = (connect(&broker, "producer"), connect(&broker, "consumer"));
    let long = "é\"<script>".repeat(20);
    producer.put("numbers", &[0f32; 1024]).unwrap();
    producer.put(&long, &[0u8; 64]).unwrap();
    let old = consumer.get("numbers").unwrap();
    let twice = consumer.get("numbers").unwrap();
    let watcher = connect(&broker, "watcher");
    let mut observer = watcher.observer();
    let seen = observer.observe().unwrap();
    assert!(!seen.truncated && !seen.incomplete && seen.damaged == 0, "{seen:?}");
    assert_eq!(seen.clients.len(), 3);
    let client = |label: &str| seen.clients.iter().find(|client| client.label == label).unwrap();
    assert_eq!((client("producer").values, client("producer").value_bytes), (2, 4096 + 64));
    assert_eq!((client("consumer").leases, client("consumer").leased_bytes), (2, 4096));
    assert!(client("watcher").is_observer && client("watcher").command.is_some());
    let numbers = value(&seen, "numbers").unwrap();
    assert_eq!((numbers.dtype, numbers.shape.as_deref(), numbers.leases), (Some(DType::F32), Some(&[1024][..]), 2));
    assert_eq!(value(&seen, &long).unwrap().bytes, 64);
    assert_eq!((seen.leases.len(), seen.leases[0].count, seen.leases[0].is_older), (1, 2, true));
    assert_eq!((bytes(&seen, SlotState::Leased), bytes(&seen, SlotState::Live)), (4096, 64));
    assert_eq!(seen.bytes_lent, seen.segments.iter().map(|segment| segment.bytes).sum::<u64>());

    // The value is replaced while it is leased: no name refers to it.
    producer.put("numbers", &[0f32; 256]).unwrap();
    let asked_before = seen.asked;
    let seen = observer.observe().unwrap();
    assert!(asked_before > 0 && seen.asked == 0, "sheets are asked for once");
    assert_eq!((bytes(&seen, SlotState::Retired), bytes(&seen, SlotState::Live)), (4096, 1024 + 64));
    assert_eq!((seen.leases[0].value, seen.leases[0].bytes), (None, 4096));
    assert!(seen.leases[0].age > Duration::ZERO);

    drop((old, twice));
    drop(producer);
    let seen = loop {
        let seen = observer.observe().unwrap();
        if seen.clients.iter().any(|client| client.state == ClientState::Ended) {
            break seen;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((bytes(&seen, SlotState::Retired), seen.leases.len()), (0, 0));
    assert!(value(&seen, "numbers").is_some(), "what it published lives on");
}

#[test]
fn datasets_lists_and_many_dimensions() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let client = connect(&broker, "client");
    let draft = |bytes| client.create(DType::U8, &[bytes]).unwrap();
    client.dataset().add("a", draft(4096)).unwrap().add("b", draft(8192)).unwrap().publish("frame").unwrap();
    for _ in 0..3 {
        client.append("items", draft(128)).unwrap();
    }
    client.create(DType::U8, &[1, 2, 1, 2, 1, 2]).unwrap().publish("deep").unwrap();
    let lease = client.get_dataset("frame").unwrap();
    let seen = client.observe().unwrap();
    let frame = value(&seen, "frame").unwrap();
    assert!(frame.is_dataset && frame.bytes >= 4096 + 8192 && frame.leases == 1);
    let slots = seen.segments.iter().flat_map(|segment| &segment.slots);
    assert_eq!(slots.filter(|slot| slot.state == SlotState::Leased).count(), 3, "the index and its members");
    let items = seen.values.iter().filter_map(|v| match &v.origin {
        Origin::Item { list, number } => Some((list.as_str(), *number)),
        _ => None,
    });
    let mut items: Vec<_> = items.collect();
    items.sort_unstable();
    assert_eq!(items, [("items", 0), ("items", 1), ("items", 2)]);
    let deep = value(&seen, "deep").unwrap();
    assert_eq!((deep.dtype, &deep.shape), (Some(DType::U8), &None));
    drop(lease);
}

#[test]
fn streams_and_who_lags() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let (producer, watcher) = (connect(&broker, "producer"), connect(&broker, "watcher"));
    let stream = producer.stream("camera \u{1F4F7}").capacity(4).policy(Policy::Block).open().unwrap();
    let mut observer = watcher.observer();
    let send = || stream.send(producer.create(DType::U8, &[64]).unwrap());
    let mut frames = watcher.subscription("camera \u{1F4F7}").start_at(Start::Oldest).open().unwrap();
    send().unwrap();
    send().unwrap();
    let first = frames.recv().unwrap();
    let seen = observer.observe().unwrap();
    let camera = &seen.streams[0];
    assert_eq!((camera.sent, camera.held, camera.capacity, camera.is_closed), (Some(2), 2, 4, false));
    let lags: Vec<_> = camera.subscribers.iter().map(|s| (s.lag, s.lost)).collect();
    assert_eq!(lags, [(Some(1), 0)]);
    let messages = seen.values.iter().filter(|v| matches!(v.origin, Origin::Message { .. })).count();
    assert_eq!((messages, bytes(&seen, SlotState::Leased) > 0), (2, true));
    drop((first, frames));

    // An observer is not a subscriber: a blocking stream does not wait for it.
    for _ in 0..64 {
        send().unwrap();
    }
    let seen = observer.observe().unwrap();
    assert_eq!((seen.streams[0].sent, seen.streams[0].subscribers.len()), (Some(66), 0));
    drop(stream);
    assert!(observer.observe().unwrap().streams[0].is_closed);
}

/// `cargo test --release -p tensorlend --test observe -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_one_look() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let clients: Vec<Client> = (0..100).map(|n| connect(&broker, &format!("client {n}"))).collect();
    let mut leases = Vec::new();
    for (at, client) in clients.iter().enumerate() {
        for n in 0..100 {
            client.put(&format!("client/{at}/tensor/{n}"), &[0u8; 64]).unwrap();
        }
    }
    for client in &clients {
        for n in 0..10 {
            leases.push(client.get(&format!("client/{n}/tensor/{n}")).unwrap());
        }
    }
    let mut observer = clients[0].observer();
    // CPU time of this thread only: other processes may use the machine.
    let cpu = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let mut look = || {
        let begun = cpu();
        let seen = observer.observe().unwrap();
        (cpu().saturating_sub(begun), seen)
    };
    let (first, seen) = look();
    let mut took: Vec<Duration> = (0..50).map(|_| look().0).collect();
    took.sort_unstable();
    println!(
        "{} names, {} clients, {} leases: first {first:?} ({} questions), then {:?} (median of 50), worst {:?}",
        seen.values.len(),
        seen.clients.len(),
        leases.len(),
        seen.asked,
        took[25],
        took[49],
    );
}
