//! The directory of a namespace: who owns which name, who is a member, what is lent.
//!
//! Writer: the daemon. Readers: the namespace's clients. Its head tells where its tables lie; they have the sizes that
//! the configuration allows, and the whole sheet is mapped once.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
use crate::sync::{Ordering, fence};
use crate::word::{Bell, Home, HomeKind, TableWord, Word};

#[cfg(not(loom))]
use crate::raw::{Records, Sheet, View};

/// Words of a name that stand in its entry.
pub const ENTRY_NAME_WORDS: usize = if cfg!(loom) { 1 } else { 12 };
/// Words of a name that stand in a long name's block.
pub const LONG_NAME_WORDS: usize = if cfg!(loom) { 1 } else { 20 };
/// Bytes of a directory key: 96 in the entry and 160 in a block.
pub const KEY_BYTES_MAX: usize = (ENTRY_NAME_WORDS + LONG_NAME_WORDS) * 8;
/// Subscribers of one stream.
pub const SUBSCRIBERS: usize = if cfg!(loom) { 1 } else { 64 };
/// Words of the bitmaps over members: 65,536 bits.
pub const MEMBER_BITMAP_WORDS: usize = if cfg!(loom) { 1 } else { 1024 };

structure! {
    /// The directory's head.
    pub struct DirectoryHead [24576] {
        /// What this sheet is. Writer: the daemon, as of everything here.
        0 sheet: SheetHeader,
        /// The current table of names: log2 of its entries 8 . times built anew 16 . index of its first entry 40. Stored when the new table
        /// is complete and before the old one is poisoned.
        64 table: Word,
        /// Seed of the hash of names.
        72 seed: Word,
        /// The namespace's number, for lists and observers.
        80 namespace: Word,
        /// Kept 0.
        88 reserved: [Word; pad(5)],
        /// Rung when a name moved or came while somebody was parked.
        128 bell: Bell,
        /// Kept 0.
        136 reserved2: [Word; pad(7)],
        /// How many members may be parked: publishers look at `waiters` only if this is not 0.
        192 waiters_count: Word,
        /// Kept 0.
        200 reserved3: [Word; pad(7)],
        /// Where the table of members begins, in bytes.
        256 members_at: Word,
        /// Entries of the table of members; a catalogue's number is its place there.
        264 members: Word,
        /// Where the tables of names begin, in bytes.
        272 names_at: Word,
        /// Entries of all tables of names together.
        280 names: Word,
        /// Where the long names' blocks begin, in bytes.
        288 long_names_at: Word,
        /// Blocks of long names.
        296 long_names: Word,
        /// Where the table of lists begins, in bytes.
        304 lists_at: Word,
        /// Entries of the table of lists.
        312 lists: Word,
        /// Where the table of streams begins, in bytes.
        320 streams_at: Word,
        /// Entries of the table of streams.
        328 streams: Word,
        /// Where the table of segments begins, in bytes.
        336 segments_at: Word,
        /// Entries of the table of segments.
        344 segments: Word,
        /// Kept 0.
        352 reserved4: [Word; pad(4)],
        /// Names that have a home. For observers.
        384 names_live: Word,
        /// Bytes of segments lent in this namespace. For observers.
        392 bytes_lent: Word,
        /// Most bytes that this namespace may have.
        400 bytes_max: Word,
        /// Clients connected. For observers.
        408 clients: Word,
        /// Kept 0.
        416 reserved5: [Word; pad(460)],
        /// Kept 0.
        4096 reserved6: [Word; pad(512)],
        /// Bit c: catalogue c belongs to somebody, live or ended and not yet dropped. Stored before the newcomer's reply.
        8192 present: [Word; MEMBER_BITMAP_WORDS],
        /// Bit c: member c asked to be looked at when something is published, because it may be parked.
        16384 waiters: [Word; MEMBER_BITMAP_WORDS],
    }
}

structure! {
    /// A member: one life of one client.
    pub struct MemberEntry [128] {
        /// state 2 . epoch 30 . sheet 32. Ended: its leases no longer count. Its epoch moves with each new life.
        0 member: Word,
        /// state 2 . index 62: announcements that are in the directory. ENDING while the daemon drains the last ones.
        8 absorbed: Word,
        /// Moves when a slot range of this catalogue begins to mean another segment, or the number another client.
        /// Never goes back, not even between lives.
        16 geometry: Word,
        /// Moves when the daemon took a name from this client: ask for the list.
        24 notices: Word,
        /// pid 32 . uid 32.
        32 process: Word,
        /// When it connected: nanoseconds of CLOCK_BOOTTIME.
        40 since_ns: Word,
        /// Bytes of segments lent to it.
        48 bytes: Word,
        /// Kept 0.
        56 reserved: Word,
        /// The client's label, zero-filled UTF-8. For observers.
        64 label: [Word; 8],
    }
}

structure! {
    /// A name and who owns it.
    pub struct NameEntry [128] {
        /// kind 2 . version 22 . catalogue 16 . cell 24. Read first and read again last: the name beside it stands
        /// still as long as this word does.
        0 home: Word,
        /// Hash of the key.
        8 hash: Word,
        /// Length of the key 16 . block of its tail 48 (for keys above 96 bytes).
        16 key: Word,
        /// Kept 0.
        24 reserved: Word,
        /// The key's first 96 bytes, zero-filled.
        32 name: [Word; ENTRY_NAME_WORDS],
    }
}

structure! {
    /// The bytes of a long key from its 97th on, zero-filled.
    pub struct LongName [160] {
        /// Up to 160 bytes.
        0 bytes: [Word; LONG_NAME_WORDS],
    }
}

structure! {
    /// A list: its items are names of their own, made of the list's id and their number.
    pub struct ListEntry [64] {
        /// Id of this life of the list; never used again. 0: free.
        0 id: Word,
        /// Items ever appended. Stored after the item's home.
        8 end: Word,
        /// Kept 0.
        16 reserved: [Word; pad(6)],
    }
}

structure! {
    /// A stream: who sends and who listens.
    pub struct StreamEntry [640] {
        /// Id of this life of the stream; never used again. 0: free.
        0 id: Word,
        /// The producer's catalogue.
        8 catalogue: Word,
        /// Entries of its ring.
        16 capacity: Word,
        /// Policy when a subscriber lags: 0 block, 1 drop the oldest, 2 error.
        24 policy: Word,
        /// Moves when a subscriber comes or goes: the producer reads the list again.
        32 subscribers_version: Word,
        /// Subscribers listed: the entries to look at.
        40 subscribers_count: Word,
        /// Kept 0.
        48 reserved: [Word; pad(10)],
        /// catalogue 16 . cursor 16 . epoch 30 . unused 1 . has a wake descriptor 1. 0: none.
        128 subscribers: [Word; SUBSCRIBERS],
    }
}

structure! {
    /// A segment: whose it is, and which slot numbers it holds.
    pub struct SegmentEntry [32] {
        /// state 8 . log2 of slots 8 . catalogue 16 . base 24.
        0 range: Word,
        /// Length in bytes.
        8 bytes: Word,
        /// Since when it is lent: nanoseconds of CLOCK_BOOTTIME.
        16 since_ns: Word,
        /// Kept 0.
        24 reserved: Word,
    }
}

/// Sizes of a directory's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Clients, live and ended together.
    pub members: u32,
    /// Names at most; a power of two. The tables of names together have four times as many entries.
    pub names: u32,
    /// Lists at most.
    pub lists: u32,
    /// Streams at most.
    pub streams: u32,
    /// Segments at most.
    pub segments: u32,
}

/// log2 of the entries of a directory's first table of names.
pub const FIRST_TABLE_LOG2: u8 = 10;

#[cfg(not(loom))]
impl Geometry {
    /// Entries of all tables of names: 2^10 + 2^11 + ... up to twice the names allowed.
    pub fn name_entries(&self) -> u64 {
        let last = (u64::from(self.names) * 2).next_power_of_two().max(1 << FIRST_TABLE_LOG2);
        last * 2 - (1 << FIRST_TABLE_LOG2)
    }

    /// Blocks for long names.
    pub fn long_names(&self) -> u64 {
        (u64::from(self.names) / 8).max(256)
    }

    fn offsets(&self) -> [(u64, u64); 6] {
        let mut at = size_of::<DirectoryHead>() as u64;
        let mut place = |count: u64, bytes: usize| {
            let start = at;
            at = (at + count * bytes as u64).next_multiple_of(4096);
            (start, count)
        };
        [
            place(u64::from(self.members), size_of::<MemberEntry>()),
            place(self.name_entries(), size_of::<NameEntry>()),
            place(self.long_names(), size_of::<LongName>()),
            place(u64::from(self.lists), size_of::<ListEntry>()),
            place(u64::from(self.streams), size_of::<StreamEntry>()),
            place(u64::from(self.segments), size_of::<SegmentEntry>()),
        ]
    }

    /// Length of the sheet in bytes.
    pub fn bytes(&self) -> u64 {
        let (at, count) = self.offsets()[5];
        (at + count * size_of::<SegmentEntry>() as u64).next_multiple_of(4096)
    }

    /// Daemon: writes the head of a fresh, zeroed directory.
    pub fn initialise(&self, head: &DirectoryHead, seed: u64, namespace: u64) {
        let [members, names, long_names, lists, streams, segments] = self.offsets();
        for ((at, count), (at_word, count_word)) in [
            (members, (&head.members_at, &head.members)),
            (names, (&head.names_at, &head.names)),
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

/// A name's entry as a lookup found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundName {
    /// Index in the directory's entry array.
    pub entry: u32,
    /// Its home word when the key was compared. Whoever acts on it reads the word again.
    pub home: Home,
}

/// A mapped directory.
#[cfg(not(loom))]
#[derive(Clone)]
pub struct Directory {
    head: Sheet<DirectoryHead>,
    /// The table of members, by catalogue number.
    pub members: Records<MemberEntry>,
    /// All tables of names; [`Directory::table`] tells which part is current.
    pub names: Records<NameEntry>,
    /// Tails of long names.
    pub long_names: Records<LongName>,
    /// Lists.
    pub lists: Records<ListEntry>,
    /// Streams.
    pub streams: Records<StreamEntry>,
    /// Segments.
    pub segments: Records<SegmentEntry>,
}

#[cfg(not(loom))]
impl Directory {
    /// Lays the tables over a mapped directory; `None` if its head says they would lie outside.
    pub fn new(view: &View) -> Option<Self> {
        let head: Sheet<DirectoryHead> = Sheet::new(view.clone())?;
        let place = |at: &Word, count: &Word| (at.read() as usize, count.read() as usize);
        let (members, names) = (place(&head.members_at, &head.members), place(&head.names_at, &head.names));
        let (lists, streams) = (place(&head.lists_at, &head.lists), place(&head.streams_at, &head.streams));
        let long_names = place(&head.long_names_at, &head.long_names);
        let segments = place(&head.segments_at, &head.segments);
        Some(Self {
            members: Records::new(view, members.0, members.1)?,
            names: Records::new(view, names.0, names.1)?,
            long_names: Records::new(view, long_names.0, long_names.1)?,
            lists: Records::new(view, lists.0, lists.1)?,
            streams: Records::new(view, streams.0, streams.1)?,
            segments: Records::new(view, segments.0, segments.1)?,
            head,
        })
    }

    /// The directory's head.
    pub fn head(&self) -> &DirectoryHead {
        &self.head
    }

    /// Where the current table of names lies.
    #[inline]
    pub fn table(&self) -> TableWord {
        TableWord(self.head.table.read())
    }

    /// The hash of a key in this namespace (XXH3, seeded).
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, self.head.seed.peek())
    }

    /// Looks a key up. `Err`: the table was replaced during the look-up; look again in the new one. `Ok(None)`: no
    /// entry had this key while the table was current. A found entry may be in any state but `Free` and `Moved`; its
    /// home word stood still while the key was compared. See [`find_in`].
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<FoundName>, Replaced> {
        find_in(&self.head.table, &self.names, &self.long_names, hash, key)
    }

    /// Copies an entry's key out. The caller checks that its home word stood still meanwhile.
    pub fn key(&self, entry: &NameEntry) -> Option<Vec<u8>> {
        let word = entry.key.peek();
        let bytes = (word & 0xFFFF) as usize;
        let tail =
            if bytes > ENTRY_NAME_WORDS * 8 { &self.long_names.get((word >> 16) as usize)?.bytes[..] } else { &[] };
        let mut key: Vec<u8> = entry.name.iter().chain(tail).flat_map(|w| w.peek().to_le_bytes()).collect();
        if bytes > key.len() {
            return None;
        }
        key.truncate(bytes);
        Some(key)
    }

    /// Catalogue numbers that belong to somebody.
    pub fn present(&self) -> impl Iterator<Item = u16> + '_ {
        bits(&self.head.present, self.members.len())
    }

    /// Members that may be parked.
    pub fn waiters(&self) -> impl Iterator<Item = u16> + '_ {
        bits(&self.head.waiters, self.members.len())
    }
}

/// The set bits below `count`, read word by word.
pub fn bits(words: &[Word], count: usize) -> impl Iterator<Item = u16> + '_ {
    words[..count.div_ceil(64).min(words.len())]
        .iter()
        .enumerate()
        .flat_map(move |(w, word)| {
            let mut left = word.read();
            core::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    w * 64 + bit
                })
            })
        })
        .filter(move |&bit| bit < count)
        .map(|bit| bit as u16)
}

/// [`Directory::find`] over bare tables: the table word, all entries, the long names' blocks.
///
/// A key stands in one entry at most that is not free: the daemon revives the tomb of the same key, where there is one,
/// before it takes any other entry. Entries become free from the end of a probe backwards only: never before one that a
/// probe must still reach.
#[inline]
pub fn find_in(
    table_word: &Word,
    names: &[NameEntry],
    long_names: &[LongName],
    hash: u64,
    key: &[u8],
) -> Result<Option<FoundName>, Replaced> {
    let table = TableWord(table_word.read());
    let (first, entries) = (table.first(), table.entries());
    if first + entries > names.len() as u64 {
        return Err(Replaced);
    }
    let current = &names[first as usize..(first + entries) as usize];
    for step in 0..entries {
        let at = (hash.wrapping_add(step) & (entries - 1)) as usize;
        match current[at].probe(hash, key, long_names) {
            Probe::Here(home) => {
                return Ok(Some(FoundName { entry: first as u32 + at as u32, home }));
            }
            Probe::Further => {}
            Probe::End => break,
            Probe::Moved => return Err(Replaced),
        }
    }
    // A miss counts only if this table was the current one until here.
    if TableWord(table_word.read()) == table { Ok(None) } else { Err(Replaced) }
}

/// What a look-up learns from one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The entry has the key, and this home word stood still while it was compared.
    Here(Home),
    /// It has another key: the next entry may have this one.
    Further,
    /// It is free: no later entry has the key.
    End,
    /// The table was replaced.
    Moved,
}

impl NameEntry {
    /// Compares the entry's key.
    ///
    /// Home first, then the key, then home again: entries are reused, and the key read under one home word belongs to it
    /// only if that word still stands. If it moved under an equal key, the *same* entry is looked at again: the name was
    /// taken over, say, and going on would miss it. Every turn of this loop is a store of the daemon.
    #[inline]
    pub fn probe(&self, hash: u64, key: &[u8], long_names: &[LongName]) -> Probe {
        loop {
            let home = Home(self.home.read());
            match home.kind() {
                HomeKind::Free => return Probe::End,
                HomeKind::Moved => return Probe::Moved,
                HomeKind::Tomb | HomeKind::Live | HomeKind::Reserved => {}
            }
            if self.hash.peek() != hash || !self.key_is(key, long_names) {
                return Probe::Further;
            }
            if Home(self.home_after_key()) == home {
                return Probe::Here(home);
            }
        }
    }

    /// Whether the entry holds this key: its words are compared as they lie.
    #[inline]
    fn key_is(&self, key: &[u8], long_names: &[LongName]) -> bool {
        let word = self.key.peek();
        if word & 0xFFFF != key.len() as u64 {
            return false;
        }
        let mut chunks = key.chunks(8);
        let mut same =
            |words: &[Word]| chunks.by_ref().take(words.len()).zip(words).all(|(c, w)| key_word(c) == w.peek());
        if !same(&self.name) {
            return false;
        }
        key.len() <= ENTRY_NAME_WORDS * 8
            || long_names.get((word >> 16) as usize).is_some_and(|block| same(&block.bytes))
    }

    /// The home word again, behind the reading of the key.
    #[inline]
    pub fn home_after_key(&self) -> u64 {
        // Acquire, for the relaxed loads of the key above: if one of them saw a later key, this sees a later home.
        fence(Ordering::Acquire);
        self.home.peek()
    }

    /// Daemon: takes the key from a tomb, so that no look-up stops here any more. Needed before the block of a long key
    /// is given to another name: the tomb would seem to have that name's key.
    pub fn clear_key(&self) {
        assert_eq!(Home(self.home.peek()).kind(), HomeKind::Tomb, "a key changes under a dead home word only");
        // Release: as in set_key.
        fence(Ordering::Release);
        self.key.put(0);
    }

    /// Daemon: gives the entry to another key. Its home word says `Free` or `Tomb` already; the store that makes it
    /// `Live` or `Reserved` follows and publishes the key. `block` is the place of the tail's block in `long_names`; of no
    /// meaning for a key that fits into the entry.
    ///
    /// Crash in between: the entry is still a tomb, under a key that is nobody's.
    pub fn set_key(&self, hash: u64, key: &[u8], block: u32, long_names: &[LongName]) {
        assert!(
            matches!(Home(self.home.peek()).kind(), HomeKind::Free | HomeKind::Tomb),
            "a key changes under a dead home word only"
        );
        // Release, between the home word stored before and the words stored below: whoever reads one of these also finds
        // the entry dead when it looks at home again. The Release of that store orders only what came before it.
        fence(Ordering::Release);
        let mut chunks = key.chunks(8);
        let mut fill = |words: &[Word]| words.iter().for_each(|w| w.put(chunks.next().map_or(0, key_word)));
        fill(&self.name);
        let long = key.len() > ENTRY_NAME_WORDS * 8;
        if long {
            fill(&long_names[block as usize].bytes);
        }
        self.key.put(key.len() as u64 | if long { u64::from(block) << 16 } else { 0 });
        self.hash.put(hash);
    }
}

/// The table of names was replaced by a larger one during the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced;

/// Up to eight bytes of a key as the word that holds them: little endian, zero-filled.
pub fn key_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn directory() -> Directory {
        let geometry = Geometry { members: 65, names: 512, lists: 1, streams: 1, segments: 1 };
        let view = View::anonymous(geometry.bytes() as usize);
        geometry.initialise(view.at(0).unwrap(), 7, 1);
        Directory::new(&view).unwrap()
    }

    fn bind(directory: &Directory, entry: usize, key: &[u8], block: u32) {
        let hash = directory.hash(key);
        let entry = &directory.names[entry];
        entry.set_key(hash, key, block, &directory.long_names);
        entry.home.set(Home::after(Home(entry.home.peek()), HomeKind::Live, 3, 9).0);
    }

    #[test]
    fn keys_of_every_length_are_found_and_come_back() {
        let d = directory();
        for length in [1, 7, 8, 9, 95, 96, 97, 104, 255, 256] {
            let d = &d;
            let key: Vec<u8> = (0..length).map(|i| b'a' + (i % 26) as u8).collect();
            let at = (d.hash(&key) & 1023) as usize;
            bind(d, at, &key, length as u32 % 256);
            let found = d.find(d.hash(&key), &key).unwrap().unwrap();
            assert_eq!((found.entry as usize, found.home.cell()), (at, 9));
            assert_eq!(d.key(&d.names[at]), Some(key.clone()));
            let mut other = key.clone();
            *other.last_mut().unwrap() ^= 1;
            assert_eq!(d.names[at].probe(d.hash(&key), &other, &d.long_names), Probe::Further);
            let home = &d.names[at].home;
            home.set(Home::after(Home(home.peek()), HomeKind::Tomb, 0, 0).0);
        }
    }

    #[test]
    fn a_probe_goes_past_tombs_and_ends_at_free_and_moved() {
        let d = directory();
        let at = (d.hash(b"x") & 1023) as usize;
        let next = (at + 1) & 1023;
        bind(&d, at, b"other", 0);
        let home = &d.names[at].home;
        home.set(Home::after(Home(home.peek()), HomeKind::Tomb, 0, 0).0);
        assert_eq!(d.find(d.hash(b"x"), b"x"), Ok(None));
        bind(&d, next, b"x", 0);
        assert_eq!(d.find(d.hash(b"x"), b"x").unwrap().unwrap().entry as usize, next);
        home.set(Home::after(Home(home.peek()), HomeKind::Free, 0, 0).0);
        assert_eq!(d.find(d.hash(b"x"), b"x"), Ok(None));
        home.set(Home::after(Home(home.peek()), HomeKind::Moved, 0, 0).0);
        assert_eq!(d.find(d.hash(b"x"), b"x"), Err(Replaced));
    }

    #[test]
    fn bits_end_where_the_members_do() {
        let d = directory();
        d.head().present[0].set(1 << 1 | 1 << 63);
        d.head().present[1].set(0b11);
        assert_eq!(d.present().collect::<Vec<_>>(), [1, 63, 64]);
    }
}
