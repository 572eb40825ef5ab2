//! The segments that the daemon wants out of memory.
//!
//! Steps of daemon D: set the bits, ring the bell `wanted_out`, wake its sleepers. Steps of client C: read the bell, read
//! the bits, and sleep on the bell with the value that C read. So C sees each bit that D set before it rang the value that
//! C read. The bits are hints: a bit that is set without need costs a mapping that C makes again, and a bit that C misses
//! costs memory until C polls again.

use super::{DirectoryHead, WANTED_WORDS};
use crate::number::SegmentLine;
use crate::word::Word;

/// Version of the layout that added the words.
pub const WANTED_OUT_SINCE: u32 = 6;

impl DirectoryHead {
    fn wanted_bit(&self, line: SegmentLine) -> (&Word, u64) {
        let line = line.index();
        (&self.wanted_segments[line / 64 % WANTED_WORDS], 1 << (line % 64))
    }

    /// Daemon: notes whether it wants the segment in this line of the table of segments out of memory.
    pub fn want_out(&self, line: SegmentLine, is_wanted: bool) {
        let (word, bit) = self.wanted_bit(line);
        if is_wanted {
            word.set_bits(bit);
        } else if word.peek() & bit != 0 {
            word.clear_bits(bit);
        }
    }

    /// Returns true if the daemon wants the segment in this line of the table of segments out of memory.
    pub fn wants_out(&self, line: SegmentLine) -> bool {
        let (word, bit) = self.wanted_bit(line);
        word.read() & bit != 0
    }

    /// Returns true if the daemon wants any segment out of memory.
    pub fn wants_any_out(&self) -> bool {
        self.wanted_segments.iter().any(|word| word.peek() != 0)
    }
}
