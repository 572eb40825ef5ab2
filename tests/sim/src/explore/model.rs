//! The sequential model: plain maps of names, lists and streams, on which an operation happens at once or not at all.

use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::wire::Reply;

/// Messages of a stream that its ring holds.
pub const RING: usize = 2;

/// A value, as any client finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Val {
    /// The actor that wrote it.
    pub owner: usize,
    /// Its generation and slot, which no other value of this actor ever has.
    pub cell: u64,
    pub deadline_ns: Option<u64>,
    pub ephemeral: bool,
}

impl Val {
    /// Returns true if both are the same value with the same kind of lifetime. The time of a deadline is that of the attempt
    /// that took effect.
    fn is(&self, other: &Self) -> bool {
        let kind = |val: &Self| (val.owner, val.cell, val.deadline_ns.is_some(), val.ephemeral);
        kind(self) == kind(other)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    pub producer: usize,
    /// The latest messages.
    pub messages: Vec<u64>,
    pub subscribers: BTreeSet<usize>,
}

/// All that a new client can find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub names: BTreeMap<String, Val>,
    pub lists: BTreeMap<String, Vec<Val>>,
    pub streams: BTreeMap<String, Stream>,
}

/// A request's effect on the model.
#[derive(Clone, Debug, Default)]
pub enum Op {
    #[default]
    Nothing,
    Bind(String, Val),
    Delete(String),
    Rename(String, String),
    Append(String, Vec<Val>),
    ListDelete(String),
    ListRename(String, String),
    /// The confirmation of an item. `None`: it had ended.
    Done(Option<Val>),
    Open(String, usize),
    StreamDelete(String),
    Subscribe(String, usize),
}

impl Model {
    /// Returns the state after an operation.
    pub fn after(&self, op: &Op) -> Self {
        let mut it = self.clone();
        match op {
            Op::Nothing | Op::Done(None) => {}
            Op::Bind(name, val) => drop(it.names.insert(name.clone(), *val)),
            Op::Delete(name) => drop(it.names.remove(name)),
            Op::Rename(from, to) => {
                if let Some(val) = it.names.remove(from) {
                    it.names.insert(to.clone(), val);
                }
            }
            Op::Append(list, vals) => it.lists.entry(list.clone()).or_default().extend(vals),
            Op::ListDelete(list) => drop(it.lists.remove(list)),
            Op::ListRename(from, to) => {
                if let Some(items) = it.lists.remove(from) {
                    it.lists.insert(to.clone(), items);
                }
            }
            Op::Done(Some(val)) => it.lists.values_mut().for_each(|items| items.retain(|item| item.cell != val.cell)),
            Op::Open(name, producer) => {
                it.streams.insert(name.clone(), Stream { producer: *producer, ..Stream::default() });
            }
            Op::StreamDelete(name) => drop(it.streams.remove(name)),
            Op::Subscribe(name, actor) => {
                it.streams.get_mut(name).into_iter().for_each(|stream| stream.subscribers.extend([*actor]));
            }
        }
        it
    }

    /// Returns the states that a kill within an operation may leave: before it, after it, and the documented ones between.
    pub fn around(&self, op: &Op) -> Vec<Self> {
        let between = match op {
            // For a moment, both names lead to the value.
            Op::Rename(from, to) => self.names.get(from).map(|val| self.after(&Op::Bind(to.clone(), *val))),
            // The former stream of this name ends before the new one has a ring.
            Op::Open(name, _) => Some(self.after(&Op::StreamDelete(name.clone()))),
            // The list exists before its first item.
            Op::Append(list, _) => Some(self.after(&Op::Append(list.clone(), Vec::new()))),
            // The former subscription of this cursor ends before the new one begins.
            Op::Subscribe(_, actor) => {
                let mut between = self.clone();
                between.streams.values_mut().for_each(|stream| stream.subscribers.retain(|it| it != actor));
                Some(between)
            }
            _ => None,
        };
        [self.clone(), self.after(op)].into_iter().chain(between).collect()
    }

    /// Returns the state after an operation with this response.
    ///
    /// # Panics
    /// If the response contradicts this state. `ends`: whether a value may end at any time.
    pub fn answered(&self, op: &Op, reply: &Reply, ends: &dyn Fn(&Val) -> bool) -> Self {
        match (op, reply) {
            (_, Reply::Refused(_)) => self.clone(),
            (Op::Delete(name), Reply::Deleted { existed }) => {
                let val = self.names.get(name);
                assert!(*existed == val.is_some() || val.is_some_and(ends), "{name:?} existed: {existed}, in {self:?}");
                self.after(op)
            }
            (Op::Done(val), Reply::Deleted { existed }) => {
                let there = val.is_some_and(|val| self.lists.values().flatten().any(|item| item.is(&val)));
                assert_eq!(*existed, there, "{val:?} is confirmed in {self:?}");
                self.after(op)
            }
            (Op::StreamDelete(name), Reply::Deleted { existed }) => {
                assert!(!*existed || self.streams.contains_key(name), "stream {name:?} existed, in {self:?}");
                self.after(op)
            }
            _ => self.after(op),
        }
    }

    /// Returns true if a new client may see `seen` in this state.
    pub fn allows(&self, seen: &Self, ends: &dyn Fn(&Val) -> bool, is_gone: &dyn Fn(usize) -> bool) -> bool {
        let names = seen.names.iter().all(|(name, val)| self.names.get(name).is_some_and(|own| own.is(val)))
            && self.names.iter().all(|(name, val)| seen.names.contains_key(name) || ends(val));
        let none = Vec::new();
        // A list that has only had ephemeral items ends with the last of them.
        let lists = seen.lists.keys().all(|list| self.lists.contains_key(list));
        let lists = lists
            && self.lists.iter().all(|(list, own)| {
                let mut found = seen.lists.get(list).unwrap_or(&none).iter().peekable();
                own.iter().all(|item| found.next_if(|it| it.is(item)).is_some() || ends(item)) && found.peek().is_none()
            });
        let like = |own: &Stream, it: &Stream| {
            (own.producer, &own.messages) == (it.producer, &it.messages)
                && it.subscribers.is_subset(&own.subscribers)
                && own.subscribers.difference(&it.subscribers).all(|&actor| is_gone(actor))
        };
        let streams = seen.streams.iter().all(|(name, it)| self.streams.get(name).is_some_and(|own| like(own, it)))
            && self.streams.iter().all(|(name, own)| seen.streams.contains_key(name) || is_gone(own.producer));
        names && lists && streams
    }

    /// Asserts that a new client sees a state that one of `states` allows.
    pub fn assert_one_allows(
        states: &[Self],
        seen: &Self,
        ends: &dyn Fn(&Val) -> bool,
        is_gone: &dyn Fn(usize) -> bool,
        when: &str,
    ) {
        let fits = states.iter().any(|state| state.allows(seen, ends, is_gone));
        assert!(fits, "{when}, a new client sees\n  {seen:?}\nand the sequential model allows\n  {states:?}");
    }
}
