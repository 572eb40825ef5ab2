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

/// Returns the members below `count` that are `present` and whose bits are set in an owner's audience. The caller calls
/// [`crate::leases::scan_fence`] before it reads the iterator.
pub fn audience<'d>(present: &'d [Word], shown: &'d [Word], count: usize) -> impl Iterator<Item = u16> + 'd {
    bits_where(present, count, |w| shown[w % shown.len()].read())
}

/// Returns the numbers of the set bits below `count`. Reads each word once, when the iterator reaches it.
pub fn bits(words: &[Word], count: usize) -> impl Iterator<Item = u16> + '_ {
    bits_where(words, count, |_| u64::MAX)
}

/// Returns the numbers below `count` of the bits that are set both in word w and in `mask(w)`.
fn bits_where(words: &[Word], count: usize, mask: impl Fn(usize) -> u64) -> impl Iterator<Item = u16> {
    words[..count.div_ceil(64).min(words.len())]
        .iter()
        .enumerate()
        .flat_map(move |(w, word)| {
            let mask = mask(w);
            let mut left = if mask == 0 { 0 } else { word.read() & mask };
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
