//! The directory of a namespace: the owners of its names, its members, and the memory lent to them.
//!
//! Writer: the daemon. Readers: the namespace's clients. The head contains the offsets of the
//! tables. The configuration sets the sizes of the tables. A client maps the whole sheet once.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
use crate::word::{Bell, Word};

#[cfg(not(loom))]
use crate::number::{ClientNo, EntryNo, SegmentLine};
#[cfg(not(loom))]
use crate::raw::{Records, Sheet, View};
#[cfg(not(loom))]
use crate::size;
#[cfg(not(loom))]
use crate::word::{OwnerWord, TableWord};

mod audience;
mod entry;
mod geometry;
#[cfg(not(loom))]
mod life;
mod search;
mod wanted;

pub use audience::{AUDIENCE, AUDIENCE_WORDS, Bitmap, audience, audience_bit, bits};
pub use entry::{ENTRY_NAME_WORDS, KEY_BYTES_MAX, LONG_NAME_WORDS, LongName, NameEntry, key_word};
pub use geometry::{FIRST_TABLE_LOG2, Geometry};
pub use search::{BUCKET, FoundName, PlaceWord, Replaced, SEARCH_MAX, Search, begin_table_in, find_in};
pub use wanted::WANTED_OUT_SINCE;

/// Maximum number of subscribers of one stream.
pub const SUBSCRIBERS: usize = if cfg!(loom) { 1 } else { 64 };
/// Maximum number of devices whose memory one daemon lends.
pub const DEVICES: usize = if cfg!(loom) { 1 } else { 16 };
/// Number of words in the bitmap of segments that the daemon wants out of memory.
pub const WANTED_WORDS: usize = if cfg!(loom) { 1 } else { 512 };
/// Number of words in a bitmap over members: 65,536 bits.
pub const MEMBER_BITMAP_WORDS: usize = if cfg!(loom) { 1 } else { 1024 };

structure! {
    /// The directory's head.
    pub struct DirectoryHead [32768] {
        /// The sheet's header. The daemon writes it, like all words of the directory.
        0 sheet: SheetHeader,
        /// The current table of names: log2 of its places 8 . number of rebuilds 16 . index of its first place 40. The
        /// daemon stores this word when the new table is complete, before it changes anything in that table.
        64 table: Word,
        /// Seed of the hash of names.
        72 seed: Word,
        /// The namespace's number, for lists and observers.
        80 namespace: Word,
        /// Seeds of the searches in the tables of names: the first for a table in the first half of the places, the
        /// second for one in the second half. The daemon stores a seed before it builds the table.
        88 table_seeds: [Word; 2],
        /// Reserved; always 0.
        104 reserved: [Word; pad(3)],
        /// The daemon rings this bell after it has moved or added a name, if a client is parked.
        128 bell: Bell,
        /// Reserved; always 0.
        136 reserved2: [Word; pad(7)],
        /// Number of members that may be parked. Publishers read `waiters` only if this word is not 0.
        192 waiters_count: Word,
        /// 1 while the daemon sleeps without polling for announcements: a client that announces a name wakes it. 0: the daemon
        /// polls by itself.
        200 wants_nudge: Word,
        /// The daemon rings this bell when the lending of a device segment ends: a client that has the segment mapped
        /// unmaps it and reports this to the daemon.
        208 returned: Bell,
        /// The daemon rings this bell when it sets bits of `wanted_segments`: clients that can let go of these segments
        /// do so. 0: the daemon does not spill, or is older than version 6. Since version 6.
        216 wanted_out: Bell,
        /// Reserved; always 0.
        224 reserved3: [Word; pad(4)],
        /// Offset of the table of members, in bytes.
        256 members_at: Word,
        /// Entries of the table of members; a catalogue's number is its index there.
        264 members: Word,
        /// Offset of the names' entries, in bytes.
        272 names_at: Word,
        /// Number of entries of names; number 0 is never used.
        280 names: Word,
        /// Offset of the long names' blocks, in bytes.
        288 long_names_at: Word,
        /// Number of blocks of long names.
        296 long_names: Word,
        /// Offset of the table of lists, in bytes.
        304 lists_at: Word,
        /// Entries of the table of lists.
        312 lists: Word,
        /// Offset of the table of streams, in bytes.
        320 streams_at: Word,
        /// Entries of the table of streams.
        328 streams: Word,
        /// Offset of the table of segments, in bytes.
        336 segments_at: Word,
        /// Entries of the table of segments.
        344 segments: Word,
        /// Offset of the places of names' tables, in bytes.
        352 places_at: Word,
        /// Number of places; a table is a range of them.
        360 places: Word,
        /// Every entry in use has a number below this word's value. Readers that visit all names stop there.
        368 names_end: Word,
        /// Reserved; always 0.
        376 reserved4: Word,
        /// Names that have an owner. For monitoring only.
        384 names_live: Word,
        /// Bytes of segments lent in this namespace. For monitoring only.
        392 bytes_lent: Word,
        /// Maximum number of bytes that this namespace may have.
        400 bytes_max: Word,
        /// Clients connected. For monitoring only.
        408 clients: Word,
        /// Number of further names for which there is a place and memory now. A name that is announced and not in the
        /// directory yet counts as a further name. The daemon lowers this number before it advances the word
        /// `absorbed`.
        416 names_room: Word,
        /// UUIDs of the devices whose memory the daemon lends in this namespace, in the order of their bytes; 0: none.
        424 devices: [Word; 2 * DEVICES],
        /// Reserved; always 0.
        680 reserved5: [Word; pad(3)],
        /// The entry whose owner word and lifetime the daemon is changing, as `directory/life.rs` packs it. 0: none.
        /// Writer: the daemon. Readers: the next daemon, owners that rename. Since version 7.
        704 change: Word,
        /// The lifetime of the entry before the change, and after it. The daemon stores both before `change`. Since version 7.
        712 change_lives: [Word; 2],
        /// The owner word after the change. Since version 7.
        728 change_after: Word,
        /// Reserved; always 0.
        736 reserved6: [Word; pad(420)],
        /// Bit (i mod 32768): the daemon wants segment i of the table of segments out of memory, and cannot move its bytes to a
        /// file while a process has it mapped. A hint. Since version 6.
        4096 wanted_segments: [Word; WANTED_WORDS],
        /// Bit c: catalogue c belongs to a client. The client may have ended, if the daemon has not dropped it yet. The
        /// daemon sets the bit when a new client has acknowledged its sheets, before it replies to the client's next
        /// request.
        8192 present: [Word; MEMBER_BITMAP_WORDS],
        /// Bit c: member c may be parked, and publishers must check its lease table.
        16384 waiters: [Word; MEMBER_BITMAP_WORDS],
        /// Bit c: member c may announce names. The daemon sets the bit before it opens the member's word `absorbed`,
        /// and before it replies to the request that made the member an announcer. The daemon clears the bit when the
        /// member's last announcement is in the directory.
        24576 announcers: [Word; MEMBER_BITMAP_WORDS],
    }
}

structure! {
    /// A member: one epoch of one client.
    pub struct MemberEntry [192] {
        /// state 2 . epoch 30 . sheet 32. In the state CLOSED, the member's leases no longer count. Each new client
        /// that gets this number has a new epoch.
        0 member: Word,
        /// state 2 . index 62. The index is the number of announcements that are in the directory. The state is OPEN
        /// from the moment at which the daemon lets the member announce; ENDING while the daemon drains the last
        /// announcements.
        8 absorbed: Word,
        /// Changes when the daemon lends another segment in a slot range of this catalogue, or gives this client number to
        /// another client. It never decreases, not even between epochs.
        16 geometry: Word,
        /// Changes when the daemon has taken a name from this client. The client then requests the list of the cells that it
        /// lost.
        24 notices: Word,
        /// pid 32 . uid 32.
        32 process: Word,
        /// Time of the connection: nanoseconds of CLOCK_BOOTTIME.
        40 since_ns: Word,
        /// Bytes of segments lent to the member.
        48 bytes: Word,
        /// Maximum number of announcements that the client may make in its epoch; for further names it sends requests.
        /// This number never decreases.
        56 announce_until: Word,
        /// The client's label, zero-filled UTF-8. For monitoring only.
        64 label: [Word; 8],
        /// Bit (c mod 512) is set if the daemon showed member c a segment, slot records or a stream of this member: c
        /// may then have leases on this member's slots. The daemon stores the bit before the reply that shows them.
        /// Several members may share a bit. If the daemon showed one of them something, owners treat all of them in the
        /// same way.
        128 audience: [Word; AUDIENCE_WORDS],
    }
}

#[cfg(not(feature = "next-layout-for-tests"))]
structure! {
    /// A list. Its items are names, formed of the list's id and their numbers.
    pub struct ListEntry [64] {
        /// Id of this epoch of the list; never used again. 0: free.
        0 id: Word,
        /// Number of items ever appended. The daemon stores it after the item's owner word.
        8 end: Word,
        /// Hash of the list's key; 0: not said. If two keys lead here, the daemon was renaming the list, and the key with
        /// another hash is the former one. Reader: the next daemon. Since version 7.
        16 key_hash: Word,
        /// Reserved; always 0.
        24 reserved: [Word; pad(5)],
    }
}

#[cfg(feature = "next-layout-for-tests")]
structure! {
    /// A list. Its items are names, formed of the list's id and their numbers.
    pub struct ListEntry [64] {
        /// Id of this epoch of the list; never used again. 0: free.
        0 id: Word,
        /// Number of items ever appended. The daemon stores it after the item's owner word.
        8 end: Word,
        /// Hash of the list's key; 0: not said. If two keys lead here, the daemon was renaming the list, and the key with
        /// another hash is the former one. Reader: the next daemon. Since version 7.
        16 key_hash: Word,
        /// The complement of `end`; 0: not said. Stored before `end`.
        24 not_end: Word,
        /// Reserved; always 0.
        32 reserved: [Word; pad(4)],
    }
}

structure! {
    /// A stream: its producer and its subscribers.
    pub struct StreamEntry [640] {
        /// Id of this epoch of the stream; never used again. 0: free.
        0 id: Word,
        /// The producer's catalogue.
        8 catalogue: Word,
        /// Number of entries of its ring.
        16 capacity: Word,
        /// Policy when a subscriber lags: 0 block, 1 drop the oldest, 2 error.
        24 policy: Word,
        /// Changes when a subscriber is added or removed: the producer reads the list again.
        32 subscribers_version: Word,
        /// Number of entries of `subscribers` that the producer reads.
        40 subscribers_count: Word,
        /// Reserved; always 0.
        48 reserved: [Word; pad(10)],
        /// catalogue 16 . cursor 16 . epoch 30 . unused 1 . has a wake descriptor 1. 0: none.
        128 subscribers: [Word; SUBSCRIBERS],
    }
}

structure! {
    /// A segment: its owner and its slot numbers.
    pub struct SegmentEntry [32] {
        /// state 8 . log2 of slots 8 . catalogue 16 . base 24.
        0 range: Word,
        /// Length of the segment in bytes.
        8 bytes: Word,
        /// Time of the lending: nanoseconds of CLOCK_BOOTTIME.
        16 since_ns: Word,
        /// Location of the segment's bytes. 0: host memory. Otherwise device 56 . allocator 8. The device is an index
        /// in the head's list of devices. The allocator is a code of [`crate::wire::Allocator::code`].
        24 place: Word,
    }
}

/// A mapped directory.
#[cfg(not(loom))]
#[derive(Clone)]
pub struct Directory {
    head: Sheet<DirectoryHead>,
    /// The table of members, by client number.
    pub members: Records<MemberEntry>,
    /// The places of all tables of names. [`Directory::table`] returns the range of the current
    /// table.
    pub places: Records<Word>,
    /// The names' entries.
    pub names: Records<NameEntry>,
    /// The blocks with the tails of long names.
    pub long_names: Records<LongName>,
    /// The table of lists.
    pub lists: Records<ListEntry>,
    /// The table of streams.
    pub streams: Records<StreamEntry>,
    /// The table of segments.
    pub segments: Records<SegmentEntry>,
}

#[cfg(not(loom))]
impl Directory {
    /// Returns the tables of a mapped directory. Returns `None` if a table would lie outside the
    /// mapping.
    pub fn new(view: &View) -> Option<Self> {
        let head: Sheet<DirectoryHead> = Sheet::new(view.clone())?;
        let place = |at: &Word, count: &Word| (size::index(at.read()), size::index(count.read()));
        let (members, names) = (place(&head.members_at, &head.members), place(&head.names_at, &head.names));
        let (lists, streams) = (place(&head.lists_at, &head.lists), place(&head.streams_at, &head.streams));
        let long_names = place(&head.long_names_at, &head.long_names);
        let (segments, places) = (place(&head.segments_at, &head.segments), place(&head.places_at, &head.places));
        Some(Self {
            members: Records::new(view, members.0, members.1)?,
            places: Records::new(view, places.0, places.1)?,
            names: Records::new(view, names.0, names.1)?,
            long_names: Records::new(view, long_names.0, long_names.1)?,
            lists: Records::new(view, lists.0, lists.1)?,
            streams: Records::new(view, streams.0, streams.1)?,
            segments: Records::new(view, segments.0, segments.1)?,
            head,
        })
    }

    /// Returns the sizes of the tables. Returns `None` if the length exceeds the maximum, or if the
    /// offsets do not match a directory of these sizes and this length. A daemon calls this before
    /// it writes a directory that another daemon made.
    pub fn geometry(&self, bytes: u64) -> Option<Geometry> {
        let count = |count: usize, most: u32| u32::try_from(count).ok().filter(|count| *count <= most);
        let most = Geometry::LARGEST;
        let geometry = Geometry {
            members: count(self.members.len(), most.members)?,
            names: count(self.names.len().checked_sub(1)?, most.names)?,
            lists: count(self.lists.len(), most.lists)?,
            streams: count(self.streams.len(), most.streams)?,
            segments: count(self.segments.len(), most.segments)?,
        };
        let offsets = geometry.offsets();
        let head = self.head();
        let said = [
            (&head.members_at, self.members.len()),
            (&head.lists_at, self.lists.len()),
            (&head.streams_at, self.streams.len()),
            (&head.segments_at, self.segments.len()),
            (&head.places_at, self.places.len()),
            (&head.long_names_at, self.long_names.len()),
            (&head.names_at, self.names.len()),
        ];
        let table = self.table();
        let half = self.places.len() as u64 / 2;
        let is_table = (FIRST_TABLE_LOG2..=geometry.table_log2_max()).contains(&table.log2())
            && (table.first() == 0 || table.first() == half);
        let lies = said.iter().zip(offsets).all(|((at, count), there)| (at.peek(), *count as u64) == there);
        (geometry.members > 0 && lies && is_table && bytes == geometry.bytes()).then_some(geometry)
    }

    /// Returns the directory's head.
    pub fn head(&self) -> &DirectoryHead {
        &self.head
    }

    /// Returns the word with the location of the current table of names.
    #[inline]
    pub fn table(&self) -> TableWord {
        TableWord(self.head.table.read())
    }

    /// Returns the seed of the searches in a table.
    #[inline]
    pub fn table_seed(&self, table: TableWord) -> u64 {
        self.head.table_seeds[table.half()].read()
    }

    /// Daemon: begins another table, in the half of the places that the current table does not use.
    pub fn begin_table(&self, table: TableWord, seed: u64) {
        begin_table_in(&self.head.table_seeds, table, seed);
    }

    /// Returns the hash of a key in this namespace (XXH3, seeded).
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, self.head.seed.peek())
    }

    /// Looks a key up. See [`find_in`].
    ///
    /// `Err`: the daemon replaced the table during the look-up, and the caller searches the new
    /// table. `Ok(None)`: no entry had this key while the table was current. A found entry may be
    /// in any state. Its owner word did not change during the comparison of the key.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<FoundName>, Replaced> {
        let (table, seeds) = (&self.head.table, &self.head.table_seeds);
        find_in(table, seeds, &self.places, &self.names, &self.long_names, hash, key)
    }

    /// Returns true if a search for this hash passes more than [`SEARCH_MAX`] places. The daemon
    /// refuses such a name if most of these places belong to the client's user. So the client
    /// requests the name from the daemon instead of announcing it.
    pub fn is_long_search(&self, hash: u64) -> bool {
        self.passed_by(hash).nth(size::index(SEARCH_MAX)).is_some()
    }

    /// Returns the places of the current table that a search for this hash passes, up to the first
    /// free place.
    pub fn passed_by(&self, hash: u64) -> impl Iterator<Item = PlaceWord> + '_ {
        let table = self.table();
        Search::new(hash, self.table_seed(table), table.log2())
            .flat_map(move |bucket| table.first() + bucket..table.first() + bucket + BUCKET)
            .map_while(|at| self.places.get(size::index(at)).map(|place| PlaceWord(place.read())))
            .take_while(|place| !place.is_free())
    }

    /// Returns the index in [`Directory::places`] at which the search for this hash begins. With it and
    /// [`Directory::entry_at`], a reader loads the lines of many look-ups at once. Both are hints, which may be wrong or
    /// outdated; the look-up itself decides.
    #[inline]
    pub fn first_place(&self, hash: u64) -> usize {
        let table = self.table();
        let bucket = Search::new(hash, self.table_seed(table), table.log2()).next().unwrap_or_default();
        size::index(table.first() + bucket)
    }

    /// Returns the entry that may have this hash, by the bucket of places that begins at `first`.
    #[inline]
    pub fn entry_at(&self, first: usize, hash: u64) -> Option<EntryNo> {
        let bucket = self.places.get(first..first + size::index(BUCKET))?;
        bucket.iter().map(|place| PlaceWord(place.peek())).find(|place| place.may_be(hash)).map(PlaceWord::entry)
    }

    /// Returns the entries that may be in use, with their numbers. Readers that visit all names use
    /// this. The iteration may miss a name that the daemon adds during the iteration.
    pub fn entries(&self) -> impl Iterator<Item = (EntryNo, &NameEntry)> {
        let end = size::index(self.head.names_end.read()).min(self.names.len());
        (1..).map(EntryNo::new).zip(self.names.get(1..end).unwrap_or_default())
    }

    /// Copies an entry's key. The caller then checks that the owner word did not change during the
    /// copy.
    pub fn key(&self, entry: &NameEntry) -> Option<Vec<u8>> {
        let (word, bytes) = (entry.key.peek(), entry.key_bytes());
        let tail =
            if bytes > ENTRY_NAME_WORDS * 8 { &self.long_names.get((word >> 16) as usize)?.bytes[..] } else { &[] };
        let mut key: Vec<u8> = entry.name.iter().chain(tail).flat_map(|w| w.peek().to_le_bytes()).collect();
        if bytes > key.len() {
            return None;
        }
        key.truncate(bytes);
        Some(key)
    }

    /// Returns the owner word and the key of a live entry: see [`NameEntry::live_key`].
    pub fn live_key(&self, entry: &NameEntry) -> Option<(OwnerWord, Vec<u8>)> {
        entry.live_key(|entry| self.key(entry))
    }

    /// Returns all lines of the table of members, with their numbers.
    pub fn numbered_members(&self) -> impl Iterator<Item = (ClientNo, &MemberEntry)> + '_ {
        self.members.iter().enumerate().filter_map(|(index, line)| Some((ClientNo::at(index)?, line)))
    }

    /// Returns all lines of the table of segments, with their numbers.
    pub fn numbered_segments(&self) -> impl Iterator<Item = (SegmentLine, &SegmentEntry)> + '_ {
        (0..).map(SegmentLine::new).zip(self.segments.iter())
    }

    /// Returns the numbers that belong to clients.
    pub fn present(&self) -> impl Iterator<Item = ClientNo> + '_ {
        bits(&self.head.present, self.members.len())
    }

    /// Returns the members that may have leases on this owner's slots, and the members that share
    /// an audience bit with one of them. The result never includes the owner itself.
    pub fn audience(&self, owner: ClientNo) -> impl Iterator<Item = ClientNo> + '_ {
        let shown = &self.members[owner.index()].audience;
        audience(&self.head.present, shown, self.members.len()).filter(move |&reader| reader != owner)
    }

    /// Returns the members that may announce names.
    pub fn announcers(&self) -> impl Iterator<Item = ClientNo> + '_ {
        bits(&self.head.announcers, self.members.len())
    }

    /// Returns the members that may be parked.
    pub fn waiters(&self) -> impl Iterator<Item = ClientNo> + '_ {
        bits(&self.head.waiters, self.members.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
