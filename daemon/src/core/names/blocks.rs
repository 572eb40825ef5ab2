//! The blocks of long names.

use std::collections::BTreeSet;
use tensorlend_layout::size;

const RESERVE: u32 = 64;
const STEP: u32 = 512;

/// The blocks for keys of more than 96 bytes. Number 0 is never used.
#[derive(Debug)]
pub struct Blocks {
    free: Vec<u32>,
    /// The lowest number of a block that was never used.
    fresh: u32,
    /// Blocks with numbers below this number have memory.
    there: u32,
    /// The number of blocks of the directory.
    all: u32,
}

impl Blocks {
    /// Returns the blocks of a fresh directory with `all` blocks.
    pub fn new(all: u32) -> Self {
        Self { free: Vec::new(), fresh: 1, there: 1, all }
    }

    /// Returns the blocks of a directory. `used` are the blocks in use.
    pub fn restore(all: u32, used: &BTreeSet<u32>) -> Self {
        let Some(&last) = used.last() else { return Self::new(all) };
        // The daemon allocates memory for blocks in steps of [`STEP`].
        let there = (last / STEP * STEP + STEP).min(all);
        Self { free: (1..last).filter(|block| !used.contains(block)).collect(), fresh: last + 1, there, all }
    }

    /// Takes a free block that has memory.
    pub fn take(&mut self) -> Option<u32> {
        if let Some(block) = self.free.pop() {
            return Some(block);
        }
        (self.fresh < self.there).then(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Returns true if a free block has memory, or none ever will.
    pub fn is_ready(&self) -> bool {
        !self.free.is_empty() || self.fresh < self.there || self.are_all_there()
    }

    /// Frees a block; 0 stands for no block.
    pub fn give(&mut self, block: u32) {
        if block != 0 {
            self.free.push(block);
        }
    }

    /// Returns true if every block of the directory has memory.
    pub fn are_all_there(&self) -> bool {
        self.there >= self.all
    }

    /// Returns the range of blocks that need memory next, as its first number and its end. Returns
    /// `None` if enough blocks have memory.
    pub fn wanted(&self) -> Option<(u32, u32)> {
        let is_short = size::count(self.free.len()) + self.there - self.fresh < RESERVE;
        (is_short && !self.are_all_there()).then(|| (self.there, (self.there / STEP * STEP + STEP).min(self.all)))
    }

    /// Records that the blocks below `end` have memory.
    pub fn arrived(&mut self, end: u32) {
        self.there = end;
    }

    /// Returns the number of blocks that were ever used, and the number of free blocks among them.
    #[cfg(test)]
    pub fn counts(&self) -> (u32, usize) {
        (self.fresh, self.free.len())
    }
}
