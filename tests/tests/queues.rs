//! Queues between processes, while consumers are killed.

use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend_tests::filled::{Random, filled, value};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::queued::{QUEUE, WAITING_MAX};
use tensorlend_tests::{Agent, Daemon, eventually, signal};

const PRODUCERS: u64 = 3;
const CONSUMERS: usize = 3;
/// Items of each producer.
const ITEMS: u64 = 2000;
/// Values of one producer begin at a multiple of it.
const FIRST: u64 = 1_000_000;

/// A consumer's process, and the file to which it writes.
struct Consumer {
    process: Agent,
    file: PathBuf,
}

impl Consumer {
    fn start(socket: &str, folder: &Path, number: usize) -> Self {
        let file = folder.join(number.to_string());
        let process = Agent::worker(["queue", "consume", socket, &file.display().to_string()]);
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
        .map(|n| Agent::worker(["queue", "produce", &socket, &(n * FIRST).to_string(), &ITEMS.to_string()]))
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
    // The last consumers were idle, or have finished their items.
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
