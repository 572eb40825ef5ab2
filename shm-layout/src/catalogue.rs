//! The catalogue: a client's published values and their locations.
//!
//! Writer: its client. Readers: the namespace's clients and the daemon. The contents are
//! allegations: a reader copies a record once, checks the copy against geometry that the daemon
//! owns, and then uses the copy.
//!
//! A catalogue is a chain of sealed memfds: the first part, further parts with cells, and one part
//! with slot records for each segment. The daemon adds parts with cells as the client adds names.
//! Each such part has a quarter of the cells at the last doubling, so at most a fifth of all cells
//! is unused.

use crate::describe::{pad, structure};
use crate::header::SheetHeader;
#[cfg(not(loom))]
use crate::number::CellNo;
use crate::sync::{Ordering, fence};
#[cfg(not(loom))]
use crate::word::low8;
use crate::word::{Bell, Cell, Word};

/// Maximum number of announcements that wait for the daemon.
pub const RING: usize = if cfg!(loom) { 2 } else { 4096 };
/// Number of cells in the first part.
pub const FIRST_CELLS: usize = if cfg!(loom) { 2 } else { 4096 };
/// Maximum number of parts with cells. The first part has 4096 cells. Twelve doublings, in four
/// parts each, lead to 2^24 cells.
pub const CELL_PARTS: u8 = 49;
/// Words of a name that its cell record contains.
pub const CELL_NAME_WORDS: usize = 8;
/// Maximum length in bytes of a name whose cell record has room for a [`Description`].
pub const DESCRIBED_NAME_BYTES: u64 = 32;
/// The word of `name` that says of which value the record has a description.
const DESCRIBED: usize = 4;
/// The content of that word while a thread writes the description. No value has this word: its generation is 0.
const DESCRIBING: u64 = 1;

/// Number of words of a description.
pub const DESCRIPTION_WORDS: usize = if cfg!(loom) { 2 } else { 5 };

/// Words that describe the tensor of a cell, as [`crate::tensor::Sealed`] packs them.
pub type Description = [u64; DESCRIPTION_WORDS];

structure! {
    /// The value of one name, and the data by which a new daemon finds it again.
    pub struct CellRecord [96] {
        /// generation 40 . slot 24: the name's latest value. The owner overwrites the value by exchanging this word, which is
        /// the linearization point of the put. Slot 0xFFFFFF: the owner deleted the value.
        0 cell: Word,
        /// First word of the description: dtype 16 . number of dimensions 8 . bytes 40. Since version 8. In earlier versions
        /// a word that no process reads.
        8 kind: Word,
        /// Second word of the description: offset of the tensor's bytes in its segment. Since version 8. In earlier versions
        /// a word that no process reads.
        16 offset: Word,
        /// Length of the name in bytes; 0: not bound, or an item of a list.
        24 name_bytes: Word,
        /// The name's first 64 bytes, zero-filled. If the name has at most 32 bytes, the fifth word (*described*) is the
        /// value of the cell to which the description belongs; 0: none; 1: a thread is writing it. The last three words are
        /// then the rest of the description: two words of sizes, and the timestamp. Since version 8.
        32 name: [Word; CELL_NAME_WORDS],
    }
}

impl CellRecord {
    /// Owner: describes the value that this thread is about to store in the cell. Does nothing if the name is too long, or if
    /// another thread is describing a value in this record. `alone`: no other thread calls this for this record until this
    /// thread has returned.
    ///
    /// The description belongs to one value, and the word *described* names this value. While a thread changes the other
    /// words, *described* names none, so a reader that finds the same value before and after its copy has that value's
    /// description. Crash: *described* is the former value, 1 or the new value, and its description is complete. Readers of
    /// another value read the slot's record.
    #[inline(always)]
    pub fn describe(&self, value: Cell, description: &Description, alone: bool) {
        let described = &self.name[DESCRIBED];
        if self.name_bytes.peek() > DESCRIBED_NAME_BYTES {
            return;
        }
        if alone {
            described.put(DESCRIBING);
        } else {
            let before = described.peek();
            if before == DESCRIBING || !described.replace(before, DESCRIBING) {
                return;
            }
        }
        crate::crash_point!("describe: begun");
        // Pairs with the reader's fence: a reader that copied one of the words below finds another word in *described*.
        fence(Ordering::Release);
        for (word, &new) in self.description_words().into_iter().zip(description) {
            word.put(new);
        }
        crate::crash_point!("describe: words written");
        described.set(value.0);
        crate::crash_point!("describe: done");
    }

    /// Owner: removes the description. A Release fence must follow before the record gets the name of another use: the same value
    /// may come back into the cell under it.
    pub fn forget_description(&self) {
        self.name[DESCRIBED].put(0);
    }

    /// Reader: returns whether the record has a description of this value of the cell. The reader may call this before it has a
    /// lease, and [`CellRecord::description`] later, when the cache line is there.
    #[inline(always)]
    pub fn describes(&self, value: Cell) -> bool {
        // In the record of a longer name, *described* is a part of the name, and in another line.
        self.name_bytes.peek() <= DESCRIBED_NAME_BYTES && self.name[DESCRIBED].read() == value.0
    }

    /// Reader: copies the description of this value, which the reader found in the cell earlier. The copy is what the owner alleges. Returns
    /// `None` if the record has no description of this value, or the cell has another one by now.
    #[inline(always)]
    pub fn description(&self, value: Cell) -> Option<Description> {
        if !self.describes(value) {
            return None;
        }
        let mut words = Description::default();
        for (copy, word) in words.iter_mut().zip(self.description_words()) {
            *copy = word.peek();
        }
        // Acquire, between the copy and the check.
        fence(Ordering::Acquire);
        // Then the words are not those of another name: the owner empties the cell and *described* before it changes the others.
        (self.name[DESCRIBED].peek() == value.0 && self.cell.peek() == value.0).then_some(words)
    }

    #[inline(always)]
    fn description_words(&self) -> [&Word; DESCRIPTION_WORDS] {
        #[cfg(loom)]
        return [&self.kind, &self.name[5]];
        #[cfg(not(loom))]
        [&self.kind, &self.offset, &self.name[5], &self.name[6], &self.name[7]]
    }
}

structure! {
    /// A catalogue's first part.
    pub struct Catalogue [430080] {
        /// The sheet's header. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// Hash of the name that its client is publishing for the first time; 0: none.
        64 claim: Word,
        /// Number of announcements ever made. The store of this word is the linearization point of a first publication.
        72 ring_head: Word,
        /// Reserved; always 0.
        80 reserved: [Word; pad(6)],
        /// The owner rings this bell after it has replaced a value, if a client is parked on this catalogue.
        128 bell: Bell,
        /// Reserved; always 0.
        136 reserved2: [Word; pad(7)],
        /// Values published, ever. For monitoring only.
        192 puts: Word,
        /// Bytes published, ever. For monitoring only.
        200 put_bytes: Word,
        /// Bytes of segments in live or leased slots. For monitoring only.
        208 bytes_in_slots: Word,
        /// Reserved; always 0.
        216 reserved3: [Word; pad(485)],
        /// Announcements: hash tag 40 . cell 24, entry `n % 4096` for announcement n.
        4096 ring: [Word; RING],
        /// Cells 0 to 4095.
        36864 cells: [CellRecord; FIRST_CELLS],
    }
}

structure! {
    /// The head of a further part of cells; the cell records follow at 4096.
    pub struct CellsPart [4096] {
        /// The sheet's header: `count` cells from cell `first` on. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// Reserved; always 0.
        64 reserved: [Word; pad(504)],
    }
}

structure! {
    /// The record of one slot. The slot's owner writes it while the slot is a draft. While the slot is published, the
    /// owner changes nothing in it except the flag of an early tensor.
    pub struct SlotRecord [128] {
        /// Sixteen words, as `SlotInfo` in tensor.rs packs them.
        0 words: [Word; 16],
    }
}

structure! {
    /// The head of a segment's slot records; they follow at 4096.
    pub struct SlotsPart [4096] {
        /// The sheet's header: `count` slots from slot `first` on. Writer: the daemon, before lending.
        0 sheet: SheetHeader,
        /// Reserved; always 0.
        64 reserved: [Word; pad(504)],
    }
}

/// Returns the part that contains a cell, and the cell's index in that part. Part 0 is the
/// catalogue's first part.
#[cfg(not(loom))]
#[inline]
pub const fn cell_place(cell: CellNo) -> (u8, usize) {
    let cell = cell.index();
    if cell < FIRST_CELLS {
        return (0, cell);
    }
    // The number of complete doublings, and the quarter of the next doubling that contains the cell.
    let doubled = (cell / FIRST_CELLS).ilog2();
    let quarter = (cell >> (FIRST_CELLS.ilog2() + doubled - 2)) & 3;
    // At most 80: the number of a cell has 32 bits.
    let part = low8(4 * doubled as u64 + quarter as u64 + 1);
    (part, cell - cells_first(part))
}

/// Returns the first cell of a part.
pub const fn cells_first(part: u8) -> usize {
    if part == 0 {
        return 0;
    }
    let (doubled, quarter) = ((part - 1) / 4, (part - 1) as usize % 4);
    (FIRST_CELLS << doubled) / 4 * (4 + quarter)
}

/// Returns the number of cells in a part.
pub const fn cells_count(part: u8) -> usize {
    if part == 0 { FIRST_CELLS } else { (FIRST_CELLS << ((part - 1) / 4)) / 4 }
}

/// Returns the length of a part with `count` records after a header of 4096 bytes.
pub const fn part_bytes<T>(count: usize) -> usize {
    (4096 + count * size_of::<T>()).next_multiple_of(4096)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_one_place() {
        let mut next = 0;
        for part in 0..CELL_PARTS {
            assert_eq!(cells_first(part), next);
            assert_eq!(cell_place(CellNo::new(next as u32)), (part, 0));
            next += cells_count(part);
            assert_eq!(cell_place(CellNo::new(next as u32 - 1)), (part, cells_count(part) - 1));
            assert!(part == 0 || cells_count(part) * 5 <= next + FIRST_CELLS / 4, "a fifth is unused at most");
        }
        assert_eq!(next, 1 << 24);
    }
}
