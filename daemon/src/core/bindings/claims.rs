//! The claims of clients on items of queues. They live in the daemon's memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use tensorlend_layout::wire::QueueItem;

/// The claims of a namespace, and the items that wait again after a claim.
#[derive(Debug, Default)]
pub struct Claims {
    claimers: BTreeMap<QueueItem, u16>,
    by_client: BTreeMap<u16, BTreeSet<QueueItem>>,
    /// The number of claims on items of each list that has any.
    by_list: BTreeMap<u64, u64>,
    /// Items that were claimed, given back, and not claimed again.
    given_back: BTreeSet<QueueItem>,
    /// Ids of lists whose maximum refused an item since their last claim.
    refused: BTreeSet<u64>,
    /// After a restart, the time until which no item is granted while former clients are missing: their claims count.
    asserted_until_ns: Option<u64>,
}

/// Returns all items of a list.
fn of_list(list: u64) -> RangeInclusive<QueueItem> {
    QueueItem { list, number: 0 }..=QueueItem { list, number: u64::MAX }
}

impl Claims {
    /// Returns no claims, of a daemon that has taken over from another one.
    pub fn restored(asserted_until_ns: u64) -> Self {
        Self { asserted_until_ns: Some(asserted_until_ns), ..Self::default() }
    }

    /// Returns the end of the time in which clients of the predecessor may assert their claims.
    pub fn asserted_until_ns(&self) -> Option<u64> {
        self.asserted_until_ns
    }

    /// Notes that no client of the predecessor is missing any more.
    pub fn all_asserted(&mut self) {
        self.asserted_until_ns = None;
    }

    pub fn claimer(&self, item: QueueItem) -> Option<u16> {
        self.claimers.get(&item).copied()
    }

    /// Returns the number of claims of a client.
    pub fn count(&self, catalogue: u16) -> usize {
        self.by_client.get(&catalogue).map_or(0, BTreeSet::len)
    }

    /// Returns the number of claims on items of a list.
    pub fn count_of_list(&self, list: u64) -> u64 {
        self.by_list.get(&list).copied().unwrap_or_default()
    }

    pub fn add(&mut self, item: QueueItem, catalogue: u16) {
        self.given_back.remove(&item);
        self.claimers.insert(item, catalogue);
        *self.by_list.entry(item.list).or_default() += 1;
        self.by_client.entry(catalogue).or_default().insert(item);
    }

    /// Ends the claim on an item and every other note of it.
    pub fn remove(&mut self, item: QueueItem) {
        self.given_back.remove(&item);
        let Some(catalogue) = self.claimers.remove(&item) else { return };
        self.count_less(item.list);
        if let Some(items) = self.by_client.get_mut(&catalogue) {
            items.remove(&item);
            if items.is_empty() {
                self.by_client.remove(&catalogue);
            }
        }
    }

    fn count_less(&mut self, list: u64) {
        if let Some(count) = self.by_list.get_mut(&list) {
            *count -= 1;
            if *count == 0 {
                self.by_list.remove(&list);
            }
        }
    }

    /// Ends the claim on an item, which waits again.
    pub fn give_back(&mut self, item: QueueItem) {
        self.remove(item);
        self.given_back.insert(item);
    }

    /// Ends all claims of a client, whose items wait again. Returns true if there were any.
    pub fn give_back_all(&mut self, catalogue: u16) -> bool {
        let Some(items) = self.by_client.remove(&catalogue) else { return false };
        for item in &items {
            self.claimers.remove(item);
            self.count_less(item.list);
        }
        self.given_back.extend(items);
        true
    }

    /// Takes the first item of a list that waits again.
    pub fn take_given_back(&mut self, list: u64) -> Option<u64> {
        let item = *self.given_back.range(of_list(list)).next()?;
        self.given_back.remove(&item);
        Some(item.number)
    }

    /// Forgets a list that is removed.
    pub fn forget_list(&mut self, list: u64) {
        let claimed: Vec<QueueItem> = self.claimers.range(of_list(list)).map(|(&item, _)| item).collect();
        let waiting: Vec<QueueItem> = self.given_back.range(of_list(list)).copied().collect();
        for item in claimed.into_iter().chain(waiting) {
            self.remove(item);
        }
        self.refused.remove(&list);
    }

    /// Notes that a list's maximum refused an item.
    pub fn note_refused(&mut self, list: u64) {
        self.refused.insert(list);
    }

    /// Returns true if a list's maximum has refused an item since the last call.
    pub fn take_refused(&mut self, list: u64) -> bool {
        self.refused.remove(&list)
    }

    /// Checks that the parts agree.
    ///
    /// # Panics
    /// Panics if they disagree, or if a list of an item does not exist.
    pub fn check(&self, exists: impl Fn(u64) -> bool) {
        let by_client: BTreeMap<QueueItem, u16> =
            self.by_client.iter().flat_map(|(&client, items)| items.iter().map(move |&item| (item, client))).collect();
        assert_eq!(by_client, self.claimers, "each claim belongs to one client");
        assert!(self.by_client.values().all(|items| !items.is_empty()), "a client without claims is not listed");
        let mut by_list = BTreeMap::new();
        self.claimers.keys().for_each(|item| *by_list.entry(item.list).or_default() += 1);
        assert_eq!(by_list, self.by_list, "the claims of each list");
        for item in self.claimers.keys().chain(&self.given_back) {
            assert!(exists(item.list), "the list of {item:?} exists");
        }
        assert!(self.refused.iter().all(|&list| exists(list)), "refused items were for lists");
        assert!(self.given_back.iter().all(|item| !self.claimers.contains_key(item)), "a claimed item does not wait");
    }
}
