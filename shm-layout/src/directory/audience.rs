//! Bitmaps over members, and the audience of an owner.

use crate::word::Word;

/// Number of words of a member's audience: one cache line.
pub const AUDIENCE_WORDS: usize = if cfg!(loom) { 1 } else { 8 };
/// Number of bits of a member's audience.
pub const AUDIENCE: u16 = 64 * AUDIENCE_WORDS as u16;

/// Returns the word and the bit of a reader in an owner's audience.
pub const fn audience_bit(reader: u16) -> (usize, u64) {
    ((reader % AUDIENCE / 64) as usize, 1 << (reader % 64))
}

/// Returns the members below `count` that are `present` and whose bits are set in an owner's audience, not in the order of
/// their numbers. The caller calls [`crate::leases::scan_fence`] before it reads the iterator.
///
/// Reads each word of the audience once, and the words of `present` in which a member can have one of the bits. Reader R
/// that took a lease before the owner's fence has a bit that the daemon had stored before R's fence: whenever the owner
/// reads the word after its own fence, it finds the bit.
pub fn audience<'d>(present: &'d [Word], shown: &'d [Word], count: usize) -> impl Iterator<Item = u16> + 'd {
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
    bits.filter(move |&bit| bit < count).map(|bit| bit as u16)
}

/// Returns the numbers of the set bits below `count`. Reads each word once, when the iterator
/// reaches the word.
pub fn bits(words: &[Word], count: usize) -> impl Iterator<Item = u16> + '_ {
    let words = used(words, count).iter().map(Word::read).enumerate();
    words
        .flat_map(|(w, mut left)| {
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

/// Returns the words that contain bits below `count`.
fn used(words: &[Word], count: usize) -> &[Word] {
    &words[..count.div_ceil(64).min(words.len())]
}
