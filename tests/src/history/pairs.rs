//! The sequential specification of a pair of names with lifetimes, and the work whose operations are checked against it.
//!
//! The claim: `put`, `put_for`, `get`, `exists` and `delete` take effect at one moment between call and return. A `rename` is
//! one operation on both names. It takes effect in three steps between call and return, and in this order: it reads a value
//! of the first name, publishes this value under the second name, and deletes the first name. So at each moment one of the
//! two names has the value. A name whose value has a time to live may be gone at any moment after this time has passed since
//! the call, and stays gone. When the daemon is replaced, no name changes.

use super::check::{Bad, State, explain};
use super::log::Log;
use super::work::{Work, asked, looked, name, whole};
use super::{Answer, Call, Event, Operation, Value};
use crate::filled::{self, Random};
use std::time::Duration;
use tensorlend::{Client, Lifetime};

/// Number of names in a history: two pairs.
pub const NAMES: u8 = 4;
/// Maximum time to live in microseconds.
const TTL_US_MAX: u64 = 30_000;

/// An effect on a pair of names. A name is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A put. With a time: the name may have ended from then on.
    Put(u8, Value, Option<u64>),
    /// A get, and its result.
    Get(u8, Option<Value>),
    /// Whether the name existed.
    Exists(u8, bool),
    /// A deletion, and whether the name existed; `None`: without a response.
    Delete(u8, Option<bool>),
    /// The first step of the rename with this number: it reads the name's value.
    Read(u32, u8),
    /// The second step: it publishes the value under this name.
    Write(u32, u8),
    /// The third step: it deletes the name.
    Remove(u32, u8),
    /// The daemon was replaced.
    Restart,
}

/// An effect, and the time before which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    effect: Effect,
    /// The time of the return; the greatest number without a return.
    until_ns: u64,
}

/// A value of a name, and the time from which the name may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Held {
    value: Value,
    gone_from_ns: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pair {
    names: [Option<Held>; 2],
    /// The renames that have begun, sorted by their numbers, with the value that is not published yet.
    renames: Vec<(u32, Option<Held>)>,
    /// The earliest time of each further step. It is later than the call if an operation found a name ended whose
    /// lifetime had passed only by then.
    after_ns: u64,
}

impl Pair {
    /// Ends the name's lifetime if the response shows that the name has ended.
    fn expired(&mut self, name: u8, until_ns: u64) -> Option<()> {
        if let Some(held) = self.names[usize::from(name)].take() {
            let gone_from_ns = held.gone_from_ns.filter(|&from_ns| from_ns <= until_ns)?;
            self.after_ns = self.after_ns.max(gone_from_ns);
        }
        Some(())
    }
}

impl State for Pair {
    type Step = Step;

    fn after(&self, Step { effect, until_ns }: Step) -> Option<Self> {
        if until_ns < self.after_ns {
            return None;
        }
        let mut next = self.clone();
        let rename = |number: u32| self.renames.binary_search_by_key(&number, |&(number, _)| number);
        let value = |name: u8| self.names[usize::from(name)];
        match effect {
            Effect::Put(name, value, gone_from_ns) => {
                next.names[usize::from(name)] = Some(Held { value, gone_from_ns });
            }
            Effect::Get(name, Some(found)) => _ = value(name).filter(|held| held.value == found)?,
            Effect::Exists(name, true) => _ = value(name)?,
            Effect::Get(name, None) | Effect::Exists(name, false) | Effect::Delete(name, Some(false)) => {
                next.expired(name, until_ns)?;
            }
            Effect::Delete(name, existed) => {
                if existed.is_some() {
                    value(name)?;
                }
                next.names[usize::from(name)] = None;
            }
            Effect::Read(number, from) => {
                let at = rename(number).unwrap_err();
                next.renames.insert(at, (number, Some(value(from)?)));
            }
            Effect::Write(number, to) => {
                let moved = next.renames[rename(number).ok()?].1.take()?;
                next.names[usize::from(to)] = Some(moved);
            }
            Effect::Remove(number, from) => {
                let at = rename(number).ok().filter(|&at| self.renames[at].1.is_none())?;
                next.renames.remove(at);
                next.names[usize::from(from)] = None;
            }
            Effect::Restart => {}
        }
        Some(next)
    }
}

/// Returns the operations on one pair. Each of the three steps of a rename is an operation.
fn operations(events: &[Event], pair: u8) -> Vec<Operation<Step>> {
    let mut all = Vec::new();
    for (number, event) in (0..).zip(events) {
        let (returned_ns, answer) = match event.answer {
            Some((_, Answer::Refused)) => continue,
            Some((at, answer @ (Answer::Done(_) | Answer::Absent))) => (Some(at), Some(answer)),
            Some((_, Answer::Unknown)) | None => (None, None),
        };
        let mut add = |name: u8, effect: &dyn Fn(u8) -> Effect| {
            if name / 2 == pair {
                let step = Step { effect: effect(name % 2), until_ns: returned_ns.unwrap_or(u64::MAX) };
                all.push(Operation { called_ns: event.called_ns, returned_ns, step });
            }
        };
        match (event.call, answer) {
            (Call::Put(name, value), _) => add(name, &|name| Effect::Put(name, value, None)),
            (Call::PutFor(name, value, ttl_us), _) => {
                let gone_from_ns = event.called_ns + u64::from(ttl_us) * 1000;
                add(name, &|name| Effect::Put(name, value, Some(gone_from_ns)));
            }
            (Call::Get(name), Some(Answer::Done(value))) => {
                add(name, &|name| Effect::Get(name, (value != 0).then_some(Value(value))));
            }
            (Call::Exists(name), Some(Answer::Done(there))) => add(name, &|name| Effect::Exists(name, there != 0)),
            (Call::Delete(name), Some(Answer::Done(there))) => {
                add(name, &|name| Effect::Delete(name, Some(there != 0)));
            }
            (Call::Delete(name), _) => add(name, &|name| Effect::Delete(name, None)),
            (Call::Rename(from, _), Some(Answer::Absent)) => add(from, &|from| Effect::Get(from, None)),
            (Call::Rename(from, to), _) => {
                add(from, &|from| Effect::Read(number, from));
                add(to, &|to| Effect::Write(number, to));
                add(from, &|from| Effect::Remove(number, from));
            }
            (Call::Restart, _) => add(pair * 2, &|_| Effect::Restart),
            // Reads without a result, and operations on a queue, constrain no name.
            _ => {}
        }
    }
    all
}

/// Checks a history, whose names did not exist before.
///
/// # Errors
/// [`Bad`].
pub fn check(threads: &[Vec<Event>]) -> Result<(), Bad<Step>> {
    let events = threads.concat();
    (0..NAMES / 2).try_for_each(|pair| explain::<Pair>(&operations(&events, pair)))
}

pub fn work(work: &Work, client: &Client, log: &mut Log, thread: u32) {
    let writer = work.writer * work.threads + thread;
    let mut random = Random(u64::from(work.round) << 32 | u64::from(writer));
    for count in 0..work.calls {
        // In every other history all operations use the same pair.
        let number = random.below(if work.round.is_multiple_of(2) { NAMES.into() } else { 2 }) as u8;
        let text = name(work.round, number);
        let value = Value::new(writer, count, number);
        match random.below(20) {
            0..7 => log.call(Call::Get(number), || match client.get(&text) {
                Ok(lease) => Answer::Done(whole(&lease)),
                Err(e) if e.is_not_found() => Answer::Done(0),
                Err(e) => looked(&e),
            }),
            7..10 => log.call(Call::Put(number, value), || match filled::put(client, &text, value.0) {
                Ok(_) => Answer::Done(0),
                Err(e) => asked(&e),
            }),
            10..13 => {
                let ttl_us = 1 + random.below(TTL_US_MAX) as u32;
                let lifetime = Lifetime::ttl(Duration::from_micros(ttl_us.into()));
                log.call(Call::PutFor(number, value, ttl_us), || {
                    match filled::filled(client, value.0).and_then(|draft| draft.publish_for(&text, lifetime)) {
                        Ok(_) => Answer::Done(0),
                        Err(e) => asked(&e),
                    }
                })
            }
            13 => log.call(Call::Delete(number), || match client.delete(&text) {
                Ok(there) => Answer::Done(there.into()),
                Err(e) => asked(&e),
            }),
            14..16 => log.call(Call::Exists(number), || match client.exists(&text) {
                Ok(there) => Answer::Done(there.into()),
                Err(e) => looked(&e),
            }),
            _ => {
                let other = number ^ 1;
                log.call(Call::Rename(number, other), || match client.rename(&text, &name(work.round, other)) {
                    Ok(()) => Answer::Done(0),
                    Err(e) if e.is_not_found() => Answer::Absent,
                    // A failed rename may have had a part of its effect.
                    Err(e) => match asked(&e) {
                        Answer::Refused if e.is_limit() => Answer::Refused,
                        _ => Answer::Unknown,
                    },
                })
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(count: u32) -> Value {
        Value::new(1, count, 0)
    }

    /// Returns a call that returned after one microsecond.
    fn done(at_us: u64, call: Call, answer: u64) -> Event {
        Event { call, called_ns: at_us * 1000, answer: Some((at_us * 1000 + 1000, Answer::Done(answer))) }
    }

    fn put(at_us: u64, name: u8, count: u32) -> Event {
        done(at_us, Call::Put(name, value(count)), 0)
    }

    fn put_for(at_us: u64, name: u8, count: u32, ttl_us: u32) -> Event {
        done(at_us, Call::PutFor(name, value(count), ttl_us), 0)
    }

    /// Returns a get; count 0: the name was not there.
    fn get(at_us: u64, name: u8, count: u32) -> Event {
        done(at_us, Call::Get(name), if count == 0 { 0 } else { value(count).0 })
    }

    fn rename(at_us: u64, from: u8, to: u8) -> Event {
        done(at_us, Call::Rename(from, to), 0)
    }

    fn until(at_us: u64, event: Event) -> Event {
        Event { answer: event.answer.map(|(_, answer)| (at_us * 1000, answer)), ..event }
    }

    fn cut(event: Event) -> Event {
        Event { answer: None, ..event }
    }

    fn restart(at_us: u64) -> Event {
        done(at_us, Call::Restart, 0)
    }

    fn accepted(events: &[Event]) {
        check(&[events.to_vec()]).unwrap_or_else(|bad| panic!("{bad}"));
    }

    fn refused(events: &[Event]) {
        assert!(matches!(check(&[events.to_vec()]), Err(Bad::NotLinearizable(_))), "{events:?}");
    }

    #[test]
    fn a_name_ends_after_its_time_and_stays_gone() {
        let first = put_for(0, 0, 1, 100);
        accepted(&[first, get(99, 0, 1), get(150, 0, 1), get(160, 0, 0), put(170, 0, 2), get(180, 0, 2)]);
        // The get may have been the last one before the end.
        accepted(&[first, until(120, get(50, 0, 0)), until(140, get(60, 0, 1))]);
        // Too early, and back from the dead.
        refused(&[first, get(98, 0, 0)]);
        refused(&[first, get(98, 0, 1), done(98, Call::Exists(0), 0)]);
        refused(&[first, get(150, 0, 0), get(160, 0, 1)]);
        refused(&[first, done(150, Call::Delete(0), 0), done(160, Call::Exists(0), 1)]);
        // The get returned 0 after the time had passed, so the second put follows, and the delete in between as well.
        refused(&[
            first,
            until(120, get(50, 0, 0)),
            until(90, put(51, 0, 2)),
            get(95, 0, 2),
            until(140, get(91, 0, 1)),
        ]);
        // A put without a lifetime makes the name permanent.
        refused(&[first, put(50, 0, 2), get(500, 0, 0)]);
        refused(&[put(0, 0, 1), put_for(50, 0, 2, 100), get(500, 0, 1)]);
    }

    #[test]
    fn a_step_after_an_end_is_not_before_it() {
        // The get found the name ended, at 100 at the earliest. So the put, which had returned by then, was before the
        // get.
        let first = put_for(0, 0, 1, 100);
        let none = until(200, get(10, 0, 0));
        accepted(&[first, none, until(105, put(20, 0, 2)), get(210, 0, 2)]);
        refused(&[first, none, until(95, put(20, 0, 2)), get(210, 0, 2)]);
    }

    #[test]
    fn a_rename_moves_one_value_and_never_shows_neither_name() {
        let first = put(0, 0, 1);
        accepted(&[first, rename(10, 0, 1), get(20, 1, 1), get(30, 0, 0)]);
        let slow = until(50, rename(10, 0, 1));
        accepted(&[first, slow, get(20, 1, 1), get(30, 0, 1), get(40, 0, 0)]);
        // Neither name, the old name after the rename, no new name after it.
        refused(&[first, slow, get(20, 0, 0), get(30, 1, 0)]);
        refused(&[first, rename(10, 0, 1), get(20, 0, 1)]);
        refused(&[first, rename(10, 0, 1), get(20, 1, 0)]);
        // Another value than the name had, and no value at all.
        refused(&[first, put(5, 0, 2), rename(10, 0, 1), get(20, 1, 1)]);
        refused(&[rename(10, 0, 1)]);
        // The new name keeps its own value.
        refused(&[first, put(5, 1, 2), rename(10, 0, 1), get(20, 1, 2)]);
    }

    #[test]
    fn a_value_that_returns_replaces_the_newer_one() {
        let there = [put(0, 0, 1), rename(10, 0, 1), put(20, 0, 2), get(30, 0, 2), rename(40, 1, 0)];
        accepted(&[&there[..], &[get(50, 0, 1), get(60, 1, 0)]].concat());
        refused(&[&there[..], &[get(50, 0, 2)]].concat());
        refused(&[&there[..], &[get(50, 0, 1), get(60, 1, 1)]].concat());
    }

    #[test]
    fn a_rename_that_was_cut_short_did_its_first_steps() {
        let (first, short) = (put(0, 0, 1), cut(rename(10, 0, 1)));
        accepted(&[first, short, get(20, 1, 0), get(30, 1, 1), get(40, 0, 1), get(50, 0, 0)]);
        refused(&[first, short, get(20, 0, 0), get(30, 1, 0)]);
        refused(&[first, short, get(20, 1, 1), put(30, 1, 2), get(40, 1, 1)]);
    }

    #[test]
    fn a_rename_takes_the_lifetime_along() {
        let first = put_for(0, 0, 1, 100);
        accepted(&[first, rename(10, 0, 1), get(150, 1, 1), get(160, 1, 0)]);
        refused(&[first, rename(10, 0, 1), get(50, 1, 0)]);
        // The lifetime of a value that was published later.
        let slow = until(60, rename(10, 0, 1));
        let later = until(50, put_for(20, 0, 2, 100));
        refused(&[put(0, 0, 1), slow, get(30, 1, 1), later, get(500, 1, 0)]);
    }

    #[test]
    fn a_restart_changes_nothing() {
        accepted(&[put(0, 0, 1), restart(10), get(20, 0, 1), put(30, 0, 2), restart(40), get(50, 0, 2)]);
        accepted(&[put_for(0, 0, 1, 100), restart(10), get(50, 0, 1), restart(60), get(150, 0, 0)]);
        // A lost name, an older value, a life that ended early, a name that came back, half of a rename that had returned.
        refused(&[put(0, 0, 1), restart(10), restart(15), get(20, 0, 0)]);
        refused(&[put(0, 0, 1), put(5, 0, 2), restart(10), get(20, 0, 1)]);
        refused(&[put_for(0, 0, 1, 100), restart(10), get(50, 0, 0)]);
        refused(&[put_for(0, 0, 1, 10), get(20, 0, 0), restart(30), get(40, 0, 1)]);
        refused(&[put(0, 0, 1), rename(5, 0, 1), restart(10), get(20, 0, 1)]);
    }
}
