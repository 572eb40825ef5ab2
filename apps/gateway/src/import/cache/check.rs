//! The cache's invariants.

use super::Cache;
use std::collections::BTreeSet;

impl Cache {
    /// Checks that the sums and indexes agree with the entries.
    ///
    /// # Panics
    /// If a sum or an index differs.
    pub fn check(&self) {
        let copies = self.entries.values().filter_map(|entry| entry.copy);
        assert_eq!(self.bytes, copies.map(|copy| copy.bytes).sum::<u64>(), "bytes of all copies");
        let of_nodes = self.of_node.values().map(BTreeSet::len).sum::<usize>();
        assert_eq!(of_nodes, self.entries.len(), "each name is in its node's index");
        assert!(self.of_node.iter().all(|(node, names)| names.iter().all(|name| name.node == *node)));
        for (name, entry) in &self.entries {
            if let Some((fetch, _)) = entry.fetch {
                assert_eq!(self.fetches.get(&fetch), Some(name), "the request in flight is this name's");
            }
            assert!(entry.copy.is_some() || !(entry.good || entry.invalid), "{name:?} has no copy that could be good");
        }
    }
}
