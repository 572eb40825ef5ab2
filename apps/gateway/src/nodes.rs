//! The known nodes, and which of them can be reached.
//!
//! This is a pure state machine without clock and socket.

use crate::wire::{Epoch, NodeName};
use std::collections::BTreeMap;

/// Maximum number of known nodes. The limit is necessary because any peer may declare any number of nodes.
pub const NODES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The epoch of the node's gateway in its last declaration.
    pub epoch: Epoch,
    /// Whether the node can be reached.
    pub alive: bool,
    /// The number of the node's present or last connection, as [`Nodes::connection`] describes it.
    pub connection: u64,
}

/// The meaning of [`Trouble::Nobody`](crate::transport::Trouble::Nobody) as the outcome of a request to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The connection is still the one on which the request was sent. So the node does not serve
    /// the key.
    Unserved,
    /// The node cannot be reached.
    Lost,
    /// The node was lost after the request was sent, and can be reached again. The request may be
    /// repeated.
    Returned,
}

/// A change of a node's state that its declaration caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node can be reached, for the first time or again.
    Up {
        /// The epoch of its gateway.
        epoch: Epoch,
        /// Whether the epoch is the previous one. Then stamps and subscriptions of the node may
        /// still be valid.
        same: bool,
    },
    /// The node has become unreachable.
    Down,
    /// Another gateway declares this node's name.
    Double,
}

/// Maximum number of gateways of one name whose declarations are remembered. A restarted gateway and its predecessor are
/// two; more of them are a mistake of the configuration.
const NAMESAKES_MAX: usize = 8;

/// All nodes that were ever declared.
#[derive(Debug)]
pub struct Nodes {
    here: NodeName,
    epoch: Epoch,
    known: BTreeMap<NodeName, Entry>,
}

/// A node and the gateways that declare its name. The latest declaration counts while it lasts, because a restarted
/// gateway may declare itself before the declaration of its predecessor ends. Then the latest of the others counts.
#[derive(Debug)]
struct Entry {
    state: Known,
    /// Epochs whose declarations last, the latest at the end. The node is alive if there is one, and has the last one's epoch.
    declared: Vec<Epoch>,
}

impl Entry {
    /// Takes over the latest declaration. Returns the change, if there is one.
    fn update(&mut self) -> Option<Change> {
        let before = self.state;
        self.state.alive = !self.declared.is_empty();
        let Some(&epoch) = self.declared.last() else { return before.alive.then_some(Change::Down) };
        let same = epoch == before.epoch;
        if same && before.alive {
            return None;
        }
        self.state.epoch = epoch;
        self.state.connection += 1;
        Some(Change::Up { epoch, same })
    }
}

impl Nodes {
    /// Makes the table with no node except this machine's.
    pub fn new(here: NodeName, epoch: Epoch) -> Self {
        Self { here, epoch, known: BTreeMap::new() }
    }

    pub fn here(&self) -> &NodeName {
        &self.here
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Handles the declaration of a node if `alive` is true, or else the end of its declaration.
    /// Returns the change, if there is one.
    pub fn on_token(&mut self, node: &NodeName, epoch: Epoch, alive: bool) -> Option<Change> {
        if *node == self.here {
            return (alive && epoch != self.epoch).then_some(Change::Double);
        }
        if !self.known.contains_key(node) {
            if !alive || self.known.len() >= NODES_MAX {
                return None;
            }
            let state = Known { epoch, alive, connection: 1 };
            self.known.insert(node.clone(), Entry { state, declared: vec![epoch] });
            return Some(Change::Up { epoch, same: false });
        }
        let entry = self.known.get_mut(node)?;
        match entry.declared.iter().position(|&declared| declared == epoch) {
            Some(at) if !alive => drop(entry.declared.remove(at)),
            None if alive => {
                if entry.declared.len() == NAMESAKES_MAX {
                    entry.declared.remove(0);
                }
                entry.declared.push(epoch);
            }
            Some(_) | None => {}
        }
        entry.update()
    }

    /// Returns the state of a node, if the node is known.
    pub fn get(&self, node: &NodeName) -> Option<Known> {
        self.known.get(node).map(|entry| entry.state)
    }

    pub fn is_alive(&self, node: &NodeName) -> bool {
        self.get(node).is_some_and(|known| known.alive)
    }

    /// Returns the number of the connection to a node; `None` if the node cannot be reached. The number changes when
    /// the node becomes reachable after a loss, and when its gateway restarts.
    pub fn connection(&self, node: &NodeName) -> Option<u64> {
        self.get(node).filter(|known| known.alive).map(|known| known.connection)
    }

    /// Returns why no gateway responded to a request to a node. `sent` is the number of the
    /// connection at the time of the request.
    pub fn absence(&self, node: &NodeName, sent: Option<u64>) -> Absence {
        match self.connection(node) {
            None => Absence::Lost,
            now if now == sent => Absence::Unserved,
            Some(_) => Absence::Returned,
        }
    }

    /// Iterates over the other nodes, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, Known)> {
        self.known.iter().map(|(node, entry)| (node, entry.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    #[test]
    fn nodes_come_and_go() {
        let mut nodes = Nodes::new(node("a"), Epoch(1));
        let b = node("b");
        assert_eq!(nodes.on_token(&b, Epoch(2), false), None);
        assert_eq!(nodes.on_token(&b, Epoch(2), true), Some(Change::Up { epoch: Epoch(2), same: false }));
        assert_eq!(nodes.on_token(&b, Epoch(2), true), None);
        assert_eq!(nodes.on_token(&b, Epoch(2), false), Some(Change::Down));
        assert_eq!(nodes.on_token(&b, Epoch(2), false), None);
        assert!(!nodes.is_alive(&b));
        assert_eq!(nodes.on_token(&b, Epoch(2), true), Some(Change::Up { epoch: Epoch(2), same: true }));
        // The node's gateway restarted before the old declaration ended.
        assert_eq!(nodes.on_token(&b, Epoch(3), true), Some(Change::Up { epoch: Epoch(3), same: false }));
        assert_eq!(nodes.on_token(&b, Epoch(2), false), None);
        assert!(nodes.is_alive(&b));
    }

    #[test]
    fn a_node_outlives_the_declarations_of_others_with_its_name() {
        let (mut nodes, b) = (Nodes::new(node("a"), Epoch(1)), node("b"));
        let up = |epoch| Some(Change::Up { epoch: Epoch(epoch), same: false });
        assert_eq!(nodes.on_token(&b, Epoch(2), true), up(2));
        assert_eq!(nodes.on_token(&b, Epoch(3), true), up(3));
        assert_eq!(nodes.on_token(&b, Epoch(3), false), up(2));
        assert!(nodes.is_alive(&b));
        assert_eq!(nodes.on_token(&b, Epoch(2), false), Some(Change::Down));
        // More of them than are remembered: the node is alive while a remembered one declares it.
        for epoch in 10..=10 + NAMESAKES_MAX as u64 {
            assert_eq!(nodes.on_token(&b, Epoch(epoch), true), up(epoch));
        }
        assert_eq!(nodes.on_token(&b, Epoch(10), false), None);
        for epoch in (11..10 + NAMESAKES_MAX as u64).rev() {
            assert_eq!(nodes.on_token(&b, Epoch(epoch + 1), false), up(epoch));
        }
        assert_eq!(nodes.on_token(&b, Epoch(11), false), Some(Change::Down));
    }

    #[test]
    fn only_a_request_on_the_present_connection_is_unserved() {
        let (mut nodes, b) = (Nodes::new(node("a"), Epoch(1)), node("b"));
        assert_eq!(nodes.absence(&b, nodes.connection(&b)), Absence::Lost);
        let _ = nodes.on_token(&b, Epoch(2), true);
        let sent = nodes.connection(&b);
        // A repeated declaration does not make a new connection.
        let _ = nodes.on_token(&b, Epoch(2), true);
        assert_eq!(nodes.absence(&b, sent), Absence::Unserved);
        let _ = nodes.on_token(&b, Epoch(2), false);
        assert_eq!(nodes.absence(&b, sent), Absence::Lost);
        let _ = nodes.on_token(&b, Epoch(2), true);
        assert_eq!(nodes.absence(&b, sent), Absence::Returned);
        let sent = nodes.connection(&b);
        // The node's gateway restarted before the old declaration ended.
        let _ = nodes.on_token(&b, Epoch(3), true);
        assert_eq!(nodes.absence(&b, sent), Absence::Returned);
        let _ = nodes.on_token(&b, Epoch(2), false);
        assert_eq!(nodes.absence(&b, sent), Absence::Returned);
        assert_eq!(nodes.absence(&b, nodes.connection(&b)), Absence::Unserved);
    }

    #[test]
    fn ones_own_token_is_no_news_and_anothers_of_the_same_name_is() {
        let mut nodes = Nodes::new(node("a"), Epoch(1));
        assert_eq!(nodes.on_token(&node("a"), Epoch(1), true), None);
        assert_eq!(nodes.on_token(&node("a"), Epoch(9), true), Some(Change::Double));
        assert_eq!(nodes.iter().count(), 0);
    }

    #[test]
    fn nobody_fills_the_memory_with_nodes() {
        let mut nodes = Nodes::new(node("a"), Epoch(1));
        for n in 0..NODES_MAX + 10 {
            let _ = nodes.on_token(&node(&format!("n{n}")), Epoch(n as u64), true);
        }
        assert_eq!(nodes.iter().count(), NODES_MAX);
    }
}
