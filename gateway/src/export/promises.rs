//! Who was promised a word, and the words.
//!
//! No clock, no socket: what happens goes in, and the words that are to be sent come out.
//!
//! A listener finds that it has missed a word by the numbers. For that, each (listener, namespace) has a count without gaps while
//! nothing is lost; where promises were dropped, since the listener could not be reached, the count skips a number, and an empty word tells
//! the listener once it can be reached again. An empty word is sent now and then in any case, so that the last word before a silence
//! is missed, too.

use crate::wire::{Asker, Changed, Epoch, NodeName, Stamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Names in one word, at most.
pub const NAMES_PER_WORD: usize = 256;
/// Bytes of names in one word, at most.
const NAME_BYTES_PER_WORD: usize = 32 * 1024;
/// How often a listener with promises hears something.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// One word to one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// To whom.
    pub to: NodeName,
    /// Of which namespace.
    pub space: usize,
    /// What is said.
    pub changed: Changed,
}

/// What is kept about one listener in one namespace.
#[derive(Debug, Default)]
struct Line {
    /// Number of its next word.
    next: u64,
    /// What the listener was told that each name holds: a change to that is none.
    names: HashMap<String, Option<Stamp>>,
    order: VecDeque<String>,
    /// A number was skipped, and the listener is not told yet.
    owed: bool,
    said: Option<Instant>,
}

#[derive(Debug)]
struct Listener {
    epoch: Epoch,
    reachable: bool,
    lines: BTreeMap<usize, Line>,
}

/// All promises of this gateway.
#[derive(Debug)]
pub struct Promises {
    epoch: Epoch,
    /// Names that one listener is promised, at most, in one namespace.
    max: usize,
    /// Listeners, at most.
    listeners_max: usize,
    listeners: BTreeMap<NodeName, Listener>,
    /// How many listeners a name is promised to.
    count: HashMap<(usize, String), usize>,
}

/// What a promise leads to besides.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// An old promise that had to be redeemed, though nothing changed: too many.
    pub word: Option<Word>,
    /// Whether the promise stands. It does not where there are too many listeners: such a one must not be answered.
    pub stands: bool,
}

impl Promises {
    /// None.
    pub fn new(epoch: Epoch, max: usize, listeners_max: usize) -> Self {
        let (listeners, count) = (BTreeMap::new(), HashMap::new());
        Self { epoch, max: max.max(1), listeners_max, listeners, count }
    }

    /// Promises a word to whoever asked, once the name holds something else than `told`.
    pub fn promise(&mut self, asker: &Asker, space: usize, name: &str, told: Option<Stamp>) -> Made {
        if self.listeners.get(&asker.node).is_some_and(|l| l.epoch != asker.epoch) {
            self.forget(&asker.node);
        }
        if !self.listeners.contains_key(&asker.node) {
            if self.listeners.len() >= self.listeners_max {
                return Made::default();
            }
            let fresh = Listener { epoch: asker.epoch, reachable: true, lines: BTreeMap::new() };
            self.listeners.insert(asker.node.clone(), fresh);
        }
        let Some(listener) = self.listeners.get_mut(&asker.node) else { return Made::default() };
        // Who asks can be reached, whatever was heard of it.
        listener.reachable = true;
        let line = listener.lines.entry(space).or_insert_with(|| Line { next: 1, ..Line::default() });
        if line.names.insert(name.to_owned(), told).is_some() {
            return Made { word: None, stands: true };
        }
        line.order.push_back(name.to_owned());
        *self.count.entry((space, name.to_owned())).or_default() += 1;
        let mut word = None;
        if line.names.len() > self.max {
            while let Some(oldest) = line.order.pop_front() {
                if line.names.remove(&oldest).is_some() {
                    // "Nothing is known of it": so that the listener asks again.
                    word = Some(say(self.epoch, &asker.node, space, line, vec![(oldest.clone(), None)]));
                    less(&mut self.count, space, oldest);
                    break;
                }
            }
        }
        Made { word, stands: true }
    }

    /// Makes room for one more listener, if there is none: those whom nobody knows have to go. Their next word has another number than
    /// they expect.
    pub fn make_room(&mut self, asker: &NodeName, is_known: impl Fn(&NodeName) -> bool) {
        if self.listeners.len() < self.listeners_max || self.listeners.contains_key(asker) {
            return;
        }
        let strangers: Vec<NodeName> = self.listeners.keys().filter(|node| !is_known(node)).cloned().collect();
        for node in strangers {
            self.forget(&node);
        }
    }

    /// Whether anybody was promised a word about it.
    pub fn is_promised(&self, space: usize, name: &str) -> bool {
        self.count.contains_key(&(space, name.to_owned()))
    }

    /// Names changed: the words to all that were promised one.
    pub fn on_changed(&mut self, space: usize, names: &[(String, Option<Stamp>)]) -> Vec<Word> {
        let mut words = Vec::new();
        for (node, listener) in &mut self.listeners {
            let Some(line) = listener.lines.get_mut(&space) else { continue };
            let (mut several, mut bytes) = (Vec::new(), 0);
            for (name, stamp) in names {
                // A listener that has asked since then knows already, and was promised a word about the next change.
                if line.names.get(name).is_none_or(|told| told == stamp) {
                    continue;
                }
                line.names.remove(name);
                less(&mut self.count, space, name.clone());
                if several.len() >= NAMES_PER_WORD || bytes + name.len() > NAME_BYTES_PER_WORD {
                    words.push(say(self.epoch, node, space, line, std::mem::take(&mut several)));
                    bytes = 0;
                }
                bytes += name.len();
                several.push((name.clone(), *stamp));
            }
            if !several.is_empty() {
                words.push(say(self.epoch, node, space, line, several));
            }
            // Of promises that were redeemed.
            if line.order.len() > 2 * line.names.len() + 16 {
                line.order.retain(|name| line.names.contains_key(name));
            }
        }
        words
    }

    /// A listener cannot be reached: its promises are dropped, and it will have to be told.
    pub fn on_parted(&mut self, node: &NodeName) {
        let Some(listener) = self.listeners.get_mut(node) else { return };
        listener.reachable = false;
        for (space, line) in &mut listener.lines {
            for (name, _) in line.names.drain() {
                less(&mut self.count, *space, name);
            }
            line.order.clear();
            line.next += 1;
            line.owed = true;
        }
    }

    /// A listener can be reached (again): what it has to be told.
    pub fn on_came(&mut self, node: &NodeName, epoch: Epoch) -> Vec<Word> {
        let Some(listener) = self.listeners.get_mut(node) else { return Vec::new() };
        if listener.epoch != epoch {
            self.forget(node);
            return Vec::new();
        }
        listener.reachable = true;
        let mut words = Vec::new();
        for (space, line) in &mut listener.lines {
            if line.owed {
                words.push(say(self.epoch, node, *space, line, Vec::new()));
            }
        }
        words
    }

    /// What is said though nothing happened.
    pub fn on_tick(&mut self, now: Instant) -> Vec<Word> {
        let mut words = Vec::new();
        for (node, listener) in self.listeners.iter_mut().filter(|(_, listener)| listener.reachable) {
            for (space, line) in &mut listener.lines {
                // One more after the last promise was redeemed: that word, too, may be lost.
                let due = line.said.is_none_or(|said| now.saturating_duration_since(said) >= HEARTBEAT);
                if due && (line.owed || !line.names.is_empty()) {
                    let owed = !line.names.is_empty();
                    words.push(say(self.epoch, node, *space, line, Vec::new()));
                    (line.owed, line.said) = (owed, Some(now));
                }
            }
        }
        words
    }

    /// Listeners and promises.
    pub fn len(&self) -> (usize, usize) {
        (self.listeners.len(), self.count.values().sum())
    }

    fn forget(&mut self, node: &NodeName) {
        let Some(listener) = self.listeners.remove(node) else { return };
        for (space, line) in listener.lines {
            for name in line.names.into_keys() {
                less(&mut self.count, space, name);
            }
        }
    }
}

fn say(epoch: Epoch, to: &NodeName, space: usize, line: &mut Line, names: Vec<(String, Option<Stamp>)>) -> Word {
    let number = line.next;
    line.next += 1;
    // Until another word has followed this one, nobody notices that it is lost.
    line.owed = !names.is_empty();
    Word { to: to.clone(), space, changed: Changed { epoch, number, names } }
}

fn less(count: &mut HashMap<(usize, String), usize>, space: usize, name: String) {
    let key = (space, name);
    if let Some(number) = count.get_mut(&key) {
        *number -= 1;
        if *number == 0 {
            count.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(name: &str, epoch: u64) -> Asker {
        Asker { node: NodeName::new(name).unwrap(), epoch: Epoch(epoch) }
    }

    #[allow(clippy::unnecessary_wraps)] // what a name holds may be nothing
    fn stamp(counter: u64) -> Option<Stamp> {
        Some(Stamp { epoch: Epoch(1), counter })
    }

    #[test]
    fn a_promise_is_redeemed_once() {
        let mut promises = Promises::new(Epoch(1), 10, 10);
        let (a, b) = (asker("a", 5), asker("b", 6));
        for who in [&a, &a, &b] {
            assert_eq!(promises.promise(who, 0, "x", stamp(1)), Made { word: None, stands: true });
        }
        assert!(promises.is_promised(0, "x") && !promises.is_promised(1, "x"));
        let words = promises.on_changed(0, &[("x".into(), stamp(2)), ("y".into(), stamp(3))]);
        assert_eq!(words.iter().map(|w| (w.to.as_str(), w.changed.number)).collect::<Vec<_>>(), [("a", 1), ("b", 1)]);
        assert_eq!(words[0].changed.names, [("x".to_owned(), stamp(2))]);
        assert!(promises.on_changed(0, &[("x".into(), stamp(4))]).is_empty() && !promises.is_promised(0, "x"));
    }

    #[test]
    fn a_listener_whose_promises_were_dropped_finds_a_gap() {
        let mut promises = Promises::new(Epoch(1), 10, 10);
        let a = asker("a", 5);
        promises.promise(&a, 0, "x", stamp(1));
        assert_eq!(promises.on_changed(0, &[("x".into(), stamp(2))])[0].changed.number, 1);
        promises.promise(&a, 0, "x", stamp(1));
        promises.on_parted(&a.node);
        assert!(promises.on_changed(0, &[("x".into(), stamp(3))]).is_empty());
        let words = promises.on_came(&a.node, a.epoch);
        assert_eq!(words[0].changed, Changed { epoch: Epoch(1), number: 3, names: vec![] });
        // In another life it knows nothing of the old one.
        promises.promise(&a, 0, "x", stamp(1));
        assert!(promises.on_came(&a.node, Epoch(6)).is_empty());
        assert_eq!(promises.len(), (0, 0));
        promises.promise(&asker("a", 6), 0, "x", None);
        assert_eq!(promises.on_changed(0, &[("x".into(), stamp(9))])[0].changed.number, 1);
    }

    #[test]
    fn the_last_word_before_a_silence_is_followed_by_another() {
        let mut promises = Promises::new(Epoch(1), 10, 10);
        let start = Instant::now();
        promises.promise(&asker("a", 5), 0, "x", None);
        assert_eq!(promises.on_tick(start).len(), 1);
        assert!(promises.on_tick(start + HEARTBEAT / 2).is_empty());
        assert_eq!(promises.on_changed(0, &[("x".into(), stamp(2))])[0].changed.number, 2);
        assert_eq!(promises.on_tick(start + HEARTBEAT)[0].changed.number, 3);
        // And then there is nothing to be said.
        assert!(promises.on_tick(start + 9 * HEARTBEAT).is_empty());
    }

    #[test]
    fn too_many_promises_are_redeemed_early_and_too_many_listeners_get_none() {
        let mut promises = Promises::new(Epoch(1), 2, 2);
        let a = asker("a", 5);
        promises.promise(&a, 0, "x", stamp(1));
        promises.promise(&a, 0, "y", stamp(1));
        let word = promises.promise(&a, 0, "z", stamp(1)).word.unwrap();
        assert_eq!(word.changed.names, [("x".to_owned(), None)]);
        assert!(!promises.is_promised(0, "x"));
        promises.promise(&asker("b", 1), 0, "x", None);
        assert!(!promises.promise(&asker("c", 1), 0, "x", None).stands);
        promises.make_room(&asker("c", 1).node, |node| node.as_str() == "a");
        assert!(promises.promise(&asker("c", 1), 0, "x", None).stands);
        assert_eq!(promises.len().0, 2);
    }

    #[test]
    fn a_listener_that_knows_already_keeps_its_promise() {
        let mut promises = Promises::new(Epoch(1), 10, 10);
        promises.promise(&asker("a", 5), 0, "x", stamp(1));
        // It asks again before the change that it is told then is noticed here.
        promises.promise(&asker("a", 5), 0, "x", stamp(2));
        assert!(promises.on_changed(0, &[("x".into(), stamp(2))]).is_empty());
        assert_eq!(promises.on_changed(0, &[("x".into(), stamp(3))]).len(), 1);
    }

    #[test]
    fn many_changes_are_few_words() {
        let mut promises = Promises::new(Epoch(1), 100_000, 2);
        let names: Vec<_> = (0..1000).map(|n| (format!("name/{n}"), stamp(n + 1))).collect();
        for (name, _) in &names {
            promises.promise(&asker("a", 5), 0, name, None);
        }
        let words = promises.on_changed(0, &names);
        assert_eq!(words.len(), 4);
        assert_eq!(words.iter().map(|w| w.changed.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(promises.len(), (1, 0));
    }
}
