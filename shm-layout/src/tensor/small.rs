//! Small tensors: a stream's entry has their bytes, so a subscriber needs no second cache line.

use super::{ALIGN, CPU, NDIM_INLINE, SUMMARY, SlotInfo};
use crate::stream::HeaderSummary;

/// Maximum number of bytes of a tensor whose bytes are in its message's entry.
pub const SMALL_BYTES: usize = 32;
/// Number of words of these bytes.
pub const SMALL_WORDS: usize = SMALL_BYTES / 8;

/// Flag in the first word of an entry without a summary: the word is a [`SmallHead`]. No record, summary or origin has
/// this flag.
const SMALL: u64 = 1 << 13;
/// Position of the tensor's offset in its segment, divided by [`ALIGN`]. The bits below describe the tensor.
const OFFSET: u32 = 41;
const SIZES: usize = 17;
const SIZE_BITS: usize = 6;
const WIDTH: u32 = 14;
const CODE: u32 = 3;

/// The first word of a small tensor's entry. It has all that a summary has except the timestamp.
///
/// The entry's six words are this word, four words of bytes, and the timestamp. The slot has the same bytes, for subscribers
/// that keep the message, and for builds without this type, which see an entry without a summary and read the slot's record.
///
/// From the lowest bit: number of dimensions (3 bits), code of the dtype (5), zeros (5), the flag (1), the binary logarithm of
/// the dtype's bytes (3), four sizes (6 each), offset in the segment divided by 64 (23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallHead(u64);

impl SmallHead {
    /// Returns the head for the tensor of a summary. Returns `None` unless the tensor has 1 to [`SMALL_BYTES`] bytes, all of
    /// them elements.
    #[inline]
    pub fn of_summary(summary: &HeaderSummary) -> Option<Self> {
        let [first, offset, bytes, low, high, _] = *summary;
        // Two sizes of up to six bits each are in a word, in its halves.
        let has_room = (low | high) & !0x3F_0000_003F == 0 && offset >> (u64::BITS - OFFSET) < ALIGN;
        if !(1..=SMALL_BYTES as u64).contains(&bytes) || !has_room || first & SUMMARY == 0 {
            return None;
        }
        let (ndim, code, width) = (first & 7, first >> 32 & 0x1F, (first >> 43 & 0x1F).trailing_zeros() & 7);
        let two = |word: u64| word & 0x3F | word >> 32 << SIZE_BITS;
        let sizes = two(low) | two(high) << (2 * SIZE_BITS);
        let head =
            Self((offset / ALIGN) << OFFSET | sizes << SIZES | u64::from(width) << WIDTH | SMALL | code << CODE | ndim);
        let is_full = head.elements() << width == bytes;
        debug_assert!(!is_full || head.summary(summary[5]) == *summary, "{summary:?}");
        is_full.then_some(head)
    }

    /// Returns the head of an entry with these words. Returns `None` if they are anything else.
    #[inline(always)]
    pub fn of_entry(words: &HeaderSummary) -> Option<Self> {
        (words[0] & (SMALL | SUMMARY) == SMALL).then_some(Self(words[0]))
    }

    /// Returns whether two heads differ at most in the place of their tensors.
    #[inline(always)]
    pub fn is_like(self, other: Self) -> bool {
        (self.0 ^ other.0) << (u64::BITS - OFFSET) == 0
    }

    /// Returns the words of the entry.
    ///
    /// # Panics
    /// May panic if there are more than [`SMALL_BYTES`] bytes.
    #[inline]
    pub fn entry(self, bytes: &[u8], timestamp_ns: u64) -> HeaderSummary {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut entry = [self.0, 0, 0, 0, 0, timestamp_ns];
        for (to, word) in entry[1..=SMALL_WORDS].iter_mut().zip(words) {
            *to = u64::from_ne_bytes(*word);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            entry[1 + words.len()] = u64::from_ne_bytes(last);
        }
        entry
    }

    /// Returns the number of elements.
    #[inline]
    fn elements(self) -> u64 {
        let sizes: [u64; NDIM_INLINE] = core::array::from_fn(|at| self.0 >> (SIZES + SIZE_BITS * at) & 0x3F);
        let ndim = self.0 & 7;
        let size = |at: usize| if (at as u64) < ndim { sizes[at] } else { 1 };
        size(0) * size(1) * size(2) * size(3)
    }

    /// Returns the summary of the tensor. Any head has one; [`SlotInfo::check_summary`] must check it.
    #[inline]
    pub fn summary(self, timestamp_ns: u64) -> HeaderSummary {
        let word = self.0;
        let (ndim, code, width) = (word & 7, word >> CODE & 0x1F, word >> WIDTH & 7);
        let size = |at: usize| word >> (SIZES + SIZE_BITS * at) & 0x3F;
        let dtype = code | (8 << width & 0xFF) << 8 | 1 << 16;
        [
            dtype << 32 | CPU | SUMMARY | ndim,
            (word >> OFFSET) * ALIGN,
            self.elements() << width,
            size(0) | size(1) << 32,
            size(2) | size(3) << 32,
            timestamp_ns,
        ]
    }

    /// Replaces the words of a small tensor's entry by the tensor's summary. Other words stay, and are not copied.
    #[inline(always)]
    pub fn widen(words: &mut HeaderSummary) {
        if let Some(head) = Self::of_entry(words) {
            head.widen_slowly(words);
        }
    }

    #[cold]
    fn widen_slowly(self, words: &mut HeaderSummary) {
        *words = self.summary(words[5]);
    }

    /// Returns the summary without a timestamp, if it is the one of a valid tensor whose bytes can be in an entry.
    pub fn checked_summary(self) -> Option<HeaderSummary> {
        let summary = self.summary(0);
        (summary[2] <= SMALL_BYTES as u64 && SlotInfo::check_summary(&summary, u64::MAX)).then_some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::tensor::Origin;
    use proptest::prelude::*;

    fn summary(dtype: DType, dims: &[u64], offset: u64) -> HeaderSummary {
        let size = |at: usize| dims.get(at).copied().unwrap_or(0);
        let bytes = dims.iter().product::<u64>() * dtype.item_bytes() as u64;
        let first = u64::from(dtype.pack()) << 32 | CPU | SUMMARY | dims.len() as u64;
        [first, offset, bytes, size(0) | size(1) << 32, size(2) | size(3) << 32, 77]
    }

    #[test]
    fn every_small_tensor_fits_into_its_entry() {
        for &dtype in DType::ALL {
            for dims in [&[][..], &[1], &[2, 1], &[1, 1, 1], &[2, 1, 1, 1]] {
                let whole = summary(dtype, dims, 64 << 20);
                let head = SmallHead::of_summary(&whole).unwrap_or_else(|| panic!("{dtype} {dims:?}"));
                assert_eq!(head.summary(77), whole);
                assert!(head.checked_summary().is_some());
                let entry = head.entry(&[9; 7], 77);
                assert_eq!((SmallHead::of_entry(&entry), entry[5]), (Some(head), 77));
                assert_eq!(entry[1].to_ne_bytes(), [9, 9, 9, 9, 9, 9, 9, 0]);
                assert!(Origin::unpack(&entry).is_none() && !SlotInfo::is_summary(&entry));
                assert!(SlotInfo::of_summary(&entry, 1).is_none(), "builds without this type read the record");
                assert!(head.is_like(SmallHead::of_summary(&summary(dtype, dims, 0)).unwrap()));
            }
        }
        let same = SmallHead::of_summary(&summary(DType::U8, &[32], 0)).unwrap();
        for other in [&[31][..], &[32, 1], &[16], &[1, 32]] {
            assert!(!same.is_like(SmallHead::of_summary(&summary(DType::U8, other, 0)).unwrap()), "{other:?}");
        }
        assert!(!same.is_like(SmallHead::of_summary(&summary(DType::I8, &[32], 0)).unwrap()));
    }

    #[test]
    fn other_tensors_have_a_summary() {
        for (dims, offset) in [(&[33][..], 0), (&[0], 0), (&[5, 0], 0), (&[4], 1 << 29), (&[1, 1, 1, 1 << 20], 0)] {
            assert_eq!(SmallHead::of_summary(&summary(DType::U8, dims, offset)), None, "{dims:?} at {offset}");
        }
        // More bytes than the elements need.
        let mut longer = summary(DType::U8, &[4], 0);
        longer[2] = 8;
        assert_eq!(SmallHead::of_summary(&longer), None);
        assert_eq!(SmallHead::of_summary(&[0; 6]), None);
        assert_eq!(SmallHead::of_entry(&summary(DType::U8, &[4], 0)), None);
    }

    proptest! {
        #[test]
        fn any_words_are_refused_or_a_small_tensor(words in prop::array::uniform6(any::<u64>())) {
            let words = [words[0] & !SUMMARY | SMALL, words[1], words[2], words[3], words[4], words[5]];
            let head = SmallHead::of_entry(&words).unwrap();
            if let Some(summary) = head.checked_summary() {
                let info = SlotInfo::of_summary(&summary, 1).unwrap().unwrap();
                prop_assert!(info.data_bytes <= SMALL_BYTES as u64);
            }
            let mut widened = words;
            SmallHead::widen(&mut widened);
            prop_assert_eq!(widened, head.summary(words[5]));
        }
    }
}
