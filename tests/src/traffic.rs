//! Everyday use by one client in a thread of its own: names, a list, a queue and two streams, each value checked. The test replaces
//! the daemon in the meantime.

use crate::filled::{filled, put, value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tensorlend::{Client, Error, Queue, QueueItem, Start, Stream, Subscription};

/// The list to which all clients append.
pub const LIST: &str = "traffic";
/// The queue that all clients fill and empty.
pub const QUEUE: &str = "jobs";
/// The list to which clients append each item that they take.
pub const TAKEN: &str = "taken";
/// A client overwrites this number of names, one every `NAME_ROUNDS` rounds.
pub const NAMES: u64 = 100;
const NAME_ROUNDS: u64 = 4;
/// Rounds between two items of the list, between two of the queue, and between two takes from the queue. A client holds
/// what it took until its next take.
pub const ITEM_ROUNDS: u64 = 16;
/// Pause after each round, so that the test's machine has time for the daemons.
const PAUSE: Duration = Duration::from_millis(1);
/// Number of bits of an item that number the client's items. The bits above are the client's.
pub const ITEM_BITS: u32 = 32;

/// The number of rounds, and the client's stream; or the first fault.
type Used = Result<(u64, Option<Stream>), String>;

/// The use in progress.
pub struct Traffic {
    over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<Used>>,
    /// The client's stream after the end, so that the peer does not see it closed.
    stream: Option<Stream>,
}

/// A client of the test, and the client whose names and stream it reads.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Number of this client.
    pub me: u64,
    /// Number of the other client.
    pub peer: u64,
}

pub fn latest(client: u64) -> String {
    format!("of-{client}/latest")
}

pub fn name(client: u64, at: u64) -> String {
    format!("of-{client}/{at}")
}

/// Returns the number that a client last stored under number `at` of its names, if it has made `rounds` rounds.
pub fn stored(at: u64, rounds: u64) -> Option<u64> {
    let last = rounds.div_ceil(NAME_ROUNDS);
    (last > at).then(|| (last - 1 - (last - 1 - at) % NAMES) * NAME_ROUNDS)
}

impl Traffic {
    pub fn begin(client: &Client, pair: Pair) -> Self {
        let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (client, ends, counts) = (client.clone(), over.clone(), rounds.clone());
        let thread = std::thread::spawn(move || run(&client, pair, &ends, &counts));
        Self { over, rounds, thread: Some(thread), stream: None }
    }

    /// Returns the number of rounds so far.
    ///
    /// # Errors
    /// The error that ended the use.
    pub fn rounds(&mut self) -> Result<u64, String> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return self.end();
        }
        Ok(self.rounds.load(Ordering::Relaxed))
    }

    /// Ends the use, and returns its number of rounds.
    ///
    /// # Errors
    /// The first error of any call, or the first wrong value.
    pub fn end(&mut self) -> Result<u64, String> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or("the use has ended before")?;
        let (rounds, stream) = thread.join().map_err(|_| "the use panicked".to_owned())??;
        self.stream = stream;
        Ok(rounds)
    }
}

/// Names the call that failed.
fn at<T>(what: &str, round: u64, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| format!("{what}, round {round}: {error}"))
}

/// Subscribes, once the producer has opened its stream.
fn subscribe(client: &Client, stream: &str, over: &AtomicBool) -> Result<Option<Subscription>, String> {
    while !over.load(Ordering::Relaxed) {
        match client.subscription(stream).start_at(Start::Oldest).open() {
            Err(error) if error.is_not_found() => std::thread::sleep(PAUSE),
            other => return at("subscribe", 0, other).map(Some),
        }
    }
    Ok(None)
}

/// Takes an item from the queue if it has one, and appends it to the list of taken items.
fn take(client: &Client, queue: &Queue, round: u64) -> Result<Option<QueueItem>, String> {
    let item = match queue.get(Duration::ZERO) {
        Err(error) if error.is_timeout() => return Ok(None),
        other => at("take", round, other)?,
    };
    let found = value(at("read", round, item.value().tensor())?)?;
    let taken = at("create", round, filled(client, found))?;
    at("append", round, client.append(TAKEN, taken))?;
    Ok(Some(item))
}

fn confirm(item: QueueItem, round: u64) -> Result<(), String> {
    let number = item.number();
    if at("confirm", round, item.done())? {
        Ok(())
    } else {
        Err(format!("round {round}: item {number} was given to another consumer"))
    }
}

fn run(client: &Client, Pair { me, peer }: Pair, over: &AtomicBool, rounds: &AtomicU64) -> Used {
    let stream = at("open the stream", 0, client.stream(&format!("of-{me}")).capacity(64).open())?;
    let Some(mut subscription) = subscribe(client, &format!("of-{peer}"), over)? else { return Ok((0, None)) };
    let queue = at("open the queue", 0, client.queue(QUEUE))?;
    let (mut seen, mut next, mut held) = (0, None, None);
    let mut round = 0;
    while !over.load(Ordering::Relaxed) {
        at("put", round, put(client, &latest(me), round))?;
        match client.get(&latest(peer)) {
            Ok(lease) => {
                let now = value(&lease)?;
                if now < seen {
                    return Err(format!("round {round}: {now} after {seen}"));
                }
                seen = now;
            }
            Err(error) if error.is_not_found() && seen == 0 => {}
            Err(error) => return Err(format!("get, round {round}: {error}")),
        }
        if round % NAME_ROUNDS == 0 {
            at("put", round, put(client, &name(me, round / NAME_ROUNDS % NAMES), round))?;
        }
        if round % ITEM_ROUNDS == 0 {
            let item = at("create", round, filled(client, (me << ITEM_BITS) | (round / ITEM_ROUNDS)))?;
            at("append", round, client.append(LIST, item))?;
            let item = at("create", round, filled(client, (me << ITEM_BITS) | (round / ITEM_ROUNDS)))?;
            at("put into the queue", round, queue.put(item, None))?;
        }
        if round % ITEM_ROUNDS == ITEM_ROUNDS / 2 {
            held.map_or(Ok(()), |item| confirm(item, round))?;
            held = take(client, &queue, round)?;
        }
        let message = at("create", round, filled(client, round))?;
        at("send", round, stream.send(message))?;
        while let Some(message) = at("receive", round, subscription.try_recv())? {
            let (number, found) = (message.sequence(), value(at("read", round, message.tensor())?)?);
            // The producer may have replaced messages before this client subscribed.
            let (expected, lost) = next.map_or((number, 0), |next| (next, message.lost()));
            if (number, found, lost) != (expected, expected, 0) {
                return Err(format!("message {number} has {found}, {lost} lost, {expected} expected"));
            }
            next = Some(number + 1);
        }
        round += 1;
        rounds.store(round, Ordering::Relaxed);
        std::thread::sleep(PAUSE);
    }
    held.map_or(Ok(()), |item| confirm(item, round))?;
    Ok((round, Some(stream)))
}
