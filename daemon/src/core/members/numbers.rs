//! The numbers of a namespace's clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::number::ClientNo;

/// The numbers of clients. Each number up to the greatest ever assigned is free, or belongs to a
/// client or to a request to join.
#[derive(Debug)]
pub struct Numbers {
    /// Free numbers that were used before, in the order in which they became free.
    free: VecDeque<ClientNo>,
    /// The smallest number never used.
    fresh: usize,
    /// Numbers of the current requests to join, each with the uid that makes the request.
    joining: BTreeMap<ClientNo, u32>,
}

impl Numbers {
    /// Returns the numbers of a namespace without clients.
    pub fn new() -> Self {
        Self { free: VecDeque::new(), fresh: 1, joining: BTreeMap::new() }
    }

    /// Returns the numbers of a namespace with clients. `fresh` is above the greatest number ever used.
    pub fn restored(fresh: usize, is_taken: impl Fn(ClientNo) -> bool) -> Self {
        let free = (1..fresh).filter_map(ClientNo::at).filter(|&number| !is_taken(number));
        Self { free: free.collect(), fresh, joining: BTreeMap::new() }
    }

    /// Returns a number for a joining client. Prefers a number below `end` that was never used,
    /// then takes a free one.
    pub fn next(&mut self, end: usize) -> Option<ClientNo> {
        if self.fresh < end {
            self.fresh += 1;
            return Some(ClientNo::at(self.fresh - 1).expect("a directory has at most 65536 members"));
        }
        self.free.pop_front()
    }

    /// Assigns a number to a uid's request to join.
    pub fn begin_join(&mut self, number: ClientNo, uid: u32) {
        self.joining.insert(number, uid);
    }

    /// Ends a request to join. The new client now has the number.
    pub fn end_join(&mut self, number: ClientNo) {
        self.joining.remove(&number);
    }

    pub fn free(&mut self, number: ClientNo) {
        self.joining.remove(&number);
        self.free.push_back(number);
    }

    /// Returns the uids of the requests to join.
    pub fn joining(&self) -> impl ExactSizeIterator<Item = u32> {
        self.joining.values().copied()
    }

    /// Checks that each number is free, or belongs to a client or to a request.
    ///
    /// # Panics
    /// Panics if the check fails.
    pub fn check(&self, clients: impl ExactSizeIterator<Item = ClientNo>) {
        let free: BTreeSet<ClientNo> = self.free.iter().copied().collect();
        assert_eq!(free.len(), self.free.len(), "a number is free once");
        let taken = clients.len() + self.joining.len() + free.len();
        assert_eq!(taken + 1, self.fresh, "each number that was ever given out is in one place");
        for number in clients.chain(self.joining.keys().copied()) {
            assert!(!free.contains(&number) && number.index() < self.fresh, "number {number} is given out");
        }
    }
}
