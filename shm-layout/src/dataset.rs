//! The index of a dataset: the bytes of its first slot, with the names and slots of its members.
//!
//! The members live as long as the index. A dataset is one publication and needs one lease. All
//! numbers are little endian:
//!
//! ```text
//! members 32 . 0 32
//! 64 bytes for each member, in the order in which they were added:
//!     word 0       order 16 . end of its name 24 . slot 24
//!     word 1       generation of the slot
//!     words 2 to 7 summary of its record, as in a stream's entry; zeros: the slot's record must be read
//! the names, one behind the other, each up to its end
//! ```
//!
//! The `order` fields form a separate array, independent of the members around them. The first
//! field is the number of the member whose name sorts first by its bytes, the second that of the
//! next name, and so on. If the names rise strictly in this order, all names are different. So a
//! reader verifies in one pass that no name occurs twice. The reader also finds a name by binary
//! search.

use crate::name::{self, NAME_BYTES_MAX};
use crate::number::SlotNo;
use crate::stream::HeaderSummary;

/// Maximum number of members of a dataset.
pub const MEMBERS_MAX: usize = 4096;

/// Maximum slots of one value: a dataset's index, its members, and an extension for each of them.
pub const CHAIN_MAX: usize = 2 * (1 + MEMBERS_MAX);

const HEAD_BYTES: usize = 8;
const RECORD_BYTES: usize = 64;
const SUMMARY_AT: usize = 16;

/// Maximum length of an index in bytes.
pub const BYTES_MAX: usize = HEAD_BYTES + MEMBERS_MAX * (RECORD_BYTES + NAME_BYTES_MAX);

/// One tensor of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetMember<'n> {
    /// The tensor's name in the dataset.
    pub name: &'n str,
    /// The tensor's slot, in the same catalogue as the index.
    pub slot: SlotNo,
    /// The slot's generation.
    pub generation: u64,
    /// A summary of the slot's record. All zeros if the record does not fit into a summary, or if
    /// the record is not known yet (see [`set_summary`]).
    pub summary: HeaderSummary,
}

/// Encodes an index of at most [`MEMBERS_MAX`] members with different valid names.
pub fn encode(members: &[DatasetMember<'_>]) -> Vec<u8> {
    let names: usize = members.iter().map(|m| m.name.len()).sum();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + members.len() * RECORD_BYTES + names);
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_unstable_by_key(|&at| members[at].name);
    bytes.extend((members.len() as u64).to_le_bytes());
    let mut end = 0;
    for (member, order) in members.iter().zip(order) {
        end += member.name.len();
        let first = (order as u64) << 48 | (end as u64) << 24 | u64::from(member.slot);
        for word in [first, member.generation].iter().chain(&member.summary) {
            bytes.extend(word.to_le_bytes());
        }
    }
    for member in members {
        bytes.extend(member.name.as_bytes());
    }
    bytes
}

/// Stores the summary of member `at` in an encoded index.
///
/// # Panics
/// If the index has no such member.
pub fn set_summary(index: &mut [u8], at: usize, summary: &HeaderSummary) {
    let from = HEAD_BYTES + at * RECORD_BYTES + SUMMARY_AT;
    for (place, word) in index[from..from + size_of::<HeaderSummary>()].chunks_exact_mut(8).zip(summary) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// An index over encoded bytes. A reader copies the bytes first, wraps the copy, and trusts the
/// copy only after [`Index::check`]. Before the check, the methods may return nonsense, but have no
/// other effect.
#[derive(Clone, Copy, Debug)]
pub struct Index<'b> {
    records: &'b [[u8; RECORD_BYTES]],
    names: &'b [u8],
}

#[inline]
fn word(record: &[u8; RECORD_BYTES], at: usize) -> u64 {
    let (words, _) = record.as_chunks::<8>();
    u64::from_le_bytes(words[at])
}

impl<'b> Index<'b> {
    /// Wraps bytes. Returns `None` if the bytes are too few or the index would have too many
    /// members. Ignores bytes after the index.
    #[inline]
    pub fn new(bytes: &'b [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let count = usize::try_from(u64::from_le_bytes(*head)).ok().filter(|&count| count <= MEMBERS_MAX)?;
        let (records, names) = rest.split_at_checked(count * RECORD_BYTES)?;
        let (records, _) = records.as_chunks();
        let mut index = Self { records, names };
        index.names = names.get(..count.checked_sub(1).map_or(0, |last| index.end(last)))?;
        Some(index)
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if the dataset has no members.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    #[inline]
    fn end(&self, at: usize) -> usize {
        (word(&self.records[at], 0) >> 24) as usize & 0xFF_FFFF
    }

    #[inline]
    fn order(&self, at: usize) -> usize {
        (word(&self.records[at], 0) >> 48) as usize
    }

    #[inline]
    fn name_bytes(&self, at: usize) -> &'b [u8] {
        let from = at.checked_sub(1).map_or(0, |before| self.end(before));
        self.names.get(from..self.end(at)).unwrap_or_default()
    }

    /// Returns true if the members' names are valid and all different.
    #[inline(always)]
    pub fn check(&self) -> bool {
        let mut from = 0;
        // Fast path: almost all names are printable ASCII, which a single pass can check.
        let plain = self.names.iter().fold(true, |plain, b| plain & matches!(b, b' '..=b'~'));
        for at in 0..self.len() {
            let end = self.end(at);
            if end <= from || end - from > NAME_BYTES_MAX || end > self.names.len() {
                return false;
            }
            if !plain && core::str::from_utf8(&self.names[from..end]).ok().is_none_or(|n| name::check(n).is_err()) {
                return false;
            }
            from = end;
        }
        let mut before: (u64, &[u8]) = (0, &[]);
        (0..self.len()).all(|at| {
            let member = self.order(at);
            let name = if member < self.len() { self.name_bytes(member) } else { &[] };
            // No name contains a zero byte, so a comparison of the first eight bytes as one number decides in most
            // cases.
            let first = name.iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b));
            let name = (first << (64 - 8 * name.len().clamp(1, 8)), name);
            let rises = before.0 < name.0 || before.0 == name.0 && before.1 < name.1;
            before = name;
            rises
        })
    }

    /// Returns the member with number `at`, in the order in which members were added. The slot and
    /// the summary are allegations of the owner, so the caller checks them.
    ///
    /// # Panics
    /// If there is no such member.
    #[inline]
    pub fn member(&self, at: usize) -> DatasetMember<'b> {
        let (slot, generation, summary) = self.place(at);
        DatasetMember { name: self.name(at), slot, generation, summary }
    }

    /// Returns a member's name.
    ///
    /// # Panics
    /// If there is no such member.
    #[inline]
    pub fn name(&self, at: usize) -> &'b str {
        core::str::from_utf8(self.name_bytes(at)).unwrap_or_default()
    }

    /// Returns a member's slot, generation and summary.
    ///
    /// # Panics
    /// If there is no such member.
    #[inline(always)]
    pub fn place(&self, at: usize) -> (SlotNo, u64, HeaderSummary) {
        let record = &self.records[at];
        let summary = core::array::from_fn(|i| word(record, SUMMARY_AT / 8 + i));
        (SlotNo::low(word(record, 0)), word(record, 1), summary)
    }

    /// Returns the number of the member with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let member = Some(self.order(middle)).filter(|&member| member < self.len())?;
            match self.name_bytes(member).cmp(name.as_bytes()) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => return Some(member),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: &str, slot: SlotNo) -> DatasetMember<'_> {
        let summary = core::array::from_fn(|i| u64::from(slot) << 32 | i as u64);
        DatasetMember { name, slot, generation: u64::from(slot) + 5, summary }
    }

    /// Decodes bytes as a reader does.
    fn read(bytes: &[u8]) -> Option<Vec<DatasetMember<'_>>> {
        let index = Index::new(bytes).filter(Index::check)?;
        Some((0..index.len()).map(|at| index.member(at)).collect())
    }

    fn poked(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn an_index_comes_back() {
        let members =
            [member("image", SlotNo::new(1)), member("depth", SlotNo::new(0xFF_FFFE)), member("温度", SlotNo::new(3))];
        let bytes = encode(&members);
        assert_eq!(read(&bytes), Some(members.to_vec()));
        let mut longer = bytes.clone();
        longer.extend([0xFF; 9]);
        assert_eq!(read(&longer), Some(members.to_vec()));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), None);
        }
        assert_eq!(read(&encode(&[])), Some(vec![]));
    }

    #[test]
    fn a_summary_that_comes_later_stands_where_it_would_have_stood() {
        let members = [member("image", SlotNo::new(1)), member("depth", SlotNo::new(2))];
        let mut bytes = encode(&members.map(|m| DatasetMember { summary: HeaderSummary::default(), ..m }));
        assert_ne!(read(&bytes), Some(members.to_vec()));
        for (at, member) in members.iter().enumerate() {
            set_summary(&mut bytes, at, &member.summary);
        }
        assert_eq!(bytes, encode(&members));
    }

    #[test]
    fn every_damage_to_the_names_is_noticed() {
        let bytes = encode(&[member("b", SlotNo::new(1)), member("a", SlotNo::new(2)), member("c", SlotNo::new(3))]);
        assert!(read(&bytes).is_some());
        let names = bytes.len() - 3;
        let (order, end) = (|m: usize| HEAD_BYTES + m * RECORD_BYTES + 6, |m: usize| HEAD_BYTES + m * RECORD_BYTES + 3);
        // A duplicate name; a control character; invalid UTF-8.
        for byte in [b'b', b'\n', 0xFF, 0xC3] {
            assert_eq!(read(&poked(&bytes, names + 1, byte)), None, "{byte}");
        }
        // An empty name; a name that ends before it begins; a name that ends after the end of all names.
        assert_eq!(read(&poked(&bytes, end(1), 1)), None);
        assert_eq!(read(&poked(&bytes, end(0), 3)), None);
        assert_eq!(read(&poked(&bytes, end(2), 4)), None);
        assert_eq!(read(&poked(&bytes, end(2) + 2, 1)), None);
        // An order that omits a member, or has an invalid number.
        assert_eq!(read(&poked(&bytes, order(0), 0)), None);
        assert_eq!(read(&poked(&bytes, order(1), 1)), None);
        assert_eq!(read(&poked(&bytes, order(2), 3)), None);
        assert_eq!(read(&poked(&bytes, order(2) + 1, 0xFF)), None);
        // More members than the bytes contain, or than the maximum.
        assert_eq!(read(&poked(&bytes, 0, 4)), None);
        assert_eq!(read(&poked(&bytes, 7, 1)), None);
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(read(&encode(&[member(&long, SlotNo::new(1))])), None);
        assert!(read(&encode(&[member(&long[1..], SlotNo::new(1))])).is_some());
    }

    #[test]
    #[cfg_attr(miri, ignore = "a megabyte, a byte at a time")]
    fn the_largest_index_is_as_long_as_it_says() {
        let names: Vec<String> = (0..MEMBERS_MAX).map(|at| format!("{at:0255}")).collect();
        let members: Vec<_> = names.iter().zip(0..).map(|(name, slot)| member(name, SlotNo::new(slot))).collect();
        let bytes = encode(&members);
        assert_eq!(bytes.len(), BYTES_MAX);
        assert_eq!(read(&bytes), Some(members));
        let mut more = bytes.clone();
        more[..8].copy_from_slice(&(MEMBERS_MAX as u64 + 1).to_le_bytes());
        more.extend([0; RECORD_BYTES]);
        assert!(Index::new(&more).is_none());
    }

    proptest! {
        #[test]
        fn any_members_come_back(names in prop::collection::btree_set("[ -~é水]{1,40}", 0..40), seed in any::<u64>()) {
            let mut names: Vec<String> = names.into_iter().collect();
            let turn = seed as usize % names.len().max(1);
            names.rotate_left(turn);
            let members: Vec<_> = names.iter().zip(seed as u32 & 0xFFFF..).map(|(name, slot)| member(name, SlotNo::new(slot))).collect();
            let bytes = encode(&members);
            prop_assert_eq!(read(&bytes), Some(members));
            let index = Index::new(&bytes).unwrap();
            for (at, name) in names.iter().enumerate() {
                prop_assert_eq!(index.find(name), Some(at));
                let other = format!("{name}~");
                prop_assert_eq!(index.find(&other), names.iter().position(|n| *n == other));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400), count in 0u64..6, small in any::<bool>(),
        ) {
            if let Some(head) = bytes.first_chunk_mut::<8>() && small {
                *head = count.to_le_bytes();
            }
            if let Some(index) = Index::new(&bytes) {
                let _ = index.find("a");
                (0..index.len()).for_each(|at| drop(index.member(at).name.to_owned()));
                let names: std::collections::HashSet<_> = (0..index.len()).map(|at| index.member(at).name).collect();
                prop_assert!(!index.check() || names.len() == index.len());
            }
        }

        #[test]
        fn a_changed_index_is_refused_or_has_different_names(at in 0usize..220, byte in any::<u8>()) {
            let bytes = encode(&[member("b", SlotNo::new(1)), member("a", SlotNo::new(2)), member("éc", SlotNo::new(3))]);
            if let Some(members) = read(&poked(&bytes, at % bytes.len(), byte)) {
                let names: std::collections::HashSet<_> = members.iter().map(|m| m.name).collect();
                prop_assert_eq!(names.len(), members.len());
                prop_assert!(names.iter().all(|n| name::check(n).is_ok()));
            }
        }
    }
}
