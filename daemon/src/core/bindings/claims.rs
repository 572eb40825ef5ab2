//! The claims of clients on items of queues. Only the daemon's memory contains them.

use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{QueueClaim, QueueItem};

/// A client's claim on an item of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Granted {
    client: ClientNo,
    grant: u64,
}

/// The claims of a namespace, and the items that wait again after a claim.
#[derive(Debug, Default)]
pub struct Claims {
    granted: BTreeMap<QueueItem, Granted>,
    /// Number of the latest grant.
    grants: u64,
    by_client: BTreeMap<ClientNo, BTreeSet<QueueItem>>,
    /// The number of claims on items of each list. Lists without claims are missing.
    by_list: BTreeMap<u64, u64>,
    /// Items that were claimed and given back, and that no client has claimed again.
    given_back: BTreeSet<QueueItem>,
    /// Ids of lists whose maximum has refused items. For each list, the largest number of waiting items at which a refused
    /// request would have had room.
    refused: BTreeMap<u64, u64>,
    /// Maximum number of waiting items of each list to which a producer has given a maximum.
    maxima: BTreeMap<u64, u64>,
    /// After a restart, the time until which the daemon grants no item while former clients have
    /// not reconnected. They may still have claims.
    asserted_until_ns: Option<u64>,
}

impl Claims {
    /// Returns the empty claims of a daemon that has taken over from another daemon at this time.
    pub fn restored(now_ns: u64, asserted_until_ns: u64) -> Self {
        // No grant has the number of an earlier grant. No daemon grants a claim each nanosecond, so
        // the numbers of the previous daemon are below the current time.
        Self { grants: now_ns, asserted_until_ns: Some(asserted_until_ns), ..Self::default() }
    }

    /// Returns the end of the time in which clients of the previous daemon may assert their claims.
    pub fn asserted_until_ns(&self) -> Option<u64> {
        self.asserted_until_ns
    }

    /// Records that all clients of the previous daemon have reconnected or ended.
    pub fn all_asserted(&mut self) {
        self.asserted_until_ns = None;
    }

    pub fn is_claimed(&self, item: QueueItem) -> bool {
        self.granted.contains_key(&item)
    }

    /// Returns true if a client has exactly this claim. A different claim on the same item does not
    /// count.
    pub fn has(&self, QueueClaim { item, grant }: QueueClaim, client: ClientNo) -> bool {
        self.granted.get(&item) == Some(&Granted { client, grant })
    }

    pub fn count(&self, client: ClientNo) -> usize {
        self.by_client.get(&client).map_or(0, BTreeSet::len)
    }

    pub fn of_client(&self, client: ClientNo) -> impl Iterator<Item = QueueItem> + '_ {
        self.by_client.get(&client).into_iter().flatten().copied()
    }

    pub fn count_of_list(&self, list: u64) -> u64 {
        self.by_list.get(&list).copied().unwrap_or_default()
    }

    pub fn grant(&mut self, item: QueueItem, client: ClientNo) -> QueueClaim {
        self.grants += 1;
        let claim = QueueClaim { item, grant: self.grants };
        self.add(claim, client);
        claim
    }

    /// Adds a claim on an item that is not claimed.
    pub fn add(&mut self, QueueClaim { item, grant }: QueueClaim, client: ClientNo) {
        self.given_back.remove(&item);
        self.granted.insert(item, Granted { client, grant });
        *self.by_list.entry(item.list).or_default() += 1;
        self.by_client.entry(client).or_default().insert(item);
    }

    /// Ends the claim on an item and deletes all other records of the item.
    pub fn remove(&mut self, item: QueueItem) {
        self.given_back.remove(&item);
        let Some(Granted { client, .. }) = self.granted.remove(&item) else { return };
        self.count_less(item.list);
        if let Some(items) = self.by_client.get_mut(&client) {
            items.remove(&item);
            if items.is_empty() {
                self.by_client.remove(&client);
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

    /// Ends the claim on an item. The item waits again.
    pub fn give_back(&mut self, item: QueueItem) {
        self.remove(item);
        self.given_back.insert(item);
    }

    /// Ends all claims of a client. Their items wait again. Returns true if the client had claims.
    pub fn give_back_all(&mut self, client: ClientNo) -> bool {
        let Some(items) = self.by_client.remove(&client) else { return false };
        for item in &items {
            self.granted.remove(item);
            self.count_less(item.list);
        }
        self.given_back.extend(items);
        true
    }

    /// Removes and returns the first given-back item of a list, if its number is below `end`.
    pub fn take_given_back(&mut self, list: u64, end: u64) -> Option<u64> {
        let items = QueueItem { list, number: 0 }..QueueItem { list, number: end };
        let item = *self.given_back.range(items).next()?;
        self.given_back.remove(&item);
        Some(item.number)
    }

    /// Records that a list's maximum has refused items, which have room when `room_at` items or fewer wait.
    pub fn note_refused(&mut self, list: u64, room_at: u64) {
        let known = self.refused.entry(list).or_default();
        *known = room_at.max(*known);
    }

    /// Returns the maximum of a list; 0 if no producer has given one.
    pub fn maximum(&self, list: u64) -> u64 {
        self.maxima.get(&list).copied().unwrap_or_default()
    }

    /// Sets the maximum of a list; 0 for none.
    pub fn set_maximum(&mut self, list: u64, max: u64) {
        if max > 0 {
            self.maxima.insert(list, max)
        } else {
            self.maxima.remove(&list)
        };
    }

    /// Returns true if refused items of a list have room now. Then forgets all refusals of the list.
    pub fn take_refused(&mut self, list: u64, waiting: u64) -> bool {
        let has_room = self.refused.get(&list).is_some_and(|&room_at| waiting <= room_at);
        if has_room {
            self.refused.remove(&list);
        }
        has_room
    }

    /// Returns true if an item is claimed, or waits again after a claim.
    pub fn knows(&self, item: QueueItem) -> bool {
        self.granted.contains_key(&item) || self.given_back.contains(&item)
    }

    /// Checks that the parts of this structure agree.
    ///
    /// # Panics
    /// Panics if the parts disagree, or if a claimed or given-back item does not exist.
    pub fn check(&self, exists: impl Fn(QueueItem) -> bool, is_list: impl Fn(u64) -> bool) {
        let by_client: BTreeMap<QueueItem, ClientNo> =
            self.by_client.iter().flat_map(|(&client, items)| items.iter().map(move |&item| (item, client))).collect();
        let granted = self.granted.iter().map(|(&item, granted)| (item, granted.client)).collect();
        assert_eq!(by_client, granted, "each claim belongs to one client");
        assert!(self.by_client.values().all(|items| !items.is_empty()), "a client without claims is not listed");
        let mut by_list = BTreeMap::new();
        self.granted.keys().for_each(|item| *by_list.entry(item.list).or_default() += 1);
        assert_eq!(by_list, self.by_list, "the claims of each list");
        for item in self.granted.keys().chain(&self.given_back) {
            assert!(exists(*item), "{item:?} exists");
        }
        assert!(
            self.refused.keys().chain(self.maxima.keys()).all(|&list| is_list(list)),
            "refused items were for lists"
        );
        assert!(self.given_back.iter().all(|item| !self.granted.contains_key(item)), "a claimed item does not wait");
    }
}
