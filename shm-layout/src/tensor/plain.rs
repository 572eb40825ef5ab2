//! Records of tensors without rare properties, which almost every tensor is.

use super::{CPU, NDIM_INLINE, SUMMARY, SlotKind};
use crate::DType;
use crate::catalogue::SlotRecord;
use crate::number::SlotNo;
use crate::stream::HeaderSummary;

/// A tensor without rare properties: [`SlotRecord::prepare_plain`] writes its record.
#[derive(Clone, Copy, Debug)]
pub struct PlainTensor {
    /// Element type.
    pub dtype: DType,
    /// Number of dimensions: up to four.
    pub ndim: u8,
    /// The sizes, followed by zeros.
    pub dims: [u64; NDIM_INLINE],
    /// Offset of the slot's bytes in its segment.
    pub data_offset: u64,
    /// Number of the slot's bytes.
    pub data_bytes: u64,
    /// User's timestamp.
    pub timestamp_ns: u64,
}

impl SlotRecord {
    /// Owner: as [`SlotRecord::write`], for a tensor in host memory that the record describes without an extension, metadata,
    /// strides or a byte offset, but without the generation, which [`SlotRecord::seal_plain`] writes. Until then the slot counts
    /// as a draft's. Returns the summary for a stream's entry: zero if a size does not fit.
    #[inline]
    pub fn prepare_plain(&self, next: SlotNo, sequence: u64, plain: &PlainTensor) -> HeaderSummary {
        let &PlainTensor { dtype, ndim, dims, data_offset, data_bytes, timestamp_ns } = plain;
        let kind = u64::from(dtype.pack()) << 32 | CPU | u64::from(ndim);
        let [d0, d1, d2, d3] = dims;
        let words =
            [kind, u64::from(next), data_offset, data_bytes, 0, timestamp_ns, sequence, d0, d1, d2, d3, 0, 0, 0, 0];
        for (word, value) in self.words[1..].iter().zip(words) {
            word.put(value);
        }
        if (d0 | d1 | d2 | d3) >> 32 != 0 {
            return HeaderSummary::default();
        }
        [kind | SUMMARY, data_offset, data_bytes, d0 | d1 << 32, d2 | d3 << 32, timestamp_ns]
    }

    /// Owner: writes the generation of a prepared record. The slot is then ready to be published.
    #[inline]
    pub fn seal_plain(&self, generation: u64) {
        self.words[0].set(generation << 24 | SlotKind::Tensor as u64);
    }

    /// Owner: changes the timestamp of a prepared record and of its summary.
    #[inline]
    pub fn stamp_plain(&self, summary: &mut HeaderSummary, timestamp_ns: u64) {
        self.words[6].put(timestamp_ns);
        if *summary != HeaderSummary::default() {
            summary[5] = timestamp_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{METADATA_INLINE, SlotInfo};
    use super::*;
    use crate::Device;
    use crate::number::SlotNo;
    use crate::raw::{Records, View};

    #[test]
    fn a_plain_record_is_written_as_any_other() {
        let record = |words: [u64; 16]| {
            let view = View::anonymous(size_of::<SlotRecord>());
            let records = Records::<SlotRecord>::new(&view, 0, 1).unwrap();
            records[0].words.iter().zip(words).for_each(|(word, value)| word.put(value));
            records
        };
        for dims in [[0; 4], [5, 0, 0, 0], [1, 2, 3, 4], [1, 1 << 32, 1, 0], [u64::from(u32::MAX), 0, 1, u64::MAX]] {
            let (former, now) = (record([7; 16]), record([7; 16]));
            let (data_offset, data_bytes, timestamp_ns) = (4096, 640, 9);
            let plain = PlainTensor { dtype: DType::BF16, ndim: 4, dims, data_offset, data_bytes, timestamp_ns };
            let info = SlotInfo {
                generation: 11,
                kind: SlotKind::Tensor,
                dtype: DType::BF16,
                device: Device::CPU,
                ndim: 4,
                strided: false,
                extended: false,
                early: false,
                metadata_bytes: 0,
                next: SlotNo::new(12),
                data_offset,
                data_bytes,
                byte_offset: 0,
                timestamp_ns,
                sequence: 13,
                dims,
                metadata: [0; METADATA_INLINE / 8],
            };
            former[0].write(&info);
            let summary = now[0].prepare_plain(SlotNo::new(12), 13, &plain);
            assert_eq!(now[0].generation(), 0, "not sealed yet");
            now[0].seal_plain(11);
            assert_eq!((now[0].copy(), summary), (former[0].copy(), info.summary().unwrap_or_default()));
            // The same with a timestamp that comes in between.
            let later = record([7; 16]);
            let mut summary = later[0].prepare_plain(SlotNo::new(12), 13, &PlainTensor { timestamp_ns: 0, ..plain });
            later[0].stamp_plain(&mut summary, timestamp_ns);
            later[0].seal_plain(11);
            assert_eq!((later[0].copy(), summary), (former[0].copy(), info.summary().unwrap_or_default()));
        }
    }
}
