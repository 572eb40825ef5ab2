//! The sizes of a directory's tables, and their offsets.

#[cfg(not(loom))]
use super::{DirectoryHead, ListEntry, LongName, MemberEntry, NameEntry, SegmentEntry, StreamEntry};
#[cfg(not(loom))]
use crate::word::{TableWord, Word, low8};

/// Sizes of a directory's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Maximum number of clients, live and ended together.
    pub members: u32,
    /// Maximum number of names.
    pub names: u32,
    /// Maximum number of lists.
    pub lists: u32,
    /// Maximum number of streams.
    pub streams: u32,
    /// Maximum number of segments.
    pub segments: u32,
}

/// log2 of the places of a directory's first table of names.
pub const FIRST_TABLE_LOG2: u8 = 13;

#[cfg(not(loom))]
impl Geometry {
    /// The largest geometry that a daemon can be configured to use.
    pub const LARGEST: Self =
        Self { members: 1 << 16, names: 1 << 24, lists: 1 << 20, streams: 1 << 16, segments: 1 << 16 };

    /// Returns log2 of the places of the largest table. The maximum number of names fills at most
    /// five eighths of that table.
    pub fn table_log2_max(&self) -> u8 {
        let places = (u64::from(self.names) * 8).div_ceil(5).next_power_of_two();
        low8(places.ilog2().into()).max(FIRST_TABLE_LOG2)
    }

    /// Returns the number of blocks for long names. Number 0 is not used.
    pub fn long_names(&self) -> u64 {
        (u64::from(self.names) / 8).max(256)
    }

    /// Returns the offset and the number of records of each table. The tables that need memory from
    /// the beginning come first. The other tables get memory only where they are used, so each of
    /// them begins on a page.
    pub(super) fn offsets(&self) -> [(u64, u64); 7] {
        let mut at = size_of::<DirectoryHead>() as u64;
        let mut place = |count: u64, bytes: usize| {
            let start = at;
            at = (at + count * bytes as u64).next_multiple_of(4096);
            (start, count)
        };
        [
            place(u64::from(self.members), size_of::<MemberEntry>()),
            place(u64::from(self.lists), size_of::<ListEntry>()),
            place(u64::from(self.streams), size_of::<StreamEntry>()),
            place(u64::from(self.segments), size_of::<SegmentEntry>()),
            // Two tables of the largest size. The daemon builds one of them while the other is
            // current.
            place(2 << self.table_log2_max(), size_of::<Word>()),
            place(self.long_names(), size_of::<LongName>()),
            place(u64::from(self.names) + 1, size_of::<NameEntry>()),
        ]
    }

    /// Returns the length of the sheet in bytes.
    pub fn bytes(&self) -> u64 {
        let (at, count) = self.offsets()[6];
        (at + count * size_of::<NameEntry>() as u64).next_multiple_of(4096)
    }

    /// Returns the number of bytes that need memory from the beginning. These bytes end with the
    /// first table of names.
    pub fn bytes_first(&self) -> u64 {
        self.offsets()[4].0 + (size_of::<Word>() << FIRST_TABLE_LOG2) as u64
    }

    /// Daemon: writes the head of a fresh, zeroed directory.
    pub fn initialise(&self, head: &DirectoryHead, seed: u64, namespace: u64) {
        let [members, lists, streams, segments, places, long_names, names] = self.offsets();
        for ((at, count), (at_word, count_word)) in [
            (members, (&head.members_at, &head.members)),
            (names, (&head.names_at, &head.names)),
            (places, (&head.places_at, &head.places)),
            (long_names, (&head.long_names_at, &head.long_names)),
            (lists, (&head.lists_at, &head.lists)),
            (streams, (&head.streams_at, &head.streams)),
            (segments, (&head.segments_at, &head.segments)),
        ] {
            at_word.put(at);
            count_word.put(count);
        }
        head.seed.put(seed);
        head.namespace.put(namespace);
        head.table.set(TableWord::new(FIRST_TABLE_LOG2, 0).0);
    }
}
