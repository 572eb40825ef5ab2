//! Queues between processes, while consumers are killed.

use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend_tests::filled::{Random, filled, put, value};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::queued::{QUEUE, TOGETHER, WAITING_MAX};
use tensorlend_tests::{Agent, Daemon, eventually, settled, signal};

const PRODUCERS: u64 = 3;
const CONSUMERS: usize = 3;
/// Items of each producer.
const ITEMS: u64 = 2000;
/// Values of one producer begin at a multiple of it.
const FIRST: u64 = 1_000_000;
/// The value that ends a consumer.
const END: u64 = 999;

/// A consumer's process, and the file to which it writes.
struct Consumer {
    process: Agent,
    file: PathBuf,
}

impl Consumer {
    fn start(socket: &str, folder: &Path, number: usize) -> Self {
        let file = folder.join(number.to_string());
        // Consumers confirm their items in both ways.
        let how = ["consume", "items"][number % 2];
        let process = Agent::worker(["queue", how, socket, &file.display().to_string()]);
        Self { process, file }
    }

    /// Returns the values that the consumer claimed, and those that it knows to be done.
    fn said(&self) -> (Vec<u64>, Vec<u64>) {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let of = |what: &str| text.lines().filter_map(|line| line.strip_prefix(what)?.parse().ok()).collect();
        (of("claimed "), of("done "))
    }
}

#[test]
fn every_item_is_done_once_while_consumers_are_killed() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let queue = client.queue(QUEUE).unwrap();
    let socket = daemon.socket().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut producers: Vec<Agent> = (0..PRODUCERS)
        .map(|n| {
            let how = ["produce", "produce-many"][n as usize % 2];
            Agent::worker(["queue", how, &socket, &(n * FIRST).to_string(), &ITEMS.to_string()])
        })
        .collect();
    let mut consumers: Vec<Consumer> = (0..CONSUMERS).map(|n| Consumer::start(&socket, folder.path(), n)).collect();
    let mut killed: Vec<Consumer> = Vec::new();
    let mut random = Random(7);
    let all = || queue.waiting().unwrap() + queue.claimed().unwrap();
    // Several consumers are killed early, so that the test does not depend on the speed of the others.
    let mut put = 0;
    while put < PRODUCERS || all() > 0 || killed.len() < 10 {
        std::thread::sleep(Duration::from_millis(5 + random.below(60)));
        let at = random.below(CONSUMERS as u64) as usize;
        let next = Consumer::start(&socket, folder.path(), CONSUMERS + killed.len());
        let mut victim = std::mem::replace(&mut consumers[at], next);
        signal(victim.process.pid(), Signal::KILL);
        assert!(!victim.process.wait().success());
        killed.push(victim);
        put += producers.extract_if(.., |producer| producer.ended().is_some()).count() as u64;
        let waiting = queue.waiting().unwrap();
        let given_back = killed.len() as u64;
        assert!(waiting <= WAITING_MAX + given_back, "{waiting} items wait, {given_back} of them perhaps twice");
    }
    // The last consumers were idle, or have finished their items, and say so.
    eventually("the end of all work", || {
        consumers.iter().map(Consumer::said).all(|(claims, dones)| claims.len() == dones.len())
    });
    let alive: Vec<(Vec<u64>, Vec<u64>)> = consumers
        .into_iter()
        .map(|mut consumer| {
            signal(consumer.process.pid(), Signal::KILL);
            consumer.process.wait();
            consumer.said()
        })
        .collect();
    let dead: Vec<(Vec<u64>, Vec<u64>)> = killed.iter().map(Consumer::said).collect();

    let mut claimed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut done: BTreeMap<u64, u64> = BTreeMap::new();
    for (claims, dones) in alive.iter().chain(&dead) {
        for &value in claims {
            *claimed.entry(value).or_default() += 1;
        }
        for &value in dones {
            *done.entry(value).or_default() += 1;
        }
    }
    let values = (0..PRODUCERS).flat_map(|n| n * FIRST..n * FIRST + ITEMS);
    let mut redelivered = 0;
    for value in values {
        let (claims, dones) = (claimed.get(&value).copied(), done.get(&value).copied().unwrap_or(0));
        assert!(claims.is_some(), "item {value} was lost");
        assert!(dones <= 1, "item {value} was done {dones} times");
        // A consumer that was killed may have finished its last item, but not have written so.
        let by_victim = dead.iter().any(|(claims, _)| claims.last() == Some(&value));
        if !by_victim {
            assert_eq!((claims, dones), (Some(1), 1), "item {value}: claims and ends");
        }
        redelivered += u64::from(claims > Some(1));
    }
    println!("{} consumers killed, {redelivered} items delivered again", killed.len());
    assert_eq!(claimed.len() as u64, PRODUCERS * ITEMS, "nothing else was in the queue");
    assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (0, 0));
}

#[test]
fn items_that_a_killed_producer_put_together_are_all_there_or_none() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let queue = client.queue(QUEUE).unwrap();
    let socket = daemon.socket().display().to_string();
    let mut random = Random(11);
    let mut values = BTreeSet::new();
    for n in 1..=8 {
        let mut producer = Agent::worker(["queue", "produce-many", &socket, &(n * FIRST).to_string(), "800000"]);
        let before = values.len() as u64;
        let mut kill_after = 1 + random.below(200);
        let mut items = queue.items().prefetch(16);
        while let Some(item) = items.next(Duration::from_millis(if kill_after > 0 { 10_000 } else { 0 })).unwrap() {
            assert!(values.insert(value(item.value().tensor().unwrap()).unwrap()));
            kill_after = kill_after.saturating_sub(1);
            if kill_after == 0 && producer.ended().is_none() {
                signal(producer.pid(), Signal::KILL);
                assert!(!producer.wait().success());
                // The daemon may still have a request of the killed process.
                eventually("the producer's end", || client.stat().unwrap().clients == 1);
            }
        }
        let from_this_one = values.len() as u64 - before;
        assert!(from_this_one > 0 && from_this_one.is_multiple_of(TOGETHER), "{from_this_one} items");
        assert!((n * FIRST..n * FIRST + from_this_one).all(|value| values.contains(&value)));
    }
}

#[test]
fn items_that_are_put_together_wait_for_room_for_all() {
    let daemon = Daemon::start("");
    let (client, other) = (daemon.client(), daemon.client());
    let queue = client.queue(QUEUE).unwrap().max_waiting(3);
    let drafts = |values: std::ops::Range<u64>| values.map(|value| filled(&client, value).unwrap()).collect::<Vec<_>>();
    assert_eq!(queue.put_many(drafts(1..4), None).unwrap(), 0..3);
    assert!(queue.put_many(drafts(4..6), Duration::ZERO).unwrap_err().is_timeout());
    let none: [tensorlend::Draft; 0] = [];
    assert_eq!((queue.put_many(none, None).unwrap(), queue.waiting().unwrap()), (0..0, 3));
    let many = queue.put_many(drafts(4..8), None).unwrap_err().to_string();
    assert!(many.contains("1 to 3 items") && many.contains("not 4"), "{many}");
    assert!(queue.put_many([filled(&other, 1).unwrap()], None).is_err(), "a draft of another client");
    let theirs = other.queue(QUEUE).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| queue.put_many(drafts(4..6), None).unwrap());
        let first = theirs.get(None).unwrap();
        let second = theirs.next(first, None).unwrap();
        assert_eq!(waiting.join().unwrap(), 3..5);
        assert!(second.done().unwrap());
    });
    let mut items = theirs.items();
    for expected in 3..6 {
        assert_eq!(value(items.next(Duration::ZERO).unwrap().unwrap().value().tensor().unwrap()), Ok(expected));
    }
    assert!(items.done().unwrap());
    assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (0, 0));
}

#[test]
fn a_killed_consumers_item_goes_to_the_next_one_first() {
    let daemon = Daemon::start("");
    let client = daemon.client();
    let queue = client.queue(QUEUE).unwrap();
    let mut agent = Agent::start();
    agent.ok(&format!("connect {}", daemon.socket().display()));
    for number in 1..4 {
        queue.put(filled(&client, number).unwrap(), None).unwrap();
    }
    assert_eq!(agent.ok(&format!("claim {QUEUE}")), "0");
    let second = queue.get(None).unwrap();
    assert_eq!((second.number(), queue.waiting().unwrap(), queue.claimed().unwrap()), (1, 1, 2));
    signal(agent.pid(), Signal::KILL);
    agent.wait();
    eventually("the item's return", || queue.waiting().unwrap() == 2);
    let first = queue.get(Duration::from_secs(10)).unwrap();
    assert_eq!((first.number(), value(first.value().tensor().unwrap())), (0, Ok(1)));
    assert!(first.done().unwrap() && second.done().unwrap());
}

#[test]
fn a_consumer_keeps_its_claim_when_the_daemon_is_replaced() {
    for mode in ["mode = \"user\"\n", "mode = \"system\"\n"] {
        let mut daemon = Service::start(mode);
        let (producer, consumer, other) = (daemon.client(), daemon.client(), daemon.client());
        let queue = producer.queue(QUEUE).unwrap();
        for number in 1..4 {
            queue.put(filled(&producer, number).unwrap(), None).unwrap();
        }
        let claimed = consumer.queue(QUEUE).unwrap().get(None).unwrap();
        daemon.restart();
        let next = other.queue(QUEUE).unwrap().get(Duration::from_secs(30)).unwrap();
        assert_eq!((claimed.number(), next.number()), (0, 1));
        assert_eq!(value(claimed.value().tensor().unwrap()), Ok(1));
        assert!(claimed.done().unwrap() && next.done().unwrap());
        assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (1, 0));
    }
}

#[test]
fn the_end_of_a_claim_that_no_daemon_learned_of_counts_at_the_next_one() {
    for mode in ["mode = \"user\"\n", "mode = \"system\"\n"] {
        let mut daemon = Service::start(mode);
        let (producer, consumer) = (daemon.client(), daemon.client());
        let queue = producer.queue(QUEUE).unwrap();
        for number in 1..4 {
            queue.put(filled(&producer, number).unwrap(), None).unwrap();
        }
        let theirs = consumer.queue(QUEUE).unwrap();
        let (first, second) = (theirs.get(None).unwrap(), theirs.get(None).unwrap());
        // A daemon that stops in order removes its socket, so that no request waits for the next one.
        daemon.end(Signal::TERM);
        assert!(first.done().unwrap_err().is_disconnected());
        assert!(second.give_back().unwrap_err().is_disconnected());
        daemon.start_again();
        // The consumer itself sends no further request.
        eventually("the end of both claims", || (queue.waiting().unwrap(), queue.claimed().unwrap()) == (2, 0));
        assert_eq!(queue.get(None).unwrap().number(), 1);
    }
}

#[test]
fn the_next_waiting_consumer_gets_the_item_of_one_that_was_killed() {
    let daemon = Daemon::start("");
    let (producer, other) = (daemon.client(), daemon.client());
    let queue = producer.queue(QUEUE).unwrap();
    let socket = daemon.socket().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    // Consumers that wait before the last one: each is killed while it waits, or with an item.
    let mut victims: Vec<Consumer> = (0..4).map(|n| Consumer::start(&socket, folder.path(), n)).collect();
    eventually("the consumers", || producer.stat().unwrap().clients == 6);
    let theirs = other.queue(QUEUE).unwrap();
    let last = std::thread::spawn(move || {
        let (mut values, mut items) = (Vec::new(), theirs.items());
        while let Some(item) = items.next(None).unwrap() {
            match value(item.value().tensor().unwrap()).unwrap() {
                END => break,
                value => values.push(value),
            }
        }
        assert!(items.done().unwrap());
        values
    });
    let mut done = BTreeSet::new();
    for number in 1..=40 {
        queue.put(filled(&producer, number).unwrap(), None).unwrap();
        if let Some(mut victim) = victims.pop_if(|_| number % 10 == 0) {
            signal(victim.process.pid(), Signal::KILL);
            assert!(!victim.process.wait().success());
            let (claims, dones) = victim.said();
            assert!(claims.len() - dones.len() <= 1, "it had one item at a time");
            done.extend(claims);
        }
    }
    // Only the last consumer is left: it gets all items that the others have not confirmed.
    eventually("the end of all items", || (queue.waiting().unwrap(), queue.claimed().unwrap()) == (0, 0));
    queue.put(filled(&producer, END).unwrap(), None).unwrap();
    let values = last.join().unwrap();
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len(), "no item twice: {values:?}");
    done.extend(values);
    assert_eq!(done, (1..=40).collect());
    assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (0, 0));
}

#[test]
fn threads_of_one_client_wait_and_work_at_the_same_time() {
    let daemon = Daemon::start("");
    let (client, other) = (daemon.client(), daemon.client());
    let (jobs, results) = (client.queue(QUEUE).unwrap(), client.queue("results").unwrap().max_waiting(1));
    std::thread::scope(|scope| {
        // Two threads wait for items, and one for room, while their client publishes.
        let consumers: Vec<_> = (0..2).map(|_| scope.spawn(|| jobs.get(None).unwrap().done().unwrap())).collect();
        results.put(filled(&client, 1).unwrap(), None).unwrap();
        let producer = scope.spawn(|| results.put(filled(&client, 2).unwrap(), None).unwrap());
        for number in 0..100 {
            put(&client, &format!("name/{number}"), number + 1).unwrap();
            assert_eq!((jobs.waiting().unwrap(), results.waiting().unwrap()), (0, 1));
        }
        let theirs = other.queue("results").unwrap();
        let first = theirs.get(None).unwrap();
        let second = theirs.next(first, None).unwrap();
        assert_eq!((second.number(), producer.join().unwrap()), (1, 1));
        for number in 1..=2 {
            other.queue(QUEUE).unwrap().put(filled(&other, number).unwrap(), None).unwrap();
        }
        assert!(consumers.into_iter().all(|consumer| consumer.join().unwrap()));
    });
    // A wait whose time is over leaves nothing behind.
    assert!(jobs.get(Duration::from_millis(1)).unwrap_err().is_timeout());
    jobs.put(filled(&client, 3).unwrap(), None).unwrap();
    assert_eq!((jobs.waiting().unwrap(), jobs.claimed().unwrap()), (1, 0));
}

#[test]
fn a_wait_that_another_thread_has_ended_is_in_the_daemon_again() {
    let daemon = Daemon::start("");
    let (consumer, other) = (daemon.client(), daemon.client());
    let (jobs, others) = (consumer.queue(QUEUE).unwrap(), other.queue("others").unwrap());
    let theirs = jobs.clone();
    let waiting = std::thread::spawn(move || theirs.get(None).unwrap().number());
    // Each of these requests may end the wait.
    for _ in 0..20 {
        assert_eq!(jobs.waiting().unwrap(), 0);
        std::thread::sleep(Duration::from_millis(2));
    }
    let requests = || other.stat().unwrap().requests;
    eventually("a wait without requests", || {
        let before = requests();
        for number in 0..10 {
            others.put(filled(&other, number).unwrap(), None).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        requests() == before + 11
    });
    other.queue(QUEUE).unwrap().put(filled(&other, 1).unwrap(), None).unwrap();
    assert_eq!(waiting.join().unwrap(), 0);
}

#[test]
fn items_that_a_consumer_has_claimed_ahead_go_back_when_it_ends() {
    let daemon = Daemon::start("");
    let (producer, consumer) = (daemon.client(), daemon.client());
    let queue = producer.queue(QUEUE).unwrap();
    for number in 1..=10 {
        queue.put(filled(&producer, number).unwrap(), None).unwrap();
    }
    let sizes = || (queue.waiting().unwrap(), queue.claimed().unwrap());
    let theirs = consumer.queue(QUEUE).unwrap();
    let mut items = theirs.items().prefetch(4);
    for number in 0..5 {
        assert_eq!(items.next(None).unwrap().unwrap().number(), number);
    }
    // The fifth item came with the confirmations of the first four.
    assert_eq!(sizes(), (2, 4));
    assert_eq!(items.next(None).unwrap().unwrap().number(), 5);
    assert_eq!(sizes(), (2, 4));
    drop(items);
    // Number 4 was confirmed, 5 was not.
    assert_eq!(sizes(), (5, 0));
    let mut rest = theirs.items().prefetch(64);
    for number in 5..10 {
        assert_eq!(rest.next(Duration::ZERO).unwrap().unwrap().number(), number);
    }
    assert!(rest.next(Duration::ZERO).unwrap().is_none());
    assert_eq!(sizes(), (0, 0));
}

#[test]
fn a_consumer_that_waits_goes_on_at_the_next_daemon() {
    for mode in ["mode = \"user\"\n", "mode = \"system\"\n"] {
        let mut daemon = Service::start(mode);
        let (producer, consumer) = (daemon.client(), daemon.client());
        let queue = producer.queue(QUEUE).unwrap();
        queue.put(filled(&producer, 1).unwrap(), None).unwrap();
        let theirs = consumer.queue(QUEUE).unwrap();
        let first = theirs.get(None).unwrap();
        // It confirms the first item, and waits for the second one.
        let waiting = std::thread::spawn(move || theirs.next(first, None).unwrap().number());
        eventually("the confirmation", || queue.claimed().unwrap() == 0);
        daemon.restart();
        queue.put(filled(&producer, 2).unwrap(), None).unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    }
}

#[test]
fn a_producer_that_waits_goes_on_at_the_next_daemon() {
    for (mode, end) in [("user", Signal::KILL), ("system", Signal::KILL), ("user", Signal::TERM)] {
        let mut daemon = Service::start(&format!("mode = \"{mode}\"\n"));
        let (producer, consumer) = (daemon.client(), daemon.client());
        let queue = consumer.queue(QUEUE).unwrap();
        queue.put(filled(&consumer, 1).unwrap(), None).unwrap();
        let theirs = producer.queue(QUEUE).unwrap().max_waiting(1);
        let second = filled(&producer, 2).unwrap();
        let waiting = std::thread::spawn(move || theirs.put(second, None).unwrap());
        // Each look is a request, too.
        let mut looks = 0;
        settled("the producer's wait", || {
            looks += 1;
            consumer.stat().unwrap().requests - looks
        });
        // A service manager leaves its socket in place while no daemon runs.
        let other = daemon.socket().with_extension("other");
        drop(UnixListener::bind(&other).unwrap());
        std::fs::rename(&other, daemon.socket()).unwrap();
        daemon.end(end);
        daemon.start_again();
        assert_eq!((queue.waiting().unwrap(), waiting.is_finished()), (1, false));
        let first = queue.get(None).unwrap();
        assert_eq!((first.number(), waiting.join().unwrap()), (0, 1));
        let second = queue.next(first, None).unwrap();
        assert_eq!(value(second.value().tensor().unwrap()), Ok(2));
        assert!(second.done().unwrap());
        assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (0, 0));
    }
}
