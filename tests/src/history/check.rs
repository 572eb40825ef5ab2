//! The checker: Wing and Gong's search with Lowe's cache of visited configurations.
//!
//! Sources: J. M. Wing and C. Gong, "Testing and verifying concurrent objects", Journal of Parallel and Distributed
//! Computing 17 (1993); G. Lowe, "Testing for linearizability", Concurrency and Computation 29 (2017).
//!
//! Calls and returns stand in a list ordered by time. From its front, the search may choose a call as the next in the
//! order if its operation explains its response in the present state; call and return then leave the list. A return at
//! the front whose call could not be chosen means that the last choice was wrong. The search remembers each set of
//! chosen operations with the resulting state: the same configuration always has the same outcome. An operation that
//! never returned has no return in the list: it may be chosen at any time, or never.

use super::{Operation, Step, Value};
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// Maximum number of configurations of a search: one or two seconds of an unoptimized build, or most of a minute.
fn tried_max() -> usize {
    crate::budget(200_000, 4_000_000)
}

/// The sequential specification of an object.
pub trait State: Clone + Eq + Hash + Default {
    /// An operation's effect, and its response.
    type Step: Copy + Debug;

    /// Returns the state after a step; `None`: its response cannot be explained here.
    fn after(&self, step: Self::Step) -> Option<Self>;
}

/// The state of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Name {
    /// The name does not exist.
    #[default]
    Absent,
    Holds(Value),
    /// The first value that was put under this other name.
    From(u8),
}

impl State for Name {
    type Step = Step;

    fn after(&self, step: Step) -> Option<Self> {
        let there = *self != Self::Absent;
        match (step, *self) {
            (Step::Put(value), _) => Some(Self::Holds(value)),
            (Step::PutFrom(name), _) => Some(Self::From(name)),
            (Step::Get(None), Self::Absent) => Some(*self),
            (Step::Get(Some(value)), Self::Holds(held)) if value == held => Some(*self),
            (Step::Get(Some(value)), Self::From(name)) if value.name() == name => Some(Self::Holds(value)),
            (Step::Get(_), _) => None,
            (Step::Exists(found), _) => (found == there).then_some(*self),
            (Step::Delete(found), _) => found.is_none_or(|found| found == there).then_some(Self::Absent),
        }
    }
}

/// The reason why a history was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad<S = Step> {
    /// No order explains it. Contains the operations around the first return that no order reaches, sorted by the time
    /// of their calls.
    NotLinearizable(Vec<Operation<S>>),
    /// The search reached its limit: the history is inconclusive.
    TooLong,
}

/// The list's two ends, before the first and after the last entry.
const HEAD: usize = 0;

/// Calls and returns, linked in the order of time.
struct List {
    next: Vec<usize>,
    before: Vec<usize>,
    /// Operation of each entry, and whether the entry is its call.
    entries: Vec<(usize, bool)>,
    /// Positions of the call and the return of each operation.
    places: Vec<(usize, Option<usize>)>,
}

impl List {
    fn new<S>(operations: &[Operation<S>]) -> Self {
        let mut times = Vec::with_capacity(operations.len() * 2);
        for (at, operation) in operations.iter().enumerate() {
            // At equal times calls come first: operations that touch may overlap.
            times.push((operation.called_ns, 0, at));
            if let Some(returned_ns) = operation.returned_ns {
                times.push((returned_ns, 1, at));
            }
        }
        times.sort_unstable();
        let mut entries = vec![(usize::MAX, false)];
        let mut places = vec![(0, None); operations.len()];
        for (_, which, at) in times {
            if which == 0 {
                places[at].0 = entries.len();
            } else {
                places[at].1 = Some(entries.len());
            }
            entries.push((at, which == 0));
        }
        let count = entries.len();
        // A ring through the head.
        let next = (0..count).map(|at| (at + 1) % count).collect();
        let before = (0..count).map(|at| (at + count - 1) % count).collect();
        Self { next, before, entries, places }
    }

    fn take(&mut self, at: usize) {
        let (before, next) = (self.before[at], self.next[at]);
        self.next[before] = next;
        self.before[next] = before;
    }

    /// Puts back the operation that was removed last.
    fn put_back(&mut self, at: usize) {
        let (before, next) = (self.before[at], self.next[at]);
        self.next[before] = at;
        self.before[next] = at;
    }

    fn lift(&mut self, operation: usize) {
        let (call, back) = self.places[operation];
        self.take(call);
        if let Some(back) = back {
            self.take(back);
        }
    }

    fn lower(&mut self, operation: usize) {
        let (call, back) = self.places[operation];
        if let Some(back) = back {
            self.put_back(back);
        }
        self.put_back(call);
    }
}

/// Checks the operations on one name, which was empty before the first of them.
///
/// # Errors
/// [`Bad`].
pub fn check(operations: &[Operation]) -> Result<(), Bad> {
    explain::<Name>(operations)
}

/// Checks the operations on one object, which was in its default state before the first of them.
///
/// # Errors
/// [`Bad`].
pub fn explain<T: State>(operations: &[Operation<T::Step>]) -> Result<(), Bad<T::Step>> {
    let mut list = List::new(operations);
    let mut open = operations.iter().filter(|o| o.returned_ns.is_some()).count();
    let mut chosen = vec![0u64; operations.len().div_ceil(64)];
    let mut order: Vec<(usize, T)> = Vec::new();
    let mut tried: HashSet<(Box<[u64]>, T)> = HashSet::new();
    let mut state = T::default();
    let tried_max = tried_max();
    // The furthest return that no order passed.
    let mut stuck = 0;
    let mut at = list.next[HEAD];
    while open > 0 {
        let (operation, is_call) = list.entries[at];
        if is_call {
            let bit = 1 << (operation % 64);
            if let Some(after) = state.after(operations[operation].step) {
                chosen[operation / 64] |= bit;
                if tried.insert((chosen.clone().into_boxed_slice(), after.clone())) {
                    if tried.len() > tried_max {
                        return Err(Bad::TooLong);
                    }
                    order.push((operation, std::mem::replace(&mut state, after)));
                    list.lift(operation);
                    open -= usize::from(operations[operation].returned_ns.is_some());
                    at = list.next[HEAD];
                    continue;
                }
                chosen[operation / 64] &= !bit;
            }
            at = list.next[at];
        } else {
            stuck = stuck.max(at);
            let Some((operation, before)) = order.pop() else {
                return Err(Bad::NotLinearizable(around(operations, &list, stuck)));
            };
            state = before;
            chosen[operation / 64] &= !(1 << (operation % 64));
            list.lower(operation);
            open += usize::from(operations[operation].returned_ns.is_some());
            at = list.next[list.places[operation].0];
        }
    }
    Ok(())
}

/// Returns the operations whose calls or returns are near an entry, and those that were open then.
fn around<S: Copy>(operations: &[Operation<S>], list: &List, at: usize) -> Vec<Operation<S>> {
    let near = &list.entries[at.saturating_sub(12).max(1)..(at + 5).min(list.entries.len())];
    let now = operations[list.entries[at].0].returned_ns.expect("it is a return");
    let is_open = |o: &Operation<S>| o.called_ns <= now && o.returned_ns.is_none_or(|returned_ns| returned_ns >= now);
    let wanted = |at: usize| is_open(&operations[at]) || near.iter().any(|&(other, _)| other == at);
    let mut found: Vec<Operation<S>> =
        (0..operations.len()).filter(|&at| wanted(at)).map(|at| operations[at]).collect();
    found.sort_unstable_by_key(|operation| operation.called_ns);
    found
}

impl<S: Debug> std::fmt::Display for Bad<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::NotLinearizable(operations) = self else { return f.write_str("too many orders to try") };
        writeln!(f, "no order explains all of it; where it ended:")?;
        let first = operations.first().map_or(0, |operation| operation.called_ns);
        for Operation { called_ns, returned_ns, step } in operations {
            let returned = returned_ns.map_or("never".into(), |at| (at - first).to_string());
            writeln!(f, "{:>10} to {returned:>10} ns  {step:x?}", called_ns - first)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(count: u32) -> Value {
        Value::new(1, count, 0)
    }

    fn op(called_ns: u64, returned_ns: u64, step: Step) -> Operation {
        Operation { called_ns, returned_ns: Some(returned_ns), step }
    }

    fn cut(called_ns: u64, step: Step) -> Operation {
        Operation { called_ns, returned_ns: None, step }
    }

    fn refused(operations: &[Operation]) {
        assert!(matches!(check(operations), Err(Bad::NotLinearizable(_))), "{operations:?}");
    }

    #[test]
    fn one_after_the_other() {
        let (a, b) = (value(1), value(2));
        check(&[]).unwrap();
        check(&[
            op(0, 1, Step::Get(None)),
            op(2, 3, Step::Put(a)),
            op(4, 5, Step::Get(Some(a))),
            op(6, 7, Step::Put(b)),
            op(8, 9, Step::Exists(true)),
            op(10, 11, Step::Delete(Some(true))),
            op(12, 13, Step::Delete(Some(false))),
            op(14, 15, Step::Get(None)),
        ])
        .unwrap();
    }

    #[test]
    fn a_value_that_was_replaced_does_not_come_back() {
        let (a, b) = (value(1), value(2));
        refused(&[op(0, 1, Step::Put(a)), op(2, 3, Step::Put(b)), op(4, 5, Step::Get(Some(a)))]);
    }

    #[test]
    fn a_put_that_returned_is_not_lost() {
        refused(&[op(0, 1, Step::Put(value(1))), op(2, 3, Step::Get(None))]);
        refused(&[op(0, 1, Step::Put(value(1))), op(2, 3, Step::Exists(false))]);
        refused(&[op(0, 1, Step::Put(value(1))), op(2, 3, Step::Delete(Some(false)))]);
    }

    #[test]
    fn nothing_comes_from_nowhere() {
        refused(&[op(0, 1, Step::Get(Some(value(1))))]);
        // A read before the put.
        refused(&[op(0, 1, Step::Get(Some(value(1)))), op(2, 3, Step::Put(value(1)))]);
    }

    #[test]
    fn what_overlaps_may_be_seen_in_either_order_but_in_one() {
        let (a, b) = (value(1), value(2));
        let puts = [op(0, 10, Step::Put(a)), op(0, 10, Step::Put(b))];
        let with = |more: &[Operation]| [&puts[..], more].concat();
        check(&with(&[op(11, 12, Step::Get(Some(a)))])).unwrap();
        check(&with(&[op(11, 12, Step::Get(Some(b)))])).unwrap();
        check(&with(&[op(3, 4, Step::Get(Some(b))), op(11, 12, Step::Get(Some(a)))])).unwrap();
        // Two readers that see the two puts in different orders.
        refused(&with(&[op(11, 12, Step::Get(Some(a))), op(13, 14, Step::Get(Some(b)))]));
        refused(&with(&[op(1, 2, Step::Get(Some(a))), op(3, 4, Step::Get(Some(b))), op(11, 12, Step::Get(Some(a)))]));
    }

    #[test]
    fn a_get_may_not_go_back_while_a_put_is_open() {
        let (a, b) = (value(1), value(2));
        let history = [op(0, 1, Step::Put(a)), op(2, 20, Step::Put(b)), op(3, 4, Step::Get(Some(b)))];
        check(&history).unwrap();
        refused(&[&history[..], &[op(5, 6, Step::Get(Some(a)))]].concat());
    }

    #[test]
    fn what_was_cut_short_happened_once_or_not_at_all() {
        let (a, b) = (value(1), value(2));
        check(&[cut(0, Step::Put(a)), op(1, 2, Step::Get(None))]).unwrap();
        check(&[cut(0, Step::Put(a)), op(1, 2, Step::Get(None)), op(3, 4, Step::Get(Some(a)))]).unwrap();
        check(&[op(0, 1, Step::Put(a)), cut(2, Step::Delete(None)), op(3, 4, Step::Get(None))]).unwrap();
        // Twice: seen, replaced, and seen again.
        refused(&[
            cut(0, Step::Put(a)),
            op(1, 2, Step::Get(Some(a))),
            op(3, 4, Step::Put(b)),
            op(5, 6, Step::Get(Some(a))),
        ]);
        // A get that returned the value before the put was called.
        refused(&[op(1, 2, Step::Get(Some(a))), cut(3, Step::Put(a))]);
    }

    #[test]
    fn what_was_renamed_is_one_value_of_the_other_name() {
        let here = |count| Value::new(1, count, 7);
        let other = Value::new(1, 1, 8);
        check(&[op(0, 1, Step::PutFrom(7)), op(2, 3, Step::Get(Some(here(1)))), op(4, 5, Step::Get(Some(here(1))))])
            .unwrap();
        refused(&[op(0, 1, Step::PutFrom(7)), op(2, 3, Step::Get(Some(other)))]);
        refused(&[op(0, 1, Step::PutFrom(7)), op(2, 3, Step::Get(Some(here(1)))), op(4, 5, Step::Get(Some(here(2))))]);
        refused(&[op(0, 1, Step::PutFrom(7)), op(2, 3, Step::Get(None))]);
    }

    /// Tries all orders of a few operations, one by one.
    fn by_hand(operations: &[Operation]) -> bool {
        fn go(operations: &[Operation], done: u32, state: Name) -> bool {
            let left = || (0..operations.len()).filter(|at| done >> at & 1 == 0);
            if left().all(|at| operations[at].returned_ns.is_none()) {
                return true;
            }
            let first_return = left().filter_map(|at| operations[at].returned_ns).min().expect("one has returned");
            left().any(|at| {
                operations[at].called_ns <= first_return
                    && state.after(operations[at].step).is_some_and(|state| go(operations, done | 1 << at, state))
            })
        }
        go(operations, 0, Name::Absent)
    }

    #[test]
    fn it_agrees_with_trying_all_orders() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let operations: Vec<Operation> = (0..2 + random(5))
                .map(|_| {
                    let called_ns = random(12);
                    let returned_ns = (random(5) > 0).then(|| called_ns + 1 + random(8));
                    let known = value(1 + random(2) as u32);
                    let step = match random(6) {
                        0 | 1 => Step::Put(known),
                        2 => Step::Get((random(3) > 0).then_some(known)),
                        3 => Step::Exists(random(2) > 0),
                        4 => Step::Delete((random(3) > 0).then(|| random(2) > 0)),
                        _ => Step::PutFrom(random(2) as u8),
                    };
                    Operation { called_ns, returned_ns, step }
                })
                .collect();
            let expected = by_hand(&operations);
            assert_eq!(check(&operations).is_ok(), expected, "{operations:?}");
            if expected { good += 1 } else { bad += 1 }
        }
        assert!(good > 1000 && bad > 1000, "{good} good, {bad} bad: the sample shows little");
    }
}
