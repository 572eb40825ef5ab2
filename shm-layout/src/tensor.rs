//! The contents of a slot: the record of sixteen words, and the checks that make a record
//! trustworthy.

use crate::catalogue::SlotRecord;
use crate::number::SlotNo;
#[cfg(not(loom))]
use crate::stream::HeaderSummary;
#[cfg(not(loom))]
use crate::word::SLOT_NONE;
use crate::word::low8;
use crate::{DType, Device};

#[cfg(not(loom))]
mod origin;
#[cfg(not(loom))]
mod plain;
#[cfg(not(loom))]
mod sealed;
mod shape;
#[cfg(not(loom))]
mod small;
#[cfg(not(loom))]
pub use origin::Origin;
#[cfg(not(loom))]
pub use plain::PlainTensor;
#[cfg(not(loom))]
pub use sealed::Sealed;
use shape::elements;
pub use shape::{NDIM_MAX, Shape, Strides};
#[cfg(not(loom))]
pub use small::{SMALL_BYTES, SMALL_WORDS, SmallHead};

/// Maximum length of user metadata in bytes.
pub const METADATA_MAX: usize = 64 * 1024;
/// Metadata bytes that fit into the record itself.
pub const METADATA_INLINE: usize = 32;
/// Dimensions that fit into the record itself.
pub const NDIM_INLINE: usize = 4;
/// Length of the trailer in an early tensor's extension. Reserved: zeros, which readers ignore.
pub const EARLY_BYTES: usize = 72;
/// Alignment of all data: a cache line, so that elements of any type are aligned.
/// [`SlotInfo::check`] verifies the alignment.
pub const ALIGN: u64 = 64;
/// Alignment of data that fill at least one page.
pub const PAGE: u64 = 4096;

/// The kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// One tensor.
    Tensor,
    /// The index of a dataset: names and slots of its members, see [`crate::dataset`].
    Dataset,
    /// Parts of another slot's record that do not fit into it.
    Extension,
}

/// The reason why a record is not a valid tensor. For a reader, an invalid record means that the
/// writer is malicious or broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTensor {
    /// The codes of the element type are not in [`DType::ALL`].
    #[error("its dtype is unknown")]
    DType,
    /// More than 16 dimensions.
    #[error("it has more than {NDIM_MAX} dimensions")]
    Dimensions,
    /// More or fewer strides than dimensions.
    #[error("it needs one stride for each dimension")]
    Strides,
    /// A size, the number of elements, or the number of bytes does not fit into 63 bits.
    #[error("its size overflows")]
    Overflow,
    /// An element would lie outside the slot.
    #[error("an element lies outside its bytes")]
    Bounds,
    /// The slot would lie outside its segment.
    #[error("its bytes lie outside its segment")]
    Segment,
    /// The slot would not begin on a cache line.
    #[error("its bytes do not begin at a multiple of {ALIGN}")]
    Alignment,
    /// The record belongs to another generation or kind than the word that referred to it.
    #[error("its slot record does not belong to it")]
    Record,
    /// The metadata is too long or at a wrong offset.
    #[error("its metadata is damaged")]
    Metadata,
}

/// Checks that a tensor lies inside `bytes` bytes. Returns the tensor's number of elements.
///
/// Strides are in elements. An element's position is `byte_offset / item + sum(index * stride)`, as
/// in `DLPack`.
#[inline]
pub fn check_extent(
    dtype: DType,
    shape: &[u64],
    strides: Option<&[i64]>,
    byte_offset: u64,
    bytes: u64,
) -> Result<u64, BadTensor> {
    if shape.len() > NDIM_MAX {
        return Err(BadTensor::Dimensions);
    }
    if strides.is_some_and(|strides| strides.len() != shape.len()) {
        return Err(BadTensor::Strides);
    }
    let elements = elements(shape).ok_or(BadTensor::Overflow)?;
    // If one size is 0, larger other sizes would be harmless here. But later code treats sizes as
    // signed numbers.
    if elements == 0 && shape.iter().any(|&dim| i64::try_from(dim).is_err()) {
        return Err(BadTensor::Overflow);
    }
    let item = dtype.item_bytes() as u64;
    let total = elements.checked_mul(item).filter(|&total| i64::try_from(total).is_ok()).ok_or(BadTensor::Overflow)?;
    if strides.is_none() || elements == 0 {
        // Fast path: almost every tensor is row-major.
        let end = byte_offset.checked_add(total);
        let aligned = byte_offset == 0 || byte_offset.is_multiple_of(item);
        return if aligned && end.is_some_and(|end| end <= bytes) { Ok(elements) } else { Err(BadTensor::Bounds) };
    }
    let (mut low, mut high) = (0i128, 0i128);
    for (&dim, &stride) in shape.iter().zip(strides.into_iter().flatten()) {
        let reach = (i128::from(dim) - 1) * i128::from(stride);
        if reach < 0 { low += reach } else { high += reach }
    }
    let first = i128::from(byte_offset) + low * i128::from(item);
    let last = i128::from(byte_offset) + high * i128::from(item) + i128::from(item);
    if first < 0 || last > i128::from(bytes) || !byte_offset.is_multiple_of(item) {
        return Err(BadTensor::Bounds);
    }
    Ok(elements)
}

/// A slot record, unpacked. The owner writes the record. A reader copies the record once and trusts
/// the copy only after [`SlotInfo::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's generation. Equals the generation in the cell.
    pub generation: u64,
    /// The kind of the slot.
    pub kind: SlotKind,
    /// Element type (of a tensor).
    pub dtype: DType,
    /// The memory that contains the tensor's bytes.
    pub device: Device,
    /// Number of dimensions.
    pub ndim: u8,
    /// Whether the extension contains strides. Without strides the tensor is row-major.
    pub strided: bool,
    /// Whether the next slot of the chain is this slot's extension. The extension then contains
    /// shape, strides and metadata.
    pub extended: bool,
    /// Whether the owner published the tensor before the work on it was done. Only tensors on a
    /// device can be early. The extension then ends with [`EARLY_BYTES`] reserved bytes. The owner
    /// clears the flag, by one store, when the work is done.
    pub early: bool,
    /// Bytes of user metadata.
    pub metadata_bytes: u32,
    /// The next slot of the chain, which lives as long as this slot. `SLOT_NONE` if there is none.
    pub next: SlotNo,
    /// Offset of the slot's bytes in its segment.
    pub data_offset: u64,
    /// Number of the slot's bytes.
    pub data_bytes: u64,
    /// `DLPack`'s `byte_offset`: offset of the element with index 0 from the slot's first byte.
    pub byte_offset: u64,
    /// User's timestamp: nanoseconds since 1970, 0 if none.
    pub timestamp_ns: u64,
    /// Sequence number in a stream, or 0.
    pub sequence: u64,
    /// The first four sizes (when not extended).
    pub dims: [u64; NDIM_INLINE],
    /// Up to 32 bytes of metadata (when not extended).
    pub metadata: [u64; METADATA_INLINE / 8],
}

/// Mask of the device's codes in a record's second word, and the value of these bits for host
/// memory.
#[cfg(not(loom))]
const DEVICE: u64 = 0xFFFF << 16;
#[cfg(not(loom))]
const CPU: u64 = (Device::CPU.kind() as u64) << 24 | (Device::CPU.id() as u64) << 16;
const STRIDED: u64 = 1 << 8;
const EXTENDED: u64 = 1 << 9;
/// Flag in a summary's first word. The flag distinguishes a valid summary from zeros.
#[cfg(not(loom))]
const SUMMARY: u64 = 1 << 10;
/// Flag of a record: the tensor was published early. A summary never has this flag.
const EARLY: u64 = 1 << 11;

impl SlotInfo {
    /// Returns the record's sixteen words. Fields are listed from the highest bits on, with their widths in bits.
    ///
    /// * Word 0: generation (40), kind (8). Word 1: dtype (32), device type (8), device number (8), flags (8), ndim
    ///   (8).
    /// * Word 2: metadata bytes (32), next slot (24). Words 3 to 7: data offset, data bytes, byte offset, timestamp,
    ///   sequence.
    /// * Words 8 to 11: sizes. Words 12 to 15: metadata.
    ///
    /// The flags are 1 (strided), 2 (extended) and 8 (published early). The flag 4 occurs only in summaries.
    pub fn pack(&self) -> [u64; 16] {
        let mut words = [0; 16];
        words[0] = self.generation << 24 | self.kind as u64;
        words[1] = self.kind_word();
        words[2] = u64::from(self.metadata_bytes) << 32 | u64::from(self.next);
        words[3] = self.data_offset;
        words[4] = self.data_bytes;
        words[5] = self.byte_offset;
        words[6] = self.timestamp_ns;
        words[7] = self.sequence;
        words[8..12].copy_from_slice(&self.dims);
        words[12..16].copy_from_slice(&self.metadata);
        words
    }

    #[inline]
    fn kind_word(&self) -> u64 {
        u64::from(self.dtype.pack()) << 32
            | u64::from(self.device.kind()) << 24
            | u64::from(self.device.id()) << 16
            | u64::from(self.ndim)
            | if self.strided { STRIDED } else { 0 }
            | if self.extended { EXTENDED } else { 0 }
            | if self.early { EARLY } else { 0 }
    }

    /// Unpacks any sixteen words: the inverse of [`SlotInfo::pack`].
    #[inline(always)]
    pub fn unpack(words: &[u64; 16]) -> Result<Self, BadTensor> {
        let ndim = low8(words[1]);
        if usize::from(ndim) > NDIM_MAX {
            return Err(BadTensor::Dimensions);
        }
        Ok(Self {
            generation: words[0] >> 24,
            kind: match words[0] & 0xFF {
                0 => SlotKind::Tensor,
                1 => SlotKind::Dataset,
                2 => SlotKind::Extension,
                _ => return Err(BadTensor::Record),
            },
            dtype: DType::unpack((words[1] >> 32) as u32).ok_or(BadTensor::DType)?,
            device: Device::from_codes(low8(words[1] >> 24), low8(words[1] >> 16)).ok_or(BadTensor::Record)?,
            ndim,
            strided: words[1] & STRIDED != 0,
            extended: words[1] & EXTENDED != 0,
            early: words[1] & EARLY != 0,
            metadata_bytes: (words[2] >> 32) as u32,
            next: SlotNo::low(words[2]),
            data_offset: words[3],
            data_bytes: words[4],
            byte_offset: words[5],
            timestamp_ns: words[6],
            sequence: words[7],
            dims: [words[8], words[9], words[10], words[11]],
            metadata: [words[12], words[13], words[14], words[15]],
        })
    }

    /// Returns the summary of a record, for a stream's entry: element type, location and up to four
    /// sizes below 2^32. Almost every message in host memory fits into a summary. Returns `None` if
    /// the record contains more.
    ///
    /// Word 0 is the record's second word, with a flag that marks a summary. Words 1 and 2 are the
    /// data offset and the data bytes. Words 3 and 4 contain two sizes each, the first in the low
    /// half. Word 5 is the timestamp.
    #[cfg(not(loom))]
    #[inline]
    pub fn summary(&self) -> Option<HeaderSummary> {
        let plain = self.kind == SlotKind::Tensor
            && self.device == Device::CPU
            && !self.extended
            && self.metadata_bytes == 0
            && self.byte_offset == 0;
        let [d0, d1, d2, d3] = self.dims;
        if !plain || (d0 | d1 | d2 | d3) >> 32 != 0 {
            return None;
        }
        let sizes = [d0 | d1 << 32, d2 | d3 << 32];
        Some([self.kind_word() | SUMMARY, self.data_offset, self.data_bytes, sizes[0], sizes[1], self.timestamp_ns])
    }

    /// Converts the words of a summary to the record of the message whose cell has this generation.
    /// This is the inverse of [`SlotInfo::summary`] and accepts any words. Returns `None` if the
    /// caller must read the slot's record.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn of_summary(words: &HeaderSummary, generation: u64) -> Option<Result<Self, BadTensor>> {
        let [first, data_offset, data_bytes, low, high, timestamp] = *words;
        if first & SUMMARY == 0 {
            return None;
        }
        if first & DEVICE != CPU {
            return Some(Err(BadTensor::Record));
        }
        let half = |word: u64| word & 0xFFFF_FFFF;
        let mut record = [0; 16];
        record[0] = generation << 24 | SlotKind::Tensor as u64;
        record[1] = first & !(SUMMARY | STRIDED | EXTENDED | EARLY);
        record[2] = u64::from(SLOT_NONE);
        (record[3], record[4], record[6]) = (data_offset, data_bytes, timestamp);
        (record[8], record[9], record[10], record[11]) = (half(low), low >> 32, half(high), high >> 32);
        Some(Self::unpack(&record))
    }

    /// Returns whether the words of an entry are a summary.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn is_summary(words: &HeaderSummary) -> bool {
        words[0] & SUMMARY != 0
    }

    /// Checks a summary like [`SlotInfo::check`] and [`check_extent`] check a record, without
    /// unpacking the summary.
    ///
    /// If the result is true, [`SlotInfo::of_summary`] returns a tensor whose elements are in the
    /// slot, and the slot is in the segment. The result is also false for an invalid summary.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn check_summary(words: &HeaderSummary, segment_bytes: u64) -> bool {
        let [first, data_offset, data_bytes, low, high, _] = *words;
        let ndim = low8(first);
        let Some(dtype) = DType::unpack((first >> 32) as u32) else { return false };
        // Sizes beyond `ndim` are ignored. The product of two sizes below 2^32 is below 2^64, and
        // the product of all four fits into 128 bits.
        let sizes = [low & 0xFFFF_FFFF, low >> 32, high & 0xFFFF_FFFF, high >> 32];
        let size = |at: u8| if at < ndim { sizes[usize::from(at)] } else { 1 };
        let (front, back) = (u128::from(size(0) * size(1)), size(2) * size(3));
        let elements = front * u128::from(back);
        // An element has at most 16 bytes, so nothing overflows below 2^123.
        elements < 1 << 64
            && elements * (dtype.item_bytes() as u128) <= u128::from(data_bytes)
            && i64::try_from(data_bytes).is_ok()
            && data_offset.checked_add(data_bytes).is_some_and(|end| end <= segment_bytes)
            && data_offset.is_multiple_of(ALIGN)
            && first & (DEVICE | SUMMARY) == CPU | SUMMARY
            && usize::from(ndim) <= NDIM_INLINE
    }

    /// Returns whether two messages with these summaries have the same dtype, sizes and number of bytes. Almost all messages
    /// of a stream do. If `other` passed [`SlotInfo::check_summary`], `words` passes it too if its bytes are aligned and in its
    /// segment. False if `words` are no summary.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn is_like(words: &HeaderSummary, other: &HeaderSummary) -> bool {
        let differing = (words[0] ^ other[0]) | (words[2] ^ other[2]) | (words[3] ^ other[3]) | (words[4] ^ other[4]);
        Self::is_summary(words) && differing == 0
    }

    /// Checks the conditions that every use requires: the record belongs to `generation`, its bytes
    /// are aligned and in the segment, its metadata is not too long, and a record without an
    /// extension needs none.
    ///
    /// # Errors
    /// [`BadTensor`] if a condition does not hold.
    #[inline(always)]
    pub fn check(&self, generation: u64, segment_bytes: u64) -> Result<(), BadTensor> {
        if self.generation != generation {
            return Err(BadTensor::Record);
        }
        if self.data_offset.checked_add(self.data_bytes).is_none_or(|end| end > segment_bytes) {
            return Err(BadTensor::Segment);
        }
        if !self.data_offset.is_multiple_of(ALIGN) {
            return Err(BadTensor::Alignment);
        }
        if self.metadata_bytes as usize > METADATA_MAX {
            return Err(BadTensor::Metadata);
        }
        if !self.extended
            && (self.strided
                || self.early
                || usize::from(self.ndim) > NDIM_INLINE
                || self.metadata_bytes as usize > METADATA_INLINE)
        {
            return Err(BadTensor::Record);
        }
        Ok(())
    }

    /// Returns the minimum length of the extension in bytes: sizes, strides and metadata, in this
    /// order. An early tensor's reserved bytes follow the metadata.
    pub fn extension_bytes(&self) -> usize {
        usize::from(self.ndim) * if self.strided { 16 } else { 8 } + self.metadata_bytes as usize
    }
}

impl SlotRecord {
    /// Owner: writes the record of a draft. The publication that follows makes the record visible
    /// to readers. The generation comes last: with it the slot is sealed, and another thread may release its segment.
    #[inline]
    pub fn write(&self, info: &SlotInfo) {
        let [first, rest @ ..] = info.pack();
        for (word, value) in self.words[1..].iter().zip(rest) {
            word.put(value);
        }
        self.words[0].set(first);
    }

    /// Owner: records that the work on an early tensor is done. The owner makes one store,
    /// concurrently with readers. Readers may see either value, and everything else stays
    /// unchanged.
    #[inline]
    pub fn settle(&self) {
        let word = &self.words[1];
        word.put(word.peek() & !EARLY);
    }

    /// Reader: reads the record once, as a summary. Returns `None` if the record does not fit into
    /// a summary, or has another generation.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn summary(&self, generation: u64) -> Option<HeaderSummary> {
        let word = |at: usize| self.words[at].peek();
        let dims = [word(8), word(9), word(10), word(11)];
        let plain = word(0) == (generation << 24 | SlotKind::Tensor as u64)
            && word(2) >> 32 == 0
            && word(5) == 0
            && (dims[0] | dims[1] | dims[2] | dims[3]) >> 32 == 0;
        let first = word(1);
        if !plain || first & (DEVICE | STRIDED | EXTENDED) != CPU {
            return None;
        }
        Some([first | SUMMARY, word(3), word(4), dims[0] | dims[1] << 32, dims[2] | dims[3] << 32, word(6)])
    }

    /// Returns the generation for which the record was last sealed. The other words may already be those of the next one.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.words[0].peek() >> 24
    }

    /// Reader: copies the record. Reads each word once.
    #[inline]
    pub fn copy(&self) -> [u64; 16] {
        core::array::from_fn(|i| self.words[i].peek())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn extents_of_ordinary_and_odd_tensors() {
        let f32 = DType::F32;
        assert_eq!(check_extent(f32, &[], None, 0, 4), Ok(1));
        assert_eq!(check_extent(f32, &[], None, 0, 3), Err(BadTensor::Bounds));
        let most = i64::MAX as u64;
        assert_eq!(check_extent(f32, &[0, most, most], None, 0, 0), Ok(0));
        assert_eq!(check_extent(f32, &[0, most + 1], None, 0, 0), Err(BadTensor::Overflow));
        assert_eq!(check_extent(f32, &[u64::MAX, 0], Some(&[1, 1]), 0, 0), Err(BadTensor::Overflow));
        assert_eq!(check_extent(f32, &[u64::MAX, 2], None, 0, 64), Err(BadTensor::Overflow));
        assert_eq!(check_extent(f32, &[1 << 62], None, 0, u64::MAX), Err(BadTensor::Overflow));
        assert_eq!(check_extent(f32, &[1; 17], None, 0, 64), Err(BadTensor::Dimensions));
        assert_eq!(check_extent(f32, &[2, 3], Some(&[1, 2]), 0, 24), Ok(6));
        assert_eq!(check_extent(f32, &[2, 3], Some(&[-3, 1]), 12, 24), Ok(6));
        assert_eq!(check_extent(f32, &[2, 3], Some(&[-3, 1]), 8, 24), Err(BadTensor::Bounds));
        assert_eq!(check_extent(f32, &[2, 3], Some(&[i64::MAX, i64::MIN]), 0, 24), Err(BadTensor::Bounds));
        assert_eq!(check_extent(f32, &[2], Some(&[1, 1]), 0, 24), Err(BadTensor::Strides));
        assert_eq!(check_extent(f32, &[1], None, 2, 24), Err(BadTensor::Bounds));
    }

    #[test]
    fn bytes_begin_where_every_element_is_aligned() {
        let mut info = SlotInfo {
            generation: 7,
            kind: SlotKind::Tensor,
            dtype: DType::F64,
            device: Device::CPU,
            ndim: 1,
            strided: false,
            extended: false,
            early: false,
            metadata_bytes: 0,
            next: SLOT_NONE,
            data_offset: 0,
            data_bytes: 8,
            byte_offset: 0,
            timestamp_ns: 0,
            sequence: 0,
            dims: [1, 0, 0, 0],
            metadata: [0; METADATA_INLINE / 8],
        };
        for offset in 0..=2 * ALIGN {
            info.data_offset = offset;
            let wanted = if offset % ALIGN == 0 { Ok(()) } else { Err(BadTensor::Alignment) };
            for kind in [SlotKind::Tensor, SlotKind::Dataset, SlotKind::Extension] {
                assert_eq!(SlotInfo { kind, ..info }.check(7, 4096), wanted, "{kind:?} at {offset}");
            }
            assert_eq!(SlotInfo::check_summary(&info.summary().unwrap(), 4096), wanted.is_ok(), "at {offset}");
        }
    }

    proptest! {
        #[test]
        fn a_summary_says_what_the_record_says(
            dims in prop::collection::vec(0u64..1 << 33, 0..5),
            places in prop::array::uniform3(any::<u64>()),
            generation in 0u64..1 << 40,
            metadata_bytes in prop::sample::select(vec![0u32, 0, 0, 5]),
        ) {
            let mut info = SlotInfo {
                generation,
                kind: SlotKind::Tensor,
                dtype: DType::F16,
                device: Device::CPU,
                ndim: dims.len() as u8,
                strided: false,
                extended: false,
                early: false,
                metadata_bytes,
                next: SLOT_NONE,
                data_offset: places[0],
                data_bytes: places[1],
                byte_offset: 0,
                timestamp_ns: places[2],
                sequence: 0,
                dims: [0; NDIM_INLINE],
                metadata: [0; METADATA_INLINE / 8],
            };
            info.dims[..dims.len()].copy_from_slice(&dims);
            match info.summary() {
                Some(summary) => prop_assert_eq!(SlotInfo::of_summary(&summary, generation), Some(Ok(info))),
                None => prop_assert!(metadata_bytes > 0 || dims.iter().any(|&d| d >> 32 != 0)),
            }
            prop_assert_eq!(SlotInfo::of_summary(&[0; 6], generation), None);
        }

        #[test]
        fn a_summary_is_checked_as_its_record_is(
            noise in prop::array::uniform6(any::<u64>()),
            sizes in prop::array::uniform4(prop::sample::select(vec![0u64, 1, 2, 3, 7, 1 << 16, u64::from(u32::MAX)])),
            ndim in 0u8..7,
            plain in any::<bool>(),
            bytes in prop::sample::select(vec![0u64, 1, 4, 64, 1 << 20, 1 << 40, u64::MAX]),
            offset in prop::sample::select(vec![0u64, 32, 64, 1 << 20, u64::MAX - 63]),
            // No mapping is longer than half the address space.
            segment in prop::sample::select(vec![64u64, 1 << 20, 1 << 41, 1 << 62]),
            place in prop::sample::select(vec![0u64, 32, 64, 1 << 19, 1 << 61, u64::MAX - 63]),
        ) {
            let mut summary = noise;
            if plain {
                summary[0] = u64::from(DType::F32.pack()) << 32 | 1 << 24 | SUMMARY | u64::from(ndim);
                (summary[1], summary[2]) = (offset, bytes);
                (summary[3], summary[4]) = (sizes[0] | sizes[1] << 32, sizes[2] | sizes[3] << 32);
            }
            let slowly = SlotInfo::of_summary(&summary, 7).and_then(Result::ok).is_some_and(|info| {
                info.check(7, segment).is_ok()
                    && usize::from(info.ndim) <= NDIM_INLINE
                    && check_extent(info.dtype, &info.dims[..usize::from(info.ndim)], None, 0, info.data_bytes).is_ok()
            });
            prop_assert_eq!(SlotInfo::check_summary(&summary, segment), slowly);
            // A message like it, in another place.
            let other = [summary[0], place, summary[2], summary[3], summary[4], 7];
            if slowly {
                prop_assert!(SlotInfo::is_like(&other, &summary));
                let is_inside = place.checked_add(summary[2]).is_some_and(|end| end <= segment) && place % ALIGN == 0;
                prop_assert_eq!(SlotInfo::check_summary(&other, segment), is_inside);
            }
            prop_assert!(!SlotInfo::is_like(&summary, &[0; 6]));
        }

        #[test]
        fn a_checked_extent_holds_every_element(
            dims in prop::collection::vec(1u64..5, 0..5),
            steps in prop::collection::vec(-20i64..20, 5),
            offset in 0u64..64,
            bytes in 0u64..512,
        ) {
            let strides = &steps[..dims.len()];
            if check_extent(DType::U8, &dims, Some(strides), offset, bytes).is_ok() {
                let mut index = vec![0u64; dims.len()];
                loop {
                    let at = offset as i64 + index.iter().zip(strides).map(|(&i, &s)| i as i64 * s).sum::<i64>();
                    prop_assert!(at >= 0 && (at as u64) < bytes);
                    let Some(d) = (0..dims.len()).rev().find(|&d| index[d] + 1 < dims[d]) else { break };
                    index[d] += 1;
                    index[d + 1..].fill(0);
                }
            }
        }
    }
}
