//! The entries of a directory. The daemon hands out the lowest free entry first. The daemon
//! allocates memory for entries in chunks, when the memory is needed. It frees a chunk's memory
//! when no entry of the chunk is in use.
//!
//! An entry's version never decreases, even if the entry's memory was freed and allocated again:
//! see [`Chunk::floor`].

use std::collections::BTreeSet;
use std::ops::Range;
use tensorlend_layout::directory::{Directory, NameEntry};
use tensorlend_layout::number::EntryNo;
use tensorlend_layout::size;
use tensorlend_layout::word::{OwnerKind, OwnerWord};

/// Number of entries whose memory is allocated together.
pub const CHUNK: u32 = 2048;
const WORDS: usize = CHUNK as usize / 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Ordered,
    There,
}

#[derive(Debug)]
struct Chunk {
    state: State,
    /// A bit for each free entry.
    free: [u64; WORDS],
    count: u32,
    /// The latest version that an entry of this chunk had when the chunk's memory was freed, as an
    /// owner word.
    floor: OwnerWord,
}

/// A set of entries, with a bit for each.
#[derive(Debug)]
pub struct EntrySet(Vec<u64>);

impl EntrySet {
    /// Returns an empty set of entries below `end`.
    pub fn below(end: u32) -> Self {
        Self(vec![0; end.div_ceil(64) as usize])
    }

    pub fn contains(&self, entry: EntryNo) -> bool {
        self.0.get(entry.index() / 64).is_some_and(|bits| bits >> (entry.get() % 64) & 1 == 1)
    }

    /// Adds an entry below the end. Returns false if the set already contains the entry.
    pub fn insert(&mut self, entry: EntryNo) -> bool {
        let fresh = !self.contains(entry);
        self.0[entry.index() / 64] |= 1 << (entry.get() % 64);
        fresh
    }

    pub fn iter(&self) -> impl Iterator<Item = EntryNo> + '_ {
        let of = |(&bits, word): (&u64, u32)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| EntryNo::new(word * 64 + bit))
        };
        self.0.iter().zip(0..).flat_map(of)
    }
}

/// All entries of a directory: the free ones, and the chunks that have memory.
#[derive(Debug)]
pub struct Entries {
    /// The number of entries, including number 0, which is never used.
    count: u32,
    chunks: Vec<Chunk>,
    absent: BTreeSet<u32>,
    with_free: BTreeSet<u32>,
    /// Free entries that have memory.
    free: u64,
    /// Free entries whose memory is on order.
    ordered: u64,
}

impl Entries {
    /// Returns `count` entries without memory.
    pub fn new(count: u32) -> Self {
        Self { count, chunks: Vec::new(), absent: BTreeSet::new(), with_free: BTreeSet::new(), free: 0, ordered: 0 }
    }

    /// Returns the entries of a directory that another daemon wrote last. Treats all entries below
    /// `end` as entries with memory, and all except `used` as free.
    ///
    /// If `moved` is not 0, the other daemon may have freed memory. An entry whose words are zero
    /// then gets a version derived from `moved`, so that no version is used twice.
    pub fn restore(d: &Directory, end: u32, used: &EntrySet, moved: u64) -> Self {
        let mut it = Self::new(size::count(d.names.len()));
        for chunk in 0..end.div_ceil(CHUNK) {
            it.chunks.push(Chunk { state: State::There, free: [0; WORDS], count: 0, floor: OwnerWord(0) });
            for number in it.numbers(chunk).filter(|number| *number != EntryNo::NONE && !used.contains(*number)) {
                let owner_word = &d.names[number.index()].owner_word;
                // No place leads to this entry, so no client can have published a value in it.
                if OwnerWord(owner_word.peek()).kind() != OwnerKind::Tomb {
                    owner_word.set(OwnerWord(owner_word.peek()).then_tomb().0);
                }
                if moved != 0 && owner_word.peek() == 0 {
                    owner_word.set(OwnerWord::with_version(moved >> 20).0);
                }
                it.put_back(number);
            }
        }
        it
    }

    /// Returns the number of free entries that have memory.
    pub fn free(&self) -> u64 {
        self.free
    }

    fn extent_of(&self, chunk: u32) -> Range<u32> {
        chunk * CHUNK..((chunk + 1) * CHUNK).min(self.count)
    }

    fn numbers(&self, chunk: u32) -> impl ExactSizeIterator<Item = EntryNo> + use<> {
        self.extent_of(chunk).map(EntryNo::new)
    }

    /// Returns the next chunk that needs memory, if fewer than `reserve` entries are free. The
    /// chunk then counts as ordered.
    pub fn order(&mut self, reserve: u64) -> Option<u32> {
        if self.free + self.ordered >= reserve {
            return None;
        }
        let fresh = size::count(self.chunks.len());
        let chunk = match self.absent.pop_first() {
            Some(chunk) => chunk,
            None if fresh * CHUNK < self.count => {
                let floor = OwnerWord(0);
                self.chunks.push(Chunk { state: State::Absent, free: [0; WORDS], count: 0, floor });
                fresh
            }
            None => return None,
        };
        self.chunks[chunk as usize].state = State::Ordered;
        self.ordered += self.numbers(chunk).len() as u64;
        Some(chunk)
    }

    /// Returns true if this entry has memory. A read of another entry would wait while the kernel frees the entry's former
    /// memory, and then allocate memory.
    pub fn has_memory(&self, entry: EntryNo) -> bool {
        self.chunks.get(entry.index() / CHUNK as usize).is_some_and(|chunk| chunk.state == State::There)
    }

    /// Returns a chunk's offset from the beginning of the entries and its length, in bytes.
    pub fn extent(&self, chunk: u32) -> (u64, u64) {
        let Range { start, end } = self.extent_of(chunk);
        let bytes = size_of::<NameEntry>() as u64;
        (u64::from(start) * bytes, u64::from(end - start) * bytes)
    }

    /// Handles the allocation of a chunk's memory, or its failure.
    pub fn arrived(&mut self, d: &Directory, chunk: u32, made: bool) {
        let (numbers, end) = (self.numbers(chunk), self.extent_of(chunk).end);
        let it = &mut self.chunks[chunk as usize];
        assert_eq!(it.state, State::Ordered, "a chunk comes once, and only if ordered");
        self.ordered -= numbers.len() as u64;
        if !made {
            it.state = State::Absent;
            self.absent.insert(chunk);
            return;
        }
        it.state = State::There;
        if it.floor != OwnerWord(0) {
            let owner_word = it.floor.then_tomb();
            for number in self.numbers(chunk) {
                d.names[number.index()].owner_word.set(owner_word.0);
            }
        }
        let names_end = &d.head().names_end;
        names_end.set(names_end.peek().max(end.into()));
        for number in numbers {
            // Number 0 stays in use permanently.
            if number != EntryNo::NONE {
                self.put_back(number);
            }
        }
    }

    fn put_back(&mut self, number: EntryNo) {
        let chunk = &mut self.chunks[number.index() / CHUNK as usize];
        let at = number.index() % CHUNK as usize;
        assert_eq!(chunk.free[at / 64] >> (at % 64) & 1, 0, "an entry is given back once");
        chunk.free[at / 64] |= 1 << (at % 64);
        chunk.count += 1;
        self.free += 1;
        self.with_free.insert(number.get() / CHUNK);
    }

    /// Takes the lowest free entry out of the free entries.
    pub fn take(&mut self) -> Option<EntryNo> {
        let first = *self.with_free.first()?;
        let chunk = &mut self.chunks[first as usize];
        let (bits, word) = chunk.free.iter_mut().zip(0..).find(|(bits, _)| **bits != 0)?;
        let bit = bits.trailing_zeros();
        *bits &= *bits - 1;
        chunk.count -= 1;
        self.free -= 1;
        if chunk.count == 0 {
            self.with_free.remove(&first);
        }
        Some(EntryNo::new(first * CHUNK + word * 64 + bit))
    }

    /// Frees an entry whose owner word is a tombstone.
    pub fn give(&mut self, number: EntryNo) {
        self.put_back(number);
    }

    /// Returns the chunk of `number` if the daemon can free the chunk's memory. No entry of the
    /// chunk may be in use, and `reserve` other entries must be free. The chunk is absent from then
    /// on.
    pub fn surplus(&mut self, d: &Directory, number: EntryNo, reserve: u64) -> Option<u32> {
        let chunk = number.get() / CHUNK;
        let numbers = self.numbers(chunk);
        let it = &mut self.chunks[chunk as usize];
        let spare = chunk != 0 && it.count as usize == numbers.len();
        if !spare || self.free - u64::from(it.count) < reserve {
            return None;
        }
        let version = |number: EntryNo| OwnerWord(d.names[number.index()].owner_word.peek());
        it.floor = numbers.map(version).max_by_key(|owner_word| owner_word.version()).expect("a chunk has entries");
        it.state = State::Absent;
        it.free = [0; WORDS];
        self.free -= u64::from(it.count);
        it.count = 0;
        self.with_free.remove(&chunk);
        self.absent.insert(chunk);
        Some(chunk)
    }
}
