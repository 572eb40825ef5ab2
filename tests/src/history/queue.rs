//! The sequential specification of a queue, and the work whose operations are checked against it.
//!
//! The claim: `put` and `put_many` append all their items at one moment, and return the numbers of items that all clients
//! have appended before. `get` takes the first item that no client has claimed, or finds at one moment that there is none.
//! `done` removes an item, and `give_back` returns it to its place, each at one moment between call and return. When a
//! process ends, the daemon gives its claimed items back, each once.

use super::check::{Bad, State, explain};
use super::log::Log;
use super::work::{Work, asked, name, whole};
use super::{Answer, Call, Event, Operation, Value};
use crate::filled::{Random, filled};
use std::collections::BTreeMap;
use std::time::Duration;
use tensorlend::{Client, Error, Queue, QueueItem};

/// Maximum number of items that a thread holds.
const HELD_MAX: usize = 3;
/// Number of items of a `put_many`.
const TOGETHER: u8 = 3;

/// One operation's effect, and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This number of values was appended, of which the first is given, with the number of the first item if it is known.
    Append(Value, u8, Option<u64>),
    /// An item was taken; `None`: all items were claimed, or the queue was empty.
    Take(Option<Value>),
    /// An item was confirmed.
    Confirm(Value),
    /// An item was returned, by its consumer or at the consumer's end.
    GiveBack(Value),
    /// A take without a response, with its number in the history: the claimed item is unknown.
    TakeUnknown(u32),
    /// The item of that take was returned at its consumer's end.
    GiveBackUnknown(u32),
    /// All consumers have ended: no item is claimed.
    Settled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Claim {
    Free,
    Claimed,
    /// Claimed by the take without a response that has this number.
    Unknown(u32),
}

/// The state of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Items {
    /// The items that are not confirmed, in the order in which they were appended.
    unconfirmed: Vec<(Value, Claim)>,
    /// Number of items so far.
    appended: u64,
    /// Whether all consumers but the last one have ended.
    is_settled: bool,
}

impl Items {
    /// Returns the items after the claim of the item at `at` has changed.
    fn with(&self, at: usize, claim: Claim) -> Self {
        let mut next = self.clone();
        next.unconfirmed[at].1 = claim;
        next
    }

    fn find(&self, is_wanted: impl Fn(&(Value, Claim)) -> bool) -> Option<usize> {
        self.unconfirmed.iter().position(is_wanted)
    }
}

impl State for Items {
    type Step = Step;

    fn after(&self, step: Step) -> Option<Self> {
        let first = self.find(|&(_, claim)| claim == Claim::Free);
        let claimed = |value| self.find(|&item| item == (value, Claim::Claimed));
        match step {
            Step::Append(value, count, number) => number.is_none_or(|number| number == self.appended).then(|| {
                let mut next = self.clone();
                next.unconfirmed.extend((0..count).map(|at| (value.later(at.into()), Claim::Free)));
                next.appended += u64::from(count);
                next
            }),
            Step::Take(None) => first.is_none().then(|| self.clone()),
            Step::Take(Some(value)) => {
                first.filter(|&at| self.unconfirmed[at].0 == value).map(|at| self.with(at, Claim::Claimed))
            }
            Step::TakeUnknown(number) => {
                first.filter(|_| !self.is_settled).map(|at| self.with(at, Claim::Unknown(number)))
            }
            Step::Settled => self
                .unconfirmed
                .iter()
                .all(|&(_, claim)| claim == Claim::Free)
                .then(|| Self { is_settled: true, ..self.clone() }),
            Step::Confirm(value) => claimed(value).map(|at| {
                let mut next = self.clone();
                next.unconfirmed.remove(at);
                next
            }),
            Step::GiveBack(value) => claimed(value).map(|at| self.with(at, Claim::Free)),
            Step::GiveBackUnknown(number) => {
                self.find(|&(_, claim)| claim == Claim::Unknown(number)).map(|at| self.with(at, Claim::Free))
            }
        }
    }
}

/// An item that a thread holds.
struct Held {
    /// Time of the take's return.
    claimed_ns: u64,
    /// Time at which the thread asked for the end of its claim, without a response.
    ended_ns: Option<u64>,
    /// Whether it asked to confirm the item.
    may_be_confirmed: bool,
}

/// The operations of a history.
#[derive(Debug, Default, PartialEq, Eq)]
struct History {
    /// Operations that took effect, each between its call and its return.
    known: Vec<Operation<Step>>,
    /// Takes without a response, and the returns of their items.
    unknown: Vec<[Operation<Step>; 2]>,
}

/// Returns the operations of threads, of each thread its events. The last thread takes and confirms all items after the end
/// of the others, so the history shows the outcome of an operation without a response:
/// * An append took effect if a thread took one of its items, and then before the take's return.
/// * A confirmation took effect, before the last thread began, if no thread took the item again.
/// * An item that a thread held at its end was given back, before the return of the next take of this item.
///
/// The outcome of a take without a response remains unknown.
///
/// A thread holds an item until it asks for the item's end, or else until the call of its last operation with a response: so
/// long its process lived.
fn operations(threads: &[Vec<Event>]) -> History {
    let mut takes: BTreeMap<Value, Vec<u64>> = BTreeMap::new();
    for event in threads.iter().flatten() {
        if let (Call::Take, Some((at, Answer::Done(value)))) = (event.call, event.answer) {
            takes.entry(Value(value)).or_default().push(at);
        }
    }
    // Returns the earliest return after `after_ns` of a take of this value. The take may have been called before: it can
    // overlap with the former take of the value.
    let taken = |value, after_ns| takes.get(&value)?.iter().copied().filter(|&at| at > after_ns).min();
    let end_ns = threads.last().and_then(|last| last.first()).map_or(u64::MAX, |event| event.called_ns);
    let mut history = History::default();
    history.known.push(Operation { called_ns: end_ns, returned_ns: Some(end_ns), step: Step::Settled });
    for events in threads {
        let answered = events.iter().filter(|event| matches!(event.answer, Some((_, Answer::Done(_)))));
        let alive_ns = answered.map(|event| event.called_ns).max().unwrap_or_default();
        let mut held: BTreeMap<Value, Held> = BTreeMap::new();
        for &Event { call, called_ns, answer } in events {
            let mut add = |returned_ns, step| {
                history.known.push(Operation { called_ns, returned_ns: Some(returned_ns), step });
            };
            match (call, answer) {
                (Call::Append(..) | Call::Take, Some((_, Answer::Refused))) => {}
                (Call::Append(value, count), Some((at, Answer::Done(number)))) => {
                    add(at, Step::Append(value, count, Some(number)));
                }
                (Call::Append(value, count), _) => {
                    if let Some(at) = (0..count).filter_map(|it| taken(value.later(it.into()), 0)).min() {
                        add(at, Step::Append(value, count, None));
                    }
                }
                (Call::Take, Some((at, Answer::Done(value)))) => {
                    let value = (value != 0).then_some(Value(value));
                    add(at, Step::Take(value));
                    let Some(value) = value else { continue };
                    let taken = Held { claimed_ns: at, ended_ns: None, may_be_confirmed: false };
                    // The thread gave the item back before, or confirmed it, without a response.
                    if let Some(before) = held.insert(value, taken) {
                        let called_ns = before.ended_ns.unwrap_or(before.claimed_ns);
                        let step = Step::GiveBack(value);
                        history.known.push(Operation { called_ns, returned_ns: Some(at), step });
                    }
                }
                (Call::Take, _) => {
                    let number = history.unknown.len() as u32;
                    let open = |step| Operation { called_ns, returned_ns: None, step };
                    history.unknown.push([Step::TakeUnknown(number), Step::GiveBackUnknown(number)].map(open));
                }
                (Call::Confirm(value), Some((at, Answer::Done(_)))) => {
                    add(at, Step::Confirm(value));
                    held.remove(&value);
                }
                // After an error, the client repeats the confirmation before its next request.
                (Call::Confirm(value), _) => {
                    let item = held.get_mut(&value).expect("a thread confirms what it holds");
                    (item.ended_ns, item.may_be_confirmed) = (Some(called_ns), true);
                    if taken(value, item.claimed_ns).is_none() {
                        add(end_ns, Step::Confirm(value));
                    }
                }
                (Call::GiveBack(value), Some((at, Answer::Done(_)))) => {
                    add(at, Step::GiveBack(value));
                    held.remove(&value);
                }
                (Call::GiveBack(value), _) => {
                    held.get_mut(&value).expect("a thread gives back what it holds").ended_ns = Some(called_ns);
                }
                (other, _) => panic!("{other:?} in the history of a queue"),
            }
        }
        for (value, Held { claimed_ns, ended_ns, may_be_confirmed }) in held {
            let called_ns = ended_ns.unwrap_or(alive_ns.max(claimed_ns));
            // An item that no thread took again, and no thread confirmed, is lost: the last thread's takes show it.
            let returned_ns = taken(value, claimed_ns).or((!may_be_confirmed).then_some(end_ns));
            if returned_ns.is_some() {
                history.known.push(Operation { called_ns, returned_ns, step: Step::GiveBack(value) });
            }
        }
    }
    history
}

/// Checks the events of threads, of which the last one is that of [`drain`].
///
/// # Errors
/// [`Bad`].
pub fn check(threads: &[Vec<Event>]) -> Result<(), Bad<Step>> {
    let History { known, unknown } = operations(threads);
    // Few histories need the effect of a take without a response, and the search with all of them is long.
    let some = (0..unknown.len()).map(|at| &unknown[at..=at]);
    let mut choices = std::iter::once(&unknown[..0]).chain(some);
    if choices.any(|chosen| explain::<Items>(&[&known[..], &chosen.concat()].concat()).is_ok()) {
        return Ok(());
    }
    explain::<Items>(&[&known[..], &unknown.concat()].concat())
}

impl Value {
    /// Returns the value that its writer puts `count` values later.
    fn later(self, count: u32) -> Self {
        Self(self.0 + (u64::from(count) << 8))
    }
}

pub fn queue(client: &Client, round: u32) -> tensorlend::Result<Queue> {
    client.queue(&name(round, 0))
}

/// Takes an item without waiting, and logs this. Returns the response, and the item if there is one.
fn take(queue: &Queue, log: &mut Log) -> (Answer, Option<(QueueItem, Value)>) {
    let mut taken = None;
    let answer = log.call(Call::Take, || match queue.get(Duration::ZERO) {
        Ok(item) => {
            let value = Value(whole(item.value().tensor().expect("every item is a tensor")));
            taken = Some((item, value));
            Answer::Done(value.0)
        }
        Err(e) if e.is_timeout() => Answer::Done(0),
        Err(e) => {
            asked(&e);
            // The client may have claimed an item, and have given it back because it could not lease the item.
            Answer::Unknown
        }
    });
    (answer, taken)
}

/// Confirms an item, and logs this.
fn confirm((item, value): (QueueItem, Value), log: &mut Log) {
    log.call(Call::Confirm(value), || match item.done() {
        Ok(is_claimed) => {
            assert!(is_claimed, "{value:x?} was given to another consumer");
            Answer::Done(0)
        }
        Err(e) => asked(&e),
    });
}

/// Takes and confirms all items after the last process has ended, and logs this.
///
/// # Panics
/// If the daemon does not respond, or keeps a claim of an ended process.
pub fn drain(client: &Client, round: u32, log: &mut Log) {
    let queue = queue(client, round).expect("the daemon is there");
    // The daemon handles all requests of a client before it ends the client's session.
    crate::eventually("the end of all other sessions", || client.stat().is_ok_and(|stat| stat.clients == 1));
    crate::eventually("the return of their items", || queue.claimed().is_ok_and(|it| it == 0));
    loop {
        let (answer, item) = take(&queue, log);
        assert!(matches!(answer, Answer::Done(_)), "the daemon did not respond");
        let Some(item) = item else { break };
        confirm(item, log);
    }
    assert_eq!((queue.waiting().ok(), queue.claimed().ok()), (Some(0), Some(0)), "items that no client can take");
}

/// The work of one thread.
pub fn work(work: &Work, client: &Client, log: &mut Log, thread: u32) {
    let writer = work.writer * work.threads + thread;
    let mut random = Random(u64::from(work.round) << 32 | u64::from(writer));
    let queue = loop {
        match queue(client, work.round) {
            Ok(queue) => break queue,
            // The daemon was killed.
            Err(Error::Disconnected { .. } | Error::NoDaemon { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => panic!("nobody may meet this: {e}"),
        }
    };
    let mut held: Vec<(QueueItem, Value)> = Vec::new();
    let mut put = 0;
    for _ in 0..work.calls {
        if held.len() == HELD_MAX {
            let at = random.below(HELD_MAX as u64) as usize;
            confirm(held.swap_remove(at), log);
            continue;
        }
        match random.below(20) {
            0..6 => {
                let value = Value::new(writer, put, 0);
                put += 1;
                log.call(Call::Append(value, 1), || {
                    let done = filled(client, value.0).and_then(|item| queue.put(item, Duration::ZERO));
                    done.map_or_else(|e| asked(&e), Answer::Done)
                });
            }
            6..7 => {
                let first = Value::new(writer, put, 0);
                put += u32::from(TOGETHER);
                log.call(Call::Append(first, TOGETHER), || {
                    let items = (0..TOGETHER).map(|at| filled(client, first.later(at.into()).0)).collect();
                    let done = Result::and_then(items, |items: Vec<_>| queue.put_many(items, Duration::ZERO));
                    done.map_or_else(|e| asked(&e), |numbers| Answer::Done(numbers.start))
                });
            }
            7..15 => held.extend(take(&queue, log).1),
            15..18 if !held.is_empty() => {
                let at = random.below(held.len() as u64) as usize;
                confirm(held.swap_remove(at), log);
            }
            _ if !held.is_empty() => {
                let at = random.below(held.len() as u64) as usize;
                give_back(held.swap_remove(at), log);
            }
            _ => {}
        }
    }
    for item in held {
        give_back(item, log);
    }
}

/// Gives an item back, and logs this.
fn give_back((item, value): (QueueItem, Value), log: &mut Log) {
    log.call(Call::GiveBack(value), || item.give_back().map_or_else(|e| asked(&e), |()| Answer::Done(0)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(count: u32) -> Value {
        Value::new(1, count, 0)
    }

    fn op(called_ns: u64, returned_ns: u64, step: Step) -> Operation<Step> {
        Operation { called_ns, returned_ns: Some(returned_ns), step }
    }

    fn cut(called_ns: u64, step: Step) -> Operation<Step> {
        Operation { called_ns, returned_ns: None, step }
    }

    fn good(operations: &[Operation<Step>]) {
        explain::<Items>(operations).unwrap_or_else(|bad| panic!("{bad}"));
    }

    fn bad(operations: &[Operation<Step>]) {
        assert!(matches!(explain::<Items>(operations), Err(Bad::NotLinearizable(_))), "{operations:?}");
    }

    #[test]
    fn items_come_in_their_order_and_once() {
        let put = op(0, 1, Step::Append(value(0), 2, Some(0)));
        let take = |at, item: Option<u32>| op(at, at + 1, Step::Take(item.map(value)));
        good(&[put, take(2, Some(0)), take(4, Some(1)), take(6, None)]);
        bad(&[put, take(2, Some(1))]);
        bad(&[put, take(2, Some(0)), take(4, Some(0))]);
        bad(&[put, take(2, None)]);
        bad(&[put, take(2, Some(0)), take(4, None)]);
        let numbered = |number| op(2, 3, Step::Append(value(2), 1, Some(number)));
        good(&[put, numbered(2)]);
        bad(&[put, numbered(1)]);
        // Of two takes at once, either may be the first.
        good(&[put, op(2, 5, Step::Take(Some(value(1)))), op(3, 4, Step::Take(Some(value(0))))]);
        bad(&[put, op(2, 3, Step::Take(Some(value(1)))), op(4, 5, Step::Take(Some(value(0))))]);
    }

    #[test]
    fn an_item_that_is_given_back_is_the_first_again() {
        let put = op(0, 1, Step::Append(value(0), 2, Some(0)));
        let take = |at, item| op(at, at + 1, Step::Take(Some(value(item))));
        let back = op(4, 5, Step::GiveBack(value(0)));
        good(&[put, take(2, 0), back, take(6, 0), take(8, 1)]);
        bad(&[put, take(2, 0), back, take(6, 1)]);
        // No client may confirm an item twice, or after it was returned.
        bad(&[put, take(2, 0), back, op(6, 7, Step::Confirm(value(0)))]);
        let done = |at| op(at, at + 1, Step::Confirm(value(0)));
        good(&[put, take(2, 0), done(4), take(6, 1)]);
        bad(&[put, take(2, 0), done(4), done(6)]);
        bad(&[put, take(2, 0), done(4), take(6, 0)]);
    }

    #[test]
    fn a_killed_consumer_gives_its_items_back_at_any_time() {
        let put = op(0, 1, Step::Append(value(0), 2, Some(0)));
        let take = |at, item: Option<u32>| op(at, at + 1, Step::Take(item.map(value)));
        let ended = cut(2, Step::GiveBack(value(0)));
        good(&[put, take(2, Some(0)), ended, take(6, Some(0))]);
        good(&[put, take(2, Some(0)), ended, take(6, Some(1)), take(8, None)]);
        good(&[put, take(2, Some(0)), ended, take(6, Some(1)), take(8, Some(0))]);
        // Once only.
        let done = op(8, 9, Step::Confirm(value(0)));
        bad(&[put, take(2, Some(0)), ended, take(6, Some(0)), done, take(10, Some(0))]);
        // The take's own response was lost: it may have hidden an item for some time.
        let unknown = [put, cut(2, Step::TakeUnknown(0)), cut(2, Step::GiveBackUnknown(0))];
        good(&[&unknown[..], &[take(4, Some(1)), take(6, Some(0))]].concat());
        good(&[&unknown[..], &[take(4, Some(1)), take(6, None)]].concat());
        good(&[&unknown[..], &[take(4, Some(0)), take(6, None)]].concat());
        // But not for ever.
        let settled = op(8, 9, Step::Settled);
        bad(&[&unknown[..], &[take(4, Some(1)), op(6, 7, Step::Confirm(value(1))), settled, take(10, None)]].concat());
        bad(&[&unknown[..], &[take(4, None)]].concat());
    }

    #[test]
    fn the_last_thread_shows_what_became_of_operations_without_a_response() {
        let event = |call, called_ns, answer: Option<Answer>| {
            let answer = answer.map(|answer| (called_ns + 1, answer));
            Event { call, called_ns, answer }
        };
        let done = Some(Answer::Done(0));
        let took = |count| Some(Answer::Done(value(count).0));
        let threads = [
            vec![event(Call::Append(value(0), 3), 0, done), event(Call::Take, 2, None)],
            vec![
                event(Call::Append(value(3), 1), 10, Some(Answer::Unknown)),
                event(Call::Append(value(4), 1), 12, Some(Answer::Unknown)),
                event(Call::Append(value(5), 1), 14, Some(Answer::Refused)),
                event(Call::Take, 20, took(0)),
                event(Call::Confirm(value(0)), 22, None),
            ],
            vec![event(Call::Take, 30, took(1)), event(Call::Confirm(value(1)), 32, Some(Answer::Unknown))],
            vec![event(Call::Take, 40, took(2)), event(Call::GiveBack(value(2)), 42, None)],
            vec![
                event(Call::Take, 50, took(1)),
                event(Call::Confirm(value(1)), 52, done),
                event(Call::Take, 54, took(2)),
                event(Call::Confirm(value(2)), 56, done),
                event(Call::Take, 58, took(3)),
                event(Call::Confirm(value(3)), 60, done),
                event(Call::Take, 62, done),
            ],
        ];
        let History { known, unknown } = operations(&threads);
        assert_eq!(unknown, [[cut(2, Step::TakeUnknown(0)), cut(2, Step::GiveBackUnknown(0))]]);
        let take = |at, item: Option<u32>| op(at, at + 1, Step::Take(item.map(value)));
        assert_eq!(
            known,
            [
                op(50, 50, Step::Settled),
                op(0, 1, Step::Append(value(0), 3, Some(0))),
                // A thread took this item, and none the item 4.
                op(10, 59, Step::Append(value(3), 1, None)),
                take(20, Some(0)),
                // No thread took this item again.
                op(22, 50, Step::Confirm(value(0))),
                take(30, Some(1)),
                op(32, 51, Step::GiveBack(value(1))),
                take(40, Some(2)),
                op(42, 55, Step::GiveBack(value(2))),
                take(50, Some(1)),
                op(52, 53, Step::Confirm(value(1))),
                take(54, Some(2)),
                op(56, 57, Step::Confirm(value(2))),
                take(58, Some(3)),
                op(60, 61, Step::Confirm(value(3))),
                take(62, None),
            ]
        );
    }

    #[test]
    fn a_lost_item_and_an_item_delivered_twice_are_noticed() {
        let event =
            |call, called_ns, answer| Event { call, called_ns, answer: Some((called_ns + 1, Answer::Done(answer))) };
        let put = event(Call::Append(value(0), 2), 0, 0);
        let take = |at, count| event(Call::Take, at, value(count).0);
        let confirm = |at, count| event(Call::Confirm(value(count)), at, 0);
        let none = |at| event(Call::Take, at, 0);
        check(&[vec![put, take(2, 0), confirm(4, 0)], vec![take(10, 1), confirm(12, 1), none(14)]]).unwrap();
        let lost = check(&[vec![put, take(2, 0), confirm(4, 0)], vec![none(14)]]);
        assert!(matches!(lost, Err(Bad::NotLinearizable(_))), "{lost:?}");
        let lost_at_its_end = check(&[vec![put, take(2, 0)], vec![take(10, 1), confirm(12, 1), none(14)]]);
        assert!(matches!(lost_at_its_end, Err(Bad::NotLinearizable(_))), "{lost_at_its_end:?}");
        let twice =
            [vec![put, take(2, 0), confirm(4, 0)], vec![take(6, 0), confirm(8, 0), take(10, 1), confirm(12, 1)]];
        let twice = check(&twice);
        assert!(matches!(twice, Err(Bad::NotLinearizable(_))), "{twice:?}");
        // The first holder still works when the second one gets the item.
        let rest = [take(50, 1), confirm(52, 1), none(54)];
        let later = [take(2, 0), none(20)];
        let both = check(&[[&[put][..], &later].concat(), vec![take(6, 0), confirm(30, 0)], rest.to_vec()]);
        assert!(matches!(both, Err(Bad::NotLinearizable(_))), "{both:?}");
    }
}
