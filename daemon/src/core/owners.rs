//! The owner of each uid, for limits and shares. All uids of a range that subuid(5) grants to a
//! user count as that user. So a user gets no more by running processes in user namespaces.
//!
//! Access rights, and the reuse of memory, depend on the uid itself.

/// The superuser. No share limits this uid. The superuser's holdings still reduce what other users
/// may hold.
pub const SUPERUSER: u32 = 0;

/// The owners of ranges of uids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// First uid, last uid and owner of each range, sorted by the first uid, without overlaps.
    ranges: Vec<(u32, u32, u32)>,
}

/// Maximum number of steps from a uid to its owner. A range may be granted to a uid of another
/// range.
const STEPS: usize = 4;

impl Owners {
    /// Returns the owners of these ranges. Each range has its first uid, its number of uids, and
    /// its owner if known. If the owner is the superuser or unknown, the uids of the range count
    /// together as the first uid, without the superuser's exemptions. If ranges overlap, the range
    /// that begins first has the common uids.
    pub fn new(ranges: impl IntoIterator<Item = (u32, u32, Option<u32>)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|&(_, count, _)| count > 0).collect();
        sorted.sort_unstable();
        let mut it = Self::default();
        for (first, count, owner) in sorted {
            let last = first.saturating_add(count - 1);
            let from = it.ranges.last().map_or(first, |&(_, before, _)| first.max(before.saturating_add(1)));
            if from <= last && it.ranges.last().is_none_or(|&(_, before, _)| before < last) {
                it.ranges.push((from, last, owner.filter(|&owner| owner != SUPERUSER).unwrap_or(first)));
            }
        }
        it
    }

    /// Returns true if no range exists.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the owner of a uid. A uid in no range owns itself, and so does the superuser.
    pub fn of(&self, uid: u32) -> u32 {
        let mut owner = uid;
        for _ in 0..STEPS {
            let at = self.ranges.partition_point(|&(first, ..)| first <= owner);
            match at.checked_sub(1).map(|at| self.ranges[at]) {
                Some((_, last, next)) if owner <= last && owner != next && owner != SUPERUSER => owner = next,
                _ => break,
            }
        }
        owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_a_range_are_their_owners() {
        let owners = Owners::new([(100_000, 65_536, Some(1000)), (165_536, 10, Some(1001)), (5, 0, Some(7))]);
        for (uid, owner) in
            [(1000, 1000), (100_000, 1000), (165_535, 1000), (165_536, 1001), (165_546, 165_546), (5, 5)]
        {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
        assert!(Owners::default().is_empty() && Owners::default().of(7) == 7);
    }

    #[test]
    fn nobody_becomes_the_superuser() {
        let owners = Owners::new([(100_000, 100, Some(0)), (200_000, 100, None), (0, 10, Some(1000))]);
        assert_eq!((owners.of(100_000), owners.of(100_099)), (100_000, 100_000));
        assert_eq!(owners.of(200_050), 200_000);
        assert_eq!((owners.of(0), owners.of(3)), (0, 1000));
    }

    #[test]
    fn ranges_of_ranges_and_ranges_that_overlap_have_one_owner() {
        let owners =
            Owners::new([(200_000, 100, Some(100_005)), (100_000, 100, Some(1000)), (100_050, 100, Some(1001))]);
        assert_eq!(owners.of(200_007), 1000);
        assert_eq!((owners.of(100_060), owners.of(100_120)), (1000, 1001));
        // Two ranges that own each other: the search ends.
        let owners = Owners::new([(10, 10, Some(20)), (20, 10, Some(10))]);
        assert!([10, 20].contains(&owners.of(12)));
        assert_eq!(Owners::new([(10, 100, Some(1)), (20, 10, Some(2)), (u32::MAX, 9, Some(3))]).of(115), 115);
    }
}
