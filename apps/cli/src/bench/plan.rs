//! The benchmark's plan: all groups of rows.

use super::race::Group;
use super::setting::Setting;
use super::{copies, names, pairs, sessions};

/// Returns all groups, in the order of the report.
pub fn plan(setting: &Setting) -> Vec<Group> {
    let mut groups = pairs::groups(setting);
    groups.extend(names::groups(setting));
    groups.extend(copies::groups(setting));
    groups.extend(sessions::groups(setting));
    groups
}

#[cfg(test)]
mod tests {
    use super::super::race::Entry;
    use super::super::setting::FLOOR;
    use super::{Setting, plan};
    use std::collections::HashSet;
    use tensorlend_baselines::Cores;

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
                    let is_it = |other: &&Entry| other.label.name == floor && other.label.peer == FLOOR;
                    let found = group.entries.iter().filter(is_it).any(|other| fits(other.label.size_bytes));
                    assert!(found, "{label:?} has no floor beside it");
                }
            }
        }
    }
}
