//! Slots that are ready to be published, and the descriptions that cell records have of their tensors.
//!
//! A client that reads a short name or an item of a list finds the description in the cell's record. It does not read the
//! slot's record.

use super::{CPU, SUMMARY};
use crate::catalogue::CellRecord;
use crate::stream::HeaderSummary;
use crate::word::{Cell, low8};

/// Number of bits of a description for the tensor's bytes. A longer tensor has no description.
const BYTES_BITS: u32 = 40;
/// Position of the number of dimensions.
const NDIM: u32 = BYTES_BITS;
/// Position of the code and the bits of the dtype.
const DTYPE: u32 = 48;
/// One lane, in the upper half of a summary's first word. A summary with another number of lanes has no description: `kind` has no
/// bits for it.
const LANES: u64 = 1 << 16;

/// A slot that is ready to be published.
#[derive(Clone, Copy, Debug)]
pub struct Sealed {
    /// The slot and its generation.
    pub value: Cell,
    /// The summary of the slot's record. Zero: the value is published without a description.
    pub summary: HeaderSummary,
}

impl From<Cell> for Sealed {
    #[inline]
    fn from(value: Cell) -> Self {
        Self { value, summary: HeaderSummary::default() }
    }
}

impl CellRecord {
    /// Owner: describes the sealed slot that this thread is about to store in the cell, if a summary describes it and it has less than 2^40 bytes: see
    /// [`CellRecord::describe`].
    #[inline(always)]
    pub fn describe_sealed(&self, sealed: &Sealed, alone: bool) {
        let [first, offset, bytes, low, high, timestamp] = sealed.summary;
        let has_one_lane = first >> DTYPE == LANES >> 16;
        if first & SUMMARY != 0 && bytes >> BYTES_BITS == 0 && has_one_lane {
            let kind = (first >> 32) << DTYPE | u64::from(low8(first)) << NDIM | bytes;
            self.describe(sealed.value, &[kind, offset, low, high, timestamp], alone);
        }
    }

    /// Reader: returns the summary of the tensor that is this value of the cell. It is what the owner alleges:
    /// [`super::SlotInfo::check_summary`] must check it. Returns `None` if the record has no description of this value.
    #[inline(always)]
    pub fn summary(&self, value: Cell) -> Option<HeaderSummary> {
        let [kind, offset, low, high, timestamp] = self.description(value)?;
        let first = (kind >> DTYPE | LANES) << 32 | CPU | SUMMARY | u64::from(low8(kind >> NDIM));
        Some([first, offset, kind & ((1 << BYTES_BITS) - 1), low, high, timestamp])
    }
}

#[cfg(test)]
mod tests {
    use super::super::SlotInfo;
    use super::*;
    use crate::DType;
    use crate::catalogue::{CELL_NAME_WORDS, DESCRIBED_NAME_BYTES};
    use crate::number::SlotNo;
    use crate::raw::{Records, View};
    use crate::word::Word;
    use proptest::prelude::*;

    fn cells() -> Records<CellRecord> {
        Records::new(&View::anonymous(2 * size_of::<CellRecord>()), 0, 2).unwrap()
    }

    fn sealed(dtype: DType, dims: [u64; 4], bytes: u64) -> Sealed {
        let first = u64::from(dtype.pack()) << 32 | CPU | SUMMARY | 4;
        let summary = [first, 4096, bytes, dims[0] | dims[1] << 32, dims[2] | dims[3] << 32, 77];
        Sealed { value: Cell::new(9, SlotNo::new(3)), summary }
    }

    #[test]
    fn a_description_is_the_summary_of_its_value() {
        let cells = cells();
        for &dtype in DType::ALL {
            for dims in [[1, 1, 1, 1], [5, 0, 7, 1], [u64::from(u32::MAX), 1, 1, 2]] {
                let sealed = sealed(dtype, dims, 1 << 39);
                cells[1].cell.set(Cell::DELETED.0);
                cells[1].describe_sealed(&sealed, true);
                assert_eq!(cells[1].cell.peek(), Cell::DELETED.0, "a description stores no value");
                assert_eq!(cells[1].summary(sealed.value), None, "the cell has no such value yet");
                cells[1].cell.set(sealed.value.0);
                assert_eq!(cells[1].summary(sealed.value), Some(sealed.summary), "{dtype}");
                for other in [Cell::new(10, SlotNo::new(3)), Cell::new(9, SlotNo::new(4)), Cell::DELETED, Cell::CLOSING]
                {
                    assert_eq!(cells[1].summary(other), None);
                }
            }
        }
        assert_eq!(cells[1].name_bytes.peek(), 0);
        assert!(cells[1].name[..4].iter().all(|word| word.peek() == 0), "it leaves a short name as it is");
    }

    #[test]
    fn what_a_summary_cannot_say_has_no_description() {
        let cells = cells();
        let tensor = sealed(DType::U8, [1; 4], 64);
        for other in [
            Sealed { summary: HeaderSummary::default(), ..tensor },
            sealed(DType::U8, [1; 4], 1 << 40),
            Sealed {
                summary: {
                    let mut words = tensor.summary;
                    words[0] |= 2 << 48;
                    words
                },
                ..tensor
            },
        ] {
            cells[0].cell.set(other.value.0);
            cells[0].describe_sealed(&other, false);
            assert_eq!(cells[0].summary(other.value), None, "{other:?}");
        }
    }

    #[test]
    fn a_longer_name_keeps_its_record() {
        let cells = cells();
        let tensor = sealed(DType::U8, [1; 4], 64);
        for (bytes, is_described) in
            [(0, true), (DESCRIBED_NAME_BYTES, true), (DESCRIBED_NAME_BYTES + 1, false), (64, false)]
        {
            // A long name whose fifth word is the value.
            for at in 0..CELL_NAME_WORDS {
                cells[0].name[at].set(if bytes > DESCRIBED_NAME_BYTES { tensor.value.0 } else { 0 });
            }
            cells[0].name_bytes.set(bytes);
            cells[0].cell.set(tensor.value.0);
            let before = cells[0].name.each_ref().map(Word::peek);
            cells[0].describe_sealed(&tensor, false);
            assert_eq!(cells[0].summary(tensor.value).is_some(), is_described, "{bytes}");
            assert_eq!(cells[0].name.each_ref().map(Word::peek) == before, !is_described, "{bytes}");
        }
    }

    proptest! {
        /// Words that a hostile owner stores.
        #[test]
        fn any_words_give_a_summary_that_the_reader_checks(words in prop::array::uniform8(any::<u64>())) {
            let cells = cells();
            cells[0].cell.set(words[4]);
            cells[0].kind.set(words[0]);
            cells[0].offset.set(words[1]);
            cells[0].name.iter().zip(words).for_each(|(word, value)| word.set(value));
            let summary = cells[0].summary(Cell(words[4])).unwrap();
            prop_assert!(SlotInfo::is_summary(&summary));
            if SlotInfo::check_summary(&summary, 1 << 20) {
                let info = SlotInfo::of_summary(&summary, 1).unwrap().unwrap();
                prop_assert!(info.data_offset + info.data_bytes <= 1 << 20);
            }
        }
    }
}
