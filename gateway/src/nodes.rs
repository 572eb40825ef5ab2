//! Who is there.
//!
//! No clock, no socket: what the transport hears of nodes goes in, and what it means comes out.

use crate::wire::{Epoch, NodeName};
use std::collections::BTreeMap;

/// Nodes that are remembered, at most: what says that it is there is not always a friend.
pub const NODES_MAX: usize = 4096;

/// What is known of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The life of its gateway that was heard of last.
    pub epoch: Epoch,
    /// Whether it can be reached.
    pub alive: bool,
}

/// What became of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is there, for the first time or again.
    Came {
        /// In which life of its gateway.
        epoch: Epoch,
        /// Whether it is the life in which it was known before: stamps and promises of it may still stand.
        same: bool,
    },
    /// It cannot be reached any more.
    Went,
    /// Another gateway says that it is this node.
    Double,
}

/// The nodes that were ever heard of.
#[derive(Debug)]
pub struct Nodes {
    here: NodeName,
    epoch: Epoch,
    known: BTreeMap<NodeName, Known>,
}

impl Nodes {
    /// Knows this machine's only.
    pub fn new(here: NodeName, epoch: Epoch) -> Self {
        Self { here, epoch, known: BTreeMap::new() }
    }

    /// This machine's.
    pub fn here(&self) -> &NodeName {
        &self.here
    }

    /// In which life of its gateway.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// A token came or went. `None`: nothing new.
    pub fn on_token(&mut self, node: &NodeName, epoch: Epoch, alive: bool) -> Option<Turn> {
        if *node == self.here {
            return (alive && epoch != self.epoch).then_some(Turn::Double);
        }
        let full = self.known.len() >= NODES_MAX;
        match (self.known.get_mut(node), alive) {
            (None, false) => None,
            (None, true) if full => None,
            (None, true) => {
                self.known.insert(node.clone(), Known { epoch, alive });
                Some(Turn::Came { epoch, same: false })
            }
            (Some(known), true) => {
                let same = known.epoch == epoch;
                let news = !same || !known.alive;
                *known = Known { epoch, alive };
                news.then_some(Turn::Came { epoch, same })
            }
            // The token of a life that was over before.
            (Some(known), false) if known.epoch != epoch => None,
            (Some(known), false) => std::mem::take(&mut known.alive).then_some(Turn::Went),
        }
    }

    /// What is known of a node.
    pub fn get(&self, node: &NodeName) -> Option<Known> {
        self.known.get(node).copied()
    }

    /// Whether it can be reached.
    pub fn is_alive(&self, node: &NodeName) -> bool {
        self.get(node).is_some_and(|known| known.alive)
    }

    /// All others, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeName, Known)> {
        self.known.iter().map(|(node, known)| (node, *known))
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
        assert_eq!(nodes.on_token(&b, Epoch(2), true), Some(Turn::Came { epoch: Epoch(2), same: false }));
        assert_eq!(nodes.on_token(&b, Epoch(2), true), None);
        assert_eq!(nodes.on_token(&b, Epoch(2), false), Some(Turn::Went));
        assert_eq!(nodes.on_token(&b, Epoch(2), false), None);
        assert!(!nodes.is_alive(&b));
        assert_eq!(nodes.on_token(&b, Epoch(2), true), Some(Turn::Came { epoch: Epoch(2), same: true }));
        // It was started again before its old token was gone.
        assert_eq!(nodes.on_token(&b, Epoch(3), true), Some(Turn::Came { epoch: Epoch(3), same: false }));
        assert_eq!(nodes.on_token(&b, Epoch(2), false), None);
        assert!(nodes.is_alive(&b));
    }

    #[test]
    fn ones_own_token_is_no_news_and_anothers_of_the_same_name_is() {
        let mut nodes = Nodes::new(node("a"), Epoch(1));
        assert_eq!(nodes.on_token(&node("a"), Epoch(1), true), None);
        assert_eq!(nodes.on_token(&node("a"), Epoch(9), true), Some(Turn::Double));
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
