//! Invalidation of other nodes' copies: their subscriptions to the next change of a name, and the
//! messages that report these changes.
//!
//! This is a pure state machine without clock and socket.
//!
//! The messages to one subscriber about one namespace are numbered without gaps, so that a subscriber detects a lost
//! message. When this gateway drops the subscriptions of a node that it cannot reach, it skips a number and sends an
//! empty message once the node returns. It also sends an empty message at intervals, so that a subscriber detects the
//! loss of the last message before a pause.

use crate::wire::{Asker, Changed, Epoch, HEARTBEAT, NodeName, Stamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

/// Maximum number of names in one message.
pub const NAMES_PER_MESSAGE: usize = 256;
/// Maximum bytes of all names in one message.
const NAME_BYTES_PER_MESSAGE: usize = 32 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The subscriber.
    pub to: NodeName,
    /// Index of the namespace.
    pub space: usize,
    pub changed: Changed,
}

/// The subscriptions of one node in one namespace.
#[derive(Debug, Default)]
struct Channel {
    /// Number of the next message.
    next: u64,
    /// For each subscribed name, the value that the subscriber already has. A change to this same
    /// value sends no message.
    names: HashMap<String, Option<Stamp>>,
    order: VecDeque<String>,
    /// Whether the gateway must send an empty message, by whose number the subscriber can detect
    /// the loss of the last message.
    owed: bool,
    said: Option<Instant>,
}

#[derive(Debug)]
struct Subscriber {
    epoch: Epoch,
    reachable: bool,
    channels: BTreeMap<usize, Channel>,
}

#[derive(Debug)]
pub struct Subscriptions {
    epoch: Epoch,
    /// Maximum number of names to which one node is subscribed in one namespace.
    max: usize,
    subscribers_max: usize,
    subscribers: BTreeMap<NodeName, Subscriber>,
    /// Number of subscribers of each name, by namespace and name.
    count: HashMap<(usize, String), usize>,
}

/// The result of a subscription.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subscribed {
    /// A message that ends the node's oldest subscription, although that value has not changed. Set
    /// if the node had too many subscriptions.
    pub evicted: Option<Invalidation>,
    /// False if there are too many subscribers. Then the gateway must not respond to the node.
    pub is_accepted: bool,
}

impl Subscriptions {
    /// Makes an empty collection. `max` limits the names of one node in one namespace, `subscribers_max` the nodes.
    pub fn new(epoch: Epoch, max: usize, subscribers_max: usize) -> Self {
        let (subscribers, count) = (BTreeMap::new(), HashMap::new());
        Self { epoch, max: max.max(1), subscribers_max, subscribers, count }
    }

    /// Subscribes the asker to the first change of a name. `told` is the stamp of the value that the
    /// asker already has.
    pub fn subscribe(&mut self, asker: &Asker, space: usize, name: &str, told: Option<Stamp>) -> Subscribed {
        if self.subscribers.get(&asker.node).is_some_and(|l| l.epoch != asker.epoch) {
            self.forget(&asker.node);
        }
        if !self.subscribers.contains_key(&asker.node) {
            if self.subscribers.len() >= self.subscribers_max {
                return Subscribed::default();
            }
            let fresh = Subscriber { epoch: asker.epoch, reachable: true, channels: BTreeMap::new() };
            self.subscribers.insert(asker.node.clone(), fresh);
        }
        let Some(subscriber) = self.subscribers.get_mut(&asker.node) else { return Subscribed::default() };
        // The node has just sent a request, so it can be reached.
        subscriber.reachable = true;
        let channel = subscriber.channels.entry(space).or_insert_with(|| Channel { next: 1, ..Channel::default() });
        if channel.names.insert(name.to_owned(), told).is_some() {
            return Subscribed { evicted: None, is_accepted: true };
        }
        channel.order.push_back(name.to_owned());
        *self.count.entry((space, name.to_owned())).or_default() += 1;
        let mut evicted = None;
        if channel.names.len() > self.max {
            while let Some(oldest) = channel.order.pop_front() {
                if channel.names.remove(&oldest).is_some() {
                    // A message without a stamp invalidates the subscriber's copy, independently of
                    // its value.
                    evicted = Some(message(self.epoch, &asker.node, space, channel, vec![(oldest.clone(), None)]));
                    less(&mut self.count, space, oldest);
                    break;
                }
            }
        }
        Subscribed { evicted, is_accepted: true }
    }

    /// Makes room for one more subscriber if necessary, by removing the nodes for which `is_known`
    /// returns false. If such a node returns, it detects the loss by a gap before the number of its
    /// next message.
    pub fn make_room(&mut self, asker: &NodeName, is_known: impl Fn(&NodeName) -> bool) {
        if self.subscribers.len() < self.subscribers_max || self.subscribers.contains_key(asker) {
            return;
        }
        let unknown: Vec<NodeName> = self.subscribers.keys().filter(|node| !is_known(node)).cloned().collect();
        for node in unknown {
            self.forget(&node);
        }
    }

    /// Returns true if at least one node is subscribed to the name.
    pub fn is_subscribed(&self, space: usize, name: &str) -> bool {
        self.count.contains_key(&(space, name.to_owned()))
    }

    /// Returns the messages to the subscribers of names that changed.
    pub fn on_changed(&mut self, space: usize, names: &[(String, Option<Stamp>)]) -> Vec<Invalidation> {
        let mut messages = Vec::new();
        for (node, subscriber) in &mut self.subscribers {
            let Some(channel) = subscriber.channels.get_mut(&space) else { continue };
            let (mut several, mut bytes) = (Vec::new(), 0);
            for (name, stamp) in names {
                // The subscriber fetched this value after the change, so its subscription is for
                // the next change.
                if channel.names.get(name).is_none_or(|told| told == stamp) {
                    continue;
                }
                channel.names.remove(name);
                less(&mut self.count, space, name.clone());
                if several.len() >= NAMES_PER_MESSAGE || bytes + name.len() > NAME_BYTES_PER_MESSAGE {
                    messages.push(message(self.epoch, node, space, channel, std::mem::take(&mut several)));
                    bytes = 0;
                }
                bytes += name.len();
                several.push((name.clone(), *stamp));
            }
            if !several.is_empty() {
                messages.push(message(self.epoch, node, space, channel, several));
            }
            // The queue still contains names whose subscriptions have ended. Remove them only when
            // they outnumber the others, so that the amortized cost is constant.
            if channel.order.len() > 2 * channel.names.len() + 16 {
                channel.order.retain(|name| channel.names.contains_key(name));
            }
        }
        messages
    }

    /// Drops the subscriptions of an unreachable node. The node detects this by a gap before the
    /// number of its next message.
    pub fn on_node_down(&mut self, node: &NodeName) {
        let Some(subscriber) = self.subscribers.get_mut(node) else { return };
        subscriber.reachable = false;
        for (space, channel) in &mut subscriber.channels {
            for (name, _) in channel.names.drain() {
                less(&mut self.count, *space, name);
            }
            channel.order.clear();
            channel.next += 1;
            channel.owed = true;
        }
    }

    /// Returns messages that report to a returning node that it has missed messages.
    pub fn on_node_up(&mut self, node: &NodeName, epoch: Epoch) -> Vec<Invalidation> {
        let Some(subscriber) = self.subscribers.get_mut(node) else { return Vec::new() };
        if subscriber.epoch != epoch {
            self.forget(node);
            return Vec::new();
        }
        subscriber.reachable = true;
        let mut messages = Vec::new();
        for (space, channel) in &mut subscriber.channels {
            if channel.owed {
                messages.push(message(self.epoch, node, *space, channel, Vec::new()));
            }
        }
        messages
    }

    /// Returns the empty messages that are due at `now`.
    pub fn on_tick(&mut self, now: Instant) -> Vec<Invalidation> {
        let mut messages = Vec::new();
        for (node, subscriber) in self.subscribers.iter_mut().filter(|(_, subscriber)| subscriber.reachable) {
            for (space, channel) in &mut subscriber.channels {
                // A channel without subscriptions gets one more message, by which the subscriber detects that the
                // previous one was lost.
                let due = channel.said.is_none_or(|said| now.saturating_duration_since(said) >= HEARTBEAT);
                if due && (channel.owed || !channel.names.is_empty()) {
                    let owed = !channel.names.is_empty();
                    messages.push(message(self.epoch, node, *space, channel, Vec::new()));
                    (channel.owed, channel.said) = (owed, Some(now));
                }
            }
        }
        messages
    }

    /// Returns the number of subscribers and of subscriptions.
    pub fn len(&self) -> (usize, usize) {
        (self.subscribers.len(), self.count.values().sum())
    }

    fn forget(&mut self, node: &NodeName) {
        let Some(subscriber) = self.subscribers.remove(node) else { return };
        for (space, channel) in subscriber.channels {
            for name in channel.names.into_keys() {
                less(&mut self.count, space, name);
            }
        }
    }
}

fn message(
    epoch: Epoch,
    to: &NodeName,
    space: usize,
    channel: &mut Channel,
    names: Vec<(String, Option<Stamp>)>,
) -> Invalidation {
    let number = channel.next;
    channel.next += 1;
    // If this message is lost, only the number of a later message reveals the loss.
    channel.owed = !names.is_empty();
    Invalidation { to: to.clone(), space, changed: Changed { epoch, number, names } }
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

    #[allow(clippy::unnecessary_wraps)] // tests pass the result as the value of a name, which is optional
    fn stamp(counter: u64) -> Option<Stamp> {
        Some(Stamp { epoch: Epoch(1), counter })
    }

    #[test]
    fn a_change_ends_a_subscription_with_one_message() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 10, 10);
        let (a, b) = (asker("a", 5), asker("b", 6));
        for who in [&a, &a, &b] {
            assert_eq!(subscriptions.subscribe(who, 0, "x", stamp(1)), Subscribed { evicted: None, is_accepted: true });
        }
        assert!(subscriptions.is_subscribed(0, "x") && !subscriptions.is_subscribed(1, "x"));
        let messages = subscriptions.on_changed(0, &[("x".into(), stamp(2)), ("y".into(), stamp(3))]);
        assert_eq!(
            messages.iter().map(|w| (w.to.as_str(), w.changed.number)).collect::<Vec<_>>(),
            [("a", 1), ("b", 1)]
        );
        assert_eq!(messages[0].changed.names, [("x".to_owned(), stamp(2))]);
        assert!(
            subscriptions.on_changed(0, &[("x".into(), stamp(4))]).is_empty() && !subscriptions.is_subscribed(0, "x")
        );
    }

    #[test]
    fn a_subscriber_whose_subscriptions_were_dropped_finds_a_gap() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 10, 10);
        let a = asker("a", 5);
        subscriptions.subscribe(&a, 0, "x", stamp(1));
        assert_eq!(subscriptions.on_changed(0, &[("x".into(), stamp(2))])[0].changed.number, 1);
        subscriptions.subscribe(&a, 0, "x", stamp(1));
        subscriptions.on_node_down(&a.node);
        assert!(subscriptions.on_changed(0, &[("x".into(), stamp(3))]).is_empty());
        let messages = subscriptions.on_node_up(&a.node, a.epoch);
        assert_eq!(messages[0].changed, Changed { epoch: Epoch(1), number: 3, names: vec![] });
        // In another epoch the subscriber knows nothing of the old one.
        subscriptions.subscribe(&a, 0, "x", stamp(1));
        assert!(subscriptions.on_node_up(&a.node, Epoch(6)).is_empty());
        assert_eq!(subscriptions.len(), (0, 0));
        subscriptions.subscribe(&asker("a", 6), 0, "x", None);
        assert_eq!(subscriptions.on_changed(0, &[("x".into(), stamp(9))])[0].changed.number, 1);
    }

    #[test]
    fn the_last_message_before_a_silence_is_followed_by_another() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 10, 10);
        let start = Instant::now();
        subscriptions.subscribe(&asker("a", 5), 0, "x", None);
        assert_eq!(subscriptions.on_tick(start).len(), 1);
        assert!(subscriptions.on_tick(start + HEARTBEAT / 2).is_empty());
        assert_eq!(subscriptions.on_changed(0, &[("x".into(), stamp(2))])[0].changed.number, 2);
        assert_eq!(subscriptions.on_tick(start + HEARTBEAT)[0].changed.number, 3);
        // No more messages are due.
        assert!(subscriptions.on_tick(start + 9 * HEARTBEAT).is_empty());
    }

    #[test]
    fn a_node_with_too_many_subscriptions_loses_the_oldest_and_too_many_nodes_are_refused() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 2, 2);
        let a = asker("a", 5);
        subscriptions.subscribe(&a, 0, "x", stamp(1));
        subscriptions.subscribe(&a, 0, "y", stamp(1));
        let evicted = subscriptions.subscribe(&a, 0, "z", stamp(1)).evicted.unwrap();
        assert_eq!(evicted.changed.names, [("x".to_owned(), None)]);
        assert!(!subscriptions.is_subscribed(0, "x"));
        subscriptions.subscribe(&asker("b", 1), 0, "x", None);
        assert!(!subscriptions.subscribe(&asker("c", 1), 0, "x", None).is_accepted);
        subscriptions.make_room(&asker("c", 1).node, |node| node.as_str() == "a");
        assert!(subscriptions.subscribe(&asker("c", 1), 0, "x", None).is_accepted);
        assert_eq!(subscriptions.len().0, 2);
    }

    #[test]
    fn a_subscriber_that_knows_the_value_stays_subscribed() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 10, 10);
        subscriptions.subscribe(&asker("a", 5), 0, "x", stamp(1));
        // The subscriber asks again before this gateway detects the change.
        subscriptions.subscribe(&asker("a", 5), 0, "x", stamp(2));
        assert!(subscriptions.on_changed(0, &[("x".into(), stamp(2))]).is_empty());
        assert_eq!(subscriptions.on_changed(0, &[("x".into(), stamp(3))]).len(), 1);
    }

    #[test]
    fn many_changes_are_few_messages() {
        let mut subscriptions = Subscriptions::new(Epoch(1), 100_000, 2);
        let names: Vec<_> = (0..1000).map(|n| (format!("name/{n}"), stamp(n + 1))).collect();
        for (name, _) in &names {
            subscriptions.subscribe(&asker("a", 5), 0, name, None);
        }
        let messages = subscriptions.on_changed(0, &names);
        assert_eq!(messages.len(), 4);
        assert_eq!(messages.iter().map(|w| w.changed.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(subscriptions.len(), (1, 0));
    }
}
