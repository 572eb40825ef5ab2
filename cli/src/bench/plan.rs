//! The rows of the benchmark, and the floor of each.

use std::path::PathBuf;

use tensorlend_baselines::{BaselineError, Cores, Meter};

use super::race::{Entry, Group, Label};
use super::{copies, names, pairs, sessions};

/// The peer of a floor's row.
pub const FLOOR: &str = "floor";
/// The peer of tensorlend's rows.
pub const OURS: &str = "tensorlend";

/// Parameters that all rows share.
#[derive(Debug, Clone)]
pub struct Setting {
    pub cores: Cores,
    pub socket: PathBuf,
    pub quick: bool,
}

/// Returns all groups.
pub fn plan(setting: &Setting) -> Vec<Group> {
    let mut groups = pairs::groups(setting);
    groups.extend(names::groups(setting));
    groups.extend(copies::groups(setting));
    groups.extend(sessions::groups(setting));
    groups
}

/// Returns a row without a size.
pub fn entry(
    name: impl Into<String>,
    peer: &'static str,
    floor: Option<&'static str>,
    make: impl FnOnce() -> Result<Box<dyn Meter>, BaselineError> + 'static,
) -> Entry {
    let label = Label { name: name.into(), peer, size_bytes: None, floor };
    Entry { label, operations_max: u64::MAX, make: Box::new(make) }
}

impl Entry {
    /// Sets the payload's size in bytes.
    pub fn sized(mut self, bytes: usize) -> Self {
        self.label.size_bytes = Some(bytes as u64);
        self
    }

    /// Limits the number of operations in a batch.
    pub fn at_most(mut self, operations: u64) -> Self {
        self.operations_max = operations;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{Cores, FLOOR, Setting, plan};
    use std::collections::HashSet;

    #[test]
    fn rows_are_told_apart_and_compared_with_floors_of_their_group() {
        for quick in [true, false] {
            let setting = Setting { cores: Cores { first: 0, second: 1 }, socket: "/".into(), quick };
            let mut seen = HashSet::new();
            for group in plan(&setting) {
                for entry in &group.entries {
                    let label = &entry.label;
                    assert!(seen.insert((label.name.clone(), label.peer, label.size_bytes)), "{label:?}");
                    let Some(floor) = label.floor else { continue };
                    let fits = |size: Option<u64>| size.is_none() || size == label.size_bytes;
                    let is_it = |other: &&super::Entry| other.label.name == floor && other.label.peer == FLOOR;
                    let found = group.entries.iter().filter(is_it).any(|other| fits(other.label.size_bytes));
                    assert!(found, "{label:?} has no floor beside it");
                }
            }
        }
    }
}
