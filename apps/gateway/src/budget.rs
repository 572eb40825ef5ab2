//! The budget of bytes in flight to this node. The budget counts bytes of values that this node has
//! requested and not yet copied into drafts, by sending node. It also counts the windows that this
//! node has granted to streams.
//!
//! ```text
//! values + streams <= bytes_max, except for one range
//! streams <= bytes_max / 2, except for the minimum window of each
//! values == the sum of held
//! ```
//!
//! If the minimum windows of many streams leave no room for a range, one range may still be in
//! flight. Otherwise no value would ever arrive.
//!
//! A sending node's bytes may not exceed the bytes that are still free. Only a node's first range
//! is exempt, and needs no more than room for itself. So a slow node that delivers nothing occupies
//! at most half of the budget. Two nodes that take and return bytes in turn converge to a third
//! each, which leaves a third for another node. The rule does not need to measure which nodes are
//! slow.

use crate::wire::NodeName;
use std::collections::BTreeMap;

/// Minimum window of a stream in bytes. With a smaller window, the grants would outnumber the messages.
pub const WINDOW_BYTES_LEAST: u64 = 64 << 10;

/// The bytes in flight of all transfers and streams, and their limit.
#[derive(Debug)]
pub struct Budget {
    bytes_max: u64,
    /// Bytes of values in flight, by sending node. Nodes without such bytes have no entry.
    held: BTreeMap<NodeName, u64>,
    values: u64,
    /// Sum of the windows of all streams.
    streams: u64,
}

impl Budget {
    /// Makes a budget with nothing in flight.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, held: BTreeMap::new(), values: 0, streams: 0 }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the bytes of values in flight, plus the windows of streams.
    pub fn in_flight(&self) -> u64 {
        self.values + self.streams
    }

    /// Returns the bytes that transfers and streams may still take.
    pub fn left(&self) -> u64 {
        self.bytes_max.saturating_sub(self.in_flight())
    }

    /// Returns the part of the budget that one sending node uses.
    pub fn of<'b>(&'b mut self, node: &'b NodeName) -> Share<'b> {
        Share { budget: self, node }
    }

    /// Returns the window of one of `links` streams. The windows of the other streams sum to
    /// `others` bytes. Each stream gets an equal part of half the budget. It gets less while the
    /// others have not yet shrunk their windows to their parts.
    pub fn window(&self, links: usize, others: u64, window_max: u64) -> u64 {
        let half = self.bytes_max / 2;
        let part = half / links.max(1) as u64;
        window_max.min(part).min(half.saturating_sub(others)).max(WINDOW_BYTES_LEAST.min(window_max))
    }

    /// Checks that the total of values in flight is the sum over the nodes.
    ///
    /// # Panics
    /// If the total differs from the sum, or a node with 0 bytes has an entry.
    pub fn check(&self) {
        assert_eq!(self.values, self.held.values().sum::<u64>(), "bytes of values in flight");
        assert!(self.held.values().all(|held| *held > 0), "a node without bytes is not listed");
    }

    /// Sets the sum of the windows of all streams.
    pub fn on_windows(&mut self, bytes: u64) {
        self.streams = bytes;
    }
}

/// The part of the budget that one sending node uses.
pub struct Share<'b> {
    budget: &'b mut Budget,
    node: &'b NodeName,
}

impl Share<'_> {
    /// Takes `bytes` for the node. Returns false and takes nothing if the budget has less room, or
    /// if the node would then hold more bytes than remain free. While no value holds bytes, every
    /// range is accepted.
    pub fn take(&mut self, bytes: u64) -> bool {
        let (left, held) = (self.budget.left(), self.held());
        let is_first = self.budget.values == 0;
        if !is_first && (bytes > left || (held > 0 && held + bytes > left - bytes)) {
            return false;
        }
        self.budget.values += bytes;
        *self.budget.held.entry(self.node.clone()).or_default() += bytes;
        true
    }

    /// Returns `bytes` of the node to the budget.
    pub fn give(&mut self, bytes: u64) {
        let Some(held) = self.budget.held.get_mut(self.node) else {
            debug_assert_eq!(bytes, 0, "nothing was taken");
            return;
        };
        debug_assert!(bytes <= *held, "more than was taken");
        let bytes = bytes.min(*held);
        *held -= bytes;
        self.budget.values -= bytes;
        if *held == 0 {
            self.budget.held.remove(self.node);
        }
    }

    /// Returns the bytes that the node holds.
    pub fn held(&self) -> u64 {
        self.budget.held.get(self.node).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(number: usize) -> NodeName {
        NodeName::new(&format!("n{number}")).unwrap()
    }

    fn take_all(budget: &mut Budget, number: usize) -> u64 {
        while budget.of(&node(number)).take(1) {}
        budget.of(&node(number)).held()
    }

    #[test]
    fn who_takes_all_that_there_is_leaves_as_much() {
        let mut budget = Budget::new(600);
        assert_eq!(take_all(&mut budget, 0), 300);
        // The first node keeps its bytes, and no other node gets all of the rest.
        assert_eq!(take_all(&mut budget, 1), 150);
        budget.of(&node(0)).give(200);
        assert_eq!((take_all(&mut budget, 1), budget.left()), (250, 250));
        assert!(budget.of(&node(2)).take(250), "the first bytes of anybody, if there are as many");
        assert!(!budget.of(&node(3)).take(1));
        for (number, bytes) in [(0, 100), (1, 250), (2, 250)] {
            budget.of(&node(number)).give(bytes);
        }
        assert_eq!((budget.in_flight(), budget.left()), (0, 600));
    }

    #[test]
    fn streams_have_half_of_it_in_equal_parts() {
        let mut budget = Budget::new(64 << 20);
        assert_eq!(budget.window(1, 0, 16 << 20), 16 << 20);
        // The other two streams still have windows of an earlier split between two.
        assert_eq!(budget.window(3, 32 << 20, 16 << 20), WINDOW_BYTES_LEAST);
        assert_eq!(budget.window(4, 24 << 20, 16 << 20), 8 << 20);
        budget.on_windows(32 << 20);
        assert!(budget.of(&node(0)).take(1));
        assert!(!budget.of(&node(1)).take(32 << 20) && budget.of(&node(1)).take((32 << 20) - 1));
    }

    #[test]
    fn however_many_streams_there_are_a_value_comes() {
        let mut budget = Budget::new(8 << 20);
        budget.on_windows(256 * WINDOW_BYTES_LEAST);
        assert!(budget.of(&node(0)).take(1 << 20));
        assert!(!budget.of(&node(0)).take(1) && !budget.of(&node(1)).take(1));
        budget.of(&node(0)).give(1 << 20);
        assert!(budget.of(&node(1)).take(1 << 20));
    }

    proptest! {
        /// For all sequences of takes and gives: the limit holds, except for one range; and with nothing left, no node
        /// holds more than half.
        #[test]
        fn it_is_never_more_than_there_may_be(steps in proptest::collection::vec((0usize..5, 1u64..40, any::<bool>()), 0..300), streams in 0u64..300) {
            let mut budget = Budget::new(200);
            budget.on_windows(streams);
            let mut taken = [0; 5];
            for (number, bytes, takes) in steps {
                if takes {
                    let (room, is_first) = (budget.left(), budget.in_flight() == streams);
                    let is_taken = budget.of(&node(number)).take(bytes);
                    prop_assert!(is_taken || !is_first);
                    if is_taken {
                        prop_assert!(is_first || bytes <= room);
                        taken[number] += bytes;
                    }
                } else {
                    let bytes = bytes.min(taken[number]);
                    budget.of(&node(number)).give(bytes);
                    taken[number] -= bytes;
                }
                prop_assert_eq!(budget.in_flight(), streams + taken.iter().sum::<u64>());
                prop_assert!(budget.in_flight() <= 200.max(streams + 40));
                prop_assert!(taken.iter().all(|&held| held <= 100));
            }
        }
    }
}
