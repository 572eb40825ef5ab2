//! The free cells of this client.

use super::deleted::Deleted;
use tensorlend_layout::catalogue::{FIRST_CELLS, cells_count, cells_first};
use tensorlend_layout::number::CellNo;

/// Interval between checks in debug builds: checks run when the number of free cells is a multiple of it.
const CHECK_EVERY: usize = 64;

/// The cells of this client's catalogue.
#[derive(Debug)]
pub struct Cells {
    free: Vec<CellNo>,
    /// A bit for each cell: set while the cell is bound to a name, or is being filled.
    bound: Vec<u64>,
    count: usize,
    /// Names that this client has deleted in their cells, and has not yet reported to the daemon.
    pub deleted: Deleted,
}

impl Default for Cells {
    fn default() -> Self {
        let mut it = Self { free: Vec::new(), bound: Vec::new(), count: 0, deleted: Deleted::default() };
        it.extend(0, FIRST_CELLS);
        it
    }
}

impl Cells {
    fn extend(&mut self, first: usize, count: usize) {
        // `take` returns the lowest numbers first: cells with near numbers share pages.
        self.free.extend((first..first + count).rev().filter_map(CellNo::at));
        self.count += count;
        // Parts may arrive out of order.
        let words = (first + count).div_ceil(64).max(self.bound.len());
        self.bound.resize(words, 0);
    }

    /// Adds the cells of a newly mapped part.
    pub fn grow(&mut self, part: u8) {
        self.extend(cells_first(part), cells_count(part));
    }

    pub fn take(&mut self) -> Option<CellNo> {
        let cell = self.free.pop()?;
        self.bound[cell.index() / 64] |= 1 << (cell.get() % 64);
        Some(cell)
    }

    /// Frees a cell. No owner word may refer to the cell, and no operation on it may be pending.
    pub fn give(&mut self, cell: CellNo) {
        debug_assert!(self.is_bound(cell), "given back twice");
        self.bound[cell.index() / 64] &= !(1 << (cell.get() % 64));
        self.deleted.forget(cell);
        self.free.push(cell);
        if cfg!(debug_assertions) && self.free.len().is_multiple_of(CHECK_EVERY) {
            self.check();
        }
    }

    /// Returns whether the client should report the names that it has deleted.
    pub fn is_tidy_due(&self) -> bool {
        self.deleted.is_due(self.count - self.free.len())
    }

    /// Checks that each cell is either bound, or exactly once in the list of free cells. A name in `deleted` may have lost
    /// its cell because of a notice.
    ///
    /// # Panics
    /// Panics if a cell is neither bound nor free, or is both, or is in the list twice.
    pub fn check(&self) {
        let mut free = self.free.clone();
        free.sort_unstable();
        assert!(free.is_sorted_by(|a, b| a < b), "a cell is free once");
        assert!(!free.iter().any(|cell| self.is_bound(*cell)), "a free cell is not bound");
    }

    pub fn bound(&self) -> Vec<CellNo> {
        let words = self.bound.iter().enumerate();
        words
            .flat_map(|(at, &word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).filter_map(move |bit| CellNo::at(at * 64 + bit))
            })
            .collect()
    }

    pub fn is_bound(&self, cell: CellNo) -> bool {
        self.bound.get(cell.index() / 64).is_some_and(|word| word >> (cell.get() % 64) & 1 == 1)
    }
}
