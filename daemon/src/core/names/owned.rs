//! An index, in the daemon's own memory, of the live entries that lead to cells.

use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::number::{ClientNo, EntryNo};

/// The live entries that lead to cells, by the catalogue of the cell.
#[derive(Debug, Default)]
pub struct Owned {
    entries: BTreeMap<ClientNo, BTreeSet<EntryNo>>,
}

impl Owned {
    pub(super) fn insert(&mut self, number: ClientNo, entry: EntryNo) {
        self.entries.entry(number).or_default().insert(entry);
    }

    pub(super) fn remove(&mut self, number: ClientNo, entry: EntryNo) {
        if let Some(set) = self.entries.get_mut(&number) {
            set.remove(&entry);
            if set.is_empty() {
                self.entries.remove(&number);
            }
        }
    }

    /// Returns the entries whose owner words lead to cells of `catalogue`.
    pub fn of(&self, number: ClientNo) -> Vec<EntryNo> {
        self.entries.get(&number).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns at most `most` of the entries whose owner words lead to cells of `catalogue`, from entry `from` on.
    pub fn of_from(&self, number: ClientNo, from: EntryNo, most: usize) -> Vec<EntryNo> {
        self.entries.get(&number).into_iter().flat_map(|set| set.range(from..)).take(most).copied().collect()
    }

    /// Returns at most `most` entries whose owner words lead to cells, with the catalogues of the
    /// cells. The result begins at this catalogue and entry.
    pub fn all_from(&self, number: ClientNo, entry: EntryNo, most: usize) -> Vec<(ClientNo, EntryNo)> {
        let of = |(&owner, set): (&ClientNo, &'_ BTreeSet<EntryNo>)| {
            let from = if owner == number { entry } else { EntryNo::new(0) };
            set.range(from..).take(most).map(|&entry| (owner, entry)).collect::<Vec<_>>()
        };
        self.entries.range(number..).flat_map(of).take(most).collect()
    }

    /// Returns all entries, each with the catalogue of its cell.
    pub fn iter(&self) -> impl Iterator<Item = (ClientNo, EntryNo)> {
        self.entries.iter().flat_map(|(&owner, set)| set.iter().map(move |&entry| (owner, entry)))
    }

    /// Returns the number of owner words that lead to cells of `catalogue`.
    pub fn count(&self, number: ClientNo) -> usize {
        self.entries.get(&number).map_or(0, BTreeSet::len)
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub fn all(&self) -> usize {
        self.iter().count()
    }

    /// Returns the entries for whose catalogue `there` returns false.
    pub fn orphans(&self, there: impl Fn(ClientNo) -> bool) -> Vec<EntryNo> {
        self.entries.iter().filter(|&(&owner, _)| !there(owner)).flat_map(|(_, entries)| entries).copied().collect()
    }
}
