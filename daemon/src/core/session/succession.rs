//! The succession from the previous daemon: deadlines for its clients to reconnect, and the objects
//! that they hand back.

use super::staged::Staged;
use std::collections::BTreeMap;

/// The state of the succession from the previous daemon.
#[derive(Debug, Default)]
pub struct Succession {
    /// Descriptors that clients have handed back, by the name of a namespace that is not open yet.
    staged: BTreeMap<String, Staged>,
    /// Time until which no new client opens a namespace, because clients of the previous daemon may
    /// be about to hand the namespace back.
    expecting_until_ns: u64,
    /// Time until which the daemon waits for clients that read the old directory: see
    /// [`super::Core::restore`].
    gathering_until_ns: Option<u64>,
}

impl Succession {
    /// Returns true while clients of the previous daemon may be about to hand a namespace back.
    pub fn is_expecting(&self, now_ns: u64) -> bool {
        now_ns < self.expecting_until_ns
    }

    /// Expects clients of the previous daemon until this time.
    pub fn expect_until(&mut self, until_ns: u64) {
        self.expecting_until_ns = until_ns;
    }

    /// Waits for the clients that read the old directory, until this time.
    pub fn gather_until(&mut self, until_ns: u64) {
        self.gathering_until_ns = Some(until_ns);
    }

    /// Returns true while clients may read the old directory: some clients are `missing`, and the
    /// wait is not over.
    pub fn is_gathering(&mut self, now_ns: u64, missing: impl FnOnce() -> bool) -> bool {
        let Some(until) = self.gathering_until_ns else { return false };
        if missing() && now_ns < until {
            return true;
        }
        self.gathering_until_ns = None;
        false
    }

    /// Returns the time at which the next wait ends.
    pub fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let expecting = self.is_expecting(now_ns).then_some(self.expecting_until_ns);
        let waits = self.gathering_until_ns.into_iter().chain(expecting);
        self.staged.values().map(Staged::until_ns).chain(waits).min()
    }

    /// Returns true if a namespace is staged.
    pub fn is_staged(&self, name: &str) -> bool {
        self.staged.contains_key(name)
    }

    /// Returns true if any namespace is staged.
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Returns a staged namespace.
    pub fn staged(&mut self, name: &str) -> Option<&mut Staged> {
        self.staged.get_mut(name)
    }

    /// Returns a staged namespace. Calls `begin` to create it if there is none.
    pub fn staged_or(&mut self, name: &str, begin: impl FnOnce() -> Staged) -> &mut Staged {
        self.staged.entry(name.to_owned()).or_insert_with(begin)
    }

    /// Removes and returns the namespaces that are complete or have waited long enough.
    pub fn take_due(&mut self, now_ns: u64) -> Vec<Staged> {
        let due = |_: &String, staged: &mut Staged| now_ns >= staged.until_ns() || staged.is_complete();
        self.staged.extract_if(.., due).map(|(_, staged)| staged).collect()
    }

    /// Removes and returns all staged namespaces.
    pub fn take_all(&mut self) -> Vec<Staged> {
        std::mem::take(&mut self.staged).into_values().collect()
    }
}
