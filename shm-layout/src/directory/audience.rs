//! Bitmaps over members, and the audience of an owner.

use crate::number::ClientNo;
use crate::word::Word;

/// Number of bits of a member's audience: one cache line.
pub const AUDIENCE: u16 = if cfg!(loom) { 64 } else { 512 };
/// Number of words of a member's audience.
pub const AUDIENCE_WORDS: usize = AUDIENCE as usize / 64;

/// A bitmap with one bit for each member.
#[derive(Clone, Copy)]
pub struct Bitmap<'a>(pub &'a [Word]);

impl Bitmap<'_> {
    /// Writer only: sets a member's bit.
    pub fn set(self, member: ClientNo) {
        self.0[member.index() / 64].set_bits(1 << (member.get() % 64));
    }

    /// Writer only: clears a member's bit.
    pub fn clear(self, member: ClientNo) {
        self.0[member.index() / 64].clear_bits(1 << (member.get() % 64));
    }

    /// Returns true if a member's bit is set.
    pub fn has(self, member: ClientNo) -> bool {
        self.0[member.index() / 64].peek() & 1 << (member.get() % 64) != 0
    }
}

/// Returns the word and the bit of a reader in an owner's audience.
pub const fn audience_bit(reader: ClientNo) -> (usize, u64) {
    ((reader.get() % AUDIENCE / 64) as usize, 1 << (reader.get() % 64))
}

/// Returns the members below `count` that are `present` and whose bits are set in an owner's audience, not in the order of
/// their numbers. The caller calls [`crate::leases::scan_fence`] before it reads the iterator.
///
/// Reads each word of the audience once, and the words of `present` in which a member can have one of the bits. Reader R
/// that took a lease before the owner's fence has a bit that the daemon had stored before R's fence: whenever the owner
/// reads the word after its own fence, it finds the bit.
pub fn audience<'d>(present: &'d [Word], shown: &'d [Word], count: usize) -> impl Iterator<Item = ClientNo> + 'd {
    let present = used(present, count);
    // The word of `shown` and its value, the next word of `present`, and the bits of its predecessor that are left.
    let (mut column, mut mask, mut next, mut left) = (0, 0, usize::MAX, 0);
    let bits = core::iter::from_fn(move || {
        while left == 0 {
            if let Some(word) = present.get(next) {
                left = word.read() & mask;
                next += shown.len();
            } else {
                mask = shown.get(column)?.read();
                next = if mask == 0 { present.len() } else { column };
                column += 1;
            }
        }
        let bit = left.trailing_zeros() as usize;
        left &= left - 1;
        Some((next - shown.len()) * 64 + bit)
    });
    bits.filter(move |&bit| bit < count).filter_map(ClientNo::at)
}

/// Returns the numbers of the set bits below `count`, in ascending order. Reads a word when the iterator reaches it, and
/// possibly the words that follow.
pub fn bits(words: &[Word], count: usize) -> impl Iterator<Item = ClientNo> + '_ {
    const LINE: usize = 8;
    let words = used(words, count);
    // The next word, and the bits of its predecessor that are left.
    let (mut next, mut left) = (0usize, 0u64);
    let bits = core::iter::from_fn(move || {
        while left == 0 {
            // Few members have a bit, so most cache lines are zero.
            while next.is_multiple_of(LINE)
                && let Some(line) = words.get(next..next + LINE)
                && line.iter().fold(0, |all, word| all | word.read()) == 0
            {
                next += LINE;
            }
            left = words.get(next)?.read();
            next += 1;
        }
        let bit = left.trailing_zeros() as usize;
        left &= left - 1;
        Some((next - 1) * 64 + bit)
    });
    bits.filter(move |&bit| bit < count).filter_map(ClientNo::at)
}

/// Returns the words that contain bits below `count`.
fn used(words: &[Word], count: usize) -> &[Word] {
    &words[..count.div_ceil(64).min(words.len())]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_are_those_that_are_set(
            set in prop::collection::btree_set(0u16..2000, 0..20),
            dense in prop::option::of(0usize..25),
            count in 0usize..2100,
        ) {
            let words: Vec<Word> = (0..32).map(|_| Word::new(0)).collect();
            let mut expected = set;
            expected.extend(dense.into_iter().flat_map(|word| (0..64).map(move |bit| word as u16 * 64 + bit)));
            for bit in &expected {
                words[usize::from(*bit) / 64].set_bits(1 << (bit % 64));
            }
            expected.retain(|bit| usize::from(*bit) < count);
            prop_assert_eq!(bits(&words, count).map(ClientNo::get).collect::<Vec<_>>(), Vec::from_iter(expected));
        }
    }
}
