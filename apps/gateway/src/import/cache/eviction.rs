//! Eviction of names and copies above the limits.

use super::{Cache, Effect, GRACE};
use crate::name::RemoteName;
use std::time::Instant;

impl Cache {
    /// Makes room for the entry of `name`. Returns false if all other entries are in use.
    pub(super) fn make_room(&mut self, name: &RemoteName, out: &mut Vec<Effect>) -> bool {
        if self.entries.contains_key(name) || self.entries.len() < self.names_max {
            return true;
        }
        // Remove a tenth of the names at once, so that this search over all names is rare.
        let mut idle: Vec<RemoteName> =
            self.entries.iter().filter(|(_, e)| e.is_idle()).map(|(name, _)| name.clone()).collect();
        idle.truncate(self.names_max / 10 + 1);
        if idle.is_empty() {
            let oldest = self.entries.iter().filter(|(_, e)| e.fetch.is_none() && e.waiters.is_empty());
            let oldest = oldest.min_by_key(|(_, e)| e.copy.map_or(0, |copy| copy.used)).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return false };
            self.delete(&oldest, out);
            idle.push(oldest);
        }
        for name in idle {
            self.forget(&name);
        }
        true
    }

    fn forget(&mut self, name: &RemoteName) {
        self.entries.remove(name);
        if let Some(names) = self.of_node.get_mut(&name.node) {
            names.remove(name);
            if names.is_empty() {
                self.of_node.remove(&name.node);
            }
        }
    }

    /// Deletes the least recently used copies until the rest is within the limit. Never deletes the
    /// copy of `new`. A copy in its grace period is deleted at the end of that period.
    pub(super) fn evict(&mut self, new: Option<&RemoteName>, now: Instant, out: &mut Vec<Effect>) {
        if self.bytes <= self.bytes_max {
            return;
        }
        let mut old: Vec<(u64, RemoteName)> = self
            .entries
            .iter()
            .filter(|(name, e)| Some(*name) != new && e.fetch.is_none() && e.waiters.is_empty())
            .filter_map(|(name, e)| e.copy.filter(|copy| copy.until <= now).map(|copy| (copy.used, name.clone())))
            .collect();
        old.sort_unstable();
        for (_, name) in old {
            if self.bytes <= self.bytes_max {
                break;
            }
            self.delete(&name, out);
        }
        if self.bytes > self.bytes_max
            && let Some(name) = self.entries.keys().next()
        {
            self.due.insert((now + GRACE, name.clone()));
        }
    }
}
