//! Histories: the operations of clients in several processes with their times and responses, and the search for a
//! sequential order that explains all of them.
//!
//! The claim: for each name, put, get, exists and delete are *linearizable*: each took effect at one moment between its
//! call and its return. An interrupted operation (its process was killed, or it got an error that the session or the
//! daemon had ended) took effect once or not at all, at any time after its call. A rename is a put of the old name's
//! value, and then a deletion of the old name: there is no claim across names.
//!
//! The operations of a queue are linearizable, too ([`queue`]), and those of a pair of names, with lifetimes, renames
//! between the two names, and restarts of the daemon ([`pairs`]).

pub mod check;
pub mod log;
pub mod pairs;
pub mod queue;
pub mod work;

use std::collections::BTreeMap;

/// A value that is put once in a history: its writer, the number of the writer's earlier values, and the name that it
/// is put under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u64);

impl Value {
    /// Returns the `count`-th value of a writer; `name` is the number of the name that it is put under.
    pub fn new(writer: u32, count: u32, name: u8) -> Self {
        assert!(writer < 1 << 28 && count < 1 << 28);
        Self(u64::from(writer) << 36 | u64::from(count) << 8 | u64::from(name))
    }

    /// Returns the name under which the value was put.
    pub fn name(self) -> u8 {
        self.0 as u8
    }
}

/// One operation's effect on one name, and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Put(Value),
    /// A put of another name's value, which becomes known only when it is read.
    PutFrom(u8),
    /// A get, and its result.
    Get(Option<Value>),
    /// Whether the name existed.
    Exists(bool),
    /// A deletion, and whether the name existed; `None`: without a response.
    Delete(Option<bool>),
}

/// One operation on one object: on a name, if `S` is [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation<S = Step> {
    /// Time of the call, by the clock that all processes share.
    pub called_ns: u64,
    /// Time of the return; `None`: never, or with a response that leaves the effect open.
    pub returned_ns: Option<u64>,
    /// The effect.
    pub step: S,
}

/// One logged call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Put a value under a name.
    Put(u8, Value),
    /// Put a value under a name, with this time to live in microseconds.
    PutFor(u8, Value, u32),
    Get(u8),
    /// Ask whether a name exists.
    Exists(u8),
    Delete(u8),
    /// Rename the first to the second.
    Rename(u8, u8),
    /// Append to the queue this number of values, of which the first is given.
    Append(Value, u8),
    /// Take an item from the queue.
    Take,
    /// Confirm an item of the queue.
    Confirm(Value),
    /// Give an item back to the queue.
    GiveBack(Value),
    /// Kill the daemon, and start the next one.
    Restart,
}

/// The response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done. For a get and a take: the value, 0 for none. For exists and delete: whether the name existed. For an append:
    /// the number of the first item.
    Done(u64),
    /// A rename of a missing name.
    Absent,
    /// The effect is unknown.
    Unknown,
    /// The operation certainly had no effect, and returned no result.
    Refused,
}

/// A call, with its response if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub call: Call,
    pub called_ns: u64,
    /// Time and contents of the response; `None`: its process was killed before.
    pub answer: Option<(u64, Answer)>,
}

/// Returns the operations of a history, by name.
pub fn by_name(events: &[Event]) -> BTreeMap<u8, Vec<Operation>> {
    let mut names: BTreeMap<u8, Vec<Operation>> = BTreeMap::new();
    let mut add = |name: u8, operation| names.entry(name).or_default().push(operation);
    for event in events {
        let (returned_ns, answer) = match event.answer {
            Some((_, Answer::Refused)) => continue,
            Some((at, answer @ (Answer::Done(_) | Answer::Absent))) => (Some(at), answer),
            Some((_, Answer::Unknown)) | None => (None, Answer::Unknown),
        };
        let operation = |step| Operation { called_ns: event.called_ns, returned_ns, step };
        match (event.call, answer) {
            (Call::Put(name, value), _) => add(name, operation(Step::Put(value))),
            (Call::Get(name), Answer::Done(value)) => {
                add(name, operation(Step::Get((value != 0).then_some(Value(value)))));
            }
            (Call::Exists(name), Answer::Done(there)) => add(name, operation(Step::Exists(there != 0))),
            // Reads without a result, and operations on a queue, constrain no name. A history of these names has no lifetimes.
            (
                Call::Get(_)
                | Call::Exists(_)
                | Call::Append(..)
                | Call::Take
                | Call::Confirm(_)
                | Call::GiveBack(_)
                | Call::PutFor(..)
                | Call::Restart,
                _,
            ) => {}
            (Call::Delete(name), Answer::Done(there)) => add(name, operation(Step::Delete(Some(there != 0)))),
            (Call::Delete(name), _) => add(name, operation(Step::Delete(None))),
            (Call::Rename(from, _), Answer::Absent) => add(from, operation(Step::Get(None))),
            (Call::Rename(from, to), answer) => {
                // The old name certainly existed only if the rename succeeded.
                if matches!(answer, Answer::Done(_)) {
                    add(from, operation(Step::Exists(true)));
                }
                add(from, operation(Step::Delete(None)));
                add(to, operation(Step::PutFrom(from)));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_is_a_put_and_a_deletion() {
        let event = |call, answer| Event { call, called_ns: 5, answer };
        let names = by_name(&[
            event(Call::Rename(1, 2), Some((9, Answer::Done(0)))),
            event(Call::Rename(1, 2), None),
            event(Call::Rename(1, 2), Some((9, Answer::Absent))),
            event(Call::Get(2), Some((9, Answer::Unknown))),
            event(Call::Put(2, Value(7)), Some((9, Answer::Refused))),
        ]);
        let done = |step| Operation { called_ns: 5, returned_ns: Some(9), step };
        let open = |step| Operation { called_ns: 5, returned_ns: None, step };
        assert_eq!(
            names[&1],
            [done(Step::Exists(true)), done(Step::Delete(None)), open(Step::Delete(None)), done(Step::Get(None))]
        );
        assert_eq!(names[&2], [done(Step::PutFrom(1)), open(Step::PutFrom(1))]);
    }
}
